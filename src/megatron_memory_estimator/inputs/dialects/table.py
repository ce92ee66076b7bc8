"""Every dialect, in the order in which a run is tried; Megatron-LM's own is what is left."""

from __future__ import annotations

from importlib import import_module

from .run import Dialect, Run

MODULES = (
    "swift",
    "llama_factory",
    "verl",
    "nemo_rl",
    "primus",
    "miles",
    "slime",
    "flagscale",
    "roll",
    "areal",
    "loongforge",
    "skyrl",
    "chatlearn",
    "bridge",
)
"""Modules of this package, each with a `DIALECT`."""


def dialects() -> tuple[Dialect, ...]:
    """All dialects."""
    return tuple(import_module(f".{name}", __package__).DIALECT for name in MODULES)


def dialect_of(run: Run) -> Dialect | None:
    """The dialect of a run, or None for Megatron-LM's own."""
    return next((one for one in dialects() if one.knows(run)), None)
