"""Rules of offloading (Megatron-LM `transformer_config.py`, `arguments.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..states.optimizers import OPTIMIZERS
from ..wording import all_of
from .sharding import PP
from .violation import Violation, broken

FRACTIONS = ("optimizer_offload_fraction", "activation_offload_fraction")


def offloading(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What offloading of the optimizer, of layers and of modules needs and excludes."""
    t = training
    if t.optimizer_cpu_offload:
        yield from _optimizer(training)
    for name in FRACTIONS:
        if not 0 <= getattr(t, name) <= 1:
            yield broken(f"{{{name}}} must be between 0 and 1", {name: getattr(t, name)})
    if t.cpu_offloading_num_layers:
        yield from _layers(model, layout, training)
    if t.fine_grained_activation_offloading:
        yield from _modules(training)
        if model.has_moe:
            yield from _of_experts(training)
    elif t.offload_modules:
        yield broken("offload_modules needs fine_grained_activation_offloading")


def _optimizer(training: Training) -> Iterator[Violation]:
    t = training
    if not t.use_distributed_optimizer:
        yield broken("optimizer_cpu_offload needs use_distributed_optimizer")
    if not OPTIMIZERS[t.optimizer].offloaded:
        yield broken(f"optimizer_cpu_offload does not work with optimizer={t.optimizer}", fix="use adam")
    if t.low_precision_weights and t.low_precision != "delayed":
        rule = "optimizer_cpu_offload with low-precision weights needs fp8_recipe=delayed"
        yield broken(f"{rule}, not {t.low_precision}")
    if t.use_megatron_fsdp or t.use_torch_fsdp2:
        yield broken("optimizer_cpu_offload with fully sharded data parallelism is not modelled")


def _layers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    t = training
    if t.fine_grained_activation_offloading:
        both = "cpu_offloading_num_layers and fine_grained_activation_offloading"
        yield broken(f"{both} exclude each other", fix="give one")
    if layout.pp > 1:
        rule = f"cpu_offloading_num_layers needs {PP}=1"
        yield broken(rule, said=f"{rule}, not {layout.pp}")
    if t.recompute_granularity:
        yield broken("cpu_offloading_num_layers excludes recomputation")
    if not 0 < t.cpu_offloading_num_layers < model.num_layers:
        yield broken(
            "{cpu_offloading_num_layers} must be between 0 and {num_layers-1}",
            {"cpu_offloading_num_layers": t.cpu_offloading_num_layers, "num_layers-1": model.num_layers - 1},
        )


OF_EXPERTS = ("expert_fc1", "moe_act", "fused_group_mlp")
"""Offloaded modules that are parts of the routed experts."""


def _of_experts(training: Training) -> Iterator[Violation]:
    """What offloading in experts needs and excludes (Megatron-LM `transformer_config.py`, `moe/experts.py`)."""
    t = training
    given = [module for module in OF_EXPERTS if module in t.offload_modules]
    parts = [module for module in given if module != "fused_group_mlp"]
    if not given:
        return
    if t.recomputes("moe"):
        yield broken(
            f"offload_modules {all_of(given)} and recompute_modules moe exclude each other", fix="leave one out"
        )
    if t.moe_paged_stash:
        yield broken(f"offload_modules {all_of(given)} and moe_paged_stash exclude each other", fix="leave one out")
    if parts and t.use_transformer_engine_op_fuser:
        be = "does" if len(parts) == 1 else "do"
        fix = "use fused_group_mlp, or turn use_transformer_engine_op_fuser off"
        yield broken(f"offload_modules {all_of(parts)} {be} not exist in fused experts", fix=fix)
    if "fused_group_mlp" in given:
        yield from _fused(training, parts)


def _fused(training: Training, parts: list[str]) -> Iterator[Violation]:
    t = training
    if not t.use_transformer_engine_op_fuser:
        fix = "use expert_fc1 and moe_act, or turn it on"
        yield broken("offload_modules fused_group_mlp needs use_transformer_engine_op_fuser", fix=fix)
    elif parts:
        whole = "offload_modules fused_group_mlp takes all of the experts and excludes"
        yield broken(f"{whole} {all_of(parts)}", fix=f"leave {all_of(parts)} out")
    elif t.low_precision and not t.low_precision_weights:
        rule = "offload_modules fused_group_mlp without fp8_param_gather or fp4_param_gather is not modelled"
        yield broken(f"{rule}: quantized copies of the weights are taken along")


def _modules(training: Training) -> Iterator[Violation]:
    t = training
    if not t.offload_modules:
        yield broken("fine_grained_activation_offloading needs offload_modules")
    if "attn_proj" in t.offload_modules and "core_attn" not in t.offload_modules:
        yield broken("offload_modules attn_proj needs core_attn")
    if not t.te_spec:
        yield broken("fine_grained_activation_offloading needs transformer_impl=transformer_engine")
    if t.recompute_granularity == "full":
        yield broken("fine_grained_activation_offloading excludes full recomputation")
