"""The verdict: on the run's GPU in a sentence for training and one for each phase that changes it, on the others in a line or a table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..device.verdict import VERDICTS, Event, Verdict, Word
from ..errors import EstimatorError
from ..estimator import Estimate, Stage
from ..estimator import estimate as estimated
from ..job.assumption import Uncounted, bound
from ..job.choices import PHASES
from ..job.hardware import GIB, GPUS
from ..legality.precision import has_recipe
from ..wording import all_of, filled, sentence
from .quantities import bounds_text, gib

if TYPE_CHECKING:
    from rich.table import Table

STYLES: dict[Word, str] = {
    "fits": "green", "fits only without fragmentation": "yellow", "tight": "yellow", "does not fit": "red",
}  # fmt: skip


class Doing(NamedTuple):
    """What a run does in a phase: that it does it, what it does, and what takes the bytes then."""

    does: str
    do: str
    what: str


DOES = {
    "training": Doing("Trains", "train", "training"),
    "first_step": Doing("Takes its first step", "take its first step", "the first step"),
    "load": Doing("Resumes with optimizer state", "resume with optimizer state", "loading"),
    "save": Doing("Saves a checkpoint", "save a checkpoint", "saving"),
    "build": Doing("Is built", "be built", "building the model"),
    "generation": Doing("Generates samples", "generate samples", "generation"),
    "log_probs": Doing("Computes log-probabilities", "compute log-probabilities", "computing log-probabilities"),
    "reference": Doing("Runs the reference's forward", "run the reference's forward", "the reference's forward"),
    "weight_sync": Doing("Gives the engine new weights", "give the engine new weights", "the exchange of weights"),
}
DATA_PARALLEL_ALONE = "No layout was given, so this is data parallelism alone"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
WAYS_OUT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--dist-ckpt-optim-fully-reshardable", {"dist_ckpt_optim_fully_reshardable": True}),
    ("Megatron-Bridge's loader (checkpoint_loader)", {"checkpoint_loader": "megatron_bridge"}),
    ("--no-load-optim", {"load_optim": False}),
)
"""What makes loading smaller, the mildest first."""


class Sentence(NamedTuple):
    """A sentence of a verdict, and the word of the phase that it is about."""

    text: str
    word: Word


def sentences(found: Verdict, estimate: Estimate) -> list[Sentence]:
    """The verdict: training first, then each other phase that changes the answer, with its own figures and its way out. What cannot be
    built never trains: that comes before."""
    first, *others = found.events
    said = [Sentence(f"{_first(first, found, estimate)}.", first.word)]
    for event in others:
        if VERDICTS.index(event.word) > VERDICTS.index(first.word):
            never = event.phase == "build" and event.word == VERDICTS[-1]
            text = _other(event, found, estimate, _on(found, estimate) if never else "")
            said.insert(0 if never else len(said), Sentence(f"{text}.", event.word))
    held = estimate.job.env.phases
    if set(held) != set(PHASES):
        said.append(Sentence(f"Nothing but {all_of([DOES[name].what for name in held])} is judged.", found.word))
    if found.not_counted:
        said.append(Sentence(sentence(found.not_counted), found.word))
    if estimate.job.uncounted:
        said.append(Sentence(sentence(uncounted_text(estimate.job.uncounted)), found.word))
    return said


BOUNDS = {
    "upper": "the figures are an upper bound",
    "lower": "the figures are a lower bound",
    "": "the figures may be off either way",
}


def uncounted_text(uncounted: Sequence[Uncounted]) -> str:
    """The arguments that the figures are without, and what these are then."""
    named = [f"{one.argument} {one.whose}".strip() for one in uncounted]
    signs = {one.sign for one in uncounted}
    does = {"lowers": "lowers memory", "raises": "raises memory"}.get(signs.pop(), "") if len(signs) == 1 else ""
    if does and len(named) > 1:
        does = does.replace("s memory", " memory")
    return f"not counted: {all_of(named)}{f', which {does}' if does else ''}; {BOUNDS[bound(uncounted)]}"


def _on(found: Verdict, estimate: Estimate) -> str:
    """The GPUs of the run."""
    return f"on {estimate.job.layout.world_size} {found.gpu}"


def _first(event: Event, found: Verdict, estimate: Estimate) -> str:
    """Training on the GPUs of the run."""
    doing, memory = DOES[event.phase], event.memory_bytes
    worst, best = (_apart(memory, needed) for needed in (event.device.high, event.device.low))
    on = _on(found, estimate)
    head = {
        "fits": f"{doing.does} {on}, at least {worst} left",
        "fits only without fragmentation": f"{doing.does} {on} only without fragmentation",
        "tight": f"Might not {doing.do} {on}, up to {worst} too much",
        "does not fit": f"Cannot {doing.do} {on}, at least {best} too much",
    }[event.word]
    needs = f"needs {bounds_text(event.device)} of {gib(event.memory_bytes, 1)} GiB {where(event, estimate)}"
    return f"{head}: {needs}{_moment(event, estimate)}{_without_fragmentation(event)}"


def _moment(event: Event, estimate: Estimate) -> str:
    """What torch has allocated of it at the peak of training, and what runs then."""
    if event.phase != "training":
        return ""
    stage = estimate.stages[event.pp_rank]
    return f" ({gib(stage.peak_allocated_bytes, 1)} GiB allocated at the peak: {stage.peak.candidate.label})"


def _apart(one: int, other: int) -> str:
    """How far two figures are apart as they are printed, so that a reader who subtracts them gets the same."""
    return f"{abs(round(one / GIB, 1) - round(other / GIB, 1)):.1f} GiB"


def _other(event: Event, found: Verdict, estimate: Estimate, on: str = "") -> str:
    """Another phase, which needs more than training."""
    doing = DOES[event.phase]
    on = f" {on}" if on else ""
    worst, best = (_apart(event.memory_bytes, needed) for needed in (event.device.high, event.device.low))
    head = {
        "fits only without fragmentation": f"{doing.does} only without fragmentation",
        "tight": f"Might not {doing.do}, up to {worst} too much",
        "does not fit": f"Cannot {doing.do}{on}, at least {best} too much",
    }[event.word]
    needs = f"{doing.what} takes {bounds_text(event.device)} GiB {where(event, estimate)}"
    way = way_out(found, estimate) if event.phase == "load" else ""
    return f"{head}: {needs}{_without_fragmentation(event)}{'; ' if way else ''}{way}"


def _without_fragmentation(event: Event) -> str:
    if event.word != "fits only without fragmentation":
        return ""
    return f"; with {ALLOCATOR} it fits, at least {_apart(event.memory_bytes, event.unfragmented)} left"


def way_out(found: Verdict, estimate: Estimate) -> str:
    """The mildest setting with which loading fits, and what it leaves; else the one with which loading takes least, and how much."""
    job, said = estimate.job, ""
    least = found.event("load").device.high
    for name, change in WAYS_OUT:
        if all(getattr(job.training, key) == value for key, value in change.items()):
            continue
        try:
            changed = estimated(replace(job, training=replace(job.training, **change)))
        except EstimatorError:
            continue
        load = changed.verdict(found.memory_bytes, found.gpu).event("load")
        if load.word == "fits":
            return f"with {name} loading fits, {_apart(found.memory_bytes, load.device.high)} left"
        if load.device.high < least:
            least, said = load.device.high, f"with {name} {bounds_text(load.device)} GiB"
    return said


def where(event: Event, estimate: Estimate) -> str:
    """The stage that needs most."""
    stages = estimate.stages
    return f"on stage {event.pp_rank} of 0-{len(stages) - 1}" if len(stages) > 1 else _every_gpu(stages[0])


def verdict_text(found: Verdict, estimate: Estimate) -> str:
    """The verdict as text: what every door says first."""
    return " ".join(one.text for one in sentences(found, estimate))


def _every_gpu(stage: Stage) -> str:
    """All GPUs of a single stage, or the one whose parameters are the estimate's."""
    owners = [buffer.owner for buffer in stage.rank.buffers if buffer.dealt and not buffer.expert]
    return f"on data-parallel rank {owners[0]}" if owners else "on every GPU"


def verdict_sentence(estimate: Estimate) -> str:
    """The verdict for the job's GPU: what the command line prints first."""
    return verdict_text(estimate.verdict(), estimate)


def verdict_line(estimate: Estimate) -> str:
    """The same marked up: what a run does and does not do is coloured."""
    from .markup import escape

    said = []
    for one in sentences(estimate.verdict(), estimate):
        head, colon, rest = one.text.partition(": ")
        said.append(f"[bold {STYLES[one.word]}]{escape(head)}[/]{colon}{escape(rest)}" if colon else escape(one.text))
    return " ".join(said)


def short_names() -> dict[str, str]:
    """GPUs by name, without their memory where that is clear."""
    families = [gpu.name.rsplit("-", 1)[0] for gpu in GPUS]
    return {
        gpu.name: family if families.count(family) == 1 else gpu.name
        for gpu, family in zip(GPUS, families, strict=True)
    }


def other_gpus(estimate: Estimate) -> dict[Word, list[str]]:
    """The rest of the catalogue by verdict, the best first."""
    found, names = estimate.verdicts(), short_names()
    groups: dict[Word, list[str]] = {
        word: [names[one.gpu] for one in found if one.word == word and one.gpu != estimate.job.gpu.name]
        for word in VERDICTS
    }
    return {word: members for word, members in groups.items() if members}


FOLDED: tuple[Word, ...] = ("does not fit", "fits", "tight", "fits only without fragmentation")
"""Verdicts whose GPUs are counted where a line has no room for their names, the first first."""


def others_line(estimate: Estimate, width: int) -> str:
    """The other GPUs in one line of so many characters: counted instead of named where it would be longer."""
    groups = other_gpus(estimate)
    listed = {word: all_of(names) for word, names in groups.items()}
    training = estimate.job.training
    without = sum(not has_recipe(training, gpu) for gpu in GPUS)
    lacking = [f"{without} without the {training.low_precision} recipe"] if without else []

    def line() -> str:
        parts = [_said_of(word, names, listed[word], too=estimate.verdict().fits) for word, names in groups.items()]
        if list(groups) == ["does not fit"]:
            parts = ["none of the catalogue fits"]
        return f"Other GPUs: {'; '.join([*parts, *lacking])}."

    for word in FOLDED:
        if word in groups and len(line()) > width:
            listed[word] = str(len(groups[word]))
    return line()


def _said_of(word: Word, names: Sequence[str], listed: str, *, too: bool) -> str:
    """What GPUs of a verdict do; they fit `too` where the run's own does."""
    fit, do = ("fits", "does") if len(names) == 1 else ("fit", "do")
    return {
        "fits": f"{listed} {fit}{' too' if too else ''}",
        "fits only without fragmentation": f"{listed} {fit} with expandable segments",
        "tight": f"{listed} may fit",
        "does not fit": f"{listed} {do} not",
    }[word]


def next_step(estimate: Estimate, words: Sequence[str] = (), width: int = 100) -> list[str]:
    """The command to type next and what it says, in lines that can be pasted whole; `words` say the run."""
    found = estimate.verdict()
    if found.fits or estimate.job.gpu.chip_unknown:  # without step times nothing is advised
        stage = estimate.peak_stage.pp_rank if found.phase != "training" else found.pp_rank
        verb, more, says = "explain", ["--stage", str(stage)], "every tensor of that peak"
    else:
        verb, more, says = "advise", [], "what to change"
    return next_lines(verb, words, more, says, width)


def next_lines(verb: str, words: Sequence[str], more: Sequence[str], says: str, width: int) -> list[str]:
    """A command to type next, and what it says where there is room for that."""
    lines = command_lines(verb, words, more, width, "Next:")
    note = f"  # {says}"
    return [*lines[:-1], lines[-1] + note] if len(lines[-1] + note) <= width else lines


def command_lines(verb: str, words: Sequence[str], more: Sequence[str], width: int, before: str = "") -> list[str]:
    """A command in lines that can be pasted whole: `words` say the run, `more` stand in front of what is behind their `--`."""
    given = list(words) if words and all(word.isprintable() for word in words) else ["..."]
    at = given.index("--") if "--" in given else len(given)
    model = given[at + 1 : at + 2] if given[at + 1 :] and not given[at + 1].startswith("-") else []  # a model behind --
    behind = given[at + 1 + len(model) :]
    command = [
        word if word == "..." else shlex.quote(word)
        for word in (*given[:at], *model, *more, *(["--", *behind] if behind else []))
    ]
    return filled([*([before] if before else []), "megatron-memory", verb, *command], width, " \\", "    ")


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
