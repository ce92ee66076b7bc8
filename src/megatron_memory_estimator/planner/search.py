"""The best layouts of a space: the most promising first, until no other can be better.

Bounds from below (`bounds.py`) say of every layout what it takes and needs at least. They are found where a search gets to: first for any
recomputation, then for each. Layouts are evaluated one by one, as `estimate` does it, in the order of their bounds; once the bounds of
all others are behind the plans that were found, these are the best. So few are evaluated, and their figures are those of `estimate`.

How a search begins: what is refused at once, what is said where nothing is legal; how far it is, and whether its caller wants more.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from heapq import heappop, heappush
from itertools import product
from random import Random
from typing import Any, NamedTuple

from ..accept import modelled
from ..dataclass import dataclass
from ..errors import ConfigError, LayoutError, NumPyError, StoppedError
from ..job.training_job import TrainingJob
from ..rank.build import context_of
from ..rank.declare import Declarer
from ..throughput.machine import Efficiency, Machine, machine
from .bounds import ROUNDED, Bound, Bounds, Pipelines
from .counting import Known, LegalSpace, LegalStructure, LegalStyle, legal_space, relaxations
from .exact import Exact
from .found import OBJECTIVES, Found, Objective, Plan, faster, less
from .sharing import Grids
from .space.axes import AXES, Space
from .space.choices import training_with
from .space.defaults import completed
from .space.features import Variant, beside_stateless
from .space.points import Cells, Grid, at_point
from .space.thinned import kept_of, thinned

# -- how a search begins -----------------------------------------------------------------------------------------------

Progress = Callable[[float, Found], None]
"""Told the share of layouts that are bounded, and what is found so far."""


def begun(
    base: TrainingJob,
    space: Space | None,
    objective: str,
    limit: int | None,
    efficiency: Efficiency | None,
    *,
    everything: bool,
) -> Found:
    """The result of a search before it looks at anything. Raises UnsupportedError and ConfigError for what cannot be searched."""
    modelled(base)
    if base.training.global_batch_size is None:
        raise ConfigError("the search needs global_batch_size")
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    whole = completed(space or Space(), base, everything=everything)
    return Found(whole, base.gpu.memory_bytes if limit is None else limit, objective, efficiency=efficiency)


def nothing_legal(base: TrainingJob, found: Found, watch: Watch) -> LayoutError:
    """What most layouts break, and which axes would leave something legal."""
    rules = [f"{rule} (layouts: {count:,})" for rule, count in found.illegal.most_common(3)]
    help_ = relaxations(base, found.space, watch.ask)
    return LayoutError(("no layout of the space is legal: " + "; ".join((*rules, *help_)),))


@dataclasses.dataclass
class Watch:
    """Asks `stop` between pieces of work on some numbers of GPUs."""

    worlds: tuple[int, ...]
    stop: Callable[[], bool] | None = None
    done: int = 0
    total: int = 0
    tell: Callable[[], None] | None = None
    """Called before anything is bounded, as often as `stop` is asked."""

    def ask(self) -> None:
        """Raise StoppedError where the caller wants no more."""
        if not self.total and self.tell is not None:
            self.tell()
        if self.stop is None or not self.stop():
            return
        far = f"{self.done:,} of {self.total:,} layouts were looked at" if self.total else "no layout was looked at yet"
        shown = ", ".join(map(str, self.worlds if len(self.worlds) < 9 else (*self.worlds[:8], "...")))
        raise StoppedError(
            f"the search on {shown} GPUs was stopped when {far}; narrow the space: fewer num_gpus, one "
            "tensor_model_parallel_size or recompute, one pipeline_model_parallel_size"
        )


APART = 3
"""Tight layouts that are looked for beside those that fit."""
MOST = 8_000 if sys.platform == "emscripten" else 80_000
"""Legal layouts of a space that is searched without NumPy: a second for some three thousand, several in a browser."""
FEW = 32
"""Legal layouts that are looked at one by one in less time than arrays of them take, NumPy's import included."""


THINNED = "without NumPy a part of the space is searched"
"""What is said of a search of fewer values than there are."""
LEAST = Objective(lambda b: b.low, lambda b: b.step, lambda p: (p.needed.low, p.step), faster)
"""What comes nearest where nothing fits."""
WHICHEVER = Objective(lambda b: b.high, lambda b: -b.step, lambda p: (p.needed.high, -p.step), less)
"""Where any plan will do: of layouts with as little state, first those that take longest, which keep least."""
NEAR_ENOUGH = 0.98
"""Of what the layout needs that is named there: none needs less."""


@dataclass(frozen=True)
class Shared:
    """What searches of one model have in common: units that were traced, legal spaces with what is ruled out, and what these know."""

    units: dict[Any, Grids] = field(default_factory=dict)
    legal: dict[Any, tuple[LegalSpace, Counter[str]]] = field(default_factory=dict)
    known: Known = field(default_factory=Known)

    def legal_space(self, base: TrainingJob, found: Found, watch: Watch) -> LegalSpace:
        """The legal layouts of a space; counts what is ruled out."""
        key = found.space, base.training.global_batch_size, base.env.phases
        if key not in self.legal:
            ruled_out: Counter[str] = Counter()
            self.legal[key] = legal_space(base, found.space, ruled_out, watch.ask, self.known), ruled_out
        legal, ruled_out = self.legal[key]
        found.illegal.update(ruled_out)
        return legal


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
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    nearest: bool = True,
    every: bool = False,
    whichever: bool = False,
    shared: Shared | None = None,
    given: Collection[str] | None = None,
) -> Found:
    """All legal layouts of a space for the job's model and global batch; the `best` that fit, by the objective.

    A plan that another one beats in the objective and in memory (or, by memory, in seconds) is left out, unless `every` plan is asked for;
    with `whichever` the first that is found is the only one. `limit` is the memory of a GPU in bytes (default: all of it); with `tight`,
    layouts that fit unless memory is fragmented count too. Raises LayoutError when the space holds no legal layout, ConfigError for axes
    that make no sense. KeyboardInterrupt ends it with the best so far; StoppedError where `stop`, asked between pieces of work, says True.
    Without `nearest` no `least` layout is sought where nothing fits. Without NumPy of a space of more than `MOST` layouts a part is
    searched (`thinned.py`), which keeps the axes that are `given`; where that is too large too, or `given` is None, it is refused
    (NumPyError). `shared` is what other searches of the same model have found.
    """
    found = begun(base, space, objective, limit, efficiency, everything=everything)
    watch = Watch(found.space.num_gpus, stop)
    try:
        shared = shared or Shared()
        watch.tell = (lambda: progress(0.0, found)) if progress is not None else None
        legal = shared.legal_space(base, found, watch)
        if legal.layouts > MOST and given is not None and not _has_numpy():
            whole, layouts = found.space, legal.layouts
            while (
                legal.layouts > MOST
                and (part := thinned(found.space, given, base.model, legal.layouts, MOST)) != found.space
            ):
                found.space, found.illegal = part, Counter()
                legal = shared.legal_space(base, found, watch)
            found.thinned = (f"{THINNED}: {kept_of(whole, found.space)}, of {layouts:,} legal layouts",)
        found.legal = watch.total = legal.layouts
        if not found.legal:
            raise nothing_legal(base, found, watch)
        one = _Search(base, legal, found, watch, progress, shared.units)
        if not one.arrays and found.legal > MOST:
            raise too_large(found)
        if whichever:
            one.run(WHICHEVER, 1, tight=tight, every=every, near=0.0)
        else:
            one.run(OBJECTIVES[objective], best, tight=tight, every=every)
        if nearest and not found.plans:
            one.least()
        one.said(found.legal)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def too_large(found: Found) -> NumPyError:
    """The refusal of a space with more layouts than are bounded one after the other."""
    values = {name: len(getattr(found.space, name)) for name in AXES}
    several = sorted((name for name in AXES if values[name] > 1), key=values.__getitem__, reverse=True)
    axes = ", ".join(f"{name} ({values[name]} values)" for name in several[:4])
    return NumPyError(
        f"without NumPy a space of at most {MOST:,} legal layouts is searched, and this one has {found.legal:,}; list fewer values of "
        f"{axes}, or search where NumPy is installed"
    )


def sampled(base: TrainingJob, space: Space, count: int, seed: int) -> list[Plan]:
    """So many random legal layouts of a space with their figures, whether they fit or not. Raises LayoutError where there is none."""
    found = Found(completed(space, base), base.gpu.memory_bytes)
    watch = Watch(found.space.num_gpus)
    legal = legal_space(base, found.space, found.illegal, watch.ask)
    if not legal.layouts:
        raise nothing_legal(base, found, watch)
    one = _Search(base, legal, found, watch, None, {})
    chosen = set(Random(seed).sample(range(legal.layouts), min(count, legal.layouts)))
    places = (
        (group, training, option, cell)
        for group in one.groups()
        for cell, training, option in product(*map(range, (len(group.cells), *group.style.choices)))
    )
    return [one.plan(*place) for number, place in enumerate(places) if number in chosen]


class Group(NamedTuple):
    """Cells that are bounded together: of one structure and style all, or a single one where NumPy is missing."""

    number: int
    variant: Variant
    grid: Grid
    style: LegalStyle
    cells: Cells
    bounds: Bounds


class Bounded(NamedTuple):
    """How many cells surely do not fit. Of those that may fit: their bounds of the objective, of what else is looked at and of all passes,
    and whether their high end fits, as arrays or lists."""

    hopeless: int
    cells: Any
    keys: Any
    others: Any
    passes: Any
    surely: Any

    @property
    def layouts(self) -> int:
        """All cells."""
        return len(self.cells) + self.hopeless

    def ordered(self, most: float) -> Bounded:
        """As lists, the most promising first, without those that have more of the other figure than `most`."""
        if isinstance(self.keys, list):
            kept = [at for at, other in enumerate(self.others) if other <= most]
            found = [[values[at] for at in kept] for values in self[1:]]
        else:
            import numpy as np

            (kept,) = (self.others <= most).nonzero()
            kept = kept[np.lexsort((self.others[kept], self.keys[kept]))]
            found = [values[kept].tolist() for values in self[1:]]
        return Bounded(self.hopeless, *found)


class Recomputed(NamedTuple):
    """A group with one training, whose activations are not bounded yet: and the least of its other figure."""

    group: Group
    training: int
    other: float


class Block(NamedTuple):
    """Layouts of a group with one training and option that may fit, the most promising first, as lists."""

    group: Group
    training: int
    option: int
    bounded: Bounded


class Timed(NamedTuple):
    """A layout of a block whose step is known exactly."""

    block: Block
    at: int


class _Search:
    def __init__(
        self,
        base: TrainingJob,
        legal: LegalSpace,
        found: Found,
        watch: Watch,
        progress: Progress | None,
        known: dict[Any, Grids],
    ) -> None:
        self.base, self.legal, self.found, self.watch, self.progress, self.known = (
            base, legal, found, watch, progress, known,
        )  # fmt: skip
        self.machine: Machine = machine(base.gpu, found.efficiency, base.env.network_gbs)
        self.exact, self.arrays = Exact(self.machine), legal.layouts > FEW and _has_numpy()
        self.plans: dict[tuple[int, int, int, int], Plan] = {}

    def groups(self) -> Iterator[Group]:
        """The cells of the space, those together that arrays hold."""
        pipelines: dict[Any, Pipelines] = {}
        counts = {
            pair
            for one in self.legal.variants
            for _, style in one.styles
            for pair in zip(style.cells.shape, style.cells.count, strict=True)
        }
        number = 0
        for one in self.legal.variants:
            job, precision, features = one.variant
            kinds = Declarer(context_of(job)).kinds
            if kinds not in pipelines:
                pipelines[kinds] = Pipelines(job, self.legal.shapes, counts, arrays=self.arrays)
            for structure, style in one.styles:
                for grid, cells in self._parts(structure, style):
                    of_grid = self.arrays, grid.points, grid.micro, precision
                    known = self.known.setdefault((*of_grid, style.style, features), Grids())
                    alike = style.style.sequence_parallel, beside_stateless(features)
                    states = self.known.setdefault((*of_grid, *alike), Grids())
                    bounds = Bounds(job, self.machine, pipelines[kinds], grid, style.style, cells, known, states)
                    yield Group(number, one.variant, grid, style, cells, bounds)
                    number += 1

    def _parts(self, structure: LegalStructure, style: LegalStyle) -> Iterator[tuple[Grid, Cells]]:
        grid, cells = structure.grid, style.cells
        if self.arrays:
            yield grid, cells
            return
        for at in range(len(cells)):
            one = cells.at(slice(at, at + 1))
            (point,), (micro,) = one.point, one.micro
            alone = dataclasses.replace(grid, points=(grid.points[point],), micro=(grid.micro[micro],))
            yield alone, dataclasses.replace(one, point=(0,), micro=(0,))

    def run(self, objective: Objective, best: int, *, tight: bool, every: bool, near: float = 1.0) -> None:
        """Find the plans, and tight ones that are better."""
        found, queue = self.found, _Queue(self, objective, self.found.limit, near=near)
        try:
            for plan in queue.plans(tight=tight, every=every):
                found.plans.append(plan)
                if len(found.plans) == best:
                    break
        except KeyboardInterrupt:
            found.plans += queue.evaluated()[: best - len(found.plans)]
            raise
        finally:
            first = objective.of(found.plans[0]) if found.plans else None
            found.apart = [one for one in queue.apart if first is None or objective.of(one) < first]

    def least(self) -> None:
        """The layout that comes nearest, whether it fits or not: none needs 2 % less."""
        before = self.found.evaluated, self.found.fits, self.found.tight, self.found.too_large
        self.found.least = next(_Queue(self, LEAST, None, near=NEAR_ENOUGH).plans(tight=True, every=False))
        self.found.evaluated, self.found.fits, self.found.tight, self.found.too_large = before
        if self.found.least.needed.low * NEAR_ENOUGH > self.found.limit:
            self.found.too_large = self.found.legal

    def plan(self, group: Group, training: int, option: int, cell: int) -> Plan:
        """A layout with its figures."""
        key = group.number, training, option, cell
        if key not in self.plans:
            self.plans[key] = self._plan(group, training, option, cell)
        return self.plans[key]

    def _plan(self, group: Group, training: int, option: int, cell: int) -> Plan:
        base, cells, grid = group.variant.job, group.cells, group.grid
        shape, world, point, micro, count = (
            int(column[cell]) for column in (cells.shape, cells.world, cells.point, cells.micro, cells.count)
        )
        name, chosen = group.style.trainings[training]
        pipeline, model = self.legal.shapes[shape], self.legal.shapes[shape].of(base.model)
        style, gpus = group.style.style, grid.worlds[world]
        own = pipeline.with_instances(base.layout.num_distributed_optimizer_instances)
        layout = dataclasses.replace(
            at_point(own.layout, grid.points[point], style, moe=bool(base.model.num_moe_experts)),
            world_size=gpus,
        )
        batch = base.training.global_batch_size
        t = training_with(chosen, group.style.options[option])
        t = dataclasses.replace(t, micro_batch_size=grid.micro[micro], global_batch_size=batch)
        job = dataclasses.replace(base, model=model, layout=layout, training=t, num_microbatches=count, assumptions=())
        step, parts, peak, needed = self.exact.figures(job)
        assert batch is not None
        tokens = batch * t.seq_length / step / gpus
        return Plan(job, name, group.variant.precision, step, parts, tokens, peak, needed, group.variant.features)

    def said(self, done: int) -> None:
        """Tell how far the search is, and stop where its caller wants no more."""
        self.watch.done = done
        self.watch.ask()
        if self.progress is not None:
            self.progress(done / self.watch.total, self.found)


class _Queue:
    """Layouts in the order of what they take at least; those that were evaluated, of what they take. Of equal ones, by the other figure.

    Without a `limit` every layout is taken. A plan is given where none has less than its share `near` of the objective; where that is 0,
    the layouts of a recomputation come before all other recomputations, once it was opened.
    """

    def __init__(self, search: _Search, objective: Objective, limit: int | None, *, near: float = 1.0) -> None:
        self.search, self.objective, self.limit, self.near = search, objective, limit, near
        self.apart: list[Plan] = []
        self.heap: list[tuple[float, float, int, int, Any]] = []
        """Bounds, a rank of equals, a number that tells entries apart, and a group, a recomputation, a block and its place, or a plan."""
        self.number = self.done = 0

    def plans(self, *, tight: bool, every: bool) -> Iterator[Plan]:
        """The plans in order, each better than those before it in one figure, or every one."""
        for group in self.search.groups():
            self._enter(group)
            self.search.said(self.done)
        most, first = float("inf"), True
        while self.heap:
            _, other, _, _, entry = heappop(self.heap)
            if isinstance(entry, Plan):
                if other <= most:
                    most, first = float("inf") if every else self.objective.worth(other), False
                    yield entry
            elif isinstance(entry, Group):
                self._expand(entry)
            elif isinstance(entry, Recomputed):
                self._open(entry, most=most)
            elif isinstance(entry, Timed):
                if self._wanted(*entry, most=most, tight=tight, first=first):
                    self._evaluate(*entry, tight=tight)
            else:
                self._next(*entry, most=most, tight=tight, first=first)
            self.search.said(self.done)

    def evaluated(self) -> list[Plan]:
        """Plans that were evaluated and not yet given, in order."""
        return [entry for *_, entry in sorted(self.heap, key=lambda one: one[:4]) if isinstance(entry, Plan)]

    def _push(self, key: float, other: float, entry: Any, rank: int = 0) -> None:
        heappush(self.heap, (key, other, rank, self.number, entry))
        self.number += 1

    def _enter(self, group: Group) -> None:
        """A group whose cells may fit with some recomputation."""
        trainings = group.style.trainings
        bounds = [self._bounded(bound) for bound in group.bounds.least(trainings[0][1], group.style.options)]
        self.search.found.too_large += sum(one.hopeless for one in bounds) * len(trainings)
        hopeful = [one for one in bounds if len(one.cells)]
        if hopeful:
            self._push(min(_least(one.keys) for one in hopeful), 0.0, group)
        else:
            self.done += sum(one.layouts for one in bounds) * len(trainings)

    def _bounded(self, bound: Bound) -> Bounded:
        limit = float("inf") if self.limit is None else self.limit
        figures = self.objective.key(bound), self.objective.other(bound), bound.passes
        if isinstance(bound.low, float):
            cells = [0] if bound.low <= limit else []
            one = [[value] * len(cells) for value in (*figures, bound.high <= limit)]
            return Bounded(1 - len(cells), *[cells, *one])
        (fitting,) = (bound.low <= limit).nonzero()
        columns = [values[fitting] for values in (*figures, bound.high <= limit)]
        return Bounded(len(bound.low) - len(fitting), *[fitting, *columns])

    def _expand(self, group: Group) -> None:
        """The recomputations of a group, each with the seconds that it takes."""
        for number, (_, training) in enumerate(group.style.trainings):
            bounds = [self._bounded(bound) for bound in group.bounds.idle(training, group.style.options)]
            hopeful = [one for one in bounds if len(one.cells)]
            if hopeful:
                key, other = (
                    min(map(_least, values))
                    for values in zip(*((one.keys, one.others) for one in hopeful), strict=True)
                )
                self._push(key, other, Recomputed(group, number, other))
            else:
                self.done += sum(one.layouts for one in bounds)
            self.search.said(self.done)

    def _open(self, one: Recomputed, *, most: float) -> None:
        """The layouts of a group with a recomputation."""
        group, training, other = one
        _, chosen = group.style.trainings[training]
        if other > most:
            return
        for option, bound in enumerate(group.bounds.of(chosen, group.style.options)):
            found = self._bounded(bound)
            self.done += found.layouts
            ordered = found.ordered(most)
            if ordered.cells:
                block = Block(group, training, option, ordered)
                self._push(self._next_key(ordered.keys[0]), ordered.others[0], (block, 0))

    def _next(self, block: Block, at: int, *, most: float, tight: bool, first: bool) -> None:
        """The next layout of a block that may be worth a line: timed exactly, or evaluated where its seconds are not the order."""
        _, cells, keys, others, passes, _ = block.bounded
        while at < len(cells) and not self._wanted(block, at, most=most, tight=tight, first=first):
            at += 1
        if at + 1 < len(cells):
            self._push(self._next_key(keys[at + 1]), others[at + 1], (block, at + 1))
        if at < len(cells):
            key = keys[at]
            if self.objective.timed and self.search.legal.shapes[block.group.cells.shape[cells[at]]].pp > 1:
                _, training = block.group.style.trainings[block.training]
                longer = block.group.bounds.passes(training, cells[at]) - passes[at]
                key += max(longer, 0.0) * ROUNDED
            self._push(self._next_key(key), others[at], Timed(block, at))

    def _next_key(self, key: float) -> float:
        """The key of layouts that were opened."""
        return key if self.near else 0.0

    def _wanted(self, block: Block, at: int, *, most: float, tight: bool, first: bool) -> bool:
        surely = block.bounded.surely[at] or tight or (first and len(self.apart) < APART)
        return surely and block.bounded.others[at] <= most

    def _evaluate(self, block: Block, at: int, *, tight: bool) -> None:
        plan = self.search.plan(block.group, block.training, block.option, block.bounded.cells[at])
        found = self.search.found
        found.evaluated += 1
        limit = plan.needed.high if self.limit is None else self.limit
        if plan.needed.high <= limit:
            found.fits += 1
        elif plan.needed.low <= limit:
            found.tight += 1
            if not tight and len(self.apart) < APART:
                self.apart.append(plan)
        if plan.needed.high <= limit or (tight and plan.needed.low <= limit):
            key, other = self.objective.of(plan)
            self._push(key * self.near, other, plan, _plainness(plan))


def _plainness(plan: Plan) -> int:
    """0 for layers split evenly over stages, 1 for other counts on the first or the last, 2 for a layout in words."""
    return 2 if plan.job.layout.pipeline_model_parallel_layout else int(plan.split != "even")


def _least(values: Any) -> float:
    """The least of a list or an array."""
    return float(min(values) if isinstance(values, list) else values.min())


def _has_numpy() -> bool:
    try:
        import numpy as np
    except ImportError:
        return False
    return bool(np)
