"""Small configurations that the unit tests of the published formulas begin with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def container(**changes: Any) -> SimpleNamespace:
    """Bridge's base configuration with changes to the model; DP and NM-independent parts by their own names."""
    dp = changes.pop("data_parallel_size", 4)
    train = {"micro_batch_size": changes.pop("micro_batch_size", 2)}
    optimizer = {"use_distributed_optimizer": changes.pop("use_distributed_optimizer", True)}
    model = {
        "num_layers": 4, "hidden_size": 16, "seq_length": 8, "ffn_hidden_size": 64, "num_attention_heads": 4,
        "num_query_groups": None, "kv_channels": 4, "vocab_size": 32, "make_vocab_size_divisible_by": 1,
        "should_pad_vocab": False, "share_embeddings_and_output_weights": True, "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2, "context_parallel_size": 1, "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None, "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None, "virtual_pipeline_model_parallel_size": None, "num_moe_experts": None,
        "moe_layer_freq": 1, "moe_router_topk": 2, "moe_ffn_hidden_size": None,
        "moe_shared_expert_intermediate_size": None, "moe_latent_size": None, "mtp_num_layers": None,
        "gated_linear_unit": False, "activation_func": "gelu", "sequence_parallel": True,
        "recompute_granularity": "selective",
    }  # fmt: skip
    return SimpleNamespace(
        model=SimpleNamespace(**{**model, **changes}),
        train=SimpleNamespace(**train),
        optimizer=SimpleNamespace(**optimizer),
        data_parallel_size=dp,
    )


UNEVEN = {
    "num_layers": 8, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4,
    "num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3,
    "share_embeddings_and_output_weights": False,
}  # fmt: skip


MLM = {
    "num_layers": 2, "hidden_size": 8, "ffn_hidden_size": 16, "num_attention_heads": 2, "kv_channels": 4,
    "group_query_attention": False, "num_query_groups": 1, "swiglu": False, "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": False, "padded_vocab_size": 32, "num_experts": 4, "moe_layer_freq": [0, 1],
    "moe_ffn_hidden_size": 16, "moe_shared_expert_intermediate_size": 8, "moe_router_topk": 1,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 2,
    "expert_tensor_parallel_size": 4, "data_parallel_size": 16, "world_size": 32, "use_distributed_optimizer": True,
    "add_bias_linear": False, "seq_length": 16, "micro_batch_size": 1,
}  # fmt: skip
