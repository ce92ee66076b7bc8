"""What sample lengths do to a run, in words and as a document."""

from __future__ import annotations

from typing import Any

from ..planner.sample_lengths import SampleLengths
from .quantities import bounds_text, gib, table
from .quantities import document as quantities
from .verdict import DOES, where

SCHEMA = "megatron-memory-lengths/1"
LONGER = {
    "alone": "a longer sample is a microbatch alone",
    "cut": "a longer sample is cut",
    "dropped": "a longer sample is left out",
    "refused": "a longer sample stops the run",
}
"""What becomes of a sample above the bound."""


def sentences(found: SampleLengths) -> list[str]:
    """The largest microbatch and what it needs; where the run breaks; how often; what becomes of samples above the bound."""
    longest = found.samples.longest
    said = [_needs(found)]
    if found.breaks_at is None:
        said.append(f"As many tokens as the run may have fit; your longest sample has {longest:,}.")
    else:
        surely = f" (surely fits up to {found.fitting.sure:,})" if found.fitting.sure != found.breaks_at else ""
        said.append(
            f"Breaks above {found.breaks_at:,} tokens in a microbatch{surely}; your longest sample has {longest:,}."
        )
    if found.half_by_step is not None:
        said.append(
            f"{found.share_of_steps:.1%} of {len(found.drawn)} drawn steps are above what surely fits: half of all runs have met one by "
            f"step {found.half_by_step:,}."
        )
    if found.share_longer:
        said.append(
            f"{found.share_longer:.2%} of the samples are longer than {found.bound:,}: {LONGER[found.rule.longer]}."
        )
    if found.worst > max(found.bound, found.microbatch):
        said.append(
            f"Other lengths within the bound can reach {found.worst:,} tokens: {found.rule.name} does not keep it."
        )
    return said


def _needs(found: SampleLengths) -> str:
    made = f"With these lengths a microbatch reaches {found.microbatch:,} tokens where {found.rule.name} packs to {found.bound:,}"
    event = found.needs
    if event is None or found.at is None:
        return f"{made}, which is no legal run: {found.fitting.refusal or 'see --largest seq_length'}."
    return (
        f"{made}: {DOES[event.phase].what} needs {bounds_text(event.device)} of {gib(event.memory_bytes, 1)} GiB "
        f"{where(event, found.at)}, {event.word}."
    )


def lengths_document(found: SampleLengths) -> dict[str, Any]:
    """Schema `megatron-memory-lengths/1`."""
    return quantities(LENGTHS, found)


LENGTHS = table("lengths", {"schema": lambda _: SCHEMA, "sentence": lambda found: " ".join(sentences(found))})
