"""Unfused core attention: a matrix of scores [b, n, s, s] of TransformerEngine's UnfusedDotProductAttention and of the local spec.

Sources: TransformerEngine `pytorch/attention/dot_product_attention/backends.py`, `softmax.py`; Megatron-LM
`megatron/core/transformer/dot_product_attention.py`.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, chosen
from ..tape.work import Streamed
from .context import Context
from .module import Module
from .softcap import capped


def unfused(c: Context, name: str, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    """Attention with a score matrix [b, n, s, s] (TransformerEngine UnfusedDotProductAttention, local spec)."""
    if c.cp_many:
        raise UnsupportedError(
            f"attention_kernel={c.core_kernel} does not support context parallelism "
            f"(context_parallel_size={c.layout.cp}); use flash or cudnn",
            f"attention_kernel={c.core_kernel} does not support context parallelism (context_parallel_size)",
        )
    out = c.region(f"{name}.output", heads, v_dim)
    scores_shape = (c.batch, heads, c.seq, c.full_seq)
    if k.shape[-2].size != heads.size:  # key and value are repeated to all heads
        repeated = tuple(c.region(f"{t.name} repeated", heads, t.shape[-1]) for t in (k, v))
        yield Op(f"{name}.repeat_kv", (k, v), repeated)
        k, v = repeated
    scores = c.new(f"{name}.scores", *scores_shape)
    square = heads.local * c.seq.local * c.batch.size * c.full_seq.size
    products = tuple(Streamed(2 * square * x.shape[-1].size) for x in (q, v))
    yield Op(f"{name}.scores", (q, k), (scores,), (q, k), work=products[:1])
    if c.model.attn_logit_softcapping:
        scores = yield from capped(f"{name}.softcap", scores)
    probs = c.new(f"{name}.softmax", *scores_shape)
    saved_probs: Tensor = probs
    dropout = c.model.attention_dropout > 0
    torch_softmax = c.training.attention_softmax_in_fp32 and not c.training.masked_softmax_fusion
    if c.core_kernel == "unfused":
        wide = _of_torch(c, heads, c.new(f"{name}.softmax fp32", *scores_shape, dtype="fp32"))
        inner, grad = (
            wide._replace(name=one, storage=one) for one in (f"{name}.scores fp32", f"{name}.softmax grad fp32")
        )
        yield Op(f"{name}.softmax", (scores,), (probs,), (probs, wide), (inner,), (grad,), passes=(scores,))
    elif torch_softmax:
        wide = c.new(f"{name}.softmax fp32", *scores_shape, dtype="fp32")
        yield Op(f"{name}.softmax", (scores,), (wide,), (wide,), forward=(wide.like(f"{name}.scores fp32"),))
        yield Op(f"{name}.softmax_cast", (wide,), (probs,))
    else:
        # the kernels write the gradient in place (TransformerEngine `pytorch/csrc/extensions/softmax.cpp`)
        yield Op(f"{name}.softmax", (scores,), (probs,), (probs,), passes=(scores,))
    if dropout:
        mask = c.new(f"{name}.dropout_mask", *scores_shape, dtype="bool")
        dropped = c.new(f"{name}.dropped softmax", *scores_shape)
        yield Op(f"{name}.attention_dropout", (probs,), (dropped,), (mask,))
        saved_probs = dropped
    # Megatron-Core's forward refers to the scores to its end; they are a tensor beside the persistent buffer (workspaces.py)
    held = (scores,) if c.core_kernel == "local" else ()
    yield Op(f"{name}.context", (saved_probs, v), (out,), (saved_probs, v), holds=held, work=products[1:])
    return out


def _of_torch(c: Context, heads: Dim, wide: Tensor) -> Tensor:
    """The fp32 softmax of TransformerEngine's unfused attention, of no bytes where its kernel does it in 16 bits.

    Source: TransformerEngine `pytorch/attention/dot_product_attention/softmax.py` (FusedScaleMaskSoftmax.is_kernel_available).
    """
    sequence, rows = c.training.seq_length, heads.local * c.batch.size
    if c.dtype == "fp32":
        return wide._replace(nbytes=0)
    fits = 16 < sequence < 16384 and sequence % 8 == 0
    return wide._replace(nbytes=chosen(rows % 4 == 0, 0, wide.nbytes)) if fits else wide
