"""megatron-bridge: `estimate_training_memory` of `src/megatron/bridge/training/utils/theoretical_memory_utils.py`.

Importing the package needs TransformerEngine and a GPU's libraries, so that its file is loaded alone, as it is installed.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from answer import main

HOME = Path(sysconfig.get_path("purelib"), "megatron/bridge/training/utils/theoretical_memory_utils.py")
STANDING_IN = ("", ".training", ".utils", ".training.config", ".utils.vocab_utils")


def formula() -> Any:
    for name in STANDING_IN:
        sys.modules[f"megatron.bridge{name}"] = ModuleType(f"megatron.bridge{name}")
    sys.modules["megatron.bridge.training.config"].ConfigContainer = object  # type: ignore[attr-defined]
    sys.modules["megatron.bridge.utils.vocab_utils"].calculate_padded_vocab_size = (  # type: ignore[attr-defined]
        lambda size, by, tp, *rest, **more: -(-size // (by * tp)) * by * tp
    )
    spec = importlib.util.spec_from_file_location("theoretical_memory_utils", HOME)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["theoretical_memory_utils"] = module
    spec.loader.exec_module(module)
    return module


def ask(case: dict[str, Any]) -> dict[str, Any]:
    estimate = formula().estimate_training_memory
    from torch.nn import functional

    moe = "experts" in case
    model = SimpleNamespace(
        num_layers=case["layers"], hidden_size=case["hidden"], ffn_hidden_size=case["ffn"], num_attention_heads=case["heads"],
        kv_channels=case["head_dim"], num_query_groups=case["kv"], vocab_size=case["padded_vocab"], should_pad_vocab=False,
        make_vocab_size_divisible_by=128, share_embeddings_and_output_weights=False, gated_linear_unit=True,
        activation_func=functional.silu,
        num_moe_experts=case.get("experts"), moe_layer_freq=[0] * case["dense"] + [1] * (case["layers"] - case["dense"]) if moe else 1,
        moe_ffn_hidden_size=case.get("moe_ffn"), moe_shared_expert_intermediate_size=case.get("shared"),
        moe_router_topk=case.get("topk") or 2, moe_latent_size=None, mtp_num_layers=case.get("mtp"), multi_latent_attention=moe,
        q_lora_rank=case.get("q_lora"), kv_lora_rank=case.get("kv_lora"), seq_length=case["seq"], tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"], context_parallel_size=1, virtual_pipeline_model_parallel_size=None,
        expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=1, num_layers_in_first_pipeline_stage=None,
        num_layers_in_last_pipeline_stage=case.get("last"), sequence_parallel=True, recompute_granularity="selective",
    )  # fmt: skip
    config = SimpleNamespace(
        model=model, train=SimpleNamespace(micro_batch_size=case["micro"]), optimizer=SimpleNamespace(use_distributed_optimizer=True),
        data_parallel_size=case["dp"],
    )  # fmt: skip
    return {
        "gib": estimate(config, num_microbatches=case["microbatches"]).total_memory_gb,
        "of": "one GPU, the largest stage",
    }


main(ask)
