"""Vision and audio towers in front of a language model: their parameters, or that they are not counted."""

from __future__ import annotations

from typing import NamedTuple

from ..dataclass import dataclass
from ..wording import all_of
from .settings import setting

SEEN = "vision tower"
UNNAMED = "vision or audio tower"
"""A tower of which nothing is known."""


class Weight(NamedTuple):
    """A parameter: its shape, and the dimension that tensor-parallel ranks share, if they share one."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None


class Block(NamedTuple):
    """Equal layers of a tower, or what stands once in it; `projection`: it leads into the language model."""

    name: str
    copies: int
    weights: tuple[Weight, ...]
    projection: bool = False


@dataclass(frozen=True)
class TowerTraining:
    """How towers are trained, by the names of Megatron-Bridge's providers."""

    freeze_vision_model: bool = setting(False, "vision tower: its layers are not trained", of="tower")
    freeze_vision_projection: bool = setting(
        False, "vision tower: what leads from it into the language model is not trained", of="tower"
    )


class Tower(NamedTuple):
    """A tower. Without blocks it is not counted; `heads` are those of attention that tensor-parallel ranks share, if they do."""

    name: str
    blocks: tuple[Block, ...] = ()
    heads: int = 0

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
    def adaptable(self) -> bool:
        """Whether it is made of Megatron's layers, which adapters are put into."""
        return self.heads > 0

    def lacks(self, *, adapters: bool) -> str:
        """What of it no figure has."""
        if not self.blocks:
            return f"its {self.name}"
        more = " and the adapters" if adapters and self.adaptable else ""
        return f"the activations{more} of its {self.name}"


def counted(towers: tuple[Tower, ...]) -> tuple[Tower, ...]:
    """Those whose parameters are known."""
    return tuple(tower for tower in towers if tower.blocks)


def lacking(towers: tuple[Tower, ...], *, adapters: bool = False) -> str:
    """What no figure of a model with towers has, as a clause; nothing of a model without. With `adapters` its weights are frozen."""
    if not towers:
        return ""
    parts = all_of(tower.lacks(adapters=adapters) for tower in towers)
    alone = "" if any(tower.blocks for tower in towers) else "the language model alone: "
    plural = len(towers) > 1 or bool(towers[0].blocks)
    return f"{alone}{parts} {'are' if plural else 'is'} not counted"
