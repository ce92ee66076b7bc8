"""Model state of a rank: weights, gradient buffers, main parameters and moments, as named tensors.

Sources: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `distributed_data_parallel.py`,
`megatron/core/optimizer/distrib_optimizer.py`, `optimizer.py`, `optimizer_config.py`; TransformerEngine
`pytorch/optimizers/fused_adam.py`.
"""

from __future__ import annotations

import operator
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

from .context import Context
from .fsdp import active, grad_dtype, ways
from .layer_wise import packed, ping_pong, sizes
from .quantization import RECIPES, data_bytes, orientations, scale_bytes
from .tensor import DTYPE_BYTES, Dim, Param, ceil_div, largest, round_up, whole_below

ALIGNMENT = 64
"""Elements that the start of a parameter is aligned to (param_and_grad_buffer.py)."""
BUCKET_MULTIPLE = 128
"""Elements whose least common multiple with the shard count a bucket's end is padded to."""
LAYER_WISE_BUFFERS = (0, 17)
"""Megatron-Core version from which the layer-wise optimizer packs the DDP buffers."""
Runs = list[tuple[list[Param], int]]
"""Parameters of consecutive layers: those of one layer, and how many there are."""
BUSBW_MULTIPLE = 65536
"""The same with ddp_pad_buckets_for_high_nccl_busbw."""


class Buffer(NamedTuple):
    """One contiguous DDP buffer of a chunk. `numel` is padded with the distributed optimizer.

    `owned` elements have their optimizer state on this rank, `owned_matrices` of them are updated by Muon. `recipe` is that
    of weights kept in low precision, `scale_bytes` those of all their scales. Fully sharded, a rank has 1 of `weight_ways` parts of
    the weights and 1 of `grad_ways` of the gradients. `offloaded` of the owned elements have their state in host memory.
    """

    chunk: int
    group: str
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


class State(NamedTuple):
    """A persistent tensor of model state. `part` is "weights", "gradients" or "optimizer".

    `since`: "setup" from construction; "first step" from the first optimizer step on; "step" from an optimizer step to the
    next zeroing of gradients: between two steps, but never together with activations.
    """

    part: str
    name: str
    dtype: str
    numel: int
    nbytes: int
    since: str
    why: str


def _lcm(a: int, b: int) -> int:
    if isinstance(a, int) and isinstance(b, int):
        return a // gcd(a, b) * b
    import numpy as np

    return np.lcm(a, b)


def bucket_multiple(shards: int, *, busbw: bool) -> int:
    """Elements that a bucket's end is padded to."""
    multiple = _lcm(shards, BUCKET_MULTIPLE)
    return _lcm(multiple, BUSBW_MULTIPLE) if busbw else multiple


def padded_numel(params: list[tuple[Param, int]], shards: int, bucket_size: int | None, *, busbw: bool = False) -> int:
    """Elements of a buffer laid out by the distributed optimizer.

    Parameters are walked in reverse registration order; each start is aligned to 64 elements; a bucket ends when it has
    `bucket_size` elements, and its end is padded. A shared embedding forms a bucket of its own. Without a bucket size
    and shared embeddings, the aligned sizes add up whatever their order.
    """
    multiple = bucket_multiple(shards, busbw=busbw)
    if bucket_size is None and not any(param.shared_embedding for param, _ in params):
        return round_up(
            sum(round_up(param.numel_each, ALIGNMENT) * (param.copies * copies) for param, copies in params), multiple
        )
    end = start_of_bucket = 0
    for param, copies in reversed(params):
        each = param.numel_each
        if param.shared_embedding and end > start_of_bucket:
            end = start_of_bucket = round_up(end, multiple)
        for _ in range(param.copies * copies):
            end = round_up(end, ALIGNMENT) + each
            full = bucket_size is not None and end - start_of_bucket >= bucket_size
            if full or param.shared_embedding:
                end = start_of_bucket = round_up(end, multiple)
    return round_up(end, multiple)


def padded_buffer(runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool) -> int:
    """`padded_numel` of consecutive layers, also of arrays of layouts.

    Buckets end where all sizes are multiples of what they are padded to anyway: then only the sum counts. Elsewhere each layout is
    walked by itself.
    """
    params = [(p, n) for members, n in runs for p in members]
    shared = any(p.shared_embedding for p, _ in params)
    if bucket_size is None and not shared:
        return padded_numel(params, shards, None, busbw=busbw)
    multiple = bucket_multiple(shards, busbw=busbw)
    sizes = [p.numel_each for p, _ in params]
    copies = [p.copies * n for p, n in params]
    ends = -1 if bucket_size is None else bucket_size
    if all(isinstance(value, int) for value in (multiple, ends, *sizes, *copies)):
        return padded_numel(expanded(runs), shards, bucket_size, busbw=busbw)
    import numpy as np

    ragged: Any = reduce(operator.or_, (size % multiple != 0 for size in sizes))
    total: Any = sum(size * n for size, n in zip(sizes, copies, strict=True))
    if not np.any(ragged):
        return total  # type: ignore[no-any-return]
    shape = np.broadcast_shapes(np.shape(total), np.shape(ragged), np.shape(multiple), np.shape(ends))
    numbers = (shards, ends, *sizes, *(n for _, n in runs), *(p.copies for p, _ in params))
    table = np.stack([np.broadcast_to(number, shape).ravel() for number in numbers], axis=1)
    places = np.nonzero(np.broadcast_to(ragged, shape).ravel())[0]
    _, first, alike = np.unique(table[places], axis=0, return_index=True, return_inverse=True)
    padded = np.broadcast_to(total, shape).copy().ravel()
    walked = [_padded_at(int(place), shape, runs, shards, bucket_size, busbw=busbw) for place in places[first]]
    padded[places] = np.array(walked, dtype=np.int64)[alike.ravel()]
    return padded.reshape(shape)  # type: ignore[no-any-return]


def _padded_at(
    place: int, shape: tuple[int, ...], runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool
) -> int:
    """`padded_numel` of one layout of arrays of a shape."""
    import numpy as np

    def at(number: int) -> int:
        return int(np.broadcast_to(number, shape).flat[place])

    if at(shards) < 1:
        return 0
    plain: Runs = [
        ([p._replace(shape=(Dim("numel", at(p.numel_each)),), copies=at(p.copies)) for p in members], at(layers))
        for members, layers in runs
    ]
    return padded_numel(expanded(plain), at(shards), None if bucket_size is None else at(bucket_size), busbw=busbw)


def _one_of(ways: int, what: str) -> str:
    """`1/8 of the buffer`; arrays of layouts have no words."""
    return f"1/{ways}{what}" if isinstance(ways, int) else what


def default_bucket_size(c: Context, numel: int, *, first_chunk: bool) -> int | None:
    """Elements of a bucket, or None for a single one (Megatron-LM `megatron/training/training.py`)."""
    t = c.training
    if not t.overlap_grad_reduce or not first_chunk:
        return None
    if t.ddp_bucket_size is not None:
        return t.ddp_bucket_size
    if t.ddp_num_buckets is not None:
        return ceil_div(numel, t.ddp_num_buckets)
    return largest(40_000_000, 1_000_000 * c.layout.dp * c.layout.cp)


def expanded(runs: Runs) -> list[tuple[Param, int]]:
    """Parameters of consecutive layers in registration order."""
    return [(param, 1) for params, count in runs for _ in range(count) for param in params]


def ddp_buffers(c: Context, chunk: int, runs: Runs, *, first_chunk: bool) -> list[Buffer]:
    """The buffers of one chunk: dense parameters, and experts where they have a data-parallel group of their own."""
    t, layout = c.training, c.layout
    found: list[Buffer] = []
    groups = (("dense", False, layout.dense_shards), ("expert", True, layout.expert_shards))
    low = t.low_precision_weights
    for (group, is_expert, shards), recipe in (
        (g, r) for g in groups for r in (("", t.low_precision) if low else ("",))
    ):
        members = [([p for p in params if _belongs(p, is_expert, recipe, low)], count) for params, count in runs]
        members = [(params, count) for params, count in members if params]
        if not members:
            continue
        plain = sum(p.numel * count for params, count in members for p in params)
        muon = t.optimizer == "muon"
        managed = {p.name for params, _ in members for p in params if is_muon_managed(p)} if muon else set()
        matrices = sum(p.numel * count for params, count in members for p in params if p.name in managed)
        numel, owned, share = plain, plain, "the whole buffer"
        weight_ways = grad_ways = 1
        if active(c):
            weight_ways, parts, grad_ways = ways(c, expert=is_expert)
            owned, share = ceil_div(plain, parts), _one_of(parts, ", fully sharded")
        elif muon and t.use_distributed_optimizer:
            pack = t.use_layer_wise_param_layout and t.mcore >= LAYER_WISE_BUFFERS
            deal = (packed if pack else ping_pong)(sizes(members, managed), shards)
            numel, owned, matrices = deal
            share = _one_of(shards, ": whole parameters dealt to ranks")
        elif t.use_distributed_optimizer:
            size = default_bucket_size(c, plain, first_chunk=first_chunk)
            numel = padded_buffer(members, shards, size, busbw=t.ddp_pad_buckets_for_high_nccl_busbw)
            owned, share = numel // shards, _one_of(shards, " of the buffer")
        dtype, scales = t.params_dtype, 0
        if recipe:
            group, dtype = f"{group} {recipe}", "fp8"
            scales = sum(scale_bytes(RECIPES[recipe], p) * count for params, count in members for p in params)
        grads = grad_dtype(c) if active(c) else t.grad_dtype
        buffer = Buffer(
            chunk, group, dtype, grads, numel, plain, owned, matrices, share, recipe, scales, weight_ways, grad_ways,
            whole_below(owned * t.optimizer_offload_fraction) if t.optimizer_cpu_offload else 0,
        )  # fmt: skip
        found.append(buffer)
    return found


def _belongs(param: Param, is_expert: bool, recipe: str, low: bool) -> bool:
    return not param.frozen and param.expert_buffer == is_expert and (param.quantized if low else "") == recipe


def frozen_weights(c: Context, chunk: int, params: list[tuple[Param, int]]) -> list[State]:
    """Weights that are not trained: no gradient, no optimizer state, never sharded over data-parallel ranks."""
    t = c.training
    frozen = [(p, count) for p, count in params if p.frozen]
    low = [(p, count) for p, count in frozen if p.quantized and t.low_precision_weights]
    plain = sum(p.numel * count for p, count in frozen) - sum(p.numel * count for p, count in low)
    found = (
        [_state("weights", f"frozen weights chunk {chunk}", t.params_dtype, plain, "setup", "not trained")]
        if not isinstance(plain, int) or plain
        else []
    )
    if low:
        recipe = RECIPES[t.low_precision]
        numel = sum(p.numel * count for p, count in low)
        scales = sum(scale_bytes(recipe, p) * count for p, count in low)
        buffer = Buffer(chunk, "frozen", "fp8", t.grad_dtype, numel, numel, 0, 0, "", recipe.name, scales)
        found += low_precision_weights(c, buffer, f"frozen chunk {chunk}")
    return found


def is_muon_managed(param: Param) -> bool:
    """Matrices that are neither embedding nor output weight (Megatron-LM `optimizer/emerging_optimizers.py`)."""
    outside = param.name.startswith(("embedding.", "output_layer.")) or param.name.endswith("in_proj.weight")
    return param.matrix and len(param.shape) == 2 and not outside


def model_state(c: Context, buffers: list[Buffer]) -> list[State]:
    """Every state tensor of a rank."""
    return [state for buffer in buffers for state in buffer_state(c, buffer)]


def buffer_state(c: Context, buffer: Buffer) -> list[State]:
    """State tensors of one buffer: weights, gradients and the optimizer's, by the rules of the optimizer in use."""
    t = c.training
    label = f"{buffer.group} chunk {buffer.chunk}"
    sharded = t.use_distributed_optimizer
    where = "param buffer of the distributed optimizer" if sharded else "the modules' own parameters"
    if active(c):
        where = f"1/{buffer.weight_ways}, fully sharded"
    found = (
        low_precision_weights(c, buffer, label)
        if buffer.recipe
        else [
            _state(
                "weights",
                f"weights {label}",
                buffer.param_dtype,
                ceil_div(buffer.numel, buffer.weight_ways),
                "setup",
                where,
            )
        ]
    )
    found.append(
        _state(
            "gradients", f"main_grad {label}", buffer.grad_dtype, ceil_div(buffer.numel, buffer.grad_ways), "setup",
            "contiguous gradient buffer",
        )
    )  # fmt: skip
    for name, dtype, numel, since in optimizer_tensors(c, buffer):
        if (
            t.use_megatron_fsdp and since == "first step"
        ):  # made at once for sharded checkpoints; in the first measured peaks
            since = "setup"
        found.append(_state("optimizer", f"{name} {label}", dtype, numel, since, buffer.share))
    return found


def low_precision_weights(c: Context, buffer: Buffer, label: str) -> list[State]:
    """Weights that exist in low precision only: the param buffer, a copy by columns where the GEMM needs one, the scales.

    mxfp8 weights cannot be views of a buffer; they are gathered through the gradient buffer and have both copies of their own.
    """
    recipe = RECIPES[buffer.recipe]
    plain = ceil_div(buffer.numel_unpadded, buffer.weight_ways)
    first = plain if recipe.name == "mxfp8" else ceil_div(buffer.numel, buffer.weight_ways)
    why = "the modules' own" if recipe.name == "mxfp8" else "param buffer of the distributed optimizer"
    size = data_bytes(recipe, first)
    found = [State("weights", f"weights {label}", "fp8", first, size, "setup", why)]
    rebuilt = active(c) and recipe.name != "mxfp8"  # transposed after the gather
    if orientations(recipe, blackwell=c.blackwell) > 1 and not rebuilt:
        size = data_bytes(recipe, plain)
        found.append(State("weights", f"weights by columns {label}", "fp8", plain, size, "setup",
                           "kept for the input's gradient"))  # fmt: skip
    if not isinstance(buffer.scale_bytes, int) or buffer.scale_bytes:
        found.append(State("weights", f"weight scales {label}", recipe.scale, buffer.scale_bytes // DTYPE_BYTES[recipe.scale],
                           buffer.scale_bytes, "setup", "one per block"))  # fmt: skip
    return found


def _state(part: str, name: str, dtype: str, numel: int, since: str, why: str) -> State:
    return State(part, name, dtype, numel, numel * DTYPE_BYTES[dtype], since, why)


def optimizer_tensors(c: Context, buffer: Buffer) -> list[tuple[str, str, int, str]]:
    """(name, dtype, elements, since) of what the optimizer keeps for the elements that this rank owns."""
    t, owned = c.training, buffer.owned
    found: list[tuple[str, str, int, str]] = []
    if t.optimizer_cpu_offload:
        return _offloaded(c, buffer)
    if t.use_precision_aware_optimizer:
        return _precision_aware(c, buffer)
    if buffer.grad_dtype != "fp32":
        found.append(("fp32 copy of gradients", "fp32", owned, "step"))
    if buffer.param_dtype != "fp32" and not (t.use_megatron_fsdp and t.megatron_fsdp_main_params_dtype == "auto"):
        found.append(("main_param", "fp32", owned, "setup"))
    if t.optimizer == "sgd":
        if t.sgd_momentum:
            found.append(("momentum_buffer", "fp32", owned, "first step"))
        return found
    if t.optimizer == "muon":
        found.append(("muon momentum_buffer", "fp32", buffer.owned_matrices, "first step"))
        owned = owned - buffer.owned_matrices
    found.append(("exp_avg", "fp32", owned, "first step"))
    found.append(("exp_avg_sq", "fp32", owned, "first step"))
    return found


def _offloaded(c: Context, buffer: Buffer) -> list[tuple[str, str, int, str]]:
    """What stays on the GPU with an offloaded optimizer: fp32 masters and moments of the rest, whatever dtypes are asked for.

    Without the precision-aware optimizer (Megatron-LM's arguments demand it, Megatron-Bridge does not) the optimizer is built on
    Megatron's fp32 masters: all of them stay, and offloading moves the moments only. Whole parameters are taken in order until
    the fraction is reached; the split is modelled at the fraction itself.
    Source: Megatron-LM `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py`, `distrib_optimizer.py`.
    """
    rest = buffer.owned - buffer.offloaded
    masters = rest if c.training.use_precision_aware_optimizer else buffer.owned
    found = [
        ("main_param", "fp32", masters, "setup"),
        ("exp_avg", "fp32", rest, "first step"),
        ("exp_avg_sq", "fp32", rest, "first step"),
    ]
    if buffer.grad_dtype != "fp32":
        found.append(("fp32 copy of gradients", "fp32", masters, "step"))
    return [item for item in found if not isinstance(item[2], int) or item[2]]


def megatron_masters(c: Context) -> bool:
    """Whether Megatron keeps the precision-aware optimizer's fp32 masters instead of TransformerEngine's FusedAdam.

    An fp8 recipe other than delayed does it, set or not used.
    Source: Megatron-LM `megatron/core/optimizer/optimizer_config.py` (use_precision_aware_optimizer_no_fp8_or_ds_fp8).
    """
    return c.training.fp8_recipe != "delayed" and c.training.main_params_dtype == "fp32"


def _precision_aware(c: Context, buffer: Buffer) -> list[tuple[str, str, int, str]]:
    """TransformerEngine FusedAdam owns masters and moments; bf16 weights may keep only the low 16 bits of the master.

    With an fp8 recipe other than delayed (set, whether fp8 is on or not) and fp32 masters, Megatron keeps the masters and
    hands over fp32 gradients. Masters or moments in other dtypes are unscaled to fp32 copies during the step; two bf16
    moments are fused since TransformerEngine 2.13.
    Source: Megatron-LM `megatron/core/optimizer/optimizer_config.py` (use_precision_aware_optimizer_no_fp8_or_ds_fp8);
    TransformerEngine `pytorch/optimizers/fused_adam.py`.
    """
    t, owned = c.training, buffer.owned
    found: list[tuple[str, str, int, str]] = []
    core = active(c) or megatron_masters(c)
    remainder = (
        not core
        and t.store_param_remainders
        and t.te >= (2, 1)
        and buffer.param_dtype == "bf16"
        and not active(c)
        and t.main_params_dtype == "fp32"
    )
    if core and buffer.grad_dtype != "fp32" and not active(c):
        found.append(("fp32 copy of gradients", "fp32", owned, "step"))
    if t.params_dtype != "fp32":
        name, dtype = ("main_param remainder", "int16") if remainder else ("main_param", t.main_params_dtype)
        found.append((name, dtype, owned, "setup" if core else "first step"))
    moments = (("exp_avg", t.exp_avg_dtype), ("exp_avg_sq", t.exp_avg_sq_dtype))
    found.extend((name, dtype, owned, "first step") for name, dtype in moments)
    fused = t.exp_avg_dtype == t.exp_avg_sq_dtype == "bf16" and t.te >= (2, 13)
    unscaled = [name for name, dtype in moments if dtype != "fp32" and not fused]
    if not remainder and t.main_params_dtype == "fp16":
        unscaled.append("main_param")
    found.extend((f"{name} unscaled", "fp32", owned, "optimizer") for name in unscaled)
    return found
