"""Seconds of an optimizer whose state is in host memory: gradients go there, the CPU's Adam takes its step, parameters come back.

Nothing overlaps unless overlap_cpu_optimizer_d2h_h2d is given, which is not modelled: copies and the CPU's step wait for each other on
one stream. The CPU's Adam is torch's fused one, a single pass over fp32 tensors.
Source: Megatron-LM `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py` (step, _set_sub_optimizer_grads,
param_copy_back_gpu_hook), `megatron/core/optimizer/__init__.py` (CPUAdam with fused=True); pytorch
`aten/src/ATen/native/cpu/FusedAdamKernel.cpp`.
"""

from __future__ import annotations

from typing import Any

from ..rank.rank import Rank
from .machine import Machine

COPIED = 4 + 4
"""Bytes over the link for each parameter: its fp32 gradient to the host, the fp32 parameter back."""
TOUCHED = 4 * 4 + 3 * 4
"""Bytes of host memory that the step passes over for each parameter: parameter, gradient and two moments are read, all but the
gradient written."""
LINK = {"ampere": 32e9, "ada": 32e9, "hopper": 64e9, "blackwell": 64e9}
"""Bytes a second between an x86 host and a GPU, one way: PCIe 4 and 5 with 16 lanes (data sheets of the GPUs)."""
GRACE_LINK = 450e9
"""The same of NVLink-C2C (GH200 and GB200 data sheets: 900 GB/s both ways)."""
LINK_SHARE = 0.84
"""Share of it that a copy from pinned memory reaches, as copies between GPUs do."""
CORE = {"x86": 12e9, "grace": 30e9}
"""Bytes a second that one core moves through memory (judgement): torchrun gives each process one thread unless OMP_NUM_THREADS says
otherwise (pytorch `torch/distributed/run.py`)."""


def offloaded_seconds(m: Machine, rank: Rank) -> Any:
    """Seconds of the offloaded part of an optimizer step on one rank; 0 where nothing is offloaded."""
    gpu = m.gpu
    link = (GRACE_LINK if gpu.host == "grace" else LINK[gpu.family]) * LINK_SHARE
    count = sum((buffer.offloaded for buffer in rank.buffers), 0)
    return count * (COPIED / link + TOUCHED / CORE[gpu.host])
