"""The contiguous DDP buffers of a model chunk: which parameters are in which, and how much of each a rank owns.

Source: Megatron-LM `megatron/core/distributed/distributed_data_parallel.py`, `param_and_grad_buffer.py`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ..job.training import Training
from ..modules.context import Context
from ..modules.quantization import RECIPES, scale_bytes
from ..tape.tensor import Param, ceil_div, whole_below
from .fsdp import active, grad_dtype, ways
from .layer_wise import packed, ping_pong, sizes
from .optimizers import OPTIMIZERS
from .padding import Runs, default_bucket_size, padded_buffer

KEPT = "fp32"
"""The dtype of parameters that the cast to 16 bits leaves alone."""
LAYER_WISE_BUFFERS = (0, 17)
"""Megatron-Core version from which the layer-wise optimizer packs the DDP buffers."""


class Buffer(NamedTuple):
    """One contiguous DDP buffer of a chunk. `numel` is padded with the distributed optimizer.

    `expert`: of experts that have a data-parallel group of their own. `owned` elements have their optimizer state on this rank,
    `owned_matrices` of them are updated by an optimizer of matrices. `recipe` is that of weights kept in low precision, `scale_bytes`
    those of all their scales. Fully sharded, a rank has 1 of `weight_ways` parts of the weights and 1 of `grad_ways` of the gradients.
    `offloaded` of the owned elements have their state in host memory. `frozen`: weights that are not trained. `kept_dtype`: the dtype of
    parameters that the model's cast to 16 bits leaves alone, which have a buffer of their own.
    """

    chunk: int
    expert: bool
    param_dtype: str
    grad_dtype: str
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

    @property
    def group(self) -> str:
        """Which parameters it holds, as reports name them."""
        if self.frozen:
            return "frozen"
        return " ".join(filter(None, ("expert" if self.expert else "dense", self.recipe, self.kept_dtype)))


class _Share(NamedTuple):
    """Elements of a buffer, those that a rank owns, those of them that are matrices of the optimizer's, and how they are shared."""

    numel: int
    owned: int
    matrices: int
    said: str
    weight_ways: int = 1
    grad_ways: int = 1


def ddp_buffers(c: Context, chunk: int, runs: Runs, *, first_chunk: bool) -> list[Buffer]:
    """The buffers of one chunk: dense parameters, and experts where they have a data-parallel group of their own."""
    t = c.training
    found: list[Buffer] = []
    for expert in (False, True):
        recipes = ("", t.low_precision) if t.low_precision_weights else ("",)
        for recipe, dtype in (*((recipe, "") for recipe in recipes), ("", KEPT)):
            one = partial(belongs, t, recipe=recipe, dtype=dtype, expert=expert)
            members = [(list(filter(one, params)), count) for params, count in runs]
            members = [(params, count) for params, count in members if params]
            if members:
                buffer = _buffer(c, chunk, members, recipe, expert=expert, first_chunk=first_chunk)
                found.append(in_own_dtype(c, buffer) if dtype else buffer)
    return found


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
        numel=share.numel,
        numel_unpadded=plain,
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
    managed = {p.name for params, _ in members for p in params if is_muon_managed(p)} if by_matrix else set()
    matrices = sum(p.numel * count for params, count in members for p in params if p.name in managed)
    if active(c):
        weight_ways, parts, grad_ways = ways(c, expert=expert)
        said = _one_of(parts, ", fully sharded")
        return _Share(plain, ceil_div(plain, parts), matrices, said, weight_ways, grad_ways)
    if not t.use_distributed_optimizer:
        return _Share(plain, plain, matrices, "the whole buffer")
    if by_matrix:
        pack = t.use_layer_wise_param_layout and t.mcore >= LAYER_WISE_BUFFERS
        deal = (packed if pack else ping_pong)(sizes(members, managed), shards)
        return _Share(*deal, _one_of(shards, ": whole parameters dealt to ranks"))
    size = default_bucket_size(c, plain, first_chunk=first_chunk)
    numel = padded_buffer(members, shards, size, busbw=t.ddp_pad_buckets_for_high_nccl_busbw)
    return _Share(numel, numel // shards, matrices, _one_of(shards, " of the buffer"))


def _one_of(ways: int, what: str) -> str:
    """`1/8 of the buffer`; arrays of layouts have no words."""
    return f"1/{ways}{what}" if isinstance(ways, int) else what


def is_muon_managed(param: Param) -> bool:
    """Matrices that are neither embedding nor output weight (Megatron-LM `optimizer/emerging_optimizers.py`)."""
    outside = param.name.startswith(("embedding.", "output_layer.")) or param.name.endswith("in_proj.weight")
    return param.matrix and len(param.shape) == 2 and not outside
