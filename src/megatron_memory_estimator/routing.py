"""Routing of dropless MoE runs: how many more rows the busiest rank gets than balanced routing would give it.

The factors are means over the layers in flight, for 4 experts on a rank. More experts on a rank average out (the excess scales
with the square root of 4 over their number), a single one does not (1.3 times the excess). Sources: measured runs of
NVIDIA/Megatron-LM (Nemotron 1.55 in its first steps, DeepSeek-V3 proxy 1.12 over 9,500 steps) and NVIDIA-NeMo/Megatron-Bridge
(Nemotron-3 Nano, 18 % of the total in iteration 2); arXiv 2408.15664, 2605.20982; the values between them are judgement.
"""

from __future__ import annotations

import dataclasses
from math import sqrt
from typing import NamedTuple

from .estimator import Estimate
from .job.choices import ROUTING
from .job.training import Training
from .rank.build import context_of
from .rank.declare import Declarer
from .rank.peak import find_peak
from .rank.rank import Rank


class Routing(NamedTuple):
    """Peaks in bytes at the low, typical and high factor of a phase of training."""

    phase: str
    factors: tuple[float, float, float]
    peaks: tuple[int, int, int]


def applies(found: Estimate) -> bool:
    """Whether the routing of the run decides its memory: dropless experts on several ranks, and no factor given."""
    job = found.job
    t = job.training
    dropless = t.moe_expert_capacity_factor is None
    return job.model.has_moe and job.layout.ep > 1 and dropless and t.router_imbalance == 1


def factors(training: Training, experts_per_rank: int, most: float) -> tuple[float, float, float]:
    """Low, typical and high factor of the phase, not above `most`.

    Where whole layers or their experts are recomputed, the rows of one layer are live and nothing averages: the typical
    factor is the high one.
    """
    scale = 1.3 if experts_per_rank == 1 else sqrt(4 / experts_per_rank) if experts_per_rank > 4 else 1.0
    low, typical, high = (min(1 + (factor - 1) * scale, most) for factor in ROUTING[training.routing_phase])
    one_layer = training.recompute_granularity == "full" or training.recomputes("moe")
    return low, high if one_layer else typical, high


def routing(found: Estimate) -> Routing | None:
    """The peak with uneven routing; None where routing changes nothing or a factor was given."""
    if not applies(found):
        return None
    job = found.job
    experts, ep = job.model.num_moe_experts, job.layout.ep
    assert experts is not None
    three = factors(job.training, experts // ep, min(ep, experts / job.model.moe_router_topk))
    peaks = []
    for factor in three:
        uneven = dataclasses.replace(job.training, router_imbalance=round(factor, 4))
        declarer = found.declarer.with_routing(context_of(dataclasses.replace(job, training=uneven)))
        peaks.append(max(_peak(stage.rank, declarer) for stage in found.stages))
    return Routing(job.training.routing_phase, three, (peaks[0], peaks[1], peaks[2]))


def _peak(rank: Rank, declarer: Declarer) -> int:
    """The peak of a rank with the rows of another routing; state and persistent scratch do not depend on it."""
    plans = tuple(declarer.plan(plan.chunk) for plan in rank.plans)
    return find_peak(dataclasses.replace(rank, context=declarer.context, plans=plans)).nbytes
