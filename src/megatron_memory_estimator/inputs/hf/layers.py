"""Layers that differ, as variants of a model: what every layer changes, by name."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...job.variants import BASE
from ...wording import shown
from .fields import Fields

SLIDING, FULL = "sliding_attention", "full_attention"
MTP = "mtp"
"""The variant of an MTP layer."""
BEHIND = "mtp_behind"
"""The variant of an MTP layer on a later stage than the first."""
WORDS = {"sliding_window": "sliding", "position_embedding_type": "no_rope", "activation_func_clamp_value": "clamped"}
"""What settings that a layer changes are called in the layer's name."""


def layer_types(f: Fields, default: str = FULL) -> list[str]:
    """Attention of every layer. Raises ConfigError for a kind that is neither full nor sliding."""
    layers = f.count("num_hidden_layers")
    types = f.items("layer_types") or [default] * layers
    wrong = next((one for one in types if one not in (SLIDING, FULL)), None)
    if wrong is not None:
        raise ConfigError(f"layer_types in config.json has {shown(wrong)}; {FULL} and {SLIDING} are known")
    return types


def clamps(f: Fields, name: str, layers: int) -> list[float | None]:
    """The clamp of every layer's activation from a list, in which nothing and 0 mean none."""
    listed = f.items(name)
    if any(isinstance(one, bool) or not isinstance(one, int | float | None) or (one or 0) < 0 for one in listed):
        raise ConfigError(f"{name} in config.json must be a list of numbers of at least 0")
    found = [float(one) if one else None for one in listed]
    return (found + [None] * layers)[:layers]


def clamp(limit: float | None, name: str = "activation_func_clamp_value") -> dict[str, Any]:
    """The setting of a clamp, where there is one."""
    return {} if limit is None else {name: limit}


def variants(
    layers: list[dict[str, Any]], mtp: dict[str, Any] | None = None, behind: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What every layer changes, and what an MTP layer does, `behind` on a later stage, as variants; nothing is changed by a layer without
    changes."""
    known: dict[str, tuple[tuple[str, Any], ...]] = {}
    names = [_named(known, own) for own in layers]
    found: dict[str, Any] = {"layer_variants": tuple(names)} if known else {}
    if mtp is not None:
        known[MTP] = tuple(mtp.items())
        found["mtp_layer_variant"] = MTP
    if behind is not None:
        known[BEHIND] = tuple(behind.items())
        found["mtp_layer_variant_behind"] = BEHIND
    return {**found, "variants": tuple(known.items())} if known else {}


def _named(known: dict[str, tuple[tuple[str, Any], ...]], own: dict[str, Any]) -> str:
    """The name of a layer's changes: of those that they are called by, with a number where others have it."""
    if not own:
        return BASE
    changes = tuple(own.items())
    name = next((name for name, other in known.items() if other == changes), "")
    if not name:
        name = stem = "_".join(word for key, word in WORDS.items() if key in own) or "other"
        count = 1
        while name in known:
            count += 1
            name = f"{stem}_{count}"
        known[name] = changes
    return name
