"""Final norm, output layer and cross entropy.

Sources: Megatron-LM `megatron/core/models/gpt/gpt_model.py`, `megatron/core/tensor_parallel/layers.py`,
`megatron/core/tensor_parallel/cross_entropy.py`, `megatron/core/fusions/fused_cross_entropy.py`; TransformerEngine
`pytorch/triton/cross_entropy.py`.

Losses of reinforcement learning: log-probabilities of the tokens, and their entropy, from the logits of a rank.

Megatron-Core hands the last stage's logits on in fp32 (`megatron/core/transformer/module.py`, Float16Module). What follows differs:

verl, swift  divides by the temperature and takes the cross entropy in place; an entropy needs a copy first
             (volcengine/verl `verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron/tensor_parallel.py`;
             modelscope/ms-swift `swift/megatron/trainers/vocab_parallel_utils.py`)
slime        a softmax beside the logits, which stay (THUDM/slime `slime/utils/ppo_utils.py`,
             `slime/backends/megatron_utils/loss.py`)
nemo_rl      a log-softmax and its exponential; by chunks the logits stay in 16 bits and each chunk is made in fp32 twice
             (NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`)
roll         Megatron's cross entropy of 16-bit logits (alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py`)
skyrl        as nemo_rl, but logits and their gradient stay whole in fp32 where the softmax is made by chunks; an entropy keeps a
             softmax of its own (NovaSky-AI/SkyRL `skyrl/backends/skyrl_train/distributed/megatron/model_utils.py`)
linear       Megatron-Core's own: output layer and cross entropy of GPTModel and its MTP as one kernel, for compute capability 10.x
             (Megatron-LM dev, pull requests 2256 and 3226, `fusions/fused_linear_cross_entropy.py`)
fused        a kernel on hidden states and the output weight: logits are never whole
             (volcengine/verl `verl/utils/kernel/kernels.py`, `linear_cross_entropy.py`)
skyrl_fused  the same by chunks of tokens in PyTorch; the gradient of the output weight is summed in fp32
             (NovaSky-AI/SkyRL, same file, FusedLinearChunkedDistributedLogprob)
nemo_rl_fused  the same with one-hot targets, a transposed copy of the weight's gradient, and the hidden states' gradient in fp32
             (NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`, ChunkedDistributedHiddenStatesToLogprobs)
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, smallest
from ..tape.work import Streamed
from .context import Context
from .embedding import vocab
from .linear import column_sends, gemm, weight_grad
from .module import Module, in_part
from .norm import norm, norm_params
from .softcap import capped

UNFUSED, NATIVE = (8, 2), (3, 0)
"""Passes over the fp32 logits beyond making and keeping them, forward and backward. Unfused: maximum (one read), subtraction, exp
and division (a read and a write each), sum (a read); scaling of the gradient (`tensor_parallel/cross_entropy.py`). Compiled: maximum
and division (`fusions/fused_cross_entropy.py`)."""


def final_layernorm(c: Context, hidden: Tensor) -> Module[Tensor]:
    """Norm after the last decoder layer."""
    yield from norm_params(c, "decoder.final_layernorm.", c.hidden)
    return (yield from norm(c, "final_layernorm", hidden))


def output_parameter(c: Context, *, shared: bool = False) -> Param:
    """The output layer's weight."""
    return Param("output_layer.weight", (vocab(c), c.hidden), "tp", gemm="megatron", shared_embedding=shared)


def output_weight(c: Context, *, owned: bool, shared: bool) -> Module[Param]:
    """The output layer's weight; with tied embeddings on one stage it is the embedding table and not allocated."""
    weight = output_parameter(c, shared=shared)
    if owned:
        yield weight
    return weight


def loss(c: Context, name: str, hidden: Tensor, weight: Param) -> Module[Tensor]:
    """Loss of one set of logits from the normed hidden states."""
    kind = c.training.loss_function
    if c.training.linear_loss:
        return (yield from linear_cross_entropy(c, name, hidden, weight))
    if c.training.without_logits:
        return (yield from fused(c, name, hidden, weight))
    logits = yield from _output_layer(c, name, hidden, weight)
    return (yield from (_cross_entropy if kind == "cross_entropy" else log_probs)(c, name, logits))


def _output_layer(c: Context, name: str, hidden: Tensor, weight: Param) -> Module[Tensor]:
    """Megatron's column-parallel linear: its gathered input lives in the persistent "mpu" buffer."""
    logits = c.region(f"{name}.logits", weight.shape[0])
    backward = weight_grad(c, weight)
    dtype = c.training.logit_dtype or logits.dtype
    if dtype != logits.dtype:  # the gradient is cast to what the product takes (`tensor_parallel/layers.py`)
        backward = (*backward, logits.like(f"{name}.logits grad in {logits.dtype}"))
        logits = logits.like(logits.name, dtype)
    if c.sp_many:
        backward = (*backward, c.region(f"{name}.input grad before reduce-scatter", c.hidden))
    cap = c.model.final_logit_softcapping
    # the gradient of TransformerEngine's cross entropy is what it kept, which lives until this backward
    own = gradient_storage(c, name, logits)
    saves: tuple[Tensor, ...] = (hidden,) if own is None or cap else (hidden, own)
    if c.training.base_frozen:  # linear_with_frozen_weight keeps no input
        saves = saves[1:]
    sends, returns = column_sends(c, f"{name}.output_layer", c.hidden, quantizes=False)
    yield Op(
        f"{name}.output_layer", (hidden,), (logits,), saves, backward=backward, part="head",
        work=(gemm(c, weight, c.seq.local * c.batch.size),), sends=sends, returns=returns,
    )  # fmt: skip
    if cap:
        out = logits.like(f"{name}.softcap.capped")
        own = gradient_storage(c, name, out)
        return (yield from in_part("head", capped(f"{name}.softcap", logits, until=() if own is None else (own,))))
    return logits


def gradient_storage(c: Context, name: str, logits: Tensor) -> Tensor | None:
    """Where the cross entropy writes the gradient of the logits; None where it allocates it.

    TransformerEngine up to 2.17: the logits themselves. From 2.19: a copy of them that the forward made. PyTorch's functions: the fp32
    softmax (`tensor_parallel/cross_entropy.py`, backward), which is cast to narrower logits and overwrote fp32 ones in the forward.
    """
    t = c.training
    if t.loss_function == "cross_entropy" and not t.cross_entropy_loss_fusion:
        return logits if logits.dtype == "fp32" else None
    if not (t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "te") or t.te == (2, 18):
        return None
    return logits if t.te < (2, 18) else logits.like(f"{name}.cross_entropy.saved_input")


def _cross_entropy(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    """Scalar losses per token; what is kept depends on the implementation.

    unfused      fp32 softmax, computed in place in the fp32 copy of the logits, or in fp32 logits themselves
    native       the same, compiled: the forward holds a second fp32 copy, and the backward makes its gradient in bf16, which autograd
                 casts to the logits' dtype. The eager code writes over one copy (`tensor_parallel/cross_entropy.py`: torch.exp with out=);
                 what Inductor makes of it is known from no source. The second copy stays because published peaks of LoRA runs (Qwen3-8B
                 and its kin, Megatron-Bridge's verification cards) agree better with it than without: see limits.md
    te           TransformerEngine up to 2.17: the gradient overwrites the logits; 2.18: a separate fp32 gradient; from 2.19: a
                 copy of the logits, which the gradient overwrites, and two fp32 statistics per token
    """
    t = c.training
    rows = (c.seq, c.batch)
    out = c.new(f"{name}.losses", *rows, dtype="fp32")
    mask = c.new(f"{name}.loss_mask", *rows, dtype="fp32")
    ce = f"{name}.cross_entropy"
    index: tuple[Tensor, ...] = (c.new(f"{ce}.masked_target", *rows, dtype="int64"),)
    if not (t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "te"):
        index = (*index, c.new(f"{ce}.target_mask", *rows, dtype="bool"))
    if t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "te":
        storage = gradient_storage(c, name, logits)
        yield from _te_kernels(c, ce, logits, out, storage, index)
        return (yield from _reduce(c, name, out, mask, held=None if storage is None else logits))
    wide = logits.dtype == "fp32"  # `.float()` is no copy, and exp writes over the logits
    softmax = logits.view(f"{ce}.softmax", logits.shape) if wide else logits.like(f"{ce}.softmax", "fp32")
    scratch = (logits.like(f"{ce}.logits fp32", "fp32"),) if t.cross_entropy_loss_fusion else ()
    made = (
        (logits.like(f"{ce}.gradient in bf16", "bf16"),)
        if t.cross_entropy_loss_fusion and logits.dtype != "bf16"
        else ()
    )
    passes, back = NATIVE if t.cross_entropy_loss_fusion else UNFUSED
    work = Streamed(forward=passes * softmax.nbytes, backward=back * softmax.nbytes)
    in_place = (logits,) if wide and not t.cross_entropy_loss_fusion else ()
    yield Op(
        ce,
        (logits,),
        (out,),
        (softmax, *index),
        forward=scratch,
        backward=made,
        passes=in_place,
        holds=(logits,),
        work=(work,),
    )
    return (yield from _reduce(c, name, out, mask, held=logits))


def _te_kernels(
    c: Context, ce: str, logits: Tensor, out: Tensor, storage: Tensor | None, index: tuple[Tensor, ...]
) -> Module[None]:
    """TransformerEngine's loss. The forward reads the logits twice and writes the gradient over them, or over a copy that is kept in their
    place; the backward scales that. Over tp, each rank gathers four statistics of every rank's share of the vocabulary."""
    rows = out.shape
    if storage is None:
        grad = logits.like(f"{ce}.logits grad fp32", "fp32")
        yield Op(ce, (logits,), (out,), (grad, *index), work=(Streamed(forward=logits.nbytes),))
        return
    kept: tuple[Tensor, ...] = (storage,)
    if storage is not logits:
        kept = (storage, c.new(f"{ce}.stats", *rows, Dim("two", 2), dtype="fp32"), *index)
    ranks = Dim("tp*4", 4 * c.layout.tp)
    gathered = (c.new(f"{ce}.stats of all ranks", *rows, ranks, dtype="fp32"),) if c.tp_many else ()
    again = 2 * logits.nbytes
    yield Op(ce, (logits,), (out,), kept, gathered, passes=(logits,), work=(Streamed(forward=again, backward=again),))


def _reduce(c: Context, name: str, losses: Tensor, mask: Tensor, held: Tensor | None = None) -> Module[Tensor]:
    """Masked mean of the losses; the logits are referenced until the model's forward returns."""
    total = c.new(f"{name}.loss", Dim("one", 1), dtype="fp32")
    yield Op(f"{name}.loss_func", (losses,), (total,), (mask,), holds=() if held is None else (held,))
    return total


MEGATRON_SPLIT = 3072
"""The same of Megatron-Core's kernel (`LCE_FWD_VOCAB_SPLIT_SIZE`, `LCE_BWD_VOCAB_SPLIT_SIZE`)."""
SPLIT = 9504
"""Columns of the vocabulary whose gradient of the logits the fused kernel has at a time (`kernels.py`, _Split_Dlogits_N)."""
Tensors = tuple[Tensor, ...]
PASSES = (8, 4)
"""Passes over fp32 logits, forward and backward, of a cross entropy and its scaling."""


def log_probs(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    """Scalars per token from the logits [seq, batch, vocab], as the framework's loss makes them."""
    makers = {
        "verl": _in_place,
        "swift": _in_place,
        "slime": _beside,
        "nemo_rl": _log_softmax,
        "roll": _sixteen_bits,
        "skyrl": _whole_in_fp32,
    }
    return (yield from makers[c.training.loss_function](c, name, logits))


def _in_place(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    whole = yield from _to_fp32(name, logits)
    scaled = whole.view(f"{name}.logits over temperature", whole.shape)
    # the gradient that the cross entropy leaves in the logits' storage lives until here
    yield Op(f"{name}.temperature", (whole,), (scaled,), (whole,))
    source, parts = scaled, []
    if c.training.loss_entropy:
        source = scaled.like(f"{name}.logits copied", "fp32")
        yield Op(f"{name}.clone", (scaled,), (source,), (source,), passes=(scaled,))
        parts.append((yield from _entropy(c, name, scaled, in_place=True)))
    found = yield from _chosen(c, name, source, source, whole, passes=(source,))
    return (yield from _reduced(c, name, (found, *parts)))


def _beside(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    rows = _chunked(c, logits)
    whole = yield from _to_fp32(name, logits)
    scaled = whole
    if c.training.loss_temperature:
        scaled = whole.like(f"{name}.logits over temperature", "fp32")
        yield Op(f"{name}.temperature", (whole,), (scaled,), holds=(logits,))
    parts = [(yield from _entropy(c, name, scaled, in_place=False))] if c.training.loss_entropy else []
    softmax = whole.like(f"{name}.softmax", "fp32")
    scratch = (c.new(f"{name}.logits of a chunk", *rows, dtype="fp32"),) if c.training.loss_chunk_size else ()
    found = yield from _chosen(c, name, scaled, softmax, whole, forward=scratch, holds=(logits, whole))
    return (yield from _reduced(c, name, (found, *parts), held=(logits,)))


def _log_softmax(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    source = logits if c.training.loss_chunk_size is not None else (yield from _to_fp32(name, logits))
    found = yield from _by_log_softmax(c, name, source)
    return (yield from _reduced(c, name, (found,)))


def _whole_in_fp32(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    whole = yield from _to_fp32(name, logits)
    found = yield from _by_log_softmax(c, name, whole)
    parts = [(yield from _entropy(c, name, whole, in_place=False))] if c.training.loss_entropy else []
    return (yield from _reduced(c, name, (found, *parts)))


def _by_log_softmax(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    """Chosen values of a log-softmax: of all tokens, or of a chunk at a time, which is made again in the backward pass."""
    if c.training.loss_chunk_size is None:
        exponential = logits.like(f"{name}.softmax", "fp32")
        scratch = (logits.like(f"{name}.log-softmax", "fp32"),)
        return (yield from _chosen(c, name, logits, exponential, logits, forward=scratch, holds=(logits,)))
    rows = _chunked(c, logits)
    pair = tuple(c.new(f"{name}.{what} of a chunk", *rows, dtype="fp32") for what in ("logits", "log-softmax"))
    streamed = logits.like(f"{name}.streamed", "fp32")
    return (yield from _chosen(c, name, logits, logits, streamed, forward=pair, backward=pair))


def _sixteen_bits(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    parts = [(yield from _entropy(c, name, logits, in_place=False))] if c.training.loss_entropy else []
    softmax = logits.like(f"{name}.softmax", "fp32")
    found = yield from _chosen(c, name, logits, softmax, softmax, holds=(logits,))
    return (yield from _reduced(c, name, (found, *parts), held=(logits,)))


def fused(c: Context, name: str, hidden: Tensor, weight: Param) -> Module[Tensor]:
    """The same from hidden states, gathered over the sequence-parallel ranks, without whole logits."""
    found = _per_token(c, f"{name}.log_probs")
    read = hidden
    if c.sp_many:
        read = c.region(f"{name}.hidden gathered", c.hidden)
        yield Op(f"{name}.gather", (hidden,), (read,))
    makers = {"fused": _of_splits, "skyrl_fused": _of_chunks, "nemo_rl_fused": _of_one_hot_chunks}
    statistics, forward, backward = makers[c.training.loss_function](c, name, weight)
    yield Op(
        f"{name}.linear_cross_entropy", (read,), (found,), (read, *statistics, *_targets(c, name)), forward=forward,
        backward=backward, part="head", work=(gemm(c, weight, c.seq.local * c.batch.size),),
    )  # fmt: skip
    return (yield from _reduced(c, name, (found,)))


def linear_cross_entropy(c: Context, name: str, hidden: Tensor, weight: Param) -> Module[Tensor]:
    """Losses per token from hidden states, gathered over the sequence-parallel ranks. The gradient of the hidden states is summed in fp32
    over splits of the vocabulary; that of the weight is not written into the gradient buffer."""
    rows = (c.seq, c.batch)
    ce = f"{name}.cross_entropy"
    out = c.new(f"{name}.losses", *rows, dtype="fp32")
    mask = c.new(f"{name}.loss_mask", *rows, dtype="fp32")
    read = hidden
    if c.sp_many:
        read = c.region(f"{name}.hidden gathered", c.hidden)
        yield Op(f"{name}.gather", (hidden,), (read,))
    statistics = [c.new(f"{ce}.{what}", *rows, dtype="fp32") for what in ("maximum", "sum of exponentials")]
    columns = weight.shape[0]
    splits = Dim("splits of the vocab", -(-columns.local // MEGATRON_SPLIT))
    partial = tuple(c.new(f"{ce}.{what} of a split", *rows, splits, dtype="fp32") for what in ("maximum", "sum"))
    part = Dim("vocab of a split", smallest(columns.local, MEGATRON_SPLIT))
    backward = (
        *(read.like(f"{ce}.hidden grad in fp32{more}", "fp32") for more in ("", ", of a split")),
        c.new(f"{ce}.logits grad of a split", *rows, part),
        c.new(f"{weight.name}.wgrad", *weight.shape),
    )
    labels = c.new(f"{ce}.labels", *rows, dtype="int64")
    yield Op(
        f"{name}.linear_cross_entropy", (read,), (out,), (read, *statistics, labels), forward=partial, backward=backward, part="head",
        work=(gemm(c, weight, c.seq.local * c.batch.size),),
    )  # fmt: skip
    return (yield from _reduce(c, name, out, mask))


def _of_splits(c: Context, name: str, weight: Param) -> tuple[Tensors, Tensors, Tensors]:
    """What a kernel keeps and needs that has all tokens and a part of the vocabulary at a time."""
    rows, columns = Dim("tokens", c.seq.local * c.batch.size), weight.shape[0]
    part = Dim("vocab of a split", smallest(columns.local, SPLIT))
    statistics = [
        c.new(f"{name}.{what}", rows, dtype="fp32") for what in ("maximum", "sum of exponentials", "entropy_b")
    ]
    gradient = c.new(f"{weight.name}.wgrad", *weight.shape)
    return tuple(statistics), (), (c.new(f"{name}.logits grad of a split", rows, part), gradient)


def _of_chunks(c: Context, name: str, weight: Param) -> tuple[Tensors, Tensors, Tensors]:
    """The same with the whole vocabulary and a chunk of tokens at a time: its logits and their softmax."""
    tokens = c.seq.local * c.batch.size
    rows = Dim("tokens of a chunk", smallest(tokens, c.training.loss_chunk_size or tokens))
    pair = tuple(
        c.new(f"{name}.{what} of a chunk", rows, weight.shape[0], dtype="fp32") for what in ("logits", "softmax")
    )
    gradients = (
        c.new(f"{weight.name}.wgrad fp32", *weight.shape, dtype="fp32"),
        c.new(f"{weight.name}.wgrad", *weight.shape),
    )
    return (), pair, (*pair, *gradients)


def _of_one_hot_chunks(c: Context, name: str, weight: Param) -> tuple[Tensors, Tensors, Tensors]:
    """Chunks of tokens whose targets are one-hot rows; gradients of the weight and of the hidden states are made in fp32 for all tokens."""
    tokens = c.seq.local * c.batch.size
    rows = Dim("tokens of a chunk", smallest(tokens, c.training.loss_chunk_size or tokens))
    hidden = c.region(f"{name}.hidden", c.hidden)

    def of_chunk(what: str, dtype: str = "") -> Tensor:
        return c.new(f"{name}.{what} of a chunk", rows, weight.shape[0], dtype=dtype)

    forward = (
        of_chunk("logits"),
        *(of_chunk(what, "fp32") for what in ("logits in fp32", "log-softmax", "exponential")),
    )
    backward = (
        *(of_chunk(what, "int64") for what in ("one-hot targets", "one-hot targets of the rank")),
        *(of_chunk(what, "fp32") for what in ("softmax", "one-hot targets in fp32", "logits grad in fp32")),
        of_chunk("logits grad"),
        c.new(f"{weight.name}.wgrad", *weight.shape),
        *(c.new(f"{weight.name}.wgrad fp32{more}", *weight.shape, dtype="fp32") for more in ("", ", transposed")),
        *(hidden.like(f"{name}.hidden grad in fp32{more}", "fp32") for more in ("", ", summed over ranks")),
    )
    return (), forward, backward


def _chosen(
    c: Context, name: str, source: Tensor, kept: Tensor, streamed: Tensor, *,
    forward: Tensors = (), backward: Tensors = (), passes: Tensors = (), holds: Tensors = (),
) -> Module[Tensor]:  # fmt: skip
    """The log-probability of every token that is wanted; the backward pass keeps one tensor of their size and the targets."""
    found = _per_token(c, f"{name}.log_probs")
    yield Op(
        f"{name}.log_probs", (source,), (found,), (kept, *_targets(c, name)), forward=forward, backward=backward,
        passes=passes, holds=holds, work=(_streamed(streamed),),
    )  # fmt: skip
    return found


def _to_fp32(name: str, logits: Tensor) -> Module[Tensor]:
    whole = logits.like(f"{name}.logits fp32", "fp32")
    yield Op(f"{name}.logits_to_fp32", (logits,), (whole,))
    return whole


def _entropy(c: Context, name: str, logits: Tensor, *, in_place: bool) -> Module[Tensor]:
    """The entropy of every token keeps the logits and their softmax; in place its gradient is written over that."""
    out = _per_token(c, f"{name}.entropy")
    softmax = logits.like(f"{name}.entropy.softmax", "fp32")
    passes = (logits,) if in_place else ()
    yield Op(f"{name}.entropy", (logits,), (out,), (logits, softmax), passes=passes, work=(_streamed(softmax),))
    return out


def _chunked(c: Context, logits: Tensor) -> tuple[Dim, Dim]:
    """Rows and columns of a chunk's logits."""
    chunk = c.training.loss_chunk_size or 0
    return Dim("tokens of a chunk", smallest(c.seq.local * c.batch.size, chunk)), logits.shape[-1]


def _per_token(c: Context, name: str) -> Tensor:
    return c.new(name, c.seq, c.batch, dtype="fp32")


def _targets(c: Context, name: str) -> tuple[Tensor, ...]:
    """Which token's probability is wanted, and whether this rank has it (`tensor_parallel/cross_entropy.py`)."""
    rows = (c.seq, c.batch)
    return (
        c.new(f"{name}.masked_target", *rows, dtype="int64"),
        c.new(f"{name}.target_mask", *rows, dtype="bool"),
    )


def _streamed(logits: Tensor) -> Streamed:
    forward, backward = PASSES
    return Streamed(forward=forward * logits.nbytes, backward=backward * logits.nbytes)


def _reduced(c: Context, name: str, parts: tuple[Tensor, ...], held: tuple[Tensor, ...] = ()) -> Module[Tensor]:
    """The policy's loss of the log-probabilities."""
    total = c.new(f"{name}.loss", Dim("one", 1), dtype="fp32")
    mask = c.new(f"{name}.loss_mask", c.seq, c.batch, dtype="fp32")
    yield Op(f"{name}.loss_func", parts, (total,), (mask, *parts), holds=held)
    return total
