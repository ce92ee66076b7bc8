"""What was decided for the user: a sentence, and a few words where it decides the peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from ..wording import plain


class OpenSetting(NamedTuple):
    """A setting that nothing gives and that another door decides otherwise: the values there, a few words for what is taken, what is
    taken and who has it so, what the other door has, its name, and the flags that ask for that."""

    values: tuple[tuple[str, Any], ...]
    short: str
    taken: str
    other: str
    door: str
    flag: str

    @property
    def name(self) -> str:
        """The setting."""
        return self.values[0][0]


Sign = Literal["lowers", "raises", "unknown"]


class Uncounted(NamedTuple):
    """An argument of a run that the figures are without: how it moves memory, and whose it is with what it does."""

    argument: str
    sign: Sign
    whose: str = ""


Bound = Literal["", "upper", "lower"]


def bound(uncounted: Iterable[Uncounted]) -> Bound:
    """What figures without some arguments are: an upper bound where all lower memory, a lower one where all raise it, else none."""
    signs = {one.sign for one in uncounted}
    return "upper" if signs == {"lowers"} else "lower" if signs == {"raises"} else ""


class Assumption(str):
    """A sentence; `short` says the same in a few words, and is empty for what moves no peak by more than 1 %. `above` is one that
    stands above the figures, because they are of a case that may not be the user's."""

    __slots__ = ("above", "short")
    short: str
    above: bool

    def __new__(cls, text: str, short: str = "", *, above: bool = False) -> Assumption:
        made = super().__new__(cls, plain(text))
        made.short, made.above = plain(short), above
        return made

    def __reduce__(self) -> tuple[Callable[..., Assumption], tuple[str, str, bool]]:
        return _assumption, (str(self), self.short, self.above)


def _assumption(text: str, short: str, above: bool) -> Assumption:
    return Assumption(text, short, above=above)


def short_of(note: str) -> str:
    """The few words of a note; none of a plain sentence."""
    return note.short if isinstance(note, Assumption) else ""


def shorts_of(notes: Iterable[str], beside: Iterable[str] = ()) -> list[str]:
    """The few words of each note that has such, but for those `beside` it."""
    return [short for note in notes if (short := short_of(note)) and short not in beside]


def stands_above(note: str) -> bool:
    """Whether a note stands above the figures."""
    return isinstance(note, Assumption) and note.above
