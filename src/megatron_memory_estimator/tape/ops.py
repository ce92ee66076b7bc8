"""What a module declares: operations, what each reads, writes and keeps, and which of them a checkpoint wraps.

Lifetimes are not declared; `simulate.py` derives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from .tensor import Tensor
from .work import Send, Work

Part = Literal[
    "", "attn_norm", "qkv_linear", "core_attn", "heads_out", "heads_back", "attn_proj", "attn", "mamba", "attn_residual", "attn_wgrads",
    "mlp_norm", "mlp", "mlp_residual", "mlp_wgrads", "router_norm", "router", "permute", "dispatch", "expert_fc1", "moe_act",
    "experts", "combine", "latent_down", "latent_up", "shared_experts", "shared_experts_add", "moe", "moe_residual",
    "experts_wgrads", "streams", "towers", "embedding", "final_norm", "mtp", "head", "loss", "layers",
]  # fmt: skip
"""What an op is a part of: what CUDA graphs, all-to-all overlap, offloading, the paged stash and delayed weight gradients choose
by. A region that a checkpoint wraps has one too. "" is an op that no part was given yet (`in_part`)."""
EVERYTHING: frozenset[Part] = frozenset(get_args(Part))


class Op(NamedTuple):
    """One operation of a module's forward, and by it one node of the backward.

    reads     tensors it takes; each differentiable one gets a gradient in backward
    writes    tensors it allocates
    saves     tensors that autograd keeps for its backward: any of the above, or statistics kept for nothing else
    forward   scratch alive only while the forward runs
    backward  scratch alive only while the backward runs
    holds     tensors that Python references keep alive until this op is done
    passes    reads whose gradient is the incoming gradient itself (residual add, view, copy)
    stops     reads that get no gradient
    wgrad     what its weight gradient is computed from, where that may be delayed: input and output gradient; of an op
              without writes: all that waits for it
    part      what it is a part of
    work      what it computes, if that is more than to move its tensors through memory once
    sends     what its forward sends to other ranks; an op that sends and has no work does nothing else
    returns   what its backward sends
    calls     functions of PyTorch or kernels that its forward launches one after the other
    filled    share of its rows that hold a token
    compiled  one kernel of torch.compile: what it keeps for its backward is not made where none follows
    waits     the CPU waits for what was launched before it: it needs a count from the GPU
    """

    name: str
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    saves: tuple[Tensor, ...] = ()
    forward: tuple[Tensor, ...] = ()
    backward: tuple[Tensor, ...] = ()
    holds: tuple[Tensor, ...] = ()
    passes: tuple[Tensor, ...] = ()
    stops: tuple[Tensor, ...] = ()
    wgrad: tuple[Tensor, ...] = ()
    part: Part = ""
    work: tuple[Work, ...] = ()
    sends: tuple[Send, ...] = ()
    returns: tuple[Send, ...] = ()
    calls: Any = 1
    filled: float = 1.0
    compiled: bool = False
    waits: bool = False


_PART = Op._fields.index("part")
"""Fields of an op between its name and this one hold tensors."""
_FILLED = Op._fields.index("filled")


class Recompute(NamedTuple):
    """Ops whose intermediate tensors are not kept.

    With a `hook` the outputs are dropped too, and the ops run again just before the first backward of an op whose name
    begins with the hook. `stored` replaces the
    kept inputs where the checkpoint keeps something else (a sharded copy). `beside` is alive while the ops run again.
    """

    name: str
    ops: tuple[Op | Recompute, ...]
    hook: str = ""
    stored: tuple[Tensor, ...] = ()
    part: Part = ""
    beside: tuple[Tensor, ...] = ()


Item = Op | Recompute


class Unit(NamedTuple):
    """A stretch of a model chunk that hands one tensor in and one out: a layer, the embedding, the loss.

    `entry` is alive when the unit begins and belongs to it (the unit before does not keep it); `exit` is handed over.
    """

    name: str
    items: tuple[Item, ...]
    entry: Tensor | None
    exit: Tensor | None


def uses(item: Item) -> Iterator[Tensor]:
    """Tensors that an item needs alive."""
    if isinstance(item, Op):
        yield from item.reads
        yield from item.holds
    else:
        made = {t.storage for t in makes(item) if t.storage == t.name}
        for inner in item.ops:
            yield from (t for t in uses(inner) if t.storage not in made)


def makes(item: Item) -> Iterator[Tensor]:
    """Tensors that an item allocates."""
    if isinstance(item, Op):
        yield from item.writes
    else:
        for inner in item.ops:
            yield from makes(inner)


def inputs(region: Recompute) -> tuple[Tensor, ...]:
    """What a checkpoint keeps: the tensors that its ops read from outside, each storage once."""
    made = {t.storage for t in makes(region) if t.storage == t.name}  # a view belongs to the tensor it shows
    found = {t.storage: t for inner in region.ops for t in reads(inner) if t.storage not in made}
    return tuple(found.values())


def reads(item: Item) -> Iterator[Tensor]:
    """Tensors that an item's ops read."""
    if isinstance(item, Op):
        yield from item.reads
    else:
        for inner in item.ops:
            yield from reads(inner)


def renaming(prefix: str, same: dict[str, str]) -> Callable[[Item], Item]:
    """Prefixes every tensor and op name of an item, but for the tensors that `same` maps to other names.

    It joins several layers into one unit: the entry of a layer is the exit of the one before.
    """
    known: dict[int, tuple[Tensor, Tensor]] = {}  # by id, and held: a tensor stands in several ops

    def word(name: str) -> str:
        return same.get(name, prefix + name)

    def one(t: Tensor) -> Tensor:
        if id(t) not in known:
            known[id(t)] = t, Tensor(word(t.name), t.shape, t.dtype, t.nbytes, word(t.storage))
        return known[id(t)][1]

    return partial(mapped, change=one, prefix=prefix)


def mapped(item: Item, change: Callable[[Tensor], Tensor], prefix: str = "") -> Item:
    """The item with every tensor changed, and every op name prefixed."""
    if isinstance(item, Op):
        tensors: tuple[tuple[Tensor, ...], ...] = item[1:_PART]  # type: ignore[assignment]
        return Op._make(
            (prefix + item.name, *[tuple(map(change, each)) if each else () for each in tensors], *item[_PART:])
        )
    return Recompute(
        prefix + item.name,
        tuple(mapped(inner, change, prefix) for inner in item.ops),
        prefix + item.hook if item.hook else "",
        tuple(map(change, item.stored)),
        item.part,
        tuple(map(change, item.beside)),
    )


def parted(item: Item, part: Part) -> Item:
    """The item, and every op in it, as a part of something; what has a part already keeps it."""
    if item.part:
        return item
    if isinstance(item, Recompute):
        return item._replace(ops=tuple(parted(inner, part) for inner in item.ops), part=part)
    return Op._make((*item[:_PART], part, *item[_PART + 1 :]))


def filling(item: Item, share: float) -> Item:
    """The item with every op in it on rows of which a share holds a token."""
    if isinstance(item, Recompute):
        return item._replace(ops=tuple(filling(inner, share) for inner in item.ops))
    return Op._make((*item[:_FILLED], share, *item[_FILLED + 1 :]))


def flattened(items: Iterable[Item]) -> Iterator[Op]:
    """Every op, those inside checkpoints too."""
    for item in items:
        if isinstance(item, Op):
            yield item
        else:
            yield from flattened(item.ops)
