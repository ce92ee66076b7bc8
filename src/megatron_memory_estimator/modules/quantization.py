"""Low-precision recipes: what a quantized tensor is made of, and which weights and activations are quantized.

Sources: TransformerEngine `pytorch/tensor/` (float8, float8_blockwise, mxfp8, nvfp4 tensors), `common/recipe`; Megatron-LM
`megatron/core/fp8_utils.py`, `fp4_utils.py`.

| recipe     | data            | scale                        | orientations of a weight             |
| ---------- | --------------- | ---------------------------- | ------------------------------------ |
| delayed    | 1 byte          | one per tensor               | rows; transposed too before Blackwell |
| tensorwise | 1 byte          | one per tensor               | rows; transposed too before Blackwell |
| blockwise  | 1 byte          | fp32 per 128 (weights 128^2) | both                                 |
| mxfp8      | 1 byte          | 1 byte per 32                | both                                 |
| nvfp4      | 1/2 byte        | 1 byte per 16                | both                                 |
"""

from __future__ import annotations

from typing import NamedTuple

from ..tape.tensor import DTYPE_BYTES, Dim, Param, Tensor, ceil_div, round_up, tensor


class Recipe(NamedTuple):
    """How a tensor is quantized: elements per byte of data, elements per scale (0: one for all), dtype of a scale.

    `rows` is what the rows of an expert are padded to. `both` recipes make two copies, by rows and by columns, at once. `squares`:
    a scale of a weight is one of block x block elements. `reads`: how often a cast reads its input (twice for a scale of it all).
    """

    name: str
    per_byte: int
    block: int
    scale: str
    rows: int
    both: bool
    squares: bool = False
    reads: int = 1


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("delayed", 1, 0, "fp32", 16, False),
        Recipe("tensorwise", 1, 0, "fp32", 16, False, reads=2),
        Recipe("blockwise", 1, 128, "fp32", 16, True, squares=True),
        Recipe("mxfp8", 1, 32, "uint8", 32, True),
        Recipe("nvfp4", 2, 16, "uint8", 128, True, reads=2),
    )
}
SCALE_ROWS, SCALE_COLUMNS = 128, 4
"""Multiples that the scale matrices of mxfp8 and nvfp4 weights are padded to."""


def quantized(recipe: Recipe, x: Tensor, name: str) -> tuple[Tensor, ...]:
    """One quantized copy of an activation: its data and its scales."""
    *rows, last = x.shape
    width = Dim(f"{last.name}/{recipe.per_byte}", last.size // recipe.per_byte, last.axes, last.ways)
    data = tensor(name, (*rows, width if recipe.per_byte > 1 else last), "fp8")
    if not recipe.block:
        return (data,)
    blocks = Dim(f"{last.name} blocks of {recipe.block}", ceil_div(last.local, recipe.block))
    return data, tensor(f"{name} scales", (*rows, blocks), recipe.scale)


def orientations(recipe: Recipe, *, blackwell: bool) -> int:
    """Copies of a weight: one where the GEMM can read it in both orientations, else one by rows and one by columns."""
    return 2 if recipe.both or not blackwell else 1


def data_bytes(recipe: Recipe, numel: int) -> int:
    """Bytes of the data of one orientation."""
    return ceil_div(numel, recipe.per_byte)


def scale_bytes(recipe: Recipe, weight: Param) -> int:
    """Bytes of the scales of all copies of a weight [out, in], both orientations."""
    if not recipe.block:
        return 0
    out, inp = weight.shape[0].local, weight.shape[-1].local
    size, block = DTYPE_BYTES[recipe.scale], recipe.block
    if recipe.squares:
        a, b = ceil_div(out, block), ceil_div(inp, block)
        each = a * round_up(b, SCALE_COLUMNS) + b * round_up(a, SCALE_COLUMNS)
    else:
        each = round_up(out, SCALE_ROWS) * round_up(ceil_div(inp, block), SCALE_COLUMNS)
        each = each + round_up(inp, SCALE_ROWS) * round_up(ceil_div(out, block), SCALE_COLUMNS)
    return each * size * weight.copies
