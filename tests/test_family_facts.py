"""Every Hugging Face family has a published model in the catalogue, or a recorded count of its class."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, count_parameters
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.families import FAMILIES

from .helpers import records
from .test_families import EXACT, SARVAM_MLA
from .test_hf_models import COUNTS

LING = "inclusionAI/Ling-flash-2.0"
LING_V2 = {**entries()[LING]["config"], "model_type": "bailing_moe_v2"}
"""Files of Ling 2.0 say bailing_moe or bailing_moe_v2, of the same BailingMoeV2ForCausalLM."""


@pytest.mark.parametrize("record", records("family_counts.json"), ids=lambda record: str(record["family"]))
def test_a_family_has_the_parameters_of_its_class(record: dict[str, Any]) -> None:
    count = count_parameters(TrainingJob.from_hf(record["config"]).model)
    assert (count.total, count.mtp) == (record["total"], record.get("mtp", 0))
    assert convert(record["config"], "x", "t").model_type == record["family"]


def test_ling_is_the_same_model_under_both_of_its_types() -> None:
    assert count_parameters(TrainingJob.from_hf(LING_V2).model).total == COUNTS[LING][0]


def test_every_family_has_a_recorded_count() -> None:
    """SARVAM_MLA's ranks are held to the counts of the real class in test_families.py."""
    configs = [
        *(entries()[name]["config"] for name in COUNTS),
        *(config for config, _ in EXACT.values()),
        *(record["config"] for record in records("family_counts.json")),
        SARVAM_MLA,
        LING_V2,
    ]
    found = {FAMILIES[convert(config, "x", "t").model_type] for config in configs}
    assert not {kind for kind, family in FAMILIES.items() if family not in found}
