"""A run beside its plans: its figures, and what leaves its layout out of the space."""

from __future__ import annotations

import json

import pytest

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.planner.base import base_job
from megatron_memory_estimator.planner.own import left_out, own
from megatron_memory_estimator.planner.space.words import space_of
from megatron_memory_estimator.report.plans import found_document, own_text, rows_of

from .helpers import FACTS

WORDS = """--num-layers 8 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu
    --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --use-distributed-optimizer --tensor-model-parallel-size 4
    --sequence-parallel --pipeline-model-parallel-size 2"""


def run(*more: str) -> TrainingJob:
    return TrainingJob.from_megatron_args([*WORDS.split(), *more], num_gpus=8)


def test_a_run_stands_beside_its_plans_with_the_figures_of_its_estimate() -> None:
    job = run()
    planned = plan(job, top=2)
    mine, seen = own(planned.found), estimate(job)
    assert mine is not None and not mine.left_out
    assert mine.plan.step == pytest.approx(seen.throughput.step, abs=1e-9)
    assert mine.plan.peak_allocated_bytes == seen.peak_stage.peak_allocated_bytes
    assert mine.plan.step >= planned.found.plans[0].step
    text = own_text(planned.found, rows_of(planned.found))
    slower = 1 - mine.plan.tokens_per_s_gpu / planned.found.plans[0].tokens_per_s_gpu
    assert (
        text.startswith("Your run (tp 4, cp 1, pp 2, ")
        and f"{slower:.1%} slower than 1" in text
        and text.endswith("; fits.")
    )
    document = found_document(planned.found, rows_of(planned.found), ())
    assert document["own"]["sentence"] == text and document["own"]["left_out"] == []


@pytest.mark.parametrize(
    ("axes", "more", "names"),
    [
        ({"tp": "1,2"}, (), ("tensor_model_parallel_size 4",)),
        ({"pp": "1"}, (), ("pipeline_model_parallel_size 2", "its split of layers over stages")),
        ({"recompute": "none"}, ("--recompute-activations",), ("recompute core_attn",)),
        ({}, ("--decoder-first-pipeline-num-layers", "3"), ("its split of layers over stages",)),
        ({"micro_batch_size": "2"}, (), ("micro_batch_size 1",)),
    ],
)
def test_what_leaves_a_run_out_is_named(axes: dict[str, str], more: tuple[str, ...], names: tuple[str, ...]) -> None:
    job = run(*more)
    space = space_of(job, {**axes, "num_gpus": "8"})
    found = tuple(left_out(job, space))
    assert found == names or (names[-1].startswith("its split") and set(found) <= set(names))


def test_a_model_by_its_name_has_no_run() -> None:
    assert own(plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 8), {"tp": "2", "pp": "1", "cp": "1"}, top=1).found) is None


def test_a_run_on_other_gpus_is_not_its_own() -> None:
    assert own(plan(run(), {"num_gpus": "16"}, top=1).found) is None


def test_every_published_layout_is_searched_or_says_what_it_has_else() -> None:
    """Of 81 published runs all have their degrees, batch, precision and optimizer in the space: 17 have splits of their own, one a
    recomputation that no set has."""
    whys: dict[str, int] = {}
    lines = [json.loads(line) for line in (FACTS / "throughput.jsonl").read_text().splitlines()]
    for one in lines:
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"])
        base, _ = base_job(job, (job.layout.world_size,), None)
        for why in left_out(job, space_of(base, {"num_gpus": str(one["num_gpus"])})):
            whys[why] = whys.get(why, 0) + 1
    assert whys == {"its split of layers over stages": 17, "recompute moe+layernorm+core_attn": 1}
    assert len(lines) == 81
