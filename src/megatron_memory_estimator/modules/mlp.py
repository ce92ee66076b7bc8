"""Dense MLP and the activation functions. Source: Megatron-LM `megatron/core/transformer/mlp.py`, `core/fusions/`."""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import DTYPE_BYTES, Dim, Tensor
from .context import Context
from .linear import column_linear, linear_params, row_linear
from .module import Module, holding, in_part, recomputed
from .norm import before, behind, norm, norm_params, separate_norm


def mlp(c: Context, hidden: Tensor, layer: int = 0, *, normed: Tensor | None = None) -> Module[Tensor]:
    """Dense MLP with its input norm, which TransformerEngine fuses into linear_fc1; of a `normed` input without one."""
    m = c.model
    ffn = c.dim("ffn_hidden_size", m.ffn, "tp")
    fc1_out = c.dim("gate*ffn_hidden_size", m.gate * m.ffn, "tp")
    own_norm = normed is None and before(c)
    if own_norm:
        yield from norm_params(c, "mlp.linear_fc1.layer_norm_" if c.te else "pre_mlp_layernorm.", c.hidden)
    fc1 = yield from linear_params(c, "mlp.linear_fc1", fc1_out, c.hidden, "tp", m.add_bias_linear)
    fc2 = yield from linear_params(c, "mlp.linear_fc2", c.hidden, ffn, "tp", m.add_bias_linear)
    if behind(c):
        yield from norm_params(c, "mlp.linear_fc2.post_layernorm.", c.hidden)

    x = hidden if normed is None else normed
    own = own_norm and not c.te
    checkpoint = normed is None and c.training.recomputes("mlp")
    if own:
        hook = "mlp.checkpoint" if checkpoint else "mlp.linear_fc2"
        x = yield from in_part("mlp_norm", separate_norm(c, "pre_mlp_layernorm", hidden, hook))

    def body(x: Tensor) -> Module[Tensor]:
        if own_norm and c.te:
            x = yield from in_part("mlp", norm(c, "pre_mlp_layernorm", x))
        wide = yield from column_linear(c, "mlp.linear_fc1", x, fc1, normed=own_norm)
        act = yield from activation(c, "mlp.activation", wide, ffn)
        return (yield from row_linear(c, "mlp.linear_fc2", act, fc2, normed=behind(c)))

    return (yield from holding(recomputed(checkpoint, "mlp.checkpoint", body(x)), x if own else None))


def fused(c: Context, *, weighted: bool) -> bool:
    """Whether bias, activation (and an expert's probability) run as one fused function.

    With a probability per row only SwiGLU, gated quick GELU and (on request) squared ReLU have a fused form.
    """
    m, t = c.model, c.training
    if weighted and m.activation_func == "squared_relu":
        return t.use_fused_weighted_squared_relu
    if not t.bias_activation_fusion or (weighted and alternates(c)):
        return False
    if weighted:
        return m.gated_linear_unit and m.activation_func in ("silu", "quick_gelu")
    return m.activation_func in (("silu", "gelu", "quick_gelu") if m.gated_linear_unit else ("gelu",))


def alternates(c: Context) -> bool:
    """Whether gate and linear half of experts alternate in blocks of columns, which are copied apart before the activation.

    Source: Megatron-LM `megatron/core/transformer/moe/experts.py` (TEGroupedMLP.forward: _remove_glu_interleaving); no record
    exercises it.
    """
    t = c.training
    interleaved = t.moe_mlp_glu_interleave_size is not None and c.model.gated_linear_unit
    return interleaved and c.te and t.moe_grouped_gemm and not t.use_transformer_engine_op_fuser


def activation(
    c: Context, name: str, x: Tensor, width: Dim, scale: Tensor | None = None, *, offset: bool = True
) -> Module[Tensor]:
    """Input of linear_fc2. `scale` is the routed probability of each row of an expert.

    Fused: fc1's output (and the scale) are kept; a clamped gated quick GELU also keeps a clamped copy. Not fused: a gated activation
    also keeps silu(gate) and the linear half, which is a copy where glu_linear_offset is added to it (`mlp.py`, MLP.forward) and a
    view of fc1's output without `offset`, of a clamped one the clamped gate too, and the product with the scale keeps the activated
    rows. TransformerEngine's op keeps its input alone (`pytorch/ops/basic/swiglu.py`, `activation.py`; read from source, no
    record exercises it).
    """
    m = c.model
    kept: tuple[Tensor, ...]
    store = c.training.activation_func_fp8_input_store and m.activation_func == "silu" and m.gated_linear_unit
    out = c.new(f"{name}.output", *x.shape[:-1], width)
    clamps = m.gated_linear_unit and m.activation_func_clamp_value is not None
    if m.activation_func == "situ":
        return (yield from situ(c, name, x, out, scale))
    if fused(c, weighted=scale is not None):
        reads = (x,) if scale is None else (x, scale)
        kept = reads
        if clamps and m.activation_func != "silu":  # the fused SwiGLU clamps again in its backward
            kept = (*kept, x.like(f"{name}.clamped input"))
        if store:
            kept = (x.like(f"{name}.input fp8", "fp8"), *kept[1:])
        yield Op(name, reads, (out,), kept)
        return out
    if scale is not None and alternates(c):
        apart = x.like(f"{name}.halves")
        yield Op(f"{name}.apart", (x,), (apart,))
        x = apart
    if c.te and c.training.use_te_activation_func:
        activated = out if scale is None else out.like(f"{name}.activated")
        yield Op(name, (x,), (activated,), (x.like(f"{name}.input fp8", "fp8"),) if store else (x,))
        return out if scale is None else (yield from _weighed(name, activated, scale, out))
    kept = (x, out.like(f"{name}.clamped gate")) if clamps else (x,)
    if m.activation_func == "relu" and not clamps:  # its backward needs no more than its result
        kept = ()
    if m.gated_linear_unit:
        linear = out.like(f"{name}.linear half") if offset else x
        kept = (*(one for one in kept if one is not linear), out.like(f"{name}.activated gate"), linear)
    activated = out if scale is None else out.like(f"{name}.activated")
    if m.activation_func == "relu" and not m.gated_linear_unit:
        kept = (activated,)
    clamped = (out.like(f"{name}.clamped linear half"),) if clamps and offset else ()  # before the offset is added
    yield Op(name, (x,), (activated,), kept, clamped)
    if scale is None:
        return out
    return (yield from _weighed(name, activated, scale, out))


def _weighed(name: str, activated: Tensor, scale: Tensor, out: Tensor) -> Module[Tensor]:
    """Rows times their probabilities, in the wider dtype of both and cast back; the probabilities' gradient sums a product of all rows."""
    name = f"{name}.times_probs"
    wider = DTYPE_BYTES[scale.dtype] > DTYPE_BYTES[out.dtype]
    wide = out.like(f"{name}.product in {scale.dtype}", scale.dtype) if wider else out
    product = wide.like(f"{name}.gradient times rows")
    scratch = (product,) if wide is out else (product, wide.like(f"{name}.gradient times probabilities"))
    yield Op(name, (activated, scale), (wide,), (activated, scale), backward=scratch)
    if wide is not out:
        yield Op(f"{name}.cast", (wide,), (out,))
    return out


def situ(c: Context, name: str, x: Tensor, out: Tensor, scale: Tensor | None) -> Module[Tensor]:
    """Kimi K3's gated activation, op by op in fp32: six tensors of the output's shape stay, and none in 16 bits.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_ops.py` (situ_and_mul).
    """
    wide = tuple(out.like(f"{name}.fp32 {i}", "fp32") for i in range(6))
    activated = out if scale is None else out.like(f"{name}.activated")
    scratch = (x.like(f"{name}.input fp32", "fp32"),)
    yield Op(name, (x,), (activated,), wide, scratch, (*scratch, *wide[:1]), calls=10)
    if scale is None:
        return out
    return (yield from _weighed(name, activated, scale, out))
