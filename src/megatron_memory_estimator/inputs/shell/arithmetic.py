"""Arithmetic of the shell: 64-bit whole numbers, C's operators, assignments. Source: the Bash Reference Manual 5.2, 6.5."""

from __future__ import annotations

import re

from ...wording import plain
from .doubts import bare, doubtful, doubts_in, in_doubt, marks, unset, unset_in
from .operators import BINARY, applied, literal, wrapped
from .state import Array, Shell

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+#[0-9a-zA-Z@_]+|[0-9]+)(?![\w#.])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%<>=!&^|~?:(),\[\]]))"
)
_ASSIGNING = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="})
LONGEST = 2000
DEEPEST = 20


class Uncertain(Exception):  # noqa: N818
    """A value in the expression is not known; `mark` says which."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark


def evaluated(shell: Shell, text: str, *, lenient: bool = False, depth: int = 0) -> int:
    """The value of an expression whose expansions are done. Raises Uncertain, and ConfigError for what is no expression.

    Variables that are set nowhere are 0 in bash; here they are not known, unless `lenient` (a condition), or where a variable
    is counted up from nothing (`N=$((N + 1))`).
    """
    if in_doubt(text) or (marks(text) and not lenient):
        raise Uncertain(_first_mark(text))
    return _Expression(shell, bare(text), lenient=lenient, depth=depth).value()


def settled(shell: Shell, text: str, *, lenient: bool = False) -> int | str:
    """The value, or the mark of what is not known; variables that an uncertain expression assigns are in doubt then."""
    try:
        return evaluated(shell, text, lenient=lenient)
    except Uncertain as found:
        kind, key = marks(found.mark)[0]
        mark = found.mark if kind in "?!" else shell.doubt(f"${key} is used in (( )) and has no value", key)
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:[-+*/%&^|]|<<|>>)?=(?!=)", bare(text)):
            shell.assign(name, mark)
        for pair in re.findall(r"([A-Za-z_]\w*)\s*(?:\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)", bare(text)):
            shell.assign(pair[0] or pair[1], mark)
        return mark


def assigns(text: str) -> bool:
    """Whether an expression sets variables."""
    return re.search(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=", text) is not None


def _first_mark(text: str) -> str:
    doubts = doubts_in(text)
    return doubtful(doubts[0]) if doubts else unset(unset_in(text)[0])


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
        place = 0
        stripped = text.rstrip()
        while place < len(stripped):
            match = _TOKEN.match(stripped, place)
            if match is None:
                raise self.wrong()
            self.tokens.append((str(match.lastgroup), match.group(match.lastgroup or 0)))
            place = match.end()

    def wrong(self) -> Exception:
        shown = plain(self.text.strip(), 80)
        return self.shell.refuse(f"(({shown})) cannot be worked out: whole numbers and C's operators are read")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] == "sign" else ""

    def take(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.wrong()
        self.at += 1

    def value(self) -> int:
        if not self.tokens:
            return 0
        found = self.comma()
        if self.at < len(self.tokens):
            raise self.wrong()
        return found

    def comma(self) -> int:
        self.level += 1
        if self.level > DEEPEST:
            raise self.wrong()
        found = self.assignment()
        while self.peek() == ",":
            self.at += 1
            found = self.assignment()
        self.level -= 1
        return found

    def assignment(self) -> int:
        start = self.at
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "name":
            name, index = self.target()
            sign = self.peek()
            if sign in _ASSIGNING:
                before = self.read(name, index, updates=True) if sign != "=" else 0  # before the right side changes it
                self.at += 1
                self.level += 1
                if self.level > DEEPEST:
                    raise self.wrong()
                value = self.assignment()
                self.level -= 1
                if sign != "=":
                    value = self.apply(sign[:-1], before, value)
                return self.store(name, index, value)
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
        if self.peek() != "[":
            return name, None
        self.at += 1
        index = self.comma()
        self.take("]")
        return name, index

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.at += 1
        live = self.live
        self.live = live and condition != 0
        first = self.comma()
        self.take(":")
        self.live = live and condition == 0
        second = self.assignment()
        self.live = live
        return first if condition else second

    def binary(self, level: int) -> int:
        if level == len(BINARY):
            return self.power()
        left = self.binary(level + 1)
        while (sign := self.peek()) in BINARY[level] and sign:
            self.at += 1
            live = self.live
            if sign in ("&&", "||"):
                self.live = live and bool(left) == (sign == "&&")
                right = self.binary(level + 1)
                self.live = live
                left = int(bool(left) and bool(right)) if sign == "&&" else int(bool(left) or bool(right))
            else:
                left = self.apply(sign, left, self.binary(level + 1))
        return left

    def power(self) -> int:
        base = self.unary()
        if self.peek() != "**":
            return base
        self.at += 1
        self.level += 1
        if self.level > DEEPEST:
            raise self.wrong()
        exponent = self.power()
        self.level -= 1
        if exponent < 0:
            raise self.wrong()
        return wrapped(pow(base, exponent, 2**64))

    def unary(self) -> int:
        sign = self.peek()
        if sign in ("++", "--") and self.at + 1 < len(self.tokens) and self.tokens[self.at + 1][0] == "name":
            self.at += 1
            name, index = self.target()
            return self.store(name, index, wrapped(self.read(name, index, updates=True) + (1 if sign == "++" else -1)))
        if sign in ("+", "-", "!", "~", "++", "--"):
            self.level += 1
            if self.level > DEEPEST:
                raise self.wrong()
            self.at += 1
            value = self.unary()
            self.level -= 1
            return {"-": wrapped(-value), "!": int(not value), "~": ~value}.get(sign, value)
        return self.primary()

    def primary(self) -> int:
        if self.at >= len(self.tokens):
            raise self.wrong()
        kind, text = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return self.number(text)
        if kind == "name":
            name, index = self.target()
            if self.peek() in ("++", "--"):
                change = 1 if self.peek() == "++" else -1
                self.at += 1
                before = self.read(name, index, updates=True)
                self.store(name, index, wrapped(before + change))
                return before
            return self.read(name, index)
        self.take("(")
        value = self.comma()
        self.take(")")
        return value

    def number(self, text: str) -> int:
        try:
            return literal(text)
        except ValueError:
            raise self.wrong() from None

    def apply(self, sign: str, left: int, right: int) -> int:
        try:
            return applied(sign, left, right)
        except ZeroDivisionError:
            if self.live:
                raise self.wrong() from None
            return 0

    def read(self, name: str, index: int | None, *, updates: bool = False) -> int:
        """The value of a variable, itself an expression."""
        if not self.live:
            return 0
        from .parameters import variable

        value = variable(self.shell, name)
        if isinstance(value, Array):
            if value.keyed:
                raise self.wrong()
            value = value.items.get(0 if index is None else index)
        elif index:
            value = None
        if value is None:
            if updates or self.lenient or index is not None or name == self.shell.updated:
                return 0
            raise Uncertain(unset(name))
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
