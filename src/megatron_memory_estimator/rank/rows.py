"""The named tensors behind a moment: what `explain` lists, and the parts of a peak.

The parts of a peak in bytes, without the names of its tensors: what `rows.py` adds up to, in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..states.kept import Since
from ..tape.events import Live
from ..tape.tensor import Tensor
from .boundary import pipeline_tensors, resting_tensors
from .chunks import CUTTING, ChunkPlan, Moment, Run
from .declare import TABLE
from .peak import Peak
from .rank import PARTS, Candidate, Rank, Row
from .schedule import Direction, Occupancy

AT_REST: tuple[Since, ...] = ("setup", "first step", "step")
"""Since when what is alive between two steps exists."""


def state_rows(rank: Rank, since: Collection[Since]) -> Iterator[Row]:
    """State that exists since one of the given moments, and workspaces."""
    for s in rank.states:
        if s.since in since:
            yield Row(s.part, s.name, "[numel]", (s.numel,), s.dtype, 1, s.nbytes, s.why)
    for w in rank.workspaces:
        formula = "[" + ", ".join(map(str, w.shape)) + "]" if w.shape else "(sized by the library)"
        shape = tuple(dim.local for dim in w.shape)
        yield Row(w.part, w.name, formula, shape, w.dtype, 1, w.nbytes, w.source)


def row_of(part: str, t: Tensor, why: str) -> Row:
    """The row of one tensor."""
    return Row(part, t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, why)


def why(live: Live) -> str:
    """The sentence that says why a tensor is alive."""
    if live.role == "saved":
        return "saved for the backward of " + ", ".join(saver.name for saver in live.saved_by)
    return {
        "gradient": "gradient on its way back",
        "scratch": f"scratch of {live.op} ({live.phase})",
        "in use": f"in use by {live.op}",
        "handed on": "handed to the next layer",
    }[live.role]


def boundary_rows(tensors: tuple[Tensor, ...], why: str) -> Iterator[Row]:
    """Rows of tensors at the boundaries of a stage."""
    return (row_of("pipeline", t, why) for t in tensors)


def saved_rows(
    plan: ChunkPlan, microbatches: int, known: dict[int, list[Row]], *, upto: int | None = None, copy: int = -1
) -> Iterator[Row]:
    """What a chunk keeps for backward, times the microbatches in flight; `upto` stops before a copy of a run (the last).

    `known` holds the rows of one copy of each unit, so that equal units of many chunks are written once.
    """
    if upto is None and microbatches:
        yield from (row._replace(copies=microbatches, nbytes=row.nbytes * microbatches) for row in held_rows(plan))
    for index, run in enumerate(plan.runs):
        if upto is not None and index > upto:
            break
        copies = run.copies
        if index == upto:
            copies = run.copies - 1 if copy < 0 else copy
        if not copies or not microbatches:
            continue
        prefix = _chunk_prefix(plan) + _unit_prefix(plan, index)
        if id(run.trace) not in known:
            known[id(run.trace)] = [row_of("activations", live.tensor, why(live)) for live in run.trace.saved]
        count = copies * microbatches
        for row in known[id(run.trace)]:
            yield row._replace(name=prefix + row.name, copies=count, nbytes=row.nbytes * count)


def _chunk_prefix(plan: ChunkPlan) -> str:
    return f"chunk {plan.chunk.vp_stage}." if plan.chunk.vp_stage else ""


def _unit_prefix(plan: ChunkPlan, index: int) -> str:
    run = plan.runs[index]
    return f"layers.{run.layers()}." if run.first_layer >= 0 else ""


def rows_at_peak(rank: Rank, peak: Peak) -> list[Row]:
    """Every tensor alive at the peak; the bytes add up to it exactly."""
    return rows_at(rank, peak.candidate, rank.schedule)


def rows_at(rank: Rank, candidate: Candidate, schedule: Occupancy) -> list[Row]:
    """Every tensor alive at a moment whose step is one of a schedule of the rank."""
    rows = list(state_rows(rank, candidate.since))
    step = candidate.step
    if candidate.capture:
        return merged(rows + list(candidate.extras))
    if step is None:
        rows.extend(boundary_rows(resting_tensors(rank), "kept between steps"))
        return rows + list(candidate.extras)
    rows.extend(boundary_rows(pipeline_tensors(rank, step.direction), "boundary of the pipeline stage"))
    known: dict[int, list[Row]] = {}
    for index, (plan, count) in enumerate(zip(rank.plans, schedule.in_flight(step), strict=True)):
        rows.extend(saved_rows(plan, count - candidate.apart.count(index), known))
    for chunk, moment in candidate.running:
        rows.extend(running_rows(rank.plans[chunk], moment, known, combined=step.beside >= 0))
    return merged(rows)


def running_rows(plan: ChunkPlan, moment: Moment, known: dict[int, list[Row]], *, combined: bool) -> Iterator[Row]:
    """What the microbatch of a running chunk has alive; its inputs only in the forward, unless two run at once, or layers keep them."""
    if moment.run == CUTTING:
        yield from (*uncut_rows(plan), *input_rows(plan), *held_rows(plan))
        return
    yield from saved_rows(plan, 1, known, upto=moment.run, copy=moment.copy)
    if moment.direction == "F" or combined:
        yield from input_rows(plan)
    if moment.direction == "F" or combined or plan.inputs_at("B", moment.run):
        yield from held_rows(plan)
    run = plan.runs[moment.run]
    if moment.direction == "B":
        yield from left_rows(plan, moment.run, moment.copy)
    waits = combined and moment.direction == "B" and moment.event == len(run.trace.forward)
    if not waits:
        yield from beside_rows(run, moment.direction)
    prefix = layer_prefix(run, run.copies - 1 if moment.copy < 0 else moment.copy)
    key = "alive", moment.run, moment.event
    if key not in plan.extremes:
        found = run.alive(moment.event)
        plan.extremes[key] = list(map(live_row, found))
    yield from (row._replace(name=prefix + row.name) for row in plan.extremes[key])


def held_rows(plan: ChunkPlan) -> Iterator[Row]:
    """Input tensors that the layers of a chunk keep for backward."""
    found = (row_of("activations", t, "kept until the backward of its microbatch") for t in plan.held)
    return (row._replace(name=_chunk_prefix(plan) + row.name) for row in found)


def input_rows(plan: ChunkPlan) -> Iterator[Row]:
    """Input tensors of the microbatch that a chunk runs forward, but for those that its layers keep."""
    held = [t.name for t in plan.held]
    return (row_of("transient", t, "input of the running microbatch") for t in plan.batch if t.name not in held)


def uncut_rows(plan: ChunkPlan) -> Iterator[Row]:
    """What is alive beside the inputs of a microbatch while they are cut along cp."""
    return (row_of("transient", t, "until the rank's part is copied out of it") for t in plan.uncut)


def left_rows(plan: ChunkPlan, run: int, copy: int) -> Iterator[Row]:
    """What checkpoints around routers leave behind while a copy of a run runs backward (`boundary.leaves_of_checkpoints`)."""
    if plan.leaf is not None:
        one = plan.leaf._replace(name=f"chunk {plan.chunk.vp_stage} recomputed MoE layers' {plan.leaf.name}")
        row = row_of("pipeline", one, "the dispatcher refers to the router's graph until the next forward")
        yield from (row for _ in range(plan.behind(run, copy)))
        if plan.received(run, copy):
            grad = plan.leaf._replace(name=f"pipeline.chunk {plan.chunk.vp_stage} output_tensor_grad")
            yield row_of("pipeline", grad, "held until the stage's backward is over")


def beside_rows(run: Run, direction: Direction) -> Iterator[Row]:
    """Tensors of no microbatch while a copy of a unit runs."""
    for t in run.beside[0 if direction == "F" else 1]:
        why = "the embedding's is added to it" if t.name.startswith(TABLE) else "whole while its unit runs"
        yield row_of("transient", t, why)
    yield from (row_of("transient", t, "on its way") for t in run.moving)


def live_row(live: Live) -> Row:
    """The row of a unit's tensor at a moment."""
    return row_of("activations" if live.role == "saved" else "transient", live.tensor, why(live))


def layer_prefix(run: Run, copy: int) -> str:
    """What the tensors of a copy of a unit are called behind; empty outside the decoder."""
    return f"layers.{run.layers(copy)}." if run.first_layer >= 0 else ""


def merged(rows: list[Row]) -> list[Row]:
    """Equal tensors of several microbatches as one row."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.part, row.name, row.local_shape, row.dtype, row.why)
        known = found.get(key)
        if known is not None:
            row = known._replace(copies=known.copies + row.copies, nbytes=known.nbytes + row.nbytes)
        found[key] = row
    return list(found.values())


def rows_at_rest(rank: Rank) -> list[Row]:
    """Every tensor alive between two steps; the bytes add up to the steady figure exactly."""
    return [
        *state_rows(rank, AT_REST),
        *boundary_rows(resting_tensors(rank), "kept between steps"),
    ]


def breakdown(rows: list[Row]) -> dict[str, int]:
    """Bytes by part; they sum to the moment's bytes."""
    totals = dict.fromkeys(PARTS, 0)
    for row in rows:
        totals[row.part] += row.nbytes
    return totals


def parts_at_peak(rank: Rank, peak: Peak) -> dict[str, int]:
    """Bytes at the peak by part; they sum to it."""
    candidate, step = peak.candidate, peak.candidate.step
    totals = dict.fromkeys(PARTS, 0)
    for state in rank.states:
        if state.since in candidate.since:
            totals[state.part] += state.nbytes
    for workspace in rank.workspaces:
        totals[workspace.part] += workspace.nbytes
    _add(totals, candidate.extras if candidate.capture or step is None else ())
    if candidate.capture:
        return totals
    boundary = resting_tensors(rank) if step is None else pipeline_tensors(rank, step.direction)
    totals["pipeline"] += sum(t.nbytes for t in boundary)
    if step is None:
        return totals
    for index, (plan, count) in enumerate(zip(rank.plans, rank.schedule.in_flight(step), strict=True)):
        totals["activations"] += plan.saved_bytes * (count - candidate.apart.count(index))
    for chunk, moment in candidate.running:
        _add_running(totals, rank.plans[chunk], moment, combined=step.beside >= 0)
    return totals


def _add(totals: dict[str, int], rows: Iterable[Row]) -> None:
    for row in rows:
        totals[row.part] += row.nbytes


def _add_running(totals: dict[str, int], plan: ChunkPlan, moment: Moment, *, combined: bool) -> None:
    """What the microbatch of a running chunk has alive, as `rows.running_rows` lists it."""
    if moment.run == CUTTING:
        totals["transient"] += moment.nbytes - plan.held_bytes
        totals["activations"] += plan.held_bytes
        return
    run = plan.runs[moment.run]
    copy = run.copies - 1 if moment.copy < 0 else moment.copy
    totals["activations"] += sum(one.trace.saved_bytes * one.copies for one in plan.runs[: moment.run])
    totals["activations"] += run.trace.saved_bytes * copy
    totals["pipeline"] += plan.left_bytes(moment.direction, moment.run, moment.copy)
    if moment.direction == "F" or combined:
        totals["transient"] += plan.batch_bytes - plan.held_bytes
        totals["activations"] += plan.held_bytes
    else:
        totals["activations"] += sum(t.nbytes for t in plan.inputs_at("B", moment.run))
    waits = combined and moment.direction == "B" and moment.event == len(run.trace.forward)
    if not waits:
        totals["transient"] += run.beside_bytes("F" if moment.direction == "F" else "B")
    key = "parts", moment.run, moment.event
    if key not in plan.extremes:
        found = run.alive(moment.event)
        plan.extremes[key] = (
            sum(live.tensor.nbytes for live in found if live.role == "saved"),
            sum(live.tensor.nbytes for live in found if live.role != "saved"),
        )
    saved, other = plan.extremes[key]
    totals["activations"] += saved
    totals["transient"] += other
