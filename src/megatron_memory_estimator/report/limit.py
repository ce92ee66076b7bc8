"""How large a setting of a run can be, in words and as a document."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..job.choices import Sizable
from ..planner.largest import Largest
from ..wording import counted
from .quantities import document as quantities
from .quantities import gib, table
from .verdict import DOES, where

SCHEMA = "megatron-memory-largest/1"


class Noun(NamedTuple):
    """A setting in words: the largest of it, and what one of it is."""

    largest: str
    unit: str


NOUNS: dict[Sizable, Noun] = {
    "seq_length": Noun("longest sequence", "token"),
    "micro_batch_size": Noun("largest micro batch", "sequence"),
    "max_tokens_per_gpu": Noun("largest part of a microbatch on a GPU", "token"),
}


def sentence(found: Largest) -> str:
    """The largest value that surely fits, what ends it, and the largest that may fit."""
    noun, job = NOUNS[found.setting], found.job
    on = f"on {job.layout.world_size} {job.gpu.name}"
    has = f"the run has {_number(found.given)}"
    if not found.sure:
        first = f"No {noun.largest.partition(' ')[2]} surely fits {on} ({has})"
    else:
        first = f"The {noun.largest} that surely fits {on} is {_counted(found.sure, noun.unit)} ({has})"
    return f"{first}{_end(found)}.{_possible(found)}"


def _end(found: Largest) -> str:
    """What is in the way of the next value."""
    event = found.decider
    if event is None or found.above is None:
        reason = f"the next is no legal run: {found.refusal}" if found.refusal else "all that divide the batch fit"
        return f"; {reason}"
    doing = DOES[event.phase]
    needed = f"{gib(event.device.high, 1)} of {gib(event.memory_bytes, 1)} GiB"
    moment = found.above.stages[event.pp_rank].peak.candidate.label if event.phase == "training" else ""
    more = "with more," if found.sure else f"with {_counted(found.step, NOUNS[found.setting].unit)} already"
    return f"; {more} {doing.what} may need {needed} {where(event, found.above)}{f' ({moment})' if moment else ''}"


def _possible(found: Largest) -> str:
    noun = NOUNS[found.setting]
    if found.possible == found.sure:
        return ""
    return f" Up to {_counted(found.possible, noun.unit)} may fit, without any fragmentation."


def _counted(number: int, unit: str) -> str:
    return counted(number, unit).replace(str(number), _number(number), 1)


def _number(number: int) -> str:
    return f"{number:,}"


def largest_document(found: Largest) -> dict[str, Any]:
    """Schema `megatron-memory-largest/1`."""
    return quantities(LARGEST, found)


LARGEST = table("largest", {"schema": lambda _: SCHEMA, "sentence": sentence})
