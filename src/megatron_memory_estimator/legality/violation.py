"""A broken rule as a value: what it is counted by, and what users read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Violation(NamedTuple):
    """A broken rule: `rule` says it with names alone and is the same for every layout; `text` has the numbers and the fix."""

    rule: str
    text: str


def broken(rule: str, numbers: Mapping[str, object] | None = None, *, fix: str = "", said: str = "") -> Violation:
    """The violation of a rule with the numbers of a run.

    A name in braces stands for itself in the rule and for name=number in the text: `{num_gpus} is odd` with num_gpus 3 is counted as
    "num_gpus is odd" and said as "num_gpus=3 is odd". `said` is the sentence where numbers stand in it without their names.
    """
    named = numbers or {}
    text = said or rule.format_map({name: f"{name}={number}" for name, number in named.items()})
    return Violation(rule.format_map({name: name for name in named}), f"{text}; {fix}" if fix else text)


def indivisible(name: str, number: int, by: str, ways: int, *, fix: str, where: str = "") -> Violation:
    """The violation of a rule that one number divides by another."""
    return broken(f"{{{name}}} is not divisible by {{{by}}}{where}", {name: number, by: ways}, fix=fix)
