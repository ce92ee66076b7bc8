"""Losses of reinforcement learning: log-probabilities of the tokens, and their entropy, from the logits of a rank.

Megatron-Core hands the last stage's logits on in fp32 (`megatron/core/transformer/module.py`, Float16Module). What follows differs:

verl, swift  divides by the temperature and takes the cross entropy in place; an entropy needs a copy first
             (volcengine/verl `verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron/tensor_parallel.py`;
             modelscope/ms-swift `swift/megatron/trainers/vocab_parallel_utils.py`)
slime        a softmax beside the logits, which stay (THUDM/slime `slime/utils/ppo_utils.py`,
             `slime/backends/megatron_utils/loss.py`)
nemo_rl      a log-softmax and its exponential; by chunks the logits stay in 16 bits and each chunk is made in fp32 twice
             (NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`)
roll         Megatron's cross entropy of 16-bit logits (alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py`)
fused        a kernel on hidden states and the output weight: logits are never whole
             (volcengine/verl `verl/utils/kernel/kernels.py`, `linear_cross_entropy.py`)
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, smallest
from ..tape.work import Streamed
from .context import Context
from .linear import gemm
from .module import Module

SPLIT = 9504
"""Columns of the vocabulary whose gradient of the logits the fused kernel has at a time (`kernels.py`, _Split_Dlogits_N)."""
Tensors = tuple[Tensor, ...]
PASSES = (8, 4)
"""Passes over fp32 logits, forward and backward, of a cross entropy and its scaling."""


def log_probs(c: Context, name: str, logits: Tensor) -> Module[Tensor]:
    """Scalars per token from the logits [seq, batch, vocab], as the framework's loss makes them."""
    makers = {"verl": _in_place, "swift": _in_place, "slime": _beside, "nemo_rl": _log_softmax, "roll": _sixteen_bits}
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
    if c.training.loss_chunk_size is not None:
        rows = _chunked(c, logits)
        pair = tuple(c.new(f"{name}.{what} of a chunk", *rows, dtype="fp32") for what in ("logits", "log-softmax"))
        streamed = logits.like(f"{name}.streamed", "fp32")
        found = yield from _chosen(c, name, logits, logits, streamed, forward=pair, backward=pair)
        return (yield from _reduced(c, name, (found,)))
    whole = yield from _to_fp32(name, logits)
    exponential = whole.like(f"{name}.softmax", "fp32")
    scratch = (whole.like(f"{name}.log-softmax", "fp32"),)
    found = yield from _chosen(c, name, whole, exponential, whole, forward=scratch, holds=(whole,))
    return (yield from _reduced(c, name, (found,)))


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
    rows, columns = Dim("tokens", c.seq.local * c.batch.size), weight.shape[0]
    part = Dim("vocab of a split", smallest(columns.local, SPLIT))
    statistics = [
        c.new(f"{name}.{what}", rows, dtype="fp32") for what in ("maximum", "sum of exponentials", "entropy_b")
    ]
    gradient = c.new(f"{weight.name}.wgrad", *weight.shape)
    yield Op(
        f"{name}.linear_cross_entropy", (read,), (found,), (read, *statistics, *_targets(c, name)),
        backward=(c.new(f"{name}.logits grad of a split", rows, part), gradient), part="head",
        work=(gemm(c, weight, c.seq.local * c.batch.size),),
    )  # fmt: skip
    return (yield from _reduced(c, name, (found,)))


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
