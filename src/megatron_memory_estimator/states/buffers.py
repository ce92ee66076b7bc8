"""The contiguous DDP buffers of a model chunk: which parameters are in which, and how much of each a rank owns.

Source: Megatron-LM `megatron/core/distributed/distributed_data_parallel.py`, `param_and_grad_buffer.py`.

The layer-wise distributed optimizer: which data-parallel rank owns which whole parameters (Muon).

Source: Megatron-LM `megatron/core/optimizer/layer_wise_optimizer.py`. In Megatron-Core 0.16 and 0.17, and later without a parameter
layout, all parameters of a rank are dealt in ping-pong order of their sizes (_shard_params_ping_pong), and the DDP buffers stay as
without a distributed optimizer. Since 0.18 the matrices of a buffer are packed, bucket by bucket, into one shard per rank
(_compute_per_buffer_param_layout), which pads the buffer to so many times its largest shard; everything else is in buffers of its own
that a DistributedOptimizer shards by elements (`megatron/core/optimizer/__init__.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heapreplace
from math import lcm
from typing import NamedTuple

from ..job.layout import Layout
from ..job.training import Training
from ..modules.context import Context
from ..modules.quantization import RECIPES, scale_bytes
from ..tape.tensor import Param, ceil_div, round_up, smallest, whole_below
from .fsdp import active, grad_dtype, ways
from .optimizers import OPTIMIZERS
from .padding import ALIGNMENT, Runs, bucket_multiple, default_bucket_size, padded_buffer

KEPT = "fp32"
"""The dtype of parameters that the cast to 16 bits leaves alone."""
LAYER_WISE_LAYOUT = (0, 18)
"""Megatron-Core version from which the layer-wise optimizer lays the DDP buffers out by whole matrices (0.17.1 does not)."""
MTP_EMBEDDING_MARKED = (0, 19)
"""Megatron-Core version from which the embedding of an MTP stage is no matrix of Muon's (`language_module.py`)."""
IN_PROJ_OUTSIDE = (0, 20)
"""Megatron-Core version from which Mamba's in_proj is no matrix of Muon's; 0.19.2 knows no use_muon (`emerging_optimizers.py`)."""


class Buffer(NamedTuple):
    """One contiguous DDP buffer of a chunk of so many `elements`. `numel` is padded with the distributed optimizer, `numel_unpadded`
    without the ends of buckets (Megatron's field of that name).

    `expert`: of experts that have a data-parallel group of their own. `owned` elements have their optimizer state on this rank,
    `owned_matrices` of them are updated by an optimizer of matrices. `recipe` is that of weights kept in low precision, `scale_bytes`
    those of all their scales. Fully sharded, a rank has 1 of `weight_ways` parts of the weights and 1 of `grad_ways` of the gradients.
    `offloaded` of the owned elements have their state in host memory. `frozen`: weights that are not trained. `kept_dtype`: the dtype of
    parameters that the model's cast to 16 bits leaves alone, which have a buffer of their own. `matrices`: of matrices alone, which a
    layer-wise optimizer deals whole. `dealt`: the parameters of every data-parallel rank (of one, until all buffers of a rank are dealt
    together); `owner`: the rank that this one is, which has its own of them.
    """

    chunk: int
    expert: bool
    param_dtype: str
    grad_dtype: str
    elements: int
    numel: int
    numel_unpadded: int
    owned: int
    owned_matrices: int
    share: str
    recipe: str = ""
    scale_bytes: int = 0
    weight_ways: int = 1
    grad_ways: int = 1
    offloaded: int = 0
    frozen: bool = False
    kept_dtype: str = ""
    matrices: bool = False
    dealt: Dealt = ()
    owner: int = 0

    @property
    def group(self) -> str:
        """Which parameters it holds, as reports name them."""
        if self.frozen:
            return "frozen"
        found = (
            "expert" if self.expert else "dense",
            "matrices" if self.matrices else "",
            self.recipe,
            self.kept_dtype,
        )
        return " ".join(filter(None, found))

    @property
    def owns(self) -> tuple[Whole, ...]:
        """The whole parameters that this rank owns, where they are dealt whole."""
        return self.dealt[self.owner] if self.dealt else ()


class _Share(NamedTuple):
    """Elements of a buffer, those that a rank owns, those of them that are matrices of the optimizer's, and how they are shared.

    `unpadded`: elements without the ends of buckets, where that differs from the parameters'."""

    numel: int
    owned: int
    matrices: int
    said: str
    weight_ways: int = 1
    grad_ways: int = 1
    unpadded: int | None = None


def ddp_buffers(c: Context, chunk: int, runs: Runs, *, first_chunk: bool) -> list[Buffer]:
    """The buffers of one chunk: dense parameters, and experts where they have a data-parallel group of their own."""
    t = c.training
    found: list[Buffer] = []
    for expert in (False, True):
        recipes = ("", t.low_precision) if t.low_precision_weights else ("",)
        for recipe, dtype in (*((recipe, "") for recipe in recipes), ("", KEPT)):
            one = partial(belongs, t, recipe=recipe, dtype=dtype, expert=expert)
            for part, muon in _parts(t, runs, one, first_chunk=first_chunk):
                members = [(params, count) for params, count in part if params]
                if members:
                    buffer = _buffer(c, chunk, members, recipe, expert=expert, first_chunk=first_chunk)
                    if deals_whole(t) and (muon or not by_layout(t)):
                        buffer = _whole(c, buffer, part, first_chunk=first_chunk)
                    found.append(in_own_dtype(c, buffer) if dtype else buffer)
    return found


def _parts(t: Training, runs: Runs, one: Callable[[Param], bool], *, first_chunk: bool) -> Iterator[tuple[Runs, bool]]:
    """The parameters of a buffer: all, or with a layer-wise layout the matrices of the optimizer apart from the others."""
    of_buffer = [(list(filter(one, params)), count) for params, count in runs]
    if not by_layout(t):
        yield of_buffer, False
        return
    managed = partial(is_muon_managed, t, first_chunk=first_chunk)
    for muon in (False, True):
        yield [([p for p in params if managed(p) is muon], count) for params, count in of_buffer], muon


def deals_whole(t: Training) -> bool:
    """Whether a layer-wise optimizer deals whole parameters to data-parallel ranks."""
    return OPTIMIZERS[t.optimizer].by_matrix and t.use_distributed_optimizer and not t.use_megatron_fsdp


def by_layout(t: Training) -> bool:
    """Whether it does so by a layout of the DDP buffers, and of matrices alone."""
    return deals_whole(t) and t.use_layer_wise_param_layout and t.mcore >= LAYER_WISE_LAYOUT


def _whole(c: Context, buffer: Buffer, runs: Runs, *, first_chunk: bool) -> Buffer:
    """The buffer with its parameters dealt to ranks by its layout; in ping-pong order they are dealt later, all together."""
    t = c.training

    def group(param: Param) -> int:
        return 0 if is_muon_managed(t, param, first_chunk=first_chunk) else 1 if len(param.shape) > 1 else 2

    items = [
        Whole(p.name, run, copy, p.numel_each, group(p), p.shared_embedding)
        for run, (params, count) in enumerate(runs)
        for copy in range(count)
        for p in params
        for _ in range(p.copies)
    ]
    if not by_layout(t):
        return buffer._replace(dealt=(tuple(items),))
    shards = c.layout.shards(expert=buffer.expert)
    size = default_bucket_size(c, buffer.numel_unpadded, first_chunk=first_chunk)
    numel, dealt = packed(items, shards, size, busbw=t.ddp_pad_buckets_for_high_nccl_busbw)
    return buffer._replace(numel=numel, dealt=dealt, matrices=True)


def belongs(t: Training, param: Param, *, recipe: str, dtype: str, expert: bool) -> bool:
    """Whether a parameter is in the buffer of a recipe or of a dtype of its own."""
    own = param.quantized if t.low_precision_weights else ""
    kept = param.dtype if param.dtype != t.params_dtype else ""
    return not param.frozen and param.expert_buffer == expert and (own, kept) == (recipe, dtype)


def in_own_dtype(c: Context, buffer: Buffer) -> Buffer:
    """The buffer of parameters in fp32: their gradients are fp32 too, whatever grad_reduce_in_fp32 says.

    Source: Megatron-LM `megatron/core/distributed/distributed_data_parallel.py` (grad_dtype).
    """
    return buffer._replace(param_dtype=KEPT, grad_dtype=KEPT, kept_dtype=KEPT)


def _buffer(c: Context, chunk: int, members: Runs, recipe: str, *, expert: bool, first_chunk: bool) -> Buffer:
    t = c.training
    plain = sum(p.numel * count for params, count in members for p in params)
    share = _share(c, members, plain, expert=expert, first_chunk=first_chunk)
    scales = sum(scale_bytes(RECIPES[recipe], p) * count for params, count in members for p in params) if recipe else 0
    return Buffer(
        chunk=chunk,
        expert=expert,
        param_dtype="fp8" if recipe else t.params_dtype,
        grad_dtype=grad_dtype(c) if active(c) else t.grad_dtype,
        elements=plain,
        numel=share.numel,
        numel_unpadded=plain if share.unpadded is None else share.unpadded,
        owned=share.owned,
        owned_matrices=share.matrices,
        share=share.said,
        recipe=recipe,
        scale_bytes=scales,
        weight_ways=share.weight_ways,
        grad_ways=share.grad_ways,
        offloaded=whole_below(share.owned * t.optimizer_offload_fraction) if t.optimizer_cpu_offload else 0,
    )


def _share(c: Context, members: Runs, plain: int, *, expert: bool, first_chunk: bool) -> _Share:
    """How a buffer of so many elements is padded and shared over the data-parallel ranks."""
    t, shards = c.training, c.layout.shards(expert=expert)
    by_matrix = OPTIMIZERS[t.optimizer].by_matrix
    managed = partial(is_muon_managed, t, first_chunk=first_chunk)
    matrices = sum(p.numel * count for params, count in members for p in params if by_matrix and managed(p))
    if active(c):
        weight_ways, parts, grad_ways = ways(c, expert=expert)
        said = _one_of(parts, ", fully sharded")
        return _Share(plain, ceil_div(plain, parts), matrices, said, weight_ways, grad_ways)
    if not t.use_distributed_optimizer or (by_matrix and (matrices or not by_layout(t))):
        return _Share(plain, plain, matrices, "the whole buffer")
    size = default_bucket_size(c, plain, first_chunk=first_chunk)
    numel, unpadded = padded_buffer(members, shards, size, busbw=t.ddp_pad_buckets_for_high_nccl_busbw)
    owned = smallest(numel // shards, plain)  # a rank alone has no state for the ends of buckets
    return _Share(numel, owned, matrices, _one_of(shards, " of the buffer"), unpadded=unpadded)


def _one_of(ways: int, what: str) -> str:
    """`1/8 of the buffer`; arrays of layouts have no words."""
    return f"1/{ways}{what}" if isinstance(ways, int) else what


def is_muon_managed(t: Training, param: Param, *, first_chunk: bool) -> bool:
    """Matrices that are neither word embedding nor output weight (Megatron-LM `optimizer/layer_wise_optimizer.py`,
    `emerging_optimizers.py`; `models/common/language_module/language_module.py` marks the two). Position embeddings are matrices."""
    marked = first_chunk or t.mcore >= MTP_EMBEDDING_MARKED
    outside = param.name.startswith(("output_layer.", "embedding.word_embeddings.") if marked else "output_layer.")
    if t.mcore >= IN_PROJ_OUTSIDE:
        outside = outside or param.name.endswith("mixer.in_proj.weight")
    return param.matrix and len(param.shape) == 2 and not outside


PADDING_FLOOR = 0.9
"""A bucket is continued until it has that much of the ranks times its largest parameter (layer_wise_optimizer.py, PADDING_FLOOR)."""


class Whole(NamedTuple):
    """A parameter that is dealt whole: its name, the run of its chunk (in registration order) and the copy of the run's unit that it is
    in, its elements.

    `group`: 0 of Muon's matrices, 1 of others with several dims, 2 of those with one: the order of the optimizer's groups, in which
    equal sizes are dealt (`optimizer/__init__.py` _get_param_groups). `alone`: a shared embedding, in a bucket of its own.
    """

    name: str
    run: int
    copy: int
    numel: int
    group: int
    alone: bool = False

    @property
    def state(self) -> int:
        """Bytes of its optimizer state: fp32 main parameter, and one momentum of Muon's or two moments of Adam's."""
        return (8 if self.group == 0 else 12) * self.numel


Dealt = tuple[tuple[Whole, ...], ...]
"""The parameters of each data-parallel rank."""


def ping_pong(items: Sequence[Whole], ranks: int) -> Dealt:
    """Smallest first, to ranks 0..n-1 and back again."""
    order = (*range(ranks), *reversed(range(ranks)))
    owned: list[list[Whole]] = [[] for _ in range(ranks)]
    for index, item in enumerate(sorted(items, key=lambda item: (item.numel, item.group))):
        owned[order[index % len(order)]].append(item)
    return tuple(map(tuple, owned))


def packed(items: Sequence[Whole], ranks: int, bucket_size: int | None, *, busbw: bool = False) -> tuple[int, Dealt]:
    """Elements of the buffer, and what is in the shard of each rank; `items` in registration order."""
    divisor = lcm(ALIGNMENT, bucket_multiple(ranks, busbw=busbw) // ranks)
    owned: list[list[Whole]] = [[] for _ in range(ranks)]
    numel = 0
    for bucket in _buckets(items, ranks, bucket_size):
        heap = [(0, rank) for rank in range(ranks)]
        for item in sorted(bucket, key=lambda item: -item.numel):
            end, rank = heap[0]
            owned[rank].append(item)
            heapreplace(heap, (round_up(end, ALIGNMENT) + item.numel, rank))
        numel += ranks * round_up(max(end for end, _ in heap), divisor)
    return numel, tuple(map(tuple, owned))


def _buckets(items: Sequence[Whole], ranks: int, bucket_size: int | None) -> Iterator[list[Whole]]:
    """Parameters of each bucket, the last registered first."""
    found: list[Whole] = []
    total = most = 0
    for item in reversed(items):
        if item.alone:
            yield from filter(None, (found, [item]))
            found, total, most = [], 0, 0
            continue
        found.append(item)
        total, most = total + item.numel, max(most, item.numel)
        if bucket_size is not None and total >= max(bucket_size, int(ranks * most * PADDING_FLOOR)):
            yield found
            found, total, most = [], 0, 0
    if found:
        yield found


def grid(layout: Layout) -> list[tuple[int, int]]:
    """(dense, expert) data-parallel ranks of the GPUs of a stage.

    The grid of dense parameters is tp, cp, dp, that of experts etp, ep, expert dp, the first fastest (`parallel_state.py`).
    """
    gpus = range(layout.tp * layout.cp * layout.dp)
    return list(dict.fromkeys((gpu // layout.tp, gpu // (layout.etp * layout.ep)) for gpu in gpus))
