"""What a family's mapping gives."""

from __future__ import annotations

from typing import Any, NamedTuple


def built_by(provider: str, what: str) -> str:
    """The warning that Megatron-LM alone does not train a model, and which class of Megatron-Bridge does."""
    return f"{what}: not in Megatron-LM's own models; the figures are those of Megatron-Bridge's {provider}"


class Converted(NamedTuple):
    """Settings in Megatron's names; parameters that Megatron-Core's layers do not have (signed, by name); why memory is
    refused, if it is; warnings."""

    settings: dict[str, Any]
    extra: tuple[tuple[str, int], ...] = ()
    refusal: str = ""
    warnings: tuple[str, ...] = ()
