"""A choice is refused where `estimate` refuses the request with that one change, by the same sentence."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from megatron_memory_estimator.service.answers import answered
from megatron_memory_estimator.service.choices import DEFAULT_NAMES

from .helpers import SWEEP
from .random_jobs import random_job

MODELS = (
    "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-70B", "google/gemma-3-27b-pt",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "deepseek-ai/DeepSeek-V3.2", "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "moonshotai/Kimi-K2-Instruct", "zai-org/GLM-4.5", "google/gemma-4-26B-A4B",
    "google/gemma-4-E4B", "deepseek-ai/DeepSeek-V4-Flash", "zai-org/GLM-5",
)  # fmt: skip
Run = dict[str, Any]


def ask(tool: str, run: Run, **arguments: Any) -> Any:
    """The answer of a tool; its error as a word."""
    found = answered({"tool": tool, "arguments": {**run, **arguments}, "folder": None, "seconds": 60, "hub": False})
    return found["answer"] if "answer" in found else found["error"]


def changed(run: Run, choice: Run) -> Run:
    """The request with a choice, as its reader makes it."""
    found = {**run, "settings": {**(run.get("settings") or {}), **choice["settings"]}}
    return found if choice["num_gpus"] is None else {**found, "num_gpus": choice["num_gpus"]}


def check(run: Run, random: Random, count: int) -> tuple[Run, int]:
    """Compares some choices of a request with estimates. Returns the request with one of them, and how many were refused."""
    choices = ask("choices", run)["choices"]
    assert tuple(choices) == DEFAULT_NAMES
    every = [(name, one) for name, found in choices.items() for one in found["values"]]
    refusals = 0
    for name, one in random.sample(every, count):
        after = changed(run, one)
        found = ask("estimate", after, detail="full")
        assert (found if isinstance(found, str) else None) == one["refusal"], (name, after)
        refusals += one["refusal"] is not None
    name, one = random.choice(every)
    return changed(run, one), refusals


@pytest.mark.parametrize("model", MODELS)
def test_a_choice_is_refused_as_estimate_refuses_it(model: str) -> None:
    random = Random(model)
    run: Run = {"model": model, "num_gpus": random.choice((8, 64, 256)), "settings": {}}
    refusals = 0
    for _ in range(4):  # a walk over requests, legal and not
        run, more = check(run, random, 10)
        refusals += more
    assert refusals


def test_the_same_of_random_jobs() -> None:
    checked = refusals = 0
    most, least = (40, 30) if SWEEP else (12, 9)
    for seed in range(400):
        job = random_job(Random(seed))
        if job.name and checked < most:
            run: Run = {"model": job.name, "num_gpus": job.num_gpus, "settings": job.settings}
            checked += 1
            refusals += check(run, Random(seed), 6)[1]
    assert checked >= min(most, 25) and refusals >= least


@pytest.mark.parametrize(
    "settings", [{}, {"tp": 2}, {"pp": 4, "vpp": 3, "recompute_granularity": "full"}, {"fp8": "hybrid"}]
)
def test_what_is_chosen_is_the_value_of_the_new_request(settings: Run) -> None:
    run: Run = {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 64, "settings": settings}
    for name, found in ask("choices", run)["choices"].items():
        now = [one for one in found["values"] if one["value"] == found["value"]]
        assert [one["settings"] for one in now] == [{}], name  # the request's own value is one of them
        for one in found["values"]:
            if one["refusal"] is None:
                again = ask("choices", changed(run, one), names=[name])["choices"][name]
                assert again["value"] == one["value"], (name, one)
                assert all(word not in ("tp", "pp", "vpp") or value is None for word, value in one["settings"].items())


def test_a_refused_request_is_told_the_ways_out() -> None:
    run: Run = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 3}}
    said = ask("estimate", run)
    found = ask("choices", run)["choices"]["tensor_model_parallel_size"]
    assert isinstance(said, str) and found["value"] == 3
    by_value = {one["value"]: one for one in found["values"]}
    assert by_value[3]["refusal"] == said and by_value[2]["refusal"] is None
    assert by_value[2]["settings"] == {"tp": None, "tensor_model_parallel_size": 2}
    unreadable: Run = {
        "model": "Qwen/Qwen3-8B",
        "num_gpus": 8,
        "settings": {"global_batch_size": 7, "micro_batch_size": 2},
    }
    assert "not divisible" in ask("estimate", unreadable)
    sizes = ask("choices", unreadable)["choices"]["micro_batch_size"]
    assert sizes["value"] == 2 and all("not divisible" in one["refusal"] for one in sizes["values"])
    counts = ask("choices", {**unreadable, "settings": {"global_batch_size": 12}})["choices"]["num_gpus"]
    assert counts["value"] == 8
    assert {one["value"] for one in counts["values"] if one["refusal"] is None} == {1, 2, 4}


SCRIPT = """#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 4 \\
  --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 1000 --tokenizer-type NullTokenizer \\
  --bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --fp8-format hybrid --global-batch-size 32
"""
TEXT = "model: {name: Qwen/Qwen3-0.6B}\nparallelism: {num_gpus: 8, tp: 2, pp: 2}\ntraining: {recompute_granularity: full}\n"


def test_what_a_text_says_is_changed_where_a_setting_reaches_it() -> None:
    found = ask("choices", {"text": TEXT})["choices"]
    assert found["tensor_model_parallel_size"]["value"] == 2 and found["num_gpus"]["value"] == 8
    tp = {one["value"]: one["refusal"] for one in found["tensor_model_parallel_size"]["values"]}
    assert tp[1] is None and tp[4] is None
    words = {one["value"]: one["refusal"] for one in found["recompute"]["values"]}
    assert words["full"] is None and words["none"] is None
    none = next(one for one in found["recompute"]["values"] if one["value"] == "none")
    after = changed({"text": TEXT}, none)
    assert ask("estimate", after, detail="full")["training"]["recompute_granularity"] is None


@pytest.mark.parametrize("text", [TEXT, SCRIPT])
def test_what_is_chosen_over_a_text_is_the_value_of_the_new_request(text: str) -> None:
    run: Run = {"text": text, "settings": {}}
    for name, found in ask("choices", run)["choices"].items():
        for one in found["values"]:
            after = changed(run, one)
            said = ask("estimate", after, detail="full")
            if one["refusal"] is None:
                assert not isinstance(said, str)
                assert ask("choices", after, names=[name])["choices"][name]["value"] == one["value"], (name, one)
            else:
                assert said == one["refusal"] or "no setting takes that away" in one["refusal"]


def test_any_switch_or_word_can_be_asked_for() -> None:
    run: Run = {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 32}
    names = ["tp", "moe_token_dispatcher_type", "grad_reduce_in_bf16", "cp_comm_type", "expandable_segments"]
    found = ask("choices", run, names=names)["choices"]
    assert list(found) == ["tensor_model_parallel_size", *names[1:]]
    assert found["grad_reduce_in_bf16"]["value"] is False
    assert [one["value"] for one in found["grad_reduce_in_bf16"]["values"]] == [False, True]
    assert found["moe_token_dispatcher_type"]["value"] == "alltoall" and found["cp_comm_type"]["value"] == "p2p"
    assert "has no list of values" in ask("choices", run, names=["seq_length"])
    assert 'Did you mean "micro_batch_size"?' in ask("choices", run, names=["micro_batch_sise"])
    assert "must be a list of words" in ask("choices", run, names="tp")
    assert "at most 50 names" in ask("choices", run, names=["tp"] * 51)
    assert ask("choices", {"model": "no/such-model"}) == ask("estimate", {"model": "no/such-model"})


def test_the_choices_of_a_large_model_come_at_once() -> None:
    run: Run = {"model": "deepseek-ai/DeepSeek-V3", "num_gpus": 256, "settings": {"pp": 16, "ep": 8}}
    ask("choices", run)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        ask("choices", run)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.5  # about 0.07 s where nothing else runs
