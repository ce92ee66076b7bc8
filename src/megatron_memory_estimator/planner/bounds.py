"""What layouts need and take at least, for all cells of a structure at once: what a search looks at first, and whom it leaves out.

A step is at least as long as what its busiest rank has to do, behind the first microbatch's way there and before the last one's way back
(`throughput/schedule.py` says when each pass may begin). A rank needs at least its state, what it keeps when its first backward begins,
what that has alive, its scratch, and what stands outside torch. Both are sums of the pieces of a rank (`pieces.py`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import getitem
from typing import Any, NamedTuple

from ..device.reserved import built_high, loaded_high, unused_bytes
from ..job.pipeline import Chunk
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..rank.build import context_of
from ..rank.declare import Declarer
from ..rank.keys import Form, PartKey
from ..rank.schedule import Order, warmup_steps
from ..states.fsdp import active
from ..tape.tensor import chosen
from ..throughput.links import highest
from ..throughput.machine import Machine
from ..throughput.schedule import Schedule, pipeline_seconds
from ..throughput.stages import TimeKey, recomputed_share
from ..throughput.step import OVERHEAD, exposed
from .pieces import Moments, Pieces, State
from .sharing import Grids, Piece, SharingDeclarer
from .space.choices import Option, Style
from .space.modelled import NO_RECOMPUTATION
from .space.points import Cells, Grid, Shape
from .space.stages import different_stages

Row = dict[Any, float]
ROUNDED = 1 - 1e-3
"""Bounds are so much lower: what the ends of buffers and latencies of a few large transfers make of many small pieces."""


class Bound(NamedTuple):
    """Of every cell at least: seconds of a step, allocated bytes of the fullest stage, the low and the high end of its device bytes."""

    step: Any
    peak: Any
    low: Any
    high: Any
    passes: Any
    """Of `step`, the seconds of all passes."""


class Made(NamedTuple):
    """What a chunk is made of: its layers in order, and its parts before and behind them."""

    layers: tuple[Piece, ...]
    before: tuple[PartKey, ...]
    behind: tuple[PartKey, ...]

    def pieces(self) -> Counter[Piece]:
        """How many of each piece."""
        return Counter((*self.before, *self.layers, *self.behind))


class Stage(NamedTuple):
    """A stage of a pipeline, and the ranks that it stands for."""

    chunks: tuple[Made, ...]
    ranks: tuple[int, ...]


class Matrix:
    """Rows of how many of each key, as they come."""

    def __init__(self, columns: dict[Any, int] | None = None) -> None:
        self.columns: dict[Any, int] = {} if columns is None else columns
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """One more row."""
        for key in row:
            self.columns.setdefault(key, len(self.columns))
        self.rows.append(row)

    @property
    def keys(self) -> list[Any]:
        """The columns in order."""
        return list(self.columns)

    def table(self, *, arrays: bool) -> Any:
        """[row, column] of counts: an array, or lists."""
        if not arrays:
            return [[float(row.get(key, 0)) for key in self.columns] for row in self.rows]
        import numpy as np

        found = np.zeros((len(self.rows), len(self.columns)))
        at = [(number, self.columns[key]) for number, row in enumerate(self.rows) for key in row]
        if at:
            found[tuple(np.array(at).T)] = [count for row in self.rows for count in row.values()]
        return found


Covered = tuple[str | None, int]
"""How recomputation covers whole layers: the method (None: not at all), and its number."""


def covered(t: Training) -> Covered:
    """How a training recomputes whole layers."""
    if t.recomputes("mhc"):
        return "group", t.mhc_recompute_layer_num or 0
    if t.recompute_granularity != "full":
        return None, 0
    return t.recompute_method or "uniform", 1 if t.recompute_num_layers is None else t.recompute_num_layers


class Timed(NamedTuple):
    """Units as far as time goes: of each stage, and of the chunks that stand before and behind it."""

    keys: list[TimeKey]
    work: Any
    around: Any
    chunks: list[list[list[dict[int, int]]]]
    """[shape][stage][chunk]: how many of each unit, by column."""


class Kept(NamedTuple):
    """What is in flight at the first backward of each stage: how many of each unit keep their tensors, and which ones run."""

    keys: list[tuple[Piece, Form]]
    saved: Any
    beyond: Any
    places: list[list[Any]]
    """[place][way][pipeline and microbatches]: the row of what may be the largest moment of a stage; the last way is repeated."""


class Pipelines:
    """The shapes of a space as rows of counts. Every shape has the same number of stages: the last one is repeated."""

    def __init__(
        self, job: TrainingJob, shapes: Sequence[Shape], counts: Iterable[tuple[int, int]], *, arrays: bool
    ) -> None:
        self.job, self.shapes, self.arrays = job, shapes, arrays
        self.counts = sorted({(shape, shapes[shape].effective(count)) for shape, count in counts})
        self.numbers = {pair: number for number, pair in enumerate(self.counts)}
        declarer = Declarer(context_of(job))
        self.stages = [list(_stages(declarer, job, shape)) for shape in shapes]
        self.most = max(map(len, self.stages))
        first, self.rows = 0, list[list[int]]()
        """[shape][place]: rows of stages."""
        for of in self.stages:
            self.rows.append([first + min(place, len(of) - 1) for place in range(self.most)])
            first += len(of)
        self.before = [float(stage.ranks[-1]) for of in self.stages for stage in of]
        """[stage]: ranks before it."""
        state = Matrix()
        for of in self.stages:
            for stage in of:
                state.add(dict(_summed(chunk.pieces() for chunk in stage.chunks)))
        self.pieces, self.state = state.keys, state.table(arrays=arrays)
        self._timed: dict[Any, Timed] = {}
        self._kept: dict[Any, Kept] = {}

    def timed(self, t: Training) -> Timed:
        """The units of every stage as far as time goes."""
        method, number = covered(t)
        key = (method, number) if method == "block" else t.recompute_granularity == "full"
        if key not in self._timed:
            context = dataclasses.replace(context_of(self.job), training=t)

            def of(chunk: Made) -> Counter[TimeKey]:
                share = recomputed_share(context, len(chunk.layers))
                found: Counter[TimeKey] = Counter(("layer", piece, share) for piece in chunk.layers)
                found.update(("part", part) for part in (*chunk.before, *chunk.behind))
                return found

            work, chunks = Matrix(), []
            around = Matrix(work.columns)
            for stages in self.stages:
                made = [[of(chunk) for chunk in stage.chunks] for stage in stages]
                for stage, each in zip(stages, made, strict=True):
                    work.add(dict(_summed(each)))
                    around.add(_before(stage.ranks[-1], stages, [one[0] for one in made]))
                chunks.append([[{work.columns[key]: n for key, n in one.items()} for one in each] for each in made])
            self._timed[key] = Timed(
                work.keys, work.table(arrays=self.arrays), around.table(arrays=self.arrays), chunks
            )
        return self._timed[key]

    def kept(self, t: Training) -> Kept:
        """What every stage has in flight, for every number of microbatches."""
        key = (*covered(t), t.overlap_moe_expert_parallel_comm)
        if key not in self._kept:
            saved = Matrix()
            beyond = Matrix(saved.columns)
            of_counts: list[list[range]] = []
            for number, count in self.counts:
                of_stages = []
                for stage in self.stages[number]:
                    first = len(saved.rows)
                    for one, more in _in_flight(stage, self.shapes[number], count, t):
                        saved.add(one)
                        beyond.add(more)
                    of_stages.append(range(first, len(saved.rows)))
                of_counts.append(of_stages + of_stages[-1:] * (self.most - len(of_stages)))
            places = [self._ways(ways) for ways in zip(*of_counts, strict=True)]
            self._kept[key] = Kept(
                saved.keys, saved.table(arrays=self.arrays), beyond.table(arrays=self.arrays), places
            )
        return self._kept[key]

    def _ways(self, rows: Sequence[range]) -> list[Any]:
        """[way][pipeline and microbatches] of rows."""
        ways = [[one[min(way, len(one) - 1)] for one in rows] for way in range(max(map(len, rows)))]
        if not self.arrays:
            return ways
        import numpy as np

        return [np.array(way) for way in ways]


def _stages(declarer: Declarer, job: TrainingJob, shape: Shape) -> Iterator[Stage]:
    for chunks, ranks in different_stages(declarer, shape.of(job.model), shape.layout):
        yield Stage(tuple(_made(declarer, chunk) for chunk in chunks), ranks)


def _made(declarer: Declarer, chunk: Chunk) -> Made:
    before, behind = declarer.parts(chunk)
    return Made(tuple(map(declarer.kind, chunk.layers)), tuple(before), tuple(behind))


def _summed(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in counters:
        found.update(one)
    return found


def _before(rank: int, stages: Sequence[Stage], heads: Sequence[Counter[TimeKey]]) -> Row:
    """The first chunks of the ranks before a rank."""
    found: Counter[TimeKey] = Counter()
    for stage, head in zip(stages, heads, strict=True):
        ranks = sum(one < rank for one in stage.ranks)
        for key, count in head.items():
            found[key] += count * ranks
    return dict(found)


def _in_flight(stage: Stage, shape: Shape, count: int, t: Training) -> Iterator[tuple[Row, Row]]:
    """Units that keep their tensors when the first backward of a stage begins, and the one that it has reached, for each that may be the
    largest: the last layer, and what follows it."""
    vp, together = len(stage.chunks), t.overlap_moe_expert_parallel_comm
    warmup = warmup_steps(shape.pp, vp, stage.ranks[0], count, shape.group, a2a_overlap=together)
    order = Order(vp, count, shape.group if vp > 1 else 1)
    steps = warmup if together else min(warmup + 1, count * vp)
    held: Counter[Any] = Counter()
    for at, chunk in enumerate(stage.chunks):
        for key, number in _units(chunk, t).items():
            held[key] += number * order.passed(at, steps)
    last = stage.chunks[-1]
    if not (last.layers or last.behind):
        yield dict(held), {}
        return
    running: list[Any] = [(piece, _form(last, len(last.layers) - 1, t)) for piece in last.layers[-1:]]
    running += [(part, "layer") for part in last.behind]
    for at, unit in enumerate(running):
        kept = Counter(held)
        kept.subtract(running[at + 1 :])
        yield dict(kept), {unit: 1.0}


def _units(chunk: Made, t: Training) -> Counter[Any]:
    """The units of a chunk as far as what they keep goes. Of layers under one checkpoint, the first keeps the input of all."""
    method, number = covered(t)
    found: Counter[Any] = Counter((part, "layer") for part in (*chunk.before, *chunk.behind))
    for index, piece in enumerate(chunk.layers):
        if method == "uniform" and index % max(number, 1):
            continue
        found[piece, _form(chunk, index, t)] += 1
    return found


def _form(chunk: Made, index: int, t: Training) -> Form:
    method, number = covered(t)
    if method == "group":
        return "group"
    return "checkpoint" if method == "uniform" or (method == "block" and index < number) else "layer"


class Cost(NamedTuple):
    """What the cells have with one option, whatever is recomputed: state by stage, the most beside it, what is outside torch."""

    states: list[State]
    beside: list[Moments]
    low: Any
    high: Any


class Passes(NamedTuple):
    """Seconds of a forward and of a backward of one microbatch by stage, and of all passes of a step."""

    forward: list[Any]
    backward: list[Any]
    step: Any


class Columns:
    """Figures of units: a row of `values` for each, and `at`, the column of every cell."""

    def __init__(self, values: Any, at: Any) -> None:
        self.values, self.at = values, at

    def and_also(self, other: Columns) -> Columns:
        """The sums of two figures of each unit."""
        return Columns(self.values + other.values, self.at)

    @cached_property
    def of_cells(self) -> Any:
        """[cell, unit]."""
        return self.values.T[self.at]


class Rows:
    """Counts of units: a row of `table` for each different stage, and `at`, the row of every cell.

    Cells are many, stages and degrees few: figures are weighed for all pairs of these, where they are fewer than the cells.
    """

    def __init__(self, table: Any, rows: Any) -> None:
        import numpy as np

        different, self.at = np.unique(rows, return_inverse=True)
        self.table = table[different]

    @cached_property
    def of_cells(self) -> Any:
        """[cell, unit]."""
        return self.table[self.at]

    def weighed(self, figures: Columns) -> Any:
        """Of every cell the sum of the figures, each so many times."""
        import numpy as np

        if len(self.table) * figures.values.shape[1] <= PAIRS * len(self.at):
            return (self.table @ figures.values)[self.at, figures.at]
        return np.einsum("nk,nk->n", self.of_cells, figures.of_cells)

    def most(self, figures: Columns) -> Any:
        """Of every cell the largest of the figures of units that it has."""
        import numpy as np

        if len(self.table) * figures.values.shape[1] > PAIRS * len(self.at):
            return ((self.of_cells > 0) * figures.of_cells).max(axis=1)
        found = np.zeros((len(self.table), figures.values.shape[1]))
        for held, values in zip(self.table.T > 0, figures.values, strict=True):
            found[held] = np.maximum(found[held], values)
        return found[self.at, figures.at]


PAIRS = 2
"""So many times as many pairs as cells are still sooner weighed."""


class Bounds:
    """The bounds of some cells of one structure and style: of all at once as arrays, or of a single one."""

    def __init__(
        self,
        job: TrainingJob,
        machine: Machine,
        pipelines: Pipelines,
        grid: Grid,
        style: Style,
        cells: Cells,
        known: Grids,
        states: Grids,
    ) -> None:
        self.job, self.pipelines, self.cells, self.arrays = job, pipelines, cells, pipelines.arrays
        shapes = pipelines.shapes
        shape, world, point, micro, self.count = map(
            self._column, (cells.shape, cells.world, cells.point, cells.micro, cells.count)
        )
        stages, self.chunks = (self._of([getattr(one, name) for one in shapes], shape) for name in ("pp", "vp"))
        pairs, self.replica = self._different(stages, world, len(grid.worlds))
        replicas = [(pp, grid.worlds[number]) for pp, number in pairs]
        self.pieces = Pieces(job, machine, grid, style, replicas, known, states, arrays=self.arrays)
        ways, way = self._different(shape, self.count, max(cells.count) + 1)
        self.pair = self._of([pipelines.numbers[one, shapes[one].effective(n)] for one, n in ways], way)
        self.flat = point * len(grid.micro) + micro
        self.rows = [self._of(column, shape) for column in zip(*pipelines.rows, strict=True)]
        """[place]: the row of each cell's stage."""
        self.before = [self._of(pipelines.before, at) for at in self.rows]
        """[place]: ranks before the last one that a stage stands for."""
        self._costs: dict[Option, Cost] = {}
        self._passed: dict[Training, Passes] = {}
        self._weights: dict[Any, list[Any]] = {}

    # -- one value for each cell, or the value of the only one -------------------------------------------------------------
    def _column(self, values: Sequence[Any]) -> Any:
        if not self.arrays:
            (value,) = values
            return value
        import numpy as np

        return np.array(values)

    def _of(self, values: Sequence[Any], at: Any) -> Any:
        """The values at some places."""
        if not self.arrays:
            return values[at]
        import numpy as np

        return np.array(values)[at]

    def _different(self, first: Any, second: Any, size: int) -> tuple[list[tuple[int, int]], Any]:
        """The different pairs of two columns, of which the second is below `size`, and which of them each cell has."""
        numbers: Any = [first * size + second]
        which: Any = 0
        if self.arrays:
            import numpy as np

            numbers, which = np.unique(numbers[0], return_inverse=True)
        return [divmod(int(number), size) for number in numbers], which

    def _counts(self, name: Any, table: Any, rows: Sequence[Any]) -> list[Any]:
        """[place] of how many of each unit the cells have; found once."""
        if name not in self._weights:
            made = Rows if self.arrays else getitem
            self._weights[name] = [made(table, at) for at in rows]
        return self._weights[name]

    def _figures(self, table: Sequence[Any]) -> Any:
        """The figures of units at the degrees of each cell."""
        if not self.arrays:
            return table
        import numpy as np

        return Columns(np.array(table, dtype=float), self.flat)

    def _weighed(self, counts: Any, figures: Any) -> Any:
        """The figures of units, each so many times."""
        if self.arrays:
            return counts.weighed(figures)
        return sum([count * one for count, one in zip(counts, figures, strict=True) if count])

    def _replicas(self, values: Sequence[Any]) -> Any:
        """The value of each cell's replicas, at its degrees."""
        if not self.arrays:
            return values[self.replica]
        import numpy as np

        return np.array(values)[self.replica, self.flat]

    def _at_replicas(self, table: Sequence[Any]) -> Any:
        """The figures of pieces at the replicas of each cell."""
        if not self.arrays:
            return [self._replicas(of_piece) for of_piece in table]
        import numpy as np

        values = np.array(table, dtype=float)
        pieces, _, points = values.shape
        return Columns(values.reshape(pieces, -1), self.replica * points + self.flat)

    def passes(self, training: Training, cell: int) -> float:
        """Seconds of all passes of a cell's step, from its schedule event by event."""
        declarer, pipelines = self.pieces.declarer(training), self.pipelines
        timed, shape = pipelines.timed(training), self.cells.shape[cell]
        pipeline = pipelines.shapes[shape]
        ahead, behind = self.pieces.times(declarer, timed.keys)
        flat, replica = (int(one[cell]) if self.arrays else one for one in (self.flat, self.replica))
        sent = self.pieces.sends(training, pipeline.vp)[replica]
        both = [[float(one[flat] if self.arrays else one) for one in way] for way in (ahead, behind)]
        each = float(sent[flat] if self.arrays else sent) / (2 * pipeline.vp)
        of_ranks = sorted(
            (rank, chunks)
            for stage, chunks in zip(pipelines.stages[shape], timed.chunks[shape], strict=True)
            for rank in stage.ranks
        )
        seconds = [
            each + sum([count * way[unit] for unit, count in chunk.items()])
            for _, chunks in of_ranks
            for chunk in chunks
            for way in both
        ]
        together = training.overlap_moe_expert_parallel_comm
        schedule = Schedule(pipeline.pp, pipeline.vp, pipeline.group, together)
        return float(pipeline_seconds(schedule, int(self.cells.count[cell]), seconds))

    # ----------------------------------------------------------------------------------------------------------------------
    def of(self, training: Training, options: Sequence[Option]) -> list[Bound]:
        """The bounds of one training with every option."""
        declarer = self.pieces.declarer(training)
        running, scratch = self._activations(declarer, training), self._scratch(declarer)
        return self._bounds(training, options, running, scratch)

    def idle(self, training: Training, options: Sequence[Option]) -> list[Bound]:
        """The bounds of one training without its activations: sooner found."""
        nothing = [0.0] * self.pipelines.most
        return self._bounds(training, options, nothing, nothing)

    def least(self, training: Training, options: Sequence[Option]) -> list[Bound]:
        """The bounds of any recomputation: the seconds of none, and no activations."""
        return self.idle(dataclasses.replace(training, **NO_RECOMPUTATION), options)

    def _bounds(
        self, training: Training, options: Sequence[Option], running: Sequence[Any], scratch: Sequence[Any]
    ) -> list[Bound]:
        declarer = self.pieces.declarer(training)
        if training not in self._passed:
            self._passed[training] = self._passes(declarer, training)
        passes = self._passed[training]
        return [self._bound(training, self._cost(declarer, one), passes, running, scratch) for one in options]

    def _cost(self, declarer: SharingDeclarer, option: Option) -> Cost:
        if option not in self._costs:
            pipelines = self.pipelines
            found = self.pieces.states(declarer, pipelines.pieces, option)
            tables = [self._at_replicas(table) for table in found.state]
            moments = [[self._at_replicas(table) for table in tables] for tables in found.moments]
            low, high = self.pieces.outside(declarer.context.training)
            counts = self._counts("state", pipelines.state, self.rows)
            self._costs[option] = Cost(
                [State(*(self._weighed(of_stage, table) for table in tables)) for of_stage in counts],
                [
                    Moments(*(reduce(highest, (self._weighed(of_stage, one) for one in end), 0.0) for end in moments))
                    for of_stage in counts
                ],
                self._replicas(low),
                self._replicas(high),
            )
        return self._costs[option]

    def _passes(self, declarer: SharingDeclarer, training: Training) -> Passes:
        timed = self.pipelines.timed(training)
        ahead, behind = self.pieces.times(declarer, timed.keys)
        ahead, behind = self._figures(ahead), self._figures(behind)
        both = (
            ahead.and_also(behind) if self.arrays else [one + other for one, other in zip(ahead, behind, strict=True)]
        )
        alone, several = (self._replicas(self.pieces.sends(training, n)) / n for n in (1, 2))
        sends = chosen(self.chunks > 1, several * self.chunks, alone)
        work = self._counts((id(timed), "work"), timed.work, self.rows)
        around = self._counts((id(timed), "around"), timed.around, self.rows)
        forward, backward, steps = [], [], []
        for of_stage, before, ranks in zip(work, around, self.before, strict=True):
            forward.append(self._weighed(of_stage, ahead))
            backward.append(self._weighed(of_stage, behind))
            way = self._weighed(before, both) + ranks * sends / self.chunks
            steps.append(self.count * (forward[-1] + backward[-1] + sends) + way)
        return Passes(forward, backward, reduce(highest, steps))

    def _activations(self, declarer: SharingDeclarer, training: Training) -> list[Any]:
        """[stage] of what is alive when the first backward has begun."""
        kept = self.pipelines.kept(training)
        saved, beyond = self.pieces.held(declarer, kept.keys)
        saved, beyond = self._figures(saved), self._figures(beyond)
        found = []
        for place, ways in enumerate(kept.places):
            rows = [way[self.pair] for way in ways]
            stay = self._counts((id(kept), "saved", place), kept.saved, rows)
            run = self._counts((id(kept), "beyond", place), kept.beyond, rows)
            sums = (self._weighed(a, saved) + self._weighed(b, beyond) for a, b in zip(stay, run, strict=True))
            found.append(reduce(highest, sums))
        return found

    def _scratch(self, declarer: SharingDeclarer) -> list[Any]:
        """[stage] of persistent scratch: what the piece with most of it has once, and what every copy has."""
        once, each = map(self._figures, self.pieces.scratch(declarer, self.pipelines.pieces))
        found = []
        for counts in self._counts("state", self.pipelines.state, self.rows):
            if self.arrays:
                most = counts.most(once)
            else:
                most = max((one for count, one in zip(counts, once, strict=True) if count), default=0.0)
            found.append(most + self._weighed(counts, each))
        return found

    def _bound(
        self, training: Training, cost: Cost, passes: Passes, running: Sequence[Any], scratch: Sequence[Any]
    ) -> Bound:
        job = dataclasses.replace(self.job, training=training)
        c, phases = context_of(job), job.env.phases
        peaks, lows, highs, reduced, gathered = [], [], [], [], []
        for place, (state, beside) in enumerate(zip(cost.states, cost.beside, strict=True)):
            moving = running[place] + scratch[place]
            peak = state.state + moving
            low, high = peak, peak + unused_bytes(job, peak, moving + state.own)
            if training.cuda_graph_impl == "full_iteration":
                high = high + chosen(moving <= state.stepping, moving, state.stepping)
            if "save" in phases:
                steady = state.state + scratch[place]
                low, high = highest(low, steady + beside.save_low), highest(high, steady + beside.save)
            if "load" in phases:
                low = highest(low, state.loaded + beside.load_low)
                high = highest(high, loaded_high(job, state.loaded + beside.load))
            if "build" in phases:
                high = highest(high, built_high(job, state.apart))
            peaks.append(peak)
            lows.append(low + cost.low)
            highs.append(high + cost.high)
            ahead, behind = exposed(c, state.reduce, state.gather, passes.forward[place], passes.backward[place])
            reduced.append(ahead)
            gathered.append(behind)
        often = self.count if active(c) else 1
        step = passes.step + reduce(highest, reduced) * often + reduce(highest, gathered)
        step = step + reduce(highest, [state.optimizer for state in cost.states]) + OVERHEAD
        peak, low, high = (reduce(highest, values) * ROUNDED for values in (peaks, lows, highs))
        return Bound(step * ROUNDED, peak, low, high, passes.step)
