"""Lengths of the samples of a run as data: read from text, a file or three figures; shares and chances of long ones."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import exp, expm1, log, log1p, sqrt
from random import Random
from statistics import NormalDist
from typing import Any

from ..errors import ConfigError
from ..inputs.text_files import read_text, shortened
from ..wording import plain, whole

LONGEST = 10**9
"""Tokens of the longest sample that is read."""
MOST = 10**12
"""Samples of the largest set that is read."""
FORMS = "a length a line, `length count` lines, a JSON list of lengths, or mean,p99,max"


@dataclass(frozen=True)
class Samples:
    """How many samples have which length: `counts` holds (length, samples), by length."""

    counts: tuple[tuple[int, int], ...]

    @property
    def number(self) -> int:
        """All samples."""
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float:
        """Tokens of a sample on average."""
        return sum(length * count for length, count in self.counts) / self.number

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.counts[-1][0]

    def share_longer(self, length: int) -> float:
        """Share of the samples that are longer than so many tokens."""
        return sum(count for one, count in self.counts if one > length) / self.number

    def chance(self, length: int, global_batch_size: int, steps: int = 1) -> float:
        """Chance that so many steps meet a sample longer than so many tokens."""
        return chance_of_any(self.share_longer(length), global_batch_size * steps)

    def draw(self, count: int, random: Random) -> tuple[int, ...]:
        """Lengths of `count` samples, drawn independently: a batch of a step."""
        limits = list(accumulate(number for _, number in self.counts))
        return tuple(self.counts[bisect_right(limits, random.randrange(limits[-1]))][0] for _ in range(count))


def chance_of_any(share: float, draws: int) -> float:
    """Chance that one of so many independent draws is of a share q: 1 - (1 - q)^draws."""
    if share >= 1:
        return float(draws > 0)
    return -expm1(draws * log1p(-share))


def read_samples(given: str) -> Samples:
    """The samples that a short form `mean,p99,max`, a JSON list, or the path of a file says."""
    return _of_text(given) or parse_samples(read_text(given.strip()), shortened(given.strip()))


def samples_of(text: str) -> Samples:
    """The samples that a text says itself: no file is read."""
    return _of_text(text) or parse_samples(text, "the text")


def _of_text(given: str) -> Samples | None:
    """The samples of a list, of three figures or of lines; None for a word that may be a file."""
    text = given.strip()
    if text.startswith("["):
        return parse_samples(text, "the list of lengths")
    parts = text.split(",")
    if len(parts) == 3 and all(part.strip()[:1].isdigit() for part in parts):
        return _of_figures([part.strip() for part in parts], text)
    if not text:
        raise ConfigError(f"no sample lengths are given; give a file or text with {FORMS}")
    return parse_samples(text, "the text") if whole(text) is not None or "\n" in text else None


def parse_samples(text: str, name: str) -> Samples:
    """The samples that the text of a file says; `name` is the file in messages."""
    if text.lstrip().startswith("["):
        return _counted(((place, value, 1) for place, value in enumerate(_json_list(text, name), 1)), name, "item")
    return _counted(_lines(text, name), name, "line")


def _lines(text: str, name: str) -> Iterator[tuple[int, Any, Any]]:
    """Line number, length and count of every line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        values = [whole(word) for word in words]
        if len(words) > 2 or None in values:
            shown = plain(line.strip(), 40)
            raise ConfigError(
                f"{name}, line {number}: `{shown}` is neither a length nor `length count` in whole numbers; read are {FORMS}"
            )
        yield number, values[0], values[1] if len(values) == 2 else 1


def _json_list(text: str, name: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{name}{line}: not a JSON list of lengths; read are {FORMS}") from None
    if not isinstance(found, list):
        raise ConfigError(f"{name}: not a JSON list of lengths; read are {FORMS}")
    return found


def _counted(rows: Iterable[tuple[int, Any, Any]], name: str, place: str) -> Samples:
    """The samples of checked rows of place, length and count."""
    found: Counter[int] = Counter()
    for number, length, count in rows:
        if type(length) is not int or not 1 <= length <= LONGEST:
            shown = plain(str(length), 40) if type(length) is not int else str(length)[:20]
            raise ConfigError(
                f"{name}, {place} {number}: a length must be a whole number from 1 to {LONGEST}, not {shown}"
            )
        if not 1 <= count <= MOST:
            raise ConfigError(f"{name}, {place} {number}: a count must be from 1 to {MOST}, not {count}")
        found[length] += count
    if not found:
        raise ConfigError(f"{name} holds no sample lengths; read are {FORMS}")
    if sum(found.values()) > MOST:
        raise ConfigError(f"{name} holds more than {MOST} samples")
    return Samples(tuple(sorted(found.items())))


def _of_figures(parts: list[str], text: str) -> Samples:
    """A hundred samples of which a mean, a 99th percentile and a maximum are known.

    Assumed is the log-normal distribution with this mean and 99th percentile, of which each percent has the length of its longest; the last
    percent is as long as the maximum, as answers are that a limit ended. So a length up to the maximum occurs as often as the figures
    allow, and the mean is at least the given one. Where no log-normal has the figures (a 99th percentile above 14.97 means), the
    widest that there is stands in.
    """
    values = [whole(part) for part in parts]
    if any(value is None or not 1 <= value <= LONGEST for value in values):
        raise ConfigError(f"mean,p99,max must be whole numbers from 1 to {LONGEST}, not `{plain(text, 40)}`")
    mean, p99, most = (value or 0 for value in values)
    if not mean <= p99 <= most:
        raise ConfigError(f"mean,p99,max must not fall: mean {mean}, 99th percentile {p99}, maximum {most}")
    normal = NormalDist()
    z = normal.inv_cdf(0.99)
    spread = z - sqrt(max(0.0, z * z - 2 * log(p99 / mean)))
    lengths = [min(p99, max(1, round(p99 * exp(spread * (normal.inv_cdf(i / 100) - z))))) for i in range(1, 100)]
    for i in reversed(range(99)):
        if sum(lengths) + most >= 100 * mean:
            break
        lengths[i] = p99
    return Samples(tuple(sorted(Counter([*lengths, most]).items())))
