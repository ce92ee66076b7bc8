"""Ideas (`planner/places.py`) of many layouts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .places import near
from .space.points import Array, Cells, Grid, Shape


class CellIdeas(NamedTuple):
    """The ideas of the cells of a structure, as numbers: those of its points, and the pipeline stages of all shapes."""

    points: Array
    stages: Array

    def of(self, cells: Cells, at: Array) -> Array:
        """A number for each of some cells: equal ones are of one idea, as far as their degrees say."""
        many = int(self.points.max()) + 1
        found: Array = (cells.world[at] * many + self.points[cells.point[at]]) * (
            int(self.stages.max()) + 1
        ) + self.stages[cells.shape[at]]
        return found


def cell_ideas(grid: Grid, shapes: Sequence[Shape]) -> CellIdeas:
    """The numbers of a structure."""
    degrees = [(point.tp, point.ep, point.etp) for point in grid.points]
    numbers = {one: number for number, one in enumerate(dict.fromkeys(degrees))}
    return CellIdeas(np.array([numbers[one] for one in degrees]), np.array([shape.pp for shape in shapes]))


def best_of_each(key: Array, step: Array, ideas: Array, most: int) -> Array:
    """Places of the plans of the best ideas that are within `NEAR` of the best of their idea."""
    order = np.lexsort((step, key))
    _, first, which = np.unique(ideas[order], return_index=True, return_inverse=True)
    best = order[first]
    kept = np.zeros(len(first), dtype=bool)
    kept[np.argsort(first, kind="stable")[:most]] = True
    which = which.ravel()
    alike = near(key[order], step[order], key[best][which], step[best][which])
    found: Array = order[alike & kept[which]]
    return found
