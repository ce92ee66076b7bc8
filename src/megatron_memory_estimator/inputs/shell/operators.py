"""Numbers and operators of the shell's arithmetic: 64 bits with a sign, as in C. Source: the Bash Reference Manual 5.2, 6.5."""

from __future__ import annotations

import operator
from collections.abc import Callable

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


def applied(sign: str, left: int, right: int) -> int:
    """What an operator makes of two numbers. Raises ZeroDivisionError."""
    return wrapped(int(_OPERATIONS[sign](left, right)))
