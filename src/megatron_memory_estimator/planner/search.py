"""Every legal layout of a space: its memory, its step time, and what was ruled out by which rule."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ..context import Context
from ..errors import ConfigError, LayoutError, StoppedError, UnsupportedError
from ..estimator import context_of
from ..hardware import GIB
from ..job import TrainingJob
from ..layout import Layout
from ..legality import pipeline_sides
from ..throughput.machine import Efficiency, Machine, machine
from ..training import Training
from .batch import side
from .figures import Figures, Structure, alone, in_arrays, training_with, whole
from .legal import Cells, at_point, cells, hopeless, reasons, rule_of
from .shapes import Peaks, Shape, peaks, stages, symbols
from .space import (
    Option,
    Space,
    Style,
    asks_for_sequences,
    completed,
    options,
    precision_settings,
    recompute_sets,
    shapes,
    styles,
    tabled,
    unsupported,
)
from .tables import Grid, Pipelines

Array = np.ndarray[Any, Any]
TRIES = 1000
"""Layouts tried for a legal one, for each precision, recomputation and optimizer."""
OBJECTIVES = ("throughput", "memory", "head-room")
MANY = 100_000
"""Legal layouts from which on a second process is worth its start."""


@dataclass(frozen=True)
class Plan:
    """A layout with its figures: seconds of a step, and bytes of the fullest stage: allocated, needed on the device, surely enough."""

    job: TrainingJob
    recompute: str
    precision: str
    step: float
    tokens_per_s_gpu: float
    peak_allocated_bytes: int
    needed_bytes: int
    device_bytes: int


@dataclass
class Found:
    """The result of a search: the best plans that fit, the front of memory against time, and counts of all others."""

    space: Space
    limit: int
    objective: str = "throughput"
    plans: list[Plan] = field(default_factory=list)
    front: list[Plan] = field(default_factory=list)
    legal: int = 0
    fits: int = 0
    tight: int = 0
    too_large: int = 0
    illegal: Counter[str] = field(default_factory=Counter)
    least: Plan | None = None
    """The legal layout that needs least memory, whether it fits or not."""
    interrupted: bool = False

    @property
    def examined(self) -> int:
        """All layouts of the space."""
        return self.legal + sum(self.illegal.values())


class _Reference(NamedTuple):
    """A legal layout."""

    shape: Shape
    point: tuple[int, int, int, int]
    style: Style
    recompute: Training
    option: Option


@dataclass(frozen=True)
class _Style:
    """A style of a structure with its legal cells and trainings."""

    style: Style
    cells: Cells
    trainings: tuple[tuple[str, Training], ...]
    options: tuple[Option, ...]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return len(self.cells) * len(self.trainings) * len(self.options)


@dataclass(frozen=True)
class _Part:
    grid: Grid
    styles: tuple[_Style, ...]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return sum(style.layouts for style in self.styles)


@dataclass(frozen=True)
class _Place:
    """Where a layout stands."""

    part: int
    order: tuple[int, ...]
    style: Style
    recompute: str
    training: Training
    option: Option
    cell: tuple[int, int, int, int, int]
    step: float
    peak: int
    needed: int
    enough: int


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
    progress: Callable[[float, Found], None] | None = None,
    stop: Callable[[], bool] | None = None,
    nearest: bool = True,
) -> Found:
    """All legal layouts of a space for the job's model and global batch; the `best` that fit, by the objective.

    `limit` is the memory of a GPU in bytes (default: all of it); with `tight`, layouts that fit unless memory is fragmented count too.
    With two `workers` a large space is shared with a second process (Linux). Raises LayoutError when the space holds no legal layout,
    ConfigError for axes that make no sense. KeyboardInterrupt ends it with the best so far; StoppedError where `stop`, asked between
    pieces of work, says True. Without `nearest` no `least` layout is sought where nothing fits.
    """
    if base.refusal:
        raise UnsupportedError(base.refusal)
    if base.training.global_batch_size is None:
        raise ConfigError("the search needs global_batch_size")
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    one = _Search(base, completed(space or Space(), base, everything=everything), best, objective, limit, efficiency)
    one.tight, one.workers, one.stop, one.nearest = tight, workers, stop, nearest
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            one.run(progress)
    except KeyboardInterrupt:
        one.found.interrupted = True
    return one.result()


def _unrecomputed(job: TrainingJob) -> Context:
    """A context of the job without recomputation: every layer is a unit of its own."""
    c = context_of(job)
    return dataclasses.replace(
        c, training=dataclasses.replace(c.training, recompute_granularity=None, recompute_modules=())
    )


def sampled(base: TrainingJob, space: Space, count: int, seed: int) -> list[Plan]:
    """So many random legal layouts of a space with their figures, whether they fit or not."""
    one = _Search(base, completed(space, base), 1)
    one.sampler = _Sampler(count, np.random.default_rng(seed))
    with np.errstate(divide="ignore", invalid="ignore"):
        one.run(None)
    return [one.plan(place) for _, place in one.sampler.kept]


class _Sampler:
    """The places with the smallest of random numbers: each place is as likely as any other."""

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count, self.random = count, random
        self.kept: list[tuple[float, _Place]] = []

    def offer(self, size: int, place: Callable[[int], _Place]) -> None:
        drawn = self.random.random(size)
        worst = self.kept[-1][0] if len(self.kept) >= self.count else 1.0
        chosen = np.nonzero(drawn < worst)[0]
        chosen = chosen[np.argsort(drawn[chosen])[: self.count]]
        self.kept += [(float(drawn[i]), place(int(i))) for i in chosen]
        self.kept = sorted(self.kept, key=lambda item: item[0])[: self.count]


@dataclass(frozen=True)
class _Half:
    """What a process beside this one found."""

    found: Found
    top: list[tuple[float, float, _Place]]
    front: dict[int, _Place]
    least: _Place | None


def _split(parts: Sequence[_Part]) -> tuple[list[int], list[int]] | None:
    """The structures in two halves of as much work; None where a second process cannot be had or has nothing to do."""
    if not sys.platform.startswith("linux") or len(parts) < 2:
        return None
    halves: tuple[list[int], list[int]] = ([], [])
    work = [0.0, 0.0]
    cost = [sum(len(style.trainings) for style in part.styles) for part in parts]
    for index in sorted(range(len(parts)), key=cost.__getitem__, reverse=True):
        side = int(work[0] > work[1])
        halves[side].append(index)
        work[side] += cost[index]
    return sorted(halves[0]), sorted(halves[1])


class _Search:
    sampler: _Sampler | None = None
    tight = False
    workers = 1
    bounded = True
    nearest = True
    stop: Callable[[], bool] | None = None
    done = total = 0

    def __init__(
        self,
        base: TrainingJob,
        space: Space,
        best: int,
        objective: str = "throughput",
        limit: int | None = None,
        efficiency: Efficiency | None = None,
    ) -> None:
        self.base, self.space, self.best = base, space, best
        self.machine: Machine = machine(base.gpu, efficiency, base.env.network_gbs)
        self.found = Found(space, base.gpu.memory_bytes if limit is None else limit, objective)
        self.top: list[tuple[float, float, _Place]] = []
        self.front: dict[int, _Place] = {}
        self.least: _Place | None = None
        self.reach = np.full(4096, np.inf)

    # -- what is legal --------------------------------------------------------------------------------------------------
    def legal(self) -> list[_Part]:
        """The legal cells of every structure; counts what is ruled out."""
        self.sets = recompute_sets(self.base, self.space)
        self.options = options(self.space)
        pipelines = list(shapes(self.base, self.space))
        self.shapes = [shape for shape, _ in pipelines if shape is not None]
        broken = [reason for shape, reason in pipelines if shape is None]
        axes = (
            self.space.tensor_model_parallel_size, self.space.context_parallel_size, self.space.expert_model_parallel_size,
            self.space.expert_tensor_parallel_size,
        )  # fmt: skip
        points = list(product(*axes))
        self.reference = self._reference(points)
        if self.reference is not None:
            at = self.reference
            training = training_with(self._training(at.style.precision, at.recompute), at.option)
            checked = [(shape, self._broken(at._replace(shape=shape), training)) for shape in self.shapes]
            broken += [reason for _, reason in checked if reason]
            self.shapes = [shape for shape, reason in checked if not reason]
        else:
            self._count_all(points, broken)
        parts = list(self._parts(points, broken)) if self.reference is not None else []
        self.found.legal = sum(part.layouts for part in parts)
        return parts

    def run(self, progress: Callable[[float, Found], None] | None) -> None:
        """Memory and time of every legal layout. Raises LayoutError where there is none."""
        parts = self.legal()
        if not self.found.legal:
            rules = [f"{rule} ({count:,} layouts)" for rule, count in self.found.illegal.most_common(3)]
            raise LayoutError(("no layout of the space is legal: " + "; ".join((*rules, *self._relaxations())),))
        self.parts = parts
        self._all(progress)
        if self.nearest and (self.least is None or self.least.needed > self.found.limit):
            # nothing fits: what comes nearest wants every layout evaluated
            self.bounded = False
            self.found = dataclasses.replace(self.found, fits=0, tight=0, too_large=0)
            self._all(progress)

    def _ask(self) -> None:
        """Raise StoppedError where the caller wants no more."""
        if self.stop is None or not self.stop():
            return
        far = f"{self.done:,} of {self.total:,} layouts were evaluated" if self.total else "no layout was evaluated yet"
        gpus = self.space.num_gpus
        shown = ", ".join(map(str, gpus if len(gpus) < 9 else (*gpus[:8], "...")))
        raise StoppedError(
            f"the search on {shown} GPUs was stopped when {far}; narrow the space: fewer num_gpus, one "
            "tensor_model_parallel_size or recompute, one pipeline_model_parallel_size"
        )

    def _all(self, progress: Callable[[float, Found], None] | None) -> None:
        parts = self.parts
        split = _split(parts) if self.workers > 1 and self.found.legal >= MANY and tabled(self.base.training) else None
        if split is None:
            self._evaluate(range(len(parts)), progress)
        else:
            self._evaluate_beside(*split, progress)

    def _evaluate_beside(
        self, mine: Sequence[int], theirs: Sequence[int], progress: Callable[[float, Found], None] | None
    ) -> None:
        """Half of the structures here, half in a process beside this one."""
        import multiprocessing

        context = multiprocessing.get_context("fork")
        near, far = context.Pipe(duplex=False)
        child = context.Process(target=self._send, args=(theirs, far), daemon=True)
        child.start()
        far.close()
        interrupted = False
        try:
            self._evaluate(mine, progress)
            while self.stop is not None and not near.poll(0.1):
                self._ask()
        except StoppedError:
            child.terminate()
            child.join()
            raise
        except KeyboardInterrupt:
            interrupted = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid or 0, signal.SIGINT)
        try:
            other: _Half | None = near.recv()
        except EOFError:  # it was killed
            other = None
        child.join()
        if other is not None:
            self._join(other)
            interrupted = interrupted or other.found.interrupted
        elif not interrupted:
            self._evaluate(theirs, progress)
        if interrupted:
            raise KeyboardInterrupt

    def _send(self, parts: Sequence[int], pipe: Any) -> None:
        """Evaluate and send, as long as the process that asked is there."""
        parent = os.getppid()
        self.stop = None  # the process that asked asks it

        def alone(*_: Any) -> None:
            if os.getppid() != parent:
                os._exit(1)

        try:
            self._evaluate(parts, alone)
        except KeyboardInterrupt:
            self.found.interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        found = dataclasses.replace(self.found, illegal=Counter())
        pipe.send(_Half(found, self.top, self.front, self.least))

    def _join(self, other: _Half) -> None:
        """The results of a half of the space beside those of the other."""
        for name in ("fits", "tight", "too_large"):
            setattr(self.found, name, getattr(self.found, name) + getattr(other.found, name))
        self.top = self._shortened([*self.top, *other.top])
        for at, place in other.front.items():
            if at not in self.front or (place.step, place.order) < (self.front[at].step, self.front[at].order):
                self.front[at] = place
        if self.least is None or (
            other.least and (other.least.needed, other.least.order) < (self.least.needed, self.least.order)
        ):
            self.least = other.least

    def _relaxations(self) -> Iterator[str]:
        """Axes whose usual values would leave something legal."""
        usual = completed(Space(num_gpus=self.space.num_gpus), self.base, everything=True)
        for axis in dataclasses.fields(Space):
            mine, values = getattr(self.space, axis.name), getattr(usual, axis.name)
            if set(values) <= set(mine):
                continue
            other = _Search(self.base, dataclasses.replace(self.space, **{axis.name: values}), 1)
            other.stop = self.stop
            other.legal()
            if other.found.legal:
                shown = ", ".join(map(str, values if len(values) < 9 else (*values[:8], "...")))
                yield f"with {axis.name} {shown}, {other.found.legal:,} layouts are legal"

    def _count_all(self, points: Sequence[Any], broken: Sequence[str]) -> None:
        """No layout is legal: count the rules that each point breaks in the first shape."""
        each = len(self.space.num_gpus) * len(self.space.micro_batch_size) * len(self.sets) * len(self.options)
        for reason in broken:
            self.found.illegal[rule_of(reason)] += each * len(points)
        for point in points if self.shapes else ():
            self._ask()
            for style in styles(self.space, tp=point[0] > 1, cp=point[1] > 1):
                training = training_with(self._training(style.precision, self.sets[0][1]), self.options[0])
                at = _Reference(self.shapes[0], point, style, self.sets[0][1], self.options[0])
                reason = self._broken(at, training) or "no legal layout was found with it"
                self.found.illegal[rule_of(reason)] += each * len(self.shapes)

    def _parts(self, points: Sequence[Any], broken: Sequence[str]) -> Iterator[_Part]:
        space, base, ruled_out = self.space, self.base, self.found.illegal
        groups: dict[Any, list[tuple[int, int, int, int]]] = {}
        for tp, cp, ep, etp in points:
            groups.setdefault(self._borders(tp, cp, ep, etp), []).append((tp, cp, ep, etp))
        sizes = [space.micro_batch_size]
        if asks_for_sequences(base, space):
            one, more = (tuple(n for n in space.micro_batch_size if (n > 1) == many) for many in (False, True))
            sizes = [some for some in (one, more) if some]
        known: dict[Any, tuple[Cells, Counter[str]]] = {}
        for members, micro in product(groups.values(), sizes):
            inner = len(space.num_gpus) * len(micro) * len(self.sets) * len(self.options)
            grid = Grid(tuple(members), space.num_gpus, micro)
            found = []
            for style in styles(space, tp=members[0][0] > 1, cp=members[0][1] > 1):
                self._ask()
                for reason in broken:
                    ruled_out[rule_of(reason)] += inner * len(members)
                if not self.shapes:
                    continue
                refused = unsupported(base, members[0][1] > 1, style)
                allowed, why = self._points(members, style)
                if refused:
                    allowed, why = [False] * len(members), [refused] * len(members)
                for reason in why:
                    if reason:
                        ruled_out[rule_of(reason)] += inner * len(self.shapes)
                if not any(allowed):
                    continue
                at = members[allowed.index(True)]
                sets, optimizers, pairs = self._choices(at, style)
                each = len(sets) * len(optimizers)
                for reason in pairs:
                    ruled_out[rule_of(reason)] += (
                        inner // len(self.sets) // len(self.options) * len(self.shapes) * sum(allowed)
                    )
                if not each:
                    continue
                key = (id(members), micro, tuple(allowed), each)
                if key not in known:
                    counts: Counter[str] = Counter()
                    known[key] = cells(base, self.shapes, grid, allowed, each, counts), counts
                legal, counts = known[key]
                ruled_out.update(counts)
                if len(legal):
                    found.append(_Style(style, legal, sets, optimizers))
            if found:
                yield _Part(grid, tuple(found))

    def _borders(self, tp: int, cp: int, ep: int, etp: int) -> tuple[Any, ...]:
        """What points of one structure have in common: the side of every border that a declaration asks about."""
        model = self.base.model
        experts = model.num_moe_experts or 0
        apart = side(tp, etp) if experts and ep == 1 else 0
        return tp > 1, cp > 1, ep > 1, etp > 1, side(tp, model.groups), apart, side(experts // ep, 1) if experts else 0

    def _reference(self, points: Sequence[Any]) -> _Reference | None:
        """Any legal layout: rules are asked one axis at a time, the other axes as here. None where nothing tried is legal."""
        draw = Random(0)
        pairs = list(product(self.shapes, points))
        draw.shuffle(pairs)
        sides = {shape.layout: pipeline_sides(self.base.model, shape.layout) for shape in self.shapes}
        tried = [(shape, sides[shape.layout], point) for shape, point in pairs[: 20 * TRIES]]
        combinations = product(self.space.precision, self.sets, self.options)
        for number, (precision, (_, recompute), option) in enumerate(combinations):
            training = training_with(self._training(precision, recompute), option)
            ways = {
                (tp, cp): [
                    dataclasses.replace(style, precision=precision) for style in styles(self.space, tp=tp, cp=cp)
                ]
                for tp, cp in product((False, True), repeat=2)
            }
            known: dict[Any, bool] = {}
            for shape, side_of, point in tried[: TRIES if number else None]:
                for style in ways[point[0] > 1, point[1] > 1]:
                    self._ask()
                    found = _Reference(shape, point, style, recompute, option)
                    key = side_of, point, style
                    if key not in known:
                        known[key] = hopeless(self.base, self._layout(found), training)
                    if not known[key] and not self._broken(found, training):
                        return found
        return None

    def _layout(self, at: _Reference) -> Layout:
        return at_point(at.shape.layout, at.point, at.style, moe=bool(self.base.model.num_moe_experts))

    def _broken(self, at: _Reference, training: Training) -> str:
        return next(iter(reasons(self.base, self._layout(at), training, at.shape.group * at.shape.vp * 2)), "")

    def _points(self, points: Sequence[Any], style: Style) -> tuple[list[bool], list[str]]:
        """Which points are legal, and the first broken rule of the others."""
        assert self.reference is not None
        at = self.reference
        changed = training_with(self._training(style.precision, at.recompute), at.option)
        why = [self._broken(at._replace(point=point, style=style), changed) for point in points]
        return [not reason for reason in why], why

    def _training(self, precision: str, recompute: Training) -> Training:
        """A training of the sets of recomputation with the settings of a precision."""
        return dataclasses.replace(recompute, **precision_settings(self.base, precision))

    def _choices(
        self, point: Any, style: Style
    ) -> tuple[tuple[tuple[str, Training], ...], tuple[Option, ...], list[str]]:
        """Legal sets of recomputation and settings of the optimizer, and the rules that the others break, one for each pair."""
        assert self.reference is not None
        at = self.reference._replace(point=point, style=style)
        merged = [(name, self._training(style.precision, one)) for name, one in self.sets]

        def broken(recompute: Training, option: Option) -> str:
            return self._broken(at, training_with(recompute, option))

        sets = tuple((name, one) for name, one in merged if not broken(one, at.option))
        if not sets:
            return (), (), [broken(one, at.option) for _, one in merged for _ in self.options]
        optimizers = tuple(option for option in self.options if not broken(sets[0][1], option))
        why = [broken(one, at.option) for name, one in merged if name not in dict(sets) for _ in self.options]
        why += [broken(sets[0][1], option) for option in self.options if option not in optimizers for _ in sets]
        return sets, optimizers, why

    # -- memory and time ------------------------------------------------------------------------------------------------
    def _evaluate(self, chosen: Sequence[int], progress: Callable[[float, Found], None] | None) -> None:
        parts = [self.parts[index] for index in chosen]
        self.done, self.total = 0, sum(part.layouts for part in parts)
        fast = tabled(self.base.training)
        known: dict[Any, Peaks] = {}
        if fast:
            counted = {
                (shape, self.shapes[shape].effective(count))
                for part in parts for style in part.styles
                for shape, count in set(zip(style.cells.shape.tolist(), style.cells.count.tolist(), strict=True))
            }  # fmt: skip
            pipelines = Pipelines(self.shapes, stages(self.base, self.shapes, symbols(_unrecomputed(self.base))))
        for index, part in zip(chosen, parts, strict=True):
            self._ask()
            limit = self.found.limit if self.bounded and self.sampler is None else None
            structure = Structure(self.base, self.machine, part.grid, pipelines, limit) if fast else None
            for number_of, style in enumerate(part.styles):
                if structure is not None:
                    trainings = [training for _, training in style.trainings]
                    tables = [self._peaks(training, counted, known) for training in trainings]
                    found: Iterable[Any] = structure.figures(style.style, style.cells, trainings, style.options, tables)
                else:
                    found = self._whole(part, style)
                for at, number, place_of, figures in found:
                    self._judge((index, number_of, at, number), style, place_of, figures)
                    self.done += len(figures.step)
                    self._ask()
                    if progress is not None:
                        progress(self.done / self.total, self.found)

    def _peaks(self, training: Training, counted: Any, known: dict[Any, Peaks]) -> Peaks:
        """Peaks as forms; they differ in how recomputation groups layers into units, and in which layers stay in 16 bits."""
        self._ask()
        t = training
        full = t.recompute_granularity == "full"
        low = bool(t.low_precision and t.first_last_layers_bf16)
        key = (full and (t.recompute_method, t.recompute_num_layers), low)
        if key not in known and full and t.recompute_method == "uniform" and t.recompute_num_layers == 1:
            plain = dataclasses.replace(t, recompute_granularity=None, recompute_method=None, recompute_num_layers=None)
            known[key] = self._peaks(plain, counted, known).checkpointed()
        elif key not in known:
            planner = symbols(dataclasses.replace(context_of(self.base), training=t))
            known[key] = peaks(planner, self.shapes, stages(self.base, self.shapes, planner), counted)
        return known[key]

    def _whole(self, part: _Part, style: _Style) -> Iterator[Any]:
        for at, (_, training) in enumerate(style.trainings):
            for number, option in enumerate(style.options):
                changed = training_with(training, option)
                if in_arrays(changed):
                    figures = whole(self.base, self.machine, part.grid, style.style, self.shapes, style.cells, changed)
                    yield at, number, (lambda places: places), figures
                    continue
                for place in range(len(style.cells)):
                    cell = style.cells.at(slice(place, place + 1))
                    figures = alone(self.base, self.machine, part.grid, style.style, self.shapes, cell, changed)
                    yield at, number, (lambda places, shift=place: places + shift), figures

    # -- what is kept -----------------------------------------------------------------------------------------------------
    def _judge(self, order: tuple[int, int, int, int], style: _Style, place_of: Any, figures: Figures) -> None:
        part, _, at, number = order
        limit = self.found.limit
        fits = figures.enough <= limit
        fitting = int(np.count_nonzero(fits))
        needed = int(np.count_nonzero(figures.needed > limit))
        self.found.fits += fitting
        self.found.too_large += needed
        self.found.tight += len(fits) - fitting - needed

        def place(index: int) -> _Place:
            name, training = style.trainings[at]
            source = int(place_of(np.array(index)))
            cell = tuple(int(getattr(style.cells, f.name)[source]) for f in dataclasses.fields(Cells))
            return _Place(
                part, (*order, source), style.style, name, training, style.options[number], cell,  # type: ignore[arg-type]
                float(figures.step[index]), int(figures.peak[index]), int(figures.needed[index]), int(figures.enough[index]),
            )  # fmt: skip

        if self.sampler is not None:
            self.sampler.offer(len(fits), place)
        lowest = int(figures.needed.argmin())
        if figures.needed[lowest] < (np.inf if self.least is None else self.least.needed):
            self.least = place(lowest)
        if self.tight:
            fits = figures.needed <= limit
        if not fits.any():
            return
        untimed = style.options[number].offloaded > 0
        self._rank(fits, figures, place, untimed=untimed)
        if not untimed:
            self._extend_front(fits, figures, place)

    def _rank(self, fits: Array, figures: Figures, place: Callable[[int], _Place], *, untimed: bool) -> None:
        key = {"throughput": figures.step, "memory": figures.peak, "head-room": figures.enough}[self.found.objective]
        if untimed and self.found.objective == "throughput":
            key = key + 1e9  # behind every plan whose step time is known
        worst = self.top[-1][0] if len(self.top) >= self.best else np.inf
        chosen = np.nonzero(fits & (key <= worst))[0]
        if not len(chosen):
            return
        if len(chosen) > self.best:
            chosen = chosen[np.lexsort((figures.step[chosen], key[chosen]))[: self.best]]
        self.top += [(float(key[i]), float(figures.step[i]), place(int(i))) for i in chosen]
        self.top = self._shortened(self.top)

    def _shortened(self, top: Sequence[tuple[float, float, _Place]]) -> list[tuple[float, float, _Place]]:
        """The best, each once: sets of recomputation that cover the same layers are one layout, the first counts."""
        alike: dict[Any, Any] = {}
        for item in sorted(top, key=lambda item: (item[0], item[1], item[2].order)):
            at = item[2]
            alike.setdefault((item[0], at.step, at.peak, at.enough, at.part, at.cell, at.style, at.option), item)
        return list(alike.values())[: self.best]

    def _extend_front(self, fits: Array, figures: Figures, place: Callable[[int], _Place]) -> None:
        """The fastest layout for each GiB of allocated memory, where less memory is not as fast."""
        room = np.minimum(figures.peak / GIB, 4095).astype(np.int32)
        better = np.nonzero(fits & (figures.step < self.reach.take(room)))[0]
        if not len(better):
            return
        order = better[np.lexsort((figures.step[better], room[better]))]
        firsts = np.unique(room[order], return_index=True)[1]
        for index in order[firsts].tolist():
            at, step = int(room[index]), float(figures.step[index])
            if step < self.reach[at]:
                self.front[at] = place(index)
                self.reach[at:] = np.minimum(self.reach[at:], step)

    # -- the result -------------------------------------------------------------------------------------------------------
    def result(self) -> Found:
        found = self.found
        found.plans = [self.plan(place) for _, _, place in self.top]
        front, fastest = [], np.inf
        for _, place in sorted(self.front.items()):
            if place.step < fastest:
                front.append(place)
                fastest = place.step
        found.front = [self.plan(place) for place in front]
        found.least = self.plan(self.least) if self.least else None
        return found

    def plan(self, place: _Place) -> Plan:
        """A place as a layout with its figures."""
        shape, world, point, micro, count = place.cell
        base, grid = self.base, self.parts[place.part].grid
        gpus, size = grid.worlds[world], grid.micro[micro]
        layout = at_point(
            self.shapes[shape].layout, grid.points[point], place.style, moe=bool(base.model.num_moe_experts)
        )
        training = dataclasses.replace(training_with(place.training, place.option), micro_batch_size=size)
        layout = dataclasses.replace(
            layout, world_size=gpus, num_distributed_optimizer_instances=base.layout.num_distributed_optimizer_instances
        )
        job = dataclasses.replace(base, layout=layout, training=training, num_microbatches=count, assumptions=())
        assert training.global_batch_size is not None
        tokens = training.global_batch_size * training.seq_length / place.step / gpus
        return Plan(
            job, place.recompute, place.style.precision, place.step, tokens, place.peak, place.needed, place.enough
        )
