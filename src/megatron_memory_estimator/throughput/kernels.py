"""Times of kernels: dense and grouped GEMMs, attention, memory-bound operations, quantization.

Every function takes numbers or arrays. Sources of the rates: `machine.py`; of the bytes per element: counted reads and writes of the
fused kernels in TransformerEngine and Megatron-Core.
"""

from __future__ import annotations

from itertools import pairwise
from math import log2
from typing import Any

from ..modules.quantization import RECIPES, orientations
from ..tape.work import Attention, Gemm
from .machine import SEQUENCES, Machine

BACKWARD_FLOPS, BACKWARD_RATE = 2.5, 0.8
"""Backward of flash attention relative to its forward: five matrix products instead of two, at 0.8 of the rate (SimuMax: B200 0.74
to 0.9; arXiv 2407.08608: H100 0.85)."""
NVFP4_OVER_BF16 = 3.5
"""Pre-quantized nvfp4 GEMM of TransformerEngine over bf16 on B300 (TransformerEngine documentation)."""
LOW_PRECISION_SUSTAINED = 0.95
"""Training GEMMs in low precision relative to isolated ones (judgement: those are not limited by power)."""
FP8_OF_BLOCK = 0.85
"""Least rate of fp8 GEMMs with one scale per tensor, of those with block scales: the measured per-tensor kernels are those of
inference frameworks (judgement)."""
FP8_START, NVFP4_START = 8e-6, 9e-6
"""Seconds of a low-precision GEMM at least, as those of the measured block recipe and of nvfp4."""
FEW_ROWS = 64.0
"""Rows of an expert at which a grouped GEMM runs at half its rate (SimuMax, B200 and A100)."""
LAUNCH = 10e-6
START = 3e-6
"""Seconds of a memory-bound kernel at least (ai-dynamo/aiconfigurator)."""
SCAN_RATE = 0.25
"""Rate of the matrix products in a scan, or in unfused attention, of the bf16 peak."""
WIDE = 3.75
"""Products in fp32 beside those in a scan: their peak is a fifteenth of that in bf16 (data sheets: H100 67 of 989 TFLOP/s, A100 19.5 of
312), and PyTorch takes no tensor cores for them (torch.backends.cuda.matmul.allow_tf32 is off)."""
MLA = "bfloat16_mla_d192_v128"


def gemm_rate(m: Machine, recipe: str) -> tuple[float, float, float]:
    """(FLOP/s at large shapes, bytes/s of operands and result, seconds per call) of dense GEMMs in a recipe."""
    peak, link, start = m.gemm["bfloat16"]
    if recipe == "nvfp4":
        return (
            NVFP4_OVER_BF16 * peak * LOW_PRECISION_SUSTAINED * m.efficiency.gemm,
            m.gemm.get("nvfp4", m.gemm["bfloat16"])[1],
            NVFP4_START,
        )
    if recipe in ("mxfp8", "blockwise") and "fp8_block" in m.gemm:
        rate, link, start = m.gemm["fp8_block"]
        return rate * LOW_PRECISION_SUSTAINED * m.efficiency.gemm, link, start
    if recipe and "fp8" in m.gemm:
        rate, link, _ = m.gemm["fp8"]
        block = m.gemm.get("fp8_block", (0.0, 0.0, 0.0))[0]
        return max(rate, FP8_OF_BLOCK * block) * LOW_PRECISION_SUSTAINED * m.efficiency.gemm, link, FP8_START
    return peak * m.sustained, link, start


def operand_bytes(recipe: str) -> float:
    """Bytes of an element of a product's operands."""
    return 1 / RECIPES[recipe].per_byte if recipe else 2


def gemm(m: Machine, rows: Any, n: Any, k: Any, recipe: str = "") -> Any:
    """Seconds of rows x k by k x n."""
    rate, link, start = gemm_rate(m, recipe)
    each = operand_bytes(recipe)
    return 2 * rows * n * k / rate + ((rows + n) * k * each + 2 * rows * n) / link + start


def quantize(m: Machine, elements: Any, recipe: str) -> Any:
    """Seconds of a cast of an input or gradient: read in 16 bits, twice with a scale of the whole tensor, written in the
    orientations that the products read."""
    if not recipe:
        return 0.0
    row = RECIPES[recipe]
    copies = orientations(row, blackwell=m.gpu.two_way_fp8)
    return elements * (2 * row.reads + copies / row.per_byte) / (m.speed.hbm * 1e9 * m.efficiency.quantization)


def product(m: Machine, one: Gemm) -> Any:
    """Seconds of a GEMM's forward, with the cast of its input."""
    time = gemm(m, one.rows, one.n, one.k, one.recipe) if one.experts is None else grouped(m, one)
    return time + quantize(m, one.rows * one.k, one.recipe) if one.casts[0] else time


def products_behind(m: Machine, one: Gemm, grad_bytes: int) -> Any:
    """Seconds of its backward: the products for the input's and the weight's gradient, with the cast of the output's."""
    rows, n, k, recipe = one.rows, one.n, one.k, one.recipe
    if one.experts is not None:
        time = grouped(m, one)
        if one.trained:  # the weights' gradients are read and written
            time = 2 * time + 2 * one.experts * n * k * grad_bytes / m.hbm
    else:
        time = gemm(m, rows, k, n, recipe)
        if one.trained:
            time = time + gemm(m, n, k, rows, recipe)
    return time + quantize(m, rows * n, recipe) if one.casts[1] else time


def grouped(m: Machine, one: Gemm) -> Any:
    """Seconds of one product of `experts` linears on their rows together."""
    assert one.experts is not None
    rows, n, k = one.rows, one.n, one.k
    rate = gemm_rate(m, one.recipe)[0] * m.efficiency.grouped / m.efficiency.gemm
    each = operand_bytes(one.recipe)
    flops = 2 * rows * n * k * (1 + FEW_ROWS * one.experts / rows) / rate
    moved = one.experts * n * k * each + rows * (k * each + n * 2)
    return flops + moved / m.hbm + LAUNCH


def attention_rate(m: Machine, sequence: float, qk_dim: int, v_dim: int, *, fp8: bool) -> float:
    """FLOP/s of a causal forward at a sequence length, between the measured ones by its logarithm, and at a head dim, between
    the measured ones in proportion."""
    kind = "fp8" if fp8 and "fp8_d128" in m.attention else "bfloat16"
    if qk_dim != v_dim and MLA in m.attention:
        return _at(m.attention[MLA], sequence) * m.efficiency.attention
    start = f"{kind}_d"
    dims = sorted(int(name.removeprefix(start)) for name in m.attention if name.startswith(start))
    below = max((dim for dim in dims if dim <= qk_dim), default=dims[0])
    above = min((dim for dim in dims if dim >= qk_dim), default=dims[-1])
    low, high = (_at(m.attention[f"{start}{dim}"], sequence) for dim in (below, above))
    share = (qk_dim - below) / (above - below) if above > below else 0.0
    return (low + share * (high - low)) * m.efficiency.attention


def _at(row: tuple[float, ...], sequence: float) -> float:
    place = min(max(log2(sequence / SEQUENCES[0]), 0.0), len(row) - 1.0)
    low = min(int(place), len(row) - 2)
    return row[low] + (place - low) * (row[low + 1] - row[low])


FEW_HEADS = ((4.0, 0.19, 0.45), (8.0, 0.36, 0.85), (16.0, 0.66, 0.97), (32.0, 0.84, 1.0), (64.0, 1.0, 1.0))
"""(sequences x heads x tokens / 4,096 of a rank, share of the forward rate, of the backward rate): TransformerEngine on B200, 4 to 64
heads at 4,096 tokens (MooreThreads/SimuMax configs/system)."""


def crowding(work: Any) -> tuple[Any, Any]:
    """Shares of the attention rate that few heads and tokens reach, forward and backward, between the measured points."""
    if hasattr(work, "shape"):
        import numpy as np

        x = np.log2(work)
        points = [np.array(column, dtype=float) for column in zip(*FEW_HEADS, strict=True)]
        return np.interp(x, np.log2(points[0]), points[1]), np.interp(x, np.log2(points[0]), points[2])
    if work <= FEW_HEADS[0][0]:
        return FEW_HEADS[0][1:]
    for (a, forward, backward), (b, forward_b, backward_b) in pairwise(FEW_HEADS):
        if work <= b:
            share = log2(work / a) / log2(b / a)
            return forward + share * (forward_b - forward), backward + share * (backward_b - backward)
    return 1.0, 1.0


def attention(m: Machine, one: Attention) -> tuple[Any, Any]:
    """Seconds of the forward and backward of core attention."""
    rate = attention_rate(m, one.sequence, one.qk, one.v, fp8=one.fp8)
    forward, backward = crowding(one.heads * one.tokens / 4096)
    flops = one.flops
    return flops / (rate * forward) + LAUNCH, BACKWARD_FLOPS * flops / (rate * BACKWARD_RATE * backward) + LAUNCH


def streamed(m: Machine, nbytes: Any, flops: Any = 0) -> Any:
    """Seconds of a memory-bound kernel, or of a scan that multiplies on the way."""
    return nbytes / m.hbm + START + flops / (m.speed.bf16 * 1e12 * SCAN_RATE)
