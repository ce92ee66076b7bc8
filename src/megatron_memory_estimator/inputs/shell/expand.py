"""Expansion of words: braces, parameters, substitutions, arithmetic, splitting. Source: the Bash Reference Manual 5.2, 3.5.

Variables that nothing sets give marks (`doubts.py`), so that what depends on them can be asked for; nothing is executed.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from ...wording import plain, signed
from . import glob
from .arithmetic import settled
from .doubts import MARK, bare, in_doubt, quoted, readable, unquoted, unset, vanishes
from .grammar import Arithmetic, Opaque, Param, Piece, Substitution, Text, Word
from .state import Array, Shell, Value

ALWAYS_SET = frozenset(
    [
        "BASH", "BASHOPTS", "BASHPID", "BASH_SOURCE", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK",
        "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HOME", "HOSTNAME", "HOSTTYPE", "LINENO",
        "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND", "OSTYPE", "PATH", "PIPESTATUS", "PPID", "PS4", "PWD", "RANDOM",
        "SECONDS", "SHELL", "SHELLOPTS", "SHLVL", "SRANDOM", "TERM", "UID", "USER", "LOGNAME", "_",
    ]
)  # fmt: skip
"""Set by bash itself, or on every machine."""
MOST_FIELDS = 20_000


class Segment(NamedTuple):
    """A stretch of an expanded word: whether blanks split it, and whether a new word begins with it."""

    text: str
    splits: bool = False
    breaks: bool = False


class Found(NamedTuple):
    """What a parameter holds: its values (one, but for @ and *), and which of the two it is."""

    values: list[str]
    many: str
    is_set: bool


# -- words -----------------------------------------------------------------------------------------------------------
def fields(shell: Shell, word: Word) -> list[str]:
    """The words that one word of the script becomes; words of unset variables alone stay, as marks."""
    found: list[str] = []
    for one in braces(shell, word):
        found += _split(shell, [segment for piece in one.pieces for segment in segments(shell, piece)])
    if len(found) > MOST_FIELDS:
        raise shell.refuse(f"{plain(word.source, 60)} becomes more than {MOST_FIELDS} words")
    return found


def text_of(shell: Shell, word: Word) -> str:
    """A word as one text, as an assignment stores it."""
    parts = []
    for piece in word.pieces:
        found = segments(shell, piece, whole=True)
        parts.append("".join((" " if one.breaks and at else "") + one.text for at, one in enumerate(found)))
        shell.spend(len(parts[-1]) + 1)
    return unquoted("".join(parts))


def pattern_of(shell: Shell, word: Word) -> tuple[glob.Unit, ...] | None:
    """A word as a pattern, or None where a part of it is in doubt."""
    pieces = []
    for piece in word.pieces:
        is_quoted = not isinstance(piece, Opaque) and piece.quoted
        for one in segments(shell, piece, whole=True):
            if in_doubt(one.text):
                return None
            pieces.append((bare(one.text), is_quoted))
    shell.spend(sum(len(text) for text, _ in pieces))
    return glob.pattern(pieces)


def segments(shell: Shell, piece: Piece, *, whole: bool = False) -> list[Segment]:
    """What a piece becomes; `whole` where it will not be split (an assignment, a pattern, `[[ ]]`)."""
    if isinstance(piece, Text):
        return [Segment(quoted(piece.text) if piece.quoted else piece.text)]
    if isinstance(piece, Opaque):
        return [Segment(shell.doubt(f"{plain(piece.source, 60)} is known on the machine only"))]
    if isinstance(piece, Param):
        return _param(shell, piece, whole=whole)
    if isinstance(piece, Arithmetic):
        found = str(settled(shell, text_of(shell, piece.expression)))
    else:
        found = _substituted(shell, piece)
    return [Segment(quoted(found) if piece.quoted else found, splits=not piece.quoted)]


def _split(shell: Shell, parts: list[Segment]) -> list[str]:
    """Words of segments: text that splits is cut at the characters of IFS."""
    value = shell.state.variables.get("IFS", " \t\n")
    if not isinstance(value, str) or MARK in value:
        raise shell.refuse("IFS is not known, so words cannot be split")
    found: list[str] = []
    current: str | None = None
    is_quoted = False  # a word with quotes in it stays, be it empty
    ended = False  # by a blank of IFS, which a following separator belongs to

    def finish() -> None:
        nonlocal current, is_quoted
        found.append(quoted(current or "") if is_quoted else current or "")
        current, is_quoted = None, False

    for part in parts:
        shell.spend(len(part.text) + 1)
        if part.breaks and current is not None:
            finish()
        if not part.splits or not value:
            if part.text or not part.splits:
                current, ended = (current or "") + part.text, False
                is_quoted = is_quoted or not part.text
            continue
        for stretch in re.findall(rf"{MARK}[^{MARK}]*{MARK}|[^{MARK}]", part.text) if MARK in part.text else part.text:
            if stretch not in value or len(stretch) > 1:
                current, ended = (current or "") + stretch, False
            elif stretch in " \t\n":
                if current is not None:
                    finish()
                    ended = True
            elif ended and current is None:
                ended = False
            else:
                finish()
    if current is not None:
        finish()
    return found


# -- braces ----------------------------------------------------------------------------------------------------------
def braces(shell: Shell, word: Word) -> list[Word]:
    """The words that braces make of one word: `a{1,2}`, `{1..4}`."""
    texts = [piece.text for piece in word.pieces if isinstance(piece, Text) and not piece.quoted]
    if not any("{" in text for text in texts):
        return [word]
    others: list[Piece] = []
    masked = ""
    for piece in word.pieces:
        if isinstance(piece, Text) and not piece.quoted:
            masked += piece.text
        else:
            masked += chr(0xE000 + len(others))
            others.append(piece)
    found = _braced(shell, masked, 0)
    if found == [masked]:
        return [word]
    for at, piece in enumerate(others):  # $A{x,y} is $Ax $Ay: braces come first
        source = piece.source if isinstance(piece, Param) and not piece.quoted else ""
        if source[:1] == "$" and source[1:].isidentifier() and chr(0xE000 + at) + "{" in masked:
            raise shell.refuse(f"{plain(source, 40)} right before braces is not read")
    words = []
    for text in found:
        pieces: list[Piece] = []
        for part in re.split("([\ue000-\uf8ff])", text):
            if part and 0xE000 <= ord(part[0]) < 0xE000 + len(others):
                pieces.append(others[ord(part) - 0xE000])
            elif part:
                pieces.append(Text(part))
        words.append(Word(tuple(pieces), word.line, word.source))
    return words


def _braced(shell: Shell, text: str, depth: int) -> list[str]:
    """The texts that braces make of one."""
    shell.spend(len(text) + 1)
    if depth > 12 or text.count("{") > 200:
        raise shell.refuse("braces are nested too deeply")
    start = text.find("{")
    while start >= 0:
        end, commas, level = -1, [], 0
        for at in range(start, len(text)):
            level += text[at] == "{"
            level -= text[at] == "}"
            if text[at] == "," and level == 1:
                commas.append(at)
            if level == 0:
                end = at
                break
        inside = text[start + 1 : end] if end > 0 else ""
        middle: list[str] | None = None
        if end > 0 and commas:
            cuts = [start, *commas, end]
            middle = [one for a, b in pairwise(cuts) for one in _braced(shell, text[a + 1 : b], depth + 1)]
        elif end > 0 and ".." in inside:
            middle = _range(shell, inside)
        if middle is not None:
            rest = _braced(shell, text[end + 1 :], depth)
            if len(middle) * len(rest) > 10_000:
                raise shell.refuse("braces give more than 10,000 words")
            return [text[:start] + one + other for one in middle for other in rest]
        start = text.find("{", start + 1)
    return [text]


def _range(shell: Shell, text: str) -> list[str] | None:
    """`1..4`, `a..e`, `0..8..2`."""
    parts = text.split("..")
    numbers = [signed(part) for part in parts]
    if any("\ue000" <= c <= "\uf8ff" for c in text):
        return None  # `{1..$N}` stays as it is
    if len(parts) not in (2, 3) or any(number is None for number in numbers):
        if len(parts) in (2, 3) and all(len(part) == 1 and part.isalpha() for part in parts[:2]):
            raise shell.refuse(f"{{{plain(text, 40)}}} is not read")
        return None
    if any(re.match(r"-?0\d", part) for part in parts[:2]):
        raise shell.refuse(f"{{{plain(text, 40)}}} with leading zeros is not read")
    first, last = numbers[0] or 0, numbers[1] or 0
    step = abs(numbers[2] or 1) if len(parts) == 3 else 1
    if abs(last - first) // step > 10_000:
        raise shell.refuse("braces give more than 10,000 words")
    return [str(n) for n in range(first, last + (1 if last >= first else -1), step if last >= first else -step)]


# -- parameters ------------------------------------------------------------------------------------------------------
def variable(shell: Shell, name: str) -> Value | None:
    """The value of a variable, or None where nothing sets it."""
    found = shell.state.variables.get(name)
    if found is None and name in shell.given:
        return shell.given[name]
    if found is None and name in ALWAYS_SET:
        return shell.doubt(f"${name} is known on the machine only", name)
    return found


def lookup(shell: Shell, name: str, index: Word | None) -> Found:
    """What a parameter holds."""
    state = shell.state
    if name in ("@", "*"):
        return Found(list(state.positionals), name, bool(state.positionals))
    if name == "#":
        return Found([str(len(state.positionals))], "", True)
    if name == "?":
        return Found(
            [shell.doubt("the status of a command is not known") if state.status is None else str(state.status)],
            "",
            True,
        )
    if name == "0":
        return Found([shell.doubt("$0 is known when the script runs only")], "", True)
    if name in ("$", "!", "-"):
        return Found([shell.doubt(f"${name} is known when the script runs only")], "", True)
    if name.isdigit():
        at = int(name[:9]) - 1
        is_set = at < len(state.positionals)
        return Found([state.positionals[at]] if is_set else [unset(name)], "", is_set)
    value = variable(shell, name)
    if index is not None and index.source in ("@", "*"):
        values = value.values() if isinstance(value, Array) else [] if value is None else [value]
        if value is None:
            return Found([], index.source, False)
        return Found(values, index.source, bool(values))
    if index is not None or isinstance(value, Array):
        value = element(shell, name, value, index)
    return Found([unset(name) if value is None else value], "", value is not None)


def element(shell: Shell, name: str, value: Value | None, index: Word | None) -> str | None:
    """One element of an array; without an index the first."""
    if not isinstance(value, Array):
        value = Array({} if value is None else {0: value})
    if value.keyed:
        key = text_of(shell, index) if index is not None else "0"
        if in_doubt(key):
            return shell.doubt(f"the element of {name} is not known")
        return value.items.get(bare(key))
    at = settled(shell, text_of(shell, index)) if index is not None else 0
    if isinstance(at, str) or uncounted(value):
        return shell.doubt(f"the element of {name} is not known", name)
    if at < 0:
        at += max((int(key) for key in value.items), default=-1) + 1
    return value.items.get(at)


def uncounted(value: Value | None) -> bool:
    """Whether an array has elements that may be none or several words, so that their places are not known."""
    return isinstance(value, Array) and any(
        (in_doubt(one) and not bare(one)) or vanishes(one) for one in value.items.values()
    )


def _param(shell: Shell, piece: Param, *, whole: bool) -> list[Segment]:
    """The segments of a parameter."""
    if piece.operator.lstrip(":") in ("-", "=", "?", "+"):
        chosen = _alternative(shell, piece)
        if isinstance(chosen, Word):
            return _of_word(shell, piece, chosen, whole=whole)
        found = chosen
    else:
        found = _operated(shell, piece)
    if not found.many:
        text = found.values[0]
        shell.spend(len(text))
        return [Segment(quoted(text) if piece.quoted else unquoted(text), splits=not piece.quoted)]
    joiner = shell.state.variables.get("IFS", " \t\n")
    if not isinstance(joiner, str) or MARK in joiner:
        raise shell.refuse("IFS is not known, so words cannot be joined")
    shell.spend(sum(map(len, found.values)) + len(found.values))
    if not found.is_set and not found.values and piece.operator == "" and piece.name not in ("@", "*"):
        mark = unset(piece.name)
        return (
            []
            if piece.quoted and found.many == "@"
            else [Segment(quoted(mark) if piece.quoted else mark, not piece.quoted)]
        )
    if (found.many == "*" and (piece.quoted or whole)) or (whole and piece.quoted and piece.operator == "keys"):
        return [Segment(quoted(joiner[:1].join(found.values)))]
    if whole:
        return [Segment(" ".join(found.values))]
    if piece.quoted:  # an element of unset variables alone is no element in bash, and stays to be asked for
        return [Segment(value, breaks=at > 0) for at, value in enumerate(found.values)]
    return [Segment(unquoted(value), splits=True, breaks=at > 0) for at, value in enumerate(found.values)]


def _operated(shell: Shell, piece: Param) -> Found:
    """What a parameter gives with its operator."""
    operator = piece.operator
    if operator == "keys":
        value = variable(shell, piece.name)
        if isinstance(value, Array) and not value.keyed and uncounted(value):
            return Found([shell.doubt(f"the elements of {piece.name} are not known", piece.name)], "", True)
        keys = [str(key) for key in value.items] if isinstance(value, Array) else [] if value is None else ["0"]
        return Found(keys, piece.index.source if piece.index else "@", bool(keys))
    if operator == "@":
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    found = lookup(shell, piece.name, piece.index)
    if operator == "indirect":
        return _indirect(shell, piece, found)
    if operator == "length":
        return _length(shell, piece, found)
    if not operator:
        return found
    if operator == ":" and found.many:
        return _slice(shell, piece, found)
    return found._replace(values=[_on_text(shell, piece, value) for value in found.values])


def _alternative(shell: Shell, piece: Param) -> Found | Word:
    """`:-`, `-`, `:=`, `=`, `:?`, `?`, `:+`, `+`: what the parameter holds, or the word behind the operator."""
    operator, word = piece.operator, piece.words[0]
    found = lookup(shell, piece.name, piece.index)
    text = " ".join(found.values)
    doubted = found.is_set and in_doubt(text) and not bare(text)
    is_set = found.is_set and (bool(bare(text)) or doubted if operator[0] == ":" else True)
    if operator.endswith("+"):
        if doubted:
            words = tuple(text_of(shell, word).split())
            return Found([shell.doubt(f"whether {piece.name} is empty is not known", "", ((), words))], "", True)
        return word if is_set else Found([""], "", True)
    if is_set:
        return found
    if operator.endswith("?"):
        return Found([unset(piece.name)], "", True)
    if operator.endswith("="):
        shell.assign(piece.name, text_of(shell, word))
        return lookup(shell, piece.name, None)
    return word


def _of_word(shell: Shell, piece: Param, word: Word, *, whole: bool) -> list[Segment]:
    """The segments of the word behind an operator: its unquoted text splits, as all that an expansion gives."""
    found = []
    for part in word.pieces:
        for one in segments(shell, part, whole=whole):
            splits = (one.splits or (isinstance(part, Text) and not part.quoted)) and not piece.quoted
            found.append(one._replace(text=quoted(one.text) if piece.quoted else one.text, splits=splits))
    return found or [Segment("", splits=not piece.quoted)]


def _indirect(shell: Shell, piece: Param, found: Found) -> Found:
    name = found.values[0] if not found.many else ""
    if MARK in name:
        return Found([shell.doubt(f"{plain(piece.source, 60)}: the name is not known")], "", True)
    if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", name):
        return lookup(shell, name, None)
    raise shell.refuse(f"{plain(piece.source, 60)} is not read")


def _length(shell: Shell, piece: Param, found: Found) -> Found:
    if found.many:
        if any(in_doubt(value) and not bare(value) for value in found.values):
            return Found([shell.doubt(f"the number of words of {piece.name} is not known")], "", True)
        return Found([str(sum(not vanishes(value) for value in found.values))], "", True)
    value = found.values[0]
    if in_doubt(value):
        return Found([shell.doubt(f"the length of {piece.name} is not known")], "", True)
    return Found([str(len(bare(value)))], "", True)


def _slice(shell: Shell, piece: Param, found: Found) -> Found:
    """`${@:2}`, `${A[@]:1:2}`."""
    numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
    value = variable(shell, piece.name)
    if any(isinstance(n, str) or n < 0 for n in numbers) or (isinstance(value, Array) and value.keyed):
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    if any((in_doubt(one) and not bare(one)) or vanishes(one) for one in found.values):
        return Found([shell.doubt(f"the words of {piece.name} are not known")], "", True)
    start = int(numbers[0])
    if piece.name in ("@", "*"):
        if start == 0:
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        start -= 1
    values = found.values
    if isinstance(value, Array):
        values = [value.items[key] for key in sorted(value.items, key=int) if int(key) >= start]
        start = 0
    end = None if len(numbers) < 2 else start + int(numbers[1])
    return Found(values[start:end], found.many, found.is_set)


def _on_text(shell: Shell, piece: Param, value: str) -> str:
    """A value with a prefix, suffix, part or case changed."""
    if in_doubt(value):
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    if vanishes(unquoted(value)):
        return value
    value, operator = bare(value), piece.operator
    if operator in ("^", "^^", ",", ",,"):
        if piece.words[0].pieces or not value.isascii():
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        change = str.upper if operator[0] == "^" else str.lower
        return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    if operator == ":":
        numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
        start, length = numbers[0], numbers[1] if len(numbers) > 1 else len(value)
        if isinstance(start, str) or isinstance(length, str):
            return shell.doubt(f"{plain(piece.source, 60)} is not known")
        start = start + len(value) if start < 0 else start
        if start < 0 or start > len(value):
            return ""
        end = start + length if length >= 0 else len(value) + length
        if end < start:
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        return value[start:end]
    units = pattern_of(shell, piece.words[0])
    if units is None:
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    shell.spend(len(value) * (len(units) + 1))
    if operator in ("#", "##"):
        found = glob.ends(units, value)
        return value[found[0 if operator == "#" else -1] :] if found else value
    if operator in ("%", "%%"):
        found = glob.ends(units[::-1], value[::-1])
        return value[: len(value) - found[0 if operator == "%" else -1]] if found else value
    return _replaced(shell, piece, value, units)


def _replaced(shell: Shell, piece: Param, value: str, units: tuple[glob.Unit, ...]) -> str:
    """`${name/pattern/text}` and its kin: the longest match, once or throughout, or only at the beginning or the end."""
    text = text_of(shell, piece.words[1]) if len(piece.words) > 1 else ""
    if "&" in text or "\\" in text:
        raise shell.refuse(f"{plain(piece.source, 60)} with & in what replaces is not read")
    if not units or in_doubt(text):
        return value if not units else shell.doubt(f"{plain(piece.source, 60)} is not known")
    if piece.operator == "/#":
        found = glob.ends(units, value)
        return text + value[found[-1] :] if found else value
    if piece.operator == "/%":
        found = glob.ends(units[::-1], value[::-1])
        return value[: len(value) - found[-1]] + text if found else value
    out, at = [], 0
    while at < len(value):
        shell.spend(5 * (len(value) - at) * min(len(units), 8))
        found = glob.ends(units, value[at:])
        if found and found[-1]:
            out.append(text)
            at += found[-1]
            if piece.operator == "/":
                break
        else:
            out.append(value[at])
            at += 1
    return "".join(out) + value[at:]


# -- substitutions ---------------------------------------------------------------------------------------------------
def _substituted(shell: Shell, piece: Substitution) -> str:
    """What a substitution prints, where it is text that can be known; else a doubt."""
    from .commands import captured

    found = captured(shell, piece.body)
    shell.state.status = shell.last_status
    if found is None:
        return shell.doubt(f"{plain(readable(piece.source), 80)} is a command, and nothing is executed")
    return found
