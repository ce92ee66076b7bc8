"""The GPUs that runs are judged against, or those with a word in their names."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The facts of GPUs."""
    from ...report.catalogue import gpu_facts

    return gpu_facts(request.get("gpu", ""))
