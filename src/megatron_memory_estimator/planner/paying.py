"""What features are worth in a plan: the seconds and bytes without each that is on, and which others would pay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import EstimatorError
from ..job.training_job import TrainingJob, with_settings
from ..throughput.machine import Efficiency, machine
from .exact import Exact, Figures
from .found import Found, Plan
from .space.choices import precision_settings
from .space.features import FEATURES, Feature, Settings, with_features
from .space.legal import reasons

DECIDED = (
    "micro_batch_size", "global_batch_size", "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    "use_distributed_optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction",
)  # fmt: skip
"""Settings of a training that a plan decides, beside those of its features."""
PAYS = 0.01
"""The share of a step that a feature saves at least to be worth a word."""


class Worth(NamedTuple):
    """What a feature is worth in a plan: the share of the step that it saves, and the bytes that it takes more; both may be negative."""

    feature: str
    saves: float
    takes: int
    settings: Settings
    """What it sets."""

    @property
    def about(self) -> Feature:
        """The feature itself."""
        return FEATURES[self.feature]


def worth(plan: Plan, asked: TrainingJob, efficiency: Efficiency | None = None) -> Iterator[Worth]:
    """What each feature of a plan is worth in it; of those that others need nothing is said."""
    tried = _Tried(plan, asked, efficiency)
    for name in plan.features:
        figures = tried.with_set(tuple(one for one in plan.features if one != name))
        if figures is not None:
            yield _worth(name, plan, 1 - plan.step / figures.step, plan.needed.high - figures.needed.high)


def paying(plan: Plan, found: Found) -> list[Worth]:
    """Features that are not on and would make a plan faster as it is, the best first. They fit, and no rule is broken."""
    assert found.asked is not None
    tried = _Tried(plan, found.asked, found.efficiency)
    more = []
    for name, feature in FEATURES.items():
        if name in plan.features:
            continue
        others = tuple(one for one in plan.features if FEATURES[one].group != feature.group)
        figures = tried.with_set((*others, name), below=plan.step * (1 - PAYS))
        if figures is not None and figures.needed.high <= found.limit:
            more.append(_worth(name, plan, 1 - figures.step / plan.step, figures.needed.high - plan.needed.high))
    return sorted(more, key=lambda one: -one.saves)


def _worth(name: str, plan: Plan, saves: float, takes: int) -> Worth:
    return Worth(name, saves, takes, FEATURES[name].settings(plan.job))


class _Tried:
    """A plan with other sets of features."""

    def __init__(self, plan: Plan, asked: TrainingJob, efficiency: Efficiency | None) -> None:
        self.plan, job = plan, plan.job
        own = {"world_size": job.layout.world_size, **precision_settings(asked, plan.precision)}
        self.base = with_settings(asked, own)
        self.exact = Exact(machine(job.gpu, efficiency, job.env.network_gbs))

    def with_set(self, names: tuple[str, ...], *, below: float = math.inf) -> Figures | None:
        """Its figures with a set; None where not all of it can be on, a rule refuses it, or its step is not `below` so many seconds."""
        variant = with_features(self.base, names)
        if set(variant.features) != set(names):
            return None
        job = self.plan.job
        decided = {name: getattr(job.training, name) for name in DECIDED}
        instances = variant.job.layout.num_distributed_optimizer_instances
        one = dataclasses.replace(
            job,
            layout=dataclasses.replace(job.layout, num_distributed_optimizer_instances=instances),
            training=dataclasses.replace(variant.job.training, **decided),
            env=variant.job.env,
        )
        if reasons(one, one.layout, one.training, one.num_microbatches):
            return None
        try:
            return self.exact.figures_below(one, below)
        except EstimatorError:
            return None
