"""A search without NumPy: the layouts of a small space one after the other, as `estimate` takes them.

It finds what `search.py` finds: the same layouts, figures, order and counts. Arrays are hundreds of times faster, so that a large space
is refused here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import product
from typing import NamedTuple

from ..device.terms import Range, widest
from ..device.verdict import device_range
from ..errors import NumPyError
from ..estimator import estimate
from ..job.layout import Layout
from ..job.training_job import TrainingJob
from ..rank.build import build_rank, context_of
from ..rank.declare import Declarer
from ..rank.peak import find_peak
from ..tape.tensor import total
from ..throughput.machine import Efficiency, Machine, machine
from ..throughput.step import step_parts
from .counting import LegalSpace, LegalStyle, legal_space
from .found import Found
from .outcome import Progress, Watch, begun, ended, nothing_legal
from .places import NANOSECONDS, Order, Place, idea_of
from .plain_judge import judge
from .ranking import ranking_of
from .space.axes import AXES, Space
from .space.chains import Chains
from .space.choices import training_with
from .space.plain_cells import Cell, plain_cells
from .space.points import at_point
from .space.routes import route
from .space.stages import different_stages, stands

MOST = 2_000 if sys.platform == "emscripten" else 10_000
"""Legal layouts of a space that is searched: some 6 ms each, several times as long in a browser."""


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
    folded: bool = False,
) -> Found:
    """What `search.search` finds in a space of at most `MOST` legal layouts. Raises what that raises, and NumPyError for a larger space.

    Every layout is evaluated whole: the `least` one is found without `nearest` too.
    """
    found = begun(base, space, objective, limit, efficiency, everything=everything)
    ranking = ranking_of(best, objective, found.limit, tight=tight, folded=folded)
    watch = Watch(found.space.num_gpus, stop)
    legal = LegalSpace((), ())
    try:
        legal = legal_space(base, found.space, found.illegal, watch.ask, plain_cells)
        found.legal = watch.total = legal.layouts
        if not found.legal:
            raise nothing_legal(base, found, watch, plain_cells)
        if found.legal > MOST:
            raise too_large(found)
        for places in _pieces(_Engine(base, machine(base.gpu, efficiency, base.env.network_gbs)), legal, watch):
            fits, tight_ones, too_many = judge(ranking, places)
            found.fits, found.tight = found.fits + fits, found.tight + tight_ones
            found.too_large += too_many
            if progress is not None:
                progress(watch.done / watch.total, found)
    except KeyboardInterrupt:
        found.interrupted = True
    return ended(found, ranking, base, legal)


def too_large(found: Found) -> NumPyError:
    """The refusal of a space with more layouts than are evaluated one after the other."""
    values = {name: len(getattr(found.space, name)) for name in AXES}
    several = sorted((name for name in AXES if values[name] > 1), key=values.__getitem__, reverse=True)
    axes = ", ".join(f"{name} ({values[name]} values)" for name in several[:4])
    return NumPyError(
        f"without NumPy a space of at most {MOST:,} legal layouts is searched, and this one has {found.legal:,}; list fewer values of "
        f"{axes}, or search where NumPy is installed"
    )


def _pieces(engine: _Engine, legal: LegalSpace, watch: Watch) -> Iterator[list[Place]]:
    """The layouts of each style, training and option of a structure, evaluated."""
    for number, structure in enumerate(legal.structures):
        for at, style in enumerate(structure.styles):
            for training, option in product(range(len(style.trainings)), range(len(style.options))):
                chosen = _Chosen(legal, number, style, (number, at, training, option))
                places = []
                for source, cell in enumerate(chosen.cells):
                    watch.ask()
                    places.append(_place(engine, chosen, source, cell))
                    watch.done += 1
                yield places


class _Chosen(NamedTuple):
    """A style, training and option of a structure, and their numbers."""

    legal: LegalSpace
    structure: int
    style: LegalStyle
    numbers: tuple[int, int, int, int]

    @property
    def cells(self) -> Iterator[Cell]:
        """Its legal cells."""
        cells = self.style.cells
        return zip(cells.shape, cells.world, cells.point, cells.micro, cells.count, strict=True)


def _place(engine: _Engine, chosen: _Chosen, source: int, cell: Cell) -> Place:
    """A layout with its figures."""
    shape, world, point, micro, count = cell
    legal, style, (_, _, at, number) = chosen.legal, chosen.style, chosen.numbers
    grid, pipeline = legal.structures[chosen.structure].grid, legal.shapes[shape]
    (name, training), option = style.trainings[at], style.options[number]
    moe = bool(engine.base.model.num_moe_experts)
    layout = at_point(pipeline.layout, grid.points[point], style.style, moe=moe)
    job = dataclasses.replace(
        engine.base,
        layout=dataclasses.replace(layout, world_size=grid.worlds[world]),
        training=dataclasses.replace(training_with(training, option), micro_batch_size=grid.micro[micro]),
        num_microbatches=count,
    )
    step, peak, device = engine.figures(job, pipeline.layout)
    order: Order = (*chosen.numbers, source)
    idea = idea_of(grid.worlds[world], grid.points[point], pipeline, style.style, option, training)
    rounded = round(step * NANOSECONDS) / NANOSECONDS
    return Place(order, style.style, name, training, option, cell, rounded, peak, device.low, device.high, idea)


class _Figures(NamedTuple):
    """Seconds of a step, allocated bytes of the fullest stage, and the range of device bytes."""

    step: float
    peak: int
    device: Range


class _Engine:
    """Evaluates layouts of a base job."""

    def __init__(self, base: TrainingJob, m: Machine) -> None:
        self.base, self.machine, self.chains = base, m, Chains(base.model)

    def figures(self, job: TrainingJob, pipeline: Layout) -> _Figures:
        """The figures of a legal layout, from its stages that are different, or from all of them (`routes.py`)."""
        pipelined = partial(self.chains.pipelined, pipeline)
        if route(job.training, job.model) == "one at a time":
            single = estimate(job)
            ranks = [stage.rank for stage in single.stages]
            parts = step_parts(self.machine, single.declarer, ranks, job.num_microbatches, None, pipelined)
            return _Figures(total(parts.values()), single.peak_stage.peak_allocated_bytes, single.needed)
        declarer = Declarer(context_of(job))
        stages = different_stages(declarer, job.model, job.layout)
        ranks = [build_rank(declarer, chunks, job.num_microbatches, job.gpu, job.env) for chunks, _ in stages]
        found = [(rank, find_peak(rank)) for rank in ranks]
        device = reduce(widest, (device_range(job, rank, peak) for rank, peak in found))
        parts = step_parts(self.machine, declarer, ranks, job.num_microbatches, stands(stages), pipelined)
        return _Figures(total(parts.values()), max(peak.nbytes for _, peak in found), device)
