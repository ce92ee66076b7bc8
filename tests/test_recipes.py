"""Published recipes of Megatron-Bridge that run on the named GPUs, and runs that are known to be out of memory.

`tests/facts/recipes.jsonl`: sections of the recipe's ConfigContainer, with its source; `fits` is what its publisher ran or reported.
docs/recipes.md shows every one.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate

from .helpers import FACTS

RECIPES = [json.loads(line) for line in (FACTS / "recipes.jsonl").read_text().splitlines()]


def verdict_of(recipe: dict[str, Any]) -> str:
    settings = {"gpu": recipe["gpu"], "env": recipe["env"], "transformer_engine_version": "2.17", "phases": "training"}
    try:
        job = TrainingJob.from_bridge(recipe["bridge"], recipe["num_gpus"], **settings)
        found = estimate(job)
    except EstimatorError as error:
        return f"refused: {error}"
    return found.verdict().word


@pytest.fixture(scope="module")
def verdicts() -> Counter[tuple[bool, str]]:
    return Counter((recipe["fits"], verdict_of(recipe)) for recipe in RECIPES)


def test_what_runs_is_never_called_impossible(verdicts: Counter[tuple[bool, str]]) -> None:
    running = sum(count for (fits, _), count in verdicts.items() if fits)
    assert running == 62
    assert verdicts[True, "does not fit"] == 0
    assert verdicts[True, "tight"] <= 5, "four of them capture the whole iteration"
    assert sum(verdicts[True, word] for word in ("fits", "tight", "does not fit")) == running


def test_what_ran_out_of_memory_is_never_called_possible(verdicts: Counter[tuple[bool, str]]) -> None:
    assert verdicts[False, "fits"] == 0
    assert verdicts[False, "does not fit"] >= 6
    refused = [word for (_, word), _ in verdicts.items() if word.startswith("refused")]
    assert all("peft.target_modules" in word for word in refused)
