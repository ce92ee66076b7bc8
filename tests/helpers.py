"""Facts and small jobs that several tests use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.rank.build import context_of

FACTS = Path(__file__).parent / "facts"
SWEEP = "SWEEP" in os.environ
"""Whether samples are whole: `make test-all`."""
long = pytest.mark.skipif(not SWEEP, reason="make test-all has it")
ROOT = Path(__file__).parent.parent


def records(name: str) -> list[dict[str, Any]]:
    """The records of a file of facts."""
    found: list[dict[str, Any]] = json.loads((FACTS / name).read_text())["records"]
    return found


def record_job(record: dict[str, Any], **settings: Any) -> TrainingJob:
    """The job of a record that gives `config`, `num_gpus` and `settings`."""
    given = {
        "router_imbalance": 1,
        **record["settings"],
        **settings,
    }  # the records were made with as many rows on every rank
    return TrainingJob.from_config(record["config"], record["num_gpus"], **given)


def small_config(**changes: Any) -> dict[str, Any]:
    """A small Llama-like model in TransformerConfig's names."""
    return {
        "num_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_query_groups": 4,
        "ffn_hidden_size": 4096,
        "gated_linear_unit": True,
        "activation_func": "silu",
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "vocab_size": 32000,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
        "masked_softmax_fusion": True,
        **changes,
    }


def moe_config(**changes: Any) -> dict[str, Any]:
    """A small MoE model."""
    return small_config(
        num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=512, moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall", **changes,
    )  # fmt: skip


def small_job(num_gpus: int = 1, **settings: Any) -> TrainingJob:
    """A job of the small model; settings may override the config."""
    return TrainingJob.from_config(small_config(), num_gpus, **{"seq_length": 1024, **settings})


def moe_job(num_gpus: int = 1, **settings: Any) -> TrainingJob:
    """A job of the small MoE model."""
    return TrainingJob.from_config(moe_config(), num_gpus, **{"seq_length": 1024, **settings})


def context(job: TrainingJob) -> Context:
    """What module declarations see of a job."""
    return context_of(job)
