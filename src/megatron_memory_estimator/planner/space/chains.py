"""The critical paths of the pipelines of a space, looked for once.

Sets of seconds that the chunks of a pipeline may take: what chains of its schedule are looked for with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from random import Random
from typing import Any

from ...job.layout import Layout
from ...job.model import Model
from ...job.pipeline import Chunk, build_pipeline
from ...throughput.critical import Critical, critical
from ...throughput.schedule import Schedule
from .borders import weights


class Chains:
    """The critical paths of pipelines of a model by microbatches."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._sets: dict[Layout, list[list[float]]] = {}
        self._known: dict[tuple[Layout, Schedule, int], Critical] = {}

    def of(self, layout: Layout, schedule: Schedule, microbatches: int) -> Critical:
        """Those of a pipeline, whose other degrees do not matter, with so many microbatches."""
        key = (layout, schedule, schedule.simulated(microbatches))
        if key not in self._known:
            if layout not in self._sets:
                self._sets[layout] = list(probes(self.model, layout))
            self._known[key] = critical(schedule, microbatches, self._sets[layout])
        return self._known[key]

    def pipelined(self, layout: Layout, schedule: Schedule, microbatches: Any, seconds: Sequence[Any]) -> Any:
        """Seconds of all passes of a schedule, of places that take so long; of an array of numbers of microbatches, one each."""
        if not hasattr(microbatches, "shape"):
            return self.of(layout, schedule, microbatches).seconds(microbatches, seconds)
        import numpy as np

        found = np.zeros(microbatches.shape)
        taken = [np.broadcast_to(np.asarray(one, dtype=float), microbatches.shape) for one in seconds]
        for many in np.unique(microbatches).tolist():
            where = microbatches == many
            found[where] = self.of(layout, schedule, many).seconds(many, [one[where] for one in taken])
        return found


SETS = 16
"""How many sets."""
KIND, BACKWARD, APART = (0.4, 1.6), (1.2, 4.8), (0.9, 1.1)
"""Seconds of a kind of layer relative to its parameters, of backwards (with recomputation) to forwards, of one backward to another."""
DEPTH, LOSS, LOSS_BACKWARD = (1.0, 1.3), (0.05, 1.6), (1.2, 2.1)
"""Seconds of an MTP depth relative to a layer, of the head relative to its parameters, of its backward to its forward."""
EMBEDDING, SENT = (0.02, 0.3), (0.003, 0.1)
"""Seconds of the embedding's backward, and of a send, relative to a layer."""


def probes(model: Model, layout: Layout) -> Iterator[list[float]]:
    """Seconds of a forward and a backward of every chunk of every rank, drawn from what steps show; always the same."""
    layers, _, loss, _ = weights(model)
    chunks = [chunk for of_rank in build_pipeline(model, layout).chunks for chunk in of_rank]
    random = Random(0)

    def draw(ends: tuple[float, float]) -> float:
        return exp(random.uniform(log(ends[0]), log(ends[1])))

    for _ in range(SETS):
        behind = draw(BACKWARD)
        kinds = {kind: draw(KIND) for kind in dict.fromkeys(model.kinds)}
        forward = [work * kinds[kind] for work, kind in zip(layers, model.kinds, strict=True)]
        each = {kind: behind * draw(APART) for kind in kinds}
        backward = [work * each[kind] for work, kind in zip(forward, model.kinds, strict=True)]
        depth = model.mtp * draw(DEPTH)
        head, embedding, sent = loss * draw(LOSS), forward[-1] * draw(EMBEDDING), forward[-1] * draw(SENT)
        ahead = (forward, depth * forward[-1], head, 0.0, sent)
        after = (backward, depth * backward[-1] * draw(APART), head * draw(LOSS_BACKWARD), embedding, sent)
        yield [_seconds(chunk, way) for chunk in chunks for way in (ahead, after)]


def _seconds(chunk: Chunk, way: tuple[list[float], float, float, float, float]) -> float:
    layers, mtp, head, embedding, sent = way
    return (
        sum(layers[at] for at in chunk.layers)
        + mtp * chunk.mtp
        + head * chunk.output
        + embedding * chunk.embedding
        + sent
    )
