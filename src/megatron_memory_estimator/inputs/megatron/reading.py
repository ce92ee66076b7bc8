"""Arguments on the way to Megatron-LM's terms: as given, as changed, and what is said, asked and refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...wording import dashed, shown, whole
from ..questions import Question
from .table import arguments

Words = tuple[str, ...]


@dataclass
class Reading:
    """Arguments as they are given, what others change in them, and what is said, asked and refused on the way."""

    given: Mapping[str, Any]
    others: Mapping[str, Words]
    num_gpus: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def get(self, dest: str) -> Any:
        """The value of an argument: as changed, as given, or the parser's default."""
        if dest in self.changes:
            return self.changes[dest]
        return self.given[dest] if dest in self.given else arguments()[1][dest].default

    def number(self, dest: str) -> int:
        """A whole number of an argument; 0 where it is none."""
        value = self.get(dest)
        return value if isinstance(value, int) and not isinstance(value, bool) else whole(value) or 0

    def is_read_as(self, flag: str, meaning: str) -> None:
        """Says what an argument was read as."""
        self.notes.append(f"{dashed(flag)} is read as {meaning}")

    def refuse(self, flag: str, why: str) -> None:
        """Refuses an argument by name."""
        self.refused.append(f"{dashed(flag)} {why}")


def one_number(reading: Reading, flag: str, words: Words) -> int:
    """The whole number behind an argument; where there is none, it is asked for."""
    number = whole(words[0]) if len(words) == 1 else None
    if number is None:
        said = shown(" ".join(words)) if words else "nothing"
        reading.questions.append(Question(f"{dashed(flag)} takes one whole number, not {said}"))
    return number or 0
