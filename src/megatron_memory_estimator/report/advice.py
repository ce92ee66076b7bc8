"""What `advise` prints: the run as it is, and changes of it with what they save and cost; and both as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ..device.phases import lower_load
from ..device.verdict import Verdict
from ..job.layout import SHORT
from ..job.training_job import TrainingJob
from ..planner.advise import Advice, Outcome, cost_of
from ..planner.launch import off_flag
from ..wording import dashed
from .html import WORDS as COLOURS
from .html import fragment, sentence
from .html import table as html_table
from .quantities import document, gib, labelled, record, table
from .records import Record
from .verdict import ALLOCATOR, DATA_PARALLEL_ALONE, next_lines, verdict_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = "megatron-memory-advice/1"
FEWEST = "`megatron-memory plan MODEL --min-num-gpus` finds how many GPUs hold it"
LEGEND = {
    "needs": "what a GPU must have, least to most",
    "saves": "drop in the upper figure",
    "GPU time": "step time x GPUs, compared with your run",
}
HEADS = {"saves GiB": "saves\nGiB", "GPU time of a step": "GPU time\nper step"}
"""Columns whose heads stand in two lines."""
NARROW = 80
"""Columns below which a column is left out."""


def print_advice(advice: Advice, console: Console, command: Sequence[str] = ()) -> None:
    """The whole text report; `command` are the words that say the run, for the one to type next."""
    for line in (*now_lines(advice), *loading(advice), headline(advice)[1]):
        console.print(line, highlight=False, markup=False)
    if advice.outcomes:
        console.print(advice_table(advice, console.width))
        console.print("; ".join(f"{name}: {what}" for name, what in LEGEND.items()), highlight=False)
        for line in how(advice):
            console.print(line, highlight=False, markup=False)
    for note in advice.assumptions:
        console.print(f"assumed: {note}", highlight=False, markup=False)
    if advice.without_layout:
        more = [] if advice.now.job.only_data_parallel else ["--min-num-gpus"]
        for line in next_lines("plan", command, more, "searches layouts", console.width):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def headline(advice: Advice) -> tuple[str, str]:
    """The verdict of the run with the time of its step, and what the changes are."""
    return " ".join(now_lines(advice)), about(advice, advice.now.verdict(advice.limit))


def now_lines(advice: Advice) -> tuple[str, str]:
    """The verdict of the run, and the time of its step."""
    now = advice.now
    found = now.verdict(advice.limit)
    takes = "would take" if found.events[0].word == "does not fit" else "takes"
    return verdict_text(
        found, now.estimate
    ), f"A step {takes} {now.time.step:.3f} s ({now.time.tokens_per_s_gpu:,.0f} tokens/s/GPU)."


def loading(advice: Advice) -> Iterator[str]:
    """What would make a load smaller."""
    now = advice.now
    found = now.verdict(advice.limit)
    lower = lower_load(now.estimate.stages[found.pp_rank].rank) if found.phase == "load" else ""
    if lower and found.word != "fits" and found.events[0].word != "does not fit":
        yield f"Loading takes less with: {lower}."


def about(advice: Advice, found: Verdict) -> str:
    """What the changes are, or that there are none; where no layout was given, that a plan searches them."""
    if advice.without_layout:
        return f"{DATA_PARALLEL_ALONE}; `plan` searches layouts. {_changes(advice, found)}"
    return _changes(advice, found)


def _changes(advice: Advice, found: Verdict) -> str:
    if advice.faster:
        return (
            "Changes that keep it within memory and make it faster:"
            if advice.outcomes
            else "Nothing tried makes it faster."
        )
    if found.fits:
        return (
            "It fits; changes that leave more room, the least GPU time first:"
            if advice.outcomes
            else "Nothing tried saves memory."
        )
    if any(one.needed.high <= advice.limit for one in advice.outcomes):
        return "The smallest changes that make it fit even at worst, the least GPU time first:"
    if advice.outcomes:
        return f"No change, and none of those tried together (two to four), makes it fit even at worst; {FEWEST}. What saves most:"
    return f"Nothing tried saves memory; {FEWEST}."


def advice_table(advice: Advice, width: int) -> Table:
    """A row for each change, or changes together; in a narrow terminal without what they save."""
    from rich import box
    from rich.table import Table

    rows = [labelled(CHANGE, Considered(advice, one), "terminal") for one in advice.outcomes]
    gone = {"saves GiB"} if width < NARROW else set()
    if len({row["verdict"] for row in rows}) == 1:
        gone.add("verdict")
    names = [name for name in rows[0] if name not in gone]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("#")
    for name in names:
        left = name in ("change", "verdict")
        table.add_column(HEADS.get(name, name), justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for number, row in enumerate(rows, 1):
        table.add_row(str(number), *(row[name] for name in names))
    return table


def name_of(one: Outcome) -> str:
    """The changes of an outcome in one line."""
    return " + ".join(change.name for change in one.changes)


def cost(advice: Advice, one: Outcome) -> float:
    """How much longer a step takes on as many GPUs: GPU-seconds of a step, relative."""
    return cost_of(one) / cost_of(advice.now) - 1


def how(advice: Advice) -> Iterator[str]:
    """The options of each row, and what else is to know of its changes."""
    for number, one in enumerate(advice.outcomes, 1):
        yield f"{number}: {' '.join(option_words(one, advice.now.job))}"
    for note in dict.fromkeys(
        f"{change.name}: {change.note}" for one in advice.outcomes for change in one.changes if change.note
    ):
        yield f"note: {note}"


def option_words(one: Outcome, job: TrainingJob) -> Iterator[str]:
    """The settings of a changed run that differ from those of the run, as options; those that no option turns off behind `without`."""
    now = {**vars(job.layout), **vars(job.training), **vars(job.rollout), **vars(job.env)}
    given = {name: value for change in one.changes for name, value in change.settings if value != now[name]}
    if given.pop("expandable_segments", False):
        yield ALLOCATOR
    off = {name: flag for name, value in given.items() if value is False and (flag := off_flag(name))}
    gone = [name for name, value in given.items() if value in (None, False, ()) and name not in off]
    for name, value in given.items():
        if name not in gone:
            yield off.get(name) or option_text(name, value)
    if gone := [name for name in gone if now[name]]:
        yield "without " + " ".join(option_text(name, True) for name in gone)


def option_text(name: str, value: Any) -> str:
    """A setting as an option of the command."""
    if value is False:
        return f"--no-{dashed(name).removeprefix('--')}"
    word = "--num-gpus" if name == "world_size" else dashed(name)
    if value is True:
        return word
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{word} '{text}'" if "|" in text else f"{word} {text}"


# -- figures --------------------------------------------------------------------------------------------------------------


class Considered(NamedTuple):
    """An outcome beside the run as it is."""

    advice: Advice
    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        """What the changed run is within the limit."""
        return self.outcome.verdict(self.advice.limit)

    @property
    def name(self) -> str:
        """Its changes in a line."""
        return name_of(self.outcome)

    @property
    def cost(self) -> float:
        """GPU-seconds of a step beside the run as it is, relative."""
        return cost(self.advice, self.outcome)

    @property
    def saved_device(self) -> int:
        """Bytes that the most that it needs loses."""
        return self.advice.now.needed.high - self.outcome.needed.high


CHANGE = table(
    "change",
    {
        "changes": lambda one: [
            {"name": change.name, "settings": change.values(), "note": change.note or None}
            for change in one.outcome.changes
        ],
        "options": lambda one: " ".join(option_words(one.outcome, one.advice.now.job)),
        "settings": lambda one: new_settings(one.outcome, one.advice.now.job),
        "saved": lambda one: one.advice.now.peak - one.outcome.peak,
        "changes_numerics": lambda one: "numerics" in one.outcome.asks,
    },
    {"one_digit": lambda one: gib(one.saved_device, 1), "signed": lambda one: f"{round(one.cost, 3) + 0.0:+.1%}"},
)
"""The figures of an outcome."""
SHORTER = {**{full: short for short, full in SHORT.items()}, "world_size": "num_gpus"}
"""Names of degrees as short answers give them back."""


def new_settings(one: Outcome, job: TrainingJob) -> dict[str, Any]:
    """The settings of the changes whose values the run does not have already."""
    now = {**vars(job.layout), **vars(job.training), **vars(job.env)}
    values = {name: value for change in one.changes for name, value in change.settings}
    return {SHORTER.get(name, name): value for name, value in values.items() if now.get(name) != value}


def advice_records(advice: Advice) -> list[Record]:
    """The run as it is with an empty change, then one record for each change or changes together."""
    return [record(CHANGE, Considered(advice, one)) for one in (advice.now, *advice.outcomes)]


def advice_document(advice: Advice) -> dict[str, Any]:
    """Schema `megatron-memory-advice/1`, described in docs/reference/json.md."""
    now, *found = (document(CHANGE, Considered(advice, one)) for one in (advice.now, *advice.outcomes))
    return {
        "schema": SCHEMA,
        "limit_bytes": advice.limit,
        "assumptions": list(advice.assumptions),
        "now": {**now, "peak_stage": advice.now.estimate.peak_stage.pp_rank},
        "purpose": "faster" if advice.faster else "fit",
        "without_layout": advice.without_layout,
        "sentence": about(advice, advice.now.verdict(advice.limit)),
        "advice": found,
    }


def advice_html(advice: Advice) -> str:
    """The verdict, and a table of changes, as a notebook shows them."""
    first, second = headline(advice)
    rows = [labelled(CHANGE, Considered(advice, one), "notebook") for one in advice.outcomes]
    cells = [[escape(cell) for cell in row.values()] for row in rows]
    return fragment(
        [
            sentence(first, COLOURS[advice.now.verdict(advice.limit).word]),
            sentence(second),
            html_table(list(rows[0]), cells, left=("change", "verdict")) if rows else "",
            *(sentence(f"assumed: {said}") for said in advice.assumptions),
        ]
    )
