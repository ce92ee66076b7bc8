"""All-to-all overlap: the forward of one microbatch and the backward of another, layer by layer at the same time.

Phases: the embedding; the backward of what follows the layers; forward layer i beside backward layer n - 1 - i; the forward of
what follows the layers; last, the backward of the embedding. Within a pair of layers the compute stream alternates: attention
forward, experts backward, experts forward, attention backward; while one runs the other waits. Both keep their inputs.

Source: Megatron-LM `megatron/core/models/common/model_chunk_schedule_plan.py` (TransformerModelChunkSchedulePlan.run) and
`megatron/core/pipeline_parallel/combined_1f1b.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from ..tape.ops import EVERYTHING, Part
from .chunks import ChunkPlan, Moment


class Pair(NamedTuple):
    """Moments of the forward's and of the backward's microbatch. None: nothing of it is alive, or (`done`) the forward is
    over and keeps what any microbatch in flight keeps."""

    forward: Moment | None
    backward: Moment | None
    done: bool = False


def combined(forward: ChunkPlan, backward: ChunkPlan) -> tuple[Pair, ...]:
    """The phases of a combined step; chunks of the same units share them."""
    key = "beside", id(backward.extremes)
    if key not in forward.extremes:  # with the other chunk's extremes, so that their identity stays theirs
        forward.extremes[key] = backward.extremes, tuple(_phases(forward, backward))
    found: tuple[Pair, ...] = forward.extremes[key][1]
    return found


def _phases(forward: ChunkPlan, backward: ChunkPlan) -> Iterator[Pair]:
    head, layers, tail = _parts(forward)
    last_head, last_layers, last_tail = _parts(backward)
    start = _waiting(forward, head[0], 0) if head else None
    waiting = _waiting(backward, last_head[0], 0) if last_head else None
    if forward.uncut:
        begun = last_tail[-1:] or [index for index, _ in last_layers[-1:]] or last_head[:1]
        yield Pair(forward.cutting, _waiting(backward, begun[0], -1))
    if head and last_tail:
        yield Pair(forward.largest("F", head[0], 0), _waiting(backward, last_tail[-1], 0))
    yield from (Pair(start, backward.largest("B", run, -1)) for run in last_tail)
    done = _waiting(forward, *layers[-1]) if layers else start
    for ahead, behind in zip_longest(layers, reversed(last_layers)):
        if ahead and behind:
            yield from _interleaved(forward, backward, ahead, behind)
        else:
            yield Pair(
                forward.largest("F", *ahead) if ahead else done,
                backward.largest("B", *behind) if behind else waiting,
            )
    yield from (Pair(forward.largest("F", run, -1), waiting) for run in tail)
    if last_head:
        yield Pair(None, backward.largest("B", last_head[0], 0), done=True)


AFTER_DISPATCH: frozenset[Part] = frozenset(
    ("mlp_norm", "mlp", "mlp_residual", "dispatch", "expert_fc1", "moe_act", "experts", "combine", "latent_up", "shared_experts_add",
     "moe_residual")
)  # fmt: skip
"""Parts of the nodes after a layer's dispatch, and the MLP of a dense layer, which is a node of its own.

Source: Megatron-LM `megatron/core/models/gpt/fine_grained_callables.py` (build_transformer_layer_callables)."""
ATTENTION = EVERYTHING - AFTER_DISPATCH - {""}
"""Parts of its attention node: all others."""


def _interleaved(
    forward: ChunkPlan, backward: ChunkPlan, ahead: tuple[int, int], behind: tuple[int, int]
) -> Iterator[Pair]:
    """Attention forward beside a backward that has begun, and so on in the order of the compute stream."""
    attention, experts = (forward.moments_of("F", *ahead, part) for part in (ATTENTION, AFTER_DISPATCH))
    attention_back, experts_back = (backward.moments_of("B", *behind, part) for part in (ATTENTION, AFTER_DISPATCH))
    start, end = _waiting(backward, *behind), _waiting(forward, *ahead)
    yield Pair(attention[1] if attention else None, experts_back[0] if experts_back else start)
    if experts_back:
        yield Pair(attention[2] if attention else None, experts_back[1])
    if experts:
        yield Pair(experts[1], attention_back[0] if attention_back else start)
    if attention_back:
        yield Pair(end, attention_back[1])


def _waiting(plan: ChunkPlan, run: int, copy: int) -> Moment:
    """A microbatch that waits: what it keeps up to a copy of a run, and that copy's output or the gradient of it."""
    trace = plan.runs[run].trace  # nothing of a unit is gathered while it waits
    return Moment(
        "B", run, len(trace.forward), plan.prefix(run, copy) + plan.batch_bytes + trace.backward[0].nbytes, copy
    )


def _parts(plan: ChunkPlan) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Runs before the layers, (run, copy) of each layer and MTP depth, and runs after them."""
    head, layers, tail = [], [], []
    for index, run in enumerate(plan.runs):
        if run.unit.name == "embedding":
            head.append(index)
        elif run.unit.name in ("final_layernorm", "output"):
            tail.append(index)
        else:
            layers += [(index, copy) for copy in range(run.copies)]
    return head, layers, tail
