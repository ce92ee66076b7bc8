"""Unfused core attention: a matrix of scores [b, n, s, s] of TransformerEngine's UnfusedDotProductAttention and of the local spec.

Sources: TransformerEngine `pytorch/attention/dot_product_attention/backends.py`, `softmax.py`, `pytorch/csrc/extensions/softmax.cpp`;
Megatron-LM `megatron/core/transformer/dot_product_attention.py`, `megatron/core/fusions/fused_softmax.py`.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor
from ..tape.work import Streamed
from .context import Context
from .module import Module
from .softcap import capped

FRESH_GRADIENT = (2, 19)
"""TransformerEngine version from which its softmax kernels write the gradient into a tensor of its own."""


def unfused(c: Context, name: str, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    """Attention with a score matrix [b, n, s, s] (TransformerEngine UnfusedDotProductAttention, local spec)."""
    if c.cp_many:
        raise UnsupportedError(
            f"attention_kernel={c.core_kernel} does not support context parallelism "
            f"(context_parallel_size={c.layout.cp}); use flash or cudnn",
            f"attention_kernel={c.core_kernel} does not support context parallelism (context_parallel_size)",
        )
    te = c.core_kernel == "unfused"
    if c.model.softmax_type != "vanilla" and not c.te:
        raise UnsupportedError(f"softmax_type={c.model.softmax_type} is not modelled with transformer_impl=local")
    out = c.region(f"{name}.output", heads, v_dim)
    square = (c.batch, heads, c.seq, c.full_seq)
    given = c.training.create_attention_mask_in_dataloader
    sequences = (c.batch,) if te and given else ()  # joined with the one that is given
    mask = c.new(f"{name}.mask", *sequences, Dim("seq", c.seq.size), c.full_seq, dtype="bool")
    arguments = (k, v)
    if te:  # built for every call: differences of positions, and where they lie in the window
        wide = tuple(mask.like(f"{name}.{one}", "int32") for one in ("distances", "window begins", "window ends"))
        yield Op(f"{name}.mask", (), (mask,), forward=wide)
    if k.shape[-2].size != heads.size and not c.one_head:  # key and value are repeated to all heads of the rank
        repeated = tuple(c.region(f"{t.name} repeated", heads, t.shape[-1]) for t in arguments)
        yield Op(f"{name}.repeat_kv", arguments, repeated)
        k, v = repeated
    scores = c.new(f"{name}.scores", *square)
    elements = heads.local * c.seq.local * c.batch.size * c.full_seq.size
    products = tuple(Streamed(2 * elements * x.shape[-1].size) for x in (q, v))
    result = () if c.core_kernel == "local" else (scores.like(f"{name}.scores before the product"),)
    yield Op(f"{name}.scores", (q, k), (scores,), (q, k), result, work=products[:1])
    held: tuple[Tensor, ...] = (scores, q, k, *arguments)
    if c.model.attn_logit_softcapping:
        scores = yield from capped(f"{name}.softcap", scores)
    keys = square
    # the sink is one key more, to the softmax (`backends.py`, UnfusedDotProductAttention)
    if c.model.softmax_type != "vanilla" and te:
        keys = (*square[:3], Dim("seq+1", c.full_seq.size + 1))
        joined = c.new(f"{name}.scores and sink", *keys)
        padded = c.new(f"{name}.mask and sink", *mask.shape[:-1], keys[-1], dtype="bool")
        yield Op(f"{name}.sink", (scores, mask), (joined, padded), passes=(scores,))
        scores, mask = joined, padded  # the mask before is not referred to any more
    held = (*held, mask) if te else held
    if _fits_kernel(c, keys[-1].size):
        kept = c.new(f"{name}.softmax", *keys)
        in_place = not te or c.training.te < FRESH_GRADIENT
        yield Op(f"{name}.softmax", (scores,), (kept,), (kept,), passes=(scores,) if in_place else ())
    else:
        kept = yield from _torch_softmax(c, name, scores, mask, keys)
    if c.model.attention_dropout > 0:
        dropout_mask = c.new(f"{name}.dropout_mask", *square, dtype="bool")
        dropped = c.new(f"{name}.dropped softmax", *square)
        yield Op(f"{name}.attention_dropout", (kept,), (dropped,), (dropout_mask,))
        kept = dropped
    # both forwards refer to the scores to their end; in the local spec they are a tensor beside the persistent buffer (workspaces.py)
    product = out.like(f"{name}.output by heads")
    yield Op(f"{name}.context", (kept, v), (product,), (kept, v), work=products[1:])
    yield Op(f"{name}.order_heads", (product,), (out,), holds=(*held, kept, v))
    return out


def _fits_kernel(c: Context, keys: int) -> bool:
    """Whether a fused softmax kernel takes the scores. TransformerEngine's: half precision, 16 < keys < 16,384 in eights, rows of scores in
    fours, whatever `masked_softmax_fusion` says; Megatron-Core's own, where that is on: at most 4,096 keys in fours.

    Sources: TransformerEngine `softmax.py`, Megatron-LM `fused_softmax.py` (FusedScaleMaskSoftmax.is_kernel_available).
    """
    if c.core_kernel == "unfused":
        fits = 16 < keys < 16384 and keys % 8 == 0
    else:
        fits = c.training.masked_softmax_fusion and 16 < keys <= 4096 and keys % 4 == 0
    return fits and c.dtype != "fp32" and c.training.seq_length % 4 == 0 and c.heads_in_fours


def applies_given_mask(c: Context) -> bool:
    """Whether the mask that the data loader builds is applied to the scores, and kept: PyTorch's softmax of the local spec."""
    return c.core_kernel == "local" and not c.model.sliding_window and not _fits_kernel(c, c.full_seq.size)


def _torch_softmax(c: Context, name: str, scores: Tensor, mask: Tensor, square: tuple[Dim, ...]) -> Module[Tensor]:
    """PyTorch's softmax, which keeps its result and the mask that was applied in place. Scores are widened where the compute dtype is
    narrower and the softmax is to be in fp32, as TransformerEngine's always is.
    """
    te, half = c.core_kernel == "unfused", c.dtype != "fp32"
    name = f"{name}.torch_softmax"
    probs = c.new(name, *square)
    # what is made for these is the mask that is applied
    given = c.model.sliding_window or c.model.softmax_type != "vanilla"
    applied = mask if te and given else mask.like(f"{name}.mask")
    made: tuple[Tensor, ...] = ()
    if not te and c.model.sliding_window:  # whatever is given
        made = (mask.like(f"{name}.ones"), mask.like(f"{name}.window begins"))
    elif not te and c.training.create_attention_mask_in_dataloader:  # the batch's own mask is applied
        applied = applied._replace(nbytes=0)
    elif not te:
        made = (mask.like(f"{name}.ones", "fp32"), mask.like(f"{name}.above the diagonal", "fp32"))
    yield Op(f"{name}.causal_mask", (), (applied,), forward=made)
    if not (half and (te or c.training.attention_softmax_in_fp32)):
        # the scores are a view: autograd copies the whole gradient, and the view's, for what was written in place (CopySlices)
        masked = scores.view(f"{name}.masked", scores.shape)
        copies = tuple(scores.like(f"{name}.{one}") for one in ("gradient of the view", "gradient masked"))
        yield Op(f"{name}.mask", (scores,), (masked,), (applied,), backward=copies)
        yield Op(name, (masked,), (probs,), (probs,), holds=(applied,))
        return probs
    widened, result = (c.new(f"{name}.{one}", *square, dtype="fp32") for one in ("scores fp32", "fp32"))
    masked = widened.view(f"{name}.masked", widened.shape)
    yield Op(f"{name}.widen", (scores,), (widened,))
    yield Op(f"{name}.mask", (widened,), (masked,), (applied,))
    yield Op(name, (masked,), (result,), (result,))
    yield Op(f"{name}.cast", (result,), (probs,), holds=(widened, applied))
    return probs
