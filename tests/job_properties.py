"""What holds for every legal job: each property is a function that asserts it of a job and its estimate."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from megatron_memory_estimator import Estimate, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.device.verdict import VERDICTS, explain_terms
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.pipeline import build_pipeline
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.modules.flash_next import NGRAM_TABLE
from megatron_memory_estimator.rank.declare import Declarer
from megatron_memory_estimator.rank.rank import Row, state_bytes, workspace_bytes
from megatron_memory_estimator.rank.rows import breakdown
from megatron_memory_estimator.report.document import phase_terms
from megatron_memory_estimator.routing import routing
from megatron_memory_estimator.tape.ops import Op, inputs
from megatron_memory_estimator.tape.tensor import DTYPE_BYTES, Param, round_up

from .random_jobs import RandomJob


class Case(NamedTuple):
    """A random job, the job it stands for, and its estimate."""

    drawn: RandomJob
    job: TrainingJob
    found: Estimate


def case_of(drawn: RandomJob) -> Case:
    """The estimate of a random job. Raises EstimatorError where a rule refuses it."""
    job = drawn.job()
    return Case(drawn, job, estimate(job))


def beside(job: TrainingJob) -> Estimate | None:
    """The estimate of a job that differs from a legal one; None where a rule refuses it."""
    try:
        return estimate(job)
    except (LayoutError, UnsupportedError):
        return None


def rows_sum(case: Case) -> None:
    """The rows of explain and the parts of the breakdown add up to the figures."""
    for stage in case.found.stages:
        for at in ("peak", "steady"):
            _, total, rows = stage.at(at)
            assert sum(row.nbytes for row in rows) == total, at
            assert all(row.nbytes >= 0 for row in rows), at
        assert stage.breakdown_bytes == breakdown(stage.rows)


def rows_are_their_shapes(case: Case) -> None:
    """A row has the bytes of its shape and dtype, or none."""
    for stage in case.found.stages:
        for row in (*stage.rows, *stage.steady_rows):
            if row.nbytes and row.dtype in DTYPE_BYTES and row.local_shape:  # no bytes: in the pool of a CUDA graph
                halves = bool(case.job.training.fp4) and row.dtype == "fp8"  # two fp4 elements in a byte
                assert row.nbytes in (row_bytes(row), (row_bytes(row) + 1) // 2 if halves else -1), row


def row_bytes(row: Row) -> int:
    """Bytes by shape, dtype and count."""
    return row.copies * prod(row.local_shape) * DTYPE_BYTES[row.dtype]


def figures_are_ordered(case: Case) -> None:
    """Nothing is above the peak, and no range is upside down."""
    for stage in case.found.stages:
        assert 0 < stage.steady_allocated_bytes <= stage.peak_allocated_bytes
        assert stage.first_step_peak_allocated_bytes <= stage.peak_allocated_bytes <= stage.reserved.low
        assert stage.reserved.low <= stage.reserved.high
        assert stage.peak_allocated_bytes < stage.phase_ranges["training"].low <= stage.needed.low <= stage.needed.high
        assert all(stage.needed.high >= found.high >= found.low for found in stage.phase_ranges.values())
        assert 0 <= stage.host_bytes.low <= stage.host_bytes.high
        terms = explain_terms(case.job, stage.rank, stage.peak)
        ranges = [(phase.low, phase.high) for phase in stage.phases] + [(term.low, term.high) for term in terms]
        assert all(0 <= low <= high for low, high in ranges), ranges
    for event in case.found.verdict().events:
        found = phase_terms(case.found, event).terms
        assert sum(one.high for one in found) == event.device.high, (event.phase, found)
        assert sum(one.low for one in found) == event.device.low or event.phase == "load", (event.phase, found)


def routing_is_ordered(case: Case) -> None:
    """More uneven routing needs no less memory, and balanced routing the least."""
    uneven = routing(case.found)
    if uneven is not None:
        even = dataclasses.replace(case.job.training, router_imbalance=1.0)
        balanced = estimate(dataclasses.replace(case.job, training=even)).peak_stage.peak_allocated_bytes
        assert uneven.peaks[1] == case.found.peak_stage.peak_allocated_bytes
        peaks = [balanced, *uneven.peaks]
        assert all(a <= b for a, b in pairwise(peaks))
        assert all(a <= b for a, b in pairwise(uneven.factors))


def document_is_strict(case: Case) -> None:
    """The document is JSON, the same again, and the same with settings in another order."""
    document = case.found.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert estimate(case.job).to_dict() == document, "a second call"
    assert estimate(case.drawn.job(backwards=True)).to_dict() == document, "settings in another order"


def verdict_is_monotone(case: Case) -> None:
    """A GPU with more memory is never worse."""
    edges = {nbytes for stage in case.found.stages for found in stage.phase_ranges.values() for nbytes in found}
    edges.add(case.found.without_fragmentation)
    assert case.found.without_fragmentation <= case.found.needed.high
    sizes = sorted({n + d for n in edges for d in (-1, 0, 1)})
    ranks = [VERDICTS.index(case.found.verdict(size).word) for size in sizes]
    assert ranks == sorted(ranks, reverse=True)
    assert (ranks[0], ranks[-1]) == (VERDICTS.index("does not fit"), VERDICTS.index("fits"))


def in_flight_falls_along_the_pipeline(case: Case) -> None:
    """1F1B: a stage holds one microbatch more than the next, as many as there are at most; and the peak holds all they keep."""
    counts = [stage.in_flight for stage in case.found.stages]
    if len(case.found.stages[0].rank.plans) > 1:
        assert counts == sorted(counts, reverse=True)
        return
    most = case.job.num_microbatches
    overlap = int(case.job.training.overlap_moe_expert_parallel_comm)
    assert counts == [min(len(counts) - rank + overlap, most) for rank in range(len(counts))]
    for stage in case.found.stages:
        rank = stage.rank
        persistent = state_bytes(rank, "setup", "first step") + workspace_bytes(rank)
        waiting = stage.in_flight - overlap  # with the overlap one of them has not run to its end
        assert stage.peak_allocated_bytes >= persistent + waiting * rank.plans[0].saved_bytes


def shards_make_the_model(case: Case) -> None:
    """The shards of a parameter over all ranks are the parameter of a single GPU."""
    job, model = case.job, case.job.model
    whole = Layout(world_size=1, tensor_model_parallel_size=1)
    fixed: dict[str, Any] = {"padded_vocab_size": model.padded_vocab(job.layout.tp)}
    behind = any(one.mtp and not one.embedding for stage in build_pipeline(model, job.layout).chunks for one in stage)
    if behind and model.mtp_layer_variant_behind is not None:
        fixed["mtp_layer_variant"] = model.mtp_layer_variant_behind
    alone = Context(
        _replace(model, **fixed), whole, job.training, job.kernel, job.gpu.num_sms, blackwell=job.gpu.two_way_fp8
    )
    chunks = build_pipeline(alone.model, whole).chunks
    planner = Declarer(alone)
    single = numel([planner.plan(chunk).params for stage in chunks for chunk in stage], whole)
    plans = [plan.params for stage in case.found.stages for plan in stage.rank.plans]
    sharded = numel(plans, job.layout)
    if model.share_embeddings_and_output_weights:
        sharded.pop("output_layer.weight", None)  # the last stage's copy of the embedding
    if NGRAM_TABLE in single:  # a rank has as many rows of each table as any
        rows, ep = model.ngram_table_rows, job.layout.ep
        single[NGRAM_TABLE] = single[NGRAM_TABLE] // sum(rows) * sum(round_up(one, ep) for one in rows)
    assert sharded == single, {name: (sharded.get(name), single.get(name)) for name in {*sharded, *single}
                               if sharded.get(name) != single.get(name)}  # fmt: skip


def numel(chunks: list[list[tuple[Param, int]]], layout: Layout) -> dict[str, int]:
    """Elements of each parameter over all ranks; the tables of the vocabulary once, however many stages have a copy."""
    ways = {"tp": layout.tp, "expert": layout.etp * layout.ep, "replicated": 1}
    found: Counter[str] = Counter()
    for params in chunks:
        here: Counter[str] = Counter()
        for param, copies in params:
            if param.name.endswith(".weight_magnitude") or ("experts." in param.name and ".adapter." in param.name):
                continue  # whole beside a row-parallel linear; one adapter for all experts of a rank
            assert param.numel_each == prod(dim.local for dim in param.shape)
            ranks = (
                layout.ep if param.name == NGRAM_TABLE else ways[param.split]
            )  # the same on expert-tensor-parallel ranks
            here[param.name] += param.numel * copies * ranks
        for name, count in here.items():
            shared = name.startswith(("embedding.", "output_layer.weight"))
            found[name] = max(found[name], count) if shared else found[name] + count
    return dict(found)


def buffers_hold_the_parameters(case: Case) -> None:
    """Buffers have every trained parameter once, divide over their ranks, and have one gradient per element."""
    t, layout = case.job.training, case.job.layout
    for stage in case.found.stages:
        rank = stage.rank
        trained = sum(p.numel * n for plan in rank.plans for p, n in plan.params if not p.frozen)
        assert sum(buffer.elements for buffer in rank.buffers) == trained
        gradients = [state for state in rank.states if state.part == "gradients"]
        assert len(gradients) == len(rank.buffers)
        for buffer, state in zip(rank.buffers, gradients, strict=True):
            assert state.numel == -(-buffer.numel // buffer.grad_ways)
            assert buffer.numel >= buffer.numel_unpadded >= buffer.elements
            shards = layout.expert_shards if buffer.group.startswith("expert") else layout.dense_shards
            if t.use_distributed_optimizer and not t.use_megatron_fsdp and t.optimizer != "muon":
                assert buffer.numel % shards == buffer.numel % 64 == 0, (buffer, shards)
                assert buffer.owned == min(buffer.numel // shards, buffer.elements), (buffer, shards)
        for state in rank.states:
            assert state.numel >= 0 and (state.nbytes >= state.numel * DTYPE_BYTES[state.dtype] // 2), state


def what_ops_save_is_kept(case: Case) -> None:
    """Between forward and backward a unit keeps what its ops save, and the inputs of its checkpoints."""
    t = case.job.training
    if (
        t.distribute_saved_activations
        or t.cpu_offloading_num_layers
        or t.fine_grained_activation_offloading
        or t.moe_paged_stash
        or t.cuda_graph_impl != "none"
    ):
        return  # what is kept is moved
    for stage in case.found.stages[:1]:
        for run in (run for plan in stage.rank.plans for run in plan.runs):
            kept = {live.tensor.storage for live in run.trace.saved}
            dropped = {t.storage for item in run.unit.items if not isinstance(item, Op) and item.hook for op in item.ops
                       if isinstance(op, Op) for t in op.writes}  # fmt: skip
            for item in run.unit.items:
                needs = item.saves if isinstance(item, Op) else [x for x in inputs(item) if x.differentiable]
                assert {x.storage for x in needs} - kept - dropped == set(), (run.unit.name, item.name)


def _replace(value: Any, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(value, **changes)


Property = Callable[[Case], None]
ALONE: tuple[Property, ...] = (
    rows_sum, rows_are_their_shapes, figures_are_ordered, routing_is_ordered, verdict_is_monotone, in_flight_falls_along_the_pipeline,
    shards_make_the_model, buffers_hold_the_parameters, what_ops_save_is_kept, document_is_strict,
)  # fmt: skip
"""Of one job."""
