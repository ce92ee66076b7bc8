"""What was decided for the user: a sentence, and a few words where it decides the peak."""

from __future__ import annotations

from ..wording import plain


class Assumption(str):
    """A sentence; `short` says the same in a few words, and is empty for what moves no peak by more than 1 %."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, text: str, short: str = "") -> Assumption:
        made = super().__new__(cls, plain(text))
        made.short = plain(short)
        return made

    def __reduce__(self) -> tuple[type[Assumption], tuple[str, str]]:
        return Assumption, (str(self), self.short)


def short_of(note: str) -> str:
    """The few words of a note; none of a plain sentence."""
    return note.short if isinstance(note, Assumption) else ""
