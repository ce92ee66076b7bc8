"""What tells the units of a context apart: equal keys are declared and traced once."""

from __future__ import annotations

from typing import Literal

from ..modules.context import Context
from ..modules.kinds import kinds_of

LayerKey = tuple[str, int, bool]
"""What tells layers apart: the kind, the index in the pattern of cp_comm_type, and whether it stays in 16 bits."""
Form = Literal["layer", "checkpoint", "group", "received", "banked", "held", "held checkpoint"]
"""What a unit is: a layer, layers under a full-recompute checkpoint, or layers whose hyper-connections are recomputed together; one with
a bank of attention residuals, received or in front of a checkpoint; a layer whose input the schedule holds, or would."""
Group = tuple[int, tuple["LayerKey", ...], "Form"]
"""The first layer of a unit, the kinds of its layers, what it is."""
UnitKey = tuple[tuple[LayerKey, ...], Form]
"""The kinds of the layers of a unit, and what it is."""
OUTSIDE = ("towers", "embedding", "final_norm", "mtp", "output", "output_behind_mtp")
PartKey = tuple[str, bool]
"""A unit outside the decoder layers: towers, embedding (True: no other stage has a copy), final_norm, mtp (True: with an embedding of its
own) or output (True: it uses the embedding's weight), behind MTP on one stage where MTP's embedding is the copy that is tied."""


def routed(key: object) -> bool:
    """Whether a declaration or a unit has routed experts: a layer's kind, the kinds of a unit's layers, or a part outside them."""
    assert isinstance(key, tuple)
    if isinstance(key[0], tuple):  # the kinds of several layers
        return any(routed(kind) for kind in key[0])
    if key[0] in OUTSIDE:
        return bool(key[0] == "mtp")
    return any(kind.routed for kind in kinds_of(key[0]))


def stays_in_bf16(c: Context, layer: int) -> bool:
    """The first and last layers with first_last_layers_bf16 (Megatron-LM `fp8_utils.py`, is_first_last_bf16_layer)."""
    t = c.training
    if not (t.low_precision and t.first_last_layers_bf16):
        return False
    return layer < t.num_layers_at_start_in_bf16 or layer >= c.model.num_layers - t.num_layers_at_end_in_bf16
