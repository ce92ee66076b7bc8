"""Numbers that are not known yet: linear forms of the bytes of units, and the largest of several.

The peak of a pipeline stage is the largest of sums like 5 * saved(layer) + top(output). Which sums is a matter of the schedule and of
the stage's layers alone. So the engine runs once per stage with forms in place of bytes, and the sums of every set of degrees and
every recomputation follow by one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


MANY = 512
"""Rows of a form that are compared with each other all at once."""


class Basis:
    """The unknowns by name, as columns of forms. Column 0 is the number 1. Every unknown is at least 0."""

    def __init__(self, width: int = 24) -> None:
        self.width = width
        self.columns: dict[object, int] = {}

    def unknown(self, name: object) -> Form:
        """The form of one unknown."""
        column = self.columns.setdefault(name, len(self.columns) + 1)
        if column >= self.width:
            raise OverflowError(f"more than {self.width - 1} unknowns")
        rows = np.zeros((1, self.width))
        rows[0, column] = 1
        return Form(rows)


class Form:
    """The largest of the rows, each a weighted sum of the unknowns. Stands where the engine expects a number of bytes."""

    __slots__ = ("rows",)

    def __init__(self, rows: Array) -> None:
        self.rows = rows

    def __add__(self, other: Any) -> Form:
        if isinstance(other, Form):
            if len(other.rows) == 1 or len(self.rows) == 1:
                return Form(self.rows + other.rows)
            return Form((self.rows[:, None] + other.rows[None]).reshape(-1, self.rows.shape[1]))
        if not other:
            return self
        rows = self.rows.copy()
        rows[:, 0] += other
        return Form(rows)

    __radd__ = __add__

    def __sub__(self, other: Form | int) -> Form:
        if isinstance(other, Form):
            assert len(other.rows) == 1, "the largest of several has no negative"
            return Form(self.rows - other.rows)
        return self + (-other)

    def __mul__(self, count: Any) -> Form:
        return Form(np.asarray(self.rows * count))

    __rmul__ = __mul__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        if ufunc is not np.maximum or method != "__call__":
            return NotImplemented
        width = self.rows.shape[1]
        rows = np.concatenate([one.rows if isinstance(one, Form) else _constant(one, width) for one in inputs])
        return Form(needed(rows) if len(rows) > MANY else rows)


def largest_sum(counts: Sequence[Sequence[int]], sizes: Sequence[Any]) -> Any:
    """The form of the largest of several sums of so many times each size, some of which are forms."""
    width = next(one.rows.shape[1] for one in sizes if isinstance(one, Form))
    stacked = np.concatenate([one.rows if isinstance(one, Form) else _constant(one, width) for one in sizes])
    return Form(needed(np.array(counts, dtype=float) @ stacked))


def _constant(value: float, width: int) -> Array:
    rows = np.zeros((1, width))
    rows[0, 0] = value
    return rows


def needed(rows: Array) -> Array:
    """The rows that no other row exceeds in every unknown."""
    if len(rows) == 1:
        return rows
    rows = np.array(list({row.tobytes(): row for row in rows}.values()))
    if len(rows) == 1:
        return rows
    if len(rows) > MANY:
        return _needed_of_many(rows)
    below: Array = (rows[:, None] <= rows).all(axis=2).sum(axis=1)
    found: Array = rows[below == 1]  # no row is below another one but itself
    return found


def _needed_of_many(rows: Array) -> Array:
    """The same of different rows, each compared with those found before it: a row below another one has a smaller sum."""
    kept: list[int] = []
    above = rows[:0]
    for index in np.argsort(-rows.sum(axis=1), kind="stable").tolist():
        if not (rows[index] <= above).all(axis=1).any():
            kept.append(index)
            above = rows[kept]
    found: Array = rows[sorted(kept)]
    return found
