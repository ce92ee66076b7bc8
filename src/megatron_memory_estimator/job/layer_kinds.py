"""Which kind each decoder layer is: from `moe_layer_freq`, `linear_attention_freq` and hybrid layer patterns.

Sources: Megatron-LM `megatron/core/models/gpt/gpt_layer_specs.py` (get_gpt_decoder_block_spec),
`megatron/training/arguments.py` (moe_freq_type), `megatron/core/models/hybrid/hybrid_layer_allocation.py`.

Sums of repeated lists, such as `([0]*3+[1]*58)`, without evaluating code.

Source: Megatron-LM `megatron/training/arguments.py` (moe_freq_type), which evaluates them as Python. Everything here is linear in the
text and in what it may become, and brackets are nested on a stack of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import ConfigError
from ..wording import shown, signed, whole

EXPERTS = "E"
"""The symbol of routed experts."""
ROUTED, HASHED = "moe", "hash_moe"
"""The kinds of routed experts: chosen by a router, and by the token's hash."""
COMPRESSED = {0: "window", 4: "csa", 128: "hca"}
"""DeepSeek-V4's kinds of attention by their compression ratio."""
HYBRID_SYMBOLS = {
    "M": "mamba",
    "G": "gdn",
    "*": "gqa",
    "+": "mla",
    "D": "dsa",
    "W": "window",
    "C": "csa",
    "H": "hca",
    "-": "dense",
    EXPERTS: ROUTED,
}
ATTENTION = frozenset("*+DWCH")
"""The symbols of layers with query heads."""
MIXERS = {"linear": "linear_attention", "no_op": "no_attention"}
MLPS = {"linear": "linear_mlp", "no_op": "no_mlp"}
"""Kinds of what stands in the place of attention and of an MLP."""
OWNS, BORROWS = "dsa", "dsa_shared"
"""Sparse attention with an indexer of its own, and with the keys of an earlier layer."""
MOST_LAYERS = 2_000
MOST_MTP_LAYERS = 64
MOST_EXPERTS = 16_384


def frequency_list(name: str, value: object, num_layers: int) -> tuple[int, ...]:
    """0/1 for each layer. An int N marks every Nth layer from layer 0; a string is an int or an expression."""
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value} must be a whole number, a 0/1 list or an expression")
    if isinstance(value, str):
        value = expression(name, value) if "[" in value else whole_number(name, value)
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(f"{name}={shown(value)} must be at least 1")
        return tuple(int(i % value == 0) for i in range(num_layers))
    if not isinstance(value, list | tuple) or any(x not in (0, 1) or isinstance(x, bool) for x in value):
        raise ConfigError(f"{name} must be a whole number, a list of 0 and 1, or an expression such as ([0]*3+[1]*58)")
    if len(value) != num_layers:
        raise ConfigError(f"{name} has {len(value)} entries for num_layers={num_layers}; give one per layer")
    return tuple(value)


def whole_number(name: str, text: str) -> int:
    number = signed(text.strip())
    if number is None:
        raise ConfigError(f"{name}={shown(text)} is neither a whole number nor a list expression")
    return number


def expression(name: str, text: str) -> list[int]:
    """The list that an expression says. Raises ConfigError for one that is none, or is too long."""

    try:
        return evaluated(text, MOST_LAYERS)
    except TooLongError:
        raise ConfigError(
            f"{name}={shown(text)} has more than {MOST_LAYERS} entries, the most that is accepted"
        ) from None
    except ValueError:
        raise ConfigError(f"{name}={shown(text)} is not a sum of repeated lists such as ([0]*3+[1]*58)") from None


def has_heads(pattern: str | None) -> bool:
    """Whether any layer has query heads: every layer without a hybrid pattern."""
    return pattern is None or not ATTENTION.isdisjoint(pattern)


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
