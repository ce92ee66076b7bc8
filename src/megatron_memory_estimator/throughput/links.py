"""Times of communication: which link a group of ranks uses, and how long a collective takes on it.

Inside an NVLink domain: measured times by size. Across: every rank's share of the networks of the members of its group in one
domain, at most what the operation reaches inside one (tests/test_throughput.py holds both against published measurements).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

from ..tape.tensor import chosen, total
from ..tape.work import Send
from .machine import MESSAGES, Machine, passes

NETWORK_SHARE = 0.85
"""Share of the network's one-way peak that a group reaches: all-reduces of 4 x 8 H200 and B200 have 362 to 365 GB/s of 8 x 50
(0.91), of 256 MiB 229 (stas00/ml-engineering `network/README.md`); Calculon uses 0.9 (judgement between them)."""
ACROSS = 6.3e-6
"""Seconds that a collective across domains takes for every rank that a buffer passes, whatever its size: an all-reduce of 16 MiB
on 4 x 8 B200 takes 0.51 ms (stas00/ml-engineering `network/README.md`)."""
DISPATCH_ACROSS = 140e-6
"""Seconds that a dispatch or combine across domains takes at least: DeepEP on 16 and 32 H100 between 1,024 and 16,384 tokens, 146 and
127 us (ai-dynamo/aiconfigurator, wideep_deepep_normal_perf)."""


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
    share = passes(op, ranks)
    near = members(m, stride)
    wide = lowest(near * m.speed.network * 1e9 * NETWORK_SHARE, bus(m, op))
    across = share * (ACROSS * ranks + size / wide)
    time = chosen(inside(m, ranks, stride), within(m, op, size, ranks) * share, across)
    return chosen(ranks > 1, time, 0.0 * size)


def within(m: Machine, op: str, size: Any, ranks: Any) -> Any:
    """Seconds of a collective inside NVLink for every time that a rank sends the whole buffer: of the next measured group."""
    measured = m.collectives[op]
    found: Any = None
    for few in sorted(measured, reverse=True):
        time = between(size, MESSAGES, measured[few]) / passes(op, few)
        found = time if found is None else chosen(ranks <= few, time, found)
    return found


def bus(m: Machine, op: str) -> float:
    """Bytes per second of a large collective inside NVLink."""
    most = max(m.collectives[op])
    found: float = MESSAGES[-1] * passes(op, most) / m.collectives[op][most][-1]
    return found


def between(x: Any, xs: Sequence[float], ys: Sequence[float]) -> Any:
    """The value at `x` on the line through points, which goes on behind the last one."""
    if hasattr(x, "shape"):
        import numpy as np

        return np.interp(x, xs, ys) + np.maximum(x - xs[-1], 0) * (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    at = next((at for at in range(1, len(xs)) if x <= xs[at]), len(xs) - 1)
    return ys[at - 1] + (x - xs[at - 1]) / (xs[at] - xs[at - 1]) * (ys[at] - ys[at - 1])


def copies(ranks: Any, topk: int, groups: tuple[int, int] = (1, 1)) -> Any:
    """Ranks that a token with `topk` experts is sent to, when each token goes to a rank once: other ranks only.

    The experts are in `groups[0]` of `groups[1]` groups (moe_router_group_topk of moe_router_num_groups: node-limited routing, arXiv
    2412.19437, section 2.1.2), which stand on the ranks in order: all within one group where the first are as many as the second.
    """
    if hasattr(ranks, "shape"):
        import numpy as np

        found = np.zeros(ranks.shape)
        for many in np.unique(ranks).tolist():
            found[ranks == many] = copies(many, topk, groups)
        return found
    chosen_groups, all_groups = groups
    if chosen_groups == all_groups:
        return (ranks - 1) * (1 - (1 - 1 / ranks) ** topk)
    return (ranks - 1) * (1 - _passed_over(ranks, topk, chosen_groups, all_groups))


def _passed_over(ranks: float, topk: int, taken: int, groups: int) -> float:
    """The chance that none of a token's experts is on a rank: each is in one of the groups that are taken at random."""
    if ranks >= groups:  # a rank has part of one group, which is taken or not
        return 1 - taken / groups * (1 - (1 - groups / ranks / taken) ** topk)
    own = round(groups / ranks)
    ways = comb(groups, taken)
    chance: float = total(
        comb(own, one) * comb(groups - own, taken - one) / ways * (1 - one / taken) ** topk
        for one in range(min(own, taken) + 1)
    )
    return chance


def dispatch(m: Machine, one: Send) -> Any:
    """Seconds of one dispatch (or combine): all-to-all of NCCL, or a kernel that handles each row of its rank and sends it to every
    other rank once."""
    ranks, domain = one.ranks, members(m, one.stride)
    domains = highest(ranks / domain, 1.0)
    if one.copies:
        sent, far = (one.nbytes * copies(count, one.copies, one.groups) / one.copies for count in (ranks, domains))
        start, own, link = m.dispatch
        near = start + (one.nbytes / one.copies / own + sent / link) / m.efficiency.expert_link
    else:
        near_time = collective(m, "alltoall", one.nbytes, lowest(ranks, domain), one.stride)
        near, far = near_time / m.efficiency.expert_link, one.nbytes * (domains - 1) / domains
    across = far / (m.speed.network * 1e9 * NETWORK_SHARE * m.efficiency.expert_link)
    return chosen(ranks > domain, highest(near, DISPATCH_ACROSS + across), near)
