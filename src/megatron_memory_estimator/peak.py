"""The peak of a rank: the maximum over every simulated moment of a training step.

A moment is an event of a unit (an op of a forward, a recomputation or a backward) while the schedule holds a number of
microbatches of each chunk, or one of the events outside the schedule (gradient finalisation, optimizer step). Its bytes
are persistent state and workspaces, what in-flight microbatches keep, boundary tensors of the pipeline, and what the
running chunk has alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .activations import ChunkPlan, Moment, boundary
from .context import Context
from .schedule import Occupancy, Step
from .states import Buffer, State
from .tape import Live, alive_at
from .tensor import Param, Tensor
from .workspaces import Workspace

PARTS = ("weights", "gradients", "optimizer", "activations", "transient", "pipeline", "workspace")


class Row(NamedTuple):
    """A tensor (or `copies` equal ones) alive at a moment: a row of `explain`."""

    part: str
    name: str
    formula: str
    local_shape: tuple[int, ...]
    dtype: str
    copies: int
    nbytes: int
    why: str


@dataclass(frozen=True)
class Rank:
    """Everything that decides the memory of one pipeline rank."""

    context: Context
    pp_rank: int
    plans: tuple[ChunkPlan, ...]
    schedule: Occupancy
    buffers: tuple[Buffer, ...]
    states: tuple[State, ...]
    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True)
class Candidate:
    """A moment of the step with its bytes alive. `step` is None for events outside the schedule."""

    label: str
    nbytes: int
    step: Step | None = None
    moment: Moment | None = None
    extras: tuple[Row, ...] = ()


def state_bytes(rank: Rank, *since: str) -> int:
    """Bytes of the state tensors that exist since one of the given moments."""
    return sum(s.nbytes for s in rank.states if s.since in since)


def workspace_bytes(rank: Rank) -> int:
    """Bytes of all persistent scratch."""
    return sum(w.nbytes for w in rank.workspaces)


def pipeline_tensors(rank: Rank, kind: str) -> tuple[Tensor, ...]:
    """Boundary tensors alive outside the layers during a forward ("F") or backward ("B").

    1F1B: the last input gradient stays referenced until the next one; during a forward the graph of the microbatch
    before also pins its input, and the output gradient received last is still there. Interleaved with overlapped
    communication: one receive-ahead buffer for each direction and the input gradient being sent.
    Source: Megatron-LM `megatron/core/pipeline_parallel/schedules.py`.
    """
    c, pp = rank.context, rank.context.layout.pp
    if pp == 1:
        return ()
    if len(rank.plans) > 1:
        names = ("input_tensor_grad being sent", "output_tensor_grad received ahead", "input_tensor received ahead")
        return tuple(boundary(c, f"pipeline.{name}") for name in names)
    found: list[Tensor] = []
    if rank.pp_rank > 0:
        found.append(boundary(c, "pipeline.input_tensor_grad"))
        if kind == "F":
            found.append(boundary(c, "pipeline.input_tensor of the microbatch before"))
    if kind == "F" and rank.pp_rank < pp - 1:
        found.append(boundary(c, "pipeline.output_tensor_grad"))
    return tuple(found)


def resting_tensors(rank: Rank) -> tuple[Tensor, ...]:
    """Boundary tensors alive between two steps: each chunk's last received input and its gradient."""
    c = rank.context
    found: list[Tensor] = []
    for plan in rank.plans:
        if not plan.chunk.embedding:
            name = f"pipeline.chunk {plan.chunk.vp_stage}"
            found += [boundary(c, f"{name} input_tensor"), boundary(c, f"{name} input_tensor.grad")]
    return tuple(found) if c.layout.pp > 1 else ()


def scheduled(rank: Rank) -> Iterator[Candidate]:
    """The largest moment of each distinct step of the schedule; bytes without state and workspaces."""
    best: dict[tuple[str, int], Moment] = {}
    for index, plan in enumerate(rank.plans):
        for moment in plan.moments():
            key = (moment.kind, index)
            if key not in best or moment.nbytes > best[key].nbytes:
                best[key] = moment
    saved = [plan.saved_bytes for plan in rank.plans]
    pipe = {kind: sum(t.nbytes for t in pipeline_tensors(rank, kind)) for kind in "FB"}
    for step in rank.schedule.steps:
        found = best.get((step.kind, step.chunk))
        if found is None:
            continue
        others = sum(n * size for n, size in zip(step.in_flight, saved, strict=True)) - saved[step.chunk]
        label = _label(rank.plans[step.chunk], found, step, chunks=len(rank.plans))
        yield Candidate(label, others + pipe[step.kind] + found.nbytes, step, found)


def _label(plan: ChunkPlan, moment: Moment, step: Step, *, chunks: int) -> str:
    run = plan.runs[moment.run]
    event = (run.trace.forward + run.trace.backward)[moment.event]
    where = f" of layer {run.first_layer + run.copies - 1}" if run.first_layer >= 0 else ""
    chunk = f", chunk {step.chunk}" if chunks > 1 else ""
    return f"{event.phase} of {event.op}{where}{chunk}, {sum(step.in_flight)} in flight"


def finalising(rank: Rank) -> Candidate:
    """Gradients of tensors that are replicated over tp are flattened into one copy for their all-reduce.

    Source: Megatron-LM `megatron/core/distributed/finalize_model_grads.py`.
    """
    c = rank.context
    extras: tuple[Row, ...] = ()
    if c.sp_many:
        copies = [(p, n) for plan in rank.plans for p, n in plan.params if p.split == "replicated"]
        numel = sum(p.numel * n for p, n in copies)
        size = 4 if c.training.grad_dtype == "fp32" else 2
        extras = (
            Row("transient", "flattened gradients of replicated parameters", "[numel]", (numel,),
                c.training.grad_dtype, 1, numel * size, "all-reduced over tp after the last backward"),
        )  # fmt: skip
    rest = sum(t.nbytes for t in resting_tensors(rank))
    return Candidate("finalize_model_grads", rest + sum(r.nbytes for r in extras), extras=extras)


def optimizer_step(rank: Rank) -> Candidate:
    """The optimizer step: state that exists only during it, or until gradients are zeroed."""
    extras = tuple(
        Row("transient" if s.since == "optimizer" else "optimizer", s.name, "[numel]", (s.numel,), s.dtype, 1, s.nbytes,
            "exists only in the optimizer step" if s.since == "optimizer" else "until gradients are zeroed")
        for s in rank.states
        if s.since in ("step", "optimizer")
    )  # fmt: skip
    rest = sum(t.nbytes for t in resting_tensors(rank))
    return Candidate("optimizer step", rest + sum(r.nbytes for r in extras), extras=extras)


@dataclass(frozen=True)
class Peak:
    """The peaks of a rank in bytes, and the moment of the highest one."""

    candidate: Candidate
    persistent: int
    first_step: int
    steady: int

    @property
    def nbytes(self) -> int:
        """Peak allocated bytes."""
        return self.persistent + self.candidate.nbytes


def find_peak(rank: Rank) -> Peak:
    """The peak of a training step once moments exist, the peak of the first step, and the bytes between two steps."""
    scratch = workspace_bytes(rank)
    setup = state_bytes(rank, "setup") + scratch
    persistent = setup + state_bytes(rank, "first step")
    candidates = [*scheduled(rank), finalising(rank), optimizer_step(rank)]
    top = max(candidates, key=lambda candidate: candidate.nbytes)
    before_step = max(candidate.nbytes for candidate in candidates[:-1])
    first = max(setup + before_step, persistent + candidates[-1].nbytes)
    rest = sum(t.nbytes for t in resting_tensors(rank))
    return Peak(top, persistent, first, persistent + state_bytes(rank, "step") + rest)


# -- the tensors behind a moment ---------------------------------------------------------------------------------------


def state_rows(rank: Rank, *, steady: bool = False) -> Iterator[Row]:
    """State and workspaces that are alive at every moment (and, between steps, those that live until zero_grad)."""
    since = {"setup", "first step"} | ({"step"} if steady else set())
    for s in rank.states:
        if s.since in since:
            yield Row(s.part, s.name, "[numel]", (s.numel,), s.dtype, 1, s.nbytes, s.why)
    for w in rank.workspaces:
        formula = "[" + ", ".join(map(str, w.shape)) + "]" if w.shape else "(sized by the library)"
        shape = tuple(dim.local for dim in w.shape)
        yield Row("workspace", w.name, formula, shape, w.dtype, 1, w.nbytes, w.source)


def _row(part: str, prefix: str, live: Live, count: int = 1) -> Row:
    t = live.tensor
    return Row(part, prefix + t.name, t.formula, t.local_shape, t.dtype, count, t.nbytes * count, live.why)


def _boundary_rows(tensors: tuple[Tensor, ...], why: str) -> Iterator[Row]:
    for t in tensors:
        yield Row("pipeline", t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, why)


def saved_rows(plan: ChunkPlan, microbatches: int, *, upto: int | None = None) -> Iterator[Row]:
    """What a chunk keeps for backward, times the microbatches in flight; `upto` stops before the last copy of a run."""
    chunk = f"chunk {plan.chunk.vp_stage}." if plan.chunk.vp_stage else ""
    for index, run in enumerate(plan.runs):
        if upto is not None and index > upto:
            break
        copies = run.copies - (1 if index == upto else 0)
        if not copies or not microbatches:
            continue
        prefix = chunk + _unit_prefix(plan, index)
        for live in run.trace.saved:
            yield _row("activations", prefix, live, copies * microbatches)


def _unit_prefix(plan: ChunkPlan, index: int) -> str:
    run = plan.runs[index]
    if run.first_layer < 0:
        return f"{run.unit.name}."
    last = run.first_layer + run.copies - 1
    return f"layers.{run.first_layer}." if last == run.first_layer else f"layers.{run.first_layer}-{last}."


def rows_at_peak(rank: Rank, peak: Peak) -> list[Row]:
    """Every tensor alive at the peak; the bytes add up to it exactly."""
    rows = list(state_rows(rank))
    candidate = peak.candidate
    if candidate.step is None or candidate.moment is None:
        rows.extend(_boundary_rows(resting_tensors(rank), "kept between steps"))
        return rows + list(candidate.extras)
    step, moment = candidate.step, candidate.moment
    rows.extend(_boundary_rows(pipeline_tensors(rank, step.kind), "boundary of the pipeline stage"))
    for index, plan in enumerate(rank.plans):
        rows.extend(saved_rows(plan, step.in_flight[index] - int(index == step.chunk)))
    plan = rank.plans[step.chunk]
    rows.extend(saved_rows(plan, 1, upto=moment.run))
    if step.kind == "F":
        for t in plan.batch:
            rows.append(_row("transient", "", Live(t, "input of the running microbatch")))
    run = plan.runs[moment.run]
    running = f"layers.{run.first_layer + run.copies - 1}." if run.first_layer >= 0 else f"{run.unit.name}."
    for live in alive_at(run.unit, moment.event):
        part = "activations" if live.why.startswith("saved") else "transient"
        rows.append(_row(part, running, live))
    return merged(rows)


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
    return [*state_rows(rank, steady=True), *_boundary_rows(resting_tensors(rank), "kept between steps")]


def breakdown(rows: list[Row]) -> dict[str, int]:
    """Bytes by part; they sum to the moment's bytes."""
    totals = dict.fromkeys(PARTS, 0)
    for row in rows:
        totals[row.part] += row.nbytes
    return totals


def parameters(rank: Rank) -> tuple[int, int]:
    """Parameters that one GPU of the rank holds: (dense, expert), expert meaning expert data-parallel buffers."""

    def count(expert: bool) -> int:
        return sum(p.numel * n for plan in rank.plans for p, n in plan.params if p.expert_buffer == expert)

    return count(False), count(True)


def gemm_weights(rank: Rank) -> list[Param]:
    """Weights of linears, for reports."""
    return [p for plan in rank.plans for p, _ in plan.params if p.gemm]
