"""The architecture of a model in TransformerConfig's names."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """Its fields, without those of parts that the model does not have."""
    from ...report.document import model_section

    return model_section(request.job)["config"]
