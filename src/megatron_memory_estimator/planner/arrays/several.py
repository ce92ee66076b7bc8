"""Chunks of several stages at once: how often each unit occurs is an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ...dataclass import dataclass
from ...job.model import Model
from ...job.pipeline import Chunk
from ...rank.chunks import ChunkPlan
from ...rank.declare import Declarer
from .peaks import Key, StageUnits, real_run


@dataclass(frozen=True)
class SeveralPlans(ChunkPlan):
    """The same chunk of several stages: how often a unit occurs is an array. `kinds` are the layers of each run's unit, `chunks` the
    chunk of every stage, along the first axis of `axes`."""

    kinds: tuple[tuple[str, ...], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    axes: tuple[int, ...] = ()

    def each(self, figure: Callable[[Chunk], int]) -> int:
        found: Any = np.array([figure(chunk) for chunk in self.chunks]).reshape(self.axes)
        return cast(int, found)

    def decoder_layers(self, model: Model) -> dict[str, int]:
        found: dict[str, int] = {}
        for run, kinds in zip(self.runs, self.kinds, strict=True):
            for kind in kinds:
                found[kind] = found.get(kind, 0) + run.copies
        return found


def several_plans(declarer: Declarer, members: Sequence[StageUnits], shape: tuple[int, ...]) -> tuple[ChunkPlan, ...]:
    """The chunks of several stages at once: how often each unit occurs is an array of a shape."""
    chunks = []
    for place, plan in enumerate(members[0].plans):
        counts = _counts(members, place)
        runs = []
        for key, column in counts:
            copies: Any = np.array(column).reshape(shape)
            runs.append(real_run(declarer, key)._replace(copies=copies))
        kinds = tuple(() if isinstance(key[0], str) else tuple(kind[0] for kind in key[0]) for key, _ in counts)
        each = tuple(stage.plans[place].chunk for stage in members)
        chunks.append(SeveralPlans(plan.chunk, tuple(runs), (), kinds=kinds, chunks=each, axes=shape))
    return tuple(chunks)


def _counts(members: Sequence[StageUnits], place: int) -> list[tuple[Key, list[int]]]:
    """The units of one chunk of several stages, each with how often every stage has it."""
    orders = {stage.keys[place] for stage in members}
    if len(orders) == 1:
        return [
            (key, [stage.plans[place].runs[at].copies for stage in members])
            for at, key in enumerate(next(iter(orders)))
        ]
    found: dict[Key, list[int]] = {}
    for row, stage in enumerate(members):
        for key, run in zip(stage.keys[place], stage.plans[place].runs, strict=True):
            found.setdefault(key, [0] * len(members))[row] += run.copies
    return list(found.items())
