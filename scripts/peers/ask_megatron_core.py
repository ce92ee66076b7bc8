"""megatron-core: Megatron-LM's own formula, `megatron/training/theoretical_memory_usage.py` (NVIDIA/Megatron-LM)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from answer import main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    from megatron.training import theoretical_memory_usage as formula

    moe = "experts" in case
    args = SimpleNamespace(
        kv_channels=case["head_dim"], num_attention_heads=case["heads"], hidden_size=case["hidden"], group_query_attention=not moe,
        num_query_groups=case["kv"], num_experts=case.get("experts"), swiglu=True, moe_shared_expert_intermediate_size=case.get("shared"),
        moe_layer_freq=[0] * case["dense"] + [1] * (case["layers"] - case["dense"]) if moe else None, num_layers=case["layers"],
        moe_ffn_hidden_size=case.get("moe_ffn"), mtp_num_layers=case.get("mtp"), normalization="RMSNorm", multi_latent_attention=moe,
        q_lora_rank=case.get("q_lora"), kv_lora_rank=case.get("kv_lora"), qk_head_dim=case.get("qk"), qk_pos_emb_head_dim=case.get("rope"),
        v_head_dim=case.get("v"), padded_vocab_size=case["padded_vocab"], untie_embeddings_and_output_weights=True,
        ffn_hidden_size=case["ffn"], moe_latent_size=None, moe_router_topk=case.get("topk"), add_bias_linear=False,
        expert_tensor_parallel_size=1, expert_model_parallel_size=case["ep"], pipeline_model_parallel_size=case["pp"],
        world_size=case["gpus"], tensor_model_parallel_size=case["tp"], use_distributed_optimizer=True, data_parallel_size=case["dp"],
        seq_length=case["seq"], micro_batch_size=case["micro"], virtual_pipeline_model_parallel_size=None,
        sequence_parallel=case["tp"] > 1, recompute_granularity=case.get("recompute"), is_hybrid_model=False, hybrid_layer_pattern=None,
        hybrid_override_pattern=None,
    )  # fmt: skip
    total = formula.report_theoretical_memory(args, num_microbatches=case["microbatches"])[2]
    return {"gib": total / 1024, "of": "one GPU, the largest stage"}


main(ask)
