"""Violations: a rule is the same for every layout, its sentence has the numbers."""

from __future__ import annotations

import dataclasses
import re
from itertools import product
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob
from megatron_memory_estimator.legality import Violation, check, violations
from megatron_memory_estimator.legality.violation import broken, indivisible

NUMBER_WITH_NAME = re.compile(r"=(?=\d)[\d*.=]+")


def test_a_name_in_braces_is_a_name_in_the_rule_and_a_number_in_the_text() -> None:
    heads = indivisible("num_attention_heads", 40, "tensor_model_parallel_size", 16, fix="use 8")
    assert heads == Violation(
        "num_attention_heads does not divide by tensor_model_parallel_size",
        "num_attention_heads=40 does not divide by tensor_model_parallel_size=16; use 8",
    )
    assert broken("fp8 and fp4 exclude each other", fix="give one").text == "fp8 and fp4 exclude each other; give one"
    assert broken("it has entries", said="it has 3 entries", fix="give one") == Violation(
        "it has entries", "it has 3 entries; give one"
    )


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "deepseek-ai/DeepSeek-V3"]
)
def test_a_rule_has_no_number_of_a_layout(name: str) -> None:
    """Of layouts with four values of each degree; where a text has numbers beside their names only, its rule is what is left."""
    job = TrainingJob.from_hf(name, 1)
    rules: dict[str, set[str]] = {}
    for tp, pp, cp, ep in product((1, 3, 5, 7), repeat=4):
        degrees: dict[str, Any] = {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "context_parallel_size": cp,
            "expert_model_parallel_size": ep,
            "num_distributed_optimizer_instances": tp,
        }
        layout = dataclasses.replace(job.layout, world_size=16 * pp, **degrees)
        for one in violations(job.model, layout, job.training, 8):
            rules.setdefault(one.rule, set()).add(one.text)
            said = NUMBER_WITH_NAME.sub("", one.text.split(";")[0])
            assert said == one.rule or re.search(r"\d", said), one
    assert len(rules) >= 8
    assert any(len(texts) > 3 for texts in rules.values())
    assert not any(re.search(r"=\d", rule) for rule in rules)


def test_a_refusal_names_its_rules() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 6)
    layout = dataclasses.replace(job.layout, tensor_model_parallel_size=3)
    with pytest.raises(LayoutError) as refused:
        check(job.model, layout, job.training, job.gpu, 1)
    assert len(refused.value.rules) == len(refused.value.reasons) > 1
    assert (
        refused.value.rules[0]
        == "num_attention_heads does not divide by tensor_model_parallel_size in linear_qkv.weight"
    )
    assert refused.value.reasons[0].startswith(
        "num_attention_heads=32 does not divide by tensor_model_parallel_size=3 in"
    )
