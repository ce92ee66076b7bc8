"""Every legal layout of a space: its memory, its step time, and what was ruled out by which rule.

Legality is `legality.violations` for every layout; memory and time are the engine's, on arrays, one batch per structure.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ..device_memory import fragmentation, outside_terms
from ..errors import ConfigError, LayoutError
from ..estimator import context_of
from ..job import TrainingJob
from ..layout import Layout
from ..legality import balanced_split, violations
from ..peak import find_peak
from ..phases import build
from ..pipeline import split_layers
from ..rank import state_bytes
from ..throughput.machine import Machine, machine
from ..throughput.step import step_parts
from .batch import DEGREES, Batch, fullest, structure

POWERS = tuple(2**i for i in range(13))
RECOMPUTE: tuple[dict[str, Any], ...] = (
    {},
    {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)},
    {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    {"recompute_granularity": "selective", "recompute_modules": ("mlp",)},
    {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
    {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "moe_act", "layernorm")},
    {"recompute_granularity": "selective", "recompute_modules": ("moe", "layernorm")},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
)
"""Sets of recomputation worth trying; those that have nothing to recompute in a model are dropped."""


@dataclass(frozen=True)
class Space:
    """What is searched. Every axis lists the values to try."""

    tensor_model_parallel_size: tuple[int, ...] = (1, 2, 4, 8)
    pipeline_model_parallel_size: tuple[int, ...] = POWERS[:6]
    virtual_pipeline_model_parallel_size: tuple[int, ...] = (1, 2, 4, 8)
    context_parallel_size: tuple[int, ...] = POWERS[:5]
    expert_model_parallel_size: tuple[int, ...] = POWERS[:8]
    expert_tensor_parallel_size: tuple[int, ...] = (1,)
    micro_batch_size: tuple[int, ...] = (1, 2, 4, 8)
    recompute: tuple[dict[str, Any], ...] = RECOMPUTE

    def __post_init__(self) -> None:
        for axis in dataclasses.fields(self):
            if not getattr(self, axis.name):
                raise ConfigError(f"{axis.name} has no value to try")


@dataclass(frozen=True)
class Plan:
    """A layout with its figures: seconds, bytes of the fullest stage, and bytes on the device as a range."""

    job: TrainingJob
    step: float
    tokens_per_s_gpu: float
    pp_rank: int
    peak_allocated_bytes: int
    needed_bytes: int
    device_bytes: int


@dataclass
class Found:
    """The result of a search: plans that fit, fastest first, and counts of all others."""

    plans: list[Plan] = field(default_factory=list)
    examined: int = 0
    legal: int = 0
    tight: int = 0
    too_large: int = 0
    illegal: Counter[str] = field(default_factory=Counter)


def layouts(base: TrainingJob, space: Space, ruled_out: Counter[str]) -> Iterator[Layout]:
    """Every legal layout of the space for the job's GPUs; the others are counted by the rule that they break."""
    model, world = base.model, base.layout.world_size
    experts = space.expert_model_parallel_size if model.num_moe_experts else (1,)
    expert_tp = space.expert_tensor_parallel_size if model.num_moe_experts else (1,)
    for pp, vp in product(space.pipeline_model_parallel_size, space.virtual_pipeline_model_parallel_size):
        if vp > 1 and pp == 1:
            continue
        for tp, cp, ep, etp in product(
            space.tensor_model_parallel_size, space.context_parallel_size, experts, expert_tp
        ):
            layout = dataclasses.replace(
                base.layout,
                world_size=world,
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
                context_parallel_size=cp,
                expert_model_parallel_size=ep,
                expert_tensor_parallel_size=etp if model.num_moe_experts else None,
                sequence_parallel=tp > 1,
                microbatch_group_size_per_vp_stage=None,
            )
            layout = _split(base, layout, vp)
            reasons = violations(model, layout, base.training, 4 * pp)
            if reasons:
                ruled_out[_rule(reasons[0])] += 1
            else:
                yield layout


def _split(base: TrainingJob, layout: Layout, vp: int) -> Layout:
    """The layout, with the most balanced uneven split where the layers do not divide."""
    total = split_layers(base.model, layout)
    if base.model.hybrid or layout.pp == 1 or total % (layout.pp * vp) == 0:
        return layout
    split = balanced_split(total, layout.pp, vp)
    if split is None:
        return layout
    return dataclasses.replace(
        layout, num_layers_in_first_pipeline_stage=split[0], num_layers_in_last_pipeline_stage=split[1]
    )


def _rule(reason: str) -> str:
    """A rule without the numbers of one layout."""
    return re.sub(r"=?\d[\d,]*", "", reason.split(";")[0])


def search(base: TrainingJob, space: Space | None = None, *, best: int = 10) -> Found:
    """All legal layouts of a space for the job's model, GPUs and global batch; the `best` that fit, fastest first.

    Raises LayoutError when the space holds no legal layout.
    """
    space = space or Space()
    found = Found()
    if base.training.global_batch_size is None:
        raise ConfigError("the search needs global_batch_size")
    trainings = _trainings(base, space)
    groups: dict[tuple[Any, ...], list[tuple[Layout, int, int]]] = {}
    templates: dict[tuple[Any, ...], TrainingJob] = {}
    for layout in layouts(base, space, found.illegal):
        for micro in space.micro_batch_size:
            count, rest = divmod(base.training.global_batch_size, micro * layout.dp)
            if rest or not count:
                found.illegal["global_batch_size does not divide by micro_batch_size*data_parallel_size"] += len(
                    trainings
                )
                continue
            for number, training in enumerate(trainings):
                job = dataclasses.replace(
                    base,
                    layout=layout,
                    training=dataclasses.replace(training, micro_batch_size=micro),
                    num_microbatches=count,
                )
                key = (number, *structure(job))
                if key not in templates:
                    reasons = violations(job.model, layout, job.training, count)
                    if reasons:
                        found.illegal[_rule(reasons[0])] += 1
                        continue
                    templates[key] = job
                groups.setdefault(key, []).append((layout, micro, count))
    found.legal = sum(len(members) for members in groups.values())
    found.examined = found.legal + sum(found.illegal.values())
    if not groups:
        rules = [f"{rule} ({count} layouts)" for rule, count in found.illegal.most_common(3)]
        raise LayoutError(("no layout of the space is legal: " + "; ".join(rules),))
    m = machine(base.gpu)
    plans = [plan for key, members in groups.items() for plan in _evaluated(m, templates[key], members, found, best)]
    found.plans = sorted(plans, key=lambda plan: plan.step)[:best]
    return found


def _trainings(base: TrainingJob, space: Space) -> list[Any]:
    """The training with each set of recomputation that this model has something for."""
    from ..inputs.effects import recomputable

    known = recomputable(base.model)
    found = []
    for settings in space.recompute:
        if set(settings.get("recompute_modules", ())) <= known:
            cleared = {
                "recompute_granularity": None,
                "recompute_method": None,
                "recompute_num_layers": None,
                "recompute_modules": (),
            }
            found.append(dataclasses.replace(base.training, **{**cleared, **settings}))
    return found


def _evaluated(
    m: Machine, job: TrainingJob, members: list[tuple[Layout, int, int]], found: Found, best: int
) -> Iterator[Plan]:
    """The fastest plans of one structure that fit."""
    size = len(members)
    columns: dict[str, Any] = {
        name: np.array([layout.etp if name == DEGREES[-1] else getattr(layout, name) for layout, _, _ in members])
        for name in DEGREES
    }
    micro = np.array([micro for _, micro, _ in members])
    counts = np.array([count for _, _, count in members])
    batch = Batch(job, tuple(range(size)), dataclasses.replace(job.layout, **columns), micro)
    planner, stages = fullest(batch)
    ranks = [rank for rank, _ in stages]
    outside = [
        outside_terms(_job_of(job, *member), context_of(_job_of(job, *member)))
        for member in members
    ]  # fmt: skip
    low = np.array([sum(term.low for term in terms) for terms in outside])
    high = np.array([sum(term.high for term in terms) for terms in outside])
    of_total, _, share = fragmentation(job)
    peaks, least, most = [], [], []
    for rank in ranks:
        peak = np.broadcast_to(np.asarray(find_peak(rank).nbytes), size)
        built = build(rank)
        moving = peak if of_total else np.maximum(peak - state_bytes(rank, "setup", "first step"), 0)
        peaks.append(peak)
        least.append(np.maximum(peak, built) + low)
        with_slack = peak + np.floor(moving * share).astype(np.int64)
        most.append(np.maximum(with_slack, np.floor(np.asarray(built) * 1.03).astype(np.int64)) + high)
    stacked, device, needed = np.stack(peaks), np.stack(most).max(axis=0), np.stack(least).max(axis=0)
    step = np.broadcast_to(sum(step_parts(m, planner, ranks, counts, [count for _, count in stages]).values()), size)
    fits = device <= job.gpu.memory_bytes
    found.tight += int(((needed <= job.gpu.memory_bytes) & ~fits).sum())
    found.too_large += int((needed > job.gpu.memory_bytes).sum())
    order = np.nonzero(fits)[0]
    for place in order[np.argsort(step[order])][:best]:
        layout, size_of, count = members[place]
        assert job.training.global_batch_size is not None
        tokens = job.training.global_batch_size * job.training.seq_length / float(step[place]) / layout.world_size
        yield Plan(
            _job_of(job, layout, size_of, count),
            float(step[place]),
            tokens,
            ranks[int(stacked[:, place].argmax())].pp_rank,
            int(stacked[:, place].max()),
            int(needed[place]),
            int(device[place]),
        )


def _job_of(job: TrainingJob, layout: Layout, micro: int, count: int) -> TrainingJob:
    training = dataclasses.replace(job.training, micro_batch_size=micro)
    return dataclasses.replace(job, layout=layout, training=training, num_microbatches=count)
