"""Layers of a hybrid model by ratios, as scripts until 2025 say them: --hybrid-attention-ratio and --hybrid-mlp-ratio.

Source: Megatron-LM `megatron/core/ssm/mamba_hybrid_layer_allocation.py` of those releases (core_v0.15): attention evenly spaced between
Mamba layers, then MLPs evenly among what is left of those.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..questions import Question
from .reading import Reading, Words

MAMBA, ATTENTION, MLP = "M", "*", "-"
HALF = 0.5
"""A layer is placed as soon as less than half a layer is left before it."""


def pattern(layers: int, attention: float, mlp: float) -> str:
    """The hybrid layer pattern of so many layers with these shares of attention and of MLPs."""
    kinds = [MAMBA] * layers
    count = round(layers * attention)
    _spread(kinds, range(layers), (layers - count) / (count + 1), ATTENTION)
    others = round(layers * mlp)
    if others:
        free = [at for at, kind in enumerate(kinds) if kind == MAMBA]
        _spread(kinds, free, (layers - count - others) / others, MLP)
    return "".join(kinds)


def _spread(kinds: list[str], places: Sequence[int], between: float, symbol: str) -> None:
    """Puts a symbol at some of the places, with so many others between two of them on average."""
    left = between
    for at in places:
        if left < HALF:
            kinds[at] = symbol
            left += between
        else:
            left -= 1


def hybrid_ratios(reading: Reading, words: Words) -> None:
    """Both ratios as a pattern; a pattern that is given wins, as in Megatron-LM."""
    if reading.get("hybrid_layer_pattern") or reading.get("hybrid_override_pattern"):
        return
    found: dict[str, float] = {}
    for flag in ("hybrid_attention_ratio", "hybrid_mlp_ratio"):
        given = reading.others.get(flag, ("0",))
        try:
            found[flag] = float(given[0]) if len(given) == 1 else -1.0
        except ValueError:
            found[flag] = -1.0
        if not 0 <= found[flag] <= 1:
            reading.questions.append(Question(f"--{flag.replace('_', '-')} takes a number from 0 to 1"))
            return
    layers = reading.number("num_layers")
    if sum(found.values()) > 1:
        reading.questions.append(Question("--hybrid-attention-ratio and --hybrid-mlp-ratio are together above 1"))
    elif layers:
        made = pattern(min(layers, 10_000), found["hybrid_attention_ratio"], found["hybrid_mlp_ratio"])
        reading.changes["hybrid_layer_pattern"] = made
        reading.is_read_as("hybrid_attention_ratio and --hybrid-mlp-ratio", f"--hybrid-layer-pattern '{made}'")
