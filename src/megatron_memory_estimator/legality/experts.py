"""Rules of mixture-of-experts models: expert parallelism, routing, the ways to run experts, and their overlap with communication."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import interleaved
from ..job.training import Training
from ..modules.dispatcher import LATE_PROBS
from ..rules import EP, PP, TP, Violation, broken, broken_if
from .grid import over

WHOLE_EXPERTS = (0, 15)
"""The Megatron-Core version since which biases are those of whole experts."""


def experts(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Expert parallelism, routing, and what MoE layers require of the rest."""
    m, t = model, training
    count, groups, topk = m.num_moe_experts, m.moe_router_num_groups, m.moe_router_group_topk
    allgather = t.moe_token_dispatcher_type == "allgather"
    padded, quantized = t.moe_router_padding_for_quantization, t.low_precision
    overlapped = t.moe_shared_expert_overlap and m.moe_shared_expert_intermediate_size
    factor = t.moe_expert_capacity_factor
    yield from broken_if(
        (
            (t.moe_pad_expert_input_to_capacity and factor is None, "capacity-padding-needs-factor"),
            (overlapped and allgather, "shared-expert-overlap-with-allgather"),
            (padded and not quantized, "router-padding-needs-low-precision"),
            (padded and quantized and allgather, "router-padding-with-allgather"),
            (topk and not groups, "group-topk-needs-groups"),
            (topk and groups and not count, "router-groups-without-experts"),
        )
    )
    if not count:
        if layout.ep > 1:
            yield broken("ep-without-experts", {EP: layout.ep})
        return
    yield from over("experts-over-ep", "num_moe_experts", count, EP, layout.ep)
    if m.has_moe and layout.tp > 1 and not layout.sequence_parallel:
        yield broken("experts-with-tp-need-sequence-parallel", {TP: layout.tp})
    if m.add_bias_linear:
        yield from _biases(layout, training, shared=bool(model.moe_shared_expert_intermediate_size))
        if m.moe_shared_expert_intermediate_size:
            yield broken("shared-experts-without-biases")
    if groups and topk:
        yield from over("experts-over-router-groups", "num_moe_experts", count, "moe_router_num_groups", groups)
    if groups and topk and topk > groups:
        yield broken("group-topk-above-groups", moe_router_group_topk=topk, moe_router_num_groups=groups)
    if t.moe_router_fusion:
        yield from _fused_router(model, training)
    alone = t.moe_token_dispatcher_type == "flex" and layout.tp * layout.ep == 1
    yield from broken_if(
        (
            (alone, "flex-dispatcher-of-one-rank"),
            (allgather and factor is not None, "capacity-factor-with-allgather"),
        )
    )


def _fused_router(model: Model, training: Training) -> Iterator[Violation]:
    """Kernels of routers are TransformerEngine's."""
    major, minor = (2, 13) if model.moe_router_score_function == "sqrtsoftplus" else (2, 7)
    if training.te < (major, minor):
        function = model.moe_router_score_function
        yield broken("router-fusion-version", moe_router_score_function=function, since=f"{major}.{minor}")
    if training.moe_router_dtype == "fp64":
        yield broken("router-fusion-with-fp64")


def _biases(layout: Layout, training: Training, *, shared: bool) -> Iterator[Violation]:
    """Biases of experts: of the old all-gather dispatcher, refused at the first step of 0.13 and 0.14, and since then of whole experts.
    Those of models with `shared` experts are refused anyway."""
    t = training
    plain = t.moe_token_dispatcher_type == "allgather" and not t.moe_grouped_gemm
    if t.mcore < LATE_PROBS and not plain:
        yield broken("expert-biases-before-0.13")
    elif LATE_PROBS <= t.mcore < WHOLE_EXPERTS:
        yield broken("expert-biases-in-0.13-and-0.14")
    elif t.mcore >= WHOLE_EXPERTS and layout.etp > 1:
        yield broken("expert-biases-with-etp", etp=layout.etp)
    grouped = t.te_spec and t.moe_grouped_gemm and not shared
    if grouped and t.bias_dropout_fusion:
        yield broken("biased-grouped-experts")


def expert_modules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the ways to run experts need and exclude."""
    t = training
    if t.moe_paged_stash:
        without = t.moe_expert_rank_capacity_factor is None
        offloaded = t.cpu_offloading_num_layers
        yield from broken_if(((without, "paged-stash-needs-rank-capacity"), (offloaded, "paged-stash-or-offloading")))
    if not model.has_moe:
        return
    if t.use_transformer_engine_op_fuser:
        quantized = t.low_precision in ("mxfp8", "nvfp4")
        gated = t.recomputes("moe_act") and model.gated_linear_unit
        yield from broken_if(
            (
                (not (t.te_spec and t.moe_grouped_gemm), "op-fuser-needs-grouped-gemm"),
                (layout.etp > 1, "op-fuser-with-etp"),
                (not fusible(model, t), "op-fuser-activation"),
                (quantized and t.base_frozen, "op-fuser-with-peft"),
                (quantized and gated, "op-fuser-with-moe-act-recomputed"),
            )
        )
    wrapped = {"linear_fc1", "linear_fc2"} & set(t.peft_target_modules or ("linear_fc1",))
    if t.peft == "dora" and t.moe_grouped_gemm and wrapped:
        yield broken("dora-on-grouped-experts")
    if t.moe_expert_rank_capacity_factor is not None:
        both = t.moe_expert_capacity_factor is not None
        yield from broken_if(((not t.hybridep, "rank-capacity-needs-hybridep"), (both, "rank-capacity-or-capacity")))


def fusible(model: Model, t: Training) -> bool:
    """Whether fused experts have the activation (Megatron-LM `moe/experts.py`, _is_fused_impl_supported)."""
    if model.gated_linear_unit:
        return model.activation_func in ("silu", "quick_gelu")
    return model.activation_func == "squared_relu" and t.use_fused_weighted_squared_relu


def a2a_overlap(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the overlap of all-to-alls needs and excludes."""
    t = training
    if not t.overlap_moe_expert_parallel_comm:
        if t.delay_wgrad_compute:
            yield broken("delayed-wgrads-need-a2a-overlap")
        return
    how = t.recompute_method is not None or t.recompute_num_layers is not None
    yield from broken_if(
        (
            (not model.has_moe or layout.ep == 1, "a2a-overlap-needs-ep"),
            (model.hybrid, "a2a-overlap-of-hybrid"),
            (t.moe_token_dispatcher_type == "allgather", "a2a-overlap-with-allgather"),
            (t.recompute_granularity == "full" or t.recomputes("moe"), "a2a-overlap-with-recomputed-layers"),
            (t.recompute_granularity != "full" and how, "a2a-overlap-with-recompute-method"),
            (t.params_dtype == "fp32", "a2a-overlap-in-fp32"),
            (t.moe_shared_expert_overlap, "a2a-overlap-or-shared-expert-overlap"),
        )
    )
    if layout.pp > 1 and not interleaved(model, layout):
        yield broken("a2a-overlap-needs-virtual-stages", {PP: layout.pp})
    if t.use_megatron_fsdp:
        if layout.pp > 1:
            yield broken("a2a-overlap-with-fsdp-and-pp", pp=layout.pp)
        graphed = t.cuda_graph_impl not in ("none", "full_iteration")
        yield from broken_if(
            (
                (t.fsdp_double_buffer, "a2a-overlap-or-fsdp-double-buffer"),
                (graphed, "a2a-overlap-with-fsdp-and-graphs"),
            )
        )
    if model.mtp > 1 or (model.mtp and layout.pp == 1):
        yield broken("a2a-overlap-with-mtp")
