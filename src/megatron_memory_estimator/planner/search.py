"""Every legal layout of a space: its memory, its step time, and what was ruled out by which rule.

Layouts ranked and counted many at a time, as they come.

Random layouts of a space.

A second process beside a search, with half of its work.

The legal cells of a space as arrays, for all pipelines and degrees at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..legality.pipeline import schedule
from ..throughput.machine import Efficiency, machine
from .arrays.view import Figures
from .cell_ideas import best_of_each
from .counting import Ask, LegalSpace, legal_space
from .evaluation import Evaluation
from .found import Found, Plan
from .outcome import Progress, Watch, begun, ended, nothing_legal, retimed
from .places import Place, plan_of
from .ranking import MOST_GIB, Counts, Ranking, ranking_of
from .space.axes import Space
from .space.defaults import completed
from .space.legal import BATCH, replicas
from .space.points import Array, Cells, Grid, Shape

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def search(
    base: TrainingJob,
    space: Space | None = None,
    *,
    best: int = 10,
    objective: str = "throughput",
    limit: int | None = None,
    everything: bool = False,
    efficiency: Efficiency | None = None,
    tight: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    nearest: bool = True,
    folded: bool = False,
) -> Found:
    """All legal layouts of a space for the job's model and global batch; the `best` that fit, by the objective.

    `limit` is the memory of a GPU in bytes (default: all of it); with `tight`, layouts that fit unless memory is fragmented count too.
    With two `workers` a large space is shared with a second process (Linux). Raises LayoutError when the space holds no legal layout,
    ConfigError for axes that make no sense. KeyboardInterrupt ends it with the best so far; StoppedError where `stop`, asked between
    pieces of work, says True. Without `nearest` no `least` layout is sought where nothing fits. With `folded`, the `best` ideas, each as
    one plan with those that are nearly as good beside it (`ideas.py`).
    """
    found = begun(base, space, objective, limit, efficiency, everything=everything)
    ranking = ranking_of(best, objective, found.limit, tight=tight, folded=folded)
    watch = Watch(found.space.num_gpus, stop)
    legal = LegalSpace((), ())
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            legal = legal_space(base, found.space, found.illegal, watch.ask, cells)
            found.legal = legal.layouts
            if not found.legal:
                raise nothing_legal(base, found, watch, cells)
            evaluation = Evaluation(base, machine(base.gpu, efficiency, base.env.network_gbs), legal)
            _Search(evaluation, found, ranking, watch, workers, progress).run(nearest=nearest)
    except KeyboardInterrupt:
        found.interrupted = True
    return ended(found, ranking, base, legal)


def sampled(base: TrainingJob, space: Space, count: int, seed: int) -> list[Plan]:
    """So many random legal layouts of a space with their figures, whether they fit or not. Raises LayoutError where there is none."""
    found = Found(completed(space, base), base.gpu.memory_bytes)
    watch = Watch(found.space.num_gpus)
    sampler = Sampler(count, np.random.default_rng(seed))
    with np.errstate(divide="ignore", invalid="ignore"):
        legal = legal_space(base, found.space, found.illegal, watch.ask, cells)
        if not legal.layouts:
            raise nothing_legal(base, found, watch, cells)
        evaluation = Evaluation(base, machine(base.gpu, None, base.env.network_gbs), legal)
        for piece in evaluation.pieces(range(len(legal.structures)), None, watch.ask):
            sampler.offer(len(piece.figures.step), piece.place)
    return [retimed(plan_of(base, legal, place), None) for _, place in sampler.kept]


class _Half(NamedTuple):
    """What a process beside this one found."""

    ranking: Ranking
    counts: Counts
    interrupted: bool


class _Search:
    """The evaluation of all legal layouts, ranked and counted as they come."""

    def __init__(
        self,
        evaluation: Evaluation,
        found: Found,
        ranking: Ranking,
        watch: Watch,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self.evaluation, self.found, self.ranking, self.watch = evaluation, found, ranking, watch
        self.judge = Judge(ranking)
        self.workers, self.progress = workers, progress
        self.best: Place | None = None

    def run(self, *, nearest: bool) -> None:
        """Memory and time of every legal layout."""
        self._all(self.found.limit)
        if nearest and (self.ranking.least is None or self.ranking.least.low > self.found.limit):
            # nothing fits: what comes nearest wants every layout evaluated
            self.found.fits = self.found.tight = self.found.too_large = 0
            self._all(None)

    def _all(self, limit: int | None) -> None:
        legal = self.evaluation.legal
        split = halves(legal) if self.workers > 1 and self.evaluation.tabled else None
        if split is None:
            self._evaluate(range(len(legal.structures)), limit, self.watch.ask)
        else:
            self._evaluate_beside(*split, limit)

    def _evaluate(self, chosen: Sequence[int], limit: int | None, ask: Ask) -> None:
        watch, structures = self.watch, self.evaluation.legal.structures
        watch.done, watch.total = 0, sum(structures[number].layouts for number in chosen)
        for piece in self.evaluation.pieces(chosen, limit, ask):
            self._count(self.judge.judge(piece.figures, piece.place, piece.ideas))
            watch.done += len(piece.figures.step)
            ask()
            if self.progress is not None:
                self._best_so_far()
                self.progress(watch.done / watch.total, self.found)

    def _best_so_far(self) -> None:
        place = self.ranking.top[0][2] if self.ranking.top else None
        if place is not None and place is not self.best:
            self.best = place
            plan = plan_of(self.evaluation.base, self.evaluation.legal, place)
            self.found.plans = [retimed(plan, self.found.efficiency)]

    def _count(self, counts: Counts) -> None:
        fits, tight, too_large = counts
        self.found.fits += fits
        self.found.tight += tight
        self.found.too_large += too_large

    def _evaluate_beside(self, mine: Sequence[int], theirs: Sequence[int], limit: int | None) -> None:
        """Half of the structures here, half in a process beside this one."""

        def half(ask: Ask) -> _Half:
            self.progress = None
            interrupted = False
            try:
                self._evaluate(theirs, limit, ask)
            except KeyboardInterrupt:
                interrupted = True
            return _Half(self.ranking, (self.found.fits, self.found.tight, self.found.too_large), interrupted)

        other, interrupted = beside(lambda: self._evaluate(mine, limit, self.watch.ask), half, self.watch.ask)
        if other is not None:
            self.ranking.join(other.ranking)
            self._count(other.counts)
            interrupted = interrupted or other.interrupted
        elif not interrupted:
            self._evaluate(theirs, limit, self.watch.ask)
        if interrupted:
            raise KeyboardInterrupt


Ideas = Callable[[Array], Array]
"""A number for each of some layouts: equal ones are of one idea."""


class Judge:
    """What puts layouts into a ranking."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.reach = np.full(MOST_GIB, np.inf)
        """Seconds of the fastest layout so far with so many GiB or less."""

    def judge(self, figures: Figures, place: Callable[[int], Place], ideas: Ideas) -> Counts:
        """Keep what is best of some layouts, and count them."""
        ranking = self.ranking
        fits = figures.high <= ranking.limit
        fitting, too_large = int(np.count_nonzero(fits)), int(np.count_nonzero(figures.low > ranking.limit))
        lowest = int(figures.low.argmin())
        if figures.low[lowest] < (np.inf if ranking.least is None else ranking.least.low):
            ranking.least = place(lowest)
        taken = figures.low <= ranking.limit if ranking.tight else fits
        if taken.any():
            _rank(ranking, taken, figures, place, ideas)
            self._extend_front(taken, figures, place)
        if ranking.apart is not None:
            _rank(ranking.apart, (figures.low <= ranking.limit) & ~fits, figures, place, ideas)
        return fitting, len(fits) - fitting - too_large, too_large

    def _extend_front(self, fits: Array, figures: Figures, place: Callable[[int], Place]) -> None:
        front, reach = self.ranking.front, self.reach
        room = np.minimum(figures.peak / GIB, MOST_GIB - 1).astype(np.int32)
        better = np.nonzero(fits & (figures.step < reach.take(room)))[0]
        if not len(better):
            return
        order = better[np.lexsort((figures.step[better], room[better]))]
        firsts = np.unique(room[order], return_index=True)[1]
        for index in order[firsts].tolist():
            at, step = int(room[index]), float(figures.step[index])
            if step < reach[at]:
                front[at] = place(index)
                reach[at:] = np.minimum(reach[at:], step)


def _rank(ranking: Ranking, taken: Array, figures: Figures, place: Callable[[int], Place], ideas: Ideas) -> None:
    """Keep the best of the layouts that a ranking takes."""
    key = {"throughput": figures.step, "memory": figures.peak, "head-room": figures.high}[ranking.objective]
    chosen = np.nonzero(taken & (key <= ranking.worst()))[0]
    if not len(chosen):
        return
    if ranking.folded:
        chosen = chosen[best_of_each(key[chosen], figures.step[chosen], ideas(chosen), ranking.best)]
    elif len(chosen) > ranking.best:
        chosen = chosen[np.lexsort((figures.step[chosen], key[chosen]))[: ranking.best]]
    ranking.add([(float(key[i]), float(figures.step[i]), place(int(i))) for i in chosen])


class Sampler:
    """The places with the smallest of random numbers: each place is as likely as any other."""

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count, self.random = count, random
        self.kept: list[tuple[float, Place]] = []

    def offer(self, size: int, place: Callable[[int], Place]) -> None:
        """Draw a number for each of so many places."""
        drawn = self.random.random(size)
        worst = self.kept[-1][0] if len(self.kept) >= self.count else 1.0
        chosen = np.nonzero(drawn < worst)[0]
        chosen = chosen[np.argsort(drawn[chosen])[: self.count]]
        self.kept += [(float(drawn[i]), place(int(i))) for i in chosen]
        self.kept = sorted(self.kept, key=lambda item: item[0])[: self.count]


T = TypeVar("T")
MANY = 100_000
"""Legal layouts from which on a second process is worth its start."""


def halves(legal: LegalSpace) -> tuple[list[int], list[int]] | None:
    """The structures by number in two halves of as much work; None where a second process cannot be had or is not worth its start."""
    structures = legal.structures
    if legal.layouts < MANY or len(structures) < 2 or not sys.platform.startswith("linux"):
        return None
    numbers: tuple[list[int], list[int]] = ([], [])
    work = [0, 0]
    cost = [sum(len(style.trainings) for style in structure.styles) for structure in structures]
    for number in sorted(range(len(structures)), key=cost.__getitem__, reverse=True):
        side = int(work[0] > work[1])
        numbers[side].append(number)
        work[side] += cost[number]
    return sorted(numbers[0]), sorted(numbers[1])


def beside(mine: Callable[[], None], theirs: Callable[[Ask], T], ask: Ask) -> tuple[T | None, bool]:
    """What `theirs` gives in a process beside this one while `mine` runs here, and whether it was interrupted.

    None where that process was killed. `theirs` takes what it asks between pieces of work; `ask` is asked here. An interrupt ends
    both early, and the result is what there is.
    """
    import multiprocessing

    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(theirs, far), daemon=True)
    child.start()
    far.close()
    interrupted = False
    try:
        mine()
        while not near.poll(0.1):
            ask()
    except KeyboardInterrupt:
        interrupted = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGINT)
    except BaseException:
        child.terminate()
        child.join()
        raise
    result: T | None = None
    with contextlib.suppress(EOFError):  # it was killed
        result = near.recv()
    child.join()
    return result, interrupted


def _send(theirs: Callable[[Ask], T], pipe: Connection) -> None:
    """Work and send, as long as the process that asked is there."""
    parent = os.getppid()

    def ask() -> None:
        if os.getppid() != parent:
            os._exit(1)

    try:
        result = theirs(ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pipe.send(result)
    except KeyboardInterrupt:  # outside a piece of work: nothing of it is sent
        os._exit(0)


def cells(
    job: TrainingJob, shapes: Sequence[Shape], grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> Cells:
    """The legal cells of the allowed points. Every cell stands for `each` layouts in the counts of what is ruled out."""
    sizes = replicas(job, shapes, grid, allowed, each, ruled_out)
    parts = [
        _of_shape(job, number, shape, np.array(sizes[shape.pp]), grid, each, ruled_out)
        for number, shape in enumerate(shapes)
    ]
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Cells(empty, empty, empty, empty, empty)
    return Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _of_shape(
    job: TrainingJob, number: int, shape: Shape, replicas: Array, grid: Grid, each: int, ruled_out: Counter[str]
) -> tuple[Array, ...]:
    """The legal cells of one shape: its number, GPUs, point, micro batch size and microbatches."""
    batch: Any = job.training.global_batch_size
    per_step: Array = replicas[:, :, None] * np.array(grid.micro)
    counts: Array = np.floor_divide(batch, np.maximum(per_step, 1))
    rest: Array = np.remainder(batch, np.maximum(per_step, 1))
    divides = (per_step > 0) & (rest == 0) & (counts > 0)
    ruled_out[BATCH] += int(((per_step > 0) & ~divides).sum()) * each
    places = np.nonzero(divides)
    count_of = counts[places]
    known, which = np.unique(count_of, return_inverse=True)
    unscheduled = [next(iter(schedule(job.model, shape.layout, int(count))), None) for count in known]
    for broken, cells_of in zip(unscheduled, np.bincount(which, minlength=len(known)).tolist(), strict=True):
        if broken:
            ruled_out[broken.rule] += cells_of * each
    fine = np.array([broken is None for broken in unscheduled], dtype=bool)
    keep = fine[which] if len(known) else np.zeros(0, dtype=bool)
    return (np.full(int(keep.sum()), number), *(index[keep] for index in places), count_of[keep])
