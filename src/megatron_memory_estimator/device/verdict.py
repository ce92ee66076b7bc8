"""Device memory of a rank, and what a run is on a GPU."""

from __future__ import annotations

from ..job.training_job import TrainingJob
from ..rank.peak import Peak
from ..rank.rank import Rank
from ..tape.tensor import largest
from .outside import outside_terms
from .phases import build
from .reserved import enough_reserved, graph_slack, slack
from .terms import Range, Term

VERDICTS = ("fits", "tight", "does not load", "does not fit")
"""What a run may be on a GPU, the best first."""


def device_bytes(job: TrainingJob, rank: Rank, reserved: Range) -> Range:
    """Bytes in use on the device where it has room, as nvidia-smi would show for the process."""
    terms = outside_terms(job, rank.context)
    return Range(reserved.low + sum(t.low for t in terms), reserved.high + sum(t.high for t in terms))


def needed_bytes(job: TrainingJob, rank: Rank, peak: Peak) -> int:
    """What no allocator can do without: the allocated peak (of building, if higher) and the low end outside torch.

    When a request fails, torch first gives free cached blocks back to the driver (pytorch `c10/cuda/CUDACachingAllocator.cpp`,
    release_available_cached_blocks, release_cached_blocks): fragmentation that a run shows with room to spare is no proof that it
    needs it.
    """
    return largest(peak.nbytes, build(rank)) + sum(term.low for term in outside_terms(job, rank.context))


def enough_bytes(job: TrainingJob, rank: Rank, peak: Peak) -> int:
    """What is surely enough: what the allocator cannot give back by its rules, and the high end outside torch.

    Of expandable segments every free page can be given back, so what a run caches beyond them where there is room does not count.
    """
    return enough_reserved(job, rank, peak) + sum(term.high for term in outside_terms(job, rank.context))


def verdict(needed: int, enough: int, memory_bytes: int, load: int = 0) -> str:
    """ "does not fit" when what training needs is more than the memory, "does not load" when it trains, but loading a checkpoint with
    its optimizer state needs more (`load`, the least), "fits" when what is enough is within the memory, else "tight"."""
    if needed > memory_bytes:
        return "does not fit"
    if load > memory_bytes:
        return "does not load"
    return "fits" if enough <= memory_bytes else "tight"


def explain_terms(job: TrainingJob, rank: Rank, peak: Peak) -> list[Term]:
    """Every term between the allocated peak and device memory, for reports."""
    graphs = graph_slack(job, rank, peak)
    return [slack(job, rank, peak), *([graphs] if graphs.high else []), *outside_terms(job, rank.context)]
