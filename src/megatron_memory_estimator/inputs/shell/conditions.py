"""`[ ]`, `test` and `[[ ]]`: a status, or None where it cannot be known. Sources: POSIX.1-2017 test; the Bash Reference Manual 5.2, 6.4."""

from __future__ import annotations

import operator as of_python
from collections.abc import Callable, Sequence

from ...wording import signed
from . import glob
from .arithmetic import Uncertain, evaluated
from .expand import pattern_of, text_of
from .grammar import COMPARISONS, UNARY, Condition, Word
from .input_output import plain_path
from .parameters import lookup
from .state import Shell
from .values import Unknown, Value, bare, in_doubt, loose, present, readable, vanishes

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": of_python.eq, "-ne": of_python.ne, "-gt": of_python.gt, "-ge": of_python.ge, "-lt": of_python.lt, "-le": of_python.le,
}  # fmt: skip
ORDERED = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Characters whose order is the same in every locale."""
WRONG = 2
"""The status of a test that bash refuses."""
NOBODY = (Unknown("outside", "", "it is known on the machine only"),)
"""What a condition depends on that no variable gives."""
On = list[Value]
"""What conditions that cannot be known depend on."""
Truth = bool | None
"""Whether a condition holds; None where it cannot be known."""


class Refused(Exception):  # noqa: N818
    """A test that bash refuses."""


def _set(shell: Shell, truth: Truth, on: On) -> None:
    """The status of a condition, and what it depends on where it cannot be known."""
    if truth is None:
        shell.undecided(*on)
    else:
        shell.state.status = int(not truth)


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _joined(joint: str, truths: Sequence[Truth]) -> Truth:
    """Whether all conditions hold (`&&`, `-a`), or one of them (`||`, `-o`)."""
    decisive = joint in ("||", "-o")
    return decisive if decisive in truths else None if None in truths else not decisive


def _unknown(on: On, *values: Value) -> Truth:
    """A condition that cannot be known, for what it depends on."""
    on += values or [NOBODY]
    return None


# -- [[ ]] -----------------------------------------------------------------------------------------------------------
def decide(shell: Shell, condition: Condition | Word) -> None:
    """`[[ ]]`: the status."""
    on: On = []
    _set(shell, _decided(shell, condition, on), on)


def _decided(shell: Shell, condition: Condition | Word, on: On) -> Truth:
    """Whether a condition in [[ ]] holds."""
    if isinstance(condition, Word):
        return _filled(shell, text_of(shell, condition), on)
    operator, parts = condition.operator, condition.parts
    if operator in ("&&", "||"):
        left = _decided(shell, parts[0], on)
        return left if left is (operator == "||") else _joined(operator, (left, _decided(shell, parts[1], on)))
    if operator == "!":
        return _not(_decided(shell, parts[0], on))
    words = [part for part in parts if isinstance(part, Word)]
    if operator == "=~":
        shell.assign("BASH_REMATCH", shell.doubt("regular expressions are not matched"))
        return _unknown(on)
    if operator in ("=", "==", "!="):
        found = fits(shell, text_of(shell, words[0]), words[1], on)
        return _not(found) if operator == "!=" else found
    if operator in NUMBERS:
        try:
            values = [evaluated(shell, text_of(shell, word), lenient=True) for word in words]
        except Uncertain as found:
            return _unknown(on, (found.unknown,))
        return NUMBERS[operator](*values)
    texts = [text_of(shell, word) for word in words]
    if len(texts) == 1:
        return _unary(shell, operator, texts[0], on)
    return _compared(shell, texts[0], operator, texts[1], on)


def fits(shell: Shell, text: Value, other: Word, on: On) -> Truth:
    """Whether a text matches a pattern."""
    units, shown = pattern_of(shell, other), text_of(shell, other)
    shell.compare(text, shown)
    if units is None or in_doubt(text):
        return _unknown(on, text, shown)
    shell.spend(len(bare(text)) * (len(units) + 1))
    return glob.matches(units, bare(text))


# -- operators of both -----------------------------------------------------------------------------------------------
def _filled(shell: Shell, text: Value, on: On) -> Truth:
    """Whether a text is not empty."""
    shell.compare(text)
    if bare(text) or not in_doubt(text):
        return bool(bare(text))
    return _unknown(on, text)


def _unary(shell: Shell, operator: str, text: Value, on: On) -> Truth:
    if operator in ("-n", "-z"):
        found = _filled(shell, text, on)
        return found if operator == "-n" else _not(found)
    if operator == "-v" and not in_doubt(text):
        name = bare(text)
        if not name.isidentifier():
            raise shell.refuse(f"-v {name[:40]!r} is not read")
        held = lookup(shell, name, None)
        return None if held.is_set and _filled(shell, held.values[0], on) is None else held.is_set
    if operator in ("-o", "-R"):
        raise shell.refuse(f"the test {operator} is not read")
    if not bare(text) and not in_doubt(text) and operator != "-t":
        return False
    if operator in ("-f", "-e", "-r", "-s") and shell.beside is not None and not in_doubt(text):
        is_written = plain_path(text) in shell.state.files
        is_there = None if is_written else shell.beside.exists(bare(text), shell.state.folder)
        if is_there is not None:
            return is_there
    return _unknown(on)


def _remember(shell: Shell, left: Value, operator: str, right: Value) -> None:
    """Remembers what a variable that nothing sets is compared with: a text, or numbers on both sides of one."""
    for text, other in ((left, right), (right, left)):
        number = signed(bare(other).strip()) if operator in NUMBERS and isinstance(other, str) else None
        near = [] if number is None else [str(number + step) for step in (-1, 0, 1)]
        shell.compare(text, *(near if operator in NUMBERS else [other]))


def _compared(shell: Shell, one: Value, operator: str, other: Value, on: On) -> Truth:
    """A comparison in [ ], or one of files and order. Raises Refused for numbers that are none."""
    if operator in ("-nt", "-ot", "-ef"):
        return _unknown(on)
    _remember(shell, one, operator, other)
    if in_doubt(one) or in_doubt(other):
        return _unknown(on, one, other)
    left, right = bare(one), bare(other)
    if operator in ("=", "==", "!="):
        return (left == right) == (operator != "!=")
    if operator in ("<", ">"):
        if left == right:
            return False
        if any(all(c in kind for c in left + right) for kind in ORDERED):
            return (left < right) == (operator == "<")
        return _unknown(on)
    first, second = (signed(text.strip().removeprefix("+")) for text in (left, right))
    if first is None or second is None:
        raise Refused
    return NUMBERS[operator](first, second)


# -- [ ] and test ----------------------------------------------------------------------------------------------------
def test(shell: Shell, words: list[Value]) -> None:
    """`test words`: the status, by the number of words as POSIX has it."""
    for left, operator, right in zip(words, words[1:], words[2:], strict=False):
        if operator in COMPARISONS and (vanishes(left) or vanishes(right)):  # which are no words for bash
            _remember(shell, left, str(operator), right)
    words = present(words)
    if any(map(loose, words)):
        shell.undecided(*words)
        return
    if len(words) > 1000:
        raise shell.refuse("a test of more than 1,000 words is not read")
    on: On = []
    try:
        _set(shell, _tested(shell, words, on), on)
    except Refused:
        shell.state.status = WRONG


def _tested(shell: Shell, words: list[Value], on: On) -> Truth:
    """Whether the words hold. Raises Refused."""
    if len(words) < 2:
        return _filled(shell, words[0], on) if words else False
    first, middle = readable(words[0]) if in_doubt(words[0]) else bare(words[0]), words[1]
    if len(words) == 2 and first in UNARY:
        return _unary(shell, first, middle, on)
    if len(words) == 3:
        if middle in COMPARISONS:
            return _compared(shell, words[0], str(middle), words[2], on)
        if middle in ("-a", "-o"):
            return _joined(str(middle), [_filled(shell, words[0], on), _filled(shell, words[2], on)])
        if first == "(" and words[2] == ")":
            return _filled(shell, middle, on)
    if first == "!" and len(words) <= 4:
        return _not(_tested(shell, words[1:], on))
    if len(words) < 4 or not {*words} & {*COMPARISONS, *UNARY, "!", "(", ")", "-a", "-o"}:
        raise Refused  # too many arguments
    if "(" in words or ")" in words:
        raise shell.refuse("a test with brackets is not read")
    return _chain(shell, words, on)


def _chain(shell: Shell, words: list[Value], on: On) -> Truth:
    """Conditions joined by -a and -o, of which -a binds more closely."""
    groups: list[list[Truth]] = [[]]
    while True:
        negated = next((at for at, word in enumerate(words) if word != "!"), len(words))
        inner = words[negated:]
        size = 1
        if len(inner) >= 3 and inner[1] in COMPARISONS:
            size = 3
        elif len(inner) >= 2 and inner[0] in UNARY and (len(inner) == 2 or inner[2] in ("-a", "-o")):
            size = 2
        if not inner:
            raise Refused
        found = _tested(shell, inner[:size], on)
        groups[-1].append(_not(found) if negated % 2 else found)
        words = inner[size:]
        if not words:
            return _joined("-o", [_joined("-a", group) for group in groups])
        if words[0] not in ("-a", "-o"):
            raise shell.refuse("a test of more than four words without -a or -o is not read")
        if words[0] == "-o":
            groups.append([])
        words = words[1:]
