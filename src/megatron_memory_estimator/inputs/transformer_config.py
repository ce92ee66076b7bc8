"""Names of TransformerConfig, ModelParallelConfig, DDP and optimizer settings that are not ours: renamed, irrelevant to
memory, not counted, or not modelled. Source: Megatron-LM `megatron/core/transformer/transformer_config.py`,
`megatron/core/model_parallel_config.py`, `megatron/core/optimizer/optimizer_config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

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
    "fp8_format": "fp8",
    "fp8_param": "fp8_param_gather",
    "fp4_format": "fp4",
    "fp4_param": "fp4_param_gather",
    "moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
    "cuda_graph_scope": "cuda_graph_modules",
    "use_custom_fsdp": "use_megatron_fsdp",
    "use_nccl_ub": "nccl_ub",
    "te_version": "transformer_engine_version",
    "enable_hyper_connections": "enable_mhc_connections",
    "num_residual_streams": "mhc_num_residual_streams",
    "num_gpus": "world_size",
}

IRRELEVANT = {
    "actual_vocab_size": "megatron/bridge/models/deepseek/deepseek_v4_bridge.py:501: rows of a table of token ids; the vocabulary is read",
    "adam_beta1": "megatron/core/optimizer/__init__.py:549: a scalar of the optimizer step",
    "adam_beta2": "megatron/core/optimizer/__init__.py:549: a scalar of the optimizer step",
    "adam_eps": "megatron/core/optimizer/__init__.py:550: a scalar of the optimizer step",
    "align_param_gather": "megatron/core/distributed/distributed_data_parallel.py:459: when parameter gathers start, not their buffers",
    "async_tensor_model_parallel_allreduce": "megatron/training/arguments.py:1411: nothing reads it; only a comment is left",
    "autocast_dtype": "megatron/core/pipeline_parallel/schedules.py:504: read only under enable_autocast",
    "average_in_collective": "megatron/core/distributed/param_and_grad_buffer.py:665: the reduce operation, not its buffer",
    "barrier_with_L1_time": "megatron/core/pipeline_parallel/schedules.py:736: timers wait for other ranks",
    "batch_p2p_comm": "megatron/core/pipeline_parallel/p2p_communication.py:374: how sends are posted; the received tensors are the same",
    "batch_p2p_sync": "megatron/core/pipeline_parallel/p2p_communication.py:416: the host waits for the GPU",
    "beta_fast": "megatron/core/transformer/multi_latent_attention.py:195: a constant of the RoPE frequencies",
    "beta_slow": "megatron/core/transformer/multi_latent_attention.py:196: a constant of the RoPE frequencies",
    "cache_mla_latents": "megatron/core/transformer/multi_latent_attention.py:324: only inference; an assertion forbids it in training",
    "calculate_per_token_loss": "megatron/core/pipeline_parallel/schedules.py:331: a factor of the loss",
    "check_for_nan_in_grad": "megatron/core/distributed/param_and_grad_buffer.py:346: a norm in one number; no copy of gradients",
    "clip_grad": "megatron/core/optimizer/optimizer.py:831: scales gradients in place by their norm",
    "config_logger_dir": "megatron/core/config_logger.py:123: only writes settings to disk",
    "cp_partition_mode": "megatron/bridge/training/utils/packed_seq_utils.py:283: which tokens a rank has, not how many",
    "cpu_offloading": "megatron/training/arguments.py:1870: follows cpu_offloading_num_layers, which is modelled",
    "cpu_offloading_activations": "transformer_engine/pytorch/cpu_offload.py:820: off with nothing else to offload is an error",
    "cpu_offloading_retain_pinned_cpu_buffers": "transformer_engine/pytorch/cpu_offload.py:449: host memory only",
    "csa_compress_rotary_base": "megatron/bridge/models/deepseek/deepseek_v4_bridge.py:438: a constant of the RoPE frequencies",
    "ddp_average_in_collective": "megatron/training/training.py:1997: the reduce operation, not its buffer",
    "disable_bf16_reduced_precision_matmul": "megatron/core/transformer/transformer_config.py:1321: a switch of cuBLAS accumulation",
    "dsa_indexer_rotate_activation": "megatron/core/transformer/experimental_attention_variant/dsa.py:1312: "
    "a Hadamard transform of one shape; its input is dropped",
    "embedding_init_method": "megatron/core/models/common/embeddings/language_model_embedding.py:59: initial values, written in place",
    "embedding_init_method_std": "megatron/core/transformer/transformer_config.py:2246: initial values, written in place",
    "enable_autocast": "megatron/core/pipeline_parallel/schedules.py:503: weights in the compute dtype are not cast again",
    "enable_experimental": "megatron/core/transformer/moe/token_dispatcher.py:645: fused kernels for the routing map, which stays the same",
    "expert_bias_update_rate": "megatron/core/transformer/moe/moe_utils.py:1165: "
    "a factor of the bias update; moe_router_bias_update_rate is its setting",
    "finalize_model_grads_func": "megatron/training/training.py:3550: a function that the training loop sets",
    "fine_grained_offloading_max_inflight_offloads": "megatron/core/pipeline_parallel/fine_grained_activation_offload.py:1118: "
    "when the main stream waits; allocated bytes stay the same",
    "flash_decode": "megatron/core/transformer/attention.py:1336: only inference",
    "glu_linear_offset": "megatron/core/transformer/mlp.py:330: a constant that is added also where it is 0",
    "grad_scale_func": "megatron/core/pipeline_parallel/schedules.py:563: scales the loss, one number",
    "grad_sync_func": "megatron/training/training.py:3541: a function that the training loop sets",
    "group_query_attention": "megatron/training/argument_utils.py:330: only whether num_query_groups counts; derived from it here",
    "inference_sampling_seed": "megatron/core/inference/text_generation_controllers/text_generation_controller.py:252: only inference",
    "init_method": "megatron/core/tensor_parallel/layers.py:178: initial values, written in place",
    "init_method_std": "megatron/core/transformer/transformer_config.py:2261: initial values, written in place",
    "is_hybrid_model": "megatron/core/transformer/transformer_config.py:2270: a factor of initial values; the pattern says the layers",
    "layernorm_epsilon": "megatron/core/transformer/transformer_block.py:379: a constant of the norm kernels",
    "layernorm_zero_centered_gamma": "megatron/core/extensions/transformer_engine.py:848: a switch inside the norm kernels",
    "log_num_zeros_in_grad": "megatron/core/optimizer/clip_grads.py:254: one byte an element of one gradient shard, in the optimizer step",
    "lr": "megatron/core/optimizer_param_scheduler.py:299: a scalar of the optimizer step",
    "mhc_init_gating_factor": "main: megatron/core/transformer/transformer_config.py: an initial value of learned scalars; not in 0.19.2",
    "mhc_sinkhorn_iterations": "megatron/bridge/models/deepseek/deepseek_v4_bridge.py:478: how often a matrix of n x n is normalised",
    "min_lr": "megatron/core/optimizer_param_scheduler.py:248: a scalar of the optimizer step",
    "moe_paged_stash_page_size": "megatron/core/transformer/moe/paged_stash.py:64: rounds the stash up by less than a page",
    "moe_per_layer_logging": "megatron/training/training.py:2787: only logs",
    "moe_router_bias_update_rate": "megatron/core/distributed/finalize_model_grads.py:366: a factor of the bias update",
    "moe_router_topk_scaling_factor": "megatron/core/transformer/moe/moe_utils.py:873: a factor of the routing weights",
    "moe_shared_expert_glu_interleave_size": "megatron/core/transformer/moe/shared_experts.py:473: "
    "the order of columns inside the fused kernel",
    "moe_token_drop_policy": "megatron/core/transformer/moe/moe_utils.py:1004: which tokens are dropped, not how many",
    "moe_token_dropping": "megatron/core/transformer/transformer_config.py:857: nothing reads it",
    "mrope_section": "megatron/core/models/common/embeddings/rotary_pos_embedding.py:357: how RoPE's dimensions are divided, not how many",
    "mscale": "megatron/core/transformer/multi_latent_attention.py:197: a factor of RoPE's values",
    "mscale_all_dim": "megatron/core/transformer/multi_latent_attention.py:177: a factor of the softmax scale",
    "mtp_loss_scaling_factor": "megatron/core/transformer/multi_token_prediction.py:875: a factor of the loss",
    "no_sync_func": "megatron/training/training.py:3537: a function that the training loop sets",
    "output_layer_init_method": "megatron/core/transformer/mlp.py:248: initial values, written in place",
    "overlap_cpu_optimizer_d2h_h2d": "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:220: "
    "streams of the copies, and CPU optimizers in parts",
    "param_sync_func": "megatron/training/training.py:3545: a function that the training loop sets",
    "perform_initialization": "megatron/core/extensions/transformer_engine.py:418: whether initial values are written in place",
    "persist_layer_norm": "megatron/core/fusions/fused_layer_norm.py:135: which norm kernel; both save input and statistics",
    "pin_cpu_grads": "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:110: host memory only",
    "pin_cpu_params": "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:75: host memory only",
    "pipeline_dtype": "megatron/core/pipeline_parallel/p2p_communication.py:335: must be the dtype of the hidden states that are sent",
    "pipeline_model_parallel_comm_backend": "megatron/core/parallel_state.py:1244: the library of the pipeline's group; no torch tensor",
    "rampup_batch_size": "megatron/core/num_microbatches_calculator.py:100: nothing reads it but a deprecation warning",
    "rope_scaling_factor": "megatron/core/models/common/embeddings/rotary_pos_embedding.py:84: a constant of the RoPE frequencies",
    "rotary_base": "megatron/core/models/common/embeddings/rotary_pos_embedding.py:80: a constant of the RoPE frequencies",
    "rotary_interleaved": "megatron/core/models/common/embeddings/rope_utils.py:82: the order of rotated pairs, not how many",
    "rotary_scaling_factor": "megatron/core/transformer/multi_latent_attention.py:193: a constant of the RoPE frequencies",
    "rotary_seq_len_interpolation_factor": "megatron/core/models/common/embeddings/rotary_pos_embedding.py:136: a factor of the positions",
    "seed": "megatron/training/initialize.py:446: the state of the random number generators",
    "softmax_scale": "megatron/core/transformer/dot_product_attention.py:87: a factor of the attention scores",
    "test_mode": "megatron/core/transformer/attention.py:1926: checks that ranks agree on norm weights of a head",
    "timers": "megatron/core/pipeline_parallel/schedules.py:348: only times, in host memory",
    "use_te_rng_tracker": "megatron/core/tensor_parallel/random.py:375: which class keeps the random states",
    "use_torch_optimizer_for_cpu_offload": "megatron/core/optimizer/__init__.py:514: overwritten four lines below for Adam, and SGD else",
    "variable_seq_lengths": "megatron/core/pipeline_parallel/p2p_communication.py:322: stages exchange shapes of a few numbers first",
    "weight_decay": "megatron/core/optimizer_param_scheduler.py:300: a scalar of the optimizer step",
    "window_attn_skip_freq": "megatron/core/transformer/utils.py:504: which layers have the window; kernels save the same",
    "window_size": "megatron/core/extensions/transformer_engine.py:1900: which scores a kernel skips; it saves the same",
}
"""Accepted and ignored: they change no tensor that this engine counts. Each names the file and line that shows it, of Megatron-Core
0.19.2 and TransformerEngine 2.20.2, or of `main` where a release does not have it yet."""

NGRAMS = (
    "each of its tables, whose length is the next prime, is cut over expert-parallel ranks alone: 18 bytes for each parameter of a rank "
    "with Adam at expert data parallelism of 1"
)
KNOWN = {
    "engram_vocab_sizes": NGRAMS,
    "engram_layer_ids": NGRAMS,
}
"""What is known of arguments that are not modelled (Megatron-LM `docs/api-guide/core/generalized_tensor_parallel.md`, pull requests 7231
and 5103, dev of August 2026)."""


def known_of(*names: str) -> str:
    """What is known of names that are not modelled, each fact once: behind the sentence that says so, "" where nothing is."""
    return "".join(f". Known of it: {one}" for one in dict.fromkeys(KNOWN[name] for name in names if name in KNOWN))


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "fp4_recipe": (None, "nvfp4"),
    "fp8_multi_head_attention": (False,),
    "fp8_output_proj": (False,),
    "fp8_quantizer_factory": (None,),
    "fp4_quantizer_factory": (None,),
    "apply_residual_connection_post_layernorm": (False,),
    "cpu_offloading_weights": (False,),
    "delta_offload_bytes_across_pp_ranks": (0,),
    "deallocate_pipeline_outputs": (True,),
    "heterogeneous_block_specs": (False,),
    "memory_efficient_layer_norm": (False,),
    "mla_down_proj_fusion": (False,),
    "muon_scalar_optimizer": ("adam",),
    "dsa_indexer_k_norm_fp32": (False,),
    "spec": (None,),
    "moe_apply_probs_on_input": (False,),
    "moe_enable_deepep": (False,),
    "moe_extended_tp": (False,),
    "moe_input_jitter_eps": (None,),
    "moe_use_legacy_grouped_gemm": (False,),
    "mtp_standalone": (False, True),
    "num_microbatches_with_partial_activation_checkpoints": (None,),
    "quant_recipe": (None,),
    "use_kitchen": (False,),
    "use_ring_exchange_p2p": (False,),
    "megatron_fsdp_enable_fine_grained_param_gather": (False,),
    "megatron_fsdp_grad_comm_dtype": ("auto", None),
    "megatron_fsdp_max_pool_double_buffer": (False,),
}
"""Not modelled: refused unless the value is one of these."""


class Uncounted(NamedTuple):
    """What a setting changes that is not counted, and among which other settings it changes it."""

    effect: str
    where: Callable[[Mapping[str, Any]], bool] = lambda _: True


UNCOUNTED = {
    "ckpt_fully_parallel_load_exchange_algo": Uncounted(
        "what ranks send each other while they load a checkpoint (exchange_utils.py: exchange_by_distribution)",
        lambda given: bool(given.get("ckpt_fully_parallel_load")),
    ),
    "delay_offload_until_cuda_graph": Uncounted(
        "offloaded tensors of experts stay on the GPU one layer longer (fine_grained_activation_offload.py: flush_delayed_groups)",
        lambda given: bool(given.get("fine_grained_activation_offloading")),
    ),
    "fp8_amax_history_len": Uncounted(
        "delayed scaling keeps 20 bytes for each linear, each local expert's among them, times this length "
        "(TransformerEngine quantization.py)",
        lambda given: given["fp8_amax_history_len"] != 1 and bool(given.get("fp8")) and given.get("fp8_recipe") in (None, "delayed"),
    ),
    "log_max_attention_logit": Uncounted(
        "it turns FlashAttention off, and where cuDNN's attention does not fit the scores of all positions are kept "
        "(TransformerEngine attention/dot_product_attention/utils.py)"
    ),
    "moe_router_force_biased": Uncounted(
        "it sends more tokens to some experts than the rows that are counted here (moe_utils.py: apply_biased_logits)"
    ),
    "moe_router_topk_limited_devices": Uncounted(
        "it limits which ranks a token's experts are on; the rows that a rank sends are counted without it (transformer_config.py: "
        "moe_router_group_topk is its newer name)"
    ),
    "mtp_hsm": Uncounted(
        "what several MTP depths keep with it is not known (an argument of Megatron-LM's main, which no release has; arguments.py)",
        lambda given: (given.get("mtp_num_layers") or 0) > 1,
    ),
    "no_rope_freq": Uncounted("layers without RoPE make no rotated query and key; all layers are counted with them (attention.py)"),
    "symmetric_ar_type": Uncounted(
        "with tensor and without sequence parallelism a symmetric buffer of a layer's output, 2 s b h bytes, stays outside of torch's "
        "memory (TransformerEngine distributed.py: symmetric_all_reduce)"
    ),
    "tp_comm_overlap_cfg": Uncounted(
        "it chooses how many chunks each userbuffer has; the default buffers are counted (TransformerEngine module/base.py)",
        lambda given: bool(given.get("tp_comm_overlap")),
    ),
}  # fmt: skip
"""Accepted with a warning."""


def uncounted(values: Mapping[str, Any]) -> Iterator[str]:
    """The warnings about settings whose effect is not counted. By Megatron's names."""
    for name, (effect, where) in UNCOUNTED.items():
        if values.get(name) not in (None, False) and where(values):
            yield f"{name}={values[name]!r} is not counted: {effect}"
