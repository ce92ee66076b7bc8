"""How to launch a run: as Megatron-LM arguments, a YAML file of them, and Megatron-Bridge overrides."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The arguments of a run that `estimate` takes, and settings that no argument says."""
    from ...accept import accepted
    from ...planner.launch import launch_document

    job = request.job
    accepted(job)
    return launch_document(job)
