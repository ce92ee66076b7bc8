"""Megatron-LM arguments that change nothing that is modelled."""

from __future__ import annotations

from ..transformer_config import IRRELEVANT
from .table import Argument

HARMLESS = IRRELEVANT | frozenset(
    [
        "align_grad_reduce",
        "bias_dropout_fusion",
        "create_all_gather_group",
        "ddp_average_in_collective",
        "decoder_num_layers",
        "decrease_batch_size_if_needed",
        "disable_jit_fuser",
        "distributed_backend",
        "dsa_indexer_use_sparse_loss",
        "empty_unused_memory_level",
        "encoder_num_layers",
        "encoder_seq_length",
        "flash_attention_version",
        "gradient_reduce_div_fusion",
        "keep_fp8_transpose_cache",
        "merge_file",
        "moe_mlp_glu_interleave_size",
        "moe_router_force_biased",
        "moe_router_quantile_balancing_ema",
        "moe_shared_expert_glu_interleave_size",
        "moe_single_grouped_bias",
        "moe_single_grouped_weight",
        "mtp_detach_heads",
        "mtp_hsm",
        "muon_split_qkv",
        "no_persist_layer_norm",
        "legacy_tokenizer",
        "overlap_p2p_comm_warmup_flush",
        "overlap_param_gather_with_optimizer_step",
        "pad_vocab_size",
        "reset_attention_mask",
        "reset_position_ids",
        "special_tokens",
        "symmetric_ar_type",
        "te_rng_tracker",
        "tp_comm_bootstrap_backend",
        "tp_comm_overlap_cfg",
        "tiktoken_num_special_tokens",
        "tokenizer_model",
        "use_flash_attn",
        "use_te_activation_func",
        "vocab_extra_ids",
        "vocab_file",
        "openai_gelu",
        "rampup_batch_size",
        "fp8_amax_compute_algo",
        "fp8_amax_history_len",
        "fp8_wgrad",
        "fp4_recipe",
        "use_sharp",
        "mtp_standalone",
        "disable_symmetric_registration",
    ]
)
"""Arguments without an effect of their own on what is modelled here."""


def is_harmless(argument: Argument) -> bool:
    """Whether the value of an argument has no effect on memory, whatever it is."""
    return argument.category == "irrelevant" or argument.dest in HARMLESS
