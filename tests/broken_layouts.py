"""Layouts and settings that break rules: values of every setting, drawn for models of every kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.job.settings import field_kind
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.legality import violations
from megatron_memory_estimator.legality.precision import gpu
from megatron_memory_estimator.rules import Violation

from .random_models import Choice, Settings, models

NUMBERS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 48)
ODD_NUMBERS = {
    "world_size": (1, 6, 8, 16, 48, 96, 240),
    "seq_length": (100, 1024, 4096, 10**6),
    "recompute_num_layers": (None, 0, 1, 2, 5000),
    "wgrad_deferral_limit": (-1, 0, 2),
    "pipeline_model_parallel_size": (1, 2, 2, 3, 4, 5, 8, 5000),
    "cp_comm_type": (("p2p",), ("a2a",), ("all_gather",), ("a2a+p2p",), ("p2p", "a2a", "p2p")),
    "hierarchical_context_parallel_sizes": (None, (4, 2), (2, 2), (3,)),
    "transformer_engine_version": ("2.20",),
    "megatron_core_version": ("0.20",),
}
"""Values of settings that are no word and no small number."""
STRINGS = ("Et*3|t*4mL", "E|t|t|L", "Ett|ttL", "EttmmttL", "Et*4|t*4L", "tE|tL", "Et*4|mt*4L", "t*8|t*8")
COUNTS = (None, None, 1, 2, 3, 4, 5, 8, 9)
CONCERNS: tuple[dict[str, tuple[Any, ...]], ...] = (
    {
        "pipeline_model_parallel_size": (2, 2, 3, 4, 5),
        "virtual_pipeline_model_parallel_size": (None, None, 2, 3, 4),
        "num_layers_in_first_pipeline_stage": COUNTS,
        "num_layers_in_last_pipeline_stage": COUNTS,
    },
    {
        "pipeline_model_parallel_size": (2, 3, 4, 8),
        "virtual_pipeline_model_parallel_size": (None, 2, 3),
        "account_for_embedding_in_pipeline_split": (False, True),
        "account_for_loss_in_pipeline_split": (False, True),
    },
    {
        "pipeline_model_parallel_size": (2, 3, 4),
        "num_layers_per_virtual_pipeline_stage": (1, 1, 2, 3, 5),
        "microbatch_group_size_per_vp_stage": (None, 2, 4, 6, 16),
    },
    {"pipeline_model_parallel_size": (2, 4), "pipeline_model_parallel_layout": (*STRINGS, *STRINGS[:1] * 2)},
    {
        "tensor_model_parallel_size": (1, 2, 3),
        "context_parallel_size": (4, 6, 8),
        "cp_comm_type": (("a2a",), ("a2a+p2p",), ("p2p",)),
        "hierarchical_context_parallel_sizes": ((4, 2), (2, 2), (2, 4), (3, 2), (8,)),
    },
)
"""Settings of a layout that are drawn together, as few runs draw them by chance."""
GPUS = ("A100", "L40S", "H100", "B200")


class Broken(NamedTuple):
    """A violation, and what breaks the rule."""

    model: Model
    layout: Layout
    training: Training
    num_microbatches: int
    gpu: str
    violation: Violation

    def rules(self, **changes: Any) -> list[str]:
        """The rules that are broken with other settings or another number of microbatches."""
        count = changes.pop("num_microbatches", self.num_microbatches)
        model, layout, training = (_changed(part, changes) for part in (self.model, self.layout, self.training))
        return [one.rule for one in of(model, layout, training, count, self.gpu)]


def _changed(part: Any, changes: Settings) -> Any:
    names = {field.name for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: value for name, value in changes.items() if name in names})


def of(model: Model, layout: Layout, training: Training, num_microbatches: int, machine: str) -> list[Violation]:
    """Every violation of a run."""
    return [*violations(model, layout, training, num_microbatches), *gpu(training, find_gpu(machine))]


@lru_cache(maxsize=1)
def collected() -> tuple[Broken, ...]:
    """The violations of some thousand seeded runs."""
    return tuple(_collected(Random(7), 6000))


def _collected(random: Random, runs: int) -> Iterator[Broken]:
    choice = Choice(random)
    for number in range(runs):
        if number % 20 == 0:
            layers = choice.of(2, 4, 7, 8, 9, 12)
            drawn = models(choice, layers, (2,) if layers > 4 else ())
            own = {name: value for name, value in drawn.settings.items() if hasattr(drawn.model, name)}
        try:
            model = dataclasses.replace(drawn.model, **{**own, **_drawn(choice, Model, 1)})
            layout = Layout(**_drawn(choice, Layout, choice.of(1, 3, 5)))
            layout = layout if number % 4 else _one_concern(choice)
            training = Training(**_drawn(choice, Training, choice.of(1, 4, 12)))
            case = model, layout, training, choice.of(0, 1, 3, 7, 8, 13), choice.of(*GPUS)
            yield from (Broken(*case, one) for one in of(*case))
        except ConfigError:
            continue


def _one_concern(choice: Choice) -> Layout:
    """A pipeline, or context parallelism, on as many GPUs as it needs."""
    drawn = {name: choice.of(*values) for name, values in choice.of(*CONCERNS).items()}
    draft = Layout(**drawn)
    return dataclasses.replace(draft, world_size=draft.tp * draft.pp * draft.cp * choice.of(1, 2))


def _drawn(choice: Choice, part: type[Any], most: int) -> Settings:
    """Values of a few of the settings of a part."""
    fields = [field for field in dataclasses.fields(part) if field.metadata.get("help")]
    found: Settings = {}
    for _ in range(most):
        field = choice.of(*fields)
        value = _value(choice, field)
        if value is not None:
            found[field.name] = value
    return found


def _value(choice: Choice, field: dataclasses.Field[Any]) -> Any:
    kind, words = field_kind(field), field.metadata["choices"]
    if field.name in ODD_NUMBERS:
        return choice.of(*ODD_NUMBERS[field.name])
    if field.name == "pipeline_model_parallel_layout":
        return choice.of(*STRINGS)
    if words:
        return choice.some(*words) if kind == "list" else choice.of(*words)
    if kind == "bool":
        return choice.of(True, False)
    if kind == "int":
        return choice.of(*NUMBERS)
    return choice.of(0.5, 1.5) if kind == "float" else None
