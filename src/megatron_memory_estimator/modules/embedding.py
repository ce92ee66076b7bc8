"""Token and position embeddings. Source: Megatron-LM `megatron/core/models/common/embeddings/language_model_embedding.py`,
`megatron/core/tensor_parallel/layers.py` (VocabParallelEmbedding)."""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import DTYPE_BYTES, Dim, Param, Tensor
from ..tape.work import Streamed
from .context import Context
from .linear import in_flight, padded
from .module import Module
from .sends import over_tp

TABLE = "embedding.word_embeddings.weight"
"""The name of the word embedding table."""


def vocab(c: Context) -> Dim:
    """Padded vocabulary, sharded over tp."""
    return c.dim("padded_vocab_size", c.model.padded_vocab(c.layout.tp), "tp")


def embedding_params(c: Context, *, alone: bool, positions: bool = True) -> Module[Param]:
    """The word embedding table, and the position table where positions are learned. `alone`: no other stage has a copy of it,
    of the output layer's or of MTP's.

    Source: Megatron-LM `megatron/core/models/common/language_module/language_module.py` (setup_embeddings_and_output_layer).
    """
    shared = bool(c.model.share_embeddings_and_output_weights or c.model.mtp) and not alone
    table = Param(TABLE, (vocab(c), c.hidden), "tp", shared_embedding=shared)
    yield table
    if positions and c.model.position_embedding_type == "learned_absolute":
        rows = c.model.max_position_embeddings or c.training.seq_length
        yield Param("embedding.position_embeddings.weight", (Dim("max_position_embeddings", rows), c.hidden))
    return table


def lookup(c: Context, name: str, table: Param, out: Tensor) -> Module[Tensor]:
    """Embedding output. The backward writes a dense gradient of the table, fusion or not."""
    m = c.model
    shape = (c.batch, c.seq)
    ids = c.new(f"{name}.token_ids", *shape, dtype="int64")
    kept: tuple[Tensor, ...] = (ids,)
    if c.tp_many:
        kept = (*kept, c.new(f"{name}.range_mask", *shape, dtype="bool"))
    whole = c.region(f"{name}.table output", c.hidden)
    learned = m.position_embedding_type == "learned_absolute"
    if learned:
        kept = (*kept, c.new(f"{name}.position_ids", *shape, dtype="int64"))
    scratch: tuple[Tensor, ...] = (whole,)
    if learned:
        scratch = (*scratch, whole.like(f"{name}.position output"))
    drops = m.hidden_dropout > 0
    found = out.like(f"{name}.before dropout") if drops else out
    grads: tuple[Tensor, ...] = (c.new(f"{table.name}.wgrad", *table.shape),)
    if c.layout.gtp > 1:  # reduced at once, as no weight stands before it
        rows = padded(table.shape[0].local, c.layout.gtp) // c.layout.gtp
        grads = (*in_flight(c, table), c.new(f"{table.name}.wgrad of this rank", Dim("rows", rows), c.hidden))
    if c.sp_many:
        grads = (*grads, whole.like(f"{name}.output grad gathered"))
    scatters = c.training.scatter_embedding_sequence_parallel
    pins = m.towers or not scatters or (learned and not c.training.clone_scatter_output_in_embedding)
    pinned = c.sp_many and pins and not drops
    if pinned:
        # the scatter is a view that pins the whole output: what is beyond this rank's part stays until the end. Behind a tower it comes
        # after its rows are put in (NVIDIA-NeMo/Megatron-Bridge, scatter_embedding_sequence_parallel of the VL providers)
        rest = Dim("(tp-1)*seq*b*hidden_size", (whole.nbytes - out.nbytes) // DTYPE_BYTES[whole.dtype])
        kept = (*kept, c.new(f"{name}.output of other ranks", rest))
    if c.training.base_frozen:  # frozen; what is cut of it leads back to towers that are trained, or have adapters
        kept, grads = (kept[-1:] if pinned and _leads_back(c) else ()), ()
    sends = over_tp(c, "reduce_scatter" if c.sp_many and scatters else "all_reduce", whole)
    returns = over_tp(c, "all_gather", whole) if c.sp_many and grads else ()
    added = 2 * table.numel * DTYPE_BYTES[c.training.grad_dtype] if grads else 0  # main_grad, read and written
    work = Streamed(backward=added)
    yield Op(name, (), (found,), kept, scratch, grads, work=(work,), sends=sends, returns=returns)
    if drops:
        yield Op(f"{name}.dropout", (found,), (out,), (out.like(f"{name}.dropout_mask", "bool"),))
    return out


def _leads_back(c: Context) -> bool:
    """Whether rows of a tower that learns stand in the output of a frozen embedding."""
    t = c.training
    return any(tower.given(t) and (t.peft == "none" or tower.adaptable) for tower in c.model.towers)


def embedding(c: Context, *, alone: bool) -> Module[Tensor]:
    """The first unit of the first chunk."""
    table = yield from embedding_params(c, alone=alone)
    out = c.stream("embedding.output", c.hidden) if c.model.several_streams else c.residual("embedding.output")
    return (yield from lookup(c, "embedding", table, out))
