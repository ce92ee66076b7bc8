"""Arithmetic of the shell: 64-bit whole numbers, C's operators, assignments. Source: the Bash Reference Manual 5.2, 6.5."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...wording import plain
from .state import Shell
from .values import Array, Unknown, Value, bare, in_doubt, outside_in, unknowns, unset_in

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+#[0-9a-zA-Z@_]+|[0-9]+)(?![\w#.])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%<>=!&^|~?:(),\[\]]))"
)
_ASSIGNING = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="})
_SETTING = re.compile(
    r"([A-Za-z_]\w*)\s*(?:(?:\[[^\]]*\]\s*)?(?:[-+*/%&^|]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
"""A variable that an expression sets."""
_UNARY = ("++", "--", "+", "-", "!", "~")
LONGEST = 2000
DEEPEST = 20


class Uncertain(Exception):  # noqa: N818
    """A value in the expression is not known."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__()
        self.unknown = unknown


def evaluated(shell: Shell, text: Value, *, lenient: bool = False, depth: int = 0) -> int:
    """The value of an expression whose expansions are done. Raises Uncertain, and ConfigError for what is no expression.

    Variables that are set nowhere are 0 in bash; here they are not known, unless `lenient` (a condition), or where a variable
    is counted up from nothing (`N=$((N + 1))`).
    """
    if in_doubt(text) or (unset_in(text) and not lenient):
        raise Uncertain((outside_in(text) or unknowns(text))[0])
    return _Expression(shell, bare(text), lenient=lenient, depth=depth).value()


def settled(shell: Shell, text: Value, *, lenient: bool = False) -> int | Value:
    """The value, or what is not known of it; variables that an uncertain expression assigns are in doubt then."""
    try:
        return evaluated(shell, text, lenient=lenient)
    except Uncertain as found:
        one = found.unknown
        value: Value = (dataclasses.replace(one, choices=(), quoted=False),)
        if one.is_unset:
            value = shell.doubt(f"${one.name} is used in (( )) and has no value", one.name)
        for match in _SETTING.finditer(bare(text)):
            shell.assign(match.group(1) or match.group(2), value)
        return value


def worked_out(shell: Shell, text: Value) -> Value:
    """The value of an expression as text."""
    found = settled(shell, text)
    return str(found) if isinstance(found, int) else found


def truth(shell: Shell, text: Value) -> bool | None:
    """Whether an expression is not 0; None where that is not known, and the status then says what it depends on."""
    value = settled(shell, text, lenient=_SETTING.search(bare(text)) is None)
    if isinstance(value, int):
        shell.state.status = int(value == 0)
        return value != 0
    shell.undecided(value)
    return None


# -- numbers and operators -----------------------------------------------------------------------------------------------
BINARY: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"), ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
"""Operators of two operands, those that bind loosest first."""
LONGEST_LITERAL = 64
"""Digits of the longest number that is read: 64 bits in base 2."""


def wrapped(value: int) -> int:
    """The value in 64 bits with a sign."""
    return (value + 2**63) % 2**64 - 2**63


def literal(text: str) -> int:
    """The number that digits say: decimal, 0x, octal behind a 0, or BASE#DIGITS. Raises ValueError for others and beyond 63 bits."""
    base, digits = 10, text
    if "#" in text:
        head, digits = text.split("#")
        base = int(head) if len(head) < 3 else 0
        if not 2 <= base <= 36:
            raise ValueError(f"base {head}")
    elif text[:2].lower() == "0x":
        base, digits = 16, text[2:]
    elif text[0] == "0" and len(text) > 1:
        base = 8
    if len(digits) > LONGEST_LITERAL:
        raise ValueError("too many digits")
    value = int(digits, base)
    if value >= 2**63:
        raise ValueError("bash wraps it round")
    return value


def _quotient(left: int, right: int) -> int:
    """The quotient rounded towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b),
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": lambda a, b: a << (b % 64), ">>": lambda a, b: a >> (b % 64),
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


class _Expression:
    """Precedence climbing over the tokens; `live` is false where && || ?: pass over a part."""

    def __init__(self, shell: Shell, text: str, *, lenient: bool, depth: int) -> None:
        self.shell, self.text, self.lenient, self.depth = shell, text, lenient, depth
        self.live = True
        self.level = 0
        self.seen: tuple[int, int, str, int | None] | None = None
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        if len(text) > LONGEST or depth > DEEPEST:
            raise self.wrong()
        shell.spend(20 * len(text) + 1)
        place, stripped = 0, text.rstrip()
        while place < len(stripped):
            match = _TOKEN.match(stripped, place)
            if match is None:
                raise self.wrong()
            self.tokens.append((str(match.lastgroup), match.group(match.lastgroup or 0)))
            place = match.end()
        self.tokens.append(("end", ""))

    def wrong(self) -> Exception:
        shown = plain(self.text.strip(), 80)
        return self.shell.refuse(f"(({shown})) cannot be worked out: whole numbers and C's operators are read")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level further in."""
        self.level += 1
        if self.level > DEEPEST:
            raise self.wrong()
        yield
        self.level -= 1

    @contextmanager
    def only(self, live: bool) -> Iterator[None]:
        """A part that is worked out only if `live`."""
        outer, self.live = self.live, self.live and live
        yield
        self.live = outer

    def eat(self, *signs: str) -> str:
        """Passes over the next token, if it is one of these signs, and returns it."""
        kind, text = self.tokens[self.at]
        if kind != "sign" or text not in signs:
            return ""
        self.at += 1
        return text

    def take(self, sign: str) -> None:
        if not self.eat(sign):
            raise self.wrong()

    def value(self) -> int:
        if len(self.tokens) == 1:
            return 0
        found = self.comma()
        if self.at < len(self.tokens) - 1:
            raise self.wrong()
        return found

    def comma(self) -> int:
        with self.deeper():
            found = self.assignment()
            while self.eat(","):
                found = self.assignment()
        return found

    def assignment(self) -> int:
        start = self.at
        if self.tokens[self.at][0] == "name":
            name, index = self.target()
            if sign := self.eat(*_ASSIGNING):
                before = self.read(name, index, updates=True) if sign != "=" else 0  # before the right side changes it
                with self.deeper():
                    value = self.assignment()
                return self.store(name, index, value if sign == "=" else self.apply(sign[:-1], before, value))
            self.seen = (start, self.at, name, index)
            self.at = start
        return self.ternary()

    def target(self) -> tuple[str, int | None]:
        if self.seen is not None and self.seen[0] == self.at:  # an index is worked out once
            _, self.at, name, known = self.seen
            self.seen = None
            return name, known
        name = self.tokens[self.at][1]
        self.at += 1
        if not self.eat("["):
            return name, None
        index = self.comma()
        self.take("]")
        return name, index

    def ternary(self) -> int:
        condition = self.binary(0)
        if not self.eat("?"):
            return condition
        with self.only(condition != 0):
            first = self.comma()
        self.take(":")
        with self.only(condition == 0):
            second = self.assignment()
        return first if condition else second

    def binary(self, level: int) -> int:
        if level == len(BINARY):
            return self.power()
        left = self.binary(level + 1)
        while sign := self.eat(*BINARY[level]):
            if sign in ("&&", "||"):
                with self.only(bool(left) == (sign == "&&")):
                    right = self.binary(level + 1)
                left = int((left and right) != 0 if sign == "&&" else (left or right) != 0)
            else:
                left = self.apply(sign, left, self.binary(level + 1))
        return left

    def power(self) -> int:
        base = self.unary()
        if not self.eat("**"):
            return base
        with self.deeper():
            exponent = self.power()
        if exponent < 0:
            raise self.wrong()
        return wrapped(pow(base, exponent, 2**64))

    def unary(self) -> int:
        sign = self.eat(*_UNARY)
        if not sign:
            return self.primary()
        if sign in ("++", "--") and self.tokens[self.at][0] == "name":
            name, index = self.target()
            return self.store(name, index, wrapped(self.read(name, index, updates=True) + (1 if sign == "++" else -1)))
        with self.deeper():
            value = self.unary()
        return {"-": wrapped(-value), "!": int(not value), "~": ~value}.get(sign, value)

    def primary(self) -> int:
        kind, text = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            try:
                return literal(text)
            except ValueError:
                raise self.wrong() from None
        if kind == "name":
            name, index = self.target()
            sign = self.eat("++", "--")
            before = self.read(name, index, updates=bool(sign))
            if sign:
                self.store(name, index, wrapped(before + (1 if sign == "++" else -1)))
            return before
        self.take("(")
        value = self.comma()
        self.take(")")
        return value

    def apply(self, sign: str, left: int, right: int) -> int:
        try:
            return wrapped(int(_OPERATIONS[sign](left, right)))
        except ZeroDivisionError:
            if self.live:
                raise self.wrong() from None
            return 0

    def read(self, name: str, index: int | None, *, updates: bool = False) -> int:
        """The value of a variable, itself an expression."""
        if not self.live:
            return 0
        value = self.shell.variable(name)
        if isinstance(value, Array):
            if value.keyed:
                raise self.wrong()
            value = value.items.get(0 if index is None else index)
        elif index:
            value = None
        if value is None:
            if updates or self.lenient or index is not None or name == self.shell.updated:
                return 0
            raise Uncertain(Unknown("unset", name))
        return evaluated(self.shell, value, lenient=self.lenient or updates, depth=self.depth + 1)

    def store(self, name: str, index: int | None, value: int) -> int:
        if self.live:
            before = self.shell.state.variables.get(name)
            if index is None:
                self.shell.assign(name, str(value))
            elif isinstance(before, Array) and not before.keyed and index >= 0:
                self.shell.assign(name, Array({**before.items, index: str(value)}))
            else:
                raise self.wrong()
        return value
