"""The peak of a rank: the maximum over every simulated moment of a training step.

A moment is an event of a unit (an op of a forward, a recomputation or a backward) while the schedule holds a number of
microbatches of each chunk, or one of the events outside the schedule (gradient finalisation, optimizer step). Its bytes
are persistent state and workspaces, what in-flight microbatches keep, boundary tensors of the pipeline, and what the
running chunk has alive.

All-to-all overlap: the forward of one microbatch and the backward of another, layer by layer at the same time.

Phases: the embedding; the backward of what follows the layers; forward layer i beside backward layer n - 1 - i; the forward of
what follows the layers; last, the backward of the embedding. Within a pair of layers the compute stream alternates: attention
forward, experts backward, experts forward, attention backward; while one runs the other waits. Both keep their inputs.

Source: Megatron-LM `megatron/core/models/common/model_chunk_schedule_plan.py` (TransformerModelChunkSchedulePlan.run) and
`megatron/core/pipeline_parallel/combined_1f1b.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import zip_longest
from typing import Literal, NamedTuple, get_args

from ..dataclass import dataclass
from ..features.offload import offloaded
from ..tape.events import WAITING
from ..tape.ops import EVERYTHING, Part
from ..tape.simulate import trace
from ..tape.tensor import DTYPE_BYTES, largest, smallest
from .boundary import deferred_wgrads, pipeline_tensors, resting_tensors
from .captures import captured_later, capturing, graph_ends, pool
from .chunks import CUTTING, ChunkPlan, Moment, Run
from .rank import Candidate, Rank, Row, state_bytes, workspace_bytes
from .schedule import Direction, Step

Closing = Literal["drain", "finalize", "optimizer"]
"""What runs behind the passes of a step, by name."""


def scheduled(rank: Rank) -> Iterator[Candidate]:
    """The largest moments of the steps of the schedule; bytes without state and workspaces. Those below one before it are left out."""
    saved = [plan.saved_bytes for plan in rank.plans]
    pipe = {way: sum(t.nbytes for t in pipeline_tensors(rank, way)) for way in get_args(Direction)}
    known: dict[tuple[str, int, int], Running | None] = {}
    highest = -1
    for step, kept in rank.schedule.held(saved):
        key = step.direction, step.chunk, step.beside
        if key not in known:
            known[key] = max(running_in(rank, step, saved), key=lambda one: one.nbytes, default=None)
        running = known[key]
        if running is None or (total := kept + running.nbytes + pipe[step.direction]) <= highest:
            continue
        highest = total
        yield Candidate("", total, step, running.moments, running.apart)


class Running(NamedTuple):
    """Moments of the microbatches that run, their bytes beyond what is kept in flight, and the chunks that do not keep everything."""

    nbytes: int
    moments: tuple[tuple[int, Moment], ...]
    apart: tuple[int, ...]


def running_in(rank: Rank, step: Step, saved: list[int]) -> Iterator[Running]:
    """Moments that may run in a step: the largest of its chunk, or a forward beside a backward, whatever is in flight."""
    if step.beside < 0:
        top = rank.plans[step.chunk].tops.get(step.direction)
        if top is not None:
            yield Running(top.nbytes - saved[step.chunk], ((step.chunk, top),), (step.chunk,))
        return
    for forward, backward, done in combined(rank.plans[step.chunk], rank.plans[step.beside]):
        apart = (*(() if done else (step.chunk,)), step.beside)
        moments = tuple((i, at) for i, at in ((step.chunk, forward), (step.beside, backward)) if at)
        if moments:
            yield Running(sum(at.nbytes for _, at in moments) - sum(saved[i] for i in apart), moments, apart)


def label_of(rank: Rank, step: Step, running: tuple[tuple[int, Moment], ...]) -> str:
    """What runs at the largest moment of a step, and how many microbatches are in flight where there are several."""
    found = []
    for index, moment in running:
        chunk = f", chunk {index}" if len(rank.plans) > 1 else ""
        if moment.run == CUTTING:
            found.append(f"get_batch_on_this_cp_rank{chunk}")
            continue
        run = rank.plans[index].runs[moment.run]
        event = (run.trace.forward + run.trace.backward)[moment.event]
        copy = run.copies - 1 if moment.copy < 0 else moment.copy
        if event.op == WAITING:
            unit = f"layer {run.layers(copy)}" if run.first_layer >= 0 else run.unit.name
            found.append(f"{unit}, which waits for its backward{chunk}")
            continue
        found.append(f"{event.phase} of {run.place(event.op, copy)}{chunk}")
    several = f", {step.in_flight} microbatches in flight" if step.in_flight > 1 else ""
    return f"{' beside '.join(found)}{several}"


def draining(rank: Rank) -> Candidate:
    """The deferred weight gradients, one after the other; nothing of any microbatch is left but what they need.

    Source: Megatron-LM `megatron/core/utils.py` (drain_embedding_wgrad_compute).
    """
    kept = (*resting_tensors(rank), *deferred_wgrads(rank, rank.num_microbatches))
    extras = tuple(
        Row("pipeline", t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, "waits for its weight gradient")
        for t in kept[len(resting_tensors(rank)) :]
    )
    return Candidate("drain_embedding_wgrad_compute", sum(t.nbytes for t in kept), extras=extras)


def flattened_gradients(rank: Rank) -> tuple[Row, ...]:
    """One copy of the gradients of all trained tensors that are replicated over tp, with sequence parallelism."""
    c = rank.context
    if not c.sp_many:
        return ()
    copies = [(p, n) for plan in rank.plans for p, n in plan.params if p.split == "replicated" and not p.frozen]
    numel = sum(p.numel * n for p, n in copies)
    size = DTYPE_BYTES[c.training.grad_dtype]
    row = Row("transient", "flattened gradients of replicated parameters", "[numel]", (numel,), c.training.grad_dtype, 1,
              numel * size, "all-reduced over tp after the last backward")  # fmt: skip
    return (row,)


def finalising(rank: Rank, rest: int) -> Candidate:
    """Gradients of tensors that are replicated over tp are flattened into one copy for their all-reduce; `rest` stays between steps.

    Source: Megatron-LM `megatron/core/distributed/finalize_model_grads.py`.
    """
    extras = flattened_gradients(rank)
    return Candidate("finalize_model_grads", rest + sum(r.nbytes for r in extras), extras=extras)


def optimizer_step(rank: Rank, rest: int) -> Candidate:
    """The optimizer step: state that exists only during it, or until gradients are zeroed."""
    extras = tuple(
        Row("transient" if s.of_step else "optimizer", s.name, "[numel]", (s.numel,), s.dtype, 1, s.nbytes,
            "exists only in the optimizer step" if s.of_step else "until gradients are zeroed")
        for s in rank.states
        if s.since in ("step", "optimizer")
    )  # fmt: skip
    return Candidate("optimizer step", rest + sum(r.nbytes for r in extras), extras=extras)


@dataclass(frozen=True)
class Peak:
    """The peaks of a rank in bytes, and the moment of the highest one."""

    candidate: Candidate
    persistent: int
    first_step: int
    steady: int
    beside_the_passes: int = 0
    """The smaller one of what the passes and what the optimizer step have alive beside the state: what a whole-iteration CUDA graph,
    whose pool keeps the passes', adds to the larger one."""

    @property
    def nbytes(self) -> int:
        """Peak allocated bytes."""
        return self.persistent + self.candidate.nbytes


def closing(rank: Rank) -> dict[Closing, Candidate]:
    """What runs behind the passes of a step, in order."""
    rest = sum(t.nbytes for t in resting_tensors(rank))
    drain: dict[Closing, Candidate] = {"drain": draining(rank)} if drains(rank) else {}
    return {**drain, "finalize": finalising(rank, rest), "optimizer": optimizer_step(rank, rest)}


def drains(rank: Rank) -> bool:
    """Whether weight gradients are deferred until the passes are over."""
    return bool(deferred_wgrads(rank, rank.num_microbatches))


def _highest(candidates: list[Candidate], totals: list[int]) -> Candidate:
    """The candidate with the largest total."""
    return candidates[max(range(len(totals)), key=totals.__getitem__)]


def leaving(rank: Rank) -> Rank:
    """The rank in the first step of fine-grained offloading: no group stays, those of MTP layers leave too.

    Source: Megatron-LM `megatron/core/pipeline_parallel/fine_grained_activation_offload.py` (is_warmup in should_bulk_offload).
    """

    def leaves(run: Run) -> Run:
        if run.unit.name != "mtp" and not run.absence:
            return run
        leave = offloaded(rank.context.training, run.unit, trace(run.unit), first=True)
        return run._replace(trace=leave.trace, absence=leave.absence)

    plans = tuple(replace(plan, runs=tuple(map(leaves, plan.runs))) for plan in rank.plans)
    return replace(rank, plans=plans, all_leaves=True)


def find_peak(rank: Rank) -> Peak:
    """The peak of a training step once moments exist, the peak of the first step, and the bytes between two steps."""
    scratch = workspace_bytes(rank)
    rest = sum(t.nbytes for t in resting_tensors(rank))
    *drain, finalize, optimizer = closing(rank).values()
    capture = [capturing(rank)] if pool(rank)[1] is not None else []
    candidates = [*scheduled(rank), *drain, *capture, finalize, optimizer]

    state = {since: state_bytes(rank, *since) for since in {candidate.since for candidate in candidates}}
    top = _highest(candidates, [state[candidate.since] + candidate.nbytes for candidate in candidates])
    if top.step is not None and not top.label:
        top = replace(top, label=label_of(rank, top.step, top.running))
    persistent = state_bytes(rank, "setup", "first step") + scratch
    passes = [*scheduled(leaving(rank))] if rank.context.training.fine_grained_activation_offloading else candidates
    if captured_later(rank.context.training):  # neither the capture nor what it leaves is there yet
        capture, ends = [], sum(t.nbytes for t in graph_ends(rank))
    else:
        ends = 0
    passing = [one.nbytes for one in passes if one.step is not None] + [one.nbytes for one in (*drain, *capture)]
    before_step = state_bytes(rank, "setup") + reduce(largest, [*passing, finalize.nbytes - ends])
    first = largest(before_step, state_bytes(rank, *optimizer.since) + optimizer.nbytes - ends) + scratch
    in_passes = reduce(largest, (one.nbytes for one in candidates if one is not optimizer))
    both = smallest(in_passes, optimizer.nbytes)
    return Peak(
        top, state_bytes(rank, *top.since) + scratch, first, persistent + state_bytes(rank, "step") + rest, both
    )


class Pair(NamedTuple):
    """Moments of the forward's and of the backward's microbatch. None: nothing of it is alive, or (`done`) the forward is
    over and keeps what any microbatch in flight keeps."""

    forward: Moment | None
    backward: Moment | None
    done: bool = False


def combined(forward: ChunkPlan, backward: ChunkPlan) -> tuple[Pair, ...]:
    """The phases of a combined step; chunks of the same units share them."""
    key = "beside", id(backward.extremes)
    if key not in forward.extremes:  # with the other chunk's extremes, so that their identity stays theirs
        forward.extremes[key] = backward.extremes, tuple(_phases(forward, backward))
    found: tuple[Pair, ...] = forward.extremes[key][1]
    return found


def _phases(forward: ChunkPlan, backward: ChunkPlan) -> Iterator[Pair]:
    head, layers, tail = _parts(forward)
    last_head, last_layers, last_tail = _parts(backward)
    start = _waiting(forward, head[0], 0) if head else None
    waiting = _waiting(backward, last_head[0], 0) if last_head else None
    if forward.uncut:
        begun = last_tail[-1:] or [index for index, _ in last_layers[-1:]] or last_head[:1]
        yield Pair(forward.cutting, _waiting(backward, begun[0], -1))
    if head and last_tail:
        yield Pair(forward.largest("F", head[0], 0), _waiting(backward, last_tail[-1], 0))
    yield from (Pair(start, backward.largest("B", run, -1)) for run in last_tail)
    done = _waiting(forward, *layers[-1]) if layers else start
    for ahead, behind in zip_longest(layers, reversed(last_layers)):
        if ahead and behind:
            yield from _interleaved(forward, backward, ahead, behind)
        else:
            yield Pair(
                forward.largest("F", *ahead) if ahead else done,
                backward.largest("B", *behind) if behind else waiting,
            )
    yield from (Pair(forward.largest("F", run, -1), waiting) for run in tail)
    if last_head:
        yield Pair(None, backward.largest("B", last_head[0], 0), done=True)


AFTER_DISPATCH: frozenset[Part] = frozenset(
    ("mlp_norm", "mlp", "mlp_residual", "dispatch", "expert_fc1", "moe_act", "experts", "combine", "latent_up", "shared_experts_add",
     "moe_residual")
)  # fmt: skip
"""Parts of the nodes after a layer's dispatch, and the MLP of a dense layer, which is a node of its own.

Source: Megatron-LM `megatron/core/models/gpt/fine_grained_callables.py` (build_transformer_layer_callables)."""
ATTENTION = EVERYTHING - AFTER_DISPATCH - {""}
"""Parts of its attention node: all others."""


def _interleaved(
    forward: ChunkPlan, backward: ChunkPlan, ahead: tuple[int, int], behind: tuple[int, int]
) -> Iterator[Pair]:
    """Attention forward beside a backward that has begun, and so on in the order of the compute stream."""
    attention, experts = (forward.moments_of("F", *ahead, part) for part in (ATTENTION, AFTER_DISPATCH))
    attention_back, experts_back = (backward.moments_of("B", *behind, part) for part in (ATTENTION, AFTER_DISPATCH))
    start, end = _waiting(backward, *behind), _waiting(forward, *ahead)
    yield Pair(attention[1] if attention else None, experts_back[0] if experts_back else start)
    if experts_back:
        yield Pair(attention[2] if attention else None, experts_back[1])
    if experts:
        yield Pair(experts[1], attention_back[0] if attention_back else start)
    if attention_back:
        yield Pair(end, attention_back[1])


def _waiting(plan: ChunkPlan, run: int, copy: int) -> Moment:
    """A microbatch that waits: what it keeps up to a copy of a run, and that copy's output or the gradient of it."""
    trace = plan.runs[run].trace  # nothing of a unit is gathered while it waits
    return Moment(
        "B", run, len(trace.forward), plan.prefix(run, copy) + plan.batch_bytes + trace.backward[0].nbytes, copy
    )


def _parts(plan: ChunkPlan) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Runs before the layers, (run, copy) of each layer and MTP depth, and runs after them."""
    head, layers, tail = [], [], []
    for index, run in enumerate(plan.runs):
        if run.unit.name == "embedding":
            head.append(index)
        elif run.unit.name in ("final_layernorm", "output"):
            tail.append(index)
        else:
            layers += [(index, copy) for copy in range(run.copies)]
    return head, layers, tail
