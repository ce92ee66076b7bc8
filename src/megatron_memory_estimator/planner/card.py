"""A model's card: its parameters, its state, and the fewest GPUs of each kind that train it and that resume it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dataclass import dataclass
from ..doors import door
from ..errors import ConfigError, EstimatorError, LayoutError, UnsupportedError
from ..estimator import Estimate, estimate
from ..job.hardware import Gpu, find_gpu
from ..job.layout import Layout
from ..job.training_job import TrainingJob
from ..legality.precision import gpu as rules_of_gpu
from ..modules.counts import Count, count_parameters
from .base import state_bytes
from .found import Plan
from .planning import Planned, plan, training_only
from .space.defaults import CONTEXT
from .space.features import BASIC
from .space.recompute import RECOMPUTE, own_recompute

if TYPE_CHECKING:
    from .search import Shared

KINDS = ("A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "B300-288GB")
"""Where no GPU is given, a card has a row for each of these: one of each size that training clusters have."""
LEAST: dict[str, str] = {"recompute": "full", "cp": "1", "vpp": "1", "micro_batch_size": "1"}
"""The layouts that a card tries: those that need least, in one pass over a small space."""
LONG = 32768
"""Tokens of a sequence from which context parallelism is tried too."""
EVERY = f"1-{CONTEXT[-1]}"
"""All sizes of context parallelism."""
POWERS = tuple(2**power for power in range(13))
"""Numbers of GPUs that a card tries."""
NO_LIMIT = 2**60
"""Bytes that every layout fits: the one that needs least is asked for, whatever a GPU has."""


class Held(NamedTuple):
    """The estimate of a layout that holds the model on a kind of GPU, its recomputation in the planner's words, and what was assumed."""

    estimate: Estimate
    recompute: str
    assumptions: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """All GPUs of the run."""
        return self.estimate.job.layout.world_size


class Search(NamedTuple):
    """How layouts are searched: the axes, who is told each number of GPUs, and who says that it is enough."""

    tried: Mapping[str, str]
    progress: Callable[[int], None] | None = None
    stop: Callable[[], bool] | None = None

    def least(self, job: TrainingJob, gpus: int, shared: Shared) -> Planned | None:
        """The search on so many GPUs whose first plan needs least; None where nothing is legal there. `shared` is what the searches of
        this job have found."""
        if self.progress is not None:
            self.progress(gpus)
        axes = {**self.tried, "num_gpus": str(gpus), **({"features": BASIC} if job.by_name else {})}
        try:
            found = plan(job, axes, objective="head-room", top=1, limit=NO_LIMIT, stop=self.stop, shared=shared)
        except LayoutError:
            return None
        if found.found.interrupted:
            raise KeyboardInterrupt
        return found if found.found.plans else None


@dataclass(frozen=True)
class Fewest:
    """The fewest GPUs of a kind: that train the model, and that can resume it too. None: no number that was tried does."""

    gpu: Gpu
    asked: TrainingJob
    train: Held | None = None
    resume: Held | None = None

    @property
    def num_to_train(self) -> int | None:
        """The fewest that train it."""
        return self.train.num_gpus if self.train else None

    @property
    def num_to_resume(self) -> int | None:
        """The fewest that resume it too."""
        return self.resume.num_gpus if self.resume else None

    @property
    def held(self) -> Held | None:
        """The layout that resumes, else the one that trains."""
        return self.resume or self.train


@dataclass(frozen=True)
class Card:
    """What a model needs before anything is laid out: parameters, bytes of its state, fewest GPUs by kind."""

    job: TrainingJob
    """The model and its training, on one GPU."""
    parameters: Count
    """How many parameters it has."""
    state_bytes: Mapping[str, int]
    """Bytes of weights, gradients and optimizer of the whole model, once, by part."""
    rows: tuple[Fewest, ...]
    """The fewest GPUs of each kind."""
    tried: Mapping[str, str]
    """The axes of the layouts that were tried."""
    lacking: tuple[str, ...] = ()
    """Kinds of GPU that do not have the run's low-precision recipe, or a kernel of it."""

    def __repr__(self) -> str:
        return f"<Card {self.job.name or 'model'}: {self.parameters.total:,} parameters, {len(self.rows)} kinds of GPU>"

    def __str__(self) -> str:
        return "\n".join(door("card as text")(self))

    def table(self) -> list[dict[str, Any]]:
        """One record for each kind of GPU."""
        found: list[dict[str, Any]] = door("card as records")(self)
        return found

    @property
    def not_counted(self) -> str:
        """What the figures are without, such as a vision tower; empty where nothing is."""
        held = next((row.held for row in self.rows if row.held), None)
        return held.estimate.verdict().not_counted if held else ""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was decided because it was not given; that one GPU stands for the model says nothing here."""
        own = [note for note in self.job.assumptions if not note.startswith("num_gpus")]
        return tuple(dict.fromkeys((*own, *(note for row in self.rows if row.held for note in row.held.assumptions))))


def card(
    job: TrainingJob, progress: Callable[[int], None] | None = None, stop: Callable[[], bool] | None = None
) -> Card:
    """The card of a job's model. `progress` is told each number of GPUs before it is tried, `stop` is asked as that of `plan`.

    The GPU is the job's own where it was given, otherwise one of each size; micro-batch and recomputation hold where they were given.
    Numbers of GPUs are powers of two. Raises ConfigError where degrees of parallelism were given, what `estimate` raises of the model on
    one GPU, and NumPyError where the space is large and NumPy is missing.
    """
    if given := sorted(job.degrees_given):
        raise ConfigError(f"a card is of a model without a layout: leave out {', '.join(given)}, or ask estimate")
    job = replace(job, layout=Layout(), num_microbatches=1)
    every = (
        (job.gpu,)
        if "gpu" in job.given or not job.by_name
        else tuple(job.env.installed(find_gpu(name)) for name in KINDS)
    )
    kinds = [gpu for gpu in every if not any(rules_of_gpu(job.training, gpu))] or [job.gpu]
    state = state_bytes(replace(job, gpu=kinds[0]))
    search = Search(layouts_tried(replace(job, gpu=kinds[0])), progress, stop)
    found = [row for group in alike(kinds, job) for row in _fewest(job, group, sum(state.values()), search)]
    rows = sorted(found, key=lambda row: kinds.index(row.gpu))
    lacking = tuple(gpu.name for gpu in every if gpu not in kinds)
    return Card(job, count_parameters(job.model), state, tuple(rows), search.tried, lacking)


def on_its_gpus(job: TrainingJob, progress: Callable[[int], None] | None = None) -> Fewest:
    """The layout that needs least on the GPUs of a job, among those that a card tries: whether it trains, whether it resumes too."""
    (row,) = _fewest(job, (job.gpu,), 0, Search(layouts_tried(job), progress), (job.layout.world_size,))
    return row


def layouts_tried(job: TrainingJob) -> dict[str, str]:
    """Axes of the layouts that need least; micro-batch and recomputation of a whole run, or that were given, hold."""
    found = dict(LEAST)
    if not job.by_name:
        found["recompute"] = own_recompute(job.training)
    elif any(name.startswith("recompute") for name in job.given):
        del found["recompute"]
    elif not _recomputes_whole_layers(job):
        found["recompute"] = "none"
    if job.training.seq_length >= LONG:
        found["cp"] = EVERY
    if "micro_batch_size" in job.given or not job.by_name:
        found["micro_batch_size"] = str(job.training.micro_batch_size)
    return found


def alike(kinds: Sequence[Gpu], job: TrainingJob) -> list[list[Gpu]]:
    """Kinds for which published recipes set the same: for experts, another dispatcher before Hopper."""
    groups = [
        [gpu for gpu in kinds if (gpu.hopper_or_later or not job.model.has_moe) is later] for later in (True, False)
    ]
    return [group for group in groups if group]


def _recomputes_whole_layers(job: TrainingJob) -> bool:
    """Whether full recomputation is legal, and modelled, for the model."""
    training = replace(job.training, **RECOMPUTE["full"])
    try:
        estimate(replace(job, layout=Layout(), num_microbatches=1, training=training))
    except EstimatorError:
        return False
    return True


def resuming(job: TrainingJob) -> bool:
    """Whether it is judged that the run loads a checkpoint with optimizer state."""
    return "load" in job.env.phases and job.training.load_optim


def _fewest(
    job: TrainingJob, kinds: Sequence[Gpu], state: int, search: Search, numbers: Sequence[int] = POWERS
) -> tuple[Fewest, ...]:
    """The row of each kind of a group.

    One search serves all of them: what a layout needs differs between them by little, and each is estimated. What resumes trains too, so
    that is asked first; training alone is asked for the kinds that are left.
    """
    from .search import Shared

    rows, shared = {gpu.name: Fewest(gpu, job) for gpu in kinds}, Shared()
    newest = replace(job, gpu=max(kinds, key=lambda gpu: gpu.capability))
    resumes = resuming(job)
    for gpus in numbers:
        for asked in (newest, training_only(newest)) if resumes else (newest,):
            whole = asked is newest
            todo = [row for row in rows.values() if (row.resume if whole and resumes else row.train) is None]
            todo = [row for row in todo if gpus * row.gpu.memory_bytes >= state]
            least = search.least(asked, gpus, shared) if todo else None
            for row in todo if least else []:
                assert least is not None
                held = _held(least.found.plans[0], row.gpu, least.assumptions)
                if held is not None:
                    rows[row.gpu.name] = replace(
                        row, train=row.train or held, resume=held if whole and resumes else None
                    )
        if all(row.resume if resumes else row.train for row in rows.values()):
            break
    return tuple(rows.values())


def _held(one: Plan, gpu: Gpu, assumptions: tuple[str, ...]) -> Held | None:
    """A plan on a kind of GPU, where it surely fits."""
    try:
        found = estimate(replace(one.job, gpu=gpu))
    except (LayoutError, UnsupportedError):
        return None
    return Held(found, one.recompute, assumptions) if found.verdict().fits else None
