"""CUDA graphs on a rank: the pool of captured layers, static buffers, and the moment of the capture.

Source: Megatron-LM `megatron/core/transformer/cuda_graphs.py`; TransformerEngine `pytorch/graph.py` (make_graphed_callables).
"""

from __future__ import annotations

from functools import reduce

from ..features.cuda_graphs import in_graph, in_pool
from ..job.training import Training
from ..states.kept import Since
from ..tape.ops import flattened
from ..tape.tensor import Dim, Tensor, largest, tensor
from .chunks import Run
from .rank import Candidate, Rank, Row
from .schedule import Step
from .workspaces import TORCH_WORKSPACES

REUSES = (0, 15)
"""Megatron-Core version that asks TransformerEngine's CUDA graphs to reuse static buffers of microbatches that are not in flight."""
REUSED_FROM = (2, 7)
"""TransformerEngine version from which it asks for that."""

UNFUSED = ("unfused", "local")
"""Attention kernels whose GEMMs are torch's."""
STREAMS = 2
"""Streams that TransformerEngine's make_graphed_callables runs on beside the current one: of the warm-up runs, and of the capture."""


def pooled(rank: Rank, run: Run) -> tuple[Tensor, ...]:
    """What the graphs of one copy of a run keep in their pool."""
    return in_pool(rank.context.training, run.unit, run.graphed)


def pool(rank: Rank) -> tuple[int, Step | None]:
    """Bytes that captured layers keep at the fullest step of the schedule, and that step."""
    sizes = [sum(t.nbytes * run.copies for run in plan.runs for t in pooled(rank, run)) for plan in rank.plans]
    if not any(run.graphed for plan in rank.plans for run in plan.runs):
        return 0, None
    steps = list(rank.schedule.held(sizes))
    step, most = max(steps, key=lambda one: one[1])
    return most, step


def reuses_buffers(t: Training) -> bool:
    """Whether graphs reuse the static buffers of microbatches that are not in flight (make_graphed_callables of TransformerEngine,
    _reuse_graph_input_output_buffers)."""
    return t.cuda_graph_impl == "transformer_engine" and t.mcore >= REUSES and t.te >= REUSED_FROM


def _captured_layers(rank: Rank, *, masked: bool) -> list[int]:
    """Captured layers of each chunk: those whose graph has self-attention, which takes a mask, or the others."""
    return [
        sum(run.copies for run in plan.runs if run.graphed and _attends(rank, run) is masked) for plan in rank.plans
    ]


def _attends(rank: Rank, run: Run) -> bool:
    return in_graph(rank.context.training, "core_attn") and any(
        op.part == "core_attn" for op in flattened(run.unit.items)
    )


def _slots(rank: Rank, layers: list[int]) -> int:
    """Most captured layers whose microbatches are in flight at once."""
    return reduce(largest, (held for _, held in rank.schedule.held(layers))) if any(layers) else 0


def graph_ends(rank: Rank) -> tuple[Tensor, ...]:
    """Static buffers of CUDA graphs outside their pool. They exist from the capture on.

    A graph has an input of its own, and with attention a mask [b, 1, s/cp, s] of booleans (`transformer_layer.py`
    get_layer_static_inputs). TransformerEngine's graphs of layers that are not in flight at once share them; one gradient of an output
    serves all; outputs and gradients of inputs become weak references into the pool. Before that, and in Megatron-Core's own
    graphs, there is an input and an output of every layer and microbatch, in TransformerEngine's a gradient of both too.
    Source: Megatron-LM `transformer/cuda_graphs.py` (_get_sample_arguments); TransformerEngine `pytorch/graph.py`.
    """
    c = rank.context
    one, t = c.residual(""), c.training
    attention, others = (_captured_layers(rank, masked=masked) for masked in (True, False))
    if not any((*attention, *others)):
        return ()
    mask = (c.batch, Dim("seq/cp", c.seq.local), Dim("seq", t.seq_length))
    if reuses_buffers(t):
        masks = _slots(rank, attention)
        found = [
            ("inputs", masks + _slots(rank, others), one.shape, one.dtype),
            ("output gradient", 1, one.shape, one.dtype),
        ]
    else:
        every = t.cuda_graph_impl == "transformer_engine"
        times = (rank.num_microbatches,) * len(rank.plans) if every else rank.schedule.per_chunk
        count, masks = (
            sum(n * slots for n, slots in zip(layers, times, strict=True))
            for layers in (list(map(sum, zip(attention, others, strict=True))), attention)
        )
        ends = ("inputs", "outputs", "input gradients", "output gradients")[: 4 if every else 2]
        found = [(end, count, one.shape, one.dtype) for end in ends]
    if t.cuda_graph_impl == "transformer_engine" and masks:
        found.append(("attention masks", masks, mask, "bool"))
    static = (
        tensor(f"CUDA graph static {name}", (Dim("layers*slots", n), *shape), dtype) for name, n, shape, dtype in found
    )
    return (*static, *(_stream_workspaces(rank) if any(attention) else ()))


def _stream_workspaces(rank: Rank) -> tuple[Tensor, ...]:
    """torch's cuBLAS workspaces of the streams of the warm-up runs and of the capture, where captured attention runs torch's GEMMs. A
    router's GEMM is TransformerEngine's.

    Source: pytorch `aten/src/ATen/cuda/CublasHandlePool.cpp` (one per handle and stream); TransformerEngine `pytorch/graph.py`. Exercised
    by the run gpt3_mcore_te_tp2_pp2_ep4_etp1_resume_torch_dist_attn_cudagraph: its state between steps is 145 MiB more than without.
    """
    c = rank.context
    if c.training.cuda_graph_impl != "transformer_engine" or c.kernel not in UNFUSED:
        return ()
    each = sum(w.nbytes for w in rank.workspaces if w.name.startswith(TORCH_WORKSPACES))
    return (tensor("torch cuBLAS workspaces of two more streams", (Dim("bytes", STREAMS * each),), "uint8"),)


def captured_later(t: Training) -> bool:
    """Whether the first step is over when graphs of layers are captured: TransformerEngine's, after the warm-up steps; Megatron-Core's own
    are captured at the end of the first pass.

    Source: Megatron-LM `megatron/training/training.py` (train: cuda_graph_warmup_steps), `pipeline_parallel/schedules.py`.
    """
    return t.cuda_graph_impl == "transformer_engine" and t.cuda_graph_warmup_steps > 0


def outputs_in_pool(rank: Rank) -> tuple[Tensor, ...]:
    """During the capture: the outputs of all graphs whose backward is not captured yet."""
    if not reuses_buffers(rank.context.training):
        return ()
    one = rank.context.residual("")
    layers = [a + b for a, b in zip(*(_captured_layers(rank, masked=m) for m in (True, False)), strict=True)]
    return (tensor("CUDA graph outputs", (Dim("layers*slots", _slots(rank, layers)), *one.shape), one.dtype),)


def capture_scratch(rank: Rank) -> int:
    """The most that one captured layer has alive beside what it keeps."""
    return reduce(largest, (run.capture_scratch for plan in rank.plans for run in plan.runs), 0)


def capturing(rank: Rank) -> Candidate:
    """The capture of CUDA graphs: what captured layers keep at the fullest step of the schedule, and one layer's scratch."""
    total, step = pool(rank)
    rows: list[Row] = []
    for t in graph_ends(rank):
        rows.append(Row("workspace", t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, "of captured layers"))
        total += t.nbytes
    for t in outputs_in_pool(rank):
        rows.append(
            Row("activations", t.name, t.formula, t.local_shape, t.dtype, 1, t.nbytes, "until its backward is captured")
        )
        total += t.nbytes
    assert step is not None
    for count, plan in zip(rank.schedule.in_flight(step), rank.plans, strict=True):
        for run in plan.runs:
            for t in pooled(rank, run):
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
    shown = tuple(row for row in rows if row.nbytes)
    return Candidate("capture of CUDA graphs", total + scratch, extras=shown, since=since, capture=True)
