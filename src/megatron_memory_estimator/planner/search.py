"""Every legal layout of a space: its memory, its step time, and what was ruled out by which rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency, machine
from .counting import Ask, LegalSpace, legal_space
from .evaluation import Evaluation
from .found import Found, Plan
from .judge import Judge
from .outcome import Progress, begun, ended, nothing_legal
from .places import Place, plan_of
from .ranking import Counts, Ranking, ranking_of
from .retimed import retimed
from .sampling import Sampler
from .space.axes import Space
from .space.cells import cells
from .space.defaults import completed
from .watch import Watch
from .workers import beside, halves


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
