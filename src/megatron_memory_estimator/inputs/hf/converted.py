"""What a family's mapping gives."""

from __future__ import annotations

from typing import Any, NamedTuple

UNFUSED = ("bias_activation_fusion", "apply_rope_fusion")
"""Fusions that a provider of Megatron-Bridge leaves off where it does not turn them on (`models/gpt_provider.py`)."""


class Provider(NamedTuple):
    """The class of Megatron-Bridge that builds a model which Megatron-LM alone does not train: its name, and what only it has."""

    name: str
    what: str

    @property
    def warning(self) -> str:
        """Which code the figures are true of."""
        said = f"{self.what}: not in Megatron-LM's own models; the figures are those of Megatron-Bridge's {self.name}"
        return f"{said}, which leaves {' and '.join(UNFUSED)} off"


class Converted(NamedTuple):
    """Settings in Megatron's names; parameters that Megatron-Core's layers do not have (signed, by name); why memory is
    refused, if it is; warnings; who builds it, if not Megatron-LM."""

    settings: dict[str, Any]
    extra: tuple[tuple[str, int], ...] = ()
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    provider: Provider | None = None
