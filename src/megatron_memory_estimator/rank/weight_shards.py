"""Weight shards (generalized tensor parallelism, GTP): weights that several ranks share, and the buffers that make them whole.

A weight of a linear, of the embedding and of the output layer is cut once more along its rows; the ranks that share it read samples of
their own. It is gathered just before its product in both directions, one weight ahead, and its gradient is summed over the ranks and cut
again. Norms, biases, routers, convolutions and linears that every tensor-parallel rank has whole stay whole.

Gathered weights and gradients are in buffers that are made once and stay. Weights of one shape share a buffer, unless they follow each
other. Of experts each local one has a buffer of its own, in two sets, as experts are gathered a layer ahead. The last weight of a rank
keeps the buffer of its backward for itself.

Source: Megatron-LM `megatron/core/tensor_parallel/generalized_tensor_parallelism.py` (GTPShardedParam, GTPWeightCache, _wgrad_pool_get).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from ..modules.context import Context
from ..modules.embedding import TABLE
from ..modules.linear import padded
from ..tape.tensor import Dim, MeshAxis, Param, Tensor, tensor

Key = tuple[object, ...]
"""What tensors that share buffers agree in."""


def sharded(c: Context, param: Param) -> Param:
    """A parameter as one rank has it: a part of its rows, padded to equal parts."""
    expert = param.split == "expert"
    parts = c.layout.egtp if expert else c.layout.gtp
    cut = bool(param.gemm) and param.split != "replicated"
    if parts == 1 or not (cut or param.name == TABLE):
        return param
    rows, *rest = param.shape
    axis: MeshAxis = "egtp" if expert else "gtp"
    size = padded(rows.local, parts) * rows.ways
    shape = (Dim(rows.name, size, (*rows.axes, axis), rows.ways * parts), *rest)
    return param._replace(shape=shape, whole=rows.local)


class Weight(NamedTuple):
    """A weight that is gathered, `copies` of it beside each other (local experts): its rows as gathered, without padding and of one rank,
    its columns. `chain` is what it is gathered in line with, `place` which of its chain it is. `pooled`: TransformerEngine writes its
    gradient into a buffer that stays."""

    name: str
    rows: int
    unpadded: int
    own: int
    columns: tuple[int, ...]
    copies: int
    chain: str
    place: int
    pooled: bool

    @property
    def gradient(self) -> Key:
        """The buffers of its whole gradient: the shape without padding, whatever the chain."""
        return (self.unpadded, *self.columns)

    def key(self, dtype: str) -> Key:
        """Its buffers: the shape as gathered, and of experts, whose chains keep apart, every second layer's."""
        apart = (self.chain, self.place % 2) if self.chain else ()
        return (self.rows, *self.columns, dtype, *apart)


def chain_of(c: Context, layers: Iterable[tuple[Sequence[Param], int]]) -> list[Weight]:
    """The weights that a rank gathers, in the order of its forward: the parameters of its layers, and how many layers are equal."""
    found: list[Weight] = []
    places: Counter[str] = Counter()
    for params, copies in layers:
        cut = sorted((p for p in params if p.whole), key=_turn)
        for param in cut * copies:
            own, *rest = (dim.local for dim in param.shape)
            expert = param.split == "expert"
            chain = ("fc1" if "linear_fc1" in param.name else "fc2") if expert else ""
            rows = own * (c.layout.egtp if expert else c.layout.gtp)
            pooled = param.gemm == "te"
            one = Weight(param.name, rows, param.whole, own, tuple(rest), param.copies, chain, places[chain], pooled)
            places[chain] += 1
            found.append(one)
    return found


def _turn(param: Param) -> int:
    """Where a weight stands in its layer's forward: attention uses the output projection last that it registers first, and shared experts
    run before the routed ones."""
    _, mixer, name = param.name.partition("self_attention.")
    if mixer:
        return int(name.startswith("linear_proj"))
    return 2 if "shared_experts" in param.name else 3


class Buffers:
    """Buffers of one use, made where none is free that agrees with what is asked for."""

    def __init__(self) -> None:
        self.made: Counter[Key] = Counter()
        self.most: Counter[Key] = Counter()
        self.free: Counter[Key] = Counter()
        self.first: dict[Key, Weight] = {}

    def take(self, key: Key, weight: Weight) -> None:
        """One for each copy of a weight."""
        reused = min(self.free[key], weight.copies)
        self.free[key] -= reused
        self.made[key] += weight.copies - reused
        self.most[key] = max(self.most[key], self.made[key])
        self.first.setdefault(key, weight)

    def give(self, key: Key, weight: Weight) -> None:
        """They may be used again."""
        self.free[key] += weight.copies

    def drop(self, key: Key, weight: Weight) -> None:
        """They are freed."""
        self.made[key] -= weight.copies


def shard_buffers(c: Context, layers: Iterable[tuple[Sequence[Param], int]]) -> Iterator[tuple[Tensor, str]]:
    """What a rank makes in its first step and keeps, with its source: whole weights, whole gradients, and sums of gradients."""
    weights = chain_of(c, layers)
    if not weights:
        return
    gathered, summed = _tickets(c, weights)
    pool, padding = _gradients(c, weights)
    source = "generalized_tensor_parallelism.py: "
    for key, count in gathered.most.items():
        weight = gathered.first[key]
        yield _buffer(f"whole {weight.name}", count, weight.rows, weight, c.dtype), f"{source}GTPWeightCache"
    for key, count in summed.most.items():
        weight = summed.first[key]
        yield (
            _buffer(f"summed {weight.name}.wgrad", count, weight.own, weight, summed_dtype(c, weight)),
            f"{source}GTPWeightCache",
        )
    for key, count in pool.most.items():
        weight = pool.first[key]
        made = _buffer(f"whole {weight.name}.wgrad", count, weight.unpadded, weight, c.training.grad_dtype)
        yield made, f"{source}_wgrad_pool_get"
    if padding:
        dtype = c.training.grad_dtype
        yield tensor("padded gradients on their way", (Dim("elements", padding),), dtype), f"{source}_reduce_scatter"


def _buffer(name: str, count: int, rows: int, weight: Weight, dtype: str) -> Tensor:
    columns = (Dim("columns", size) for size in weight.columns)
    return tensor(name, (Dim("buffers", count), Dim("rows", rows), *columns), dtype)


def summed_dtype(c: Context, weight: Weight) -> str:
    """Dtype in which the ranks sum a gradient: the buffer's that it is written into, else the model's."""
    return c.training.grad_dtype if weight.pooled else c.dtype


def _tickets(c: Context, weights: Sequence[Weight]) -> tuple[Buffers, Buffers]:
    """Buffers of whole weights, and of summed gradients. A forward gives each back at once. A backward gathers the weight before while it
    uses one, and adds up a gradient when that of the weight before is on its way; each weight keeps the buffers of its first one."""
    whole, summed = Buffers(), Buffers()
    for weight in weights:
        whole.take(weight.key(c.dtype), weight)
        whole.give(weight.key(c.dtype), weight)
    for name in dict.fromkeys(weight.chain for weight in weights):
        chain = [weight for weight in weights if weight.chain == name]
        last = len(chain) - 1
        for place in range(last, -1, -1):
            one = chain[place]
            before = chain[place - 1] if place else None
            behind = chain[place + 1] if place < last else None
            if behind is None:
                whole.take(one.key(c.dtype), one)
            if before and before.name != TABLE:
                whole.take(before.key(c.dtype), before)
            if behind:
                whole.give(one.key(c.dtype), one)
            if before:
                summed.take(one.key(summed_dtype(c, one)), one)
            if behind:
                summed.give(behind.key(summed_dtype(c, behind)), behind)
    return whole, summed


def _gradients(c: Context, weights: Sequence[Weight]) -> tuple[Buffers, int]:
    """Buffers that whole gradients are written into, and the most elements of their padded copies at once. A gradient gives its buffer
    back when that of the weight before it is on its way; that of the first weight of a chain is freed."""
    pool = Buffers()
    most = 0
    for _ in range(2):
        under_way: dict[str, Weight] = {}
        for one in reversed(weights):
            if one.pooled:
                pool.take(one.gradient, one)
            padding = sum(_padding(weight) for weight in (one, *under_way.values()))
            most = max(most, padding)
            behind = under_way.pop(one.chain, None)
            if behind and behind.pooled:
                pool.give(behind.gradient, behind)
            if one.place:
                under_way[one.chain] = one
            elif one.pooled:
                pool.drop(one.gradient, one)
    return pool, most


def _padding(weight: Weight) -> int:
    """Elements of the padded copies of a weight's gradients."""
    if not weight.pooled or weight.rows == weight.unpadded:
        return 0
    return weight.copies * weight.rows * prod(weight.columns)
