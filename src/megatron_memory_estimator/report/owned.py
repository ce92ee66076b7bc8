"""Which whole parameters a rank owns under the layer-wise optimizer, as `explain` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ..rank.rank import Rank
from ..states.buffers import Buffer


def owned_layers(rank: Rank, buffer: Buffer) -> dict[str, list[int | None]] | None:
    """The parameters of a buffer that the rank owns: by name the layer of each, None outside of the decoder; None where none is whole."""
    if not buffer.dealt:
        return None
    runs = rank.plans[buffer.chunk].registered
    found: dict[str, list[int | None]] = {}
    for item in sorted(buffer.owns, key=lambda item: (-item.numel, item.name, item.run, item.copy)):
        first = runs[item.run].first_layer
        found.setdefault(item.name, []).append(None if first < 0 else first + item.copy)
    return found


def owned_lines(rank: Rank) -> Iterator[str]:
    """A paragraph of every buffer whose parameters are dealt whole; nothing where there is none."""
    for buffer in rank.buffers:
        found = owned_layers(rank, buffer)
        if found is None:
            continue
        where = f" chunk {buffer.chunk}" if len(rank.plans) > 1 else ""
        yield f"Of {buffer.group}{where}, data-parallel {buffer.share}:"
        for name, layers in found.items():
            yield f"  {name}{_layers(layers)}"


def _layers(layers: list[int | None]) -> str:
    """`: layers 0-3, 7`, with how many of each where it is more than one; "" outside of the decoder."""
    count = sorted(Counter(layer for layer in layers if layer is not None).items())
    if not count:
        return ""
    spans = []
    for (_, each), members in groupby(enumerate(count), key=lambda at: (at[1][0] - at[0], at[1][1])):
        found = [layer for _, (layer, _) in members]
        span = str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
        spans.append(span if each == 1 else f"{span} ({each} each)")
    return f": layer{'' if len(count) == 1 else 's'} {', '.join(spans)}"


def owned_section(rank: Rank) -> list[dict[str, Any]]:
    """The same in JSON: an object per buffer whose parameters are dealt whole."""
    return [
        {"chunk": b.chunk, "group": b.group, "data_parallel_rank": b.owner, "parameters": owned_layers(rank, b)}
        for b in rank.buffers
        if b.dealt
    ]
