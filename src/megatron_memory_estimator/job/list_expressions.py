"""Sums of repeated lists, such as `([0]*3+[1]*58)`, without evaluating code.

Source: Megatron-LM `megatron/training/arguments.py` (moe_freq_type), which evaluates them as Python. Everything here is linear in the
text and in what it may become, and brackets are nested on a stack of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..wording import whole

_TOKEN = re.compile(r"\[[^\[\]]*\]|[0-9]+|\S")
_ITEM = re.compile(r"[0-9]+|\S")


class TooLongError(ValueError):
    """A list of more entries than the caller takes."""


@dataclass
class _Level:
    """What has been read between two brackets: a sum, and the product behind it."""

    most: int
    total: list[int] = field(default_factory=list)
    product: int | list[int] | None = None

    def multiply(self, value: int | list[int]) -> None:
        """The next factor. Raises ValueError for two numbers or two lists, which no list is made of."""
        if self.product is None:
            self.product = value
            return
        times, items = (value, self.product) if isinstance(value, int) else (self.product, value)
        if not isinstance(times, int) or not isinstance(items, list):
            raise ValueError("neither a number of times nor a list")
        if len(items) * times > self.most:
            raise TooLongError
        self.product = items * times

    def added(self) -> list[int]:
        """The sum with the product behind it, in the first list where there is one: a sum costs what is added."""
        if not isinstance(self.product, list):
            raise ValueError("a number is no list")
        if self.total:
            self.total.extend(self.product)
        else:
            self.total = self.product
        self.product = None
        return self.total

    def ended(self) -> list[int]:
        """The sum at a `+` or a closing bracket."""
        if len(self.added()) > self.most:
            raise TooLongError
        return self.total


def evaluated(text: str, most: int) -> list[int]:
    """The list that an expression says. Raises TooLongError for a part of more than `most` entries, ValueError for no expression."""
    outside: list[_Level] = []
    level = _Level(most)
    needs_value = True
    for token in _TOKEN.findall(text):
        if needs_value and token == "(":
            outside.append(level)
            level = _Level(most)
        elif needs_value:
            level.multiply(_items(token) if token.startswith("[") else _number(token))
            needs_value = False
        elif token == "*":
            needs_value = True
        elif token == "+":
            level.ended()
            needs_value = True
        elif token == ")" and outside:
            inner = level.ended()
            level = outside.pop()
            level.multiply(inner)
        else:
            raise ValueError(f"{token} where * + or ) should be")
    if outside or needs_value:
        raise ValueError("the expression does not end")
    return level.added()


def _items(token: str) -> list[int]:
    """The numbers of a list; commas stand between them, or blanks."""
    if not token.endswith("]"):
        raise ValueError("a list that does not end")
    items: list[int] = []
    may_follow = False  # a comma
    for word in _ITEM.findall(token[1:-1]):
        if word != ",":
            items.append(_number(word))
        elif not may_follow:
            raise ValueError("a comma without a number in front of it")
        may_follow = word != ","
    return items


def _number(token: str) -> int:
    number = whole(token)
    if number is None:
        raise ValueError(f"{token} is no number")
    return number
