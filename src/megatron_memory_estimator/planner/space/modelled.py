"""What the declarations of a model are able to say: sets of recomputation, ways of communication, several sequences."""

from __future__ import annotations

import contextlib
import dataclasses
from itertools import product
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job.layout import Layout
from ...job.training import Training
from ...job.training_job import TrainingJob
from ...job.variants import bare
from ...modules.context import Context
from ...modules.kinds import recomputable
from ...modules.layers import layer_unit
from ...rank.build import context_of
from .axes import Space
from .choices import Style
from .recompute import recompute_settings

NO_RECOMPUTATION: dict[str, Any] = {
    "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None, "recompute_modules": None
}  # fmt: skip
"""Settings of a training that recomputes nothing."""


ABOUT_SEQUENCES = frozenset(("several_sequences", "heads_in_fours"))
"""Answers of a context that sequences in a microbatch decide: layouts with different ones have different tensors."""


def recompute_sets(job: TrainingJob, space: Space) -> list[tuple[str, Training]]:
    """The trainings of the sets of recomputation that this model has something for, by name."""
    known = recomputable(job.model)
    found = []
    for name in space.recompute:
        settings = recompute_settings(name)
        training = dataclasses.replace(job.training, **{**NO_RECOMPUTATION, **settings})
        if set(settings.get("recompute_modules", ())) <= known and _modelled(job, training):
            found.append((name, training))
    if not found:
        raise ConfigError(
            f"recompute: nothing of {', '.join(space.recompute)} exists in this model; it has {', '.join(sorted(known))}"
        )
    return found


def not_searched(job: TrainingJob, space: Space) -> str:
    """The sets of recomputation of a space that are left out, and why; empty where there are none."""
    kept = {name for name, _ in recompute_sets(job, space)}
    left_out = [name for name in space.recompute if name not in kept]
    known = ", ".join(sorted(recomputable(job.model)))
    return f"recompute {', '.join(left_out)} left out: this model has {known} to recompute" if left_out else ""


def _modelled(job: TrainingJob, training: Training) -> bool:
    return not _refusal(dataclasses.replace(context_of(job), layout=Layout(), training=training))


def _declare(c: Context) -> list[Context]:
    """Declare every kind of layer; the contexts that they were declared in, which know what was asked of them."""
    found = {kind: c.of(kind) for kind in c.model.every_kind}
    for kind, one in found.items():
        layer_unit(one, bare(kind))
    return list(found.values())


def _refusal(c: Context) -> str:
    try:
        _declare(c)
    except UnsupportedError as error:
        return error.rule
    return ""


def asks(job: TrainingJob, space: Space) -> frozenset[str]:
    """What any layer asks of its context about the sequences of a microbatch: `several_sequences`, `heads_in_fours`."""
    found: set[str] = set()
    training = dataclasses.replace(job.training, micro_batch_size=2, recompute_granularity=None)
    for cp, way in product({min(n, 2) for n in space.context_parallel_size}, space.cp_comm_type):
        layout = Layout(cp, context_parallel_size=cp, cp_comm_type=(way,))
        with contextlib.suppress(UnsupportedError):
            declared = _declare(dataclasses.replace(context_of(job), layout=layout, training=training))
            found.update(name for one in declared for name in vars(one) if name in ABOUT_SEQUENCES)
    return frozenset(found)


def unsupported(job: TrainingJob, several: bool, style: Style) -> str:
    """The rule by which layers are not modelled with (`several`) or without context parallelism, or nothing."""
    layout = Layout(2 if several else 1, context_parallel_size=2 if several else 1, cp_comm_type=(style.cp_comm_type,))
    training = dataclasses.replace(job.training, recompute_granularity=None)
    return _refusal(dataclasses.replace(context_of(job), layout=layout, training=training))
