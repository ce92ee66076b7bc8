"""The peak of a rank: the maximum over every simulated moment of a training step.

A moment is an event of a unit (an op of a forward, a recomputation or a backward) while the schedule holds a number of
microbatches of each chunk, or one of the events outside the schedule (gradient finalisation, optimizer step). Its bytes
are persistent state and workspaces, what in-flight microbatches keep, boundary tensors of the pipeline, and what the
running chunk has alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .activations import ChunkPlan, Moment, boundary
from .combined import Pair, combined
from .context import Context
from .cuda_graphs import in_graph
from .schedule import Occupancy, Step
from .states import Buffer, State
from .tensor import Dim, Tensor, tensor
from .workspaces import Workspace

PARTS = ("weights", "gradients", "optimizer", "activations", "transient", "pipeline", "workspace")


REUSED_GRAPH_BUFFERS = (0, 17)
"""Megatron-Core version from which CUDA graphs reuse static buffers of microbatches that are not in flight."""


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
    num_microbatches: int = 1


@dataclass(frozen=True)
class Candidate:
    """A moment of the step with its bytes alive. `step` is None for events outside the schedule.

    `running` is (chunk, its moment) of the microbatches that run: one, or two with all-to-all overlap. `apart` are the
    chunks whose running (or not yet started) microbatch does not keep everything.
    """

    label: str
    nbytes: int
    step: Step | None = None
    running: tuple[tuple[int, Moment], ...] = ()
    apart: tuple[int, ...] = ()
    extras: tuple[Row, ...] = ()
    since: tuple[str, ...] = ("setup", "first step")
    """Which state exists at that moment."""


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
    static = () if c.training.cuda_graph_warmup_steps else graph_ends(rank)
    if pp == 1:
        return static
    deferred = (*deferred_wgrads(rank, rank.num_microbatches - 1), *static)
    if len(rank.plans) > 1:
        names = ["input_tensor_grad being sent", "output_tensor_grad received ahead", "input_tensor received ahead"]
        ahead = (c.layout.microbatch_group_size_per_vp_stage or pp) - pp
        if rank.pp_rank in (0, pp - 1):  # a larger group prefetches on the first and the last rank
            names += [f"prefetched tensor {i}" for i in range(ahead)]
        return (*(boundary(c, f"pipeline.{name}") for name in names), *deferred)
    found: list[Tensor] = []
    chunk = rank.plans[0].chunk
    if rank.pp_rank > 0:
        found.append(boundary(c, "pipeline.input_tensor_grad", with_mtp=chunk.after_mtp))
        if kind == "F":
            name = "pipeline.input_tensor of the microbatch before"
            found.append(boundary(c, name, with_mtp=chunk.after_mtp))
    if kind == "F" and rank.pp_rank < pp - 1:
        found.append(boundary(c, "pipeline.output_tensor_grad", with_mtp=chunk.after_mtp or chunk.mtp))
    return (*found, *deferred)


def deferred_wgrads(rank: Rank, microbatches: int) -> tuple[Tensor, ...]:
    """What waits for the output layer's deferred weight gradient: its input and the gradient of the logits, of as many
    of `microbatches` as the limit allows. The input brings its autograd graph along, which pins the stage's received
    input and the gradient of that; those of the last microbatch are counted with the schedule.

    Source: Megatron-LM `megatron/core/tensor_parallel/layers.py` (embedding_activation_buffer, grad_output_buffer).
    """
    c, t = rank.context, rank.context.training
    if not t.defer_embedding_wgrad_compute or not any(plan.chunk.output for plan in rank.plans):
        return ()
    count = min(microbatches, t.wgrad_deferral_limit or microbatches)
    if count < 1:
        return ()
    many, vocab = (
        Dim("deferred microbatches", count),
        c.dim("padded_vocab_size", c.model.padded_vocab(c.layout.tp), "tp"),
    )
    found = [
        c.new("pipeline.deferred output_layer input", many, *c.stream("input", c.hidden).shape),
        c.new("pipeline.deferred logits gradient", many, c.seq, c.batch, vocab),
    ]
    pinned = Dim("deferred microbatches but the last", count - int(count == microbatches))
    if pinned.size:
        for what in ("input_tensor", "input_tensor.grad"):
            one = boundary(c, what)
            found.append(tensor(f"pipeline.{what} of deferred graphs", (pinned, *one.shape), one.dtype))
    return tuple(found)


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


def resting_tensors(rank: Rank) -> tuple[Tensor, ...]:
    """Boundary tensors alive between two steps: each chunk's last received input and its gradient.

    With all-to-all overlap a layer's input is a leaf of its own. The alltoall dispatcher keeps the router's probabilities
    of the last microbatch, whose graph ends in that leaf: input and gradient of every MoE layer stay until its next forward.
    Source: Megatron-LM `megatron/core/pipeline_parallel/utils.py` (ScheduleNode), `moe/token_dispatcher.py` (self.probs).
    """
    c = rank.context
    found: list[Tensor] = []
    for plan in rank.plans:
        name = f"pipeline.chunk {plan.chunk.vp_stage}"
        if not plan.chunk.embedding and c.layout.pp > 1:
            wide = plan.chunk.after_mtp
            found += [boundary(c, f"{name} {what}", with_mtp=wide) for what in ("input_tensor", "input_tensor.grad")]
        layers = sum(run.copies for run in plan.runs if run.first_layer >= 0 and run.unit.name.endswith("moe"))
        layers += c.model.mtp if plan.chunk.mtp else 0
        if (
            layers
            and c.training.overlap_moe_expert_parallel_comm
            and c.training.moe_token_dispatcher_type == "alltoall"
        ):
            released = "attn_norm" in c.training.offload_modules  # its input is in host memory
            for what in ("inputs.grad",) if released else ("inputs", "inputs.grad"):
                one = c.residual(what)
                found.append(tensor(f"{name} MoE layers' {what}", (Dim("moe_layers", layers), *one.shape), one.dtype))
    return (*found, *graph_ends(rank))


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
        pairs: Iterable[Pair] = (Pair(best.get((step.kind, step.chunk)), None),)
        if step.beside >= 0:
            pairs = combined(rank.plans[step.chunk], rank.plans[step.beside])
        everything = sum(n * size for n, size in zip(step.in_flight, saved, strict=True)) + pipe[step.kind]
        for forward, backward, done in pairs:
            apart = ((step.chunk,) if not done else ()) + ((step.beside,) if step.beside >= 0 else ())
            running = tuple((i, at) for i, at in ((step.chunk, forward), (step.beside, backward)) if at)
            if running:
                total = everything - sum(saved[i] for i in apart) + sum(at.nbytes for _, at in running)
                yield Candidate(_label(rank, step, running), total, step, running, apart)


def _label(rank: Rank, step: Step, running: tuple[tuple[int, Moment], ...]) -> str:
    found = []
    for index, moment in running:
        run = rank.plans[index].runs[moment.run]
        event = (run.trace.forward + run.trace.backward)[moment.event]
        copy = run.copies - 1 if moment.copy < 0 else moment.copy
        where = f" of layer {run.first_layer + copy}" if run.first_layer >= 0 else ""
        chunk = f", chunk {index}" if len(rank.plans) > 1 else ""
        found.append(f"{event.phase} of {event.op}{where}{chunk}")
    return f"{' beside '.join(found)}, {sum(step.in_flight)} in flight"


def pool(rank: Rank) -> tuple[int, Step | None]:
    """Bytes that captured layers keep at the fullest step of the schedule, and that step."""
    sizes = [sum(t.nbytes for run in plan.runs for t in run.graphed for _ in range(run.copies)) for plan in rank.plans]
    if not any(sizes):
        return 0, None
    held = [
        (sum(n * size for n, size in zip(step.in_flight, sizes, strict=True)), step) for step in rank.schedule.steps
    ]
    return max(held, key=lambda pair: pair[0])


def graph_ends(rank: Rank) -> tuple[Tensor, ...]:
    """Static inputs and outputs of CUDA graphs: one of each per captured layer and slot. They exist from the capture on.

    A slot is a microbatch in flight. Before Megatron-Core 0.17, which reuses buffers in the order of the schedule, it is every
    microbatch of a step, and gradients have static buffers of their own.
    Source: Megatron-LM PR 2391; TransformerEngine `pytorch/graph.py` (make_graphed_callables).
    """
    c = rank.context
    slots: tuple[int, ...] = rank.schedule.per_chunk
    ends: tuple[str, ...] = ("input", "output")
    if c.training.mcore < REUSED_GRAPH_BUFFERS:
        slots, ends = (rank.num_microbatches,) * len(rank.plans), (*ends, "input gradient", "output gradient")
    layers = sum(run.copies * n for plan, n in zip(rank.plans, slots, strict=True) for run in plan.runs if run.graphed)
    if not layers:
        return ()
    count, one = Dim("layers*slots", layers), c.residual("")
    return tuple(tensor(f"CUDA graph static {end}s", (count, *one.shape), one.dtype) for end in ends)


def capture_scratch(rank: Rank) -> int:
    """The most that one captured module has alive beside what it keeps."""
    most = 0
    for plan in rank.plans:
        for run in plan.runs:
            if run.graphed:
                warm = rank.context.training.cuda_graph_warmup_steps
                kept = sum(t.nbytes for t in run.graphed) if warm else 0  # replayed units do not count it
                events = run.trace.forward + run.trace.backward
                inside = [e.nbytes for e in events if in_graph(rank.context, run.unit, e.op)]
                most = max(most, max(inside, default=kept) - kept)
    return most


def capturing(rank: Rank) -> Candidate:
    """The capture of CUDA graphs: what captured layers keep at the fullest step of the schedule, and one layer's scratch."""
    total, step = pool(rank)
    rows: list[Row] = []
    if rank.context.training.cuda_graph_warmup_steps:  # else they are there from the first moment on
        for t in graph_ends(rank):
            rows.append(Row("workspace", t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, "one per graph"))
            total += t.nbytes
    assert step is not None
    for count, plan in zip(step.in_flight, rank.plans, strict=True):
        for run in plan.runs:
            for t in run.graphed:
                copies = run.copies * count
                why = "kept in the graphs' private pool"
                rows.append(
                    Row(
                        "activations",
                        f"CUDA graph {t.name}",
                        t.formula,
                        t.local_shape,
                        t.dtype,
                        copies,
                        t.nbytes * copies,
                        why,
                    )
                )
    scratch = capture_scratch(rank)
    rows.append(
        Row("transient", "scratch of the layer that is captured", "", (scratch,), "uint8", 1, scratch, "capture")
    )
    # without a warm-up the capture comes before the first optimizer step
    since = ("setup", "first step") if rank.context.training.cuda_graph_warmup_steps else ("setup",)
    return Candidate(
        "capture of CUDA graphs", total + scratch, extras=tuple(row for row in rows if row.nbytes), since=since
    )


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
    drain = [draining(rank)] if deferred_wgrads(rank, rank.num_microbatches) else []
    capture = [capturing(rank)] if pool(rank)[0] else []
    candidates = [*scheduled(rank), *drain, *capture, finalising(rank), optimizer_step(rank)]

    def total(candidate: Candidate) -> int:
        return state_bytes(rank, *candidate.since) + candidate.nbytes

    top = max(candidates, key=total)
    persistent = state_bytes(rank, "setup", "first step") + scratch
    before_step = state_bytes(rank, "setup") + max(candidate.nbytes for candidate in candidates[:-1])
    first = max(before_step, total(candidates[-1])) + scratch
    rest = sum(t.nbytes for t in resting_tensors(rank))
    return Peak(top, state_bytes(rank, *top.since) + scratch, first, persistent + state_bytes(rank, "step") + rest)


def parameters(rank: Rank) -> tuple[int, int]:
    """Parameters that one GPU of the rank holds: (dense, expert), expert meaning expert data-parallel buffers."""

    def count(expert: bool) -> int:
        return sum(p.numel * n for plan in rank.plans for p, n in plan.params if p.expert_buffer == expert)

    return count(False), count(True)
