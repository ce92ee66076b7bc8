"""What library versions and settings that nothing gives may change: peaks with each that the run may have, beside the estimate's.

The library versions at which Megatron-Core or TransformerEngine changed what is kept.

A rule of the engine that asks for a version has its entry in `CHANGES`; a test reads the comparisons of the tree and holds the table to
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .errors import EstimatorError
from .estimator import Estimate, Stage, stage_of
from .job.assumption import Assumption
from .job.hardware import CORE, GIB, LIBRARIES, TE, OpenVersion, Version, before, text_of
from .job.training_job import TrainingJob
from .states.optimizers import OPTIMIZERS
from .wording import dashed

PEAK, LOADING = "at the peak", "while loading a checkpoint"
MOST_LAYERS = 1000
"""Layers up to which versions are tried: no model has more, and each version is an estimate of its own."""
MATTERS = 0.01
"""Share of a figure that a version must move to be said."""


class Effect(NamedTuple):
    """The change from the assumed version to older ones: versions, phase, and bytes added to the peak."""

    low: Version
    below: Version
    phase: str
    more: int
    why: str


def assumptions(found: Estimate) -> tuple[str, ...]:
    """Decisions for what was not given, and the effect of other front ends and older libraries where it matters."""
    return (*found.job.assumptions, *too_many_layers(found), *setting_notes(found), *version_notes(found))


def too_many_layers(found: Estimate) -> tuple[str, ...]:
    """That nothing is compared, where a model has more layers than that takes time for."""
    if found.job.model.num_layers <= MOST_LAYERS or not (found.job.open_settings or found.job.open_versions):
        return ()
    return (f"other versions and front ends are not compared: the model has more than {MOST_LAYERS:,} layers",)


def setting_notes(found: Estimate) -> tuple[Assumption, ...]:
    """A note for each setting that nothing gives, and that another door decides otherwise, moving the peak by more than 1 %."""
    if found.job.model.num_layers > MOST_LAYERS:
        return ()
    now = found.peak_stage.peak_allocated_bytes
    notes = []
    for one in found.job.open_settings:
        try:
            then = _with(found.job, found.peak_stage.pp_rank, dict(one.values)).peak_allocated_bytes
        except EstimatorError:  # refused in this run
            continue
        more = f"{(then - now) / GIB:+.1f} GiB"
        if abs(then - now) > MATTERS * now:
            said = f"{one.name} not given: {one.taken}; {one.other}, would be {more} {PEAK} ({one.flag})"
            notes.append(Assumption(said, f"{one.short} ({one.door} does otherwise: {more})"))
    return tuple(notes)


def _with(job: TrainingJob, rank: int, settings: dict[str, Any]) -> Stage:
    """A stage of the job with other settings of the training."""
    return stage_of(dataclasses.replace(job, training=dataclasses.replace(job.training, **settings)), rank)


def version_notes(found: Estimate) -> tuple[Assumption, ...]:
    """A note for each version that nothing gives and that moves the peak, or what a load takes, by more than 1 %."""
    if found.job.model.num_layers > MOST_LAYERS:
        return ()
    return tuple(note for one in found.job.open_versions if (note := _note(found, one)) is not None)


def _note(found: Estimate, one: OpenVersion) -> Assumption | None:
    effects = [effect for loading in (False, True) for effect in effects_of(found, one, loading=loading)]
    if not effects:
        return None
    library, taken = LIBRARIES[one.setting], text_of(one.high)
    said = "; ".join(f"with {library} {_span(one, effect)}: {_more(effect)} ({effect.why})" for effect in effects)
    short = "; ".join(
        f"{_span(one, effect)}: {effect.more / GIB:+.1f} GiB" for effect in effects if effect.phase == PEAK
    )
    return Assumption(
        f"{one.setting} not given: {taken}; {said}; {dashed(one.setting)} or --container says which",
        f"{library} {taken} ({short})" if short else "",
    )


def _span(one: OpenVersion, effect: Effect) -> str:
    last = before(effect.below)
    if effect.low == one.low:
        return f"before {text_of(effect.below)}"
    return text_of(last) if last == effect.low else f"{text_of(effect.low)} to {text_of(last)}"


def _more(effect: Effect) -> str:
    return f"{effect.more / GIB:+.1f} GiB {effect.phase}"


def effects_of(found: Estimate, one: OpenVersion, *, loading: bool) -> list[Effect]:
    """What each older stretch of versions moves by more than 1 %, the newest first."""
    changes = changes_of(found.job, one, loading=loading)
    if not changes or (loading and "load" not in found.job.env.phases):
        return []
    measure = _loading if loading else _peak
    ranks = sorted({found.peak_stage.pp_rank, found.verdict().pp_rank}) if loading else [found.peak_stage.pp_rank]
    now = measure([found.stages[rank] for rank in ranks])
    effects = []
    for number, change in enumerate(changes):
        low = changes[number + 1].since if number + 1 < len(changes) else one.low
        older: dict[str, Any] = {one.setting: text_of(before(change.since))}
        try:
            then = measure([_with(found.job, rank, older) for rank in ranks])
        except EstimatorError:  # older versions refuse the run
            break
        phase = next((phase for phase in now if abs(then[phase] - now[phase]) > MATTERS * now[phase]), None)
        if phase is not None:
            effects.append(Effect(low, change.since, phase, then[phase] - now[phase], change.before))
    return joined(effects)


def _peak(stages: Sequence[Stage]) -> dict[str, int]:
    """Bytes at the peak of training."""
    return {PEAK: max(stage.peak_allocated_bytes for stage in stages)}


def _loading(stages: Sequence[Stage]) -> dict[str, int]:
    """Bytes on the device while a checkpoint is loaded, at least and at most."""
    loads = [stage.phase_ranges["load"] for stage in stages]
    return {
        f"{LOADING}, at least": max(load.low for load in loads),
        f"{LOADING}, at most": max(load.high for load in loads),
    }


def joined(effects: list[Effect]) -> list[Effect]:
    """Neighbouring stretches that move the same by as much, as one."""
    found: list[Effect] = []
    for one in effects:
        last = found[-1] if found else None
        if last is not None and last.low == one.below and last.phase == one.phase and _alike(last.more, one.more):
            found[-1] = last._replace(low=one.low)
        else:
            found.append(one)
    return found


def _alike(one: int, other: int) -> bool:
    return abs(one - other) <= 0.1 * max(abs(one), abs(other))


class VersionChange(NamedTuple):
    """A version since which something is kept in another way: what it was before, which runs it is about, and whether it is kept while
    a checkpoint is loaded."""

    setting: str
    since: Version
    before: str
    concerns: Callable[[TrainingJob], bool]
    loading: bool = False


def _fusion(job: TrainingJob) -> bool:
    return job.training.gradient_accumulation_fusion and not job.training.base_frozen


def _te_loss(job: TrainingJob) -> bool:
    return job.training.cross_entropy_loss_fusion and job.training.cross_entropy_fusion_impl == "te"


def _in_low_precision(job: TrainingJob) -> bool:
    return bool(job.training.low_precision)


def _by_matrix(job: TrainingJob) -> bool:
    return OPTIMIZERS[job.training.optimizer].by_matrix


def _core_017(job: TrainingJob) -> bool:
    t = job.training
    bare_mla = job.model.multi_latent_attention and job.model.q_lora_rank is None
    return bare_mla or t.use_megatron_fsdp or t.cuda_graph_impl != "none" or _by_matrix(job)


CHANGES = (
    VersionChange(TE, (2, 0), "torch FSDP2 gathered fp8 parameters", lambda job: job.training.use_torch_fsdp2),
    VersionChange(TE, (2, 1), "whole fp32 main parameters", lambda job: job.training.use_precision_aware_optimizer),
    VersionChange(TE, (2, 3), "a gradient of its own for each weight in backward", _fusion),
    VersionChange(TE, (2, 6), "quantized copies of inputs that are kept anyway", _in_low_precision),
    VersionChange(TE, (2, 7), "fewer userbuffers; nvfp4 copies of inputs that are kept anyway",
                  lambda job: job.training.tp_comm_overlap or job.training.low_precision == "nvfp4"),
    VersionChange(TE, (2, 13), "bf16 moments unscaled to fp32 in the step", lambda job: job.training.exp_avg_dtype == "bf16"),
    VersionChange(TE, (2, 14), "smaller cuBLAS workspaces on Blackwell", lambda job: job.gpu.capability[0] >= 10),
    VersionChange(TE, (2, 18), "the gradient of the logits written into them", _te_loss),
    VersionChange(TE, (2, 19), "the gradient of the logits allocated in backward", _te_loss),
    VersionChange(TE, (2, 20), "every key, value and output of a ring until its end", lambda job: job.layout.cp > 1),
    VersionChange(CORE, (0, 13), "probabilities that weigh the rows of experts when they return", lambda job: job.model.has_moe),
    VersionChange(CORE, (0, 14), "a gradient of its own for the output layer's weight", _fusion),
    VersionChange(CORE, (0, 15), "no rows kept where tokens are added up",
                  lambda job: job.model.has_moe and job.training.deterministic_mode),
    VersionChange(CORE, (0, 16), "rows that were sent, while what came back is un-permuted", lambda job: job.model.has_moe),
    VersionChange(CORE, (0, 17), "other norms, sharded gradients, graph buffers or owners", _core_017),
    VersionChange(CORE, (0, 18), "buffers not laid out by whole matrices", _by_matrix),
    VersionChange(CORE, (0, 19), "the embedding of an MTP stage as a matrix; Mamba's convolution behind its heads in buffers",
                  lambda job: _by_matrix(job) or "mamba" in " ".join(job.model.every_kind)),
    VersionChange(CORE, (0, 20), "Mamba's in_proj as a matrix of Muon's", _by_matrix),
    VersionChange(CORE, (0, 17), "16-bit copies of low-precision weights, surely", _in_low_precision, True),
    VersionChange(CORE, (0, 19), "16-bit copies of low-precision weights, perhaps", _in_low_precision, True),
    VersionChange(CORE, (0, 19), "FusedAdam's state twice, by Megatron-Bridge before 0.6.0",
                  lambda job: job.training.checkpoint_loader == "megatron_bridge", True),
)  # fmt: skip
"""By library, the oldest first."""


def changes_of(job: TrainingJob, one: OpenVersion, *, loading: bool) -> list[VersionChange]:
    """The changes within what a version may be that concern a run, or its loading, the newest first."""
    mine = (change for change in CHANGES if (change.setting, change.loading) == (one.setting, loading))
    held = (change for change in mine if one.low < change.since <= one.high)
    return sorted((change for change in held if change.concerns(job)), key=lambda change: change.since, reverse=True)
