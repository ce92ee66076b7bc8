"""Kimi K3's sub-layers: each reads a sum of the bank of prefixes and adds its output to the prefix.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Param, Tensor
from ..wording import all_of
from .attention_residuals import aggregated, bank, residual_params, rows_behind
from .context import Context
from .gated_latent_attention import gated_latent_attention, latent_params
from .kimi_delta_attention import kda_params, kimi_delta_attention
from .mlp import mlp
from .module import Module, in_part
from .moe import moe
from .norm import norm, norm_params
from .projection import gathered_input
from .residual import bias_dropout_add

NAME = "self_attention"
Attend = Callable[[Tensor, dict[str, Param]], Module[Tensor]]


def kda_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind Kimi Delta Attention."""
    return (yield from _attended(c, hidden, kda_params(c), lambda x, weights: kimi_delta_attention(c, x, weights)))


def mla_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind gated latent attention."""
    attend = lambda x, weights: gated_latent_attention(c, x, weights, layer)  # noqa: E731
    return (yield from _attended(c, hidden, latent_params(c), attend))


def check_recompute(c: Context) -> None:
    """Raise UnsupportedError for modules of selective recomputation that are not known to be recomputed in these layers."""
    others = sorted(set(c.training.recomputed_modules) - {"moe_act"})
    if others:
        rule = (
            f"recompute_modules {all_of(others)} in layers with attention residuals (Kimi K3): only moe_act is modelled"
        )
        raise UnsupportedError(rule)


def _attended(c: Context, hidden: Tensor, params: Module[dict[str, Param]], attend: Attend) -> Module[Tensor]:
    check_recompute(c)
    rows = c.model.bank_rows
    yield from norm_params(c, "input_layernorm.", c.hidden)
    weights = yield from params
    x = hidden
    if rows:
        x = yield from in_part("attn_norm", aggregated(c, NAME, hidden, rows))
    if c.model.bank_joined:
        joined = bank(c, f"{NAME}_res.bank with the prefix", rows + 1)
        yield Op(f"{NAME}_res.join", (hidden,), (), forward=(joined,), passes=(hidden,), part="attn_norm")
    normed = yield from in_part("attn_norm", norm(c, "input_layernorm", x))
    whole = yield from in_part("qkv_linear", gathered_input(c, NAME, normed))
    out = yield from attend(whole, weights)
    return (yield from in_part("attn_residual", bias_dropout_add(c, "self_attn_bda", out, hidden)))


def dense_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind a dense MLP."""
    check_recompute(c)
    x = yield from in_part("mlp_norm", aggregated(c, "mlp", hidden, rows_behind(c.model)))
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    normed = yield from in_part("mlp_norm", norm(c, "pre_mlp_layernorm", x))
    out = yield from mlp(c, hidden, layer, normed=normed)
    return (yield from in_part("mlp_residual", _ended(c, out, hidden)))


def moe_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind experts in a narrower width."""
    check_recompute(c)
    x = yield from in_part("router_norm", aggregated(c, "mlp", hidden, rows_behind(c.model)))
    out = yield from moe(c, x, layer)
    return (yield from in_part("moe_residual", _ended(c, out, hidden)))


def _ended(c: Context, out: Tensor, hidden: Tensor) -> Module[Tensor]:
    """The prefix with the MLP's output; behind the last layer the sum of the bank and it."""
    yield from residual_params(c, NAME, "mlp", *(("output_attn",) if c.model.bank_last else ()))
    prefix = yield from bias_dropout_add(c, "mlp_bda", out, hidden)
    if not c.model.bank_last:
        return prefix
    return (yield from aggregated(c, "output_attn", prefix, rows_behind(c.model)))
