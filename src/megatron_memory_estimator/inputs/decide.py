"""What is left to decide after every given setting: recomputation, GPUs, the split of layers, microbatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..job.assumption import Assumption
from ..job.layout import SHORT, Layout, fewest_gpus
from ..job.model import Model
from ..job.pipeline import split_layers, virtual_stages
from ..job.training import Training
from ..legality import balanced_split, even_layout
from ..rank.schedule import saturating_microbatches
from ..wording import shown


def whole_number(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a NumPy scalar
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value > 2**40:
        raise ConfigError(f"{name}={shown(value)} must be a whole number of at least 1")
    return value


def recompute_defaults(training: Training) -> tuple[Training, list[str]]:
    """Full recomputation without a method means uniform with one layer per checkpoint."""
    if training.recompute_granularity != "full":
        return training, []
    changes: dict[str, Any] = {}
    notes: list[str] = []
    if training.recompute_method is None:
        changes["recompute_method"] = "uniform"
        notes.append(Assumption("recompute_method not given: uniform", "recompute_method uniform"))
    if training.recompute_num_layers is None:
        changes["recompute_num_layers"] = 1
        notes.append("recompute_num_layers not given: 1")
    return dataclasses.replace(training, **changes), notes


def decide_layout(
    model: Model,
    values: dict[str, Any],
    training: Training,
    num_gpus: int | None,
    given: Mapping[str, Any],
    *,
    habits: bool,
    strict: bool,
    single_microbatch: bool,
) -> tuple[Layout, list[str], int, Training]:
    """The layout, what was decided for it, the microbatches of a step, and the training with its global batch."""
    notes: list[str] = []
    values = dict(values)
    given_world = values.pop("world_size", None)
    world = given_world if num_gpus is None else num_gpus
    draft = Layout(**values)
    for degree in ("tp", "pp", "cp", "ep", "etp"):
        whole_number(SHORT[degree], getattr(draft, degree))
    if habits and "sequence_parallel" not in given:
        values["sequence_parallel"] = draft.tp > 1 and (draft.etp == 1 or model.has_moe)
        if values["sequence_parallel"]:
            notes.append(Assumption("sequence_parallel on (tensor_model_parallel_size above 1)", "sequence_parallel"))
    if world is None:
        world = fewest_gpus(draft.tp * draft.cp, draft.etp * draft.ep if model.num_moe_experts else 1, draft.pp)
        if habits and strict:
            raise ConfigError(f"num_gpus is not given; the smallest legal count is {world}")
        notes.append(_smallest(world, habits=habits))
    layout, split_notes = _split(
        model, Layout(world_size=whole_number("num_gpus", world), **values), strict=strict, habits=habits
    )
    microbatches, batch_notes, training = _microbatches(model, layout, training, single=single_microbatch)
    return layout, notes + split_notes + batch_notes, microbatches, training


def _smallest(world: int, *, habits: bool) -> Assumption:
    """What is said of a number of GPUs that nothing gives; of a run's file it stands above the figures."""
    if habits:
        return Assumption(f"num_gpus not given: {world}, the smallest legal count", f"num_gpus {world}")
    return Assumption(
        f"num_gpus not given: {world}, the smallest legal count, which is the worst case; --num-gpus sets it",
        f"num_gpus {world}",
        above=True,
    )


def _split(model: Model, layout: Layout, *, strict: bool, habits: bool) -> tuple[Layout, list[str]]:
    """The most balanced legal split where layers do not divide over pipeline stages and none was given."""
    pp = layout.pp
    chosen = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    if not habits or pp == 1 or any(n is not None for n in chosen) or layout.pipeline_model_parallel_layout:
        return layout, []
    if layout.num_layers_per_virtual_pipeline_stage is not None or (
        model.hybrid and "|" in (model.hybrid_layer_pattern or "")
    ):
        return layout, []
    vp = layout.virtual_pipeline_model_parallel_size or 1
    total = split_layers(model, layout)
    if model.moe_n_hash_layers and not model.hybrid and vp > 0 and (text := even_layout(total, pp * vp, model.mtp)):
        said = f"moe_n_hash_layers needs a pipeline_model_parallel_layout: {text}, layers as even as can be"
        changed = dataclasses.replace(
            layout, pipeline_model_parallel_layout=text, virtual_pipeline_model_parallel_size=None
        )
        return changed, [Assumption(said, f"layout {text}")]
    if vp < 1 or (total % pp == 0 and total // pp % vp == 0) or total != model.num_layers:
        return layout, []
    split = balanced_split(model.num_layers, pp, vp)
    if split is None:
        return layout, []
    first, last = split
    words = ", ".join(
        f"{name}={n}"
        for name, n in zip(
            ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"), split, strict=True
        )
        if n is not None
    )
    if strict:
        raise ConfigError(
            f"num_layers={total} is not divisible by pipeline_model_parallel_size={pp}; the most balanced split is {words}"
        )
    changed = dataclasses.replace(
        layout, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last
    )
    short = ", ".join(f"{n} layers {where}" for where, n in (("first", first), ("last", last)) if n is not None)
    said = Assumption(f"{total} layers do not divide over {pp} stages: {words}, the most balanced legal split", short)
    return changed, [said]


def _microbatches(model: Model, layout: Layout, training: Training, *, single: bool) -> tuple[int, list[str], Training]:
    """Microbatches of a step from the global batch; without one so many that more would change nothing, or one."""
    if layout.world_size % (layout.tp * layout.pp * layout.cp) or layout.dp < 1:
        return 1, [], training  # legality says why
    per_step = training.micro_batch_size * layout.dp
    if training.global_batch_size is not None:
        if training.global_batch_size % per_step:
            raise ConfigError(
                f"global_batch_size={training.global_batch_size} is not divisible by micro_batch_size*data_parallel_size="
                f"{training.micro_batch_size}*{layout.dp}={per_step}; use a multiple of {per_step}"
            )
        return training.global_batch_size // per_step, [], training
    try:
        vp = virtual_stages(model, layout)
    except ConfigError:
        vp = 1
    except ValueError:
        return 1, [], training
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    count = 1 if single else saturating_microbatches(layout.pp, max(vp, 1), max(group, 1))
    why = "Megatron's default" if single else "more would not change the peak"
    note = f"global_batch_size not given: {count * per_step} ({count} microbatch{'es' if count > 1 else ''}, {why})"
    return count, [note], dataclasses.replace(training, global_batch_size=count * per_step)
