"""Host memory of a rank: its processes, what offloading keeps there, and what checkpoints take.

torch rounds every pinned request up to a power of two and keeps it (pytorch `aten/src/ATen/core/CachingHostAllocator.h`; releases since
2.13 can bound that by `pinned_max_round_threshold`). Terms are the bytes of the tensors; what rounding adds is a term of its own.

Sources: Megatron-LM `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py`, `megatron/core/optimizer/distrib_optimizer.py`,
`megatron/core/dist_checkpointing/strategies/filesystem_async.py` and `async_utils.py`, `exchange_utils.py`;
`megatron/training/datasets/data_samplers.py`, `megatron/training/training.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from heapq import heapify, heapreplace
from math import ceil
from typing import NamedTuple

from ..job.layout import Layout
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..rank.parts import members, parts_of
from ..rank.rank import Rank
from ..rank.workspaces import most_stashed
from ..states.buffers import Buffer
from ..states.fsdp import active
from ..states.optimizers import optimizer_tensors
from ..states.padding import default_bucket_size
from ..states.state import STATE_PARTS, state_in_host_memory
from ..tape.tensor import DTYPE_BYTES, ceil_div, largest
from .checkpoint import by_rank
from .terms import Range, Term

GB = 10**9
PROCESS = (4 * GB, 6 * GB)
"""Judgement: Python, CUDA and NCCL of a rank in host memory, no public measurement tells them apart: 5 to 10 GB with the two workers of
Megatron-LM's data loader. Effect: all of the term."""
WORKER = (GB // 2, 2 * GB)
"""Judgement: bytes that a process of a data loader has of its own; it is a fork, so that lists of Python objects become its own as they
are read. Effect: all of the term."""
WRITER = (GB, 3 * GB)
"""Judgement: a process that writes checkpoints beside a rank, started anew with torch and a CUDA context. Effect: all of the term."""
LOADERS = 3
"""Training, validation and test data have a loader each, whose processes start together (Megatron-LM `training.py`,
build_train_valid_test_data_iterators)."""
PREFETCHED = 2
"""Batches that a process of a loader has ready (torch's prefetch_factor)."""
BATCH = (8, 8, 8, 4)
"""Bytes of a token in each tensor of a batch: tokens, labels, position ids and the loss mask (Megatron-LM `gpt_dataset.py`)."""
CHECKPOINT_STATE = 12
"""Bytes per offloaded parameter in a checkpoint: main parameter and two moments in fp32."""
SHARD = 5 * GB
"""General knowledge: bytes of one safetensors file of a model on the Hub."""


class HostTerm(NamedTuple):
    """A named part of the host memory of a rank. `everywhere`: every rank of a node has it, else one of a tensor parallel group may be
    alone in that."""

    name: str
    low: int
    high: int
    source: str
    everywhere: bool = True


class Pinned(NamedTuple):
    """Pinned tensors of one kind: their bytes, and what rounding adds to them at least and at most."""

    name: str
    nbytes: int
    rounding: Range
    source: str


def rounded(nbytes: int) -> int:
    """Bytes that torch takes for a pinned tensor: the next power of two."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def rounding(sizes: Iterable[int]) -> Range:
    """What torch's rounding adds to pinned tensors of so many bytes each."""
    added = sum(rounded(size) - size for size in sizes)
    return Range(added, added)


def any_rounding(nbytes: int) -> Range:
    """What torch's rounding can add to pinned tensors of so many bytes in all."""
    return Range(0, nbytes)


def host_terms(job: TrainingJob, rank: Rank) -> list[HostTerm]:
    """Host memory of one rank during training."""
    pinned = [
        *offloaded_optimizer(rank),
        *chunked_state(rank),
        *offloaded_activations(job, rank),
        *rollout_copies(job, rank),
    ]
    saved = Pinned("checkpoint while it is written", *staged(job, rank), "filesystem_async.py: staged before the write")
    added = Range(sum(one.rounding.low for one in pinned), sum(one.rounding.high for one in (*pinned, saved)))
    return [
        HostTerm("Python, CUDA and NCCL of the process", *PROCESS, "general knowledge"),
        *loader_terms(job, rank),
        *(HostTerm(one.name, one.nbytes, one.nbytes, one.source) for one in pinned),
        *(
            [HostTerm("process that writes checkpoints", *WRITER, "general knowledge")]
            if job.training.async_save
            else []
        ),
        HostTerm(saved.name, 0, saved.nbytes, saved.source),
        *gathered_state(job, rank),
        HostTerm("rounding of pinned memory", *added, "CachingHostAllocator.h: to powers of two"),
    ]


def per_node(terms: Iterable[HostTerm], ranks: int, layout: Layout) -> Range:
    """Host memory of a node with so many ranks of these terms."""
    groups, known = ceil_div(ranks, layout.tp), list(terms)
    low = sum(term.low * (ranks if term.everywhere else groups) for term in known)
    return Range(low, sum(term.high for term in known) * ranks)


def loader_terms(job: TrainingJob, rank: Rank) -> Iterator[HostTerm]:
    """Processes of the data loaders and what they have ready; reinforcement learning may have its samples from elsewhere.

    Megatron-LM and Megatron-Bridge load on one rank of a tensor parallel group, of the first and last stage alone (Megatron-Bridge
    `data/utils.py`, is_dataset_built_on_rank); others, such as ms-swift, on every rank.
    """
    t, count = job.training, job.training.num_workers
    if not count:
        return
    edge = rank.pp_rank in (0, job.layout.pp - 1) and job.rollout.rollout_engine is None
    low, high = WORKER
    name = f"data loader, {count} worker{'s' * (count > 1)}"
    said = "general knowledge; at most for training, validation and test data"
    yield HostTerm(name, count * low * edge, LOADERS * count * high, said, everywhere=False)
    sizes = [each * t.seq_length * t.micro_batch_size for each in BATCH]
    if t.create_attention_mask_in_dataloader:
        sizes.append(t.micro_batch_size * t.seq_length**2)
    ready = PREFETCHED * count
    most = LOADERS * ready * sum(map(rounded, sizes))
    said = f"data_samplers.py: {ready} batches of each loader, pinned"
    yield HostTerm("batches that are ready", ready * sum(sizes) * edge, most, said, everywhere=False)


def owned_sizes(rank: Rank, buffer: Buffer) -> list[int]:
    """Elements of each part of a parameter of which this rank has the optimizer's state; in one, where parts are not told apart."""
    if buffer.dealt:
        return [item.numel for item in buffer.owns]
    return [buffer.owned] if active(rank.context) else parts_of(rank, buffer, members(rank, buffer))


def offloaded_optimizer(rank: Rank) -> Iterator[Pinned]:
    """The optimizer's state in host memory, 16 bytes per parameter: a gradient in fp32 is pinned, masters and moments in fp32 are
    pageable, the masters too where the optimizer updates parameters of 16 bits. These are copied first, pinned, and torch keeps that
    memory: the most of the rounding has it."""
    count = sum(buffer.offloaded for buffer in rank.buffers)
    if not count:
        return
    t, each = rank.context.training, DTYPE_BYTES["fp32"]
    first = DTYPE_BYTES[t.params_dtype] if t.use_precision_aware_optimizer else each
    if all(buffer.offloaded in (0, buffer.owned) for buffer in rank.buffers):
        parts = [part for buffer in rank.buffers if buffer.offloaded for part in owned_sizes(rank, buffer)]
        grads, copies = rounding(each * part for part in parts), sum(rounded(first * part) for part in parts)
        added = Range(grads.low, grads.high + copies) if first < each else Range(2 * grads.low, 2 * grads.high)
    else:
        added = any_rounding((each + 2 * first if first < each else 2 * each) * count)
    yield Pinned("optimizer offload", 4 * each * count, added, "hybrid_optimizer.py: 16 bytes per parameter")


def chunked_state(rank: Rank) -> Iterator[Pinned]:
    """Optimizer state that is in host memory between steps."""
    if size := state_in_host_memory(rank.context, rank.buffers):
        yield Pinned("optimizer state (offload)", size, any_rounding(size), "chunked_optimizer_state_offload: pinned")


def offloaded_activations(job: TrainingJob, rank: Rank) -> Iterator[Pinned]:
    """Activations in host memory, of every microbatch in flight."""
    away = [
        (most * run.copies, tensor.nbytes)
        for plan, most in zip(rank.plans, rank.schedule.per_chunk, strict=True)
        for run in plan.runs
        for tensor in run.offloaded
    ]
    if away:
        total, taken = (sum(count * of(size) for count, size in away) for of in (int, rounded))
        said = "a pinned copy for every microbatch in flight"
        yield Pinned("activation offload", total, Range(taken - total, taken - total), said)
    stash = most_stashed(rank.plans, rank.schedule)
    size = ceil(stash * job.training.moe_paged_stash_buffer_size_factor_cpu)
    if size:
        yield Pinned("paged stash overflow (offload)", size, any_rounding(size), "Megatron-LM PR 4247")


def rollout_copies(job: TrainingJob, rank: Rank) -> Iterator[Pinned]:
    """What is moved to the host between the phases of reinforcement learning. Gradients are not copied, their memory is freed; but
    torch_memory_saver copies all that it pauses, unless a buffer has no backup.

    Sources: THUDM/slime `slime/ray/actor_group.py` (TMS_INIT_ENABLE_CPU_BACKUP); Megatron-LM PR 5103
    (disable_grad_buffers_cpu_backup, disable_param_buffers_cpu_backup).
    """
    r = job.rollout
    moved = r.moved
    if not r.torch_memory_saver or r.disable_grad_buffers_cpu_backup:
        moved -= {"gradients"}
    again = r.torch_memory_saver and r.disable_param_buffers_cpu_backup
    for part in STATE_PARTS:
        here = (s for s in rank.states if s.part == part and part in moved and not s.of_step)
        size = sum(s.nbytes for s in here if not (again and part == "weights" and not s.frozen))
        if size:
            yield Pinned(f"{part} (offload between phases)", size, any_rounding(size), "pinned copies while others run")
    if r.reference_model in ("host", "offloaded"):
        own = job.training.params_dtype
        size = sum(p.numel * count * DTYPE_BYTES[p.dtype or own] for plan in rank.plans for p, count in plan.params)
        yield Pinned("reference weights (offload)", size, any_rounding(size), "a pinned copy of the weights")
    if r.critic_model == "in_turn":
        size = sum(s.nbytes for s in rank.states if s.part != "gradients")
        yield Pinned("critic (offload)", size, any_rounding(size), "the critic's state while the policy trains")


def staged(job: TrainingJob, rank: Rank) -> tuple[int, Range]:
    """What a save stages on the host before the first write, and its rounding: the optimizer's state in fp32 of what this rank owns, and
    its share of the weights, which ranks have alike. State that is in host memory already is not copied.

    An asynchronous save stages once more only when the one before is written (`async_utils.py`, PersistentAsyncCaller.async_loop).
    """
    t, fp32 = job.training, DTYPE_BYTES["fp32"]
    own: list[int] = []
    alike: dict[bool, list[int]] = {False: [], True: []}
    together = 0
    if by_rank(t):  # its storages are copied one after the other as they are written
        return reduce(largest, (one.elements * _saved_weight(t, one) for one in rank.buffers), 0), Range(0, 0)
    for buffer in (one for one in rank.buffers if not one.frozen):
        kept = [one for one in optimizer_tensors(rank.context, buffer) if one.saved]
        each = _saved_weight(t, buffer)
        if active(rank.context):
            together += fp32 * sum(one.numel for one in kept) + ceil_div(each * buffer.elements, buffer.weight_ways)
            continue
        alike[buffer.expert] += [each * param.numel_each for param in members(rank, buffer)]
        parts = [] if gathers_state(t) else owned_sizes(rank, buffer)
        states = own if t.use_distributed_optimizer or buffer.dealt else alike[buffer.expert]
        states += [fp32 * part * one.numel // max(buffer.owned, 1) for part in parts for one in kept]
    sizes = own + written(alike[False], alike[True], job.layout, parallel=t.ckpt_fully_parallel_save)
    return sum(sizes) + together, Range(0, rounding(sizes).high + together)


def written(dense: list[int], expert: list[int], layout: Layout, *, parallel: bool) -> list[int]:
    """What the fullest rank writes of tensors that ranks have alike: the largest first, to the rank that has least, those that fewer ranks
    have before others; without parallel saving one rank writes all.

    Source: Megatron-LM `megatron/core/dist_checkpointing/exchange_utils.py` (distribute_shards_to_ranks).
    """
    if not parallel:
        return dense + expert
    ranks = layout.dp * layout.cp
    if layout.expert_dp >= ranks:
        return max(dealt(dense + expert, [[] for _ in range(ranks)]), key=sum)
    alike = dealt(expert, [[] for _ in range(layout.expert_dp)])
    return max(dealt(dense, [list(alike[place % len(alike)]) for place in range(ranks)]), key=sum)


def dealt(sizes: list[int], shares: list[list[int]]) -> list[list[int]]:
    """The shares with more tensors, each given to the rank that has least."""
    loads = [(sum(share), place) for place, share in enumerate(shares)]
    heapify(loads)
    for size in sorted(sizes, reverse=True):
        load, place = loads[0]
        shares[place].append(size)
        heapreplace(loads, (load + size, place))
    return shares


def gathers_state(t: Training) -> bool:
    """Whether a save gathers the optimizer's state of all data-parallel ranks in host memory."""
    resharded = t.dist_ckpt_optim_fully_reshardable and not by_rank(t)
    return resharded and t.use_distributed_optimizer and not t.use_megatron_fsdp


def _state_of_all(rank: Rank) -> HostTerm:
    """What the first data-parallel rank has in host memory while a checkpoint of `--ckpt-format torch` is written or read: masters and
    moments of whole buffers, and of one optimizer what is on its way. A load has the weights too, on every rank.

    With the distributed optimizer a save has its own share of a bucket, and the parts of two states of the bucket and one of them joined;
    a load has two states of a bucket, and its own share of all.
    """
    t, fp32 = rank.context.training, DTYPE_BYTES["fp32"]
    whole = weights = written = read = 0
    for expert in (False, True):
        buffers = [one for one in rank.buffers if one.expert is expert and not one.frozen]
        sizes = [_saved_state(rank, one) * one.numel_unpadded // max(one.owned, 1) for one in buffers]
        ways, buckets = rank.context.layout.shards(expert=expert), [_bucket(rank, one) for one in buffers]
        shares = [
            size * bucket // one.numel_unpadded // ways
            for one, size, bucket in zip(buffers, sizes, buckets, strict=True)
        ]
        whole += sum(sizes)
        weights += sum(_saved_weight(t, one) * one.numel_unpadded for one in buffers)
        written = max([written, *(share + 3 * fp32 * bucket for share, bucket in zip(shares, buckets, strict=True))])
        read = max(read, 2 * fp32 * max(buckets, default=0) + sum(sizes) // ways)
    passing = max(written, weights + read) if t.use_distributed_optimizer else weights
    said = "distrib_optimizer.py: get_parameter_state_dp_zero, load_parameter_state_from_dp_zero; checkpointing.py: torch.load"
    return HostTerm("optimizer state of all ranks, for a checkpoint", 0, whole + passing, said)


def _bucket(rank: Rank, buffer: Buffer) -> int:
    """The most elements of a bucket of a buffer: it ends with the parameter that makes it full."""
    size = default_bucket_size(rank.context, buffer.numel_unpadded, first_chunk=buffer.chunk == 0)
    last = max(param.numel_each for param in members(rank, buffer))
    return buffer.numel_unpadded if size is None else min(size + last, buffer.numel_unpadded)


def gathered_state(job: TrainingJob, rank: Rank) -> Iterator[HostTerm]:
    """The optimizer's state of whole buffers, which every data-parallel rank gathers in pageable memory when a checkpoint in the format
    `fully_reshardable` is written or read, and a copy of the share that it writes; with
    --distrib-optim-fully-reshardable-mem-efficient one rank of them alone."""
    if by_rank(job.training):
        yield _state_of_all(rank)
    if not gathers_state(job.training):
        return
    total = share = 0
    for buffer in (one for one in rank.buffers if not one.frozen):
        whole = _saved_state(rank, buffer) * buffer.numel_unpadded // max(buffer.owned, 1)
        total += whole
        share += ceil_div(whole, job.layout.shards(expert=buffer.expert))
    said = "distrib_optimizer.py: get_parameter_state_dp_zero"
    yield HostTerm("optimizer state of all ranks, for a checkpoint", 0, total + share, said)


def conversion_terms(parameters: int) -> tuple[Term, Term]:
    """Host memory in which a model's Hugging Face weights become a Megatron checkpoint, before the run.

    One process on the CPU (Megatron-Bridge's import by default) has them in 16 bits, an open file, and while it saves at most a second
    copy of weights that it merges: 1.34 TB and 5 GB of a model of 671 billion parameters, for which 1.6 TB were enough and 1.5 TB not
    (Pai-Megatron-Patch issue 530). Ranks that load their own parts each have one open file (Megatron-Bridge issue 1783).
    """
    size = 2 * parameters
    return (
        Term("conversion in one process on the CPU", size + SHARD, 2 * size + SHARD, "Pai-Megatron-Patch issue 530"),
        Term("conversion on GPUs, each process", SHARD, SHARD, "Megatron-Bridge issue 1783"),
    )


def checkpoint_bytes(job: TrainingJob, ranks: Iterable[Rank]) -> int:
    """Bytes of a checkpoint of all pipeline stages: weights that are trained, and the optimizer's state in fp32.

    What tensor parallel ranks have alike (norms, routers, latent projections) is counted for each of them, as the optimizer's state is
    written (Megatron-LM `megatron/core/optimizer/distrib_optimizer.py`, sharded_param_state_dp_reshardable).
    """
    layout, found = job.layout, 0
    for rank in ranks:
        for buffer in (one for one in rank.buffers if not one.frozen):
            ranks_apart = layout.ep * layout.etp if buffer.expert else layout.tp
            state = _saved_state(rank, buffer) * buffer.elements // max(buffer.owned, 1)
            found += ranks_apart * (state + _saved_weight(job.training, buffer) * buffer.elements)
    return found


def _saved_state(rank: Rank, buffer: Buffer) -> int:
    """Bytes that a checkpoint holds of the optimizer's state that a rank owns of a buffer: masters and moments in fp32."""
    kept = sum(DTYPE_BYTES["fp32"] * one.numel for one in optimizer_tensors(rank.context, buffer) if one.saved)
    return kept + CHECKPOINT_STATE * buffer.offloaded


def _saved_weight(t: Training, buffer: Buffer) -> int:
    """Bytes of a weight of a buffer in a checkpoint."""
    return DTYPE_BYTES[buffer.kept_dtype or t.params_dtype]
