"""Falcon-H1's layer: Mamba-2 and attention side by side behind one norm, then an MLP; products with constants between them.

    hidden -> norm -> * a -> mamba_mixer    -> * b -+
                +---> * c -> self_attention -> * d -+-> sum -> + hidden -> mlp -> + hidden

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/falcon_h1/modeling_falconh1/falconh1_layer.py`
(FalconH1Layer, FalconH1MambaMixer, FalconH1SelfAttention, FalconH1MLP). Nothing is kept for a product with a constant: what reads the
product keeps it. The residual stream is in fp32 (`residual_in_fp32`), and both norms read it in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import interleaved
from ..job.training import Training
from ..rules import Violation, broken, broken_if
from ..tape.ops import Op
from ..tape.tensor import Tensor
from ..wording import all_of
from .attention import self_attention
from .context import Context
from .kind import RULED, Kind
from .linear import column_linear, linear_params, row_linear
from .mamba import kept, mamba_mixer
from .module import Module, in_part
from .norm import in_compute_dtype, norm, norm_params


def falcon_h1_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream behind the layer."""
    yield from norm_params(c, "norm.", c.hidden)
    x = yield from in_part("attn_norm", in_compute_dtype(c, "norm", hidden))
    normed = yield from in_part("attn_norm", norm(c, "norm", x))
    scanned = yield from in_part("mamba", _times(normed, "mamba_mixer.input"))
    scanned = yield from in_part("mamba", mamba_mixer(c, hidden, layer, normed=scanned, scaled=True))
    scanned = yield from in_part("mamba", _times(scanned, "mamba_mixer.output scaled"))
    attended = yield from in_part("attn", _times(normed, "self_attention.input"))
    attended = yield from in_part("attn", self_attention(c, hidden, layer, normed=attended, scaled_key=True))
    attended = yield from in_part("attn", _times(attended, "self_attention.output scaled"))
    total = scanned.like("mamba_mixer output plus self_attention output")
    yield Op("sum", (scanned, attended), (total,), forward=(scanned.like("0 plus mamba_mixer output"),),
             holds=(normed,), passes=(scanned, attended), part="attn_residual")  # fmt: skip
    hidden = yield from in_part("attn_residual", _added(c, "falconh1_bda", total, hidden, (normed, scanned, attended)))
    out = yield from in_part("mlp", _mlp(c, hidden))
    return (yield from in_part("mlp_residual", _added(c, "mlp_bda", out, hidden, ())))


def _times(x: Tensor, name: str) -> Module[Tensor]:
    """x times a constant."""
    out = x.like(name)
    yield Op(f"{name}.product", (x,), (out,))
    return out


def _added(c: Context, name: str, x: Tensor, residual: Tensor, holds: tuple[Tensor, ...]) -> Module[Tensor]:
    """The residual stream plus x, which is widened first (Megatron-LM `megatron/core/fusions/fused_bias_dropout.py`)."""
    out = c.residual(f"{name}.output")
    wide = out.like(f"{name}.input fp32")
    kept = (x.like(f"{name}.dropout_mask", "bool"),) if c.model.hidden_dropout > 0 else ()
    yield Op(name, (x, residual), (out,), kept, forward=(wide,), holds=holds, passes=(residual,))
    return out


def _mlp(c: Context, hidden: Tensor) -> Module[Tensor]:
    """A gated MLP whose gate is scaled before its activation: the scaled gate, the activated one and the linear half are kept."""
    m = c.model
    ffn = c.dim("ffn_hidden_size", m.ffn, "tp")
    both = c.dim("gate*ffn_hidden_size", m.gate * m.ffn, "tp")
    yield from norm_params(c, "mlp.linear_fc1.layer_norm_", c.hidden)
    fc1 = yield from linear_params(c, "mlp.linear_fc1", both, c.hidden, "tp", m.add_bias_linear)
    fc2 = yield from linear_params(c, "mlp.linear_fc2", c.hidden, ffn, "tp", m.add_bias_linear)
    x = yield from in_compute_dtype(c, "pre_mlp_layernorm", hidden)
    x = yield from norm(c, "pre_mlp_layernorm", x)
    wide = yield from column_linear(c, "mlp.linear_fc1", x, fc1, normed=True)
    act = c.region("mlp.activation.output", ffn)
    scaled, gate, linear = (
        act.like(f"mlp.activation.{name}") for name in ("scaled gate", "activated gate", "linear half")
    )
    yield Op("mlp.scale_gate", (wide,), (scaled,))
    yield Op("mlp.activation", (scaled, wide), (act,), (scaled, gate, linear), holds=(wide,), calls=3)
    out = yield from row_linear(c, "mlp.linear_fc2", act, fc2)
    return (yield from _times(out, "mlp.output scaled"))


SPLIT = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "pipeline_model_parallel_layout": None,
    "account_for_embedding_in_pipeline_split": None,
    "account_for_loss_in_pipeline_split": None,
}
"""Settings of an uneven split of layers."""


def falcon_h1_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Falcon-H1's layers and their stack do not have (NVIDIA-NeMo/Megatron-Bridge
    `src/megatron/bridge/models/falcon_h1/modeling_falconh1/`, `falconh1_provider.py`)."""
    t = training
    yield from broken_if(
        (
            (not t.te_spec, "falcon-h1-needs-te"),
            (t.bias_activation_fusion, "falcon-h1-with-activation-fusion"),
            (not model.gated_linear_unit, "falcon-h1-without-gate"),
            (t.recomputes_whole_layers(), "falcon-h1-fully-recomputed"),
            (t.cpu_offloading_num_layers, "falcon-h1-layers-offloaded"),
            (interleaved(model, layout), "falcon-h1-with-virtual-stages"),
        )
    )
    others = [name for name in SPLIT if getattr(layout, name)]
    if others:
        yield broken("falcon-h1-uneven", names=all_of(others))


FALCON_H1 = Kind(
    name="falcon_h1",
    role="layer",
    declare=falcon_h1_layer,
    part="attn",
    residual="mlp_residual",
    owners=frozenset(("mamba",)),
    rotary="chunk",
    heads=True,
    groups=True,
    exchanges=True,
    state_heads="mamba",
    dense=True,
    recomputes=frozenset(("core_attn",)),
    kept=kept,
    rules=(falcon_h1_rules,),
    ruled=RULED - {"weight shards"},
    own_norms=True,
    setting="falcon_h1",
)
