"""Hybrid models as Megatron-LM described them until February 2026: shares of layers instead of a pattern.

Source: NVIDIA/Megatron-LM `megatron/core/ssm/mamba_hybrid_layer_allocation.py` of the releases up to 0.15.
"""

from __future__ import annotations

from ...wording import LONGEST_SHOWN, dashed, plain, shown
from ..questions import Question
from .classes import known_spec
from .reading import Reading, Words

RATIOS = ("hybrid_attention_ratio", "hybrid_mlp_ratio")


def old_hybrid_layers(reading: Reading) -> None:
    """The pattern that --hybrid-attention-ratio and --hybrid-mlp-ratio spread over --num-layers; without them a hybrid spec has
    Mamba layers alone. A pattern that is given wins."""
    if reading.get("hybrid_layer_pattern") or reading.get("hybrid_override_pattern"):
        return
    flags = [name for name in RATIOS if name in reading.others]
    spec = reading.get("spec")
    layers = reading.number("num_layers")
    if not layers or not (flags or (spec is not None and known_spec(spec))):
        return
    attention, mlp = (_ratio(reading, name) for name in RATIOS)
    if attention + mlp > 1:
        reading.questions.append(Question("--hybrid-attention-ratio and --hybrid-mlp-ratio are more than 1 together"))
        return
    pattern = spread_layers(layers, attention, mlp)
    reading.changes["hybrid_layer_pattern"] = pattern
    what = " ".join(dashed(name) for name in flags) or "--spec without a pattern"
    reading.notes.append(f"{what}: read as --hybrid-layer-pattern {plain(pattern, LONGEST_SHOWN)}")


def spread_layers(count: int, attention_ratio: float, mlp_ratio: float) -> str:
    """One letter for each of `count` layers: attention evenly between Mamba layers, then MLPs in place of Mamba layers."""
    attention = round(count * attention_ratio)
    mamba = count - attention
    letters = _placed(["M"] * count, "*", mamba / (attention + 1))
    mlp = round(count * mlp_ratio)
    if mlp:
        letters = _placed(letters, "-", (mamba - mlp) / mlp)
    return "".join(letters)


def _placed(letters: list[str], letter: str, gap: float) -> list[str]:
    """The letters with `letter` in place of every Mamba layer that `gap` of them lie in front of."""
    found, left = list(letters), gap
    for at, one in enumerate(letters):
        if one != "M":
            continue
        if left < 0.5:
            found[at] = letter
            left += gap
        else:
            left -= 1
    return found


def _ratio(reading: Reading, name: str) -> float:
    words: Words = reading.others.get(name, ("0",))
    try:
        share = float(words[0]) if len(words) == 1 else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        flag = dashed(name)
        reading.questions.append(Question(f"{flag} takes a share from 0 to 1, not {shown(' '.join(words))}"))
        return 0.0
    return share
