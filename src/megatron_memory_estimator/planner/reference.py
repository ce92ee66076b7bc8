"""One legal layout of a space, from which the rules are asked one axis at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from ..job.layout import Layout
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..legality import pipeline_sides, stated_violations
from ..legality.declared import declared_units, refused
from ..legality.precision import gpu
from .space.axes import Space
from .space.choices import Option, Style, options, precision_settings, styles, training_with
from .space.legal import hopeless
from .space.modelled import NO_RECOMPUTATION, recompute_sets
from .space.points import Point, Shape, at_point

TRIES = 1000
"""Layouts tried for a legal one, for each precision, recomputation and optimizer."""


class Reference(NamedTuple):
    """A layout with all that the rules see of it but its GPUs and its batch."""

    shape: Shape
    point: Point
    style: Style
    recompute: Training
    option: Option


class Rules:
    """The rules of legality, asked of references of a space."""

    def __init__(self, base: TrainingJob, space: Space) -> None:
        self.base, self.space = base, space
        self.sets = recompute_sets(base, space)
        self.options = options(space)
        self.units = tuple(declared_units(base.model))
        self.uneven: dict[tuple[str, Point, Style], str] = {}

    def training(self, precision: str, recompute: Training) -> Training:
        """A training of the sets of recomputation with the settings of a precision."""
        return dataclasses.replace(recompute, **precision_settings(self.base, precision))

    def whole_training(self, at: Reference) -> Training:
        """The training of a reference."""
        return training_with(self.training(at.style.precision, at.recompute), at.option)

    def layout(self, at: Reference) -> Layout:
        """The layout of a reference on as few GPUs as it needs."""
        return at_point(at.shape.layout, at.point, at.style, moe=bool(self.base.model.num_moe_experts))

    def broken(self, at: Reference, training: Training) -> str:
        """The first rule that a reference breaks with a training, or nothing."""
        layout = self.layout(at)
        stated = stated_violations(self.base.model, layout, training, at.shape.group * at.shape.vp * 2)
        first = stated[0].rule if stated else self._uneven(at, layout, training)
        return first or next((one.rule for one in gpu(training, self.base.gpu)), "")

    def _uneven(self, at: Reference, layout: Layout, training: Training) -> str:
        """The first declared dim that does not divide, or nothing: the same for every pipeline, recomputation and optimizer."""
        plain: Training | None = None
        for unit in self.units:
            seen = at.point if unit.routed else at.point._replace(ep=1, etp=1)
            key = unit.name, seen, at.style
            if key not in self.uneven:
                plain = plain or dataclasses.replace(training, **NO_RECOMPUTATION)
                wrong = refused(unit, self.base.model, layout, plain)
                self.uneven[key] = wrong[0].rule if wrong else ""
            if self.uneven[key]:
                return self.uneven[key]
        return ""

    def reference(self, shapes: Sequence[Shape], points: Sequence[Point], ask: Callable[[], None]) -> Reference | None:
        """Any legal layout. None where nothing tried is legal."""
        pairs = list(product(shapes, points))
        Random(0).shuffle(pairs)
        pipelines = {shape.layout: pipeline_sides(self.base.model, shape.layout) for shape in shapes}
        combinations = product(self.space.precision, self.sets, self.options)
        for number, (precision, (_, recompute), option) in enumerate(combinations):
            training = training_with(self.training(precision, recompute), option)
            ways = self._styles(precision)
            known: dict[object, bool] = {}
            for shape, point in pairs[: TRIES if number else 20 * TRIES]:
                for style in ways[point.tp > 1, point.cp > 1]:
                    ask()
                    at = Reference(shape, point, style, recompute, option)
                    key = pipelines[shape.layout], point, style
                    if key not in known:
                        known[key] = hopeless(self.base, self.layout(at), training)
                    if not known[key] and not self.broken(at, training):
                        return at
        return None

    def _styles(self, precision: str) -> dict[tuple[bool, bool], list[Style]]:
        """The styles of one precision by whether tp and cp are above 1."""
        return {
            (tp, cp): [dataclasses.replace(style, precision=precision) for style in styles(self.space, tp=tp, cp=cp)]
            for tp, cp in product((False, True), repeat=2)
        }
