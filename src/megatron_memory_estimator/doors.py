"""How jobs are made and what results show of themselves, by name: each is found where it stands when it is first asked for.

A job is made by readers, and a result is shown by reports: both stand above the classes that users hold in their hands. The methods of
these classes find them here, so that no file imports one that stands above it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

DOORS = {
    "job from hf": "inputs.hf.load:job_from_hf",
    "job from config": "inputs.resolve:job_from_config",
    "job from megatron args": "inputs.megatron.job:job_from_args",
    "job from file": "inputs.runs.files:job_from_file",
    "job from bridge": "inputs.bridge_config:job_from_bridge",
    "estimate as document": "report.document:estimate_document",
    "estimate as records": "report.views:records",
    "estimate as text": "report.views:text",
    "estimate as html": "report.views:html",
    "estimate as figure": "report.views:figure",
    "timeline of estimate": "timeline.timeline:timeline",
    "snapshot of estimate": "timeline.snapshot:snapshot",
    "throughput of estimate": "planner.advise:step_time",
    "card as text": "report.card:card_lines",
    "card as records": "report.card:card_records",
    "plans as records": "report.plan_views:records",
    "plans as html": "report.plan_views:html",
    "plans as figure": "report.plan_views:figure",
    "advice as records": "report.advice:advice_records",
    "advice as html": "report.advice:advice_html",
}
"""The function behind each door, as `module:name`."""


def door(name: str) -> Callable[..., Any]:
    """The function behind a door; its module is imported now."""
    module, _, function = DOORS[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(f".{module}", __package__), function)
    return found
