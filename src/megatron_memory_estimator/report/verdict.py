"""The verdict: on the run's GPU in one sentence, on the others in one line or a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..device.terms import Range
from ..device.verdict import VERDICTS, Verdict, Word
from ..estimator import Estimate, Stage
from ..job.choices import PHASES
from ..job.hardware import GPUS
from ..legality.precision import has_recipe
from .quantities import bounds_text, gib, plural

if TYPE_CHECKING:
    from rich.table import Table

STYLES: dict[Word, str] = {
    "fits": "green", "fits only without fragmentation": "yellow", "tight": "yellow", "does not fit": "red",
}  # fmt: skip
WHILE = {
    "training": "in training",
    "load": "while loading a checkpoint with optimizer state",
    "save": "while saving a checkpoint",
    "build": "while building the model",
    "generation": "while samples are generated",
    "log_probs": "while log-probabilities are computed",
    "reference": "in the reference's forward",
    "weight_sync": "while the engine gets the new weights",
}
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def room_text(room: Range) -> str:
    """Head-room in words, the worst first."""
    worst, best = gib(abs(room.low), 1), gib(abs(room.high), 1)
    if room.low >= 0:
        return f"{worst} to {best} GiB left"
    if room.high < 0:
        return f"{best} to {worst} GiB too much"
    return f"{worst} GiB too much to {best} GiB left"


def verdict_text(found: Verdict, estimate: Estimate) -> str:
    """The verdict with its numbers, the stage and the moment that decide it."""
    stages = estimate.stages
    where = f"on stage {found.pp_rank} of {len(stages)}" if len(stages) > 1 else _every_gpu(stages[0])
    when = WHILE[found.phase]
    if found.phase == "training":
        when += f" ({stages[found.pp_rank].peak.candidate.label})"
    held = estimate.job.env.phases
    judged = "" if set(held) == set(PHASES) else f" ({' and '.join(held)} alone judged)"
    judged += f" ({found.not_counted})" if found.not_counted else ""
    text = f"{found.word}{judged}, {room_text(found.head_room)}: {_takes(estimate)} of {gib(found.memory_bytes, 1)} GiB {where} {when}"
    if found.word == "fits only without fragmentation":
        text += f"; with {ALLOCATOR} it fits, {gib(estimate.without_fragmentation, 1)} at most"
    return text


def _every_gpu(stage: Stage) -> str:
    """All GPUs of a single stage, or the one whose parameters are the estimate's."""
    owners = [buffer.owner for buffer in stage.rank.buffers if buffer.dealt and not buffer.expert]
    return f"on data-parallel rank {owners[0]}" if owners else "on every GPU"


def _takes(estimate: Estimate) -> str:
    """The device range; where its ends are of two phases, which."""
    ends = [
        max((getattr(found, end), name) for stage in estimate.stages for name, found in stage.phase_ranges.items())
        for end in ("low", "high")
    ]
    (low, first), (high, last) = ends
    if first == last:
        return f"{gib(low, 1)} to {gib(high, 1)}"
    return f"{gib(low, 1)} ({first}) to {gib(high, 1)} ({last})"


def verdict_sentence(estimate: Estimate) -> str:
    """The verdict for the job's GPU: what the command line prints first."""
    found = estimate.verdict()
    return f"{found.gpu}: {verdict_text(found, estimate)}"


def verdict_line(estimate: Estimate) -> str:
    """The verdict for the job's GPU, marked up."""
    found = estimate.verdict()
    text = verdict_text(found, estimate)
    return f"[bold {STYLES[found.word]}]{found.gpu}: {found.word}[/]{text.removeprefix(found.word)}"


def training_alone(found: Verdict, estimate: Estimate) -> list[str]:
    """What training takes where another phase decides that a run does not surely fit."""
    if found.phase == "training" or found.word == "fits":
        return []
    alone = max((stage.phase_ranges["training"] for stage in estimate.stages), key=lambda one: one.high)
    return [f"Training alone takes {bounds_text(alone)} GiB (--phases training judges nothing else)."]


def short_names() -> dict[str, str]:
    """GPUs by name, without their memory where that is clear."""
    families = [gpu.name.rsplit("-", 1)[0] for gpu in GPUS]
    return {
        gpu.name: family if families.count(family) == 1 else gpu.name
        for gpu, family in zip(GPUS, families, strict=True)
    }


def other_gpus(estimate: Estimate) -> dict[str, list[str]]:
    """The rest of the catalogue by verdict, the best first."""
    found, names = estimate.verdicts(), short_names()
    groups: dict[str, list[str]] = {
        word: [names[one.gpu] for one in found if one.word == word and one.gpu != estimate.job.gpu.name]
        for word in VERDICTS
    }
    return {word: members for word, members in groups.items() if members}


def others_line(estimate: Estimate, width: int) -> str:
    """The other GPUs in one line: where it would be too long, the number of those that do not fit."""
    groups = other_gpus(estimate)
    words = {"fits": "also fits", "fits only without fragmentation": "only unfragmented", "does not fit": "not"}
    parts = [f"{words.get(word, word)} {', '.join(names)}" for word, names in groups.items()]
    training = estimate.job.training
    without = sum(not has_recipe(training, gpu) for gpu in GPUS)
    lacking = [f"{without} lack the {training.low_precision} recipe"] if without else []
    line = "GPUs: " + "; ".join([*parts, *lacking])
    if len(line) > width and len(parts) > 1 and "does not fit" in groups:
        count = len(groups["does not fit"])
        line = "GPUs: " + "; ".join([*parts[:-1], f"not {count} other{plural(count)}", *lacking])
    return line


def next_step(estimate: Estimate) -> str:
    """The command to type next."""
    found = estimate.verdict()
    if found.fits:
        training = found.phase == "training"
        stage, which = (
            (found.pp_rank, "that peak") if training else (estimate.peak_stage.pp_rank, "the peak of training")
        )
        return f"Next: `megatron-memory explain ... --stage {stage}` names every tensor of {which}"
    if estimate.job.rollout.has_phases:
        return "Next: `megatron-memory advise ...` (what to change)"
    return "Next: `megatron-memory advise ...` (what to change), `plan ...` (all layouts)"


def gpu_table(estimate: Estimate) -> Table:
    """The verdict for every GPU of the catalogue with its head-room."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("GPU", "memory GiB", "verdict", "head-room GiB"):
        table.add_column(name, no_wrap=name != "verdict", overflow="fold")
    for one in estimate.verdicts():
        table.add_row(
            one.gpu, gib(one.memory_bytes, 1), f"[{STYLES[one.word]}]{one.word}[/]", bounds_text(one.head_room)
        )
    return table
