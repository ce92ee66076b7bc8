"""One pipeline rank: everything that decides its memory, and the rows and candidates that describe a moment of it."""

from __future__ import annotations

from typing import NamedTuple

from ..dataclass import dataclass
from ..modules.context import Context
from ..states.buffers import Buffer
from ..states.kept import Since
from ..states.state import State
from .chunks import ChunkPlan, Moment
from .schedule import Occupancy, Step
from .workspaces import Workspace

PARTS = ("weights", "gradients", "optimizer", "activations", "transient", "pipeline", "workspace")


class Row(NamedTuple):
    """A tensor (or `copies` equal ones) alive at a moment: a row of `explain`."""

    part: str
    name: str
    formula: str
    local_shape: tuple[int, ...]
    dtype: str
    copies: int
    nbytes: int
    why: str


@dataclass(frozen=True)
class Rank:
    """Everything that decides the memory of one pipeline rank."""

    context: Context
    pp_rank: int
    plans: tuple[ChunkPlan, ...]
    schedule: Occupancy
    buffers: tuple[Buffer, ...]
    states: tuple[State, ...]
    workspaces: tuple[Workspace, ...]
    num_microbatches: int = 1
    all_leaves: bool = False
    """Fine-grained offloading: the first step, in which no group stays."""


@dataclass(frozen=True)
class Candidate:
    """A moment of the step with its bytes alive. `step` is None for events outside the schedule.

    `running` is (chunk, its moment) of the microbatches that run: one, or two with all-to-all overlap. `apart` are the
    chunks whose running (or not yet started) microbatch does not keep everything.
    """

    label: str
    nbytes: int
    step: Step | None = None
    running: tuple[tuple[int, Moment], ...] = ()
    apart: tuple[int, ...] = ()
    extras: tuple[Row, ...] = ()
    since: tuple[Since, ...] = ("setup", "first step")
    """Which state exists at that moment."""
    capture: bool = False
    """Whether it is the capture of CUDA graphs, whose `extras` are all that is alive beside the state."""


def state_bytes(rank: Rank, *since: Since) -> int:
    """Bytes of the state tensors that exist since one of the given moments."""
    return sum(s.nbytes for s in rank.states if s.since in since)


def workspace_bytes(rank: Rank) -> int:
    """Bytes of all persistent scratch."""
    return sum(w.nbytes for w in rank.workspaces)


def parameters(rank: Rank) -> tuple[int, int]:
    """Parameters that one GPU of the rank holds: (dense, expert), expert meaning expert data-parallel buffers."""

    def count(expert: bool) -> int:
        return sum(p.numel * n for plan in rank.plans for p, n in plan.params if p.expert_buffer == expert)

    return count(False), count(True)
