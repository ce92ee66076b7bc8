"""PyTorch's own visualizer reads the files that `timeline --trace` writes; its totals are the estimate's at every event."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch.cuda._memory_viz as viz

from megatron_memory_estimator import Estimate, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.timeline.passes import MOST_PASSES, listed_passes
from megatron_memory_estimator.timeline.snapshot import MOST_EVENTS, Instant, Key, events_of, instants

from ..test_traces import JOBS, SMALL


def written(name: str, stage: int, folder: Path) -> tuple[Estimate, dict[str, Any]]:
    """The estimate of a job, and the snapshot that the command writes for a stage of it."""
    model, num_gpus, settings = JOBS[name]
    given = {**SMALL, **settings}
    target = folder / "step.pickle"
    words = [word for key, value in given.items() for word in option(key, value)]
    main(["timeline", model, "--num-gpus", str(num_gpus), "--stage", str(stage), "--trace", str(target), *words])
    return estimate(TrainingJob.from_hf(model, num_gpus, **given)), pickle.loads(target.read_bytes())


def option(name: str, value: object) -> list[str]:
    """A setting as words of the command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", ",".join(value) if isinstance(value, tuple) else str(value)]


def events(found: Estimate, stage: int) -> list[Instant]:
    """The events of a stage's step that a snapshot has."""
    rank = found.stages[stage].rank
    most = min(MOST_PASSES, MOST_EVENTS // max(events_of(rank), 1))
    return list(instants(rank, listed_passes(found.declarer.context, rank, most)[1]))


ENTRY = re.compile(
    r"(?P<made>\w+) = MEM\[\d+:(?P<size>\d+)\]|del \w+ # \d+|# free completed for (?P<freed>\w+) (?P<gone>\d+)"
)


def read(snapshot: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes alive behind each entry, as the visualizer's own text names and sizes them; its figures unrounded."""
    monkeypatch.setattr(viz, "Bytes", int)
    lines = viz.trace(snapshot).splitlines()
    assert lines[1] == f"{len(snapshot['device_traces'][0])} entries"
    alive: dict[str, int] = {}
    found, total = [], 0
    for line in lines[2 : 2 + len(snapshot["device_traces"][0])]:
        entry = ENTRY.fullmatch(line)
        assert entry is not None, line
        if entry["made"]:
            alive[entry["made"]] = int(entry["size"])
            total += int(entry["size"])
        elif entry["freed"]:  # of something alive, whole
            assert alive.pop(entry["freed"]) == int(entry["gone"])
            total -= int(entry["gone"])
        found.append(total)
    assert total == sum(alive.values())
    return found


def at_events(totals: list[int], of: list[Instant]) -> list[int]:
    """Bytes behind the last entry of each event: a tensor that comes is one entry, one that goes two."""
    sizes: dict[Key, int] = {}
    found, at = [], 0
    for one in of:
        sizes.update((key, row.nbytes) for key, row in one.made)
        at += 2 * sum(sizes[key] > 0 for key in one.freed) + sum(row.nbytes > 0 for _, row in one.made)
        found.append(totals[at - 1])
    assert at == len(totals)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_the_visualizer_reads_it_and_every_total_is_the_estimates(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = min(1, JOBS[name][2].get("pp", 1) - 1)
    found, snapshot = written(name, stage, tmp_path)
    of = events(found, stage)
    totals = read(snapshot, monkeypatch)
    assert at_events(totals, of) == [one.nbytes for one in of]
    assert max(totals) == found.stages[stage].peak_allocated_bytes
    assert totals[-1] == found.stages[stage].peak.steady
    assert "<script" in viz.trace_plot(snapshot)
