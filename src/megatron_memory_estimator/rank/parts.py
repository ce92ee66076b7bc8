"""The parts of a peak in bytes, without the names of its tensors: what `rows.py` adds up to, in a tenth of the time."""

from __future__ import annotations

from collections.abc import Iterable

from .boundary import pipeline_tensors, resting_tensors
from .chunks import CUTTING, ChunkPlan, Moment
from .peak import Peak
from .rank import PARTS, Rank, Row, workspace_bytes


def parts_at_peak(rank: Rank, peak: Peak) -> dict[str, int]:
    """Bytes at the peak by part; they sum to it."""
    candidate, step = peak.candidate, peak.candidate.step
    totals = dict.fromkeys(PARTS, 0)
    for state in rank.states:
        if state.since in candidate.since:
            totals[state.part] += state.nbytes
    totals["workspace"] += workspace_bytes(rank)
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
