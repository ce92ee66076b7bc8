"""The tensors of every moment of a step add up to it, and the lanes of all stages are their timelines."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, Estimate, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.rank.boundary import pipeline_tensors, resting_tensors
from megatron_memory_estimator.rank.rows import breakdown
from megatron_memory_estimator.report.lanes import MOST_MOMENTS, lanes_document
from megatron_memory_estimator.service.answers import answered
from megatron_memory_estimator.timeline.moments import CAPTURE, alive
from megatron_memory_estimator.timeline.passes import shape_of
from megatron_memory_estimator.timeline.timeline import timeline

from .helpers import SWEEP
from .random_jobs import random_job
from .test_timeline import CASES, PP, VPP, case

NAMES = {name for name in CASES if name != "long"}


def ask(tool: str, **arguments: Any) -> Any:
    """The answer of a tool; its error as a word."""
    found = answered({"tool": tool, "arguments": arguments, "folder": None, "seconds": 60})
    return found["answer"] if "answer" in found else found["error"]


def check(found: Estimate) -> set[str]:
    """The tensors of every moment of every stage are its bytes, part by part. Returns the events that were met."""
    seen: set[str] = set()
    for stage in found.stages:
        line = found.timeline(stage.pp_rank)
        known: dict[tuple[object, ...], int] = {}
        for place, one in enumerate(line.moments):
            index = line.index(place)
            key = one.label, one.highest_bytes, one.start_bytes, one.end_bytes  # equal moments are looked at once
            if known.setdefault(key, index) != index:
                continue
            moment, rows = alive(stage.rank, index)
            assert moment == one._replace(start_s=None, end_s=None)
            assert sum(row.nbytes for row in rows) == one.highest_bytes, one.label
            assert breakdown(rows) == one.parts, one.label
            assert all(row.nbytes >= 0 and row.copies > 0 for row in rows)
            if one is line.peak and one.event not in ("begin", "end"):
                assert sorted(rows) == sorted(stage.rows)
            seen.add(one.event)
        if line.capture:
            moment, rows = alive(stage.rank, CAPTURE)
            assert moment == line.capture and breakdown(rows) == moment.parts
            seen.add(moment.event)
    return seen


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_tensors_of_every_moment_add_up_to_it(name: str) -> None:
    seen = check(case(name))
    assert seen >= {"begin", "finalize", "optimizer", "end"}
    if name in ("two at a time", "graphs", "deferred"):
        assert {"two at a time": "forward beside backward", "graphs": "capture", "deferred": "drain"}[name] in seen


def test_the_same_of_random_jobs() -> None:
    seen: set[str] = set()
    checked = 0
    for seed in range(60 if SWEEP else 15):
        try:
            found = estimate(random_job(Random(seed)).job())
        except EstimatorError:
            continue
        seen |= check(found)
        checked += 1
    assert checked >= (45 if SWEEP else 10) and seen >= {"begin", "forward", "backward", "finalize", "optimizer", "end"}
    assert "capture" in seen or not SWEEP


def test_what_follows_a_pass_can_be_its_highest() -> None:
    """An empty stage passes on; with deferred gradients the last pass ends with more than it ran with."""
    settings = {
        "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1024, "seq_length": 512, "gpu": "H100",
        "global_batch_size": 8, "pipeline_model_parallel_layout": "Ett|t||tL",
    }  # fmt: skip
    found = estimate(TrainingJob.from_config({**settings, PP: 4}, 4))
    assert check(found) >= {"forward", "backward"}
    empty = found.stages[2].rank
    assert not any(plan.runs for plan in empty.plans)
    assert pipeline_tensors(empty, "F") != resting_tensors(empty) != ()


@pytest.mark.parametrize("settings", [{PP: 4}, {PP: 4, VPP: 3}, {PP: 4, "defer_embedding_wgrad_compute": True}])
def test_moments_that_a_timeline_leaves_out_have_their_tensors_too(settings: dict[str, Any]) -> None:
    size = 4096 if VPP not in settings else 1024
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **settings, global_batch_size=size))
    for stage in (found.stages[1], found.stages[3]):
        short, whole = found.timeline(stage.pp_rank), timeline(found, stage.rank, 10**6)
        assert short.left_out is not None and whole.left_out is None
        behind, gone = short.left_out.behind, short.left_out.moments
        for index in (behind - 1, behind, behind + 1, behind + gone // 2, behind + gone - 1, behind + gone):
            moment, rows = alive(stage.rank, index)
            assert moment == whole.moments[index]._replace(start_s=None, end_s=None)
            assert breakdown(rows) == moment.parts
        with pytest.raises(ConfigError, match=f"the moments of this stage are 0 to {len(whole.moments) - 1}"):
            alive(stage.rank, len(whole.moments))


def test_a_moment_is_a_document() -> None:
    run: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"pp": 4, "global_batch_size": 32}}
    lanes = ask("lanes", **run)
    stage = lanes["stages"][1]
    peak = ask("moment", **run, stage=1, moment=stage["peak_moment"])
    explained = ask("explain", **run, stage=1, detail="full")
    assert peak["schema"] == "megatron-memory-moment/1"
    assert peak["tensors"] == explained["tensors"] and peak["allocated_bytes"] == explained["allocated_bytes"]
    assert f"peak: {peak['event']}" == explained["event"]
    assert "must be a whole number" in ask("moment", **run, moment="peak")
    assert "must be a whole number" in ask("moment", **run, moment=True)
    assert "moment is needed" in ask("moment", **run)
    assert "the moments of this stage are 0 to" in ask("moment", **run, moment=10**9)
    assert "capture of CUDA graphs, which this run does not have" in ask("moment", **run, moment=CAPTURE)
    assert "stage 4 does not exist" in ask("moment", **run, stage=4, moment=0)


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "two at a time", "graphs", "MTP", "long"])
def test_lanes_are_the_timelines_of_all_stages(name: str) -> None:
    model, gpus, settings = CASES[name]
    found, lanes = case(name), ask("lanes", model=model, num_gpus=gpus, settings=json.loads(json.dumps(settings)))
    assert lanes["schema"] == "megatron-memory-lanes/1" and len(lanes["stages"]) == len(found.stages)
    assert sum(len(one["columns"]["index"]) for one in lanes["stages"]) <= MOST_MOMENTS
    for stage, one in zip(found.stages, lanes["stages"], strict=True):
        line = found.timeline(stage.pp_rank).to_dict()
        names = {"event": lanes["events"], "label": lanes["labels"]}
        columns = {
            key: [names[key][value] for value in values] if key in names else values
            for key, values in one["columns"].items()
        }
        columns["highest_event"] = columns.pop("label")
        columns.pop("shape")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for row in rows:
            row["index"] = None if row["index"] == CAPTURE else row["index"]
        assert rows == [{key: moment[key] for key in columns} for moment in line["moments"]]
        for key in ("pp_rank", "steady_allocated_bytes", "peak_allocated_bytes", "left_out"):
            assert one[key] == line[key]
        assert one["peak_allocated_bytes"] == stage.peak_allocated_bytes
        at = one["columns"]["index"].index(one["peak_moment"])
        assert one["columns"]["highest_bytes"][at] == one["peak_allocated_bytes"]
        assert (lanes["step_s"], lanes["timeline_s"]) == (line["step_s"], line["timeline_s"])


def test_lanes_of_many_stages_stay_short() -> None:
    run: dict[str, Any] = {"model": "meta-llama/Llama-3.1-405B", "num_gpus": 126}
    lanes = ask("lanes", **run, settings={"pp": 126, "tp": 1, "global_batch_size": 4096})
    moments = sum(len(one["columns"]["index"]) for one in lanes["stages"])
    assert lanes["stages"][0]["left_out"] is not None and moments <= 126 * (2 * 128 + 5)
    many = ask("lanes", **run, settings={"pp": 42, "vpp": 3, "global_batch_size": 3780})
    assert isinstance(many, dict) or "look at the timeline of one stage" in many


def test_a_pass_has_the_simulated_shape() -> None:
    """Llama-3.1-70B, 64 GPUs, tp 4, pp 4, the last stage: the highest of a forward is the loss at its end and not its middle, where 41.9 of
    45.15 GiB are allocated; that of a backward is at its begin. Every point is a layer of the step's replay."""
    job = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 64, tp=4, pp=4, sequence_parallel=True, global_batch_size=128, gpu="H100"
    )
    found = estimate(job)
    lane = lanes_document(found)["stages"][3]
    place = next(at for at, index in enumerate(lane["columns"]["index"]) if index == lane["peak_moment"])
    shape = lane["shapes"][lane["columns"]["shape"][place]]
    highest = lane["columns"]["highest_bytes"][place]
    top = shape["at"][shape["below_bytes"].index(0)]
    assert highest == lane["peak_allocated_bytes"] and top > 0.99
    middle = min(zip(shape["at"], shape["below_bytes"], strict=True), key=lambda one: abs(one[0] - 0.5))
    assert (highest - middle[1]) / 2**30 == pytest.approx(41.88, abs=0.05)
    backward = shape_of(found.stages[3].rank.plans[0], "B")
    assert backward.top < 0.01 and len(backward.at) == len(backward.below) <= 41
    assert list(backward.at) == sorted(backward.at)
