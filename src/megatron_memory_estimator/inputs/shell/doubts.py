"""Values that a reader cannot know, as marks inside text: a variable that is set nowhere, or something in doubt.

A mark is a null byte, a kind, a name, a null byte; scripts hold no null bytes. Kinds: `$` a variable that is set nowhere, `"` the
same inside quotes (so an empty word, and not none), `?` something in doubt, by the key of its `Doubt`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = "\0"
_ANY = re.compile('\0([$"?])([^\0]*)\0')


@dataclass(frozen=True)
class Doubt:
    """Why a value is not known, the variable that --set would give, and the words that it may be, if they are known."""

    why: str
    name: str = ""
    choices: tuple[tuple[str, ...], ...] = ()


def unset(name: str, *, quoted: bool = False) -> str:
    """The mark of a variable that is set nowhere."""
    return f"{MARK}{chr(34) if quoted else '$'}{name}{MARK}"


def doubtful(key: str) -> str:
    """The mark of a doubt."""
    return f"{MARK}?{key}{MARK}"


def marks(text: str) -> list[tuple[str, str]]:
    """(kind, name) of each mark in a text."""
    return _ANY.findall(text) if MARK in text else []


def in_doubt(text: str) -> bool:
    """Whether a part of the text is in doubt; variables that are set nowhere are empty."""
    return any(kind == "?" for kind, _ in marks(text))


def bare(text: str) -> str:
    """The text without its marks."""
    return _ANY.sub("", text) if MARK in text else text


def vanishes(text: str) -> bool:
    """Whether a word is nothing but variables that are set nowhere, without quotes."""
    return bool(text) and not bare(text) and all(kind == "$" for kind, _ in marks(text))


def quoted(text: str) -> str:
    """The text with its unset variables as inside quotes."""
    return _ANY.sub(lambda match: match.group().replace(f"{MARK}$", f'{MARK}"', 1), text) if MARK in text else text


def unquoted(text: str) -> str:
    """The text with its unset variables as outside quotes: what an assignment stores."""
    return _ANY.sub(lambda match: match.group().replace(f'{MARK}"', f"{MARK}$", 1), text) if MARK in text else text


def readable(text: str) -> str:
    """The text with its marks as they may be shown."""
    return _ANY.sub(lambda match: f"${match.group(2)}" if match.group(1) != "?" else "(unknown)", text)
