"""TracedUnit units shared between sets of recomputation: those for which a unit's declaration got the same answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar, cast

from ..dataclass import dataclass
from ..job.training import Training
from ..modules.context import Context
from ..modules.layers import Declaration
from ..rank.chunks import Run, TracedUnit
from ..rank.declare import Declarer
from ..rank.keys import Form, LayerKey, PartKey, UnitKey
from ..tape.events import Trace
from ..tape.tensor import Param, Tensor

T = TypeVar("T")
Piece = LayerKey | PartKey
"""A kind of layer, or a part outside the layers."""


def is_part(piece: Piece) -> TypeGuard[PartKey]:
    """Whether a piece is outside the layers."""
    return len(piece) == 2


class Question(NamedTuple):
    """What a declaration may ask about recomputation: does it cover a module, every layer, or whole layers at all."""

    about: Literal["module", "every layer", "whole layers", "selective", "together"]
    module: str = ""

    def answer(self, training: Training) -> int:
        """What a training answers."""
        if self.about == "module":
            return Training.recomputes(training, self.module)
        if self.about == "every layer":
            return Training.recomputes_layers(training)
        if self.about == "together":
            return Training.recomputed_together(training)
        if self.about == "selective":
            return Training.recomputes_selectively(training)
        return Training.recomputes_whole_layers(training)


Answers = dict[Question, int]


@dataclass(frozen=True)
class AskedTraining(Training):
    """A training that notes what it is asked about recomputation. Declarations ask it by method, never by its settings.

    `answers` are noted questions, `known` every answer given.
    """

    answers: Answers = field(default_factory=dict, compare=False, repr=False)
    known: Answers = field(default_factory=dict, init=False, compare=False, repr=False)

    def recomputes(self, module: str) -> bool:
        return self._holds(Question("module", module))

    def recomputes_layers(self) -> bool:
        return self._holds(Question("every layer"))

    def recomputes_selectively(self) -> bool:
        return self._holds(Question("selective"))

    def recomputed_together(self) -> int:
        return self._noted(Question("together"))

    def recomputes_whole_layers(self) -> bool:
        return self._holds(Question("whole layers"))

    def _holds(self, question: Question) -> bool:
        return bool(self._noted(question))

    def _noted(self, question: Question) -> int:
        answer = self.answers[question] = self.answered(question)
        return answer

    def answered(self, question: Question) -> int:
        """The answer, without a note."""
        answer = self.known.get(question)
        if answer is None:
            answer = self.known[question] = question.answer(self)
        return answer


def asked(training: Training) -> AskedTraining:
    """The same training, that notes what it is asked from now on."""
    return AskedTraining(**{f.name: getattr(training, f.name) for f in dataclasses.fields(Training)})


class Known:
    """What has been made for one structure, by the questions that its making asked and the answers it got."""

    def __init__(self) -> None:
        self.made: dict[Any, dict[tuple[Question, ...], dict[tuple[int, ...], Any]]] = {}

    def find(self, key: Any, training: AskedTraining, make: Callable[[], T]) -> T:
        """What was made with the answers that a training gives, or what `make` makes. The training notes its questions as asked."""
        of_key = self.made.setdefault(key, {})
        for questions, made in of_key.items():
            answers = tuple(map(training.answered, questions))
            if answers in made:
                training.answers.update(zip(questions, answers, strict=True))
                known: T = made[answers]
                return known
        before = dict(training.answers)
        training.answers.clear()
        new = make()
        of_key.setdefault(tuple(training.answers), {})[tuple(training.answers.values())] = new
        training.answers.update(before)
        return new


class Grids:
    """What was made for one grid, variant and style: units, and what depends on no recomputation, by what it is of."""

    def __init__(self) -> None:
        self.units = Known()
        self.made: dict[Any, Any] = {}

    def find(self, key: Any, make: Callable[[], T]) -> T:
        """What was made before, or what `make` makes."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found


class SharingDeclarer(Declarer):
    """Declares and traces a unit only where no earlier training gave the same answers about recomputation."""

    def __init__(self, context: Context, known: Known) -> None:
        self.known, self.training = known, asked(context.training)
        super().__init__(dataclasses.replace(context, training=self.training))

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` makes, or made for another training that gives the same answers."""
        return self.known.find(key, self.training, make)

    def unit(self, key: UnitKey) -> TracedUnit:
        return self.shared(("unit", key), lambda: Declarer.unit(self, key))

    def part(self, key: PartKey) -> Run:
        return self.shared(("part", key), lambda: Declarer.part(self, key))

    def params(self, kind: LayerKey) -> list[Param]:
        return self.shared(("params", kind), lambda: self._declare(kind).params)

    def declared(self, piece: Piece) -> Declaration:
        """A kind of layer, or a part outside the layers."""
        return self._declare_part(piece) if is_part(piece) else self._declare(cast(LayerKey, piece))

    def trained(self, declared: Declaration) -> tuple[Param, ...]:
        """The parameters of a declaration, trained or frozen."""
        return self._params(declared)

    def kept_of(self, piece: Piece, form: Form) -> tuple[Trace, tuple[Tensor, ...]]:
        """The trace of a layer or a part, and what the paged stash keeps of it."""
        if is_part(piece):
            run = self.part(piece)
            return run.trace, run.stashed
        return self._paged(self.unit(((cast(LayerKey, piece),), form)).trace)

    def _declare(self, kind: LayerKey) -> Declaration:
        return self.shared(("declared", kind), lambda: Declarer._declare(self, kind))

    def _declare_part(self, key: PartKey) -> Declaration:
        return self.shared(("declared", key), lambda: Declarer._declare_part(self, key))
