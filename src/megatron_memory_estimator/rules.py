"""The rules of a legal run as a table, `rules.csv`: what a broken one is counted by, and what users read.

A row has the subject of a rule, its code, its sentence, its fix, its source, the version of Megatron-Core since which it holds, the
smallest example that breaks it (words of `megatron-memory estimate`), and its legal neighbour: words behind them, or a whole line. A name
in braces stands for itself in the rule and for name=number in the text: `{num_gpus} is odd` with num_gpus 3 is counted as "num_gpus is
odd" and said as "num_gpus=3 is odd". `{entries:n}` is the number alone, and nothing in the rule. A pair of a name and a number brings its
own name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from .errors import LayoutError, coded
from .tables import rows_beside
from .wording import all_of, counted

TP, CP, PP = "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"
SHARDS, EXPERT_SHARDS = "tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"
NAMES = re.compile(r"\{([^{}:]+)(:n)?\}")
"""A name of a sentence, and whether its number stands alone."""
WORD = re.compile(r"[a-z][a-z0-9_ +,]*")
"""A value that is a word, or several."""
OURS = "the estimator does not model it"
"""Source of a rule that is not Megatron's."""
Numbers = Mapping[str, object]


class Rule(NamedTuple):
    """A row of the table."""

    part: str
    code: str
    sentence: str
    fix: str
    source: str
    since: str
    breaks: str
    legal: str

    @property
    def neighbour(self) -> str:
        """The legal example, as a whole line: options that it gives anew are taken out of the other."""
        if self.breaks.startswith("--") or not self.legal.startswith("--"):
            return self.legal
        anew = {_option(word) for word in self.legal.split() if word.startswith("--")}
        kept, dropped = [], False
        for word in shlex.split(self.breaks):
            dropped = _option(word) in anew if word.startswith("--") else dropped
            kept += [] if dropped else [word]
        return f"{shlex.join(kept)} {self.legal}"


def _option(word: str) -> str:
    return word.removeprefix("--").removeprefix("no-")


class Violation(NamedTuple):
    """A broken rule: `rule` says it with names alone and is the same for every layout; `text` has the numbers and the fix."""

    rule: str
    text: str
    code: str = ""

    @property
    def said(self) -> str:
        """The text with its code."""
        return coded(self.text, self.code)


@cache
def table() -> dict[str, Rule]:
    """Every rule by its code."""
    return {row["code"]: Rule(**row) for row in rows_beside(__file__, "rules.csv")}


def broken(code: str, numbers: Numbers | None = None, **more: object) -> Violation:
    """The violation of a rule with the numbers of a run; more of them are names of Python."""
    rule = table()[code]
    named = {**(numbers or {}), **more}
    text = rule.sentence.format_map({name: _Number(name, value) for name, value in named.items()})
    counted = rule.sentence.format_map({name: _Name(name, value) for name, value in named.items()})
    fix = rule.fix.format_map(named)
    return Violation(_tidy(counted), f"{text}; {fix}" if fix else text, code)


def refusal(*violations: Violation) -> LayoutError:
    """The error of a run that breaks rules."""
    return LayoutError(*zip(*((one.text, one.rule, one.code) for one in violations), strict=True))


def of_error(error: LayoutError) -> tuple[Violation, ...]:
    """The violations that an error tells of."""
    return tuple(map(Violation, error.rules, error.reasons, error.codes))


def broken_if(cases: Iterable[tuple[object, str]]) -> Iterator[Violation]:
    """The violations of rules without numbers: each whether it is broken, and its code."""
    for wrong, code in cases:
        if wrong:
            yield broken(code)


def broken_by(code: str, parts: Mapping[str, object], numbers: Numbers | None = None) -> Iterator[Violation]:
    """The violation of a rule about `names`, where one of these parts of a run is there."""
    if names := [name for name, there in parts.items() if there]:
        yield broken(code, numbers, names=always(all_of(names)))


def _tidy(rule: str) -> str:
    """A rule without what its numbers leave behind: blanks, commas, and `, not` at the end."""
    plain = " ".join(rule.split()).replace(" ,", ",").replace(",,", ",")
    return plain.removesuffix(", not").removesuffix(",")


class Worded(NamedTuple):
    """Words of a sentence that differ: as the rule says them, and as the text does."""

    rule: str
    text: str


def some(count: int, one: str) -> Worded:
    """A count of things: `layers` in the rule, `3 layers` in the text."""
    return Worded(f"{one}s", counted(count, one))


def always(text: str) -> Worded:
    """What is no number of a layout, and the rule has too: a number of a GPU, what a kernel needs, names."""
    return Worded(text, text)


class _Number:
    """A number as a text says it: name=number, or (`:n`) alone. A pair is a number with a name of its own."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = value if type(value) is tuple else (name, value)

    def __format__(self, spec: str) -> str:
        if isinstance(self.value, Worded):
            return self.value.text
        return str(self.value) if spec == "n" else f"{self.name}={self.value}"


class _Name(_Number):
    """The same as a rule says it: its name, or nothing; a word of a setting stays, as it is no number of a run."""

    def __format__(self, spec: str) -> str:
        if isinstance(self.value, Worded):
            return self.value.rule
        if isinstance(self.value, str) and WORD.fullmatch(self.value):
            return super().__format__(spec)
        return "" if spec == "n" else self.name
