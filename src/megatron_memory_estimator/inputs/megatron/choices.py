"""Words of a launch script that may be one list of arguments or another, and where unknown words come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ConfigError
from ...wording import shown
from ..shell.doubts import Doubt, bare, doubts_in, loose, marks, readable, unset_in

MOST_CHOICES = 64


def sources(doubts: Mapping[str, Doubt], words: Sequence[str]) -> str:
    """Where unknown words come from, and what gives them."""
    word = next(word for word in words if marks(word))
    if not doubts_in(word):
        name = unset_in(word)[0]
        return f"${name}, which has none; give --set {name}=VALUE"
    doubt = doubts[doubts_in(word)[0]]
    listed = (
        f" ({readable(' or '.join(' '.join(choice) or 'nothing' for choice in doubt.choices))})"
        if doubt.choices
        else ""
    )
    where = f"${doubt.name}{listed}" if doubt.name else f"what is not known{listed}"
    return f"{where}: {doubt.why}" + (
        f"; give --set {doubt.name}=VALUE" if doubt.name else "; give the argument behind --"
    )


def choices(doubts: Mapping[str, Doubt], word: str) -> list[tuple[str, ...]] | None:
    """The lists of words that a word in doubt may be, doubts inside doubts written out; None where they are not known.

    Raises ConfigError where there are too many.
    """
    keys = doubts_in(word)
    if bare(word) or len(keys) != 1 or unset_in(word):
        return None
    written_out: list[tuple[str, ...]] = []
    for choice in doubts[keys[0]].choices:
        lists: list[tuple[str, ...]] = [()]
        for inner_word in choice:
            inner = choices(doubts, inner_word) if loose(inner_word) else [(inner_word,)]
            if inner is None:
                return None
            lists = [(*begun, *more) for begun in lists for more in inner]
            if len(lists) + len(written_out) > MOST_CHOICES:
                raise ConfigError(
                    f"more than {MOST_CHOICES} lists of arguments are possible; {sources(doubts, [word])}"
                )
        written_out += lists
    return written_out or None


def _flags_in(doubts: Mapping[str, Doubt], word: str) -> bool:
    """Whether a doubt in a word may hold an argument."""
    return any(
        one.startswith("--") or _flags_in(doubts, one)
        for key in doubts_in(word)
        for choice in doubts[key].choices
        for one in choice
    )


def chooses_flags(doubts: Mapping[str, Doubt], word: str) -> bool:
    """Whether a word is in doubt between lists of arguments. Raises ConfigError where arguments stand in it in another way."""
    if not loose(word) or not _flags_in(doubts, word):
        return False
    if choices(doubts, word) is None:
        raise ConfigError(
            f"which arguments {shown(readable(word))} holds is not known; they are taken from {sources(doubts, [word])}"
        )
    return True
