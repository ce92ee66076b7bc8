"""The pipelines of a space: stages, chunks, and how layers are split over them.

Work of layers, MTP depths and the loss in seconds of a job's GPU: what generated layouts are balanced by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import product

from ...job.layout import Layout
from ...job.pipeline import split_layers
from ...job.training_job import TrainingJob
from ...legality import Violation, balanced_split, even_layout, placed
from ...legality.pipeline import pipeline
from ...rank.build import context_of
from ...rank.declare import Declarer
from ...rules import broken
from ...throughput.machine import machine
from ...throughput.stages import unit_time
from .axes import Space
from .borders import EVEN, Work, generated_layout
from .points import Shape


def shapes(job: TrainingJob, space: Space) -> Iterator[Shape | Violation]:
    """Every pipeline of the space that is legal, or the rule that it breaks."""
    work = tuple(works(job)) if not job.model.hybrid else ()
    for pp, vp in product(space.pipeline_model_parallel_size, space.virtual_pipeline_model_parallel_size):
        if vp > 1 and pp == 1:
            yield broken("chunks-need-pp", virtual_pipeline_model_parallel_size=vp)
            continue
        for layout in _splits(job, space, pp, vp, work):
            violations = pipeline(
                job.model, layout, overlap_p2p_comm=job.training.overlap_p2p_comm, mcore=job.training.mcore
            )
            yield next(violations, None) or next(placed(job.model, layout), None) or Shape(layout, vp)


def _plain(job: TrainingJob, pp: int, vp: int) -> Layout:
    """An even split, every other degree 1."""
    return dataclasses.replace(
        job.layout,
        **EVEN,
        world_size=pp,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        expert_tensor_parallel_size=1 if job.model.num_moe_experts else None,
        sequence_parallel=False,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
        num_layers_per_virtual_pipeline_stage=None,
        microbatch_group_size_per_vp_stage=None,
        num_distributed_optimizer_instances=1,
    )


def _splits(job: TrainingJob, space: Space, pp: int, vp: int, work: Sequence[Work]) -> Iterator[Layout]:
    model, plain = job.model, _plain(job, pp, vp)
    if pp == 1 or model.hybrid:
        yield plain
        return
    splits = []
    if model.moe_n_hash_layers:  # whose experts are chosen beside the embedding: Megatron-LM wants a layout string
        text = generated_layout(model, pp, vp, work[0]) or even_layout(model.num_layers, pp * vp, model.mtp)
        yield dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=text)
        return
    divides = split_layers(model, plain) % (pp * vp) == 0
    if divides and "even" in space.split:
        splits.append(plain)
    counts = balanced_split(model.num_layers, pp, vp) if not divides and "uneven" in space.split else None
    if counts is not None:
        first, last = counts
        splits.append(
            dataclasses.replace(plain, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last)
        )
    generated = "layout" in space.split and (not divides or model.mtp)
    texts = [generated_layout(model, pp, vp, one) for one in work] if generated else []
    splits += [
        dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=text)
        for text in dict.fromkeys(texts)
        if text is not None
    ]
    yield from splits or [plain]  # whose rule says why there is none


DOMAINS = (1, 8)
"""NVLink domains that the experts are spread over: within one their dispatch is quick, over several it is not."""


def works(job: TrainingJob) -> Iterator[Work]:
    """The work of a job's units with its experts within one NVLink domain, and over several; of a dense model there is one."""
    experts = job.model.num_moe_experts
    many = {_ranks(experts, job.gpu.nvlink_domain * count) for count in DOMAINS} if experts else {1}
    for ranks in sorted(many):
        yield _seconds(job, ranks)


def _ranks(experts: int, most: int) -> int:
    """The most expert-parallel ranks that experts divide over, up to a number."""
    return max(ranks for ranks in range(1, min(experts, most) + 1) if experts % ranks == 0)


def _seconds(job: TrainingJob, ep: int) -> Work:
    model = job.model
    layout = Layout(
        **EVEN,
        world_size=ep,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1 if model.num_moe_experts else None,
    )
    training = dataclasses.replace(
        job.training, recompute_granularity=None, recompute_method=None, recompute_num_layers=None
    )
    declarer = Declarer(context_of(dataclasses.replace(job, layout=layout, training=training)))
    m = machine(job.gpu, None, job.env.network_gbs)
    each = {kind: unit_time(m, declarer, ("layer", kind, 0.0)).total for kind in dict.fromkeys(declarer.kinds)}
    mtp = unit_time(m, declarer, ("part", ("mtp", False))).total if model.mtp else 0.0
    loss = unit_time(m, declarer, ("part", ("output", False))).total
    embedding = unit_time(m, declarer, ("part", ("embedding", False))).total
    return Work([each[kind] for kind in declarer.kinds], mtp, loss, embedding)
