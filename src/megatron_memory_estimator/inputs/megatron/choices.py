"""Words of a launch script that may be one list of arguments or another, and where unknown words come from."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ConfigError
from ...wording import shown
from ..shell.values import Unknown, Value, bare, head, loose, outside_in, present, readable, unknowns, unset_in

MOST_CHOICES = 64


def sources(words: Sequence[Value]) -> str:
    """Where unknown words come from, and what gives them."""
    word = next(word for word in words if unknowns(word))
    outside = outside_in(word)
    if not outside:
        name = unset_in(word)[0]
        return f"${name}, which has none; give --set {name}=VALUE"
    return source_of(outside[0])


def compared_in(words: Sequence[Value]) -> tuple[str, ...]:
    """The values that a script compares the variable with that decides unknown words."""
    return next((one.compared for word in words for one in outside_in(word) if one.compared), ())


def source_of(unknown: Unknown) -> str:
    """Where what is not known comes from, and what gives it."""
    alternatives = [" ".join(map(readable, present(choice))) or "nothing" for choice in unknown.choices]
    listed = f" ({' or '.join(alternatives)})" if alternatives else ""
    where = f"${unknown.name}{listed}" if unknown.name else f"what is not known{listed}"
    option = f"--set {unknown.option}=VALUE" if unknown.option else "the argument after --"
    return f"{where}: {unknown.why}; give {option}"


def choices(word: Value) -> list[tuple[Value, ...]] | None:
    """The lists of words that a word in doubt may be, what is not known inside them written out; None where they are not known.

    Raises ConfigError where there are too many.
    """
    outside = outside_in(word)
    if bare(word) or len(outside) != 1 or unset_in(word):
        return None
    written_out: list[tuple[Value, ...]] = []
    for choice in outside[0].choices:
        lists: list[tuple[Value, ...]] = [()]
        for inner_word in choice:
            inner = choices(inner_word) if loose(inner_word) else [(inner_word,)]
            if inner is None:
                return None
            lists = [(*begun, *more) for begun in lists for more in inner]
            if len(lists) + len(written_out) > MOST_CHOICES:
                raise ConfigError(f"more than {MOST_CHOICES} lists of arguments are possible; {sources([word])}")
        written_out += lists
    return written_out or None


def _flags_in(word: Value) -> bool:
    """Whether what is not known in a word may hold an argument."""
    return any(
        head(one).startswith("--") or _flags_in(one)
        for unknown in outside_in(word)
        for choice in unknown.choices
        for one in choice
    )


def chooses_flags(word: Value) -> bool:
    """Whether a word is in doubt between lists of arguments. Raises ConfigError where arguments stand in it in another way."""
    if not loose(word) or not _flags_in(word):
        return False
    if choices(word) is None:
        raise ConfigError(
            f"which arguments {shown(readable(word))} holds is not known; they are taken from {sources([word])}"
        )
    return True
