"""Rules of communication and weight gradients that overlap with other work (Megatron-LM `transformer_config.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LayoutError
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import virtual_stages
from ..job.training import Training
from .sharding import EP, PP, TP
from .violation import Violation, broken


def sequence_parallel(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Sequence parallelism needs tensor parallelism, and what overlaps with it needs it."""
    t = training
    if layout.sequence_parallel and layout.tp == 1:
        yield broken(f"sequence_parallel needs {TP} above 1", fix="turn it off")
    own = model.falcon_h1 or model.gemma4_dense  # with norms of their own
    if layout.sequence_parallel and not (t.te_spec or own) and (model.normalization == "RMSNorm" or not t.apex):
        # megatron/core/transformer/torch_norm.py (WrappedTorchNorm)
        fix = "use transformer_impl=transformer_engine" + ("" if t.apex else ", or apex=True if it is installed")
        yield broken(
            "sequence_parallel with PyTorch's norms of transformer_impl=local is refused by Megatron-Core", fix=fix
        )
    if t.tp_comm_overlap and not layout.sequence_parallel:
        fix = "turn one on or the other off"
        yield broken(f"tp_comm_overlap needs sequence_parallel (and {TP} above 1)", fix=fix)
    if t.tp_comm_overlap and not t.te_spec:
        yield broken("tp_comm_overlap needs transformer_impl=transformer_engine")


def two_optimizers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """An optimizer of the first chunk alone (Megatron-LM `arguments.py`, validate_args)."""
    if not training.overlap_param_gather_with_optimizer_step:
        return
    name = "overlap_param_gather_with_optimizer_step"
    if not training.overlap_param_gather:
        yield broken(f"{name} needs overlap_param_gather")
    if not interleaved(model, layout):
        yield broken(f"{name} needs virtual_pipeline_model_parallel_size")


def deferred_wgrads(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Weight gradients of the output layer that wait for the end of the step."""
    t = training
    if t.defer_embedding_wgrad_compute:
        if layout.pp == 1 or not t.gradient_accumulation_fusion:
            yield broken(f"defer_embedding_wgrad_compute needs {PP} above 1 and gradient_accumulation_fusion")
        if model.mtp:
            rule = "defer_embedding_wgrad_compute with multi-token prediction is not modelled"
            yield broken(rule, fix="use mtp_num_layers=0")
    if t.wgrad_deferral_limit < 0:
        limit = {"wgrad_deferral_limit": t.wgrad_deferral_limit}
        yield broken("{wgrad_deferral_limit} must not be negative", limit)


def a2a_overlap(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the overlap of all-to-alls needs and excludes."""
    name, t = "overlap_moe_expert_parallel_comm", training
    if t.delay_wgrad_compute and not t.overlap_moe_expert_parallel_comm:
        yield broken(f"delay_wgrad_compute needs {name}")
    if not t.overlap_moe_expert_parallel_comm:
        return
    if not model.has_moe or layout.ep == 1:
        yield broken(f"{name} needs experts and {EP} above 1")
    if model.hybrid:
        yield broken(f"{name} needs a GPT model, not a hybrid")
    if t.moe_token_dispatcher_type == "allgather":
        yield broken(f"{name} needs moe_token_dispatcher_type alltoall or flex, not allgather")
    if t.recompute_granularity == "full" or t.recomputes("moe"):
        yield broken(f"{name} excludes full recomputation and recompute_modules moe")
    if t.params_dtype == "fp32":
        yield broken(f"{name} needs params_dtype bf16 or fp16")
    if t.moe_shared_expert_overlap:
        yield broken(f"{name} excludes moe_shared_expert_overlap", fix="turn one off")
    if layout.pp > 1 and not interleaved(model, layout):
        needs = "virtual stages (virtual_pipeline_model_parallel_size)"
        yield broken(f"{name} with {{{PP}}} needs {needs}", {PP: layout.pp})
    if t.use_megatron_fsdp:
        yield from _beside_fsdp(name, layout, t)
    if model.mtp > 1 or (model.mtp and layout.pp == 1):
        yield broken(f"{name} needs at most one MTP depth, and {PP} above 1 with it")


def _beside_fsdp(name: str, layout: Layout, t: Training) -> Iterator[Violation]:
    """What the overlap excludes of Megatron-FSDP (Megatron-LM `distributed/fsdp/mcore_fsdp_adapter.py`, `combined_1f1b.py`)."""
    if layout.pp > 1:
        yield broken(
            f"{name} with use_megatron_fsdp needs {PP}=1",
            said=f"{name} with use_megatron_fsdp needs {PP}=1, not {layout.pp}",
        )
    if t.fsdp_double_buffer:
        yield broken(f"{name} with use_megatron_fsdp excludes fsdp_double_buffer", fix="turn one off")
    if t.cuda_graph_impl not in ("none", "full_iteration"):
        yield broken(
            f"{name} with use_megatron_fsdp excludes CUDA graphs of layers",
            fix="use cuda_graph_impl full_iteration or none",
        )


def interleaved(model: Model, layout: Layout) -> bool:
    """Whether a stage has several chunks; True where it cannot be said."""
    try:
        return virtual_stages(model, layout) > 1
    except LayoutError:  # reported with the pipeline
        return True
