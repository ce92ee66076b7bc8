"""Vision and audio towers in front of a language model: their parameters, or that they are not counted."""

from __future__ import annotations

from typing import NamedTuple

from ..wording import all_of

UNNAMED = "vision or audio tower"
"""A tower of which nothing is known."""


class Weight(NamedTuple):
    """A parameter: its shape, and the dimension that tensor-parallel ranks share, if they share one."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None


class Block(NamedTuple):
    """Equal layers of a tower, or what stands once in it."""

    name: str
    copies: int
    weights: tuple[Weight, ...]


class Tower(NamedTuple):
    """A tower. Without blocks it is not counted."""

    name: str
    blocks: tuple[Block, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Parameters of all its blocks."""
        total = 0
        for block in self.blocks:
            for weight in block.weights:
                size = block.copies
                for n in weight.shape:
                    size *= n
                total += size
        return total

    @property
    def lacks(self) -> str:
        """What of it no figure has."""
        return f"the activations of its {self.name}" if self.blocks else f"its {self.name}"


def lacking(towers: tuple[Tower, ...]) -> str:
    """What no figure of a model with towers has, as a clause; nothing of a model without."""
    if not towers:
        return ""
    parts = all_of(tower.lacks for tower in towers)
    alone = "" if any(tower.blocks for tower in towers) else "the language model alone: "
    plural = len(towers) > 1 or towers[0].blocks or towers[0].name.endswith("s")
    return f"{alone}{parts} {'are' if plural else 'is'} not counted"
