"""What is largest in a stage's memory at a moment: by parameter, layer, module or tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..estimator import Stage
from ..job.choices import By
from ..rank.parameters import parameters_of
from ..rank.rank import PARTS, Row
from ..rank.rows import AT_REST
from ..states.state import STATE_PARTS
from .quantities import gib

UNIT = re.compile(r"^((?:chunk \d+\.)?(?:layers\.[0-9-]+|embedding|final_layernorm|mtp|output|batch|pipeline))\.")
"""The unit that a tensor belongs to, at the beginning of its name."""
OUTSIDE = {
    "output_layer.": "output",
    "decoder.final_layernorm.": "final_layernorm",
    "vision_": "towers",
    "audio_": "towers",
}
"""The unit of parameters that are of no layer, by the beginning of their names."""


class Share(NamedTuple):
    """A part of a stage's memory: its name, the shape and the number of its tensors where they are equal, and bytes by part of the peak."""

    name: str
    local_shape: tuple[int, ...]
    copies: int
    parts: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def said(self) -> str:
        """Its parts with their GiB; a single part alone."""
        if len(self.parts) == 1:
            return next(iter(self.parts))
        return ", ".join(f"{part} {gib(self.parts[part])}" for part in PARTS if part in self.parts)

    def record(self) -> dict[str, Any]:
        """As a row of a table of plain values."""
        parts = {f"{part}_bytes": self.parts.get(part, 0) for part in PARTS}
        shape = "x".join(map(str, self.local_shape))
        return {"name": self.name, "local_shape": shape, "count": self.copies, "bytes": self.nbytes, **parts}


def largest(stage: Stage, at: str, by: By) -> list[Share]:
    """Everything that a stage holds at a moment, the largest first; the bytes add up to what is allocated.

    State is its parameters', but for what is no parameter's (`rank.parameters`); by tensor it is the buffers that Megatron keeps.
    """
    _, _, rows = stage.at(at)
    if by == "tensor":
        found = [Share(row.name, row.local_shape, row.copies, {row.part: row.nbytes}) for row in rows]
    else:
        found = list(_by_parameter(stage, at, rows))
        if by != "parameter":
            found = list(_together(found, _module if by == "module" else _unit))
    return sorted(found, key=lambda one: -one.nbytes)


def _by_parameter(stage: Stage, at: str, rows: Iterable[Row]) -> Iterator[Share]:
    """Parameters with their state, and every other tensor."""
    since = stage.peak.candidate.since if at == "peak" else AT_REST
    parameters, others = parameters_of(stage.rank, since)
    for one in parameters:
        parts: dict[str, int] = {part: getattr(one, part) for part in STATE_PARTS if getattr(one, part)}
        yield Share(one.name, one.local_shape, one.copies, parts)
    names = {state.name: state.part for state in stage.rank.states}
    yield from (Share(name, (), 1, {names[name]: nbytes}) for name, nbytes in others)
    held = {state.name for state in stage.rank.states if state.since in since}
    for row in rows:
        if row.name not in held:
            yield Share(row.name, row.local_shape, row.copies, {row.part: row.nbytes})


def _unit(name: str) -> str:
    """The layers, or the part outside of layers, that a tensor is of."""
    found = UNIT.match(f"{name}.")
    if found:
        return found.group(1)
    return next((unit for start, unit in OUTSIDE.items() if name.startswith(start)), "outside of layers")


def _module(name: str) -> str:
    """The module that a tensor is of, in whatever layers."""
    found = UNIT.match(name)
    inside = name[found.end() :] if found else name
    module = inside.rpartition(".")[0]
    return module or (found.group(1) if found and not found.group(1).startswith(("layers", "chunk")) else inside)


def _together(shares: Iterable[Share], key: Any) -> Iterator[Share]:
    """Shares with the same key as one."""
    found: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = {}
    for one in shares:
        parts, name = found.setdefault(key(one.name), {}), key(one.name)
        counts[name] = counts.get(name, 0) + one.copies
        for part, nbytes in one.parts.items():
            parts[part] = parts.get(part, 0) + nbytes
    yield from (Share(name, (), counts[name], parts) for name, parts in found.items())


def headline(stage: Stage, at: str, by: By = "parameter") -> str:
    """What is largest, in a sentence."""
    title, total, _ = stage.at(at)
    first = largest(stage, at, by)[0]
    return (
        f"Largest on stage {stage.pp_rank} ({title}): {first.name}, {gib(first.nbytes)} of {gib(total)} GiB "
        f"({first.nbytes / total:.0%}): {first.said}."
    )
