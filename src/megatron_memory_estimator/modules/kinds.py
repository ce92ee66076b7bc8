"""One row per kind of mixer and MLP: what it declares, and what the rest of the engine asks about it.

A decoder layer is a kind's name, or two joined by `+` (`gqa+moe`: a mixer, then an MLP). Every question about a kind is a field here;
nothing else compares names. A new kind is a file beside this one and a row in `KINDS`; `tests/test_kinds.py` asks every consumer about
every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from ..job.model import Model
from ..job.settings import Owner
from ..job.tower import counted
from ..job.variants import bare, variant_of
from . import (
    attention,
    compressed_attention,
    gated_delta_net,
    mamba,
    mla,
    mlp,
    moe,
    parallel,
    replacements,
    sparse_attention,
    whole_delta_net,
)
from .falcon_h1 import FALCON_H1
from .flash_next import FLASH_NEXT
from .gemma4 import GEMMA4
from .kimi_k3 import KIMI
from .kind import RULED, Kind, Rule

_SPARSE = Kind(
    name="dsa",
    role="mixer",
    ruled=RULED - {"weight shards"},
    declare=sparse_attention.sparse_attention,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("mla", "dsa")),
    rotary="layer",
    heads=True,
    latent=True,
    sparse=True,
    indexer=True,
    recomputes=frozenset(("core_attn", "layernorm", "mla_up_proj")),
    biased=True,
)
_WINDOW = Kind(
    name="window",
    role="mixer",
    ruled=RULED - {"weight shards"},
    declare=compressed_attention.window_attention,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("mla", "dsa", "csa", "yarn")),
    latent=True,
    compressed=True,
    recomputes=frozenset(("layernorm", "mla_up_proj")),
    rules=(compressed_attention.compressed_rules,),
)
_DELTA = Kind(
    name="gdn",
    role="mixer",
    ruled=RULED,
    declare=gated_delta_net.gated_delta_net,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("gdn",)),
    state_heads="delta",
    recomputes=frozenset(("gdn_norm_out",)),
)
_WHOLE_DELTA = Kind(
    name="gdn_whole",
    role="mixer",
    ruled=frozenset(("context parallelism",)),
    declare=whole_delta_net.whole_delta_net,
    part="attn",
    residual="attn_residual",
    owners=frozenset(("gdn",)),
    state_heads="whole",
    rules=(whole_delta_net.whole_delta_rules,),
)

_MOE = Kind(
    name="moe",
    role="mlp",
    ruled=RULED,
    declare=moe.moe,
    part="moe",
    residual="moe_residual",
    owners=frozenset(("moe",)),
    routed=True,
    recomputes=frozenset(("moe", "moe_act", "layernorm", "shared_experts")),
    kept=moe.kept,
)

KINDS: dict[str, Kind] = {
    row.name: row
    for row in (
        Kind(
            name="gqa",
            role="mixer",
            ruled=RULED,
            declare=attention.self_attention,
            part="attn",
            residual="attn_residual",
            rotary="chunk",
            heads=True,
            groups=True,
            exchanges=True,
            recomputes=frozenset(("core_attn",)),
            biased=True,
        ),
        Kind(
            name="mla",
            role="mixer",
            ruled=RULED,
            declare=mla.mla_attention,
            part="attn",
            residual="attn_residual",
            owners=frozenset(("mla",)),
            rotary="layer",
            heads=True,
            exchanges=True,
            latent=True,
            recomputes=frozenset(("core_attn", "mla_up_proj", "layernorm")),
            biased=True,
        ),
        _SPARSE,
        _SPARSE._replace(
            name="dsa_shared", declare=sparse_attention.shared_sparse_attention, indexer=False, borrows=True
        ),
        _DELTA,
        _DELTA._replace(
            name="gdn2",
            declare=gated_delta_net.gated_delta_net_2,
            ruled=RULED - {"deterministic kernels", "weight shards"},
        ),
        _WHOLE_DELTA,
        _WHOLE_DELTA._replace(name="gdn_whole_cp", declare=whole_delta_net.whole_delta_net_cp),
        Kind(
            name="mamba",
            role="mixer",
            ruled=RULED,
            declare=mamba.mamba_mixer,
            part="mamba",
            residual="attn_residual",
            owners=frozenset(("mamba",)),
            state_heads="mamba",
            kept=mamba.kept,
        ),
        _WINDOW,
        _WINDOW._replace(name="csa", declare=compressed_attention.csa_attention),
        _WINDOW._replace(name="hca", declare=compressed_attention.hca_attention),
        Kind(
            name="parallel",
            role="layer",
            ruled=RULED - {"local modules", "weight shards"},
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
            setting="parallel_attention",
        ),
        Kind(
            name="no_attention",
            role="nothing",
            ruled=RULED,
            declare=replacements.nothing,
            part="attn",
            residual="attn_residual",
        ),
        Kind(
            name="linear_attention",
            role="mixer",
            ruled=RULED - {"weight shards"},
            declare=replacements.linear_for_attention,
            part="attn",
            residual="attn_residual",
        ),
        Kind(
            name="no_mlp",
            role="nothing",
            ruled=RULED,
            declare=replacements.nothing,
            part="mlp",
            residual="mlp_residual",
        ),
        Kind(
            name="linear_mlp",
            role="mlp",
            ruled=RULED - {"weight shards"},
            declare=replacements.linear_for_mlp,
            part="mlp",
            residual="mlp_residual",
            recomputes=frozenset(("mlp",)),
        ),
        Kind(
            name="dense",
            role="mlp",
            ruled=RULED,
            declare=mlp.mlp,
            part="mlp",
            residual="mlp_residual",
            dense=True,
            recomputes=frozenset(("mlp",)),
            biased=True,
        ),
        _MOE,
        _MOE._replace(name="hash_moe", hashed=True, kept=moe.hash_kept, rules=(moe.hash_rules,)),
        FALCON_H1,
        *GEMMA4,
        *KIMI,
        *FLASH_NEXT,
    )
}


@cache
def kinds_of(layer: str) -> tuple[Kind, ...]:
    """The kinds that a decoder layer is made of, in the order in which it runs them."""
    return tuple(KINDS[name] for name in bare(layer).split("+"))


def kinds_in(layers: Iterable[str]) -> frozenset[Kind]:
    """The kinds of several layers."""
    return _kinds_in(layers if isinstance(layers, tuple | frozenset) else tuple(layers))


@lru_cache(maxsize=1024)
def _kinds_in(layers: Iterable[str]) -> frozenset[Kind]:
    return frozenset(kind for layer in frozenset(layers) for kind in kinds_of(layer))


def shapes_of(model: Model) -> tuple[tuple[Model, frozenset[Kind]], ...]:
    """The model as its layers have it, once for each variant that a layer is, with the kinds of those layers."""
    return tuple((model.variant(name), kinds) for name, kinds in _by_variant(model.every_kind))


@lru_cache(maxsize=256)
def _by_variant(layers: tuple[str, ...]) -> tuple[tuple[str, frozenset[Kind]], ...]:
    """The kinds of the layers of each variant."""
    found: dict[str, set[str]] = {}
    for layer in layers:
        found.setdefault(variant_of(layer), set()).add(layer)
    return tuple((name, kinds_in(some)) for name, some in found.items())


def rules_of(model: Model) -> tuple[Rule, ...]:
    """The rules of the kinds of a model, each once, in the order of `KINDS`."""
    there = kinds_in(model.every_kind)
    return tuple(dict.fromkeys(rule for kind in KINDS.values() if kind in there for rule in kind.rules))


def costly_core_attention(model: Model, kernel: str) -> bool:
    """Whether recomputing core attention keeps more than it drops: a fused kernel keeps no scores, and the checkpoint's inputs, query and
    key after RoPE, do not let the packed QKV output go. (With an output gate that output stays in any case.)"""
    fused = (
        kernel in ("flash", "cudnn")
        and model.core_attention == "transformer_engine"
        and not model.attention_output_gate
    )
    return fused and model.position_embedding_type == "rope" and any(kind.groups for kind in kinds_in(model.every_kind))


def has_compressed(model: Model) -> bool:
    """Whether a layer has DeepSeek-V4's attention."""
    return any(kind.compressed for kind in kinds_in(model.every_kind))


def rotary_width(model: Model) -> int:
    """Elements of a row of a chunk's RoPE tables: Gemma 4 has one for each shape of heads."""
    shapes = (
        [shape for shape, _ in shapes_of(model)]
        if any(kind.own_tables for kind in kinds_in(model.every_kind))
        else [model]
    )
    return sum({int(shape.head_dim * shape.rotary_percent) for shape in shapes})


def owners_of(model: Model) -> frozenset[Owner]:
    """Whose settings mean something in a model."""
    found: set[Owner] = {owner for kind in kinds_in(model.every_kind) for owner in kind.owners}
    if model.several_streams:
        found.add("mhc")
    if model.position_embedding_type == "yarn" or "mla" in found:
        found.add("yarn")
    for tower in counted(model.towers):
        found.add("audio" if tower.hears else "tower")
    return frozenset(found)


def recomputable(model: Model) -> frozenset[str]:
    """Modules of selective recomputation that a model has."""
    found = frozenset(module for kind in kinds_in(model.every_kind) for module in kind.recomputes)
    if model.stream == "several":
        found |= {"mhc"}
    return found if model.moe_shared_expert_intermediate_size else found - {"shared_experts"}


def layers_with(counts: dict[str, int], holds: Callable[[Kind], bool]) -> int:
    """How many layers hold a kind of which something is true; `counts` says how many of each layer there are."""
    return sum(count for layer, count in counts.items() if any(map(holds, kinds_of(layer))))
