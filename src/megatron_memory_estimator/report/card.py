"""A model's card as text, records and document: what it takes before anything is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..job.assumption import shorts_of
from ..job.hardware import find_gpu
from ..legality.precision import has_recipe
from ..planner.card import EVERY, POWERS, Card, Fewest, resuming
from ..wording import all_of
from ..wording import sentence as capital
from .plan_words import plan_settings
from .quantities import document, gib, record, table
from .verdict import DATA_PARALLEL_ALONE, command_lines, short_names

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = "megatron-memory-card/1"
COMMON = {
    "recompute": "{} recomputation",
    "cp": "no context parallelism",
    "vpp": "no virtual stages",
    "micro_batch_size": "micro-batch {}",
}
"""An axis that a card fixes, in words."""


def layout_text(row: Fewest) -> str:
    """The layout that needs least on the fewest GPUs that resume, else on the fewest that train."""
    if row.held is None:
        return ""
    layout = row.held.estimate.job.layout
    return layout.degrees + (", pipeline layout" if layout.pipeline_model_parallel_layout else "")


def layout_settings(row: Fewest) -> dict[str, Any]:
    """Its settings."""
    return plan_settings(row.held.estimate.job, row.asked) if row.held else {}


ROW = table("fewest", {"layout": layout_text, "settings": layout_settings})
CARD = table("card", {"schema": lambda _: SCHEMA, "gpus": lambda card: [document(ROW, row) for row in card.rows]})


def card_document(card: Card) -> dict[str, Any]:
    """The JSON document `megatron-memory-card/1`."""
    return document(CARD, card)


def card_records(card: Card) -> list[dict[str, Any]]:
    """A row for each kind of GPU."""
    return [record(ROW, row) for row in card.rows]


def sentence(card: Card) -> str:
    """How many GPUs train the model and how many resume it, on the job's own kind where it has a row."""
    name = card.job.name or "the model"
    row = next((row for row in card.rows if row.gpu.name == card.job.gpu.name), card.rows[0])
    train, resume, gpu = row.num_to_train, row.num_to_resume, row.gpu.name
    if train is None:
        return f"No layout of {name} that was tried surely fits {POWERS[-1]} {gpu} or fewer."
    if not resuming(card.job):
        return f"{name} trains on {train} {gpu}."
    if resume is None:
        return f"{name} trains on {train} {gpu}; no number up to {POWERS[-1]} surely resumes it with optimizer state."
    if train == resume:
        return f"{name} trains on {train} {gpu}, and can resume there with optimizer state."
    return f"{name} trains on {train} {gpu}, and resumes on {resume}: loading the optimizer's state takes more than training."


def model_line(card: Card) -> str:
    """Parameters and bytes of state."""
    count, state = card.parameters, card.state_bytes
    active = f" ({_billions(count.active)} active)" if count.active != count.total else ""
    mtp = f", {_billions(count.mtp)} more in MTP layers" if count.mtp else ""
    parts = ", ".join(f"{part} {gib(each, 1)}" for part, each in state.items())
    return f"{_billions(count.total)} parameters{active}{mtp}; {gib(sum(state.values()), 1)} GiB of training state: {parts}."


def _billions(count: int) -> str:
    return f"{count / 1e9:,.1f} B" if count >= 1e9 else f"{count / 1e6:,.0f} M"


def tried_line(card: Card) -> str:
    """Which numbers of GPUs and which layouts were tried."""
    fixed = {name: value for name, value in card.tried.items() if value != EVERY}
    layouts = [COMMON[name].format(value).replace("none ", "no ") for name, value in fixed.items()]
    return f"Fewest GPUs, of 1, 2, 4, 8 and so on, with {all_of(layouts)}, sequence {card.job.training.seq_length}:"


def card_table(card: Card) -> Table:
    """A row for each kind of GPU."""
    from rich import box
    from rich.table import Table

    resumes = resuming(card.job)
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    found.add_column("GPU", no_wrap=True)
    for name in ("to train", "to resume") if resumes else ("to train",):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column(f"smallest layout to {'resume' if resumes else 'train'}", overflow="fold")
    for row in card.rows:
        numbers = (row.num_to_train, row.num_to_resume) if resumes else (row.num_to_train,)
        only = " (to train)" if resumes and row.held and not row.resume else ""
        found.add_row(row.gpu.name, *(str(number or "-") for number in numbers), layout_text(row) + only)
    return found


def notes(card: Card) -> Iterator[str]:
    """What the figures are without, kinds of GPU that are left out, and what was assumed."""
    if card.not_counted:
        yield capital(card.not_counted)
    training = card.job.training
    recipe = [name for name in card.lacking if not has_recipe(training, find_gpu(name))]
    kernel = [name for name in card.lacking if name not in recipe]
    for what, names in ((f"the {training.low_precision} recipe", recipe), ("a kernel of the run", kernel)):
        if names:
            yield f"Without {what}: {all_of(names)}."
    if assumed := ", ".join(shorts_of(card.assumptions)):
        yield f"Not given, assumed: {assumed}."


def commands(card: Card, words: Sequence[str], width: int) -> Iterator[str]:
    """A command for each kind of GPU: the best layouts on the fewest that resume, else on the fewest that train."""
    names, own = short_names(), any(word.partition("=")[0] == "--gpu" for word in words)
    for row in card.rows:
        if (held := row.held) is not None:
            kind = [] if own else ["--gpu", names.get(row.gpu.name, row.gpu.name)]
            yield from command_lines("plan", words, [*kind, "--num-gpus", str(held.num_gpus)], width)


def least_lines(row: Fewest, words: Sequence[str], width: int) -> Iterator[str]:
    """What the layout that needs least does on the GPUs of a run without a layout, and the command to type next."""
    alone, gpus = DATA_PARALLEL_ALONE, row.asked.layout.world_size
    if row.held is None:
        yield f"{alone}; no layout that was tried surely trains on {gpus} {row.asked.gpu.name}."
        others = without(words, ("--num-gpus", "--world-size"))
        yield from command_lines("plan", others, ["--min-num-gpus"], width, "Next:")
        return
    verdict = row.held.estimate.verdict()
    if not resuming(row.asked):
        does = "trains"
    else:
        does = (
            "trains and can resume"
            if row.resume
            else "trains, but no layout that was tried surely resumes with optimizer state"
        )
    left = f"{gib(verdict.head_room.low, 1)} GiB left"
    yield f"{alone}. With {layout_text(row)} and recompute {row.held.recompute}, it {does}, at least {left}."
    if assumed := ", ".join(shorts_of(row.held.assumptions)):
        yield f"That assumes {assumed}."
    yield from command_lines("plan", words, [], width, "Next:")


def without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words of a command without some options and their values."""
    found, rest = list[str](), iter(words)
    for word in rest:
        if word in options:
            next(rest, None)
        elif word.partition("=")[0] not in options:
            found.append(word)
    return found


def card_lines(card: Card) -> list[str]:
    """The card as text."""
    return [sentence(card), model_line(card), tried_line(card), *(_line(row) for row in card.rows), *notes(card)]


def _line(row: Fewest) -> str:
    resume = f", {row.num_to_resume or 'none'} to resume" if resuming(row.asked) else ""
    return f"{row.gpu.name}: {row.num_to_train or 'none'} to train{resume}; {layout_text(row)}"
