"""The words of a plan: what it has in common with the others, and the rest of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..job.layout import SHORT
from ..job.training_job import TrainingJob
from ..planner.found import Plan
from ..planner.space.features import FEATURES
from ..wording import counted
from .document import features_text, settings_of

Word = Callable[[Plan], str]


def optimizer_text(plan: Plan) -> str:
    """What the optimizer is beside its name."""
    t = plan.job.training
    words = [
        "distributed optimizer" if t.use_distributed_optimizer else "plain optimizer",
        *(["precision-aware"] if t.use_precision_aware_optimizer else []),
        *([f"{t.optimizer_offload_fraction:.0%} offloaded"] if t.optimizer_cpu_offload else []),
    ]
    return ", ".join(words)


def layout_text(plan: Plan) -> str:
    """A layout in one line."""
    layout, t = plan.job.layout, plan.job.training
    words = [f"tp {layout.tp}", f"cp {layout.cp}", f"pp {layout.pp}", *([plan.pipeline] if plan.pipeline else [])]
    if plan.job.model.num_moe_experts:
        words += [f"ep {layout.ep}", f"etp {layout.etp}"]
    words += [f"micro batch {t.micro_batch_size}", f"recompute {plan.recompute}", *features_text(t)]
    return ", ".join(words)


BOUND = "\u00a0"
"""A space at which no line ends."""
SILENT = ("", "even split", "vpp 1")
"""Words of a layout that go without saying."""
NARROWEST = 26
"""Columns that a layout needs beside the numbers; where there are fewer, it stands on lines of its own."""


def split_of(plan: Plan) -> str:
    if plan.job.layout.pipeline_model_parallel_layout:
        return "pipeline layout"
    if plan.job.model.has_borders:
        return "borders in the pattern"
    text = plan.split
    return "even split" if text == "even" else f"uneven split {text}"


def context_of(plan: Plan) -> str:
    layout = plan.job.layout
    return f"cp {layout.cp} {layout.cp_comm_type[0]}" if layout.cp > 1 else "cp 1"


def _experts(name: str) -> Word:
    return lambda plan: f"{name} {getattr(plan.job.layout, name)}" if plan.job.model.num_moe_experts else ""


def _sequence_parallel(plan: Plan) -> str:
    layout = plan.job.layout
    return "no sequence parallelism" if layout.tp > 1 and not layout.sequence_parallel else ""


QUIET = ("gradient-overlap", "expandable-segments", "precision-aware", "fused-router", "fused-activation")
"""Features that other words of a plan say, or what was assumed."""
CHANGES = "*"
"""Behind a feature that changes the numbers that are computed."""


def _feature(group: str) -> Word:
    names = [name for name, one in FEATURES.items() if one.group == group and name not in QUIET]

    def word(plan: Plan) -> str:
        on = next((FEATURES[name] for name in names if name in plan.features), None)
        return on.says + (CHANGES if on.numerics else "") if on else ""

    return word


OF_THE_RUN: tuple[Word, ...] = (
    lambda plan: counted(plan.job.layout.world_size, "GPU"),
    _experts("etp"),
    _sequence_parallel,
    lambda plan: plan.precision,
    optimizer_text,
    lambda plan: f"sequence {plan.job.training.seq_length}",
    lambda plan: f"global batch {plan.job.training.global_batch_size}",
)
"""What is usually the same in all plans."""
OF_A_PLAN: tuple[Word, ...] = (
    lambda plan: f"tp {plan.job.layout.tp}",
    context_of,
    lambda plan: f"pp {plan.job.layout.pp}",
    lambda plan: f"vpp {plan.virtual}",
    split_of,
    _experts("ep"),
    lambda plan: f"micro batch {plan.job.training.micro_batch_size}",
    lambda plan: f"recompute {plan.recompute}",
)
"""What is usually searched."""
OF_FEATURES: tuple[Word, ...] = tuple(map(_feature, dict.fromkeys(one.group for one in FEATURES.values())))
"""What is on beside that."""


def listed(words: Iterable[str]) -> str:
    """Words of a layout with commas; what belongs together and is short is not torn apart at the end of a line."""
    return ", ".join(word.replace(" ", BOUND) if len(word) <= NARROWEST else word for word in words)


def plain(text: str) -> str:
    """The text as it is printed."""
    return text.replace(BOUND, " ")


PLAIN = "nothing more"
"""The rest of a plan that has only what all of them have."""


def said_once(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """What all plans have in common, and for each plan the rest of its layout in words."""
    common = [words[0] for words in _each(plans, OF_THE_RUN) if len(set(words)) == 1]
    rest = [words for words in _each(plans, OF_THE_RUN) if len(set(words)) > 1]
    for words in _each(plans, (*OF_A_PLAN, *OF_FEATURES)):
        if len(plans) > 1 and len(set(words)) == 1:
            common.append(words[0])
        else:
            rest.append(words)
    each = zip(*rest, strict=True) if rest else iter([()] * len(plans))
    return [word for word in common if word not in ("", "even split")], [
        listed(word for word in words if word not in SILENT) or PLAIN for words in each
    ]


def in_short(plan: Plan) -> str:
    """The layout of a plan, and how many features are on beside it."""
    words = (word for (word,) in _each([plan], OF_A_PLAN) if word not in SILENT)
    number = sum(bool(word) for (word,) in _each([plan], OF_FEATURES))
    return plain(listed([*words, *([counted(number, "feature")] if number else [])]))


def _each(plans: Sequence[Plan], words: Sequence[Word]) -> list[list[str]]:
    return [[word(plan) for plan in plans] for word in words]


def plan_settings(job: TrainingJob, asked: TrainingJob | None) -> dict[str, Any]:
    """The settings of a plan's job that say its layout, and all others that were not asked for."""
    asked = asked or job
    layout, training = job.layout, job.training
    found: dict[str, Any] = {"num_gpus": layout.world_size, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp}
    if job.model.num_moe_experts:
        found |= {"ep": layout.ep, "etp": layout.etp}
    found["micro_batch_size"] = training.micro_batch_size
    if job.model.hybrid_layer_pattern != asked.model.hybrid_layer_pattern:
        found["hybrid_layer_pattern"] = job.model.hybrid_layer_pattern
    said = {"world_size", "micro_batch_size", SHORT["etp"], *(SHORT[name] for name in found if name in SHORT)}
    for part, before in ((layout, asked.layout), (training, asked.training), (job.env, asked.env)):
        for name, value in settings_of(part).items():
            if name not in said and value != settings_of(before)[name]:
                found[name] = value
    return found
