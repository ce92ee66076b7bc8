"""miles, slime's sister: the same program with adapters, optimizer states on disk and names of its own."""

from __future__ import annotations

from dataclasses import replace

from . import slime
from .run import Dialect, Reading, Run
from .words import flags

OWN = frozenset(
    ("lora_rank", "lora_type", "lora_alpha", "target_modules", "exclude_modules", "use_miles_router", "offload_train_target",
     "stream_optimizer_state_to_disk")
)  # fmt: skip
"""Arguments that slime does not have."""


def knows(run: Run) -> bool:
    """A run of slime with arguments, or functions, of miles."""
    if not slime.knows(run):
        return False
    found, _ = flags(run.words)
    named = any(key.startswith("miles_") for key in found) or any(
        word.startswith(("miles.", "miles_plugins.")) for word in run.words
    )
    return named or "miles" in run.program.split("/") or not OWN.isdisjoint(found)


PACKING = "packing"


def read(run: Run) -> Reading:
    """As slime reads it; samples are packed the longest first."""
    found = slime.read(run)
    packed = {name: "miles" for name in found.settings if name == PACKING}
    return replace(found, settings={**found.settings, **packed})


DIALECT = Dialect("miles", "dialects/slime.md", knows, read, lambda run: "", takes_flags=True, words=slime.WORDS)
