"""One question, one plan: through Python, the command line, HTTP's tools and MCP's summary the same rows, in the same order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, plan
from megatron_memory_estimator.planner.space.features import BASICS
from megatron_memory_estimator.report.plan_words import layout_text
from megatron_memory_estimator.report.plans import found_document, rows_of
from megatron_memory_estimator.service.answers import answered

from .test_plan import printed

Question = dict[str, Any]
EXPERTS: Question = {
    "model": "Qwen/Qwen3-30B-A3B", "gpus": 8, "batch": 1024, "settings": {"gpu": "H200"},
    "axes": {"tp": "1,2", "cp": "1", "pp": "1,2", "recompute": "none,full"},
}  # fmt: skip
DENSE: Question = {
    "model": "meta-llama/Llama-3.1-70B", "gpus": 64, "batch": 512, "settings": {"gpu": "H100"},
    "axes": {"tp": "4,8", "pp": "2,4", "cp": "1", "micro_batch_size": "1,2"},
}  # fmt: skip
RECOMPUTED: Question = {
    "model": "Qwen/Qwen3-8B", "gpus": 8, "batch": 64, "settings": {"recompute_granularity": "full", "seq_length": 2048},
    "axes": {"cp": "1", "pp": "1,2"},
}  # fmt: skip
QUESTIONS = [EXPERTS, DENSE, RECOMPUTED]


def of_python(asked: Question, **more: Any) -> list[dict[str, Any]]:
    job = TrainingJob.from_hf(asked["model"], asked["gpus"], global_batch_size=asked["batch"], **asked["settings"])
    found, said = plan(job, asked["axes"], top=5, **more)
    document: list[dict[str, Any]] = found_document(found, rows_of(found), said)["plans"]
    return document


def of_command(asked: Question, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    words = [asked["model"], "--global-batch-size", str(asked["batch"]), "--top", "5", "--json", *more]
    if not more:
        words += ["--num-gpus", str(asked["gpus"])]
    for name, value in {**asked["settings"], **asked["axes"]}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    document: list[dict[str, Any]] = json.loads(printed(capsys, "plan", *words))["plans"]
    return document


def of_service(asked: Question, **more: Any) -> dict[str, Any]:
    arguments = {
        "model": asked["model"], "num_gpus": asked["gpus"], "axes": asked["axes"], "top": 5,
        "settings": {**asked["settings"], "global_batch_size": asked["batch"]}, **more,
    }  # fmt: skip
    found: dict[str, Any] = answered({"tool": "plan", "arguments": arguments, "folder": None, "seconds": 60})["answer"]
    return found


def bare(plans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Plans as plain data, without the settings that each door adds to what it was asked."""
    found: list[dict[str, Any]] = json.loads(json.dumps(plans))
    return [{name: value for name, value in one.items() if name not in ("settings", "num_gpus")} for one in found]


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["model"])
def test_every_door_has_the_same_plans(asked: Question, capsys: pytest.CaptureFixture[str]) -> None:
    python = bare(of_python(asked))
    assert len(python) > 1
    assert python == bare(of_command(asked, capsys)) == bare(of_service(asked, detail="full")["plans"])
    summary = of_service(asked)
    at = summary["plan_columns"].index("tokens_per_s_gpu")
    assert [row[at] for row in summary["plans"]] == [round(one["tokens_per_s_gpu"]) for one in python]


def test_the_fewest_gpus_are_planned_as_if_they_had_been_given(capsys: pytest.CaptureFixture[str]) -> None:
    given = of_command(EXPERTS, capsys)
    fewest = of_command({**EXPERTS, "axes": {**EXPERTS["axes"]}}, capsys, "--min-num-gpus", "--num-gpus", "8,16")
    assert given == fewest


def test_a_job_is_planned_with_its_own_batch_and_settings() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, global_batch_size=24, recompute_granularity="full")
    found, said = plan(job, {"cp": "1", "pp": "1", "tp": "2", "micro_batch_size": "1"})
    assert {one.job.training.global_batch_size for one in found.plans} == {24}
    assert {one.recompute for one in found.plans} == {"uniform:1"}
    assert not any("global_batch_size not given" in note for note in said)
    assert any("published recipes" in note for note in said)
    assert found.plans[0].job.env.expandable_segments


def test_what_the_job_was_given_holds_over_habits() -> None:
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-30B-A3B",
        8,
        gpu="H200",
        expandable_segments=False,
        overlap_grad_reduce=False,
        moe_token_dispatcher_type="alltoall",
    )
    found, said = plan(job, {"cp": "1", "pp": "1", "tp": "2", "micro_batch_size": "1", "ep": "8", "recompute": "full"})
    assert found.plans and not any({*BASICS} & {*one.features} for one in found.plans)
    assert not any("HybridEP" in note for note in said)


def test_a_whole_run_is_planned_as_it_is() -> None:
    config = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 32000}
    found, said = plan(TrainingJob.from_config(config, 8, seq_length=1024), {"tp": "1,2", "cp": "1", "pp": "1"})
    assert not found.plans[0].features and not any("published recipes" in note for note in said)


def test_the_layout_that_is_shown_is_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """repr, notebook and MCP have the chunks and the split too: who takes the first row runs the first row."""
    job = TrainingJob.from_hf(DENSE["model"], 64, gpu="H100", global_batch_size=512)
    planned = plan(job, DENSE["axes"], top=5)
    (first,) = [one for one in planned.found.plans if one.virtual > 1][:1]
    assert f"vpp {first.virtual}" in repr(first) and f"vpp {first.virtual}" in layout_text(first)
    assert repr(first).count("vpp ") == 1
    assert first.split == "even" or first.split in repr(first)
    shown = planned._repr_html_()
    for one in planned.found.plans:
        assert one.virtual == 1 or f"vpp {one.virtual}" in shown
        assert one.split == "even" or one.split.replace("|", "|") in shown
    rows = of_service(DENSE)
    column = rows["plan_columns"].index("layout")
    assert [row[column] for row in rows["plans"]] == [layout_text(one) for one in planned.found.plans]
    top = planned.found.plans[0]
    assert f"vpp {top.virtual}, pipeline layout" in rows["answer"]
