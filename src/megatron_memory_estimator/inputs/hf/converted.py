"""What a family's mapping gives."""

from __future__ import annotations

from typing import Any, NamedTuple


class Converted(NamedTuple):
    """Settings in Megatron's names; parameters that Megatron-Core's layers do not have (signed, by name); why memory is
    refused, if it is; warnings."""

    settings: dict[str, Any]
    extra: tuple[tuple[str, int], ...] = ()
    refusal: str = ""
    warnings: tuple[str, ...] = ()
