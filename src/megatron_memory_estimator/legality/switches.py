"""Rules between settings: optimizer, recomputation, kernels, positions."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LayoutError
from ..hardware import Gpu
from ..layout import Layout
from ..model import Model
from ..pipeline import virtual_stages
from ..training import Training


def optimizer(layout: Layout, training: Training) -> Iterator[str]:
    """Settings of the optimizer and of data-parallel communication that exclude or need each other."""
    t = training
    if layout.num_distributed_optimizer_instances > 1 and not t.use_distributed_optimizer:
        yield "num_distributed_optimizer_instances above 1 needs use_distributed_optimizer"
    if t.overlap_param_gather and not t.use_distributed_optimizer:
        yield "overlap_param_gather needs use_distributed_optimizer"
    lower = [
        name
        for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        if getattr(t, name) != "fp32"
    ]
    if lower and not t.use_precision_aware_optimizer:
        yield f"{' and '.join(lower)} other than fp32 need use_precision_aware_optimizer"
    if t.use_precision_aware_optimizer:
        if t.optimizer != "adam":
            yield f"use_precision_aware_optimizer needs optimizer=adam, not {t.optimizer}"
        if not t.use_distributed_optimizer:
            yield "use_precision_aware_optimizer needs use_distributed_optimizer"
    if t.main_grads_dtype == "bf16" and t.accumulate_allreduce_grads_in_fp32:
        yield "main_grads_dtype=bf16 conflicts with accumulate_allreduce_grads_in_fp32; drop one"
    if t.optimizer == "sgd" and t.use_distributed_optimizer:
        yield "optimizer=sgd does not work with use_distributed_optimizer; turn it off or use adam"


def fully_sharded(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What the fully sharded data parallelisms need and exclude (Megatron-LM `arguments.py`)."""
    t = training
    if t.use_megatron_fsdp and t.use_torch_fsdp2:
        yield "use_megatron_fsdp and use_torch_fsdp2 exclude each other; give one"
    if t.use_megatron_fsdp:
        if t.optimizer == "muon":
            yield "use_megatron_fsdp needs optimizer adam or sgd, not muon"
        if t.reuse_grad_buf_for_mxfp8_param_ag:
            yield "use_megatron_fsdp excludes reuse_grad_buf_for_mxfp8_param_ag"
        if t.peft != "none":
            yield "use_megatron_fsdp with peft is not modelled"
    if t.outer_dp_sharding_strategy == "optim" and (
        not t.use_megatron_fsdp or t.data_parallel_sharding_strategy != "optim_grads_params"
    ):
        yield "outer_dp_sharding_strategy=optim needs use_megatron_fsdp with data_parallel_sharding_strategy=optim_grads_params"
    if t.use_torch_fsdp2:
        if t.peft != "none":
            yield "use_torch_fsdp2 with peft is not modelled"
        if layout.pp > 1 or layout.ep > 1:
            yield "use_torch_fsdp2 needs pipeline_model_parallel_size=1 and expert_model_parallel_size=1"
        if t.use_distributed_optimizer:
            yield "use_torch_fsdp2 excludes use_distributed_optimizer"
        if t.gradient_accumulation_fusion:
            yield "use_torch_fsdp2 needs gradient_accumulation_fusion off"
        if model.share_embeddings_and_output_weights:
            yield "use_torch_fsdp2 needs untied embeddings"
        if not t.torch_fsdp2_reshard_after_forward:
            yield "torch_fsdp2_reshard_after_forward=False is not modelled"


def offloading(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What offloading needs and excludes (Megatron-LM `transformer_config.py`, `arguments.py`)."""
    t = training
    if t.optimizer_cpu_offload:
        if not t.use_distributed_optimizer:
            yield "optimizer_cpu_offload needs use_distributed_optimizer"
        if t.low_precision_weights and t.low_precision != "delayed":
            yield f"optimizer_cpu_offload with low-precision weights needs fp8_recipe=delayed, not {t.low_precision}"
        if t.use_megatron_fsdp or t.use_torch_fsdp2:
            yield "optimizer_cpu_offload with fully sharded data parallelism is not modelled"
    if not 0 <= t.optimizer_offload_fraction <= 1:
        yield f"optimizer_offload_fraction={t.optimizer_offload_fraction} must be between 0 and 1"
    if not 0 <= t.activation_offload_fraction <= 1:
        yield f"activation_offload_fraction={t.activation_offload_fraction} must be between 0 and 1"
    if t.cpu_offloading_num_layers:
        if t.fine_grained_activation_offloading:
            yield "cpu_offloading_num_layers and fine_grained_activation_offloading exclude each other; give one"
        if layout.pp > 1:
            yield f"cpu_offloading_num_layers needs pipeline_model_parallel_size=1, not {layout.pp}"
        if t.recompute_granularity:
            yield "cpu_offloading_num_layers excludes recomputation"
        if not 0 < t.cpu_offloading_num_layers < model.num_layers:
            yield f"cpu_offloading_num_layers={t.cpu_offloading_num_layers} must be between 0 and {model.num_layers - 1}"
    if t.fine_grained_activation_offloading:
        if not t.offload_modules:
            yield "fine_grained_activation_offloading needs offload_modules"
        if "attn_proj" in t.offload_modules and "core_attn" not in t.offload_modules:
            yield "offload_modules attn_proj needs core_attn"
        if not t.te_spec:
            yield "fine_grained_activation_offloading needs transformer_impl=transformer_engine"
        if t.recompute_granularity == "full":
            yield "fine_grained_activation_offloading excludes full recomputation"
    elif t.offload_modules:
        yield "offload_modules needs fine_grained_activation_offloading"


def low_precision(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What fp8 and fp4 need and exclude (Megatron-LM `arguments.py`, `transformer_config.py`)."""
    t = training
    if t.fp8 and t.fp4:
        yield "fp8 and fp4 exclude each other; give one"
    if t.fp8_param_gather and not t.fp8:
        yield "fp8_param_gather needs fp8"
    if t.fp4_param_gather and not t.fp4:
        yield "fp4_param_gather needs fp4"
    if not t.low_precision:
        return
    if not t.te_spec:
        yield f"{'fp4' if t.fp4 else 'fp8'} needs transformer_impl=transformer_engine"
    if t.params_dtype == "fp32":
        yield f"{'fp4' if t.fp4 else 'fp8'} needs bf16 or fp16"
    if t.low_precision_weights and not t.use_distributed_optimizer:
        yield f"{'fp4' if t.fp4 else 'fp8'}_param_gather needs use_distributed_optimizer"
    if (
        t.low_precision_weights
        and t.low_precision == "mxfp8"
        and not (t.reuse_grad_buf_for_mxfp8_param_ag or t.use_megatron_fsdp)
    ):
        yield "fp8_param_gather with fp8_recipe=mxfp8 needs reuse_grad_buf_for_mxfp8_param_ag"
    if t.low_precision == "delayed":
        if t.first_last_layers_bf16:
            yield "first_last_layers_bf16 does not work with fp8_recipe=delayed"
        for module in ("moe_act", "layernorm"):
            if t.recomputes(module):
                yield f"recompute_modules {module} does not work with fp8_recipe=delayed"
    if t.fp8_dot_product_attention and t.attention_kernel not in (None, "cudnn"):
        yield f"fp8_dot_product_attention needs attention_kernel=cudnn, not {t.attention_kernel}"
    for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        if getattr(t, name) < 0:
            yield f"{name}={getattr(t, name)} must not be negative"


def expert_modules(model: Model, training: Training) -> Iterator[str]:
    """What the ways to run experts need and exclude."""
    t = training
    if not model.has_moe:
        return
    fused = t.use_transformer_engine_op_fuser and t.low_precision in ("mxfp8", "nvfp4")
    if t.use_transformer_engine_op_fuser and not (t.te_spec and t.moe_grouped_gemm):
        yield "use_transformer_engine_op_fuser with experts needs transformer_impl=transformer_engine and moe_grouped_gemm"
    if fused and t.peft != "none":
        yield "use_transformer_engine_op_fuser with peft is not modelled"
    if fused and t.fine_grained_activation_offloading and {"expert_fc1", "moe_act"} & set(t.offload_modules):
        yield "offload_modules expert_fc1 and moe_act do not exist in fused experts; turn use_transformer_engine_op_fuser off"
    if fused and t.recomputes("moe_act") and model.gated_linear_unit:
        yield "recompute_modules moe_act with use_transformer_engine_op_fuser and a gated activation is not modelled"
    wrapped = {"linear_fc1", "linear_fc2"} & set(t.peft_target_modules or ("linear_fc1",))
    if t.peft == "dora" and t.moe_grouped_gemm and wrapped:
        yield (
            "peft=dora does not work on grouped experts, which have one weight per expert; give peft_target_modules without "
            "linear_fc1 and linear_fc2, or use lora"
        )
    if t.moe_expert_rank_capacity_factor is not None:
        if (t.moe_token_dispatcher_type, t.moe_flex_dispatcher_backend) != ("flex", "hybridep"):
            yield "moe_expert_rank_capacity_factor needs moe_token_dispatcher_type=flex and moe_flex_dispatcher_backend=hybridep"
        if t.moe_expert_capacity_factor is not None:
            yield "moe_expert_rank_capacity_factor and moe_expert_capacity_factor exclude each other; give one"
    if t.moe_paged_stash:
        if t.moe_expert_rank_capacity_factor is None:
            yield "moe_paged_stash needs moe_expert_rank_capacity_factor"
        if t.cpu_offloading_num_layers:
            yield "moe_paged_stash excludes cpu_offloading_num_layers"


def graphs(model: Model, training: Training) -> Iterator[str]:
    """What CUDA graphs exclude (Megatron-LM `megatron/core/transformer/transformer_config.py`)."""
    t = training
    if t.cuda_graph_impl == "none":
        return
    if t.recompute_granularity == "full" and t.cuda_graph_impl != "full_iteration":
        yield f"recompute_granularity=full excludes cuda_graph_impl={t.cuda_graph_impl}; use full_iteration or selective recomputation"
    if not model.has_moe:
        return
    scope = t.cuda_graph_modules
    padded = t.moe_expert_capacity_factor is not None and t.moe_pad_expert_input_to_capacity
    if "moe" in scope and not padded:
        yield "cuda_graph_modules moe needs moe_expert_capacity_factor and moe_pad_expert_input_to_capacity; use moe_router"
    if "moe" in scope and "moe_router" in scope:
        yield "cuda_graph_modules moe and moe_router exclude each other; give one"
    if "moe_preprocess" in scope and "moe_router" not in scope:
        yield "cuda_graph_modules moe_preprocess needs moe_router"


def gpu(training: Training, machine: Gpu) -> Iterator[str]:
    """Recipes that a GPU's tensor cores have (TransformerEngine `pytorch/quantization.py`)."""
    least = {"delayed": (8, 9), "tensorwise": (8, 9), "blockwise": (9, 0), "mxfp8": (10, 0), "nvfp4": (10, 0)}
    recipe = training.low_precision
    if recipe and machine.capability < least[recipe]:
        major, minor = least[recipe]
        yield (
            f"{recipe} needs a GPU of compute capability {major}.{minor} or above; {machine.name} has "
            f"{machine.capability[0]}.{machine.capability[1]}"
        )


MOST_CHECKPOINTED = 1000


def checkpoints(model: Model, training: Training) -> Iterator[str]:
    """The layers of one checkpoint are traced together: there is a most of them."""
    layers = training.recompute_num_layers or 1
    if training.recomputes_layers() and min(layers, model.num_layers) > MOST_CHECKPOINTED:
        yield f"recompute_num_layers={layers} puts more than {MOST_CHECKPOINTED} layers under one checkpoint, the most that is accepted"


def other(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Recompute, sequence parallelism, positions, hyper-connections."""
    t = training
    if layout.sequence_parallel and layout.tp == 1:
        yield "sequence_parallel needs tensor_model_parallel_size above 1; turn it off"
    if t.tp_comm_overlap and not layout.sequence_parallel:
        yield "tp_comm_overlap needs sequence_parallel (and tensor_model_parallel_size above 1); turn one on or the other off"
    if t.tp_comm_overlap and not t.te_spec:
        yield "tp_comm_overlap needs transformer_impl=transformer_engine"
    if t.seq_length > (model.max_position_embeddings or t.seq_length):
        yield (
            f"seq_length={t.seq_length} is more than max_position_embeddings={model.max_position_embeddings}; "
            "raise that, or shorten the sequence"
        )
    if t.recompute_granularity == "selective" and t.recompute_method:
        yield "recompute_method belongs to recompute_granularity=full; drop it for selective"
    if t.recompute_granularity is None and (t.recompute_method or t.recompute_modules):
        yield "recompute_method and recompute_modules need recompute_granularity"
    if t.recompute_granularity == "full" and t.recompute_method == "uniform" and t.recompute_num_layers == 0:
        yield "recompute_num_layers=0 with recompute_method=uniform; use at least 1"
    if t.distribute_saved_activations and (
        t.recompute_granularity != "full" or layout.tp == 1 or layout.sequence_parallel
    ):
        yield "distribute_saved_activations needs recompute_granularity=full, tensor_model_parallel_size above 1 and no sequence_parallel"
    if t.defer_embedding_wgrad_compute:
        if layout.pp == 1 or not t.gradient_accumulation_fusion:
            yield "defer_embedding_wgrad_compute needs pipeline_model_parallel_size above 1 and gradient_accumulation_fusion"
        if model.mtp:
            yield "defer_embedding_wgrad_compute with multi-token prediction is not modelled; use mtp_num_layers=0"
    if t.wgrad_deferral_limit < 0:
        yield f"wgrad_deferral_limit={t.wgrad_deferral_limit} must not be negative"
    if model.mtp and model.position_embedding_type not in ("rope", "none"):
        yield f"mtp_num_layers needs position_embedding_type rope or none, not {model.position_embedding_type}"
    if t.params_dtype == "fp32" and t.attention_kernel in ("flash", "cudnn"):
        yield f"attention_kernel={t.attention_kernel} needs bf16 or fp16; use unfused with fp32"
    if t.recomputes("shared_experts") and t.moe_shared_expert_overlap:
        yield "recompute_modules shared_experts excludes moe_shared_expert_overlap"
    if t.deterministic_mode and any(kind.startswith("gdn") for kind in model.kinds):
        yield "deterministic_mode replaces Gated DeltaNet by torch operations that are not modelled; turn it off"
    yield from attention_variants(model, layout)
    if t.delay_wgrad_compute and not t.overlap_moe_expert_parallel_comm:
        yield "delay_wgrad_compute needs overlap_moe_expert_parallel_comm"
    if t.overlap_moe_expert_parallel_comm:
        yield from a2a_overlap(model, layout, training)
    if (
        model.mtp
        and t.recompute_granularity == "full"
        and t.recompute_method != "block"
        and (t.recompute_num_layers or 1) != 1
    ):
        yield "full uniform recomputation of MTP layers needs recompute_num_layers=1"
    if not t.te_spec and t.attention_kernel not in (None, "local"):
        yield f"transformer_impl=local has its own attention kernel, not {t.attention_kernel}; use attention_kernel=local"
    if t.te_spec and t.attention_kernel == "local":
        yield "attention_kernel=local needs transformer_impl=local"
    if not t.te_spec and t.moe_grouped_gemm and model.num_moe_experts:
        yield "moe_grouped_gemm needs transformer_impl=transformer_engine"
    if not t.te_spec and layout.cp > 1:
        yield f"context_parallel_size={layout.cp} needs transformer_impl=transformer_engine"
    if model.enable_mhc_connections:
        yield from hyper_connections(model, layout, training)


def hyper_connections(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What hyper-connections exclude (Megatron-LM `transformer_config.py`)."""
    if layout.pp > 1:
        yield f"enable_mhc_connections needs pipeline_model_parallel_size=1, not {layout.pp}"
    if model.mtp or model.has_moe or model.hybrid or model.experimental_attention_variant:
        yield "enable_mhc_connections needs a plain transformer with dense MLP layers and no MTP"
    if training.recompute_granularity == "full" or model.fp32_residual_connection:
        yield "enable_mhc_connections excludes full recomputation and fp32_residual_connection"


def attention_variants(model: Model, layout: Layout) -> Iterator[str]:
    """What multi-latent and sparse attention require and exclude."""
    latent = model.multi_latent_attention or any(kind.startswith(("mla", "dsa")) for kind in model.kinds)
    if latent and model.attention_output_gate:
        yield "attention_output_gate does not exist for multi-latent attention; turn it off"
    if latent and model.qk_l2_norm:
        yield "qk_l2_norm does not exist for multi-latent attention; turn it off"
    if any(kind.startswith("dsa") for kind in model.kinds):
        if not model.multi_latent_attention and not model.hybrid:
            yield "experimental_attention_variant=dsa needs multi_latent_attention"
        if model.add_bias_linear:
            yield "sparse attention needs add_bias_linear off"
        if layout.cp > 1 and set(layout.cp_comm_type) != {"all_gather"}:
            yield "sparse attention with context parallelism needs cp_comm_type all_gather"


def a2a_overlap(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What the overlap of all-to-alls needs and excludes (Megatron-LM `transformer_config.py`)."""
    name, t = "overlap_moe_expert_parallel_comm", training
    if not model.has_moe or layout.ep == 1:
        yield f"{name} needs experts and expert_model_parallel_size above 1"
    if model.hybrid:
        yield f"{name} needs a GPT model, not a hybrid"
    if t.moe_token_dispatcher_type == "allgather":
        yield f"{name} needs moe_token_dispatcher_type alltoall or flex, not allgather"
    if t.recompute_granularity == "full" or t.recomputes("moe"):
        yield f"{name} excludes full recomputation and recompute_modules moe"
    if t.params_dtype == "fp32":
        yield f"{name} needs bf16 or fp16"
    if t.moe_shared_expert_overlap:
        yield f"{name} excludes moe_shared_expert_overlap; turn one off"
    if layout.pp > 1 and not interleaved(model, layout):
        yield f"{name} with pipeline_model_parallel_size={layout.pp} needs virtual stages (virtual_pipeline_model_parallel_size)"
    if model.mtp > 1 or (model.mtp and layout.pp == 1):
        yield f"{name} needs at most one MTP depth, and pipeline_model_parallel_size above 1 with it"


def interleaved(model: Model, layout: Layout) -> bool:
    try:
        return virtual_stages(model, layout) > 1
    except LayoutError:  # reported with the pipeline
        return True
