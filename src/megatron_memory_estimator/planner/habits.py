"""Settings that published recipes share, for a model by name that is planned without them.

Of the recipes of Megatron-Bridge (`src/megatron/bridge/recipes`, `perf_recipes`) nearly all set expandable segments, and those of
experts on Hopper and Blackwell mostly the flex dispatcher with HybridEP, which Bridge takes there
(`training/flex_dispatcher_backend.py`, apply_flex_dispatcher_backend).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..inputs.setting_names import known_settings
from ..job.hardware import Environment
from ..job.training import Training
from ..job.training_job import TrainingJob

_OTHER_OVERLAP = (
    "use_megatron_fsdp", "use_torch_fsdp2", "optimizer", "peft", "overlap_grad_reduce", "overlap_param_gather",
)  # fmt: skip
"""Settings with which the overlap of recipes is not taken over."""
_OTHER_DISPATCH = (
    "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity",
    "moe_shared_expert_overlap", "deterministic_mode",
)  # fmt: skip
"""Settings with which the dispatcher of recipes is not."""
FLEX: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}


class Habits(NamedTuple):
    """Settings taken from recipes, and the sentences that say so."""

    settings: dict[str, Any]
    said: list[str]


def with_habits(job: TrainingJob, worlds: Sequence[int], *, complete: bool) -> tuple[TrainingJob, Habits]:
    """The job with what published recipes share and its caller did not give; a whole run is taken as it is."""
    if not job.by_name:
        return job, Habits({}, [])
    one, other = recipe_habits(job.given, complete=complete), dispatcher_habit(job, job.given, worlds)
    settings, owners = {**one.settings, **other.settings}, known_settings()
    parts = {
        owner: {name: value for name, value in settings.items() if owners[name] is owner}
        for owner in (Training, Environment)
    }
    return dataclasses.replace(
        job,
        training=dataclasses.replace(job.training, **parts[Training]),
        env=dataclasses.replace(job.env, **parts[Environment]),
    ), Habits(settings, [*one.said, *other.said])


def recipe_habits(given: Mapping[str, Any], *, complete: bool = False) -> Habits:
    """Overlap and allocator of published recipes, where settings do not say otherwise.

    Where layouts without the distributed optimizer are tried too (`complete`), parameters are not gathered ahead. Megatron-Core refuses
    expandable segments with NCCL's user buffers.
    """
    overlap = _overlap(given, complete=complete)
    said = (
        [f"{' and '.join(overlap)} on, as in published recipes (--no-overlap-grad-reduce turns them off)"]
        if overlap
        else []
    )
    env = given.get("env") or {}
    if given.get("expandable_segments") is None and not given.get("nccl_ub") and not env:
        overlap["expandable_segments"] = True
        said.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, as in published recipes (--no-expandable-segments turns it off)"
        )
    return Habits(overlap, said)


def _overlap(given: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    if (
        any(given.get(name) not in (None, False) for name in _OTHER_OVERLAP)
        or given.get("overlap_grad_reduce") is False
    ):
        return {}
    ahead = (
        not complete
        and given.get("use_distributed_optimizer") is not False
        and given.get("overlap_param_gather") is None
    )
    return {"overlap_grad_reduce": True, **({"overlap_param_gather": True} if ahead else {})}


def dispatcher_habit(job: TrainingJob, given: Mapping[str, Any], worlds: Sequence[int]) -> Habits:
    """The dispatcher of published recipes for experts, on GPUs that have it, where no setting says otherwise.

    It needs tensor or expert parallelism: on one GPU it is not taken.
    """
    has_it = job.model.has_moe and job.gpu.hopper_or_later
    if (
        not has_it
        or not worlds
        or min(worlds) == 1
        or any(given.get(name) not in (None, False) for name in _OTHER_DISPATCH)
    ):
        return Habits({}, [])
    return Habits(
        FLEX,
        [
            f"the flex dispatcher with HybridEP, as in published recipes on {job.gpu.name}; it needs tensor or expert parallelism "
            "(--moe-token-dispatcher-type alltoall searches without it)"
        ],
    )
