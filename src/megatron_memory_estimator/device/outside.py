"""What a process takes on the device outside torch.

Buffers of communication outside torch: NCCL, DeepEP and HybridEP, TransformerEngine's userbuffers.
"""

from __future__ import annotations

from typing import NamedTuple

from ..job.hardware import GIB, MIB
from ..job.layout import Layout
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..tape.tensor import ceil_div, chosen, largest, round_up, smallest, whole_below
from .terms import Term, fixed

CONTEXT = (0.4, 1.0)
"""GiB of a CUDA context: 274 to 636 MiB on torch 1.13 (pytorch PR 86509), 426 on torch 2.10, 758 and 789 on GH200 and A100 with libraries
(litgpt issue 1892, torchrec PR 3580), 1010 on 8 H100 before the first all-to-all (nccl issue 1685)."""
LIBRARIES = (0.05, 0.5)
"""Judgement: GiB of cuDNN, cuBLASLt, JIT kernels and stacks that load in the first steps; no public measurement tells them from the
context. Effect: half a GiB of the device range."""
WRITER_CONTEXT = (0.4, 0.5)
"""General knowledge: GiB of a context that loads no kernels, as of the process that writes checkpoints beside a rank."""
GRAPH_EXECUTABLES = (0.0, 1.5)
"""Judgement: GiB of instantiated CUDA graphs outside torch; 1347 MiB were seen (Megatron-LM PR 6479, dynamic context parallelism).
Effect: 1.5 GiB at the high end of every run with CUDA graphs."""


def outside_terms(job: TrainingJob, c: Context) -> list[Term]:
    """What the process takes outside torch: CUDA context, libraries, NCCL, expert-parallel buffers."""
    env = job.env
    found = [
        fixed("CUDA context", env.context_gib, *CONTEXT, "pytorch PR 86509; nccl issues 964, 1685; litgpt issue 1892"),
        fixed(
            "CUDA libraries and kernels", env.libraries_gib, *LIBRARIES, "general knowledge; grows in the first steps"
        ),
    ]
    if job.training.async_save:
        said = "general knowledge; Megatron-LM async_utils.py (PersistentAsyncCaller)"
        found.append(fixed("CUDA context of the process that writes checkpoints", None, *WRITER_CONTEXT, said))
    if env.nccl_gib is not None:
        found.append(fixed("NCCL communicators", env.nccl_gib, 0, 0, ""))
    else:
        found.extend(nccl_terms(job))
    found.extend(expert_buffers(job, c))
    if job.training.cuda_graph_impl != "none":
        found.append(
            fixed(
                "CUDA graph executables", None, *GRAPH_EXECUTABLES, "general knowledge; grows with the number of graphs"
            )
        )
    if job.training.tp_comm_overlap:
        found.append(userbuffers(job))
    return found


P2P_CHANNELS = 32
"""Channels of send and receive inside an NVLink domain: the next power of two above those of rings (nccl issue 1685)."""
RING_CHANNELS = {"older": 24, "Blackwell": 32}
"""Channels of a ring inside a node: 24 explain the 544 MB of nccl issue 964 (A100), 32 marin issue 7012 (B200); Hopper is judgement."""
NEIGHBOUR = 12
"""MiB of a channel and NVLink neighbour: 10 to receive and 2 to send (NVIDIA/nccl 2.30 src/transport/p2p.cc, p2pRecvSetup and
p2pSendSetup, with the buffer sizes of src/init.cc: 4 + 4.6875 + 0.5 MiB)."""
FAR_CHANNELS = 2
"""Channels of send and receive to a peer of a group that spans nodes (NVIDIA/nccl src/graph/paths.cc, ncclTopoComputeP2pChannels)."""
NETWORK_POOL = 128
"""MiB of the pool of a group's network sends and receives: 32 channels of 16 chunks of 128 KiB, both ways (src/transport/net.cc)."""
FAR_RING = 40
"""MiB of the ring beside it, 20 for each of the 2 channels that cross the network at least (src/transport/net.cc): 40 to 320."""
FAR_COMMUNICATOR = 160
"""MiB of a communicator that spans nodes: judgement, in the middle of its 130 to 200 (pool, ring, some NVLink neighbours)."""
NVLS_CHANNELS, NVLS_HEADS = 16, 32
"""Channels and most heads of NVLS on Hopper; a head takes 2 MiB of a channel (NVIDIA/nccl src/transport/nvls.cc)."""
NCCL_LOW, NCCL_HIGH = 0.7, 1.5
"""Judgement: how far the formula may be off. Measured: 8 H100 at the first all-to-all 3.28 GB of 3.09 (nccl issue 1685), 2 and 4 A100
544 and 688 MB exactly (nccl issue 964), others only as totals. Effect: half a GiB to 4 GiB between the ends of the device range."""
NCCL_USUAL, NCCL_EACH = 8, GIB // 4
"""Judgement: communicators beyond these take up to a quarter of a GiB each, which no formula names (lazily connected trees, second
connections of the groups of experts and optimizer instances). Effect: up to 1 GiB for MoE with every kind of group."""


class Group(NamedTuple):
    """A communicator: how many ranks, how far apart in rank order the first and last are, and whether it is all-to-all."""

    name: str
    size: int
    span: int
    kind: str


def communicators(layout: Layout, *, moe: bool, all_to_all: bool = True) -> list[Group]:
    """Groups of more than one rank that a Megatron rank uses, in rank order tp-gtp-cp-ep-dp-pp, of experts tp-ep-gtp-dp-pp
    (parallel_state.py).

    `all_to_all`: whether tokens are dispatched by NCCL's all-to-all, which connects every pair of ranks.
    """
    tp, cp, pp, dp, world = layout.tp, layout.cp, layout.pp, layout.dp, layout.world_size
    inner = tp * layout.gtp * cp * dp
    groups = [
        Group("world", world, world, "ring"),
        Group("tensor", tp, tp, "ring"),
        Group("context", cp, tp * cp, "ring"),
        Group("weight shards", layout.gtp, tp * layout.gtp, "ring"),
        Group("data x context", dp * cp, inner, "ring"),
        Group("data x context x weight shards", dp * cp * layout.gtp if layout.gtp > 1 else 1, inner, "ring"),
        Group("pipeline", pp, world, "p2p"),
        Group("model x optimizer instance", world, world, "ring"),
    ]
    if moe:
        ep, etp = layout.ep, layout.etp
        groups += [
            Group("expert", ep, ep * etp, "all-to-all" if all_to_all else "ring"),
            Group("expert x expert tensor", ep * etp, ep * etp, "ring"),
            Group("expert tensor", etp, etp, "ring"),
            Group("expert weight shards", layout.egtp, etp * ep * layout.egtp, "ring"),
            Group("expert data", layout.expert_dp, inner, "ring"),
            Group("tensor x context", tp * cp, tp * cp, "ring"),
        ]
    return [group for group in groups if not isinstance(group.size, int) or group.size > 1]


def nccl_terms(job: TrainingJob) -> list[Term]:
    """NCCL buffers by communicator: the formula with its ends, and what many communicators may take more."""
    gpu = job.gpu
    domain = max(gpu.nvlink_domain, 1)
    channels = RING_CHANNELS["Blackwell" if gpu.capability[0] >= 10 else "older"]
    by_nccl = job.training.moe_token_dispatcher_type == "alltoall"
    groups = communicators(job.layout, moe=job.model.has_moe, all_to_all=by_nccl)
    if job.training.dynamic_context_parallel:
        groups += _shared(job.layout)
    if not groups:
        return []
    total = sum(_communicator_bytes(group, domain, channels, nvls=job.env.nccl_nvls) for group in groups)
    number = sum(group.size > 1 for group in groups)
    shown = f"NCCL ({number} communicators)" if isinstance(number, int) else "NCCL"
    high = whole_below(NCCL_HIGH * total) + largest(number - NCCL_USUAL, 0) * NCCL_EACH
    return [Term(shown, whole_below(NCCL_LOW * total), high, "NVIDIA/nccl 2.30.7 src/init.cc, src/transport/")]


def _shared(layout: Layout) -> list[Group]:
    """Groups of ranks that share a sample: of every power of 2 below the ranks of data and context parallelism, the longest samples' (the
    context group) apart (Megatron-Core 0.19.2 parallel_state.py, create_hybrid_dp_cp_groups)."""
    ranks = layout.dp * layout.cp
    sizes = (1 << power for power in range(1, ranks.bit_length() - 1))
    return [Group(f"{size} ranks of a sample", size, layout.tp * size, "ring") for size in sizes if size != layout.cp]


def _communicator_bytes(group: Group, domain: int, channels: int, *, nvls: bool) -> int:
    """Bytes of a communicator; 0 of one rank."""
    inside = group.span <= domain
    if group.kind == "all-to-all":
        stride = largest(group.span // group.size, 1)
        peers = largest(smallest(group.size, domain // stride) - 1, 0)
        size = chosen(
            inside,
            NEIGHBOUR * P2P_CHANNELS * (group.size - 1),
            NEIGHBOUR * FAR_CHANNELS * peers + NETWORK_POOL + FAR_RING,
        )
    elif group.kind == "p2p":
        size = chosen(inside, NEIGHBOUR * P2P_CHANNELS, FAR_COMMUNICATOR)
    else:
        near = NEIGHBOUR * channels + (2 * NVLS_CHANNELS * smallest(group.size, NVLS_HEADS) if nvls else 0)
        size = chosen(inside, near, FAR_COMMUNICATOR)
    found: int = chosen(group.size > 1, size, 0) * MIB
    return found


def expert_buffers(job: TrainingJob, c: Context) -> list[Term]:
    """Buffers of DeepEP and HybridEP, outside torch."""
    t = job.training
    if t.moe_token_dispatcher_type != "flex" or not job.model.has_moe or not c.ep_many:
        return []
    if t.moe_flex_dispatcher_backend == "deepep":
        size = deepep_bytes(c.layout.ep, job.model.expert_width)
        # a larger one is built before it is dropped when a step needs more (Megatron-LM `moe/fused_a2a.py`, get_buffer)
        return [Term("DeepEP buffer", size, 2 * size, "deepseek-ai/DeepEP csrc/legacy/config.hpp")]
    size = hybridep_bytes(job, c)
    return [Term("HybridEP buffer", size, size, "deepseek-ai/DeepEP hybrid-ep csrc/hybrid_ep/buffer/intranode.cu")]


DEEPEP_NODE = 8
"""NVLink peers of a DeepEP buffer (NUM_MAX_NVL_PEERS, deepseek-ai/DeepEP csrc/kernels/configs.cuh)."""
DEEPEP_CHANNELS = 10
"""Half of the 20 SMs that DeepEP uses by default (deep_ep/buffers/legacy.py, num_sms)."""
DEEPEP_ROWS = (256, 288, 560)
"""Rows that a channel receives over NVLink in groups of up to 8, of up to 64 and of more ranks (legacy.py, get_dispatch_config: the
largest of its tables; 480 and 720 for 96, 144 and 160 ranks are not told apart)."""
DEEPEP_RDMA_ROWS = 128
"""Rows that it receives over RDMA (the same)."""
DEEPEP_META = 1024 + 512 + 512
"""Bytes beside a row for 128 top-k indices of 8 bytes, weights of 4 and scales of 4 (csrc/legacy/config.hpp, get_nvl_buffer_size_hint:
kNumMaxTopK and kNumMaxScales are 128)."""
DEEPEP_WORKSPACE = 32
"""MiB of DeepEP's workspace (NUM_WORKSPACE_BYTES, csrc/kernels/configs.cuh)."""
NVSHMEM_STEP = 512
"""MiB by which the heap of NVSHMEM grows (NVSHMEM_CUMEM_GRANULARITY)."""


def deepep_bytes(ranks: int, width: int) -> int:
    """Bytes of a DeepEP buffer of so many ranks: the NVLink part, across nodes the RDMA part, and the workspace.

    Source: deepseek-ai/DeepEP csrc/legacy/config.hpp (get_nvl_buffer_size_hint, get_rdma_buffer_size_hint): 8 bytes of source
    metadata beside each row, 16 more to align it over RDMA; 4-byte counters of 2 * nodes + 3 kinds, 72 bytes of them over RDMA.
    """
    near, nodes = smallest(ranks, DEEPEP_NODE), largest(ranks // DEEPEP_NODE, 1)
    small, middle, large = DEEPEP_ROWS
    rows = chosen(ranks <= DEEPEP_NODE, small, chosen(ranks <= 64, middle, large))
    row = 2 * width + 8 + DEEPEP_META
    size = DEEPEP_CHANNELS * near * (4 * (2 * nodes + 3) + rows * row)
    rdma = DEEPEP_CHANNELS * nodes * 2 * (72 + DEEPEP_RDMA_ROWS * (row + 16)) + MIB
    across: int = chosen(ranks > DEEPEP_NODE, round_up(rdma, NVSHMEM_STEP * MIB), 0)
    total: int = size + across + DEEPEP_WORKSPACE * MIB
    return total


def hybridep_bytes(job: TrainingJob, c: Context) -> int:
    """Bytes of a HybridEP buffer, sized for every token of the group on one rank: 2 bytes of a value (dispatch and combine share it), a
    4-byte probability of every expert in the NVLink domain, a 4-byte scale of every 128 values; across domains the same for the
    tokens that come from each of the others, three times.

    Source: deepseek-ai/DeepEP hybrid-ep csrc/hybrid_ep/buffer/intranode.cu, internode_doca.cu.
    """
    m, n, h = job.model, c.layout.ep, job.model.expert_width
    tokens, local = c.tokens.size, c.local_experts.local
    inside = smallest(n, max(job.gpu.nvlink_domain, 1))
    size = 2 * tokens * n * h + 4 * tokens * n * local * inside + 4 * tokens * n * h // 128
    nodes = ceil_div(n, inside)
    experts = m.num_moe_experts or 0
    across = tokens * (2 * h + 4 * experts + h // 32)
    across = across + 3 * (nodes - 1) * tokens * (2 * h + 4 * local * inside) + (nodes - 1) * tokens * h // 32
    total: int = size + chosen(nodes > 1, across, 0)
    return total


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
