"""Rules of attention and norms that Megatron-Bridge builds itself.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/` (gemma/gemma2_provider.py, exaone/exaone4/exaone4_provider.py,
olmoe/olmoe_provider.py, mimo_v2_flash/mimo_v2_flash_provider.py); Megatron-LM `megatron/core/transformer/transformer_config.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.kinds import kinds_in, shapes_of
from ..tape.tensor import divisors
from .sharding import CP, TP
from .violation import Violation, broken

USUAL = {
    "norm_placement": "pre",
    "core_attention": "transformer_engine",
    "qk_layernorm_scope": "head",
    "value_channels": None,
}
"""Settings whose other values are modules of Megatron-Bridge, made of TransformerEngine's."""


def own_modules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Modules of Megatron-Bridge are made of TransformerEngine's, and some have no context parallelism."""
    for name, usual in USUAL.items():
        values = [getattr(one, name) for one, _ in shapes_of(model)]
        other = next((value for value in values if value != usual), usual)
        if other == usual:
            continue
        numbers = {name: other} if isinstance(other, int) else {}
        what = f"{{{name}}}" if numbers else f"{name}={other}"
        if not training.te_spec:
            yield broken(f"{what} needs transformer_impl=transformer_engine", numbers)
        if name in ("core_attention", "value_channels") and layout.cp > 1:
            yield broken(f"{what} excludes {{{CP}}}", {**numbers, CP: layout.cp}, fix="use 1")


def wide_norms(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """A norm as wide as all query heads meets a rank's part of them."""
    scopes = {one.qk_layernorm_scope for one, _ in shapes_of(model) if one.qk_layernorm}
    if "projection" in scopes and layout.tp > 1:
        rule = f"qk_layernorm_scope=projection needs {TP}=1, because its norm is as wide as all heads"
        yield broken(rule, said=f"{rule}, not {layout.tp}")


def narrow_values(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Values of another width than keys are split by whole groups alone."""
    groups = min((one.groups for one, _ in shapes_of(model) if one.value_channels), default=layout.tp)
    if layout.tp > groups:
        numbers = {TP: layout.tp, "num_query_groups": groups}
        rule = f"value_channels needs {{{TP}}} to be at most {{num_query_groups}}"
        yield broken(rule, numbers, fix=f"use {divisors(groups)}")


def capped_logits(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Logits are capped where there are any."""
    if model.final_logit_softcapping and training.loss_function == "fused":
        yield broken("final_logit_softcapping excludes loss_function=fused, which never has the logits")


def activation_fusion(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Activations that have no fused form beside a bias."""
    if model.activation_func == "fast_gelu" and training.bias_activation_fusion:
        yield broken("bias_activation_fusion excludes activation_func=fast_gelu", fix="turn it off")
    dense = any(kind.dense for kind in kinds_in(model.every_kind)) or bool(model.moe_shared_expert_intermediate_size)
    if model.activation_func == "quick_gelu" and training.bias_activation_fusion and dense:
        rule = "bias_activation_fusion with activation_func=quick_gelu exists in routed experts alone"
        yield broken(rule, fix="turn it off: the model has dense MLPs or shared experts")
