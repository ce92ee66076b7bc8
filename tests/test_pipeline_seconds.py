"""Seconds of a pipeline: the schedule event by event."""

from __future__ import annotations

from random import Random

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.job.pipeline import build_pipeline
from megatron_memory_estimator.rank.build import build_rank, context_of
from megatron_memory_estimator.rank.declare import Declarer
from megatron_memory_estimator.throughput.machine import machine
from megatron_memory_estimator.throughput.schedule import Schedule, ends, events, pipeline_seconds
from megatron_memory_estimator.throughput.stages import chunk_times
from megatron_memory_estimator.timeline.passes import listing, passes
from megatron_memory_estimator.timeline.timeline import lanes

SCHEDULES = [
    Schedule(2, 1, 2), Schedule(4, 1, 4), Schedule(4, 2, 4), Schedule(4, 2, 6), Schedule(8, 4, 8), Schedule(2, 8, 2),
    Schedule(4, 2, 4, True), Schedule(4, 1, 4, True), Schedule(8, 2, 8, True),
]  # fmt: skip


def drawn(schedule: Schedule, random: Random, spread: float) -> list[float]:
    """A forward and a backward of every chunk, unequal."""
    found = []
    for _ in range(schedule.pp * schedule.vp):
        forward = 1 + spread * random.random()
        found += [forward, forward * (1.5 + random.random())]
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("groups", [1, 2, 5, 24])
def test_equal_chunks_leave_idle_what_the_papers_say(schedule: Schedule, groups: int) -> None:
    """arXiv 2104.04473, section 2.2: (pp - 1) / vp forwards and backwards of all chunks of a rank."""
    pp, vp, group, together = schedule
    microbatches = groups * group
    seconds = [1.0, 2.0] * (pp * vp)
    least = 3 * vp * microbatches + 3 * (pp - 1)
    found = pipeline_seconds(schedule, microbatches, seconds)
    if together or group != pp:  # a forward waits for a backward beside it; larger groups are longer to fill
        assert found >= least - 1e-9
    else:
        assert found == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_repeats_itself_is_counted(schedule: Schedule) -> None:
    """A long step is as long as all of its passes one after the other."""
    random = Random(5)
    for spread in (0.1, 1.0):
        seconds = drawn(schedule, random, spread)
        for microbatches in (3 * schedule.group, 40 * schedule.group):
            whole = max(ends(events(schedule, microbatches), seconds))
            assert pipeline_seconds(schedule, microbatches, seconds) == pytest.approx(whole, rel=5e-3)


def test_a_long_chunk_stops_all_ranks() -> None:
    """Eight ranks of equal work: chunks of 1 and 3 on every other rank, of 3 and 1 on the rest, a third longer than of 2 and 2."""
    schedule = Schedule(8, 2, 8)
    equal, unequal = ([way * one for one in work for way in (1.0, 2.0)] for work in ((2, 2) * 8, (1, 3, 3, 1) * 4))
    assert pipeline_seconds(schedule, 128, unequal) > 1.3 * pipeline_seconds(schedule, 128, equal)


def test_the_lanes_of_a_timeline_take_as_long() -> None:
    """The passes that a timeline lists, each waiting for others, are those whose seconds the step has."""
    job = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3", 256, gpu="H100", global_batch_size=512, expert_model_parallel_size=8, pipeline_model_parallel_size=4,
        pipeline_model_parallel_layout="Et*6|(t*8|)*3t*8|t*8|t*8|t*7mL",
    )  # fmt: skip
    declarer = Declarer(context_of(job))
    chunks = build_pipeline(job.model, job.layout).chunks
    ranks = [build_rank(declarer, one, job.num_microbatches, job.gpu, job.env) for one in chunks]
    times = chunk_times(machine(job.gpu), declarer, ranks)
    plan = listing(declarer.context, 2, job.num_microbatches, 1 << 20)
    assert not plan.left_out
    orders = [list(passes(plan.schedule(rank), (0, 0))) for rank in range(4)]
    last = max(lane[-1].end for lane in lanes(orders, times))
    seconds = [way for of_rank in times for one in of_rank for way in one]
    assert pipeline_seconds(Schedule(4, 2, 4), job.num_microbatches, seconds) == pytest.approx(last, rel=1e-3)
