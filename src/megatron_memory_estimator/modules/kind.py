"""What the engine asks about a kind of mixer or MLP: the fields of its row (`kinds.KINDS`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

from ..job.layout import Layout
from ..job.model import Model
from ..job.settings import Owner
from ..job.training import Training
from ..rules import Violation
from ..tape.ops import Part
from ..tape.tensor import Tensor
from .context import Context
from .module import Module

Declare = Callable[[Context, Tensor, int], Module[Tensor]]
"""From the residual stream, and the layer's index in the pattern of cp_comm_type, to what is added to the residual stream; of a
whole layer to the residual stream behind it."""
Role = Literal["mixer", "mlp", "layer", "nothing"]
"""A mixer, an MLP, both in one with what is added to the residual stream, or nothing, which adds nothing."""
StateHeads = Literal["none", "mamba", "delta", "whole"]
"""Rules of the heads of a recurrent state, by name (legality/grid.py)."""
Rotary = Literal["none", "chunk", "layer"]
"""Whose rotary table is: nobody's, one per model chunk, one per layer."""


def nothing_kept(c: Context, layers: int) -> Iterator[tuple[Tensor, str]]:
    """No layer leaves anything on the GPU between two microbatches."""
    return iter(())


Rule = Callable[[Model, Layout, Training], Iterator[Violation]]
Ruled = Literal["context parallelism", "local modules", "low precision", "deterministic kernels", "weight shards"]
RULED: frozenset[Ruled] = frozenset(get_args(Ruled))
"""What changes a kind so much that nothing is taken for granted."""


class Kind(NamedTuple):
    """A kind of mixer or MLP.

    part         what its ops are a part of, where they do not say it themselves
    residual     the same of the addition to the residual stream behind it
    owners       whose settings it reads, beside those that every kind reads (`settings.Owner`)
    rotary       whose rotary table is
    heads        whether query heads are sharded over tp
    groups       whether key and value heads are
    exchanges    whether all-to-all context parallelism exchanges its heads
    latent       whether key and value come from a compressed latent
    sparse       whether it attends to keys that an indexer picks; `indexer`: whether it has that indexer
    borrows      whether it needs the keys that an earlier layer of its stage picked
    compressed   whether it is DeepSeek-V4's attention
    state_heads  which rules the heads of its recurrent state keep
    routed       whether it has routed experts
    hashed       whether the token's hash chooses them
    dense        whether it has a dense MLP
    recomputes   modules of selective recomputation that it has (Megatron-LM `transformer_config.py`, recompute_modules)
    kept         tensors that so many layers of it keep between microbatches, each with its source
    biased       whether its last linear leaves its bias to the addition to the residual stream
    setting      of a whole layer: the setting that makes the layers of a model such, for messages
    rules        what a model with it requires and excludes, beside what legality/ says of all models
    ruled        which of `RULED` somebody has read up for it; a run with another of them is refused, whatever a row leaves out
    own_norms    whether its norms are its own, and not TransformerEngine's or Apex's
    own_tables   whether each shape of heads has rotary tables of its own
    """

    name: str
    role: Role
    declare: Declare
    part: Part
    residual: Part
    owners: frozenset[Owner] = frozenset()
    rotary: Rotary = "none"
    heads: bool = False
    groups: bool = False
    exchanges: bool = False
    latent: bool = False
    sparse: bool = False
    indexer: bool = False
    borrows: bool = False
    compressed: bool = False
    state_heads: StateHeads = "none"
    routed: bool = False
    hashed: bool = False
    dense: bool = False
    recomputes: frozenset[str] = frozenset()
    kept: Callable[[Context, int], Iterator[tuple[Tensor, str]]] = nothing_kept
    biased: bool = False
    setting: str = ""
    rules: tuple[Rule, ...] = ()
    ruled: frozenset[Ruled] = frozenset()
    own_norms: bool = False
    own_tables: bool = False
