"""How fast a GPU computes and moves bytes: peaks and bandwidths of data sheets, measured rates, and named efficiencies.

`rates.json` holds what ai-dynamo/aiconfigurator measured (its `sources` say where): fits of dense GEMMs, attention by sequence,
collectives inside NVLink. A GPU without measured rates gets shares of its peaks, with a warning.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..errors import UnsupportedError
from ..job.hardware import GIB, GPUS, Family, Gpu, Host, Speed

SUSTAINED: dict[tuple[Family, Host], float] = {
    ("ampere", "x86"): 0.9,
    ("ada", "x86"): 0.8,
    ("hopper", "x86"): 0.85,
    ("blackwell", "x86"): 0.75,
    ("ampere", "grace"): 0.9,
    ("ada", "grace"): 0.8,
    ("hopper", "grace"): 0.85,
    ("blackwell", "grace"): 0.8,
}
"""Training GEMMs in bf16 relative to isolated ones (power, fp32 accumulation, SMs of communication): MooreThreads/SimuMax measured
TransformerEngine on B200 at 0.74 of the isolated rate; the others were set after looking at published steps, where there
are any; no GPU of the catalogue stands beside the rest."""


STREAMED: dict[Family, float] = {"ampere": 1.0, "ada": 1.0, "hopper": 1.0, "blackwell": 0.67 / 0.75}
"""The share of the memory bandwidth that memory-bound operations reach, beside `Efficiency.hbm`: MooreThreads/SimuMax measured those
of training on B200 at 0.67, with a bandwidth more than twice that of an H100."""


@dataclass(frozen=True)
class Efficiency:
    """The named shares of measured rates that a step reaches; `calibrate` multiplies them.

    gemm           dense GEMMs, of the sustained rate
    grouped        grouped GEMMs of experts
    attention      attention kernels, of the measured forward rate
    hbm            memory-bound operations, of the memory bandwidth (SimuMax measured 0.67 on B200, aiconfigurator uses 0.8)
    expert_link    dispatch and combine, of the share of NVLink that the dispatcher reaches
    host           time of eager launches, inverse
    quantization   casts to fp8 and fp4, of the memory bandwidth
    """

    gemm: float = 1.0
    grouped: float = 1.0
    attention: float = 0.85
    hbm: float = 0.75
    expert_link: float = 1.0
    host: float = 1.0
    quantization: float = 0.5


@dataclass(frozen=True)
class Machine:
    """One GPU with its neighbours: peaks, measured rates, efficiencies. Times are seconds, rates FLOP/s and bytes/s.

    `collectives` are seconds inside NVLink by operation and ranks, for buffers of MESSAGES bytes; `dispatch` is (seconds at least,
    bytes/s of its own tokens that a rank handles, bytes/s over NVLink) of a dispatcher that sends each token to a rank once.
    """

    gpu: Gpu
    speed: Speed
    gemm: dict[str, tuple[float, float, float]]
    attention: dict[str, tuple[float, ...]]
    collectives: dict[str, dict[int, tuple[float, ...]]]
    dispatch: tuple[float, float, float]
    measured: bool
    efficiency: Efficiency = Efficiency()

    @property
    def hbm(self) -> float:
        """Bytes per second of memory-bound operations."""
        return self.speed.hbm * 1e9 * self.efficiency.hbm * STREAMED[self.gpu.family]

    @property
    def sustained(self) -> float:
        """Share of the isolated bf16 GEMM rate that training reaches."""
        return SUSTAINED[self.gpu.family, self.gpu.host] * self.efficiency.gemm

    def peak(self, recipe: str) -> float:
        """Dense peak in FLOP/s of a recipe ("" for 16 bits)."""
        value = self.speed.fp4 if recipe == "nvfp4" else self.speed.fp8 if recipe else self.speed.bf16
        return value * 1e12


class Unmeasured(NamedTuple):
    """Shares of its peaks that a GPU without measured rates reaches: GEMMs, attention, collectives over NVLink; GB/s of a dispatcher;
    GEMM operands at so many times the memory bandwidth; seconds of a GEMM and of a collective at least, us of a dispatch. Judgement,
    near the middle of the measured GPUs."""

    gemm: float = 0.8
    attention: float = 0.5
    link: float = 0.7
    dispatch: float = 180.0
    operands: float = 3.0
    start: float = 5e-6
    latency: float = 20e-6
    launch: float = 80.0


UNMEASURED = Unmeasured()
MESSAGES = (0.0, 4e6, 32e6, 128e6, 512e6, 1e13)
"""Bytes of the measured collectives, and so many that none are more, with the bandwidth of the largest."""
SEQUENCES = (1024, 2048, 4096, 8192, 16384)


@cache
def _rates() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "rates.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def machine(gpu: Gpu, efficiency: Efficiency | None = None, network: float | None = None) -> Machine:
    """The machine of a GPU of the catalogue; `network` is GB/s of one GPU, one way. Raises UnsupportedError for one of which nothing but
    the memory is known."""
    if gpu.chip_unknown:
        raise UnsupportedError(
            f"nothing but the memory of {gpu.name} is known, so step times are not known; name the catalogue's GPU that it is "
            f"like, with its memory, such as H100={gpu.memory_bytes / GIB:g}GB"
        )
    rates, name = _rates(), gpu.alike or gpu.name
    speed, chosen = gpu.speed, efficiency or Efficiency()
    if network is not None:
        speed = speed._replace(network=network)
    if name in rates["gemm"]:
        gemm = {kind: (p * 1e12, w * 1e9, t * 1e-6) for kind, (p, w, t) in rates["gemm"][name].items()}
        attention = {
            kind: tuple(value * 1e12 for value in row) for kind, row in rates["attention"].get(name, {}).items()
        }
        link = gpu.speed.nvlink / next(other.speed.nvlink for other in GPUS if other.name == name)
        collectives = {
            op: {
                int(n): _times(op, int(n), alpha * 1e-6, [bus * 1e9 * link for bus in at])
                for n, (alpha, *at) in ranks.items()
            }
            for op, ranks in rates["collectives"][name].items()
        }
        start, own = rates["dispatch"].get(name, (UNMEASURED.launch, UNMEASURED.dispatch))
        dispatch = start * 1e-6, own * 1e9, speed.nvlink * 1e9
        return Machine(gpu, speed, gemm, attention, collectives, dispatch, True, chosen)
    share = {"bfloat16": speed.bf16, "fp8": speed.fp8, "fp8_block": speed.fp8, "nvfp4": speed.fp4}
    gemm = {
        kind: (UNMEASURED.gemm * peak * 1e12, UNMEASURED.operands * speed.hbm * 1e9, UNMEASURED.start)
        for kind, peak in share.items()
        if peak
    }
    attention = {"bfloat16_d128": (UNMEASURED.attention * speed.bf16 * 1e12,) * len(SEQUENCES)}
    rate = UNMEASURED.link * speed.nvlink * 1e9
    links = {
        op: {8: tuple(UNMEASURED.latency + size * passes(op, 8) / rate for size in MESSAGES)}
        for op in ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
    }
    dispatch = UNMEASURED.launch * 1e-6, UNMEASURED.dispatch * 1e9, speed.nvlink * 1e9
    return Machine(gpu, speed, gemm, attention, links, dispatch, False, chosen)


def passes(op: str, ranks: Any) -> Any:
    """How often every rank sends the whole buffer of a collective."""
    return (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)


def _times(op: str, ranks: int, start: float, bandwidths: Sequence[float]) -> tuple[float, ...]:
    """Seconds for MESSAGES: measured bus bandwidths, and a fit for no bytes."""
    share = passes(op, ranks)
    every = (*bandwidths, bandwidths[-1])
    return (start, *(size * share / bandwidth for size, bandwidth in zip(MESSAGES[1:], every, strict=True)))


def calibrated(base: Efficiency, factors: dict[str, float]) -> Efficiency:
    """Efficiencies multiplied by fitted factors."""
    return dataclasses.replace(base, **{name: getattr(base, name) * factor for name, factor in factors.items()})
