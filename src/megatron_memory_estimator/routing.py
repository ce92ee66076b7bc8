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
    low, high = (
        _peak_with(found, factor, fewer=factor <= range_of.typical) for factor in (range_of.low, range_of.high)
    )
    return Routing(job.training.routing_phase, range_of, (low, found.peak_stage.peak_allocated_bytes, high))


def _peak_with(found: Estimate, factor: float, *, fewer: bool) -> int:
    """The highest peak with another factor; state and persistent scratch do not depend on it. With `fewer` rows no stage needs more than
    it does, so that those below the highest found are not asked."""
    uneven = dataclasses.replace(found.job.training, router_imbalance=round(factor, 6))
    declarer = found.declarer.with_routing(context_of(dataclasses.replace(found.job, training=uneven)))
    highest = 0
    for stage in sorted(found.stages, key=lambda stage: -stage.peak_allocated_bytes):
        if fewer and stage.peak_allocated_bytes <= highest:
            break
        highest = max(highest, _peak(stage.rank, declarer))
    return highest


def _peak(rank: Rank, declarer: Declarer) -> int:
    plans = tuple(declarer.plan(plan.chunk) for plan in rank.plans)
    return find_peak(dataclasses.replace(rank, context=declarer.context, plans=plans)).nbytes
