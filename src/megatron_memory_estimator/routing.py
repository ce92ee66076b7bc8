"""The range of uneven routing beside an estimate: its peak at the low and the high factor of the phase of training."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from .estimator import Estimate
from .modules.routing import Factors
from .rank.build import context_of
from .rank.declare import Declarer
from .rank.peak import find_peak
from .rank.rank import Rank


class Routing(NamedTuple):
    """Peaks in bytes at the low, typical and high factor of a phase of training; the typical one is the estimate's."""

    phase: str
    factors: Factors
    peaks: tuple[int, int, int]


def routing(found: Estimate) -> Routing | None:
    """The peaks of uneven routing; None where routing changes nothing or a factor was given."""
    job = found.job
    range_of = context_of(job).routing
    if range_of is None:
        return None
    low, high = (_peak_with(found, factor) for factor in (range_of.low, range_of.high))
    return Routing(job.training.routing_phase, range_of, (low, found.peak_stage.peak_allocated_bytes, high))


def _peak_with(found: Estimate, factor: float) -> int:
    """The highest peak with another factor; state and persistent scratch do not depend on it."""
    uneven = dataclasses.replace(found.job.training, router_imbalance=round(factor, 6))
    declarer = found.declarer.with_routing(context_of(dataclasses.replace(found.job, training=uneven)))
    return max(_peak(stage.rank, declarer) for stage in found.stages)


def _peak(rank: Rank, declarer: Declarer) -> int:
    plans = tuple(declarer.plan(plan.chunk) for plan in rank.plans)
    return find_peak(dataclasses.replace(rank, context=declarer.context, plans=plans)).nbytes
