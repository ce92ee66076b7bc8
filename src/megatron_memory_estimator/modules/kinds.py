"""One row per kind of mixer and MLP: what it declares, and what the rest of the engine asks about it.

A decoder layer is a kind's name, or two joined by `+` (`gqa+moe`: a mixer, then an MLP). Every question about a kind is a field here;
nothing else compares names. A new kind is a file beside this one and a row in `KINDS`; `tests/test_kinds.py` asks every consumer about
every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Literal, NamedTuple

from ..job.model import Model
from ..job.settings import Owner
from ..job.tower import counted
from ..tape.ops import Part
from ..tape.tensor import Tensor
from . import attention, gated_delta_net, mamba, mla, mlp, moe, parallel, sparse_attention
from .context import Context
from .module import Module

Declare = Callable[[Context, Tensor, int], Module[Tensor]]
"""From the residual stream, and the layer's index in the pattern of cp_comm_type, to what is added to the residual stream; of a
whole layer to the residual stream behind it."""
Role = Literal["mixer", "mlp", "layer"]
"""A mixer, an MLP, or both in one with what is added to the residual stream."""
StateHeads = Literal["none", "mamba", "delta"]
"""Rules of the heads of a recurrent state, by name (legality/sharding.py)."""
Rotary = Literal["none", "chunk", "layer"]
"""Whose rotary table is: nobody's, one per model chunk, one per layer."""


def nothing_kept(c: Context, layers: int) -> Iterator[tuple[Tensor, str]]:
    """No layer leaves anything on the GPU between two microbatches."""
    return iter(())


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
    state_heads  which rules the heads of its recurrent state keep
    routed       whether it has routed experts
    dense        whether it has a dense MLP
    reproducible whether deterministic_mode runs the modelled operations
    recomputes   modules of selective recomputation that it has (Megatron-LM `transformer_config.py`, recompute_modules)
    kept         tensors that so many layers of it keep between microbatches, each with its source
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
    state_heads: StateHeads = "none"
    routed: bool = False
    dense: bool = False
    reproducible: bool = True
    recomputes: frozenset[str] = frozenset()
    kept: Callable[[Context, int], Iterator[tuple[Tensor, str]]] = nothing_kept


_SPARSE = Kind(
    name="dsa",
    role="mixer",
    declare=sparse_attention.sparse_attention,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("mla", "dsa")),
    rotary="layer",
    heads=True,
    latent=True,
    sparse=True,
    indexer=True,
    recomputes=frozenset(("layernorm",)),
)
_DELTA = Kind(
    name="gdn",
    role="mixer",
    declare=gated_delta_net.gated_delta_net,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("gdn",)),
    state_heads="delta",
    reproducible=False,
    recomputes=frozenset(("gdn_norm_out",)),
)

KINDS: dict[str, Kind] = {
    row.name: row
    for row in (
        Kind(
            name="gqa",
            role="mixer",
            declare=attention.self_attention,
            part="attn",
            residual="attn_residual",
            rotary="chunk",
            heads=True,
            groups=True,
            exchanges=True,
            recomputes=frozenset(("core_attn",)),
        ),
        Kind(
            name="mla",
            role="mixer",
            declare=mla.mla_attention,
            part="attn",
            residual="attn_residual",
            owners=frozenset(("mla",)),
            rotary="layer",
            heads=True,
            exchanges=True,
            latent=True,
            recomputes=frozenset(("core_attn", "mla_up_proj", "layernorm")),
        ),
        _SPARSE,
        _SPARSE._replace(
            name="dsa_shared", declare=sparse_attention.shared_sparse_attention, indexer=False, borrows=True
        ),
        _DELTA,
        _DELTA._replace(name="gdn2", declare=gated_delta_net.gated_delta_net_2),
        Kind(
            name="mamba",
            role="mixer",
            declare=mamba.mamba_mixer,
            part="mamba",
            residual="attn_residual",
            owners=frozenset(("mamba",)),
            state_heads="mamba",
            kept=mamba.kept,
        ),
        Kind(
            name="parallel",
            role="layer",
            declare=parallel.parallel_layer,
            part="attn",
            residual="mlp_residual",
            owners=frozenset(("parallel",)),
            rotary="chunk",
            heads=True,
            groups=True,
            exchanges=True,
            dense=True,
            recomputes=frozenset(("core_attn",)),
        ),
        Kind(
            name="dense",
            role="mlp",
            declare=mlp.mlp,
            part="mlp",
            residual="mlp_residual",
            dense=True,
            recomputes=frozenset(("mlp",)),
        ),
        Kind(
            name="moe",
            role="mlp",
            declare=moe.moe,
            part="moe",
            residual="moe_residual",
            owners=frozenset(("moe",)),
            routed=True,
            recomputes=frozenset(("moe", "moe_act", "layernorm", "shared_experts")),
            kept=moe.kept,
        ),
    )
}


@cache
def kinds_of(layer: str) -> tuple[Kind, ...]:
    """The kinds that a decoder layer is made of, in the order in which it runs them."""
    return tuple(KINDS[name] for name in layer.split("+"))


def kinds_in(layers: Iterable[str]) -> frozenset[Kind]:
    """The kinds of several layers."""
    return frozenset(kind for layer in frozenset(layers) for kind in kinds_of(layer))


def owners_of(model: Model) -> frozenset[Owner]:
    """Whose settings mean something in a model."""
    found: set[Owner] = {owner for kind in kinds_in(model.every_kind) for owner in kind.owners}
    if model.enable_mhc_connections:
        found.add("mhc")
    if model.position_embedding_type == "yarn" or "mla" in found:
        found.add("yarn")
    if counted(model.towers):
        found.add("tower")
    return frozenset(found)


def recomputable(model: Model) -> frozenset[str]:
    """Modules of selective recomputation that a model has."""
    found = frozenset(module for kind in kinds_in(model.every_kind) for module in kind.recomputes)
    return found if model.moe_shared_expert_intermediate_size else found - {"shared_experts"}


def layers_with(counts: dict[str, int], holds: Callable[[Kind], bool]) -> int:
    """How many layers hold a kind of which something is true; `counts` says how many of each layer there are."""
    return sum(count for layer, count in counts.items() if any(map(holds, kinds_of(layer))))
