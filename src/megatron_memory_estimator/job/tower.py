"""Vision and audio towers in front of a language model: their parameters, or that they are not counted."""

from __future__ import annotations

from typing import Literal, NamedTuple

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

    image_tokens: int = setting(0, "vision tower: tokens of a sequence that stand for images", of="tower")
    freeze_vision_model: bool = setting(False, "vision tower: its layers are not trained", of="tower")
    freeze_vision_projection: bool = setting(
        False, "vision tower: what leads from it into the language model is not trained", of="tower"
    )


class Vit(NamedTuple):
    """Sizes of a vision tower of Megatron's own layers: `patch` numbers of a patch, `merge` patches that become one token, `out` the
    width of the language model; behind the layers `deepstack` stand mergers of their own."""

    hidden: int
    ffn: int
    heads: int
    depth: int
    patch: int
    merge: int
    out: int
    deepstack: tuple[int, ...] = ()


HfKind = Literal["qwen2_5_vl", "glm4v", "siglip", "pixtral", "gemma4"]


class HfTower(NamedTuple):
    """Sizes of a vision tower that is a class of huggingface/transformers, as those of `Vit`. `positions`: of the table of positions;
    `merger`: the width of a gated merger; `image`: tokens of an image where all have as many; `clipped`: linears clamp what goes in and
    out."""

    kind: HfKind
    hidden: int
    ffn: int
    heads: int
    depth: int
    patch: int
    merge: int
    out: int
    positions: int = 0
    merger: int = 0
    image: int = 0
    clipped: bool = False


class Tower(NamedTuple):
    """A tower. Without blocks it is not counted; with `vit`, of Megatron's layers, or `hf` what it computes of images is known too."""

    name: str
    blocks: tuple[Block, ...] = ()
    vit: Vit | None = None
    hf: HfTower | None = None

    @property
    def sees(self) -> bool:
        """Whether it is known what it computes of images."""
        return self.vit is not None or self.hf is not None

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
        return self.vit is not None

    def lacks(self, training: TowerTraining, *, adapters: bool) -> str:
        """What of it no figure has, if anything."""
        if not self.blocks:
            return f"its {self.name}"
        known = self.sees and training.image_tokens > 0
        parts = [*([] if known else ["activations"]), *(["adapters"] if adapters and self.adaptable else [])]
        return f"the {' and the '.join(parts)} of its {self.name}" if parts else ""


def counted(towers: tuple[Tower, ...]) -> tuple[Tower, ...]:
    """Those whose parameters are known."""
    return tuple(tower for tower in towers if tower.blocks)


def lacking(towers: tuple[Tower, ...], training: TowerTraining | None = None, *, adapters: bool = False) -> str:
    """What no figure of a model with towers has, as a clause; nothing of a model without. With `adapters` its weights are frozen."""
    held = training or TowerTraining()
    found = [(tower, said) for tower in towers if (said := tower.lacks(held, adapters=adapters))]
    if not found:
        return ""
    alone = "" if counted(towers) else "the language model alone: "
    several = len(found) > 1 or bool(found[0][0].blocks)
    clause = f"{alone}{all_of(said for _, said in found)} {'are' if several else 'is'} not counted"
    return (
        f"{clause}; --image-tokens counts them"
        if any(tower.sees and not held.image_tokens for tower in towers)
        else clause
    )
