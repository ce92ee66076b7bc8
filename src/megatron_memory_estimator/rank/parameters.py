"""Model state by parameter: the weights, gradients and optimizer state of a rank, which Megatron keeps in flat buffers.

A buffer's bytes are its parameters' in proportion to their elements (Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`). A
shard of the distributed optimizer begins and ends inside a parameter, so that a data-parallel rank has its part of every one on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..job.training import Training
from ..states.buffers import Buffer, belongs, by_layout, is_muon_managed
from ..states.kept import Since
from ..states.state import STATE_PARTS, State, StatePart, is_second
from ..tape.tensor import Param
from .chunks import ChunkPlan
from .rank import Rank


class Parameter(NamedTuple):
    """A parameter, `copies` times, with the bytes of all copies. `formula` and `local_shape` are of one of them."""

    name: str
    formula: str
    local_shape: tuple[int, ...]
    copies: int
    weights: int
    gradients: int
    optimizer: int

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept of it."""
        return self.weights + self.gradients + self.optimizer


def parameters_of(rank: Rank, since: Collection[Since]) -> tuple[list[Parameter], list[tuple[str, int]]]:
    """The parameters with their state that exists since one of the given moments, and what is no parameter's, by name and bytes.

    Both together are the state's bytes. No parameter's are the padding of buffers, models beside the policy, and the optimizer state of
    parameters that are dealt whole, of which a rank has its own.
    """
    t = rank.context.training
    entries = [one for plan in rank.plans for one in _entries(t, plan, rank.buffers)]
    members: dict[tuple[int, str], list[_Entry]] = defaultdict(list)
    for one in entries:
        members[one.chunk, one.group].append(one)
    buffers = {(buffer.chunk, buffer.group): buffer for buffer in rank.buffers}
    found = {one: dict.fromkeys(STATE_PARTS, 0) for one in entries}
    others: list[tuple[str, int]] = []
    for state in (one for one in rank.states if one.since in since):
        left, place = state.nbytes, (state.chunk, state.group)
        for one, nbytes in _shares(state, members[place], buffers.get(place)):
            found[one][state.part] += nbytes
            left -= nbytes
        if left:
            others.append((state.name, left))
    return sorted((one.row(parts) for one, parts in found.items()), key=lambda one: -one.nbytes), others


class _Entry(NamedTuple):
    """A parameter of so many equal layers of a chunk, in the buffer of a group; the name tells it from every other."""

    name: str
    chunk: int
    group: str
    param: Param
    layers: int

    @property
    def numel(self) -> int:
        return self.param.numel * self.layers

    def row(self, parts: dict[StatePart, int]) -> Parameter:
        shape = self.param.shape
        formula, local = "[" + ", ".join(map(str, shape)) + "]", tuple(dim.local for dim in shape)
        return Parameter(self.name, formula, local, self.param.copies * self.layers, **parts)


def _entries(t: Training, plan: ChunkPlan, buffers: Collection[Buffer]) -> Iterator[_Entry]:
    """The parameters of a chunk."""
    chunk = f"chunk {plan.chunk.vp_stage}." if plan.chunk.vp_stage else ""
    for run in plan.registered:
        layers = f"layers.{run.layers()}." if run.first_layer >= 0 else ""
        for param in run.params:
            group = _group(t, param, buffers, plan)
            yield _Entry(f"{chunk}{layers}{param.name}", plan.chunk.vp_stage, group, param, run.copies)


def _group(t: Training, param: Param, buffers: Collection[Buffer], plan: ChunkPlan) -> str:
    """The group of the buffer that a parameter is in, or of the weights that are not trained."""
    if param.frozen:
        return "frozen" if param.quantized and t.low_precision_weights else ""
    first = plan.chunk.vp_stage == 0
    return next(
        buffer.group
        for buffer in buffers
        if buffer.chunk == plan.chunk.vp_stage
        and belongs(t, param, recipe=buffer.recipe, dtype=buffer.kept_dtype, expert=buffer.expert)
        and (not by_layout(t) or is_muon_managed(t, param, first_chunk=first) == buffer.matrices)
    )


def _shares(state: State, members: list[_Entry], buffer: Buffer | None) -> Iterator[tuple[_Entry, int]]:
    """The bytes of a state that are each parameter's."""
    dealt = buffer is not None and buffer.dealt and state.part == "optimizer"
    if dealt or is_second(state):
        return
    numel = buffer.numel if buffer is not None else sum(one.numel for one in members)
    for one in members:
        yield one, state.nbytes * one.numel // numel
