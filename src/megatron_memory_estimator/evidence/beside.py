"""A snapshot beside the run that made it: blocks that are tensors of ours, those that are none, and tensors of ours that are not there.

A block is a tensor of ours where their bytes are the same, rounded up to 512 as torch rounds them; of equal ones those of the same part
go together first. The optimizer's state is compared by its sum: the run allocates it for each parameter that a rank has a part of, and
which part that is depends on the rank. Stage and moment are those with which most bytes agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..device.allocator import MIN_BLOCK
from ..errors import EstimatorError
from ..estimator import Estimate, Stage, stage_of
from ..job.training_job import TrainingJob
from ..rank.rank import Row
from ..rank.rows import rows_at_peak
from ..tape.tensor import round_up
from .account import PARAMETERS, Account
from .naming import NATIVE, Site
from .trials import told, tried

SAME = 0.001
"""Share of a sum within which two sums of the optimizer's state are the same."""
BETTER = 0.001
"""Share of a snapshot's bytes that another setting must take from what stands alone on either side, to be said."""
STATES = ("weights", "gradients", "optimizer")
ASKED = Site("unknown", "what was asked for when memory ran out", "", 0, "")
"""The request that was not served: it stands beside what was alive."""
MASTERS, MOMENTS = ("main_param",), ("exp_avg", "momentum", "master_param", "state of a matrix")


class Left(NamedTuple):
    """Blocks of one side alone: of the snapshot with the line that asked for them, or of ours with the tensor."""

    part: str
    tensor: str
    where: str
    blocks: int
    nbytes: int


class Beside(NamedTuple):
    """A snapshot beside a stage at a moment of the run."""

    pp_rank: int
    moment: str
    seen: int
    predicted: int
    agreed: int
    """Bytes of both sides that agree."""
    only_seen: tuple[Left, ...]
    only_predicted: tuple[Left, ...]
    ratio: tuple[float, int] | None
    """What the left blocks are of tensors of ours, where it is the same for most of them, and their bytes."""
    again: int = 0
    """Bytes of the left blocks that are as large as tensors of ours that are there already."""
    weights: tuple[int, int] | None = None
    """Bytes of the param buffers of both sides, where they are not the same."""
    asked: str = ""
    """The tensor of ours that memory ran out at, where it is one."""

    @property
    def apart(self) -> int:
        """Bytes that stand on one side alone."""
        return self.seen + self.predicted - 2 * self.agreed

    @property
    def explained(self) -> float:
        """The share of the snapshot's bytes that are tensors of ours."""
        return self.agreed / self.seen if self.seen else 1.0


class Closer(NamedTuple):
    """Settings with which more of the snapshot is ours."""

    settings: dict[str, Any]
    beside: Beside


def beside(found: Account, run: Estimate) -> Beside:
    """The snapshot beside the stage and moment of the run that it agrees with most."""
    return max((_stage(found, stage) for stage in run.stages), key=lambda one: -one.apart)


def _stage(found: Account, stage: Stage) -> Beside:
    rows = rows_at_peak(stage.rank, stage.peak)
    without = [row for row in rows if not _is(row.name, MOMENTS)]
    label = stage.peak.candidate.label
    ways = [(label, rows), (f"{label}, before the first optimizer step", without)]
    return max(
        (_aligned(found, stage.pp_rank, *way) for way in ways),
        key=lambda one: one.agreed - abs(one.seen - one.predicted),
    )


def _is(name: str, words: Iterable[str]) -> bool:
    return any(name.startswith(word) for word in words)


class _Piece(NamedTuple):
    part: str
    name: str
    each: int
    copies: int


def _pieces(rows: Iterable[Row]) -> Iterator[_Piece]:
    for row in rows:
        copies = max(row.copies, 1)
        yield _Piece(row.part, row.name, row.nbytes // copies, copies)


def _aligned(found: Account, pp_rank: int, moment: str, rows: list[Row]) -> Beside:
    pieces = [one for one in _pieces(rows) if one.each]
    seen = {group.site: list(group.sizes) for group in found.groups}
    if found.oom is not None and found.moment == "oom":
        seen[ASKED] = [found.oom.asked]
    for words in (MASTERS, MOMENTS):
        mine = [one for one in pieces if one.part == "optimizer" and _is(one.name, words)]
        theirs = [site for site in seen if site.part == "optimizer" and _is(site.tensor, words)]
        mean, had = sum(one.each * one.copies for one in mine), sum(sum(seen[site]) for site in theirs)
        if mine and theirs and abs(mean - had) <= SAME * max(mean, had):
            pieces = [one for one in pieces if one not in mine]
            for site in theirs:
                del seen[site]
    known = {_rounded(one.each) for one in pieces if one.part not in STATES}
    before = pieces
    older = {site: sizes for site, sizes in seen.items() if site.tensor == NATIVE}
    rest, ours = _matched({site: sizes for site, sizes in seen.items() if site not in older}, pieces, strict=True)
    state = [one for one in ours if one.part in STATES]
    unnamed, missing = sum(map(sum, older.values())), sum(one.each * one.copies for one in state)
    if state and abs(unnamed - missing) <= SAME * missing:
        older, ours = {}, [one for one in ours if one not in state]
    rest, ours = _matched({**rest, **older}, ours, strict=False)
    left = [Left(site.part, site.tensor, site.where, len(sizes), sum(sizes)) for site, sizes in rest.items()]
    absent = [Left(one.part, one.name, "", one.copies, one.each * one.copies) for one in ours]
    asked = sum(seen.get(ASKED, ()))
    whole = found.nbytes + asked
    wanted = next(
        (one.name for one in before if asked and ASKED not in rest and _rounded(one.each) == _rounded(asked)), ""
    )
    named = [size for site, sizes in rest.items() if site.part != "unknown" for size in sizes if size >= LARGE]
    return Beside(
        pp_rank, moment, whole, sum(row.nbytes for row in rows), whole - sum(map(sum, rest.values())), _sorted(left), _sorted(absent),
        _scaled(seen, before) or _ratio(named, [one.each for one in ours if one.part not in (*STATES, "workspace")]),
        sum(size for size in named if _rounded(size) in known), _weights(seen, before), wanted,
    )  # fmt: skip


Sizes = dict[Site, list[int]]


def _matched(seen: Sizes, pieces: list[_Piece], *, strict: bool) -> tuple[Sizes, list[_Piece]]:
    """What is left of both sides when blocks and tensors of the same size have gone together: at first of the same part of state, or of
    none, then of any part."""
    by_size: dict[int, list[list[Any]]] = {}
    for one in pieces:
        by_size.setdefault(_rounded(one.each), []).append([one, one.copies])
    rest: Sizes = {}
    for site, sizes in seen.items():
        for size in sizes:
            pairs = by_size.get(_rounded(size), ())
            match = next((pair for pair in pairs if pair[1] and (not strict or _alike(site, pair[0]))), None)
            if match is None:
                rest.setdefault(site, []).append(size)
            else:
                match[1] -= 1
    return rest, [one._replace(copies=count) for pairs in by_size.values() for one, count in pairs if count]


def _alike(site: Site, piece: _Piece) -> bool:
    return (site.part if site.part in STATES else "") == (piece.part if piece.part in STATES else "")


def _rounded(nbytes: int) -> int:
    return round_up(nbytes, MIN_BLOCK)


def _sorted(left: list[Left]) -> tuple[Left, ...]:
    return tuple(sorted(left, key=lambda one: (-one.nbytes, one)))


LARGE = 2**20
"""Bytes of a block that a ratio is looked for in."""


def _weights(seen: Sizes, pieces: list[_Piece]) -> tuple[int, int] | None:
    """Bytes of the param buffers of both sides, where a run with other parameters on this rank was meant."""
    theirs = sum(sum(sizes) for site, sizes in seen.items() if site.tensor == PARAMETERS)
    mine = sum(one.each * one.copies for one in pieces if one.part == "weights")
    return (theirs, mine) if theirs and _rounded(theirs) != _rounded(mine) else None


MOST = 0.9
"""Share of the bytes that are no state that one ratio must explain, to be that of the whole microbatch."""


def _scaled(seen: Sizes, pieces: list[_Piece]) -> tuple[float, int] | None:
    """The ratio of nearly all blocks that are no state to tensors of ours, where it is not 1, and their bytes."""
    sizes = [
        size for site, some in seen.items() if site.part not in (*STATES, "unknown") for size in some if size >= LARGE
    ]
    ours = {one.each for one in pieces if one.part not in (*STATES, "workspace") and one.each >= LARGE}
    if not sizes or not ours:
        return None

    def covered(ratio: float) -> int:
        there = {_rounded(round(one * ratio)) for one in ours}
        return sum(size for size in sizes if _rounded(size) in there)

    ratios = {max(sizes) / one for one in ours} - {1.0}
    best = max(ratios, key=lambda ratio: (covered(ratio), -abs(ratio - 1)))
    nbytes = covered(best)
    return (best, nbytes) if nbytes >= MOST * sum(sizes) and nbytes > covered(1.0) else None


def _ratio(seen: list[int], ours: list[int]) -> tuple[float, int] | None:
    """The ratio of left blocks to left tensors that most of their bytes have, where blocks of several sizes have it."""
    known = {size for size in ours if size >= LARGE}
    found = []
    for size in sorted(set(seen), reverse=True)[:3]:
        for tensor in known:
            there = {_rounded(round(one * size / tensor)) for one in known}
            same = [one for one in seen if _rounded(one) in there]
            if len(set(same)) > 1 and sum(same) > sum(seen) / 2:
                found.append((sum(same), size / tensor))
    if not found:
        return None
    nbytes, ratio = max(found, key=lambda one: (one[0], -abs(one[1] - 1)))
    return ratio, nbytes


# -- settings that would explain more ----------------------------------------------------------------------------------------------


MOST_SETTINGS = 3
"""Settings that are named together at most."""


def closer(found: Account, job: TrainingJob, now: Beside) -> Closer | None:
    """The settings with which most of the snapshot is ours, where that is clearly more, most first: what is open, fusions, losses and
    recomputation are tried, on the stage that agrees most. None where all that is left has one ratio: then the microbatch is another."""
    best = _one_closer(found, job, now)
    for _ in range(MOST_SETTINGS - 1):
        more = best and _one_closer(found, told(job, best.settings), best.beside)
        if not best or not more or more.beside.explained < best.beside.explained + BETTER:
            break
        best = Closer({**best.settings, **more.settings}, more.beside)
    return best


def _one_closer(found: Account, job: TrainingJob, now: Beside) -> Closer | None:
    """The one setting with which most of the snapshot is ours."""
    best: Closer | None = None
    if now.ratio is not None:
        return None
    for settings in tried(job):
        try:
            stage = stage_of(told(job, settings), now.pp_rank)
        except EstimatorError:
            continue
        there = _stage(found, stage)
        if there.apart < (best.beside if best else now).apart and there.explained > now.explained - SAME:
            best = Closer(settings, there)
    if best is None or now.apart - best.beside.apart <= BETTER * now.seen:
        return None
    if now.weights is not None and best.beside.weights is not None:
        return None
    once_more = now.again > MOST * (now.seen - now.agreed)
    return None if once_more and best.beside.explained < 1 - SAME else best
