"""Values that a reader cannot know, as marks inside text: a variable that is set nowhere, or something in doubt.

A mark is a null byte, a kind, a name, a null byte; scripts hold no null bytes. Kinds: `$` a variable that is set nowhere, `"` the
same inside quotes (so an empty word, and not none), `?` something in doubt, by the key of its `Doubt`, which may be no word or
several, `!` the same inside quotes, which is one word. A blank before the name: an element of an array that was joined to one
text; it is no element in bash, and a word of its own where the text is split again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...dataclass import dataclass

MARK = "\0"
BLANK = " "
_ANY = re.compile('\0([$"?!])([^\0]*)\0')
_QUOTED = {"$": '"', "?": "!"}
_UNQUOTED = {quoted: kind for kind, quoted in _QUOTED.items()}


@dataclass(frozen=True)
class Doubt:
    """Why a value is not known, the variable that --set would give, and the words that it may be, if they are known."""

    why: str
    name: str = ""
    choices: tuple[tuple[str, ...], ...] = ()


def unset(name: str, *, quoted: bool = False) -> str:
    """The mark of a variable that is set nowhere."""
    return f"{MARK}{_QUOTED['$'] if quoted else '$'}{name}{MARK}"


def doubtful(key: str) -> str:
    """The mark of a doubt."""
    return f"{MARK}?{key}{MARK}"


def marks(text: str) -> list[tuple[str, str]]:
    """(kind, name) of each mark in a text."""
    return [(kind, name.removeprefix(BLANK)) for kind, name in _ANY.findall(text)] if MARK in text else []


def doubts_in(text: str) -> list[str]:
    """The keys of the doubts in a text."""
    return [name for kind, name in marks(text) if kind in "?!"]


def unset_in(text: str) -> list[str]:
    """The variables in a text that nothing sets."""
    return [name for kind, name in marks(text) if kind not in "?!"]


def in_doubt(text: str) -> bool:
    """Whether a part of the text is in doubt; variables that are set nowhere are empty."""
    return MARK in text and bool(doubts_in(text))


def loose(text: str) -> bool:
    """Whether a word in doubt may be none, or several."""
    return MARK in text and any(kind == "?" for kind, _ in marks(text))


def bare(text: str) -> str:
    """The text without its marks."""
    return _ANY.sub("", text) if MARK in text else text


def vanishes(text: str) -> bool:
    """Whether a word is nothing but variables that are set nowhere, without quotes."""
    return bool(text) and not bare(text) and all(kind == "$" for kind, _ in marks(text))


def apart(text: str) -> str:
    """The marks of an element that vanishes, as they stand in a text that elements are joined to."""
    return text.replace(f"{MARK}$", f"{MARK}${BLANK}").replace(BLANK * 2, BLANK)


def stands_apart(mark: str) -> bool:
    """Whether a mark was an element of an array, which a text was joined from."""
    return mark.startswith(f"{MARK}${BLANK}")


def spread(text: str) -> str:
    """A text that is read as commands, with a blank where an element of an array stood that is none in bash."""
    return text.replace(f"{MARK}${BLANK}", f"{BLANK}{MARK}$") if MARK in text else text


def present(words: Iterable[str]) -> list[str]:
    """The words that a command gets: those that vanish are none."""
    return [word for word in words if not vanishes(word)]


def quoted(text: str) -> str:
    """The text with its marks as inside quotes."""
    return _changed(text, _QUOTED)


def unquoted(text: str) -> str:
    """The text with its marks as outside quotes: what an assignment stores."""
    return _changed(text, _UNQUOTED)


def _changed(text: str, kinds: dict[str, str]) -> str:
    if MARK not in text:
        return text
    return _ANY.sub(lambda match: f"{MARK}{kinds.get(match.group(1), match.group(1))}{match.group(2)}{MARK}", text)


def readable(text: str) -> str:
    """The text with its marks as they may be shown."""
    return _ANY.sub(
        lambda match: f"${match.group(2).removeprefix(BLANK)}" if match.group(1) not in "?!" else "(unknown)", text
    )
