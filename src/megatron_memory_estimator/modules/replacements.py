"""What stands where a layer has no attention or no MLP: nothing, or one linear (heterogeneous blocks, as Llama-Nemotron has them).

Source: Megatron-LM `megatron/core/models/gpt/heterogeneous/heterogeneous_layer_specs.py`,
`megatron/core/transformer/heterogeneous/linear_replacements.py`.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .context import Context
from .linear import column_linear, linear_params
from .module import Module, recomputed
from .norm import norm, norm_params
from .sends import over_tp


def nothing(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream as it is: no norm, and nothing is added."""
    return hidden
    yield  # a module without declarations


def linear_for_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """One linear in place of attention."""
    return (yield from _linear(c, "self_attention", "input_layernorm", hidden))


def linear_for_mlp(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """One linear in place of an MLP."""
    linear = _linear(c, "mlp", "pre_mlp_layernorm", hidden)
    return (yield from recomputed(c.training.recomputes("mlp"), "mlp.checkpoint", linear))


def _linear(c: Context, name: str, before: str, hidden: Tensor) -> Module[Tensor]:
    """A column-parallel linear [h, h] with its norm; its output is made whole again."""
    width = c.dim("hidden_size", c.model.hidden_size, "tp")
    yield from norm_params(c, f"{name}.layer_norm_" if c.te else f"{before}.", c.hidden)
    weight = yield from linear_params(c, name, width, c.hidden, "tp", c.model.add_bias_linear)
    normed = yield from norm(c, before, hidden)
    out = yield from column_linear(c, name, normed, weight, normed=True)
    if not c.tp_many:
        return out
    whole = c.stream(f"{name}.output gathered", c.hidden)
    if not c.sp_many:
        yield Op(f"{name}.gather", (out,), (whole,), sends=over_tp(c, "all_gather", whole))
        return whole
    padded = c.region(f"{name}.output padded", c.hidden)
    yield Op(f"{name}.pad", (out,), (padded,))
    yield Op(
        f"{name}.scatter", (padded,), (whole,), sends=over_tp(c, "reduce_scatter", padded),
        returns=over_tp(c, "all_gather", padded),
    )  # fmt: skip
    return whole
