"""Rules of offloading (Megatron-LM `transformer_config.py`, `arguments.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..states.optimizers import OPTIMIZERS
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
