"""A model's card as text, records and document: what it takes before anything is laid out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..job.hardware import GIB
from ..planner.card import POWERS, Card, Fewest
from ..wording import all_of
from .plans import plan_settings
from .quantities import document, gib, record, table
from .verdict import short_names

if TYPE_CHECKING:
    from rich.table import Table

TRIED = {
    "recompute": "{} recomputation",
    "micro_batch_size": "micro-batch {}",
    "cp": "no context parallelism",
    "vpp": "no virtual stages",
}
"""What the layouts have in common that a card tries."""


def layout_text(row: Fewest) -> str:
    """The layout that needs least on the fewest GPUs that resume, else on the fewest that train."""
    if row.held is None:
        return ""
    layout = row.held.estimate.job.layout
    return layout.degrees + (", generated split" if layout.pipeline_model_parallel_layout else "")


def layout_settings(row: Fewest) -> dict[str, Any]:
    """Its settings."""
    return plan_settings(row.held.estimate.job, row.asked) if row.held else {}


FEWEST = table("fewest", {"layout": layout_text, "settings": layout_settings})
SCHEMA = "megatron-memory-card/1"
CARD = table("card", {"schema": lambda _: SCHEMA, "gpus": lambda card: [document(FEWEST, row) for row in card.rows]})


def card_document(card: Card) -> dict[str, Any]:
    """The JSON document `megatron-memory-card/1`."""
    return document(CARD, card)


def card_records(card: Card) -> list[dict[str, Any]]:
    """A row for each kind of GPU."""
    return [record(FEWEST, row) for row in card.rows]


def sentence(card: Card) -> str:
    """How many GPUs train the model and how many resume it, on the job's own kind."""
    name = card.job.name or "the model"
    row = next((row for row in card.rows if row.gpu.name == card.job.gpu.name), card.rows[0])
    train, resume, gpu = row.num_to_train, row.num_to_resume, row.gpu.name
    if train is None:
        return f"No layout of {name} that was tried fits {POWERS[-1]} {gpu} or fewer."
    if resume is None:
        return f"{name} trains on {train} {gpu}; no number up to {POWERS[-1]} resumes it with optimizer state."
    if train == resume:
        return f"{name} trains on {train} {gpu}, and resumes there with optimizer state."
    return f"{name} trains on {train} {gpu}; to resume with optimizer state it needs {resume}."


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
    """Which layouts were tried."""
    layouts = [TRIED[name].format(value).replace("none ", "no ") for name, value in card.tried.items()]
    return f"Fewest GPUs, of powers of two, with {all_of(layouts)}, sequence {card.job.training.seq_length}:"


def card_table(card: Card) -> Table:
    """A row for each kind of GPU."""
    from rich import box
    from rich.table import Table

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("GPU", no_wrap=True)
    for name in ("to train", "to resume"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("layout that needs least", overflow="fold")
    for row in card.rows:
        found.add_row(
            row.gpu.name, *(str(number or "-") for number in (row.num_to_train, row.num_to_resume)), layout_text(row)
        )
    return found


def least_lines(row: Fewest, words: Sequence[str]) -> Iterator[str]:
    """What the layout that needs least does on the GPUs of a run without a layout, and the command to type next."""
    alone = "No layout was given, so this is data parallelism alone"
    if row.held is None:
        yield f"{alone}; no other that was tried trains on {row.asked.layout.world_size} {row.asked.gpu.name}."
        yield f"Next: {shlex.join(['megatron-memory', 'estimate', row.asked.name])}  # the fewest GPUs"
        return
    left = f"{row.held.estimate.verdict().head_room.low / GIB:.1f} GiB left"
    does = "trains and can resume" if row.resume else "trains, but may not resume with optimizer state"
    layout = f"{layout_text(row)}, recompute {row.held.recompute}"
    yield f"{alone}; laid out as {layout} it {does}, at least {left}."
    only = [] if row.resume else ["--phases", "training"]
    yield f"Next: {shlex.join(['megatron-memory', 'plan', *words, *only])}  # the fastest layouts"


def commands(card: Card, words: Sequence[str]) -> Iterator[str]:
    """A command for each kind of GPU: the best layouts on the fewest that resume."""
    names, own = short_names(), bool({"--gpu"} & {word.partition("=")[0] for word in words})
    for row in card.rows:
        if (held := row.held) is not None:
            kind = [] if own else ["--gpu", names.get(row.gpu.name, row.gpu.name)]
            only = [] if row.resume else ["--phases", "training"]
            yield shlex.join(["megatron-memory", "plan", *words, *kind, "--num-gpus", str(held.num_gpus), *only])


def card_lines(card: Card) -> list[str]:
    """The card as text."""
    rows = [f"{row.gpu.name}: {_both(row)}" for row in card.rows]
    return [sentence(card), model_line(card), tried_line(card), *rows]


def _both(row: Fewest) -> str:
    return f"{row.num_to_train or 'none'} to train, {row.num_to_resume or 'none'} to resume; {layout_text(row)}"
