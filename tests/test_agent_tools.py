"""What the tools of agents answer: check, validate, timeline, compare, and their words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.errors import StoppedError
from megatron_memory_estimator.mcp_server import client_words, in_client_words
from megatron_memory_estimator.planner import planning
from megatron_memory_estimator.report.verdict import verdict_sentence
from megatron_memory_estimator.service.answers import answered

RUN = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2}}
JOB = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2)
GIB = 2**30


def ask(tool: str, **arguments: Any) -> Any:
    """The short answer of a tool; its error as a word."""
    request = {"tool": tool, "arguments": {"detail": "summary", **RUN, **arguments}}
    found = answered({**request, "folder": None, "seconds": 60, "hub": False})
    return found.get("answer", found.get("error"))


def test_check_has_the_codes_of_the_command_and_a_baseline() -> None:
    found = ask("check")
    assert (found["exit_code"], found["reason"]) == (0, verdict_sentence(estimate(JOB)))
    assert ask("check", settings={"tp": 2, "max_memory": 30})["exit_code"] == 3
    smaller = ask("check", settings={"tp": 4})
    grown = ask("check", baseline=smaller)
    assert grown["exit_code"] == 5 and grown["increase"]["now"] == estimate(JOB).peak_stage.peak_allocated_bytes
    assert ask("check", baseline=smaller, tolerance="200%")["exit_code"] == 0
    assert ask("check", baseline={"schema": "other"}) == "baseline is not a document of check or estimate"
    assert "must be a percentage" in ask("check", tolerance="some")


def test_validate_reads_the_text_of_a_log() -> None:
    peak = estimate(JOB).peak_stage.peak_allocated_bytes
    line = "[Rank 1] (after 3 iterations) memory (MB) | allocated: 36064.0 | max allocated: {}"
    same = ask("validate", log=f"noise\n{line.format(peak / 2**20)}\n")
    assert same["sentence"].startswith("Every measured peak is within 0.0% of the estimate")
    assert same["ranks"][0]["max_allocated_bytes"]["estimated"] == peak
    more = ask("validate", log=line.format((peak + 6 * GIB) / 2**20))
    assert more["sentence"].startswith(
        "The measured peak is 6.0 GiB above the estimate on stage 0 (rank 1, iteration 3)"
    )
    assert "there is no rank 9: the run has 8 GPUs" in ask("validate", log=line.replace("Rank 1", "Rank 9").format(1))
    assert ask("validate").startswith("log is needed")


def test_timeline_says_when_most_is_allocated() -> None:
    found, line = ask("timeline"), estimate(JOB).timeline()
    assert found["answer"] == verdict_sentence(estimate(JOB)) and found["sentence"] == line.sentence
    peak = line.peak
    assert found["moments"][0][0] == round(peak.highest_bytes / GIB, 2) and found["moments"][0][3] == peak.label
    assert sum(times for _, times, *_ in found["moments"]) <= len(line.every)


def test_an_illegal_layout_does_not_end_a_comparison() -> None:
    given = {"model": None, "models": ["Qwen/Qwen3-8B"], "num_gpus": 8, "settings": None}
    asked = {**given, "layouts": [{"tp": 3}, {"tp": 2}]}
    request = {"tool": "compare", "arguments": {name: one for name, one in asked.items() if one is not None}}
    found = answered({**request, "folder": None, "seconds": 60, "hub": False})["answer"]
    illegal, legal = found["answers"]
    assert "[heads-over-tp]" in illegal and legal.startswith("tp=2: Trains on 8 H100-80GB")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("--no-bias-activation-fusion asks for that", "bias_activation_fusion=false asks for that"),
        ("--fp8-param-gather --cross-entropy-fusion-impl native", "fp8_param_gather=true cross_entropy_fusion_impl native"),
        ("`megatron-memory plan MODEL --min-num-gpus` finds how many", "the tool plan fewest_gpus=true finds how many"),
        ("(--phases training judges training alone)", "(phases training judges training alone)"),
        ("--set MODEL_ARGS=VALUE", "set_variables MODEL_ARGS=VALUE"),
        ("--tp 3 is no option of Megatron's --unheard-of", "tp 3 is no option of Megatron's --unheard-of"),
    ],
)  # fmt: skip
def test_sentences_are_in_the_words_of_a_client(said: str, meant: str) -> None:
    assert client_words(said) == meant
    document = json.dumps({"answer": said, "launch_of_first": said})
    assert json.loads(in_client_words(document)) == {"answer": meant, "launch_of_first": said}


def test_a_search_for_the_fewest_gpus_that_is_stopped_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", gpu="H100")
    axes = {"cp": "1", "recompute": "full"}
    whole = planning.plan(job, axes, fewest_gpus=True).found
    first, asked, stops = planning._first, [0], [False]

    def later(*given: Any, **words: Any) -> Any:
        asked[0] += 1
        stops[0] = asked[0] == 2  # the search for resuming
        return first(*given, **words)

    monkeypatch.setattr(planning, "_first", later)
    found, said = planning.plan(job, axes, fewest_gpus=True, stop=lambda: stops[0])
    assert (found.fewest_to_train, found.fewest_gpus) == (whole.fewest_to_train, None) and found.plans
    assert any("whether they resume it is not known: the search on" in note for note in said)
    with pytest.raises(StoppedError, match="the search on 2 GPUs was stopped"):
        planning.plan(job, axes, fewest_gpus=True, stop=lambda: True)
