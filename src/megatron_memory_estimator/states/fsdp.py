"""Fully sharded data parallelism: what is sharded, and what is whole while a unit runs.

A unit is one layer; everything else (embedding, output layer, final norm) is gathered whole while it is used.

| strategy           | weights | main weights and moments | gradients |
| ------------------ | ------- | ------------------------ | --------- |
| no_shard           | 1       | 1                        | 1         |
| optim              | 1       | F                        | 1         |
| optim_grads        | 1       | F                        | F         |
| optim_grads_params | F       | F                        | F         |

F is the data-parallel group (times context parallelism) of one instance; with outer sharding `optim` the optimizer state is
also sharded over the instances. torch FSDP2 shards as optim_grads_params and keeps one unit ahead.

So does version 2 of Megatron-FSDP (`mcore_fsdp_adapter.py`, FullyShardedDataParallelV2, of Megatron-LM's main), which has at most four
whole buffers, two of weights and two of gradients (`tests/unit_tests/distributed/mfsdp_v2/test_memory.py`). A layer's routed experts are a
unit of their own inside the layer's, cut over the ranks of expert data parallelism: with the layer and its experts in use, only the rest of
a layer is gathered ahead, as its unit and not its experts' is the next.

Source: Megatron-LM `megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py`, `megatron_fsdp.py`,
`torch_fully_sharded_data_parallel.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from ..modules.context import Context
from ..modules.quantization import RECIPES, orientations
from ..tape.tensor import Dim, Param, Tensor, ceil_div, largest, smallest, tensor

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
UNIT_SIZE = 10**9
"""Elements of suggested_communication_unit_size when it is not given: the code takes this or two mean units, the larger."""


class Ways(NamedTuple):
    """Ranks that one copy of each kind of state is spread over."""

    weights: int
    optimizer: int
    gradients: int


def active(c: Context) -> bool:
    """Whether one of the fully sharded data parallelisms is on."""
    return c.training.use_megatron_fsdp or c.training.use_torch_fsdp2


def strategy(c: Context) -> str:
    """The sharding strategy; torch FSDP2 shards everything."""
    return "optim_grads_params" if c.training.use_torch_fsdp2 else c.training.data_parallel_sharding_strategy


def ways(c: Context, *, expert: bool) -> Ways:
    """How the state of dense or expert parameters is sharded."""
    shards = c.layout.shards(expert=expert)
    level = STRATEGIES.index(strategy(c))
    outer = c.layout.num_distributed_optimizer_instances if c.training.outer_dp_sharding_strategy == "optim" else 1
    return Ways(
        weights=shards if level == 3 else 1,
        optimizer=shards * outer if level >= 1 else 1,
        gradients=shards if level >= 2 else 1,
    )


def grad_dtype(c: Context) -> str:
    """Dtype of the sharded gradients: the weights' own unless asked otherwise, fp32 before Megatron-Core 0.17."""
    t = c.training
    if t.megatron_fsdp_main_grads_dtype != "auto":
        return t.megatron_fsdp_main_grads_dtype
    return t.grad_dtype if t.mcore < (0, 17) and not t.use_torch_fsdp2 else t.params_dtype


def gathered(
    c: Context, name: str, params: tuple[Param, ...], units: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """(whole weights in the forward, whole weights and gradients in the backward) while one of `units` equal units runs."""
    t = c.training
    if not active(c):
        return (), ()
    numel = sum(p.numel for p in params if not p.frozen)
    if isinstance(numel, int) and not numel:
        return (), ()
    ahead = reduced = numel
    if t.use_megatron_fsdp and t.megatron_fsdp_version == 2:
        ahead = numel - sum(p.numel for p in params if p.split == "expert" and not p.frozen)
    if t.megatron_fsdp_version == 1 and t.use_megatron_fsdp and units:
        size = t.suggested_communication_unit_size or largest(UNIT_SIZE, 2 * numel)
        ahead = ceil_div(size // 2, numel) * numel
        reduced = ceil_div(size, numel) * numel
    total = numel * (units or 1)
    weights: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()
    level = STRATEGIES.index(strategy(c))
    if level == 3 and not t.double_buffered:
        whole = smallest(numel + (ahead if units else 0), total)
        weights = (
            tensor(
                f"{name}FSDP gathered weights",
                (Dim("elements of the unit and of those ahead", whole),),
                gathered_dtype(c),
            ),
        )
    if level >= 2 and (units or t.megatron_fsdp_version == 2) and not t.double_buffered:
        # outside units a gradient is its op's own scratch; version 2 copies it for its reduce-scatter
        reduced = reduced if units else 0
        whole = smallest(numel + reduced, total)
        grads = (tensor(f"{name}FSDP gradients before reduce-scatter", (Dim("elements", whole),), grad_dtype(c)),)
    return weights, (*weights, *transposed(c, name, numel), *grads)


def gathered_dtype(c: Context) -> str:
    """Dtype of gathered weights: that of the sharded ones. A unit's few 16-bit parameters are counted with the others."""
    return "fp8" if c.training.low_precision_weights else c.dtype


def turned(c: Context) -> bool:
    """Whether gathered fp8 weights need a copy by columns, which is made after the gather."""
    t = c.training
    if not t.low_precision_weights or t.low_precision == "mxfp8":
        return False
    return orientations(RECIPES[t.low_precision], blackwell=c.blackwell) > 1


def transposed(c: Context, name: str, numel: int) -> tuple[Tensor, ...]:
    """The copy by columns that the backward of a unit makes of its gathered fp8 weights, where the GEMM cannot do without."""
    t = c.training
    if not turned(c) or t.keep_fp8_transpose_cache:
        return ()
    return (tensor(f"{name}FSDP gathered weights by columns", (Dim("elements of the unit", numel),), "fp8"),)
