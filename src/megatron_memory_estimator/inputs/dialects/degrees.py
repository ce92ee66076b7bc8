"""Degrees of parallelism that the caller gives over a run's file: dialects derive other settings from them, so they stand in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .run import Dialect, Run

DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


def with_degrees(dialect: Dialect, run: Run, given: Mapping[str, Any]) -> Run:
    """The run as if its file had the degrees that the caller gives; `given` are settings by Megatron's names.

    Sequence parallelism, tokens of a microbatch and the global batch follow from degrees in some frameworks.
    """
    degrees = {name: given[name] for name in DEGREES if type(given.get(name)) is int}
    if not degrees or dialect.degrees is None:
        return run
    place = dialect.degrees(run)
    if run.document is not None:
        return dataclasses.replace(run, document=_changed(run.document, place.split(".") if place else [], degrees))
    if dialect.takes_flags:
        words = [word for name, value in degrees.items() for word in (f"--{name}", str(value))]
    else:
        words = [f"++{place}.{name}={value}" for name, value in degrees.items()]
    return dataclasses.replace(run, words=(*run.words, *words))


def _changed(document: Mapping[Any, Any], path: list[str], values: Mapping[str, Any]) -> dict[Any, Any]:
    """The document with values in the mapping at a path."""
    if not path:
        return {**document, **values}
    below = document.get(path[0])
    return {**document, path[0]: _changed(below if isinstance(below, Mapping) else {}, path[1:], values)}
