"""llm-flops: `estimate` for training, without checkpointing."""

from __future__ import annotations

from typing import Any

from answer import hf_config, main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    import llmflops
    from llmflops.registry import _map_hf_config

    config = hf_config(case)
    if "experts" in case:
        config.update(
            n_routed_experts=case["experts"], num_experts_per_tok=case["topk"], n_shared_experts=case["shared"] // case["moe_ffn"],
            moe_intermediate_size=case["moe_ffn"], first_k_dense_replace=case["dense"], q_lora_rank=case["q_lora"],
            kv_lora_rank=case["kv_lora"], qk_nope_head_dim=case["qk"], qk_rope_head_dim=case["rope"], v_head_dim=case["v"],
        )  # fmt: skip
    found = llmflops.estimate(
        _map_hf_config("case", config), batch_size=case["micro"], sequence_length=case["seq"], precision="bf16", gpu="H100", training=True,
        allow_hf_fetch=False, gradient_checkpointing=False,
        parallelism={"tensor_parallel": case["tp"], "pipeline_parallel": case["pp"], "data_parallel": case["dp"],
                     "expert_parallel": case["ep"]},
    )  # fmt: skip
    return {"gib": found["details"]["parallelism"]["per_gpu_memory_bytes"] / 2**30, "of": "one GPU, every stage alike"}


main(ask)
