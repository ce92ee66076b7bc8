"""Sums over replays: one score per group of near-duplicates, then medians and percentiles."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..job.hardware import GIB, MIB
from .replay import Pair, Replay


class Score(NamedTuple):
    """A group: the mean of the absolute errors of its runs (None if none was measured), and how many are refused."""

    group: str
    family: str
    runs: int
    refused: int
    steady: float | None
    peak: float | None
    first_step: float | None
    beyond_state: float | None
    signed_peak: float | None


class Summary(NamedTuple):
    """Median, 90th percentile and largest of the groups' scores."""

    groups: int
    median: float
    p90: float
    worst: float


class Repeat(NamedTuple):
    """A configuration that was run more than once: its runs, and the least and the largest error of their peaks."""

    name: str
    moe: bool
    runs: int
    low: float
    high: float

    @property
    def spread(self) -> float:
        """How far the errors of equal runs are apart: no estimate of the configuration can be nearer to all of them than half of it."""
        return self.high - self.low


def repeats(replays: Iterable[Replay]) -> list[Repeat]:
    """Configurations that were run more than once, on machines of one size, those with the largest spread first."""
    equal: dict[str, list[Replay]] = {}
    for found in replays:
        run = found.run
        if found.peak:
            key = json.dumps([run.num_gpus, run.args, run.bridge], sort_keys=True)
            equal.setdefault(key, []).append(found)
    result = []
    for members in equal.values():
        errors = [member.peak.error for member in members if member.peak]
        if len(errors) > 1:
            name = members[0].run.id.split("/")[1:3][-1]
            result.append(Repeat(name, members[0].moe, len(errors), min(errors), max(errors)))
    return sorted(result, key=lambda one: -one.spread)


def scores(replays: Iterable[Replay]) -> list[Score]:
    """One score per group, worst peak first."""
    groups: dict[str, list[Replay]] = {}
    for found in replays:
        groups.setdefault(found.run.group, []).append(found)
    result = []
    for name, members in groups.items():
        result.append(
            Score(
                group=name,
                family=members[0].run.family,
                runs=len(members),
                refused=sum(bool(member.refused) for member in members),
                steady=_mean(members, "steady"),
                peak=_mean(members, "peak"),
                first_step=_mean(members, "first_step"),
                beyond_state=_mean(members, "beyond_state"),
                signed_peak=_mean(members, "peak", signed=True),
            )
        )
    return sorted(result, key=lambda score: -(score.peak or 0))


def _mean(members: Sequence[Replay], name: str, *, signed: bool = False) -> float | None:
    pairs: list[Pair | None] = [getattr(member, name) for member in members]
    errors = [pair.error if signed else abs(pair.error) for pair in pairs if pair is not None]
    return statistics.fmean(errors) if errors else None


def summary(values: Iterable[float | None]) -> Summary | None:
    """Median, 90th percentile (nearest rank) and largest; None without values."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    rank = max(0, -(-9 * len(found) // 10) - 1)
    return Summary(len(found), statistics.median(found), found[rank], found[-1])


def large_peaks(replays: Sequence[Replay]) -> Summary | None:
    """Absolute errors of the single runs whose measured peak is above 16 GiB."""
    return summary(abs(found.peak.error) for found in replays if found.peak and found.peak.measured > 16 * GIB)


def under_estimated(replays: Iterable[Replay], by: float = 0.0) -> list[Replay]:
    """Runs whose peak is under-estimated by more than a fraction, worst first."""
    low = [
        (found.peak.error, index, found) for index, found in enumerate(replays) if found.peak and found.peak.error < -by
    ]
    return [found for _, _, found in sorted(low)]


def steady_outside(replays: Iterable[Replay]) -> list[str]:
    """Groups whose mean steady error is above 1.2 % and, in the mean, above 8 MiB."""
    groups: dict[str, list[Pair]] = {}
    for found in replays:
        if found.steady:
            groups.setdefault(found.run.group, []).append(found.steady)
    return [
        name
        for name, pairs in groups.items()
        if statistics.fmean(abs(pair.error) for pair in pairs) > 0.012
        and statistics.fmean(abs(pair.estimated - pair.measured) for pair in pairs) > 8 * MIB
    ]


def sums(replays: Sequence[Replay]) -> dict[str, dict[str, Summary | None]]:
    """Steady, peak, first step and the part beyond state; of all groups, dense ones, MoE ones and each family."""
    kinds: dict[str, list[Replay]] = {"all": list(replays)}
    kinds["dense"] = [replay for replay in replays if not replay.moe]
    kinds["moe"] = [replay for replay in replays if replay.moe]
    for replay in replays:
        kinds.setdefault(f"family {replay.run.family}", []).append(replay)
    for replay in replays:
        for feature in replay.run.features:
            kinds.setdefault(f"feature {feature}", []).append(replay)
    result = {}
    for name, members in kinds.items():
        of_groups = scores(members)
        result[name] = {
            "steady": summary(score.steady for score in of_groups),
            "peak": summary(score.peak for score in of_groups),
            "first_step": summary(score.first_step for score in of_groups),
            "beyond_state": summary(score.beyond_state for score in of_groups),
        }
    return result
