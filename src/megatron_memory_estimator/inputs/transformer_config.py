"""Names of TransformerConfig, ModelParallelConfig, DDP and optimizer settings that are not ours: renamed, irrelevant to
memory, or not modelled. Source: Megatron-LM `megatron/core/transformer/transformer_config.py`,
`megatron/core/model_parallel_config.py`, `megatron/core/optimizer/optimizer_config.py`.
"""

from __future__ import annotations

from typing import Any

RENAMED = {
    "tie_embeddings": "share_embeddings_and_output_weights",
    "num_experts": "num_moe_experts",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "bias_swiglu_fusion": "bias_activation_fusion",
    "bias_gelu_fusion": "bias_activation_fusion",
    "max_sequence_length": "max_position_embeddings",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "te_version": "transformer_engine_version",
    "num_gpus": "world_size",
}

IRRELEVANT = frozenset(
    """
    adam_beta1 adam_beta2 adam_eps align_param_gather async_tensor_model_parallel_allreduce average_in_collective
    autocast_dtype barrier_with_L1_time batch_p2p_comm batch_p2p_sync beta_fast beta_slow bias_dropout_fusion
    cache_mla_latents calculate_per_token_loss check_for_nan_in_grad clip_grad config_logger_dir
    ddp_average_in_collective deterministic_mode disable_bf16_reduced_precision_matmul embedding_init_method
    embedding_init_method_std enable_autocast expert_bias_update_rate finalize_model_grads_func flash_decode
    grad_scale_func grad_sync_func group_query_attention inference_sampling_seed init_method init_method_std
    layernorm_epsilon layernorm_zero_centered_gamma log_max_attention_logit log_num_zeros_in_grad lr min_lr
    memory_efficient_layer_norm moe_per_layer_logging moe_router_bias_update_rate moe_router_force_load_balancing
    moe_router_pre_softmax moe_router_topk_limited_devices moe_router_topk_scaling_factor moe_token_drop_policy
    moe_token_dropping mrope_section mscale mscale_all_dim mtp_loss_scaling_factor no_rope_freq no_sync_func
    num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 output_layer_init_method param_sync_func
    perform_initialization persist_layer_norm pipeline_dtype pipeline_model_parallel_comm_backend rotary_base
    rotary_interleaved rotary_scaling_factor rotary_seq_len_interpolation_factor seed softmax_scale test_mode timers
    use_cpu_initialization use_te_rng_tracker weight_decay window_attn_skip_freq window_size glu_linear_offset
    attention_backend enable_experimental is_hybrid_model moe_router_fusion rope_scaling_factor
    """.split()
)
"""Accepted and ignored: they change no tensor that this engine counts."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation_func_fp8_input_store": (False,),
    "apply_query_key_layer_scaling": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "cpu_offloading": (False,),
    "cpu_offloading_num_layers": (0,),
    "cuda_graph_impl": ("none", None),
    "cuda_graph_scope": (None, "full", [], ()),
    "defer_embedding_wgrad_compute": (False,),
    "delay_wgrad_compute": (False,),
    "enable_cuda_graph": (False,),
    "external_cuda_graph": (False,),
    "fine_grained_activation_offloading": (False,),
    "first_last_layers_bf16": (False,),
    "fp4": (None, False),
    "fp4_param": (False,),
    "fp8": (None, False),
    "fp8_param": (False,),
    "fp8_param_gather": (False,),
    "heterogeneous_block_specs": (False,),
    "hybrid_context_parallel": (False,),
    "init_model_with_meta_device": (False,),
    "moe_apply_probs_on_input": (False,),
    "moe_enable_deepep": (False,),
    "moe_extended_tp": (False,),
    "moe_input_jitter_eps": (None,),
    "moe_router_padding_for_fp8": (False,),
    "moe_router_padding_for_quantization": (False,),
    "moe_use_legacy_grouped_gemm": (False,),
    "moe_z_loss_coeff": (None, 0, 0.0),
    "mtp_standalone": (False, True),
    "num_microbatches_with_partial_activation_checkpoints": (None,),
    "offload_modules": (None, [], ()),
    "optimizer_cpu_offload": (False,),
    "overlap_moe_expert_parallel_comm": (False,),
    "quant_recipe": (None,),
    "tp_comm_overlap": (False,),
    "use_kitchen": (False,),
    "use_megatron_fsdp": (False,),
    "use_ring_exchange_p2p": (False,),
    "use_torch_fsdp2": (False,),
    "wgrad_deferral_limit": (0,),
}
"""Not modelled: refused unless the value is one of these."""
