"""What a training recomputes: the questions that declarations ask."""

from __future__ import annotations

from typing import TYPE_CHECKING


class Recomputing:
    """Answers from the settings of recomputation."""

    if TYPE_CHECKING:
        recompute_granularity: str | None
        recompute_method: str | None
        recompute_num_layers: int | None
        recompute_modules: tuple[str, ...] | None

    def recomputes_layers(self) -> bool:
        """Whether full recomputation covers all layers, uniformly."""
        return self.recompute_granularity == "full" and self.recompute_method != "block"

    def recomputes_selectively(self) -> bool:
        """Whether recomputation is selective."""
        return self.recompute_granularity == "selective"

    def recomputed_together(self) -> int:
        """Layers of a checkpoint of full recomputation, or (block) layers that have one; 0 without."""
        return max(self.recompute_num_layers or 1, 1) if self.recompute_granularity == "full" else 0

    def recomputes_whole_layers(self) -> bool:
        """Whether full recomputation covers some layers, or all."""
        return self.recompute_granularity == "full"

    def recomputes(self, module: str) -> bool:
        """Whether selective recomputation covers the module."""
        return module in self.recomputed_modules

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """The modules of selective recomputation, which may be none (Megatron-LM `transformer_config.py`: None is core_attn)."""
        if self.recompute_granularity != "selective":
            return ()
        return ("core_attn",) if self.recompute_modules is None else self.recompute_modules
