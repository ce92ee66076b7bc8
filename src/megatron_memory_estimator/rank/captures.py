"""CUDA graphs on a rank: the pool of captured layers, static buffers, and the moment of the capture.

Source: Megatron-LM `megatron/core/transformer/cuda_graphs.py`; TransformerEngine `pytorch/graph.py` (make_graphed_callables).
"""

from __future__ import annotations

from functools import reduce

from ..features.cuda_graphs import in_graph
from ..states.kept import Since
from ..tape.tensor import Dim, Tensor, largest, tensor
from .rank import Candidate, Rank, Row
from .schedule import Step

REUSED_GRAPH_BUFFERS = (0, 17)
"""Megatron-Core version from which CUDA graphs reuse static buffers of microbatches that are not in flight."""


def pool(rank: Rank) -> tuple[int, Step | None]:
    """Bytes that captured layers keep at the fullest step of the schedule, and that step."""
    sizes = [sum(t.nbytes for run in plan.runs for t in run.graphed for _ in range(run.copies)) for plan in rank.plans]
    if not any(run.graphed for plan in rank.plans for run in plan.runs):
        return 0, None
    steps = list(rank.schedule.held(sizes))
    most = reduce(largest, (held for _, held in steps))
    return most, next((step for step, held in steps if isinstance(most, int) and held == most), steps[0][0])


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
                inside = [e.nbytes for e in events if in_graph(rank.context.training, e.part)]
                most = largest(most, reduce(largest, inside, kept) - kept)
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
    for count, plan in zip(rank.schedule.in_flight(step), rank.plans, strict=True):
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
    since: tuple[Since, ...] = ("setup", "first step") if rank.context.training.cuda_graph_warmup_steps else ("setup",)
    shown = tuple(row for row in rows if not isinstance(row.nbytes, int) or row.nbytes)
    return Candidate("capture of CUDA graphs", total + scratch, extras=shown, since=since, capture=True)
