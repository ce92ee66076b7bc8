"""Rules of the optimizer, of data-parallel communication, and of fully sharded data parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..states.buffers import by_layout, deals_whole
from ..states.optimizers import OPTIMIZERS
from ..wording import all_of
from .sharding import EP, PP
from .violation import Violation, broken

STATE_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def optimizer(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Settings of the optimizer and of data-parallel communication that exclude or need each other."""
    t = training
    if layout.num_distributed_optimizer_instances > 1 and not t.use_distributed_optimizer:
        yield broken("num_distributed_optimizer_instances above 1 needs use_distributed_optimizer")
    if t.overlap_param_gather and not t.use_distributed_optimizer:
        yield broken("overlap_param_gather needs use_distributed_optimizer")
    lower = [name for name in STATE_DTYPES if getattr(t, name) != "fp32"]
    if lower and not t.use_precision_aware_optimizer:
        verb = "needs" if len(lower) == 1 else "need"
        yield broken(f"{all_of(lower)} other than fp32 {verb} use_precision_aware_optimizer")
    if t.use_precision_aware_optimizer:
        if not OPTIMIZERS[t.optimizer].precision_aware:
            yield broken(f"use_precision_aware_optimizer needs optimizer=adam, not {t.optimizer}")
        if not t.use_distributed_optimizer:
            yield broken("use_precision_aware_optimizer needs use_distributed_optimizer")
    if t.main_grads_dtype == "bf16" and t.accumulate_allreduce_grads_in_fp32:
        yield broken("main_grads_dtype=bf16 conflicts with accumulate_allreduce_grads_in_fp32", fix="drop one")
    if t.use_distributed_optimizer and not OPTIMIZERS[t.optimizer].distributed:
        rule = f"optimizer={t.optimizer} does not work with use_distributed_optimizer"
        yield broken(rule, fix="turn it off or use adam")
    yield from _layer_wise(model, layout, training)


def _layer_wise(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The layer-wise optimizer (Megatron-LM `megatron/core/optimizer/__init__.py`, `layer_wise_optimizer.py`)."""
    t, rank, ranks = training, training.data_parallel_rank, layout.dp * layout.cp
    if not deals_whole(t):
        if rank is not None:
            yield broken("data_parallel_rank needs optimizer=muon with use_distributed_optimizer", fix="drop it")
        return
    if layout.num_distributed_optimizer_instances > 1:
        yield broken("the layer-wise optimizer needs num_distributed_optimizer_instances=1")
    if by_layout(t) and model.has_moe and model.add_bias_linear and (layout.ep > 1 or layout.etp != layout.tp):
        rule = "the layer-wise parameter layout has no place for expert biases (add_bias_linear)"
        yield broken(rule, fix="turn use_layer_wise_param_layout off")
    if rank is not None and rank >= ranks:
        rule = "data_parallel_rank is not below the data parallel size"
        yield broken(rule, said=f"data_parallel_rank={rank} is not below the {ranks} ranks of the data-parallel group")


def fully_sharded(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the fully sharded data parallelisms need and exclude (Megatron-LM `arguments.py`)."""
    t = training
    if t.use_megatron_fsdp and t.use_torch_fsdp2:
        yield broken("use_megatron_fsdp and use_torch_fsdp2 exclude each other", fix="give one")
    if t.use_megatron_fsdp:
        if not OPTIMIZERS[t.optimizer].fully_sharded:
            yield broken(f"use_megatron_fsdp needs optimizer adam or sgd, not {t.optimizer}")
        if t.peft != "none":
            yield broken("use_megatron_fsdp with peft is not modelled")
    whole = t.use_megatron_fsdp and t.data_parallel_sharding_strategy == "optim_grads_params"
    if t.outer_dp_sharding_strategy == "optim" and not whole:
        needs = "use_megatron_fsdp with data_parallel_sharding_strategy=optim_grads_params"
        yield broken(f"outer_dp_sharding_strategy=optim needs {needs}")
    if t.use_torch_fsdp2:
        yield from _torch_fsdp2(model, layout, training)


def _torch_fsdp2(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    t = training
    if t.peft != "none":
        yield broken("use_torch_fsdp2 with peft is not modelled")
    if layout.pp > 1 or layout.ep > 1:
        rule = f"use_torch_fsdp2 needs {PP}=1 and {EP}=1"
        yield broken(rule, said=f"{rule}, not {layout.pp} and {layout.ep}")
    if t.use_distributed_optimizer:
        yield broken("use_torch_fsdp2 excludes use_distributed_optimizer")
    if t.gradient_accumulation_fusion:
        yield broken("use_torch_fsdp2 needs gradient_accumulation_fusion off")
    if model.share_embeddings_and_output_weights:
        yield broken("use_torch_fsdp2 needs share_embeddings_and_output_weights off")
    if not t.torch_fsdp2_reshard_after_forward:
        yield broken("torch_fsdp2_reshard_after_forward=False is not modelled")
