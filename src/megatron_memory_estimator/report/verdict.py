"""What a run is on its GPU in one sentence, and on the others in one line or a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from ..device.verdict import VERDICTS
from ..estimator import Estimate
from .figures import gib

STYLES = {"fits": "green", "tight": "yellow", "does not load": "yellow", "does not fit": "red"}


def headroom(estimate: Estimate, memory_bytes: int) -> tuple[int, int]:
    """(least, most) bytes of a GPU beside the run: above what is surely enough, and above what is needed."""
    return memory_bytes - estimate.enough_bytes, memory_bytes - estimate.needed_bytes


def verdict_line(estimate: Estimate) -> str:
    """The verdict for the job's GPU with its numbers."""
    gpu = estimate.job.gpu
    least, most = headroom(estimate, gpu.memory_bytes)
    word = estimate.verdict(gpu.memory_bytes)
    top = max(estimate.stages, key=lambda stage: stage.needed_bytes)
    where = (
        f"on stage {top.pp_rank}, the fullest of {len(estimate.stages)}" if len(estimate.stages) > 1 else "on every GPU"
    )
    said = {
        "fits": f"{gib(least, 1)} to {gib(most, 1)} GiB of {gib(gpu.memory_bytes, 1)} are left {where}",
        "tight": f"between {gib(-least, 1)} GiB too much, with fragmentation, and {gib(most, 1)} GiB left {where}",
        "does not load": f"training leaves {gib(most, 1)} GiB {where}, but loading a checkpoint with its optimizer state takes "
        f"{gib(estimate.load_low - gpu.memory_bytes, 1)} GiB too much at least",
        "does not fit": f"{gib(-most, 1)} GiB too much at least {where}",
    }
    return f"[bold {STYLES[word]}]{gpu.name}: {word}[/], {said[word]}"


def other_gpus(estimate: Estimate) -> Iterator[str]:
    """The rest of the catalogue by verdict."""
    found = estimate.verdicts()
    for word in VERDICTS:
        names = [name for name, _, verdict in found if verdict == word and name != estimate.job.gpu.name]
        if names:
            yield f"{word}: {', '.join(names)}"


def next_step(estimate: Estimate) -> str:
    """The command to type next."""
    if estimate.verdict(estimate.job.gpu.memory_bytes) == "fits":
        return f"Next: `megatron-memory explain ... --stage {estimate.peak_stage.pp_rank}` names every tensor of that peak."
    return "Next: `megatron-memory advise ...` says what to change; `megatron-memory plan ...` searches all layouts."


def gpu_table(estimate: Estimate) -> Table:
    """The verdict for every GPU of the catalogue, with head-room above what is surely enough and what is needed."""
    table = Table("GPU", "memory GiB", "verdict", "head-room GiB", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, memory, word in estimate.verdicts():
        least, most = headroom(estimate, memory)
        table.add_row(name, gib(memory, 1), f"[{STYLES[word]}]{word}[/]", f"{gib(least, 1)} to {gib(most, 1)}")
    return table
