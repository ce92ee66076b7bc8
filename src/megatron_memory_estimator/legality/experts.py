"""Rules of mixture-of-experts models: expert parallelism, routing, and the ways to run experts."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.dispatcher import LATE_PROBS
from ..tape.tensor import divisors
from .sharding import EP, ETP, TP
from .violation import Violation, broken, indivisible

WHOLE_EXPERTS = (0, 15)
"""The Megatron-Core version since which biases are those of whole experts."""


def experts(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Expert parallelism, routing, and what MoE layers require of the rest."""
    m, ep = model, layout.ep
    count, groups, topk = m.num_moe_experts, m.moe_router_num_groups, m.moe_router_group_topk
    if not count:
        if ep > 1:
            yield broken(f"{{{EP}}} needs a MoE model", {EP: ep}, fix="set num_moe_experts or use 1")
        return
    if count % ep:
        yield indivisible("num_moe_experts", count, EP, ep, fix=f"use {divisors(count)}")
    if m.has_moe and layout.tp > 1 and not layout.sequence_parallel:
        fix = f"turn it on or use {TP}=1"
        yield broken(f"MoE training with {{{TP}}} needs sequence_parallel", {TP: layout.tp}, fix=fix)
    if m.add_bias_linear:
        yield from _biases(layout, training)
    if m.add_bias_linear and m.moe_shared_expert_intermediate_size:
        yield broken("shared experts have no biases", fix="turn add_bias_linear off")
    if groups and count % groups:
        yield indivisible("num_moe_experts", count, "moe_router_num_groups", groups, fix=f"use {divisors(count)}")
    if groups and topk and topk > groups:
        numbers = {"moe_router_group_topk": topk, "moe_router_num_groups": groups}
        yield broken(
            "{moe_router_group_topk} is more than {moe_router_num_groups}", numbers, fix=f"use at most {groups}"
        )
    if training.moe_router_fusion:
        yield from _fused_router(model, training)
    yield from _dispatch(layout, training)


def _fused_router(model: Model, training: Training) -> Iterator[Violation]:
    """Kernels of routers are TransformerEngine's. Source: Megatron-LM `megatron/core/transformer/moe/moe_utils.py`."""
    since = (2, 13) if model.moe_router_score_function == "sqrtsoftplus" else (2, 7)
    if training.te < since:
        rule = f"moe_router_fusion with moe_router_score_function={model.moe_router_score_function}"
        yield broken(f"{rule} needs TransformerEngine {since[0]}.{since[1]} or newer", fix="turn it off")
    if training.moe_router_dtype == "fp64":  # TransformerEngine `pytorch/router.py`
        yield broken("moe_router_fusion does not take moe_router_dtype=fp64", fix="use fp32, or turn the fusion off")


def _biases(layout: Layout, training: Training) -> Iterator[Violation]:
    """Biases of experts: of the old all-gather dispatcher, refused at the first step of 0.13 and 0.14, and since then of whole experts.

    Source: Megatron-LM `megatron/core/transformer/moe/` of those versions (`token_dispatcher.py` token_unpermutation, `experts.py`),
    `mlp.py` of 0.13 and 0.14 (per_token_scale), `transformer_config.py` since 0.15.
    """
    t, what = training, "expert biases (add_bias_linear)"
    plain = t.moe_token_dispatcher_type == "allgather" and not t.moe_grouped_gemm
    if t.mcore < LATE_PROBS and not plain:
        yield broken(
            f"{what} before Megatron-Core 0.13 need moe_token_dispatcher_type allgather and no moe_grouped_gemm"
        )
    elif LATE_PROBS <= t.mcore < WHOLE_EXPERTS:
        yield broken(f"{what} do not run in Megatron-Core 0.13 and 0.14", fix="turn add_bias_linear off")
    elif t.mcore >= WHOLE_EXPERTS and layout.etp > 1:
        rule = f"{what} need {ETP}=1 since Megatron-Core 0.15"
        old = "0.12 or older (all-gather dispatcher, no grouped GEMM)"
        fix = f"use {ETP}=1 or turn add_bias_linear off, or give megatron_core_version if the run's is {old}"
        yield broken(rule, said=f"{rule}, not {layout.etp}", fix=fix)


def _dispatch(layout: Layout, training: Training) -> Iterator[Violation]:
    t = training
    if t.moe_pad_expert_input_to_capacity and t.moe_expert_capacity_factor is None:
        yield broken("moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor")
    if t.moe_shared_expert_overlap and t.moe_token_dispatcher_type == "allgather":
        yield broken("moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall or flex")
    if t.moe_token_dispatcher_type == "flex" and layout.tp * layout.ep == 1:
        yield broken(f"moe_token_dispatcher_type flex needs {TP}*{EP} above 1")
    if t.moe_token_dispatcher_type == "allgather" and t.moe_expert_capacity_factor is not None:
        yield broken("moe_expert_capacity_factor needs moe_token_dispatcher_type alltoall or flex")


def expert_modules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the ways to run experts need and exclude."""
    if not model.has_moe:
        return
    yield from _fused(model, training)
    yield from _adapters(training)
    yield from _capacity(training)


def _fused(model: Model, training: Training) -> Iterator[Violation]:
    t = training
    if not t.use_transformer_engine_op_fuser:
        return
    if not (t.te_spec and t.moe_grouped_gemm):
        needs = "transformer_impl=transformer_engine and moe_grouped_gemm"
        yield broken(f"use_transformer_engine_op_fuser with experts needs {needs}")
    if t.low_precision not in ("mxfp8", "nvfp4"):
        return
    if t.peft != "none":
        yield broken("use_transformer_engine_op_fuser with peft is not modelled")
    if t.recomputes("moe_act") and model.gated_linear_unit:
        what = "recompute_modules moe_act with use_transformer_engine_op_fuser and a gated activation"
        yield broken(f"{what} is not modelled")


def _adapters(training: Training) -> Iterator[Violation]:
    t = training
    wrapped = {"linear_fc1", "linear_fc2"} & set(t.peft_target_modules or ("linear_fc1",))
    if t.peft == "dora" and t.moe_grouped_gemm and wrapped:
        yield broken(
            "peft=dora does not work on grouped experts, which have one weight per expert",
            fix="give peft_target_modules without linear_fc1 and linear_fc2, or use lora",
        )


def _capacity(training: Training) -> Iterator[Violation]:
    t = training
    if t.moe_expert_rank_capacity_factor is not None:
        if (t.moe_token_dispatcher_type, t.moe_flex_dispatcher_backend) != ("flex", "hybridep"):
            needs = "moe_token_dispatcher_type=flex and moe_flex_dispatcher_backend=hybridep"
            yield broken(f"moe_expert_rank_capacity_factor needs {needs}")
        if t.moe_expert_capacity_factor is not None:
            both = "moe_expert_rank_capacity_factor and moe_expert_capacity_factor"
            yield broken(f"{both} exclude each other", fix="give one")
    if t.moe_paged_stash:
        if t.moe_expert_rank_capacity_factor is None:
            yield broken("moe_paged_stash needs moe_expert_rank_capacity_factor")
        if t.cpu_offloading_num_layers:
            yield broken("moe_paged_stash excludes cpu_offloading_num_layers")
