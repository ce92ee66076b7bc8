"""How many more rows the busiest expert-parallel rank gets than balanced routing would give it (dropless MoE).

The factors are means over the layers in flight, for 4 experts on a rank. More experts on a rank average out (the excess scales
with the square root of 4 over their number), a single one does not (1.3 times the excess). Sources: measured runs of
NVIDIA/Megatron-LM (Nemotron 1.55 in its first steps, DeepSeek-V3 proxy 1.12 over 9,500 steps) and NVIDIA-NeMo/Megatron-Bridge
(Nemotron-3 Nano, 18 % of the total in iteration 2); arXiv 2408.15664, 2605.20982; the values between them are judgement.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..job.choices import ROUTING
from ..job.training import Training
from ..tape.tensor import chosen

ALONE = 1.3
"""The excess of a single expert on a rank, beside that of four."""
EXPERTS = 4
"""Experts on a rank that the factors of a phase hold for."""


class Factors(NamedTuple):
    """Rows of the busiest rank relative to balanced routing; of arrays of layouts one of each."""

    low: Any
    typical: Any
    high: Any


def factors(training: Training, experts_per_rank: Any, most: Any) -> Factors:
    """The factors of the training's phase, not above `most`.

    Where all layers or their experts are recomputed, the rows of one layer are live and nothing averages: the typical factor is the
    high one. Block recomputation leaves layers whose rows are kept, over which they average.
    """
    averaged = chosen(experts_per_rank > EXPERTS, (EXPERTS / experts_per_rank) ** 0.5, 1.0)
    scale = chosen(experts_per_rank == 1, ALONE, averaged)
    low, typical, high = (_below(most, 1 + (factor - 1) * scale) for factor in ROUTING[training.routing_phase])
    one_layer = training.recomputes_layers() or training.recomputes("moe")
    return Factors(low, high if one_layer else typical, high)


def _below(most: Any, factor: Any) -> Any:
    return chosen(factor < most, factor, most)
