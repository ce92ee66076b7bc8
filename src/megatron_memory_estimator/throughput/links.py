"""Times of communication: which link a group of ranks uses, and how long a collective takes on it.

Inside an NVLink domain: measured latency and bus bandwidth. Across: every rank's share of the networks of the members of its group
in one domain, at most 0.6 of NVLink (checked against all-reduces of 4 x 8 H200 and B200, stas00/ml-engineering `network/README.md`).
"""

from __future__ import annotations

from typing import Any

from ..tensor import chosen
from ..work import Send
from .machine import Machine

NETWORK_SHARE = 0.85
NVLINK_SHARE = 0.6
ACROSS = 30e-6
"""Seconds that a collective across domains takes at least, and 2 us more for each domain."""
DISPATCH_FIXED = (20e-6, 170e-6)
"""Seconds that a dispatch or combine takes at least, inside a domain and across."""


def highest(a: Any, b: Any) -> Any:
    """The larger of two numbers, element by element where one of them is an array."""
    if hasattr(a, "shape") or hasattr(b, "shape"):
        import numpy as np

        return np.maximum(a, b)
    return a if a >= b else b


def lowest(a: Any, b: Any) -> Any:
    """The smaller of two numbers, element by element where one of them is an array."""
    return -highest(-a, -b)


def inside(m: Machine, ranks: Any, stride: Any) -> Any:
    """Whether a group of ranks that stand `stride` apart lies in one NVLink domain."""
    return ranks * stride <= m.gpu.nvlink_domain


def members(m: Machine, stride: Any) -> Any:
    """Members of a wide group that share a domain."""
    return highest(m.gpu.nvlink_domain // stride, 1)


def collective(m: Machine, op: str, size: Any, ranks: Any, stride: Any) -> Any:
    """Seconds of an all_gather (of its output), reduce_scatter (of its input), all_reduce or alltoall (of its buffer) of `size` bytes."""
    measured = m.collectives[op]
    most = max(measured)
    alpha, bus = measured[most]
    for few in sorted(measured, reverse=True):
        alpha = chosen(ranks <= few, measured[few][0], alpha)
        bus = chosen(ranks <= few, measured[few][1], bus)
    share = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    near = members(m, stride)
    wide = lowest(near * m.speed.network * 1e9, NVLINK_SHARE * m.speed.nvlink * 1e9) * NETWORK_SHARE
    within = inside(m, ranks, stride)
    time = chosen(within, alpha + size * share / bus, ACROSS + 2e-6 * ranks / near + size * share / wide)
    return chosen(ranks > 1, time, 0.0 * size)


def copies(ranks: Any, topk: int) -> Any:
    """Ranks that a token with `topk` experts is sent to, when each token goes to a rank once: other ranks only."""
    return (ranks - 1) * (1 - (1 - 1 / ranks) ** topk)


def dispatch(m: Machine, one: Send) -> Any:
    """Seconds of one dispatch (or combine): all-to-all of NCCL, or a kernel that sends each row to a rank once."""
    ranks, domain = one.ranks, members(m, one.stride)
    domains = highest(ranks / domain, 1.0)
    if one.copies:
        sent, far = (one.nbytes * copies(count, one.copies) / one.copies for count in (ranks, domains))
        near = sent / (m.dispatch * m.efficiency.expert_link)
    else:
        within = collective(m, "alltoall", one.nbytes, lowest(ranks, domain), one.stride)
        near, far = within / m.efficiency.expert_link, one.nbytes * (domains - 1) / domains
    across = far / (m.speed.network * 1e9 * NETWORK_SHARE * m.efficiency.expert_link)
    return chosen(ranks > domain, DISPATCH_FIXED[1] + highest(near, across), DISPATCH_FIXED[0] + near)
