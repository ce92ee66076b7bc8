"""The stages of a pipeline that a search looks at: one for each that is different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...job.layout import Layout
from ...job.model import Model
from ...job.pipeline import Chunk, build_pipeline
from ...rank.declare import Declarer


def different_stages(
    declarer: Declarer, model: Model, layout: Layout
) -> list[tuple[tuple[Chunk, ...], tuple[int, ...]]]:
    """The chunks of the stages of a pipeline, and the ranks that each stands for. A stage between the first and the last that holds
    the same layers as one before it has fewer microbatches in flight and never more memory: it is counted with that one."""
    found: dict[Any, tuple[tuple[Chunk, ...], tuple[int, ...]]] = {}
    for chunks in build_pipeline(model, layout).chunks:
        at = chunks[0].pp_rank
        end = at if at in (0, layout.pp - 1) else None
        key = (end, *((*map(declarer.kind, c.layers), c.embedding, c.final_norm, c.mtp, c.output) for c in chunks))
        first, ranks = found.get(key, (chunks, ()))
        found[key] = first, (*ranks, at)
    return list(found.values())


def stands(stages: Sequence[tuple[object, tuple[int, ...]]]) -> list[int]:
    """Which of `different_stages` stands for each rank of the pipeline."""
    return [index for _, index in sorted((rank, index) for index, (_, ranks) in enumerate(stages) for rank in ranks)]
