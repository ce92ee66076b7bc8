"""Random layouts of a space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .places import Place


class Sampler:
    """The places with the smallest of random numbers: each place is as likely as any other."""

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count, self.random = count, random
        self.kept: list[tuple[float, Place]] = []

    def offer(self, size: int, place: Callable[[int], Place]) -> None:
        """Draw a number for each of so many places."""
        drawn = self.random.random(size)
        worst = self.kept[-1][0] if len(self.kept) >= self.count else 1.0
        chosen = np.nonzero(drawn < worst)[0]
        chosen = chosen[np.argsort(drawn[chosen])[: self.count]]
        self.kept += [(float(drawn[i]), place(int(i))) for i in chosen]
        self.kept = sorted(self.kept, key=lambda item: item[0])[: self.count]
