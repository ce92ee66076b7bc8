"""Why a figure is what it is, in words and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..evidence.why import NAMES, Why
from ..wording import any_of
from .quantities import document, exactly, gib, table

SCHEMA = "megatron-memory-why/1"
MOST = 5
"""Causes that are listed."""


def sentence(found: Why) -> str:
    """What the figure is beside what is expected."""
    figure = f"{gib(found.measured)} GiB"
    expected = f"{NAMES[found.kind]} on stage {found.pp_rank}: {exactly(found.expected)} GiB"
    if not found.more:
        return f"{figure} is expected of {expected}."
    much = f"{gib(abs(found.more))} GiB {'more' if found.more > 0 else 'less'}"
    other = f" It is expected of {any_of(NAMES[one] for one in found.others)}." if found.others else ""
    return f"{figure} is {much} than expected of {expected}.{other}"


def why_lines(found: Why) -> Iterator[str]:
    """The answer, the causes and how to tell them apart."""
    yield sentence(found)
    for number, cause in enumerate(found.causes[:MOST], 1):
        yield f"{number}. {cause.says}: {exactly(cause.figure)} GiB ({cause.check})"
    if found.more and found.tokens is not None:
        yield f"Or a microbatch has {found.tokens:.2f} times the tokens: print the shape of its tokens in forward_step."
    if found.more > 0 and found.kind == "nvidia-smi":
        yield "Or another process is on the GPU: nvidia-smi --query-compute-apps=pid,used_memory --format=csv."
    if found.more:
        yield "A memory snapshot tells all of them apart: megatron-memory snapshot snapshot.pickle, with the same run."


WHY = table("why", {"schema": lambda _: SCHEMA, "sentence": sentence})


def why_document(found: Why) -> dict[str, Any]:
    """Schema `megatron-memory-why/1`, described in docs/reference/json.md."""
    return document(WHY, found)
