"""The critical paths of the pipelines of a space, looked for once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...job.layout import Layout
from ...job.model import Model
from ...throughput.critical import Critical, critical
from ...throughput.schedule import Schedule
from .probes import probes


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
