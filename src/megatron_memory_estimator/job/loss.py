"""How the loss is taken of the logits, which is often where a rank peaks.

Sources: Megatron-LM `megatron/core/model_parallel_config.py` (fused cross entropy); the losses of frameworks: `modules/log_probs.py`.
"""

from __future__ import annotations

from ..dataclass import dataclass
from .choices import LOSSES
from .settings import setting


@dataclass(frozen=True)
class Loss:
    """Settings of the loss; they are the training's."""

    cross_entropy_loss_fusion: bool = setting(False, "fused cross entropy")
    cross_entropy_fusion_impl: str = setting("native", "which fused cross entropy", choices=("native", "te"))
    loss_function: str = setting(
        "cross_entropy",
        "what the loss makes of the logits: Megatron-LM's, or a framework's log-probabilities",
        choices=LOSSES,
    )
    loss_entropy: bool = setting(False, "the loss of a framework takes the entropy too, with gradient")
    loss_temperature: bool = setting(False, "logits are divided by a temperature that is not 1")
    loss_chunk_size: int | None = setting(
        None, "tokens of which a framework's loss has fp32 logits at a time; default: all"
    )
