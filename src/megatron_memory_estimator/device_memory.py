"""From torch's allocated peak to reserved and device memory: ranges made of named terms.

Every term has a low and a high value and a source; each can be set in the environment. The high values do not happen
together, so their sum is a bound, not a forecast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .captures import capture_scratch, graph_ends, pool
from .context import Context
from .hardware import GIB, MIB
from .job import TrainingJob
from .layout import Layout
from .peak import Peak
from .phases import build
from .rank import Rank, state_bytes
from .tensor import ceil_div, chosen, largest, round_up, smallest, whole_below


class Range(NamedTuple):
    """A low and a high value in bytes."""

    low: int
    high: int


class Term(NamedTuple):
    """A named part of device memory."""

    name: str
    low: int
    high: int
    source: str


SLACK_SOURCE = "reserved minus allocated: MooreThreads/SimuMax docs/b200 (80 ranks); Megatron-Bridge cards"


def slack(job: TrainingJob, rank: Rank, peak: Peak) -> Term:
    """Reserved minus allocated at the peak.

    Native allocator: a share of the peak that is not model state (dense 0.10-0.35, MoE 0.30-0.60). Expandable segments: a
    share of the peak (2.4-11 %, padded fixed-capacity MoE up to 21 %).
    """
    source = "set by the user" if job.env.fragmentation is not None else SLACK_SOURCE
    low, high = slack_bytes(job, peak.nbytes, state_bytes(rank, "setup", "first step"))
    return Term("fragmentation", low, high, source)


def slack_bytes(job: TrainingJob, peak: int, state: int) -> Range:
    """Reserved minus allocated, of the allocated peak and the model state in it."""
    of_total, low, high = fragmentation(job)
    return Range(slack_edge(of_total, low, peak, state), slack_edge(of_total, high, peak, state))


def slack_edge(of_total: bool, share: float, peak: Any, state: Any) -> Any:
    """A share of the peak, or of what is not model state."""
    return whole_below((peak if of_total else largest(peak - state, 0)) * share)


def fragmentation(job: TrainingJob) -> tuple[bool, float, float]:
    """(whether of the whole peak or of what is not model state, low share, high share)."""
    env = job.env
    if env.fragmentation is not None:
        return True, env.fragmentation, env.fragmentation
    if env.expandable_segments:
        padded = job.training.moe_pad_expert_input_to_capacity and job.model.has_moe
        return True, 0.024, 0.21 if padded else 0.11
    return (False, 0.30, 0.60) if job.model.has_moe else (False, 0.10, 0.35)


def graph_slack(job: TrainingJob, rank: Rank, peak: Peak) -> Term:
    """Reserved for CUDA graphs beyond torch's allocated peak.

    Layers: their private pool is never given back, and holds what the eager steps before held as activations; without eager
    steps before it comes on top. At most also static buffers, and the temporaries of a capture, which stay in the pool.
    The whole iteration: what the eager warm-up left behind.
    Source: Megatron-LM `megatron/core/full_cuda_graph.py`, `megatron/core/transformer/cuda_graphs.py`.
    """
    kind, warm = job.training.cuda_graph_impl, job.training.cuda_graph_warmup_steps
    moving = largest(peak.nbytes - peak.persistent, 0)
    if kind == "full_iteration":
        return Term("CUDA graph pool", 0, moving, "Megatron-LM PR 4698: no empty_cache before the capture")
    pooled, step = pool(rank)
    if step is None:
        return Term("CUDA graph pool", 0, 0, "")
    low = 0 if warm else pooled
    high = low + sum(t.nbytes for t in graph_ends(rank)) + capture_scratch(rank)
    source = "Megatron-LM megatron/core/transformer/cuda_graphs.py: private pool and static buffers of captured layers"
    return Term("CUDA graph pool", low, high, source)


def reserved_bytes(job: TrainingJob, rank: Rank, peak: Peak) -> Range:
    """Bytes that torch's caching allocator takes from the device."""
    term = slack(job, rank, peak)
    graphs = graph_slack(job, rank, peak)
    return reserved_range(peak.nbytes, term.low + graphs.low, term.high + graphs.high, build(rank))


def reserved_range(peak: int, low: int, high: int, built: int) -> Range:
    """Reserved bytes of the allocated peak with so much slack, or of building the model, whichever is more."""
    return Range(largest(peak + low, built), largest(peak + high, built_high(built)))


def built_high(built: Any) -> Any:
    """Reserved bytes of building the model at most: the allocator's rounding on top."""
    return whole_below(built * 1.03)


def device_bytes(job: TrainingJob, rank: Rank, reserved: Range) -> Range:
    """Bytes in use on the device, as nvidia-smi would show for the process."""
    terms = outside_terms(job, rank.context)
    return Range(reserved.low + sum(t.low for t in terms), reserved.high + sum(t.high for t in terms))


def outside_terms(job: TrainingJob, c: Context) -> list[Term]:
    """What the process takes outside torch: CUDA context, libraries, NCCL, expert-parallel buffers."""
    env = job.env
    found = [
        _fixed("CUDA context", env.context_gib, 0.4, 1.0, "pytorch PR 86509; nccl issues 964, 1685; litgpt issue 1892"),
        _fixed(
            "CUDA libraries and kernels", env.libraries_gib, 0.05, 0.5, "general knowledge; grows in the first steps"
        ),
    ]
    if env.nccl_gib is not None:
        found.append(_fixed("NCCL communicators", env.nccl_gib, 0, 0, ""))
    else:
        found.extend(nccl_terms(job))
    found.extend(expert_buffers(job, c))
    if job.training.cuda_graph_impl != "none":
        found.append(
            Term("CUDA graph executables", 0, int(1.5 * GIB), "general knowledge; grows with the number of graphs")
        )
    if job.training.tp_comm_overlap:
        found.append(userbuffers(job))
    return found


def userbuffers(job: TrainingJob) -> Term:
    """TransformerEngine's buffers of tp_comm_overlap: 12 of [seq/cp * b, h] in bf16, 10 before TransformerEngine 2.7; in fp8 the
    8 (6) that gather are of one byte, and with first_last_layers_bf16 there is a set in bf16 too.

    Source: Megatron-LM `megatron/training/initialize.py`; TransformerEngine `pytorch/module/base.py` (initialize_ub).
    """
    t, layout = job.training, job.layout
    gathers = 8 if t.te >= (2, 7) else 6
    each = 2 * (gathers + 4)
    if t.low_precision:
        each = gathers + 2 * 4 + (each if t.first_last_layers_bf16 else 0)
    size = each * t.seq_length // layout.cp * t.micro_batch_size * job.model.hidden_size
    return Term("userbuffers", size, size, "TransformerEngine pytorch/module/base.py initialize_ub")


def _fixed(name: str, value: float | None, low: float, high: float, source: str) -> Term:
    if value is not None:
        return Term(name, int(value * GIB), int(value * GIB), "set by the user")
    return Term(name, int(low * GIB), int(high * GIB), source)


class Group(NamedTuple):
    """A communicator: how many ranks, how far apart in rank order the first and last are, and whether it is all-to-all."""

    name: str
    size: int
    span: int
    kind: str


def communicators(layout: Layout, *, moe: bool, all_to_all: bool = True) -> list[Group]:
    """Groups of more than one rank that a Megatron rank uses, in rank order tp-cp-ep-dp-pp (parallel_state.py).

    `all_to_all`: whether tokens are dispatched by NCCL's all-to-all, which connects every pair of ranks.
    """
    tp, cp, pp, dp, world = layout.tp, layout.cp, layout.pp, layout.dp, layout.world_size
    inner = tp * cp * dp
    groups = [
        Group("world", world, world, "ring"),
        Group("tensor", tp, tp, "ring"),
        Group("context", cp, tp * cp, "ring"),
        Group("data x context", dp * cp, inner, "ring"),
        Group("pipeline", pp, world, "p2p"),
        Group("model x optimizer instance", world, world, "ring"),
    ]
    if moe:
        ep, etp = layout.ep, layout.etp
        groups += [
            Group("expert", ep, ep * etp, "all-to-all" if all_to_all else "ring"),
            Group("expert x expert tensor", ep * etp, ep * etp, "ring"),
            Group("expert tensor", etp, etp, "ring"),
            Group("expert data", layout.expert_dp, inner, "ring"),
            Group("tensor x context", tp * cp, tp * cp, "ring"),
        ]
    return [group for group in groups if not isinstance(group.size, int) or group.size > 1]


def nccl_terms(job: TrainingJob) -> list[Term]:
    """NCCL buffers by communicator (NVIDIA/nccl 2.30 src/init.cc, transport/p2p.cc, transport/net.cc).

    12 MiB per channel and NVLink neighbour; 20 MiB per channel that crosses the network; a pool of network send and
    receive buffers. The formula's low end is 0.7 of it, the high end 1.5 of it and 0.25 GiB per communicator beyond 8.
    """
    gpu = job.gpu
    domain = max(gpu.nvlink_domain, 1)
    channels = 32 if gpu.capability[0] >= 10 else 24
    by_nccl = job.training.moe_token_dispatcher_type == "alltoall"
    groups = communicators(job.layout, moe=job.model.has_moe, all_to_all=by_nccl)
    if not groups:
        return []
    total = sum(_communicator_bytes(group, domain, channels, nvls=job.env.nccl_nvls) for group in groups)
    number = sum(group.size > 1 for group in groups)
    shown = f"NCCL ({number} communicators)" if isinstance(number, int) else "NCCL"
    high = whole_below(1.5 * total) + largest(number - 8, 0) * (GIB // 4)
    return [Term(shown, whole_below(0.7 * total), high, "NVIDIA/nccl 2.30.7 src/init.cc, src/transport/")]


def _communicator_bytes(group: Group, domain: int, channels: int, *, nvls: bool) -> int:
    """Bytes of a communicator; 0 of one rank."""
    inside = group.span <= domain
    if group.kind == "all-to-all":
        stride = largest(group.span // group.size, 1)
        peers = largest(smallest(group.size, domain // stride) - 1, 0)
        size = chosen(inside, 12 * 32 * (group.size - 1), 12 * 2 * peers + 128 + 40)
    elif group.kind == "p2p":
        size = chosen(inside, 12 * 32, 160)
    else:
        near = 12 * channels + (2 * 16 * smallest(group.size, 32) if nvls else 0)
        size = chosen(inside, near, 160)
    found: int = chosen(group.size > 1, size, 0) * MIB
    return found


def expert_buffers(job: TrainingJob, c: Context) -> list[Term]:
    """Buffers of DeepEP and HybridEP, outside torch. Sources: deepseek-ai/DeepEP csrc/legacy/config.hpp, hybrid-ep branch."""
    t, m, n, h = job.training, job.model, c.layout.ep, job.model.expert_width
    if t.moe_token_dispatcher_type != "flex" or not m.has_moe or not c.ep_many:
        return []
    if t.moe_flex_dispatcher_backend == "deepep":
        nvl, rdma_ranks, channels = smallest(n, 8), largest(n // 8, 1), 10
        rows = chosen(n <= 8, 256, chosen(n <= 64, 288, 560))
        size = channels * nvl * (4 * (2 * rdma_ranks + 3) + rows * (2 * h + 8 + 1024 + 512 + 512))
        rdma = channels * rdma_ranks * 2 * (72 + 128 * (2 * h + 8 + 1024 + 512 + 512 + 16)) + MIB
        size = size + chosen(n > 8, round_up(rdma, 512 * MIB), 0) + 32 * MIB
        return [Term("DeepEP buffer", size, 2 * size, "deepseek-ai/DeepEP csrc/legacy/config.hpp")]
    tokens = c.tokens.size
    local = c.local_experts.local
    domain = max(job.gpu.nvlink_domain, 1)
    inside = smallest(n, domain)
    size = 2 * tokens * n * h + 4 * tokens * n * local * inside + 4 * tokens * n * h // 128
    nodes = ceil_div(n, inside)
    experts = m.num_moe_experts or 0
    across = tokens * (2 * h + 4 * experts + h // 32)
    across = across + 3 * (nodes - 1) * tokens * (2 * h + 4 * local * inside) + (nodes - 1) * tokens * h // 32
    size = size + chosen(nodes > 1, across, 0)
    return [Term("HybridEP buffer", size, size, "deepseek-ai/DeepEP hybrid-ep csrc/hybrid_ep/buffer/intranode.cu")]


def needed_bytes(job: TrainingJob, rank: Rank, peak: Peak) -> int:
    """What no allocator can do without: the allocated peak (of building, if higher) and the low end outside torch.

    When a request fails, torch first gives free cached blocks back to the driver (pytorch `c10/cuda/CUDACachingAllocator.cpp`):
    fragmentation that a run shows with room to spare is no proof that it needs it.
    """
    return largest(peak.nbytes, build(rank)) + sum(term.low for term in outside_terms(job, rank.context))


VERDICTS = ("fits", "tight", "does not load", "does not fit")
"""What a run may be on a GPU, the best first."""


def verdict(needed: int, high: int, memory_bytes: int, load: int = 0) -> str:
    """ "does not fit" when what training needs is more than the memory, "does not load" when it trains, but loading a checkpoint with
    its optimizer state needs more (`load`, the least), "fits" when the high end is within the memory, else "tight"."""
    if needed > memory_bytes:
        return "does not fit"
    if load > memory_bytes:
        return "does not load"
    return "fits" if high <= memory_bytes else "tight"


def explain_terms(job: TrainingJob, rank: Rank, peak: Peak) -> list[Term]:
    """Every term between the allocated peak and device memory, for reports."""
    graphs = graph_slack(job, rank, peak)
    return [slack(job, rank, peak), *([graphs] if graphs.high else []), *outside_terms(job, rank.context)]
