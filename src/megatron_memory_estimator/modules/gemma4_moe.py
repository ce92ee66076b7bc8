"""Gemma 4's experts beside a dense MLP: router, experts and MLP each read the residual stream through a norm of their own.

    hidden -> pre_mlp_layernorm           -> experts    -> post_moe_layernorm           -+
       +----> pre_shared_expert_layernorm -> dense MLP  -> post_shared_expert_layernorm -+-> post_ffn_layernorm -> + hidden -> * scalar
       +----> norm, scale -> router: probabilities of the experts

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/modeling_gemma4.py` (Gemma4TransformerLayer, Gemma4MoELayer,
Gemma4TopKRouter): Megatron-Core's modules between norms that PyTorch runs op by op.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .combine import combine
from .context import Context
from .dispatcher import dispatch
from .module import Module, in_part, recomputed
from .moe import expert_params, filled, routed_experts, router_params
from .norm import eager_norm, norm_params
from .router import router
from .shared_experts import shared_experts, shared_experts_params


def gemma4_moe(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream behind both."""
    t = c.training
    assert c.model.num_moe_experts is not None
    experts = Dim("num_moe_experts", c.model.num_moe_experts)
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    yield from router_params(c, experts)
    yield Param("mlp.router.per_expert_scale", (experts,), matrix=False)
    yield Param("mlp.router.scale", (c.hidden,), matrix=False)
    weights = yield from expert_params(c, c.hidden)
    shared = yield from shared_experts_params(c)
    for name in ("mlp.post_moe_layernorm", "mlp.post_shared_expert_layernorm", "pre_shared_expert_layernorm"):
        yield from norm_params(c, f"{name}.", c.hidden)
    yield from norm_params(c, "post_ffn_layernorm.", c.hidden)

    tokens = yield from in_part("router_norm", eager_norm(c, "pre_mlp_layernorm", hidden))
    beside = yield from in_part("router_norm", eager_norm(c, "pre_shared_expert_layernorm", hidden))

    def body() -> Module[Tensor]:
        dense = recomputed(
            t.recomputes("shared_experts"), "mlp.shared_experts.checkpoint", shared_experts(c, beside, shared)
        )
        extra = yield from in_part("shared_experts", dense)
        probs = yield from in_part("router", _router(c, hidden, experts))
        routed = yield from in_part("dispatch", filled(c.filled, dispatch(c, tokens, probs, c.hidden)))
        done = yield from in_part("experts", filled(c.filled, routed_experts(c, routed, *weights)))
        out, _ = yield from in_part("combine", filled(c.filled, combine(c, routed, done, c.hidden)))
        out = yield from in_part("combine", eager_norm(c, "mlp.post_moe_layernorm", out))
        extra = yield from in_part("shared_experts", eager_norm(c, "mlp.post_shared_expert_layernorm", extra))
        total = c.stream("mlp.output with shared experts", c.hidden)
        yield Op("mlp.shared_experts.add", (out, extra), (total,), passes=(out, extra), part="shared_experts_add")
        return total

    out = yield from recomputed(t.recomputes("moe"), "mlp.checkpoint", body())
    normed = yield from in_part("moe_residual", eager_norm(c, "post_ffn_layernorm", out))
    return (yield from in_part("moe_residual", _added(c, normed, hidden)))


def _router(c: Context, hidden: Tensor, experts: Dim) -> Module[Tensor]:
    """Probabilities of the experts, normalized and each times the scale of its expert."""
    name = "mlp.router"
    normed = yield from eager_norm(c, f"{name}.norm", hidden, weighted=False)
    scaled, x = normed.like(f"{name}.scaled"), normed.like(f"{name}.input")
    yield Op(f"{name}.scale", (normed,), (scaled,), (normed,))
    yield Op(f"{name}.root_scale", (scaled,), (x,))
    probs = yield from router(c, x, experts)
    sums = tuple(c.new(f"{name}.{word} of probs", c.tokens, dtype="fp32") for word in ("sum", "clamped sum"))
    one, out = probs.like(f"{name}.probs of one"), probs.like(f"{name}.probs scaled")
    yield Op(f"{name}.normalize", (probs,), (one,), (probs, *sums), calls=3)
    yield Op(f"{name}.per_expert_scale", (one,), (out,), (one,))
    return out


def _added(c: Context, normed: Tensor, hidden: Tensor) -> Module[Tensor]:
    """The residual stream plus the normed output, times a number that is no parameter (layer_scalar)."""
    total, out = hidden.like("mlp.output plus hidden_states"), c.residual("layer_scalar.output")
    yield Op("post_ffn.add", (normed, hidden), (total,), passes=(normed, hidden))
    yield Op("layer_scalar", (total,), (out,), (c.new("layer_scalar", Dim("one", 1)),))
    return out
