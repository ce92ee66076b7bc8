"""Traced units shared between sets of recomputation: those for which a unit's declaration got the same answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from ..activations import Kind, PartKey, Planner, Run, UnitKey
from ..context import Context
from ..modules.layers import Declaration
from ..simulate import Trace
from ..tape import Unit
from ..tensor import Param, Tensor
from ..training import Training

Answers = dict[str, bool]
LAYERS = "whole layers"
T = TypeVar("T")


class Asked(Training):
    """A training that remembers what declarations ask about recomputation."""

    answers: Answers

    def recomputes(self, module: str) -> bool:
        self.answers[module] = found = Training.recomputes(self, module)
        return found

    def recomputes_layers(self) -> bool:
        self.answers[LAYERS] = found = Training.recomputes_layers(self)
        return found


def asking(training: Training) -> Asked:
    """The same training, with a memory."""
    found = Asked(**{f.name: getattr(training, f.name) for f in dataclasses.fields(Training)})
    object.__setattr__(found, "answers", {})
    return found


def answers_of(training: Training, names: Answers) -> Answers:
    """What a training answers to the same questions."""
    return {
        name: Training.recomputes_layers(training) if name == LAYERS else Training.recomputes(training, name)
        for name in names
    }


class Known:
    """What has been made for one structure, each with the answers that it was made with."""

    def __init__(self) -> None:
        self.made: dict[Any, list[tuple[Answers, Any]]] = {}

    def find(self, key: Any, training: Training, make: Callable[[], T], answers: Answers) -> T:
        """What was made with the answers that a training gives; else it is made, and `answers` say what it asked."""
        for given, made in self.made.get(key, ()):
            if answers_of(training, given) == given:
                found: T = made
                answers.update(given)
                return found
        before = dict(answers)
        answers.clear()
        made = make()
        self.made.setdefault(key, []).append((dict(answers), made))
        answers.update(before)
        return made


class SharingPlanner(Planner):
    """Declares and traces a unit only where no earlier training gave the same answers about recomputation."""

    def __init__(self, context: Context, known: Known) -> None:
        training = asking(context.training)
        super().__init__(dataclasses.replace(context, training=training))
        self.known, self.training = known, training

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` makes, or made for another training that gives the same answers."""
        return self.known.find(key, self.training, make, self.training.answers)

    def unit(self, key: UnitKey) -> tuple[Unit, Trace, tuple[Tensor, ...]]:
        return self.shared(("unit", key), lambda: Planner.unit(self, key))

    def part(self, key: PartKey) -> Run:
        return self.shared(("part", key), lambda: Planner.part(self, key))

    def params(self, kind: Kind) -> list[Param]:
        return self.shared(("params", kind), lambda: self._declare(kind).params)

    def _declare(self, kind: Kind) -> Declaration:
        return self.shared(("declared", kind), lambda: Planner._declare(self, kind))
