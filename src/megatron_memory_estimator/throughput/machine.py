"""How fast a GPU computes and moves bytes: peaks and bandwidths of data sheets, measured rates, and named efficiencies.

`rates.json` holds what ai-dynamo/aiconfigurator measured (its `sources` say where): fits of dense GEMMs, attention by sequence,
collectives inside NVLink. A GPU without measured rates gets shares of its peaks, with a warning.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ..hardware import Gpu


class Speed(NamedTuple):
    """Dense peaks in TFLOP/s (0 where the GPU has none), and bandwidths in GB/s: HBM, NVLink one way, network one way.

    Sources: NVIDIA data sheets as quoted by ai-dynamo/aiconfigurator `systems/*.yaml` and cli99/llm-analysis `gpu_configs`; B200
    memory: pytorch/ao PR 4002.
    """

    bf16: float
    fp8: float
    fp4: float
    hbm: float
    nvlink: float
    network: float


SPEEDS = {
    "A100-40GB": Speed(312, 0, 0, 1555, 300, 25),
    "A100-80GB": Speed(312, 0, 0, 2039, 300, 25),
    "H100-80GB": Speed(989, 1979, 0, 3350, 450, 50),
    "H20-96GB": Speed(148, 296, 0, 4000, 450, 50),
    "H200-141GB": Speed(989, 1979, 0, 4800, 450, 50),
    "B200-180GB": Speed(2250, 4500, 9000, 7700, 900, 50),
    "B300-288GB": Speed(2250, 4500, 14000, 7750, 900, 100),
    "GB200-186GB": Speed(2500, 5000, 10000, 8000, 900, 50),
    "GB300-288GB": Speed(2500, 5000, 15000, 8000, 900, 100),
    "L40S-48GB": Speed(362, 733, 0, 864, 32, 50),
    "RTX-4090-24GB": Speed(165, 330, 0, 1008, 32, 25),
    "RTX-A6000-48GB": Speed(155, 0, 0, 768, 56, 25),
}
ALIKE = {"A100-40GB": "A100-80GB"}
"""GPUs with the compute of another one that was measured."""
SUSTAINED = {
    "A100": 0.9,
    "H100": 0.85,
    "H200": 0.85,
    "H20-": 0.85,
    "B200": 0.75,
    "B300": 0.75,
    "GB20": 0.8,
    "GB30": 0.8,
}
"""Training GEMMs in bf16 relative to isolated ones (power, fp32 accumulation, SMs of communication): MooreThreads/SimuMax measured
TransformerEngine on B200 at 0.74 of the isolated rate; the others were set after looking at published steps."""


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
    """One GPU with its neighbours: peaks, measured rates, efficiencies. Times are seconds, rates FLOP/s and bytes/s."""

    gpu: Gpu
    speed: Speed
    gemm: dict[str, tuple[float, float, float]]
    attention: dict[str, tuple[float, ...]]
    collectives: dict[str, dict[int, tuple[float, float]]]
    measured: bool
    efficiency: Efficiency = Efficiency()

    @property
    def hbm(self) -> float:
        """Bytes per second of memory-bound operations."""
        return self.speed.hbm * 1e9 * self.efficiency.hbm

    @property
    def sustained(self) -> float:
        """Share of the isolated bf16 GEMM rate that training reaches."""
        return SUSTAINED.get(self.gpu.name[:4], 0.8) * self.efficiency.gemm

    def peak(self, recipe: str) -> float:
        """Dense peak in FLOP/s of a recipe ("" for 16 bits)."""
        value = self.speed.fp4 if recipe == "nvfp4" else self.speed.fp8 if recipe else self.speed.bf16
        return value * 1e12


SEQUENCES = (1024, 2048, 4096, 8192, 16384)


@cache
def _rates() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files(__package__) / "rates.json").read_text())
    return found


def machine(gpu: Gpu, efficiency: Efficiency | None = None, network: float | None = None) -> Machine:
    """The machine of a GPU of the catalogue; `network` is GB/s of one GPU, one way."""
    rates, name = _rates(), ALIKE.get(gpu.name, gpu.name)
    speed, chosen = SPEEDS[gpu.name], efficiency or Efficiency()
    if network is not None:
        speed = speed._replace(network=network)
    if name in rates["gemm"]:
        gemm = {kind: (p * 1e12, w * 1e9, t * 1e-6) for kind, (p, w, t) in rates["gemm"][name].items()}
        attention = {
            kind: tuple(value * 1e12 for value in row) for kind, row in rates["attention"].get(name, {}).items()
        }
        collectives = {
            op: {int(n): (alpha * 1e-6, bus * 1e9) for n, (alpha, bus) in ranks.items()}
            for op, ranks in rates["collectives"][name].items()
        }
        return Machine(gpu, speed, gemm, attention, collectives, True, chosen)
    share = {"bfloat16": speed.bf16, "fp8": speed.fp8, "fp8_block": speed.fp8, "nvfp4": speed.fp4}
    gemm = {kind: (0.8 * peak * 1e12, 3e9 * speed.hbm, 5e-6) for kind, peak in share.items() if peak}
    attention = {"bfloat16_d128": (0.5 * speed.bf16 * 1e12,) * len(SEQUENCES)}
    links = {
        op: {8: (20e-6, 0.7 * speed.nvlink * 1e9)} for op in ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
    }
    return Machine(gpu, speed, gemm, attention, links, False, chosen)


def calibrated(base: Efficiency, factors: dict[str, float]) -> Efficiency:
    """Efficiencies multiplied by fitted factors."""
    return dataclasses.replace(base, **{name: getattr(base, name) * factor for name, factor in factors.items()})
