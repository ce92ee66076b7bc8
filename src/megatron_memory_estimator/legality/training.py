"""Rules of training settings: the optimizer and data parallelism, recomputation, offloading, CUDA graphs, overlap."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.packing import PACKS
from ..job.pipeline import interleaved
from ..job.training import Training
from ..modules.kinds import has_compressed, kinds_in
from ..rules import CP, ETP, EXPERT_SHARDS, PP, SHARDS, TP, Violation, broken, broken_by, broken_if
from ..states.buffers import by_layout, deals_whole
from ..states.optimizers import OPTIMIZERS
from ..wording import all_of

STATE_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
FRACTIONS = ("optimizer_offload_fraction", "activation_offload_fraction", "optimizer_state_offload_fraction")
MOST_CHECKPOINTED = 1000
OF_EXPERTS = ("expert_fc1", "moe_act", "fused_group_mlp")
"""Offloaded modules that are parts of the routed experts."""


def optimizer(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Settings of the optimizer and of data-parallel communication that exclude or need each other."""
    t, row = training, OPTIMIZERS[training.optimizer]
    distributed = t.use_distributed_optimizer
    lower = [name for name in STATE_DTYPES if getattr(t, name) != "fp32"]
    yield from broken_if(
        (
            (
                layout.num_distributed_optimizer_instances > 1 and not distributed,
                "instances-need-distributed-optimizer",
            ),
            (t.overlap_param_gather and not distributed, "param-gather-overlap-needs-distributed-optimizer"),
        )
    )
    if lower and not t.use_precision_aware_optimizer:
        yield broken("state-dtypes-need-precision-aware", names=all_of(lower))
    if t.use_precision_aware_optimizer:
        if not row.precision_aware:
            yield broken("precision-aware-optimizer-is-adam", optimizer=t.optimizer)
        if not distributed:
            yield broken("precision-aware-needs-distributed-optimizer")
    if t.main_grads_dtype == "bf16" and t.accumulate_allreduce_grads_in_fp32:
        yield broken("bf16-gradients-or-fp32-accumulation")
    if distributed and not row.distributed:
        yield broken("optimizer-is-not-distributed", optimizer=t.optimizer)
    yield from _layer_wise(model, layout, training)


def _layer_wise(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The layer-wise optimizer (Megatron-LM `megatron/core/optimizer/__init__.py`, `layer_wise_optimizer.py`)."""
    t, rank, ranks = training, training.data_parallel_rank, layout.dp * layout.cp
    if not deals_whole(t):
        if rank is not None:
            yield broken("data-parallel-rank-of-muon")
        return
    if layout.num_distributed_optimizer_instances > 1:
        yield broken("layer-wise-with-instances")
    if by_layout(t) and model.has_moe and model.add_bias_linear and (layout.ep > 1 or layout.etp != layout.tp):
        yield broken("layer-wise-with-expert-biases")
    if rank is not None and rank >= ranks:
        yield broken("data-parallel-rank-above-size", data_parallel_rank=rank, ranks=ranks)


def fully_sharded(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the fully sharded data parallelisms need and exclude."""
    t = training
    if t.use_megatron_fsdp and t.use_torch_fsdp2:
        yield broken("one-fsdp")
        return
    if t.use_megatron_fsdp:
        if not OPTIMIZERS[t.optimizer].fully_sharded:
            yield broken("megatron-fsdp-optimizer", optimizer=t.optimizer)
        if t.base_frozen:
            yield broken("megatron-fsdp-with-peft")
    if t.megatron_fsdp_version != 1:
        yield from _second_version(layout, t)
    whole = t.use_megatron_fsdp and t.data_parallel_sharding_strategy == "optim_grads_params"
    if t.outer_dp_sharding_strategy == "optim" and not whole:
        yield broken("outer-sharding-needs-megatron-fsdp")
    if not t.use_torch_fsdp2:
        return
    if t.base_frozen:
        yield broken("torch-fsdp2-with-peft")
    if layout.pp > 1 or layout.ep > 1:
        yield broken("torch-fsdp2-with-pp-or-ep", pp=layout.pp, ep=layout.ep)
    yield from broken_if(
        (
            (t.use_distributed_optimizer, "torch-fsdp2-or-distributed-optimizer"),
            (t.gradient_accumulation_fusion, "torch-fsdp2-with-gradient-fusion"),
            (model.share_embeddings_and_output_weights, "torch-fsdp2-with-tied-embeddings"),
            (not t.torch_fsdp2_reshard_after_forward, "torch-fsdp2-without-resharding"),
        )
    )


SECOND_VERSION = (0, 20)
"""The Megatron-Core that has version 2 of Megatron-FSDP."""


def _second_version(layout: Layout, t: Training) -> Iterator[Violation]:
    """What version 2 of Megatron-FSDP needs and excludes."""
    if t.megatron_fsdp_version != 2:
        yield broken("megatron-fsdp-versions")
        return
    split = {TP: layout.tp, PP: layout.pp, CP: layout.cp, ETP: layout.etp}
    excluded = {
        "outer_dp_sharding_strategy": t.outer_dp_sharding_strategy != "no_shard",
        "gradient_accumulation_fusion": t.gradient_accumulation_fusion,
        "fp8, fp4 and fp16": bool(t.low_precision) or t.params_dtype == "fp16",
        "CUDA graphs": t.cuda_graph_impl != "none",
        "fsdp_double_buffer and use_nccl_ub": t.double_buffered,
        "delay_wgrad_compute": t.delay_wgrad_compute,
        "use_distributed_optimizer": t.use_distributed_optimizer,
        "optimizer_cpu_offload": t.optimizer_cpu_offload,
    }
    whole = t.data_parallel_sharding_strategy == "optim_grads_params"
    yield from broken_if(
        (
            (not t.use_megatron_fsdp, "megatron-fsdp-2-needs-fsdp"),
            (t.mcore < SECOND_VERSION, "megatron-fsdp-2-of-newer-version"),
            (not whole, "megatron-fsdp-2-shards-all"),
        )
    )
    if any(size > 1 for size in split.values()):
        yield broken("megatron-fsdp-2-degrees", split)
    yield from broken_by("megatron-fsdp-2-excludes", excluded)


def weight_shards(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What weight shards (generalized tensor parallelism) need and exclude, and with what they are not modelled."""
    t = training
    for name, degree, word in ((SHARDS, layout.tp, TP), (EXPERT_SHARDS, layout.etp, ETP)):
        shards = getattr(layout, name)
        if shards is not None and shards % degree:
            yield broken("weight-shards-over-tp", {SHARDS: (name, shards), TP: (word, degree)}, use=degree)
    if not layout.shards_weights:
        return
    if t.mcore < WEIGHT_SHARDS[0] or t.te < WEIGHT_SHARDS[1]:
        yield broken("weight-shards-of-newer-version")
    if layout.num_distributed_optimizer_instances > 1:
        yield broken("weight-shards-with-instances")
    twice = layout.gtp > 1 and (model.share_embeddings_and_output_weights or bool(model.mtp))
    if twice:
        yield broken("weight-shards-used-twice")
    unknown = {
        "fully sharded data parallelism": t.use_megatron_fsdp or t.use_torch_fsdp2,
        "fp8 and fp4": bool(t.low_precision),
        "adapters and frozen language models": t.base_frozen,
        "CUDA graphs": t.cuda_graph_impl != "none",
        "delay_wgrad_compute": t.delay_wgrad_compute or t.overlap_moe_expert_parallel_comm,
        "gradients outside gradient_accumulation_fusion": not t.gradient_accumulation_fusion,
        "transformer_impl=local": not t.te_spec,
        f"optimizer={t.optimizer}": not OPTIMIZERS[t.optimizer].fully_sharded,
        "losses without logits": layout.gtp > 1 and t.without_logits,
        "defer_embedding_wgrad_compute": t.defer_embedding_wgrad_compute,
        "use_transformer_engine_op_fuser": t.use_transformer_engine_op_fuser,
        "towers": bool(model.towers),
        "experts that run one after the other": layout.egtp > 1 and model.has_moe and not t.moe_grouped_gemm,
        "experts of one expert-parallel rank": layout.egtp > 1 and layout.ep == 1,
    }
    shards = (SHARDS, layout.tp * layout.gtp) if layout.gtp > 1 else (EXPERT_SHARDS, layout.etp * layout.egtp)
    yield from broken_by("weight-shards-not-modelled", unknown, {SHARDS: shards})


WEIGHT_SHARDS = ((0, 19), (2, 19))
"""The Megatron-Core and the TransformerEngine that have weight shards."""


def sequence_parallel(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Sequence parallelism needs tensor parallelism, and what overlaps with it needs it."""
    t = training
    if layout.sequence_parallel and layout.tp == 1:
        yield broken("sequence-parallel-needs-tp")
    own = any(kind.own_norms for kind in kinds_in(model.every_kind))
    if layout.sequence_parallel and not (t.te_spec or own) and (model.normalization == "RMSNorm" or not t.apex):
        yield broken("sequence-parallel-with-torch-norms", fix="" if t.apex else ", or apex=True if it is installed")
    if t.tp_comm_overlap:
        without = not layout.sequence_parallel
        yield from broken_if(((without, "tp-overlap-needs-sequence-parallel"), (not t.te_spec, "tp-overlap-needs-te")))


def chunked_state(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What optimizer state that is in host memory between steps needs and excludes."""
    t = training
    if not t.chunked_optimizer_state_offload:
        return
    if (t.optimizer_state_offload_chunk_size_mb or 0) < 0:
        yield broken(
            "negative", setting=("optimizer_state_offload_chunk_size_mb", t.optimizer_state_offload_chunk_size_mb)
        )
    excluded = {
        "fully sharded data parallelism": t.use_megatron_fsdp or t.use_torch_fsdp2,
        "optimizer_cpu_offload": t.optimizer_cpu_offload,
        "async_save": t.async_save,
        "CUDA graphs of the whole iteration": t.cuda_graph_impl == "full_iteration",
        "ckpt_format torch": t.ckpt_format == "torch",
    }
    unknown = {
        f"optimizer={t.optimizer}": not OPTIMIZERS[t.optimizer].offloaded,
        "weights in low precision": bool(t.low_precision_weights),
        "optimizers without use_distributed_optimizer": OPTIMIZERS[t.optimizer].offloaded
        and not t.use_distributed_optimizer,
    }
    if t.mcore < CHUNKED:
        yield broken("chunked-state-of-newer-version")
    yield from broken_by("chunked-state-excludes", excluded)
    yield from broken_by("chunked-state-not-modelled", unknown)


CHUNKED = (0, 20)
"""The Megatron-Core that has chunked_optimizer_state_offload."""


def dynamic_context(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What ranks that follow the length of a sample exclude."""
    t = training
    if not t.dynamic_context_parallel:
        if t.min_dynamic_context_parallel_size > 1:
            yield broken("dynamic-cp-least-ranks")
        return
    least = t.min_dynamic_context_parallel_size
    if least < 1 or least & (least - 1):
        yield broken("dynamic-cp-least-is-a-power", min_dynamic_context_parallel_size=least)
    ranks = layout.dp * layout.cp
    if ranks % 2:
        yield broken("dynamic-cp-odd-ranks", ranks=ranks)
    if t.mcore < PACKS:
        yield from broken_if(
            (
                (least > 1, "dynamic-cp-least-of-newer-version"),
                (t.max_seqlen_per_dp_cp_rank is None, "dynamic-cp-needs-tokens"),
            )
        )
        if layout.pp > 1:
            yield broken("dynamic-cp-with-pp", {PP: layout.pp})
        if model.multi_latent_attention:
            yield broken("dynamic-cp-with-latent-attention")
    unknown = {
        "Megatron-FSDP": t.use_megatron_fsdp,
        "torch FSDP2": t.use_torch_fsdp2,
        "CUDA graphs": t.cuda_graph_impl != "none",
        "virtual pipeline stages": interleaved(model, layout),
        "hierarchical_context_parallel_sizes": layout.hierarchical_context_parallel_sizes is not None,
        "layers without softmax attention": any(kind.state_heads != "none" for kind in kinds_in(model.every_kind)),
        "DeepSeek-V4's attention": has_compressed(model),
    }
    yield from broken_by("dynamic-cp-not-modelled", unknown)


def two_optimizers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """An optimizer of the first chunk alone."""
    if training.overlap_param_gather_with_optimizer_step:
        gathered, chunked = training.overlap_param_gather, interleaved(model, layout)
        yield from broken_if(
            (
                (not gathered, "gather-with-step-needs-param-gather-overlap"),
                (not chunked, "gather-with-step-needs-virtual-stages"),
            )
        )


def deferred_wgrads(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Weight gradients of the output layer that wait for the end of the step."""
    t = training
    if t.defer_embedding_wgrad_compute:
        alone = layout.pp == 1 or not t.gradient_accumulation_fusion
        yield from broken_if(((alone, "deferred-wgrads-need-pp-and-fusion"), (model.mtp, "deferred-wgrads-with-mtp")))
    if t.wgrad_deferral_limit < 0:
        yield broken("negative", setting=("wgrad_deferral_limit", t.wgrad_deferral_limit))


def checkpoints(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The layers of one checkpoint are traced together: there is a most of them."""
    layers = training.recompute_num_layers or 1
    if training.recomputes_layers() and min(layers, model.num_layers) > MOST_CHECKPOINTED:
        yield broken("layers-of-a-checkpoint", recompute_num_layers=layers, most=MOST_CHECKPOINTED)


def checkpoint_format(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Which way of sharding each format of checkpoints is for."""
    t, given = training, training.ckpt_format
    alone = t.use_torch_fsdp2 and layout.tp == layout.pp == 1
    yield from broken_if(
        (
            (given == "fsdp_dtensor" and not t.use_megatron_fsdp, "fsdp-dtensor-needs-megatron-fsdp"),
            (given not in (None, "fsdp_dtensor") and t.use_megatron_fsdp, "megatron-fsdp-needs-fsdp-dtensor"),
            (given == "torch_dcp" and not alone, "torch-dcp-needs-torch-fsdp2"),
            (given == "torch" and t.use_torch_fsdp2, "torch-fsdp2-checkpoint-format"),
            (given == "torch" and t.async_save, "async-save-of-torch"),
        )
    )


def recompute(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Settings of recomputation that exclude or need each other."""
    t, full = training, training.recompute_granularity == "full"
    if t.recompute_granularity == "selective" and t.recompute_method:
        yield broken("method-of-selective-recomputation")
    if t.recomputes("gdn_norm_out") and not any(kind.state_heads == "delta" for kind in kinds_in(model.every_kind)):
        yield broken("gdn-norm-recomputed-without-gdn")
    if t.recomputes("moe_act") and not t.moe_grouped_gemm:
        yield broken("moe-act-needs-grouped-gemm", fix="turn it on, or " if model.has_moe else "")
    if full and t.recompute_method == "uniform" and t.recompute_num_layers == 0:
        yield broken("uniform-recomputation-of-no-layer", layers=t.recompute_num_layers)
    saved_whole = layout.tp == 1 or layout.sequence_parallel
    if t.distribute_saved_activations and (not full or saved_whole):
        yield broken("distributed-activations")


def shared_experts(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Shared experts that run beside the dispatch are not recomputed."""
    if training.recomputes("shared_experts") and training.moe_shared_expert_overlap:
        yield broken("shared-experts-recomputed-or-overlapped")


def uniform_mtp(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Every MTP depth is a checkpoint of its own."""
    t = training
    uniform = t.recompute_granularity == "full" and t.recompute_method != "block"
    if model.mtp and uniform and (t.recompute_num_layers or 1) != 1:
        yield broken("uniform-recomputation-of-mtp", layers=t.recompute_num_layers)


def graphs(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What CUDA graphs exclude."""
    t, scope = training, training.cuda_graph_modules
    if t.cuda_graph_impl == "none":
        return
    if t.recompute_granularity == "full" and t.cuda_graph_impl != "full_iteration":
        yield broken("graphs-or-full-recomputation", cuda_graph_impl=t.cuda_graph_impl)
    if t.cuda_graph_impl not in ("local", "transformer_engine"):
        return
    if t.cpu_offloading_num_layers:
        yield broken("graphs-or-offloaded-layers", cuda_graph_impl=t.cuda_graph_impl)
    here = sorted({"moe", "moe_router"} & set(scope))
    if here and not model.has_moe:
        yield broken("expert-graphs-without-experts", modules=all_of(here))
    others = [one for one in t.offload_modules if one not in OF_EXPERTS] if t.fine_grained_activation_offloading else []
    if others and t.cuda_graph_impl == "local":
        yield broken("local-graphs-with-offloaded-modules", modules=all_of(others))
    if not model.has_moe:
        return
    separate = t.cuda_graph_impl == "transformer_engine"
    padded = t.moe_expert_capacity_factor is not None and t.moe_pad_expert_input_to_capacity
    copies = t.moe_token_dispatcher_type == "alltoall" and t.moe_expert_capacity_factor is not None
    dense = any(kind.dense for kind in kinds_in(model.every_kind))
    yield from broken_if(
        (
            ("moe" in scope and not padded, "moe-graph-needs-padding"),
            ("moe" in scope and "moe_router" in scope, "moe-graph-or-router-graph"),
            (
                separate and "moe_preprocess" in scope and "moe_router" not in scope,
                "preprocess-graph-needs-router-graph",
            ),
            ("moe_preprocess" in scope and copies and not padded, "preprocess-graph-with-copies-to-host"),
            (separate and "moe_router" in scope and t.recomputes("moe"), "router-graph-with-recomputed-experts"),
            ("mlp" in scope and not dense and not model.hybrid, "mlp-graph-without-dense-layers"),
        )
    )


def offloading(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What offloading of the optimizer, of layers and of modules needs and excludes."""
    t = training
    if t.optimizer_cpu_offload:
        yield from _offloaded_optimizer(training)
    used = t.optimizer_cpu_offload, t.fine_grained_activation_offloading, t.chunked_optimizer_state_offload
    for name, on in zip(FRACTIONS, used, strict=True):
        if on and not 0 <= getattr(t, name) <= 1:
            yield broken("offload-fraction", fraction=(name, getattr(t, name)))
    if t.cpu_offloading_num_layers:
        yield from _offloaded_layers(model, layout, training)
    if t.fine_grained_activation_offloading:
        yield from broken_if(
            (
                (not t.offload_modules, "offloading-needs-modules"),
                ("attn_proj" in t.offload_modules and "core_attn" not in t.offload_modules, "offloaded-projection"),
                (not t.te_spec, "offloading-needs-te"),
                (t.recompute_granularity == "full", "offloading-or-full-recomputation"),
            )
        )
        if t.min_offloaded_tensor_size < 0:
            yield broken("negative", setting=("min_offloaded_tensor_size", t.min_offloaded_tensor_size))
        if model.has_moe:
            yield from _offloaded_experts(training)
    elif t.offload_modules:
        yield broken("offload-modules-without-offloading")


def _offloaded_optimizer(training: Training) -> Iterator[Violation]:
    t = training
    if not t.use_distributed_optimizer:
        yield broken("optimizer-offload-needs-distributed-optimizer")
    if not OPTIMIZERS[t.optimizer].offloaded:
        yield broken("optimizer-is-not-offloaded", optimizer=t.optimizer)
    if t.low_precision_weights and t.low_precision != "delayed":
        yield broken("optimizer-offload-with-low-precision-weights", recipe=t.low_precision)
    if t.use_megatron_fsdp or t.use_torch_fsdp2:
        yield broken("optimizer-offload-with-fsdp")


def _offloaded_layers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    t, layers = training, training.cpu_offloading_num_layers
    if t.fine_grained_activation_offloading:
        yield broken("layers-or-modules-offloaded")
    if layout.pp > 1:
        yield broken("offloaded-layers-with-pp", pp=layout.pp)
    if t.recompute_granularity:
        yield broken("offloaded-layers-or-recomputation")
    if not 0 < layers < model.num_layers:
        yield broken("offloaded-layers", {"cpu_offloading_num_layers": layers, "num_layers-1": model.num_layers - 1})


def _offloaded_experts(training: Training) -> Iterator[Violation]:
    """What offloading in experts needs and excludes (`moe/experts.py` too)."""
    t = training
    given = [module for module in OF_EXPERTS if module in t.offload_modules]
    parts = [module for module in given if module != "fused_group_mlp"]
    if not given:
        return
    if t.recomputes("moe"):
        yield broken("experts-offloaded-or-recomputed", modules=all_of(given))
    if t.moe_paged_stash:
        yield broken("experts-offloaded-or-stashed", modules=all_of(given))
    if parts and t.use_transformer_engine_op_fuser:
        yield broken("parts-of-fused-experts-offloaded", modules=all_of(parts))
    if "fused_group_mlp" not in given:
        return
    if not t.use_transformer_engine_op_fuser:
        yield broken("fused-experts-offloaded-without-fuser")
    elif not parts and t.low_precision and not t.low_precision_weights:
        yield broken("fused-quantized-experts-offloaded")
