"""`[ ]`, `test` and `[[ ]]`: a status, or None where it cannot be known. Sources: POSIX.1-2017 test; the Bash Reference Manual 5.2, 6.4."""

from __future__ import annotations

from ...wording import signed
from . import glob
from .arithmetic import Uncertain, evaluated
from .expand import pattern_of, text_of
from .files import plain_path
from .grammar import Condition, Word
from .parameters import lookup
from .state import Shell
from .values import Unknown, Value, bare, in_doubt, loose, present, readable, vanishes

NUMBERS = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
BINARY = frozenset({*NUMBERS, "=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"})
UNARY = frozenset(f"-{c}" for c in "abcdefghknoprstuvwxzGLNORS")
WRONG = 2
"""The status of a test that bash refuses."""
NOBODY = (Unknown("outside", "", "it is known on the machine only"),)
"""What a condition depends on that no variable gives."""
On = list[Value]
"""What conditions that cannot be known depend on."""


def _status_of(truth: bool | None) -> int | None:
    """0 for true, 1 for false."""
    return None if truth is None else int(not truth)


def _set(shell: Shell, status: int | None, on: On) -> None:
    """The status of a test, and what it depends on where it cannot be known."""
    if status is None:
        shell.undecided(*on)
    else:
        shell.state.status = status


# -- [[ ]] -----------------------------------------------------------------------------------------------------------
def decide(shell: Shell, condition: Condition) -> None:
    """`[[ ]]`: the status."""
    on: On = []
    _set(shell, _status_of(_decided(shell, condition, on)), on)


def _decided(shell: Shell, condition: Condition, on: On) -> bool | None:
    """Whether a condition in [[ ]] holds; None where it cannot be known."""
    operator, parts = condition.operator, condition.parts
    if operator in ("&&", "||"):
        left = _decided(shell, _condition(parts[0]), on)
        if left is (operator == "||"):
            return left
        right = _decided(shell, _condition(parts[1]), on)
        if left is None:
            return right if right is (operator == "||") else None
        return right
    if operator == "!":
        found = _decided(shell, _condition(parts[0]), on)
        return None if found is None else not found
    words = [part for part in parts if isinstance(part, Word)]
    if operator == "":
        return _filled(text_of(shell, words[0]), on)
    if len(words) == 1:
        return _unary(shell, operator, text_of(shell, words[0]), on)
    if operator == "=~":
        shell.assign("BASH_REMATCH", shell.doubt("regular expressions are not matched"))
        on.append(NOBODY)
        return None
    if operator in ("=", "==", "!="):
        return _fits(shell, words[0], operator, words[1], on)
    if operator in NUMBERS:
        try:
            values = [evaluated(shell, text_of(shell, word), lenient=True) for word in words]
        except Uncertain as found:
            on.append((found.unknown,))
            return None
        return bool(NUMBERS[operator](*values))
    return _binary(shell, text_of(shell, words[0]), operator, text_of(shell, words[1]), on)[0]


def _fits(shell: Shell, word: Word, operator: str, other: Word, on: On) -> bool | None:
    """Whether a text matches a pattern."""
    text, units = text_of(shell, word), pattern_of(shell, other)
    shell.compare(text, text_of(shell, other))
    if units is None or in_doubt(text):
        on += [text, text_of(shell, other)]
        return None
    shell.spend(len(bare(text)) * (len(units) + 1))
    return glob.matches(units, bare(text)) == (operator != "!=")


def _condition(part: Condition | Word) -> Condition:
    return part if isinstance(part, Condition) else Condition("", (part,))


def _filled(text: Value, on: On) -> bool | None:
    """Whether a text is not empty."""
    if bare(text) or not in_doubt(text):
        return bool(bare(text))
    on.append(text)
    return None


def _unary(shell: Shell, operator: str, text: Value, on: On) -> bool | None:
    if operator in ("-n", "-z"):
        found = _filled(text, on)
        return found if found is None or operator == "-n" else not found
    if operator == "-v":
        if in_doubt(text):
            on.append(NOBODY)
            return None
        name = bare(text)
        if not name.isidentifier():
            raise shell.refuse(f"-v {name[:40]!r} is not read")
        held = lookup(shell, name, None)
        return None if held.is_set and _filled(held.values[0], on) is None else held.is_set
    if operator in ("-o", "-R"):
        raise shell.refuse(f"the test {operator} is not read")
    if not bare(text) and not in_doubt(text) and operator not in ("-t",):
        return False
    if operator in ("-f", "-e", "-r", "-s") and shell.beside is not None and not in_doubt(text):
        is_there = (
            None if plain_path(text) in shell.state.files else shell.beside.exists(bare(text), shell.state.folder)
        )
        if is_there is not None:
            return is_there
    on.append(NOBODY)
    return None


def _remember(shell: Shell, left: Value, operator: str, right: Value) -> None:
    """Remembers what a variable that nothing sets is compared with: a text, or numbers on both sides of one."""
    for text, other in ((left, right), (right, left)):
        number = signed(bare(other).strip()) if operator in NUMBERS and isinstance(other, str) else None
        near = [] if number is None else [str(number + step) for step in (-1, 0, 1)]
        shell.compare(text, *(near if operator in NUMBERS else [other]))


def _binary(shell: Shell, one: Value, operator: str, other: Value, on: On) -> tuple[bool | None, bool]:
    """(the result, whether bash would refuse the operands) of a comparison in [ ], or one of files and order."""
    if operator in ("-nt", "-ot", "-ef"):
        on.append(NOBODY)
        return None, False
    _remember(shell, one, operator, other)
    if in_doubt(one) or in_doubt(other):
        on += [one, other]
        return None, False
    left, right = bare(one), bare(other)
    if operator in ("=", "=="):
        return left == right, False
    if operator == "!=":
        return left != right, False
    if operator in ("<", ">"):
        if left == right:
            return False, False
        if any(
            all(c in kind for c in left + right)
            for kind in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        ):
            return (left < right) == (operator == "<"), False
        on.append(NOBODY)
        return None, False  # the order depends on the locale
    numbers = [signed(text.strip().removeprefix("+")) for text in (left, right)]
    if numbers[0] is None or numbers[1] is None:
        return None, True
    return bool(NUMBERS[operator](*numbers)), False


# -- [ ] and test ----------------------------------------------------------------------------------------------------
def test(shell: Shell, words: list[Value]) -> None:
    """`test words`: the status, by the number of words as POSIX has it."""
    for left, operator, right in zip(words, words[1:], words[2:], strict=False):
        if operator in BINARY and (vanishes(left) or vanishes(right)):  # which are no words for bash
            _remember(shell, left, str(operator), right)
    words = present(words)
    if any(map(loose, words)):
        shell.undecided(*words)
        return
    if len(words) > 1000:
        raise shell.refuse("a test of more than 1,000 words is not read")
    on: On = []
    _set(shell, _tested(shell, words, on), on)


def _tested(shell: Shell, words: list[Value], on: On) -> int | None:
    if not words:
        return 1
    if len(words) == 1:
        return _status_of(_filled(words[0], on))
    first = readable(words[0]) if in_doubt(words[0]) else bare(words[0])
    if len(words) == 2:
        if first == "!":
            return _not(_tested(shell, words[1:], on))
        return _status_of(_unary(shell, first, words[1], on)) if first in UNARY else WRONG
    middle = words[1]
    if len(words) == 3:
        if middle in BINARY:
            found, wrong = _binary(shell, words[0], str(middle), words[2], on)
            return WRONG if wrong else _status_of(found)
        if middle in ("-a", "-o"):
            return _both(str(middle), _tested(shell, words[:1], on), _tested(shell, words[2:], on))
        if first == "!":
            return _not(_tested(shell, words[1:], on))
        return _tested(shell, words[1:2], on) if first == "(" and words[2] == ")" else WRONG
    if not {*words} & {*BINARY, *UNARY, "!", "(", ")", "-a", "-o"}:
        return WRONG  # too many arguments
    if first == "!" and len(words) == 4:
        return _not(_tested(shell, words[1:], on))
    if "(" in words or ")" in words:
        raise shell.refuse("a test with brackets is not read")
    return _chain(shell, words, on)


def _chain(shell: Shell, words: list[Value], on: On) -> int | None:
    """Conditions joined by -a and -o, of which -a binds more closely."""
    parts: list[list[list[Value]]] = [[[]]]
    at = 0
    while at < len(words):
        size = 0
        rest = words[at:]
        negated = 0
        while rest[negated : negated + 1] == ["!"]:
            negated += 1
        inner = rest[negated:]
        if len(inner) >= 3 and inner[1] in BINARY:
            size = negated + 3
        elif len(inner) >= 2 and inner[0] in UNARY and (len(inner) == 2 or inner[2] in ("-a", "-o")):
            size = negated + 2
        elif inner:
            size = negated + 1
        if not size:
            return WRONG
        parts[-1][-1] = rest[:size]
        at += size
        if at == len(words):
            break
        joint = words[at]
        at += 1
        if joint == "-a":
            parts[-1].append([])
        elif joint == "-o":
            parts.append([[]])
        else:
            raise shell.refuse("a test of more than four words without -a or -o is not read")
    if not parts[-1][-1]:
        return WRONG
    statuses = [[_negated(shell, one, on) for one in group] for group in parts]
    if any(status == WRONG for group in statuses for status in group):
        return WRONG
    groups = [1 if 1 in group else None if None in group else 0 for group in statuses]
    return 0 if 0 in groups else None if None in groups else 1


def _negated(shell: Shell, words: list[Value], on: On) -> int | None:
    count = 0
    while words[count : count + 1] == ["!"] and len(words) > count + 1:
        count += 1
    found = _tested(shell, words[count:], on)
    return _not(found) if count % 2 else found


def _not(status: int | None) -> int | None:
    return status if status in (None, WRONG) else 1 - status


def _both(joint: str, left: int | None, right: int | None) -> int | None:
    if WRONG in (left, right):
        return WRONG
    if joint == "-a":
        return 1 if 1 in (left, right) else None if None in (left, right) else 0
    return 0 if 0 in (left, right) else None if None in (left, right) else 1
