"""Every setting's topic, in the order of `--help-all`. What no topic names is an option of a command itself."""

from __future__ import annotations

TOPICS: dict[str, tuple[str, ...]] = {
    "the run": (
        "world_size", "gpu", "door", "seq_length", "micro_batch_size", "global_batch_size", "num_workers", "phases", "strict", "run_model",
        "packing", "packing_tokens", "set_variables", "follow", "ignore_unknown", "without_unmodelled",
    ),
    "parallelism": (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "cp_comm_type",
        "hierarchical_context_parallel_sizes", "tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards",
        "sequence_packing_scheduler", "max_seqlen_per_dp_cp_rank", "dynamic_context_parallel", "min_dynamic_context_parallel_size",
    ),
    "pipeline split": (
        "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split", "pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage",
        "microbatch_group_size_per_vp_stage",
    ),
    "recomputation": (
        "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "distribute_saved_activations",
        "mhc_recompute_layer_num",
    ),
    "precision": (
        "bf16", "fp16", "params_dtype", "fp8", "fp8_recipe", "fp8_param_gather", "fp4", "fp4_param_gather",
        "first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "fp8_dot_product_attention",
        "activation_func_fp8_input_store", "reuse_grad_buf_for_mxfp8_param_ag", "moe_router_padding_for_quantization",
        "disable_parameter_transpose_cache", "attention_softmax_in_fp32",
    ),
    "optimizer and gradients": (
        "muon_fp32_matmul_prec", "muon_nesterov", "muon_split_qkv", "muon_tp_mode",
        "optimizer", "sgd_momentum", "use_distributed_optimizer", "num_distributed_optimizer_instances",
        "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
        "store_param_remainders", "use_layer_wise_param_layout", "data_parallel_rank", "accumulate_allreduce_grads_in_fp32",
        "grad_reduce_in_bf16",
        "gradient_accumulation_fusion", "ddp_bucket_size", "ddp_num_buckets", "ddp_pad_buckets_for_high_nccl_busbw",
    ),
    "checkpoints": (
        "load_optim", "ckpt_format", "checkpoint_loader", "dist_ckpt_optim_fully_reshardable", "ckpt_fully_parallel_load",
        "ckpt_fully_parallel_save", "async_save",
    ),
    "full sharding": (
        "use_megatron_fsdp", "megatron_fsdp_version",
        "data_parallel_sharding_strategy", "outer_dp_sharding_strategy", "fsdp_double_buffer", "nccl_ub",
        "suggested_communication_unit_size", "megatron_fsdp_main_grads_dtype", "megatron_fsdp_main_params_dtype",
        "use_torch_fsdp2", "torch_fsdp2_reshard_after_forward", "init_model_with_meta_device", "use_cpu_initialization",
        "keep_fp8_transpose_cache",
    ),
    "mixture of experts": (
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_grouped_gemm", "moe_use_grouped_tensor",
        "moe_permute_fusion", "moe_router_fusion", "moe_router_dtype", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity",
        "moe_expert_rank_capacity_factor", "moe_shared_expert_overlap", "freeze_moe_router", "routing_phase", "router_imbalance",
    ),
    "overlap": (
        "overlap_grad_reduce", "overlap_param_gather", "overlap_param_gather_with_optimizer_step", "overlap_p2p_comm",
        "tp_comm_overlap", "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute", "defer_embedding_wgrad_compute", "wgrad_deferral_limit",
    ),
    "offloading": (
        "cpu_offloading_num_layers", "cpu_offloading_double_buffering", "fine_grained_activation_offloading", "offload_modules",
        "min_offloaded_tensor_size", "activation_offload_fraction", "optimizer_cpu_offload", "optimizer_offload_fraction",
        "chunked_optimizer_state_offload", "optimizer_state_offload_chunk_size_mb", "optimizer_state_offload_fraction",
        "moe_paged_stash", "moe_paged_stash_buffer_size_factor_cuda", "moe_paged_stash_buffer_size_factor_cpu",
    ),
    "CUDA graphs": ("cuda_graph_impl", "cuda_graph_modules", "cuda_graph_warmup_steps"),
    "kernels and fusions": (
        "transformer_impl", "attention_kernel", "deterministic_mode", "apply_rope_fusion", "bias_activation_fusion",
        "bias_dropout_fusion", "use_te_activation_func", "moe_mlp_glu_interleave_size",
        "use_fused_weighted_squared_relu", "use_transformer_engine_op_fuser",
        "masked_softmax_fusion",
        "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "logit_dtype", "clone_scatter_output_in_embedding",
        "scatter_embedding_sequence_parallel",
        "create_attention_mask_in_dataloader", "compiled_gates", "mamba_mem_eff_path", "dsa_kernel_backend",
        "dsa_indexer_use_sparse_loss", "use_fused_mhc",
    ),
    "reinforcement learning": (
        "loss_function", "loss_chunk_size", "loss_entropy", "loss_temperature", "rollout_engine", "rollout_colocated",
        "rollout_memory_share", "rollout_tensor_parallel_size", "rollout_sleeps", "rollout_offload", "log_prob_offload",
        "log_prob_micro_batch_tokens", "reference_model", "critic_model", "weight_sync_bytes",
        "torch_memory_saver", "disable_grad_buffers_cpu_backup", "disable_param_buffers_cpu_backup",
    ),
    "fine-tuning": (
        "peft", "peft_dim", "peft_target_modules", "peft_experts", "images", "image_tokens", "audio_tokens", "freeze_language_model",
        "freeze_vision_model", "freeze_vision_projection", "freeze_audio_model", "vit_gradient_checkpointing",
    ),
    "model (overrides of the config)": (
        "num_layers", "hidden_size", "ffn_hidden_size", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by",
        "max_position_embeddings", "share_embeddings_and_output_weights", "untie", "position_embedding_type", "rotary_percent",
        "rope_type", "original_max_position_embeddings", "normalization", "gated_linear_unit", "activation_func",
        "activation_func_clamp_value", "activation_func_clamp_value_shared_expert", "add_bias_linear", "hidden_dropout",
        "fp32_residual_connection", "mtp_num_layers", "mtp_use_repeated_layer", "hybrid_layer_pattern", "norm_placement",
        "attention_block", "mlp_block", "variants", "layer_variants", "mtp_layer_variant", "mtp_layer_variant_behind",
        "enable_mhc_connections", "mhc_num_residual_streams",
    ),
    "model: attention": (
        "num_attention_heads", "num_query_groups", "kv_channels", "value_channels", "add_qkv_bias", "qk_layernorm",
        "qk_layernorm_scope", "qk_l2_norm", "value_norm", "attention_output_gate", "softmax_type", "sliding_window",
        "local_rotary_table", "core_attention", "attn_logit_softcapping", "final_logit_softcapping", "attention_dropout",
        "parallel_attention", "num_ln_in_parallel_attn", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
        "qk_pos_emb_head_dim", "v_head_dim",
    ),
    "model: experts": (
        "num_moe_experts", "moe_layer_freq", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate", "gemma4_moe", "moe_latent_size", "moe_router_score_function", "moe_router_pre_softmax",
        "moe_router_weight_in_fp32", "moe_router_enable_expert_bias", "moe_router_load_balancing_type", "moe_aux_loss_coeff",
        "moe_z_loss_coeff",
        "moe_router_num_groups", "moe_router_group_topk",
        "moe_n_hash_layers",
    ),
    "model: linear and sparse attention, Mamba-2": (
        "experimental_attention_variant", "linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim",
        "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "dsa_indexer_n_heads", "dsa_indexer_head_dim",
        "dsa_indexer_topk", "dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset", "dsa_indexer_loss_coeff", "csa_compress_ratios",
        "csa_window_size", "csa_dense_mode", "o_groups", "o_lora_rank", "mamba_num_heads",
        "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "mamba_chunk_size", "mamba_rmsnorm", "falcon_h1",
        "attn_res_block_size", "hc_lowrank", "indexer_n_heads", "indexer_head_dim", "indexer_compress_ratio",
        "ple_layer_ids", "ple_embed_dim", "ple_conv_kernel_size", "ngram_table_rows",
        "moe_latent_norm", "gemma4_dense", "per_layer_embed_dim",
        "per_layer_embed_vocab_size", "kv_shared", "kv_stored",
    ),
    "machine and libraries": (
        "max_memory", "head_room", "gpus_per_node", "nvlink_domain", "network_gbs", "expandable_segments", "fragmentation",
        "context_gib", "libraries_gib", "nccl_gib", "nccl_nvls", "cublas_workspace_config", "apex",
        "transformer_engine_version", "megatron_core_version", "container",
    ),
    "what a whole run takes": (
        "train_tokens", "gpu_hour_dollars", "gpu_mtbf_hours", "restart_minutes", "storage_gbs", "save_interval",
    ),
}  # fmt: skip
"""Names of options (a setting's name, or the name that an option fills) by topic."""


def topic(name: str) -> str | None:
    """The topic of an option, or None for one of the command itself."""
    return next((title for title, names in TOPICS.items() if name in names), None)
