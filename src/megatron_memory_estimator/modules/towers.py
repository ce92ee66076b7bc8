"""Towers in front of the language model, on its first stage: parameters in the order of their classes.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/` (the VL models; the tower is made where `pre_process` is true).
"""

from __future__ import annotations

from ..job.tower import Block, Tower, Weight
from ..tape.ops import Item, Op, Recompute, renaming
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .module import Module, changed
from .vision_tower import images

PREFIX = "vision_model"


def tower_params(c: Context, tower: Tower) -> Module[None]:
    """Every parameter of a tower."""
    for block in tower.blocks:
        for copy in range(block.copies):
            where = f"{PREFIX}.{block.name}" if block.copies == 1 else f"{PREFIX}.{block.name}.{copy}"
            for weight in block.weights:
                yield _param(c, f"{where}.{weight.name}", weight, block)


def _param(c: Context, name: str, weight: Weight, block: Block) -> Param:
    dims = tuple(
        c.dim(f"{weight.name} {'rows' if at == 0 else 'columns'}", size, "tp")
        if at == weight.split
        else Dim(name, size)
        for at, size in enumerate(weight.shape)
    )
    t = c.training
    frozen = t.freeze_vision_projection if block.projection else t.freeze_vision_model
    return Param(name, dims, "replicated" if weight.split is None else "tp", frozen=frozen)


def towers(c: Context) -> Module[Tensor | None]:
    """The towers of a model that are counted; without images in a microbatch they compute nothing."""
    for tower in c.model.towers:
        yield from tower_params(c, tower)
    computed = [tower.vit for tower in c.model.towers if tower.vit and c.training.image_tokens]
    for vit in computed:
        rename = renaming(f"{PREFIX}.", {})
        yield from changed(changed(images(c, vit), rename), _of_towers)
    if not computed:
        yield Op("without images", part="towers", calls=0)
    return None


def _of_towers(item: Item) -> Item:
    """Nothing inside a tower is a part of a decoder layer: what chooses by parts passes over it."""
    if isinstance(item, Recompute):
        return item._replace(ops=tuple(map(_of_towers, item.ops)), part="towers")
    return item._replace(part="towers")
