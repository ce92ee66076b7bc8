"""Megatron-LM arguments that change nothing that is modelled. Each names the file and line that shows it, of Megatron-Core 0.19.2 and
TransformerEngine 2.20.2, or of `main` where a release does not have it yet."""

from __future__ import annotations

from ..transformer_config import IRRELEVANT

HARMLESS = {
    **IRRELEVANT,
    "align_grad_reduce": "megatron/training/training.py:3540: when gradient reductions start, not their buffers",
    "async_save": "megatron/training/checkpointing.py:831: same copies to host memory; a worker process writes them",
    "ckpt_convert_format": "megatron/training/training.py:2269: converts a checkpoint and exits before any training step",
    "ckpt_convert_save": "megatron/training/training.py:2270: a path of the converted checkpoint",
    "ckpt_convert_update_legacy_dist_opt_format": "megatron/training/checkpointing.py:2594: "
    "how a legacy optimizer checkpoint is read, in host memory",
    "create_all_gather_group": "megatron/training/training.py:1713: one more NCCL communicator; no torch tensor",
    "decrease_batch_size_if_needed": "megatron/core/num_microbatches_calculator.py:369: "
    "how many microbatches, rounded down; not their size",
    "disable_jit_fuser": "megatron/training/global_vars.py:156: runs after imports, when decorators were already applied",
    "disable_symmetric_registration": "megatron/core/distributed/param_and_grad_buffer.py:1133: "
    "how NCCL registers buffers of the same size",
    "distributed_backend": "megatron/training/initialize.py:336: the library of the process groups; no torch tensor",
    "empty_unused_memory_level": "megatron/training/training.py:2463: frees cached blocks; allocated bytes stay the same",
    "eval_global_batch_size": "megatron/training/training.py:4195: how many forward-only microbatches an evaluation has",
    "flash_attention_version": "megatron/core/models/common/language_module/language_module.py:152: "
    "which FlashAttention kernel runs; all save output and log-sum-exp",
    "fp8_amax_compute_algo": "transformer_engine/pytorch/quantization.py:1082: the maximum or the newest of a history that exists",
    "fp8_wgrad": "megatron/core/fp8_utils.py:737: TransformerEngine's DelayedScaling has no such field and ignores it",
    "fsdp_manual_registration": "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py:2175: "
    "when the pool is registered with NCCL, not its size",
    "gradient_reduce_div_fusion": "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py:4746: "
    "scales in the collective or in place",
    "legacy_tokenizer": "main: megatron/training/arguments.py: of older releases; absent from 0.19.2 and from main's arguments",
    "log_params_norm": "megatron/training/training.py:3980: only logs; norms of main parameters that exist already",
    "merge_file": "megatron/core/tokenizers/utils/build_tokenizer.py:46: a file of the tokenizer",
    "moe_router_quantile_balancing_ema": "megatron/core/distributed/finalize_model_grads.py:409: a factor of the running quantile",
    "moe_single_grouped_bias": "megatron/core/extensions/transformer_engine.py:2205: the same biases in one parameter",
    "moe_single_grouped_weight": "megatron/core/extensions/transformer_engine.py:2202: the same weights in one parameter",
    "mtp_detach_heads": "megatron/core/transformer/multi_token_prediction.py:1823: gradients stop at MTP; it keeps the same tensors",
    "mtp_standalone": "megatron/core/pipeline_parallel/p2p_communication.py:322: stages exchange shapes of a few numbers first",
    "muon_split_qkv": "megatron/core/optimizer/emerging_optimizers.py:294: splits Newton-Schulz scratch of one matrix; no state",
    "nccl_communicator_config_path": "megatron/core/parallel_state.py:187: options of NCCL communicators; no torch tensor",
    "no_persist_layer_norm": "megatron/training/argument_utils.py:304: which norm kernel; both save input and statistics",
    "non_persistent_ckpt_type": "megatron/training/checkpointing.py:616: where a checkpoint is written",
    "non_persistent_save_interval": "megatron/training/training.py:3280: how often a checkpoint is written",
    "openai_gelu": "megatron/training/arguments.py:2361: nothing reads it",
    "overlap_p2p_comm_warmup_flush": "megatron/core/pipeline_parallel/schedules.py:1571: "
    "receives earlier, outside the steady phase that peaks",
    "pad_vocab_size": "megatron/training/argument_utils.py:479: the model builder pads without asking it",
    "reset_attention_mask": "megatron/core/datasets/gpt_dataset.py:829: which entries are masked, not the mask's size",
    "reset_position_ids": "megatron/core/datasets/gpt_dataset.py:832: values of position ids, not how many",
    "sharp_enabled_group": "megatron/core/parallel_state.py:955: which NCCL group reduces in the switches; no torch tensor",
    "special_tokens": "megatron/core/tokenizers/utils/build_tokenizer.py:56: words of the tokenizer; the vocabulary is read by itself",
    "te_rng_tracker": "megatron/core/tensor_parallel/random.py:380: which class keeps the random states",
    "tiktoken_num_special_tokens": "megatron/core/tokenizers/text/libraries/tiktoken_tokenizer.py:148: "
    "a part of the vocabulary size, not on top",
    "tokenizer_model": "megatron/core/tokenizers/utils/build_tokenizer.py:52: a file of the tokenizer",
    "tp_comm_bootstrap_backend": "megatron/training/initialize.py:238: how ranks find each other when userbuffers are built",
    "use_flash_attn": "megatron/training/arguments.py:2773: nothing reads it",
    "use_pytorch_profiler": "megatron/training/training.py:3733: only profiles; events are kept in host memory",
    "use_sharp": "megatron/core/parallel_state.py:778: NCCL reduces in the switches; no torch tensor",
    "vocab_extra_ids": "megatron/training/config/training_config.py:670: nothing reads it",
    "vocab_file": "megatron/core/tokenizers/utils/build_tokenizer.py:45: a file of the tokenizer",
}
"""Arguments without an effect of their own on what is modelled here."""
