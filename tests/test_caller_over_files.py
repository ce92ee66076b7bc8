"""What the caller gives over a run file of another framework: what follows from it follows, as if the file said it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.job.training_job import alike

from .dialect_runs import job
from .fuzz.dialects import BESIDE, NEMO, PRIMUS, ROLL, SWIFT, VERL, lines

TP = "tensor_model_parallel_size"
FILES = {name: json.dumps(document) for name, document in BESIDE.items()}


def with_tp(value: Any, tp: int) -> Any:
    """A document or words with another degree, wherever it stands."""
    if isinstance(value, dict):
        return {key: tp if key == TP else with_tp(each, tp) for key, each in value.items()}
    return value


def of_document(document: dict[str, Any], **given: Any) -> TrainingJob:
    return job(Run("run.yaml", document=copy.deepcopy(document), text_of=FILES.get), 8, **given)


def of_words(words: list[str], **given: Any) -> TrainingJob:
    run = Run("run.sh", words[0], tuple(words[1:]), env={"NPROC_PER_NODE": "8"}, num_gpus=8, text_of=FILES.get)
    return job(run, **given)


@pytest.mark.parametrize(
    "document",
    [NEMO, PRIMUS, ROLL, {**SWIFT, "sequence_parallel": True}, {**VERL, "critic": {"enable": False}}],
    ids=lambda one: next(iter(one)),
)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_degrees_of_the_caller_are_those_of_the_file(document: dict[str, Any], tp: int) -> None:
    for own in (1, 2):
        assert alike(of_document(with_tp(document, own), tp=tp), of_document(with_tp(document, tp)))


@pytest.mark.parametrize(
    "words", [one for one in lines() if TP in " ".join(one).replace("-", "_")], ids=lambda one: one[0]
)
def test_degrees_of_the_caller_are_those_of_the_words(words: list[str]) -> None:
    def changed(word: str, before: str) -> str:
        if before.lstrip("-").replace("-", "_") == TP:
            return "4"
        return word.replace(f"{TP}=2", f"{TP}=4")

    told = [changed(word, before) for word, before in zip(words, ["", *words], strict=False)]
    assert alike(of_words(words, tp=4), of_words(told))


def test_packed_tokens_follow_context_parallelism() -> None:
    words = next(one for one in lines() if one[0] == "train.py")
    assert of_words(words, cp=2).training.seq_length == 2 * 6144


def test_gpus_of_the_caller_decide_the_global_batch_of_roll() -> None:
    assert of_document(ROLL).training.global_batch_size == 2 * 16 * 4
    run = Run("run.yaml", document=ROLL)
    assert job(run, 16).training.global_batch_size == 2 * 16 * 8


@pytest.mark.parametrize(("given", "kind"), [(None, None), ("full", "full")])
def test_recomputation_of_the_caller_takes_the_place_of_the_files(given: str | None, kind: str | None) -> None:
    found = of_document(SWIFT, recompute_granularity=given)
    assert found.training.recompute_granularity == kind
    assert not found.training.recompute_modules
    full = {**SWIFT, "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}
    assert of_document(full, recompute_granularity="full").training.recompute_num_layers == 3
    assert of_document(full, recompute_granularity=None).training.recompute_method is None
