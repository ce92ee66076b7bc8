"""Memory and step time of cells where a feature needs more than tables hold: from whole ranks on arrays, or one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np

from ...dataclass import dataclass
from ...device.terms import widest
from ...device.verdict import device_range
from ...estimator import estimate
from ...features.cuda_graphs import captures
from ...job.training import Training
from ...job.training_job import TrainingJob
from ...rank.captures import reuses_buffers
from ...rank.declare import Declarer
from ...rank.peak import find_peak
from ...rank.rank import Rank
from ...tape.tensor import total
from ...throughput.machine import Machine
from ...throughput.step import step_parts
from ..space.chains import Chains
from ..space.choices import Option, Style, training_with
from ..space.points import Array, Cells, Grid, Shape, at_point
from ..space.routes import route
from ..space.stages import stands
from .batch import Batch, fullest
from .view import Evaluated, Figures


@dataclass(frozen=True)
class WholeRanks:
    """The points of one structure and style with all shapes, evaluated by the engine rank by rank."""

    job: TrainingJob
    machine: Machine
    grid: Grid
    style: Style
    shapes: Sequence[Shape]
    chains: Chains

    def figures(self, cells: Cells, trainings: Sequence[Training], optimizers: Sequence[Option]) -> Iterator[Evaluated]:
        """The figures of every training and option, in pieces."""
        for (at, training), (number, option) in product(enumerate(trainings), enumerate(optimizers)):
            changed = training_with(training, option)
            if route(changed, self.job.model) == "one at a time":
                for place in range(len(cells)):
                    figures = self.alone(cells.at(slice(place, place + 1)), changed)
                    yield at, number, partial(np.add, place), figures
            else:
                yield at, number, np.asarray, self.together(cells, changed)

    def alone(self, cell: Cells, training: Training) -> Figures:
        """The figures of one cell, from the explained estimate."""
        point, shape = self.grid.points[int(cell.point[0])], self.shapes[int(cell.shape[0])]
        job = dataclasses.replace(
            self.job,
            layout=dataclasses.replace(
                at_point(shape.layout, point, self.style, moe=bool(self.job.model.num_moe_experts)),
                world_size=self.grid.worlds[int(cell.world[0])],
            ),
            training=dataclasses.replace(training, micro_batch_size=self.grid.micro[int(cell.micro[0])]),
            num_microbatches=int(cell.count[0]),
        )
        single = estimate(job)
        ranks = [stage.rank for stage in single.stages]
        values = (
            self._step(job, single.declarer, ranks),
            single.peak_stage.peak_allocated_bytes,
            *single.needed,
        )
        return Figures(*(np.array([float(value)]) for value in values))

    def _step(self, job: TrainingJob, declarer: Declarer, ranks: list[Rank]) -> float:
        parts = step_parts(
            self.machine, declarer, ranks, job.num_microbatches, None, partial(self.chains.pipelined, job.layout)
        )
        return float(total(parts.values()))

    def together(self, cells: Cells, training: Training) -> Figures:
        """The same with arrays as degrees, one batch for each shape and number of microbatches."""
        figures = Figures(*(np.zeros(len(cells)) for _ in dataclasses.fields(Figures)))
        pairs, which = cells.counts()
        by_microbatch = training.defer_embedding_wgrad_compute or (captures(training) and not reuses_buffers(training))
        alike: dict[tuple[int, int], list[int]] = {}
        for number, (shape, count) in enumerate(pairs):
            steps = count if by_microbatch else self.shapes[shape].effective(count)
            alike.setdefault((shape, steps), []).append(number)
        for (shape, _), members in alike.items():
            places = np.nonzero(np.isin(which, members))[0]
            batch = self._batch(self.shapes[shape], cells.at(places), training)
            values = self._evaluate(batch, cells.count[places])
            for name, value in values.items():
                getattr(figures, name)[places] = value
        return figures

    def _batch(self, shape: Shape, cells: Cells, training: Training) -> Batch:
        """The cells of one shape as jobs of one structure."""
        tp, cp, ep, etp = np.array(self.grid.points)[cells.point].T
        plain = dataclasses.replace(
            shape.layout, sequence_parallel=self.style.sequence_parallel, cp_comm_type=(self.style.cp_comm_type,)
        )
        world: Any = np.array(self.grid.worlds)[cells.world]
        layout = dataclasses.replace(
            plain,
            world_size=world,
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
        )
        job = dataclasses.replace(self.job, layout=plain, training=training, num_microbatches=int(cells.count[0]))
        return Batch(job, tuple(range(len(cells))), layout, np.array(self.grid.micro)[cells.micro])

    def _evaluate(self, batch: Batch, microbatches: Any) -> dict[str, Array]:
        """The figures of a batch by name."""
        declarer, stages = fullest(batch)
        job = dataclasses.replace(batch.job, layout=batch.layout, training=declarer.context.training)
        found = [(rank, find_peak(rank)) for rank, _ in stages]
        device = reduce(widest, (device_range(job, rank, peak) for rank, peak in found))
        ranks = [rank for rank, _ in stages]
        pipelined = partial(self.chains.pipelined, batch.job.layout)
        return {
            "step": total(step_parts(self.machine, declarer, ranks, microbatches, stands(stages), pipelined).values()),
            "peak": reduce(np.maximum, [peak.nbytes for _, peak in found]),
            "low": device.low,
            "high": device.high,
        }
