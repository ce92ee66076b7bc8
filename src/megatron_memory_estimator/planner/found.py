"""What a search finds: plans, what they are ordered by, and counts of all layouts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dataclass import dataclass
from ..device.terms import Range
from ..doors import door
from ..frames import frame
from ..job.hardware import GIB
from ..job.pipeline import virtual_stages
from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency
from .space.axes import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Plan:
    """A layout with its figures: seconds of a step and their parts, allocated bytes of the fullest stage, and the range of device bytes
    that verdicts are about."""

    job: TrainingJob
    recompute: str
    precision: str
    step: float
    parts: dict[str, float]
    tokens_per_s_gpu: float
    peak_allocated_bytes: int
    needed: Range
    features: tuple[str, ...] = ()
    """What is on that the job was not given."""

    @property
    def virtual(self) -> int:
        """Model chunks of a stage."""
        return virtual_stages(self.job.model, self.job.layout)

    @property
    def split(self) -> str:
        """The split of layers over stages."""
        layout, model = self.job.layout, self.job.model
        if layout.pipeline_model_parallel_layout:
            return layout.pipeline_model_parallel_layout
        if model.has_borders:
            return model.hybrid_layer_pattern or ""
        ends = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
        return "even" if ends == (None, None) else "/".join("..." if n is None else str(n) for n in ends)

    @property
    def pipeline(self) -> str:
        """Chunks and split in words, each where it is not the usual one."""
        words = [f"vpp {self.virtual}"] if self.virtual > 1 else []
        return ", ".join([*words, *([f"split {self.split}"] if self.split != "even" else [])])

    @property
    def degrees(self) -> str:
        """Degrees above 1, chunks and split in short."""
        degrees = dataclasses.replace(self.job.layout, virtual_pipeline_model_parallel_size=None).degrees
        return ", ".join(filter(None, (degrees, self.pipeline)))

    def __repr__(self) -> str:
        layout = f"{self.degrees}, recompute {self.recompute}, {self.precision}"
        return f"<Plan {layout}: {self.tokens_per_s_gpu:,.0f} tokens/s/GPU, {self.peak_allocated_bytes / GIB:.2f} GiB allocated>"


ROOM = GIB
"""Bytes that a plan needs less than a faster one, to be worth a line."""
NEAR = 1.01
"""So much faster is a plan than a smaller one, to be worth a line."""


class Objective(NamedTuple):
    """What plans are ordered by, and what a plan behind another one must be better in: of bounds, and of plans."""

    key: Callable[[Any], Any]
    other: Callable[[Any], Any]
    of: Callable[[Plan], tuple[float, float]]
    worth: Callable[[float], float]
    """The most of the other figure that is worth a line behind a plan with so much."""
    timed: bool = False
    """Whether seconds are the order."""


def less(high: float) -> float:
    """The most bytes that are worth a line behind a plan that needs so many."""
    return high - ROOM


def faster(step: float) -> float:
    """The most seconds that are worth a line behind a plan that takes so many."""
    return step / NEAR


OBJECTIVES = {
    "throughput": Objective(lambda b: b.step, lambda b: b.high, lambda p: (p.step, p.needed.high), less, True),
    "memory": Objective(lambda b: b.peak, lambda b: b.step, lambda p: (p.peak_allocated_bytes, p.step), faster),
    "head-room": Objective(lambda b: b.high, lambda b: b.step, lambda p: (p.needed.high, p.step), faster),
}
"""What plans are ordered by, the best first, by name."""


@dataclasses.dataclass
class Found:
    """The result of a search: the best plans that fit, each better than those before it in one figure, and counts of all layouts."""

    space: Space
    limit: int
    objective: str = "throughput"
    plans: list[Plan] = field(default_factory=list)
    apart: list[Plan] = field(default_factory=list)
    """Tight plans that are better than the first one that fits, where they are not ranked with the others: a few."""
    legal: int = 0
    too_large: int = 0
    """Layouts that surely do not fit, whatever is recomputed."""
    evaluated: int = 0
    """Layouts that were evaluated: all others cannot be better than the plans."""
    fits: int = 0
    """Of those, how many fit."""
    tight: int = 0
    """How many of them may fit."""
    illegal: Counter[str] = field(default_factory=Counter)
    least: Plan | None = None
    """The legal layout that needs least memory, where none fits."""
    state: int | None = None
    """Bytes of weights, gradients and optimizer at least, where all GPUs together have fewer: no layout was looked at."""
    efficiency: Efficiency | None = None
    """The rates that step times were computed with, where they are not the GPU's own."""
    interrupted: bool = False
    fewest_gpus: int | None = None
    """The smallest number of GPUs that holds every phase that is judged, where that was asked."""
    fewest_to_train: int | None = None
    """The smallest number that trains, whether it can load its checkpoints or not."""
    trains_only: bool = False
    """Whether no layout surely holds every phase of the run, so that the plans are those that train."""
    asked: TrainingJob | None = None
    """The job that was planned."""
    thinned: tuple[str, ...] = ()
    """What was searched of a space that is too large without NumPy, as a sentence."""

    def __repr__(self) -> str:
        best = f", the first {self.plans[0]!r}" if self.plans else ""
        return f"<Found {len(self.plans)} plans of {self.legal:,} legal layouts on {self.limit / GIB:.2f} GiB{best}>"

    def table(self) -> list[dict[str, Any]]:
        """One record per plan with plain numbers, units in the names of the columns."""
        found: list[dict[str, Any]] = door("plans as records")(self)
        return found

    def to_frame(self) -> DataFrame:
        """`table()` as a frame of pandas."""
        return frame(self.table())

    def plot(self, path: str | None = None) -> Figure:
        """Memory against speed as a figure of matplotlib, also written to `path` (.png, .svg, .pdf). Needs the extra `plot`."""
        found: Figure = door("plans as figure")(self, path)
        return found

    def html(self, assumptions: tuple[str, ...] = ()) -> str:
        """The best plans as a fragment of HTML."""
        return str(door("plans as html")(self, assumptions))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.html()

    @property
    def all_gpus(self) -> int:
        """The largest number of GPUs of the space."""
        return max(self.space.num_gpus)

    @property
    def examined(self) -> int:
        """All layouts of the space."""
        return self.legal + sum(self.illegal.values())
