"""Small errors planted into the engine, one at a time, break a property of some random job; and what kinds do not.

Properties compare the engine with itself. An error that changes a declaration for every job in the same way is found by facts only:
`test_facts_megatron_core.py`, `test_facts_measured.py` and the hand-worked bytes of each feature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError
from megatron_memory_estimator.device.terms import Range
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.rank.rank import workspace_bytes
from megatron_memory_estimator.tape.ops import Op
from megatron_memory_estimator.tape.tensor import Dim, MeshAxis

from .helpers import long
from .job_comparisons import EVERY, SHARED, broken
from .job_properties import Property, case_of
from .random_jobs import RandomJob, random_job

JOBS = 40
PACKAGE = "megatron_memory_estimator"
Plant = Callable[[pytest.MonkeyPatch], None]


@lru_cache(maxsize=1)
def jobs() -> tuple[RandomJob, ...]:
    """The first legal jobs of one generator."""
    random, found = Random(2026), list[RandomJob]()
    while len(found) < JOBS:
        drawn = random_job(random)
        if legal(drawn):
            found.append(drawn)
    return tuple(found)


def legal(drawn: RandomJob) -> bool:
    """Whether no rule refuses a job."""
    try:
        case_of(drawn)
    except EstimatorError:
        return False
    return True


def found_by(properties: Sequence[Property] = (*EVERY, *SHARED)) -> str:
    """The first property that a job breaks; "" where all hold."""
    return next(filter(None, (broken(case_of(drawn), properties) for drawn in jobs())), "").split(":")[0]


def around(module: str, name: str, change: Callable[..., Any]) -> Plant:
    """Puts a function that gets the original first in its place."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        path = f"{PACKAGE}.{module}"
        owner = __import__(path, fromlist=["x"])
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))

    return plant


def dim(c: Context, name: str, size: int, *axes: MeshAxis) -> Dim:
    """The feed-forward width sharded over cp instead of tp."""
    axes = tuple[MeshAxis, ...]("cp" if name == "ffn_hidden_size" and axis == "tp" else axis for axis in axes)
    ways = 1
    for axis in axes:
        ways = ways * getattr(c.layout, axis)
    return Dim(name, size, axes, ways)


def in_place(name: str, value: Any) -> Plant:
    """Another member of what declarations see."""
    return lambda patch: patch.setattr(Context, name, value)


def fewer_in_flight(original: Callable[..., Any], pp: int, vp: int, rank: int, *rest: Any) -> Any:
    found = original(pp, vp, rank, *rest)
    if vp > 1 or not found.before:
        return found
    return dataclasses.replace(found, before=found.before - 1, max_in_flight=found.max_in_flight - 1)


def without_workspaces(original: Callable[..., Any], rank: Any) -> Any:
    found = original(rank)
    return dataclasses.replace(found, steady=found.steady - workspace_bytes(rank))


def last_phase_turned(original: Callable[..., Any], *args: Any) -> Any:
    found = original(*args)
    return found._replace(low=found.high + 1)


def state_short(original: Callable[..., Any], part: str, *rest: Any) -> Any:
    found = original(part, *rest)
    return found._replace(nbytes=found.nbytes - 2) if part == "weights" else found


def without_the_first(original: Callable[..., Any], item: Any) -> Any:
    return original(item)[1:]


def every_write(original: Callable[..., Any], item: Any) -> Any:
    kept = original(item)
    return (*kept, *(t for op in item.ops if isinstance(op, Op) for t in op.writes))


def unsharded(original: Callable[..., Any], c: Context, buffer: Any) -> Any:
    return original(c, buffer._replace(owned=buffer.numel))


def one_more(original: Callable[..., Any], *args: Any, **words: Any) -> Any:
    numel, unpadded = original(*args, **words)
    return numel + 1, unpadded


def turned_round(original: Callable[..., Any], device: Range, expandable_high: int, size: int) -> Any:
    return original(device, 2 * size - expandable_high, size)


def nothing(original: Callable[..., Any], *args: Any) -> dict[str, Any]:
    return {}


def without_a_row(original: Callable[..., Any], *args: Any) -> Iterator[Any]:
    return iter([row for row in original(*args) if not row.name.startswith("main_grad")])


def without(part: str) -> Callable[..., Any]:
    return lambda original, *args: {**original(*args), part: 0}


FOUND: dict[tuple[str, str], Plant] = {
    ("a weight two bytes short", "rows_are_their_shapes"): around("states.state", "_state", state_short),
    ("the gradients have no row", "rows_sum"): around("rank.rows", "state_rows", without_a_row),
    ("a buffer one element too long", "buffers_hold_the_parameters"): around("states.buffers", "padded_buffer", one_more),
    ("steady without workspaces", "rows_sum"): around("estimator", "find_peak", without_workspaces),
    ("one microbatch in flight too few", "in_flight_falls_along_the_pipeline"): around("rank.build", "occupancy", fewer_in_flight),
    ("rows of uneven routing not counted", "more_rows_keep_more"): in_place("received_rows", property(lambda c: c.sent_rows)),
    ("a width sharded by the wrong axis", "shards_make_the_model"): in_place("dim", dim),
    ("sequence sharded by dp", "kept_bytes_scale"): in_place("seq", property(lambda c: c.dim("seq", c.training.seq_length, "cp", "dp"))),
    ("load low above high", "figures_are_ordered"): around("device.phases", "load", last_phase_turned),
    ("a checkpoint forgets an input", "what_ops_save_is_kept"): around("tape.simulate", "inputs", without_the_first),
    ("a checkpoint keeps what it makes", "more_recomputation_keeps_no_more"): around("tape.simulate", "inputs", every_write),
    ("optimizer state of all shards", "more_sharding_costs_no_state"): around("states.state", "optimizer_tensors", unsharded),
    ("a verdict turned round", "verdict_is_monotone"): around("device.verdict", "judged", turned_round),
    ("a breakdown without its workspaces", "rows_sum"): around("estimator", "parts_at_peak", without("workspace")),
    ("first step above the peak", "figures_are_ordered"): around(
        "estimator", "find_peak", lambda original, rank: (p := original(rank)) and dataclasses.replace(p, first_step=p.nbytes + 1)
    ),
    ("a note that depends on the order of settings", "document_is_strict"): around(
        "inputs.resolve", "without_effect", lambda original, model, training, given: (next(iter(given)),)
    ),
    ("a bound counts a pass too much", "bounds_are_below"): around(
        "planner.bounds", "warmup_steps", lambda original, *a, **k: original(*a, **k) + 3
    ),
    ("launch arguments without what has none", "launch_arguments_give_the_same_bytes"): around("planner.launch", "differing", nothing),
    ("compare reads another sequence length", "compare_says_what_estimate_says"): around(
        "inputs.layouts", "parse_layout_words", lambda original, text: {**original(text), "seq_length": 64}
    ),
}  # fmt: skip
"""Errors, and a property that finds each."""


@pytest.mark.parametrize(("name", "finder"), FOUND)
def test_a_planted_error_breaks_a_property(name: str, finder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs()
    FOUND[name, finder](monkeypatch)
    assert found_by([one for one in (*EVERY, *SHARED) if one.__name__ == finder]) == finder


def test_every_property_finds_an_error_but_that_of_routing() -> None:
    """More rows are found before the range of routing is, which they are the reason of."""
    assert {one.__name__ for one in (*EVERY, *SHARED)} - {finder for _, finder in FOUND} == {"routing_is_ordered"}


@long
def test_the_engine_as_it_is_breaks_no_property() -> None:
    assert not found_by()


def half_moments(original: Callable[..., Any], *args: Any) -> Any:
    return [one._replace(dtype="bf16") if one.name == "exp_avg_sq" else one for one in original(*args)]


FACTS_FIND: dict[str, Plant] = {
    "a moment in bf16": around("states.state", "optimizer_tensors", half_moments),
    "buckets padded to 64 elements": lambda patch: patch.setattr(f"{PACKAGE}.states.padding.BUCKET_MULTIPLE", 64),
    "one warmup step of the interleaved schedule too few": around(
        "rank.schedule", "warmup_steps", lambda original, pp, vp, *a, **k: original(pp, vp, *a, **k) - (vp > 1)
    ),
    "a norm that does not keep its statistics": around("modules.norm", "statistics", lambda original, *args: ()),
}
"""Errors that look like another model, optimizer or schedule: only facts find them."""


@long
@pytest.mark.parametrize("name", FACTS_FIND)
def test_an_error_of_every_job_alike_breaks_no_property(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs()
    FACTS_FIND[name](monkeypatch)
    assert not found_by()
