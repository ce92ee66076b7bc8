"""What a tensor is, by the functions that asked for it: the part of a run's memory, and the tensor in our words.

`sites.csv` has the functions of Megatron-Core and TransformerEngine that allocate, each with the one that calls it where several do.
Rows "seen" stood in traces of the real classes of Megatron-Core 0.19.2 and TransformerEngine 2.20.2, others were read in their source.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ..tables import rows_beside
from .snapshot import Frames

LIBRARIES = ("megatron/core/", "megatron_fsdp/", "transformer_engine/", "flash_attn/", "deep_ep/")
"""Where functions of the training framework are, by their paths."""
BELOW = ("torch/", "python3", "lib/python", "<string>", "<frozen")
"""Paths of torch and of Python itself."""
NATIVE = "no Python frames: gradients of native operators, or older than the trace"
OTHER = "not ours"
NEAR = 3
"""Frames of the libraries behind the innermost, among which the caller is."""
DEEP = 4
"""Innermost frames of the libraries that are looked up."""


class Site(NamedTuple):
    """What a tensor is, and the line that asked for it."""

    part: str
    tensor: str
    file: str
    line: int
    function: str

    @property
    def where(self) -> str:
        """The line in short."""
        return f"{self.file}:{self.line} {self.function}" if self.file else ""


@cache
def sites() -> dict[str, list[tuple[str, str, str]]]:
    """By function: callers, each with the part and the tensor; one without a caller last."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in rows_beside(__file__, "sites.csv"):
        found.setdefault(row["frame"], []).append((row["caller"], row["part"], row["tensor"]))
    return {frame: sorted(rows, key=lambda row: not row[0]) for frame, rows in found.items()}


class Names:
    """Names of the tensors of a snapshot: equal stacks are named once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Frames, Site]] = {}

    def of(self, frames: Frames) -> Site:
        """What asked for a tensor."""
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = frames, named(frames)
        return known[1]


class _Frame(NamedTuple):
    file: str
    function: str
    line: int

    @property
    def library(self) -> str:
        """The function by its path in a library, or nothing."""
        for library in LIBRARIES:
            place = self.file.rfind(library)
            if place >= 0:
                return f"{self.file[place:]}:{self.function}"
        return ""


def named(frames: Frames) -> Site:
    """What asked for a tensor: the innermost function of Megatron-Core or TransformerEngine that is known, else the user's own line."""
    stack = [
        _Frame(
            str(one.get("filename", "")), str(one.get("name", "")), line if type(line := one.get("line")) is int else 0
        )
        for one in frames
        if isinstance(one, dict) and str(one.get("filename", "")).endswith(".py")
    ]
    if not stack:
        return Site("unknown", NATIVE, "", 0, "")
    inside = [one for one in stack if one.library]
    for at, one in enumerate(inside[:DEEP]):
        behind = {other.library for other in inside[at + 1 : at + 1 + NEAR]}
        for caller, part, tensor in sites().get(one.library, ()):
            if not caller or caller in behind:
                return Site(part, tensor, _short(one), one.line, one.function)
    own = next((one for one in stack if not one.library and not any(word in one.file for word in BELOW)), None)
    if inside and (own is None or stack.index(inside[0]) < stack.index(own)):
        return Site("unknown", "a function that is not known", _short(inside[0]), inside[0].line, inside[0].function)
    if own is not None:
        return Site(OTHER, "of your own code", own.file, own.line, own.function)
    return Site("unknown", "torch itself", _short(stack[0]), stack[0].line, stack[0].function)


def _short(frame: _Frame) -> str:
    """The path of a file within its library."""
    path = frame.library.rsplit(":", 1)[0]
    return path or "/".join(frame.file.split("/")[-2:])
