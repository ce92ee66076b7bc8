"""What a chunk receives from the stage before stays with the pipeline's schedule until its backward is over."""

from __future__ import annotations

from ..features.cuda_graphs import captures
from ..job.pipeline import Chunk
from ..modules.context import Context
from ..modules.norm import before
from ..tape.ops import Op, Unit
from .keys import Group


def first_held(c: Context, chunk: Chunk, groups: list[Group]) -> list[Group]:
    """The units of a chunk, the first one marked where what the chunk received may be kept by nothing in it.

    Norms and checkpoints keep that tensor themselves; a norm that casts it first (fp32_residual_connection) does not, nor a linear
    without a norm that quantizes it, nor a captured layer, which copies it into its static input.
    """
    t = c.training
    kept = c.residual_dtype == c.dtype and before(c) and (not captures(t) or t.cuda_graph_warmup_steps)
    if kept or chunk.embedding or not groups or groups[0][2] != "layer":
        return groups
    first, kinds, _ = groups[0]
    return [(first, kinds, "held"), *groups[1:]]


def held(unit: Unit) -> Unit:
    """A unit whose input stays until its backward is over.

    Source: Megatron-LM `megatron/core/pipeline_parallel/schedules.py` (input_tensors).
    """
    assert unit.entry is not None
    op = Op("input_tensors of the schedule", saves=(unit.entry,), calls=0, compiled=True)
    return unit._replace(items=(op, *unit.items))
