"""Scratch of Muon's step: one matrix after the other is orthogonalized, and the largest decides.

    momentum (with Nesterov's a copy of 4 S) -> normed in fp32, 4 S -> in 16 bits, 2 S -> iterations -> in fp32, 4 S
    -> times a scale, 4 S -> times another, 4 S: at most 12 S bytes of a matrix of S elements

Iterations stay in fp32 with `muon_fp32_matmul_prec` high and highest: twice the bytes of each.

Query, key and value are orthogonalized apart: copies of them where there are several groups, and the results, which are joined. With
`muon_tp_mode` duplicated a rank gathers the whole matrix first: its parts, the parts joined, and the first 6 of those 12.

Sources: NVIDIA-NeMo/Emerging-Optimizers 0.3.0 `muon_utils.py` (newton_schulz_tp), Megatron-LM
`megatron/core/optimizer/emerging_optimizers.py` (TensorParallelMuon). The largest moment of the real class's step is this (`tests`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from ..tape.tensor import Param
from .buffers import Buffer, is_muon_managed
from .state import State

WIDE = 4
"""Bytes of an element in fp32."""
SCALED = 3 * WIDE
"""Bytes of an element while the result is scaled twice."""
DUPLICATES = (0, 20)
"""The Megatron-Core whose default gathers whole matrices (Megatron-LM main, optimizer_config.py)."""


def tp_mode(t: Training) -> str:
    """How matrices that tensor parallelism splits are orthogonalized."""
    return t.muon_tp_mode or ("duplicated" if t.mcore >= DUPLICATES else "blockwise")


def newton_schulz(c: Context, params: Iterable[Param], buffers: Sequence[Buffer], *, first_chunk: bool) -> list[State]:
    """The scratch of the largest matrix of a rank, of those that it owns where ranks own whole parameters; none with another optimizer."""
    t = c.training
    if t.optimizer != "muon":
        return []
    dealt = any(buffer.dealt for buffer in buffers)
    owned = {item.name for buffer in buffers for item in buffer.owns}
    managed = [
        p for p in params
        if not p.frozen and is_muon_managed(t, p, first_chunk=first_chunk) and (p.name in owned or not dealt)
    ]  # fmt: skip
    sizes = [(step_bytes(c.model, t, p), p) for p in managed]
    if not sizes:
        return []
    size, param = max(sizes, key=lambda one: one[0])
    why = "the largest matrix of Muon's step, one after the other"
    return [State("optimizer", f"Newton-Schulz of {param.name}", "", 0, "fp32", size // WIDE, size, "optimizer", why)]


def step_bytes(model: Model, t: Training, param: Param) -> int:
    """Bytes of the largest moment of one matrix."""
    matrix = Matrix(*(dim.local for dim in param.shape), *(dim.ways if dim.axes else 1 for dim in param.shape))
    nesterov = WIDE * matrix.elements if t.muon_nesterov else 0
    if t.muon_split_qkv and param.name.endswith("linear_qkv.weight"):
        return nesterov + _split(model, matrix, t)
    return nesterov + _whole(matrix, t)


class Matrix(NamedTuple):
    """Rows and columns of a rank, and the ranks that have others of either."""

    rows: int
    columns: int
    row_ways: int = 1
    column_ways: int = 1

    @property
    def elements(self) -> int:
        """Elements of a rank."""
        return self.rows * self.columns


def _whole(x: Matrix, t: Training) -> int:
    """Of a matrix that is orthogonalized whole. An iteration has the matrix before and after it, and two squares of its smaller side, or
    of the side that no rank shares."""
    ways, mode = x.row_ways * x.column_ways, tp_mode(t)
    width = 2 if t.muon_fp32_matmul_prec == "medium" else WIDE
    alone = ways == 1 or mode == "blockwise"
    if alone or mode == "distributed":
        side = min(x.rows, x.columns) if alone else x.columns if x.row_ways > 1 else x.rows
        return max(SCALED * x.elements, _iteration(x.elements, side, width))
    elements, side = ways * x.elements, min(x.rows * x.row_ways, x.columns * x.column_ways)
    normed = (WIDE + width) * elements
    return 2 * WIDE * elements + max(normed, _iteration(elements, side, width))


def _iteration(elements: int, side: int, width: int) -> int:
    return 2 * width * (elements + side * side)


def _split(model: Model, x: Matrix, t: Training) -> int:
    """Of query, key and value apart: what is done of the others stays, and all is joined at the end."""
    gates = 2 if model.attention_output_gate else 1
    heads = model.num_attention_heads // model.groups * gates
    rows = (heads * model.head_dim, model.head_dim, model.value_dim)
    parts = [x._replace(rows=x.rows * one // sum(rows)) for one in rows]
    copies = WIDE * x.elements if model.groups > x.row_ways else 0
    done = (WIDE * sum(one.elements for one in parts[:at]) for at in range(len(parts)))
    moments = [before + _whole(one, t) for before, one in zip(done, parts, strict=True)]
    return max(copies + max(moments), 2 * WIDE * x.elements)
