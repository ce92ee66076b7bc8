"""The pipeline schedules, step by step, worked by hand from Megatron-LM `megatron/core/pipeline_parallel/schedules.py`."""

from __future__ import annotations

import pytest

from megatron_memory_estimator.rank.schedule import (
    Order,
    Step,
    enough_microbatches,
    every_step,
    occupancy,
    saturating_microbatches,
    warmup_steps,
)


def steps(pp: int, vp: int, rank: int, microbatches: int, group: int) -> str:
    """Steps as words: F or B, the chunk where there are several, the microbatch."""
    return " ".join(
        f"{kind}{f'{chunk}.' if vp > 1 else ''}{at}"
        for kind, chunk, at in every_step(pp, vp, rank, microbatches, group)
    )


def test_one_forward_one_backward() -> None:
    """Four stages: the first runs three forwards ahead, the last none; two microbatches fill no pipeline."""
    assert steps(4, 1, 0, 5, 4) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert steps(4, 1, 2, 4, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert steps(4, 1, 3, 3, 4) == "F0 B0 F1 B1 F2 B2"
    assert steps(4, 1, 0, 2, 4) == "F0 F1 B0 B1"


def test_interleaved() -> None:
    """Two stages of two chunks, groups of two: 2 * (2 - rank - 1) + 2 forwards ahead; backwards begin with the last chunk."""
    assert steps(2, 2, 0, 4, 2) == ("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3")
    assert steps(2, 2, 1, 4, 2) == ("F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3")


def test_a_last_group_may_be_smaller() -> None:
    """Five microbatches in groups of three: three and two."""
    assert list(Order(2, 5, 3).blocks()) == [(0, 3), (1, 3), (0, 2), (1, 2)]
    assert steps(2, 2, 1, 5, 3) == (
        "F0.0 F0.1 F0.2 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F0.3 B0.0 F0.4 B0.1 F1.3 B0.2 F1.4 B1.3 B1.4 B0.3 B0.4"
    )


@pytest.mark.parametrize(("vp", "microbatches", "group"), [(1, 5, 1), (2, 5, 3), (2, 8, 2), (3, 7, 4), (3, 12, 4)])
def test_forwards_of_a_chunk_among_the_first_steps(vp: int, microbatches: int, group: int) -> None:
    order = Order(vp, microbatches, group)
    walked = [chunk for chunk, size in order.blocks() for _ in range(size)]
    assert len(walked) == vp * microbatches
    for taken in range(len(walked) + 1):
        for chunk in range(vp):
            assert order.passed(chunk, taken) == walked[:taken].count(chunk), (chunk, taken)


@pytest.mark.parametrize(
    ("pp", "vp", "rank", "microbatches", "group"),
    [
        (4, 1, 0, 8, 4),
        (4, 1, 3, 8, 4),
        (4, 1, 1, 2, 4),
        (2, 2, 0, 4, 2),
        (2, 2, 1, 5, 3),
        (4, 3, 2, 12, 4),
        (3, 2, 0, 9, 3),
    ],
)
def test_what_is_in_flight_is_what_the_steps_leave(pp: int, vp: int, rank: int, microbatches: int, group: int) -> None:
    """Forwards less backwards of each chunk, walked one by one: the most, the most of each chunk, and bytes of every step."""
    found = occupancy(pp, vp, rank, microbatches, group)
    sizes = [10**i for i in range(vp)]
    counts, most, each, seen = [0] * vp, 0, [0] * vp, set()
    for kind, chunk, _ in every_step(pp, vp, rank, microbatches, group):
        counts[chunk] += kind == "F"
        seen.add((kind, chunk, sum(n * size for n, size in zip(counts, sizes, strict=True))))
        most, each[chunk] = max(most, sum(counts)), max(each[chunk], counts[chunk])
        counts[chunk] -= kind == "B"
    assert counts == [0] * vp
    assert (found.max_in_flight, list(found.per_chunk)) == (most, each)
    held = list(found.held(sizes, every=True))
    for step, kept in held:
        assert kept == sum(n * size for n, size in zip(found.in_flight(step), sizes, strict=True))
        assert step.in_flight == sum(found.in_flight(step))
        assert (step.direction, step.chunk, kept) in seen
    for kind in "FB":
        for chunk in range(vp):
            at = [kept for way, one, kept in seen if (way, one) == (kind, chunk)]
            assert max(kept for step, kept in held if (step.direction, step.chunk) == (kind, chunk)) == max(at)
            ends = [kept for step, kept in found.held(sizes) if (step.direction, step.chunk) == (kind, chunk)]
            assert max(ends) == max(at), "an end of a stretch has as much as any step between"


def test_overlapped_steps_name_the_backward_beside_them() -> None:
    """Two stages of two chunks: one forward more ahead (5); then each step is a forward beside a backward."""
    assert warmup_steps(2, 2, 0, 4, 2, a2a_overlap=True) == 5
    assert warmup_steps(4, 1, 1, 16, 4, a2a_overlap=True) == 3
    assert [warmup_steps(4, 1, 0, n, 4) for n in (1, 2, 3, 4, 9)] == [1, 2, 3, 3, 3]
    assert warmup_steps(4, 2, 0, 4, 4) == 8 == 4 * 2, "no more than there are"
    found = occupancy(2, 2, 0, 4, 2, True)
    assert list(found.held((0, 0), every=True)) == [
        (Step("F", 0, 1, 0), 0), (Step("F", 0, 2, 0), 0), (Step("F", 1, 3, 0), 0), (Step("F", 1, 4, 0), 0), (Step("F", 0, 5, 0), 0),
        (Step("F", 0, 6, 0, 1), 0), (Step("F", 1, 7, 1, 1), 0), (Step("F", 1, 8, 2, 0), 0),
        (Step("B", 0, 8, 3), 0), (Step("B", 1, 8, 4), 0), (Step("B", 1, 8, 5), 0), (Step("B", 0, 8, 6), 0), (Step("B", 0, 8, 7), 0),
    ]  # fmt: skip
    assert found.max_in_flight == 6


@pytest.mark.parametrize(("pp", "vp", "group"), [(1, 1, 1), (4, 1, 4), (2, 2, 2), (4, 2, 4), (4, 3, 6), (3, 4, 3)])
@pytest.mark.parametrize("overlap", [False, True])
def test_more_microbatches_change_nothing(pp: int, vp: int, group: int, overlap: bool) -> None:
    """The most in flight, of all chunks and of each, is that of a hundred groups; so few that a search does not walk long."""
    many = group * 100
    few = enough_microbatches(pp, vp, many, group, a2a_overlap=overlap)
    assert few <= saturating_microbatches(pp, vp, group) + overlap <= pp + overlap if vp == 1 else few < many
    for rank in range(pp):
        one, other = (occupancy(pp, vp, rank, count, group, overlap) for count in (few, many))
        assert (one.max_in_flight, one.per_chunk) == (other.max_in_flight, other.per_chunk)
    assert enough_microbatches(pp, vp, 1, group) == 1


def test_so_many_microbatches_are_enough() -> None:
    """1F1B: as many as stages. Interleaved: whole groups; 2 * 3 + 4 + 2 steps of 2 * 4 in a group begin two groups, and two more."""
    assert saturating_microbatches(4, 1, 4) == 4
    assert saturating_microbatches(4, 2, 4) == 4 * (2 + 2)
    assert enough_microbatches(4, 2, 1001, 4) == 16 + 1, "a rest stays"
    assert enough_microbatches(4, 2, 16, 4) == 16
    assert saturating_microbatches(3, 2, 4) == 4 * (2 + 2), "2 * 2 + 4 + 2 steps are two more than a group of 2 * 4"
    assert saturating_microbatches(2, 2, 4) == 4 * (1 + 2), "2 * 1 + 4 + 2 are one"
    assert enough_microbatches(2, 2, 1001, 5) == 5 * (1 + 2) + 1
