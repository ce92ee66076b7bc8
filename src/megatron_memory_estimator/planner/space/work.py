"""Work of layers, MTP depths and the loss in seconds of a job's GPU: what generated layouts are balanced by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...job.layout import Layout
from ...job.training_job import TrainingJob
from ...rank.build import context_of
from ...rank.declare import Declarer
from ...throughput.machine import machine
from ...throughput.stages import unit_time
from .borders import EVEN, Work

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
