"""Every constant of the throughput model: its value, where it is from, and what it does to the predicted steps of recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

from megatron_memory_estimator.estimator import Estimate, estimate
from megatron_memory_estimator.modules import moe as declared
from megatron_memory_estimator.throughput import kernels, links, machine, stages, step, throughput, units
from megatron_memory_estimator.throughput.machine import Efficiency

MORE = 1.2
"""What a constant is multiplied by."""
LOOKED = "judgement, after looking at published steps"


class Constant(NamedTuple):
    """Where a constant stands (in every module that imports it), its key in a table there, and its source."""

    name: str
    source: str
    modules: tuple[ModuleType, ...] = ()
    key: Any = None


CONSTANTS = (
    Constant("CALL", LOOKED + " (Moonlight, GPT-OSS-20B, Qwen3-30B)", (units,)),
    Constant("OF_AN_EXPERT", LOOKED + " (Nemotron-3 Super)", (declared,)),
    Constant("HOST_BACKWARD", LOOKED, (units,)),
    Constant("CHECKPOINT", LOOKED + " (Moonlight)", (units,)),
    Constant("GRACE", LOOKED + " (GB200)", (units,)),
    Constant("SUSTAINED", LOOKED + " (arXiv 2205.05198 was not)", (machine,), ("ampere", "x86")),
    Constant("SUSTAINED", LOOKED, (machine,), ("hopper", "x86")),
    Constant("SUSTAINED", "SimuMax: TransformerEngine on B200, 0.74", (machine,), ("blackwell", "x86")),
    Constant("SUSTAINED", LOOKED, (machine,), ("blackwell", "grace")),
    Constant("STREAMED", "SimuMax: memory-bound operations on B200, 0.67 of the bandwidth", (machine,), "blackwell"),
    Constant("LOW_PRECISION_SUSTAINED", LOOKED, (kernels,)),
    Constant("FP8_OF_BLOCK", LOOKED, (kernels,)),
    Constant("NVFP4_OVER_BF16", "TransformerEngine documentation, B300", (kernels,)),
    Constant("FP8_START", "aiconfigurator gemm_perf, block scales", (kernels,)),
    Constant("NVFP4_START", "aiconfigurator gemm_perf", (kernels,)),
    Constant("FEW_ROWS", "SimuMax grouped GEMM, B200 and A100", (kernels,)),
    Constant("LAUNCH", "SimuMax grouped GEMM", (kernels,)),
    Constant("START", "aiconfigurator, memory-bound operations", (kernels,)),
    Constant("SCAN_RATE", "judgement", (kernels,)),
    Constant("WIDE", "data sheets: a fifteenth of the 16-bit peak", (kernels, units)),
    Constant("BACKWARD_FLOPS", "counted: five products instead of two", (kernels,)),
    Constant("BACKWARD_RATE", "SimuMax B200 0.74 to 0.9; arXiv 2407.08608 H100 0.85", (kernels,)),
    Constant("attention", "judgement", key="efficiency"),
    Constant("hbm", "below aiconfigurator (0.8)", key="efficiency"),
    Constant("quantization", "SimuMax and aiconfigurator: 1.5 to 2.6 times the bytes at 0.75", key="efficiency"),
    Constant("HIDDEN", LOOKED, (units,), "userbuffers"),
    Constant("HIDDEN", LOOKED, (units,), "wgrad"),
    Constant("HIDDEN", LOOKED, (units,), "layers"),
    Constant("RING_EXPOSED", "judgement", (units,)),
    Constant("NETWORK_SHARE", "stas00/ml-engineering: 0.57 to 0.91 by size; Calculon 0.9", (links, stages)),
    Constant("ACROSS", "stas00/ml-engineering: 4 x 8 B200, 16 MiB", (links,)),
    Constant("DISPATCH_ACROSS", "aiconfigurator: DeepEP on 16 and 32 H100", (links,)),
    Constant("COPY_SHARE", "stas00/ml-engineering: H100, GB200", (stages,)),
    Constant("P2P_EXPOSED", LOOKED, (stages,)),
    Constant("DP_HIDDEN", LOOKED, (step,)),
    Constant("REDUCE_EXPOSED", LOOKED, (step,)),
    Constant("GATHER_EXPOSED", LOOKED, (step,)),
    Constant("SHARDS_HIDDEN", "judgement", (stages,)),
    Constant("SHARDS_EXPOSED", "judgement", (stages,)),
    Constant("PASSES", "counted: param_and_grad_buffer.py", (step,)),
    Constant("OWNED", "counted: clip_grads.py", (step,)),
    Constant("OVERHEAD", LOOKED, (step,)),
)


def rows(estimates: list[Estimate]) -> Iterator[tuple[str, str, str, str, str]]:
    """(constant, value, source, median change of the step, largest change) with each constant a fifth larger."""
    before = [throughput(one).step for one in estimates]
    for one in CONSTANTS:
        value, after = _changed(one, estimates)
        change = [b / a - 1 for a, b in zip(before, after, strict=True)]
        place = (
            f"`{one.modules[0].__name__.rsplit('.', 1)[1]}.{one.name}`" if one.modules else f"`Efficiency.{one.name}`"
        )
        which = f" {one.key if isinstance(one.key, str) else ', '.join(one.key)}" if one.key and one.modules else ""
        most = max(change, key=abs)
        yield place + which, f"{value:g}", one.source, f"{median(change):+.1%}", f"{most:+.1%}"


def _changed(one: Constant, estimates: list[Estimate]) -> tuple[float, list[float]]:
    """A constant's value, and the steps with a larger one."""
    if not one.modules:
        value = getattr(Efficiency(), one.name)
        efficiency = Efficiency(**{one.name: value * MORE})
        return value, [throughput(job, efficiency).step for job in estimates]
    kept = getattr(one.modules[0], one.name)
    value = kept if one.key is None else kept[one.key]
    larger = value * MORE if one.key is None else {**kept, one.key: value * MORE}
    try:
        for module in one.modules:
            setattr(module, one.name, larger)
        anew = [estimate(run.job) for run in estimates] if declared in one.modules else estimates
        return value, [throughput(job).step for job in anew]
    finally:
        for module in one.modules:
            setattr(module, one.name, kept)
