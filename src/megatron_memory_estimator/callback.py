"""Measured beside estimated memory, from inside a training loop.

from megatron_memory_estimator.callback import compare_at_step
after_step = compare_at_step("run.sh")
for step in range(1, iterations + 1):
    ...
    after_step(step)

torch is imported here alone, when a step is over: it is the training process's own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import log
from typing import Any, NamedTuple, TextIO

from .estimator import Estimate, estimate
from .job.hardware import GIB, MIB
from .job.training_job import TrainingJob
from .rank.rank import Row

NOTABLE, SMALL = 0.01, 64 * MIB
"""A difference below a hundredth of the figure, or of 64 MiB, is not explained."""
LIKELY = 3
"""Tensors that are named for a difference."""
Run = TrainingJob | Estimate | str | os.PathLike[str] | Sequence[str] | Mapping[str, Any]


class Measured(NamedTuple):
    """What torch counts of one rank, in bytes: allocated now, and the most since the process began."""

    rank: int
    allocated: int
    peak: int


def compare_at_step(
    run: Run,
    num_gpus: int | None = None,
    *,
    steps: Iterable[int] = (1, 2),
    record: str | os.PathLike[str] | None = "measured_runs.jsonl",
    stream: TextIO | None = None,
    **settings: Any,
) -> Callable[[int], None]:
    """A function to call after each training step with its number, from 1, on every rank.

    After the given `steps` rank 0 prints, for the fullest rank of each pipeline stage, what torch has allocated between steps and at its
    peak, beside the estimate, and for a difference the three tensors whose bytes are nearest to it. After the last of them it adds the
    run to the file `record` (None for none) that `megatron-memory validate --against` reads.

    `run` is a TrainingJob or an Estimate, the path of a run file, Megatron-LM arguments as words or as a mapping (`vars(get_args())`);
    `num_gpus` defaults to the world size, `settings` are those of TrainingJob.from_hf. All ranks must call the function: with
    torch.distributed they gather their figures. A process without a GPU measures nothing, and says so once.

    Raises EstimatorError for a run that is refused, when it is called and not in the loop.
    """
    result = _estimated(run, num_gpus, settings)
    asked = frozenset(steps)
    first: dict[int, int] = {}

    def after_step(step: int) -> None:
        if step not in asked:
            return
        found = _measured()
        out = stream if stream is not None else sys.stdout
        if found is None:
            print(
                f"memory after step {step}: this process has no torch or no GPU, nothing was measured",
                file=out,
                flush=True,
            )
            return
        if step == 1:
            first.update({one.rank: one.peak for one in found})
        if _own_rank() == 0 and len(found) != result.job.layout.world_size:
            ranks = f"{len(found)} ranks run, the estimate is of {result.job.layout.world_size} GPUs"
            print(f"memory after step {step}: {ranks}, nothing is compared", file=out, flush=True)
        elif _own_rank() == 0:
            for line in comparison(result, found, step):
                print(line, file=out, flush=True)
            if record is not None and step == max(asked):
                _append(record, run_records(result, found, first.get(len(found) - 1)))

    return after_step


def comparison(result: Estimate, found: Sequence[Measured], step: int) -> list[str]:
    """A line for the fullest rank of each pipeline stage, and one below it for each difference that needs tensors."""
    lines = []
    for index, members in groupby(found, lambda one: one.rank * len(result.stages) // len(found)):
        stage, one = result.stages[index], max(members, key=lambda one: one.peak)
        peak = stage.first_step_peak_allocated_bytes if step == 1 else stage.peak_allocated_bytes
        figures = (("allocated", one.allocated, stage.steady_allocated_bytes), ("peak", one.peak, peak))
        said = "; ".join(f"{name} {_beside(measured, ours)}" for name, measured, ours in figures)
        lines.append(f"memory after step {step}, stage {index}, rank {one.rank}: {said}")
        lines += [
            f"  {name}: {why}"
            for name, measured, ours in figures
            if (why := explained(stage.steady_rows if name == "allocated" else stage.rows, measured - ours, measured))
        ]
    return lines


def explained(rows: Iterable[Row], difference: int, measured: int) -> str:
    """The tensors whose bytes are nearest to a difference: held once more where more was measured, missing where less was."""
    size = abs(difference)
    if size < max(NOTABLE * measured, SMALL):
        return ""
    sizes = {(row.name, nbytes) for row in rows for nbytes in (row.nbytes, row.nbytes // max(row.copies, 1)) if nbytes}
    nearest = sorted(sizes, key=lambda one: (abs(log(one[1] / size)), one[0]))[:LIKELY]
    tensors = ", ".join(f"{name} ({nbytes / GIB:.3f} GiB)" for name, nbytes in nearest)
    way = "more than estimated; nearest in size" if difference > 0 else "less than estimated; nearest in size"
    return f"{size / GIB:.3f} GiB {way}: {tensors}"


def run_records(result: Estimate, found: Sequence[Measured], first_step_peak: int | None) -> list[dict[str, Any]]:
    """The run as lines of `validate --against` (docs/how-to/validation.md).

    They hold the last rank's figures, and where there are more the peaks of all.
    """
    from .planner.record import record

    job, last = result.job, found[-1]
    measured: dict[str, Any] = {"allocated_bytes": last.allocated, "max_allocated_bytes": last.peak}
    if first_step_peak is not None:
        measured["first_step_max_allocated_bytes"] = first_step_peak
    own = record(job, "last", measured)
    if len(found) == 1:
        return [own]
    return [own, record(job, "all", {"per_rank_max_allocated_bytes": [one.peak for one in found]})]


def _beside(measured: int, ours: int) -> str:
    error = f" ({100 * (ours / measured - 1):+.2f} %)" if measured else ""
    return f"{measured / GIB:.3f} GiB, estimated {ours / GIB:.3f}{error}"


def _estimated(run: Run, num_gpus: int | None, settings: dict[str, Any]) -> Estimate:
    if isinstance(run, Estimate):
        return run
    if isinstance(run, TrainingJob):
        return estimate(run)
    world = num_gpus or int(os.environ.get("WORLD_SIZE", 0)) or None
    if isinstance(run, str | os.PathLike):
        return estimate(TrainingJob.from_file(run, world, **settings))
    return estimate(TrainingJob.from_megatron_args(run, world, **settings))


def _measured() -> list[Measured] | None:
    """The figures of every rank, in order; None without torch or a GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    own = Measured(_own_rank(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, tuple(own))
    return [Measured(*one) for one in found]


def _own_rank() -> int:
    import torch

    initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if initialized else 0


def _append(path: str | os.PathLike[str], records: Iterable[dict[str, Any]]) -> None:
    """Add lines, their ids numbered by the lines before them."""
    with open(path, "a+", encoding="utf-8") as file:
        file.seek(0)
        before = sum(1 for _ in file)
        for number, record in enumerate(records, before + 1):
            file.write(json.dumps({**record, "id": f"{record['id']}, line {number}"}) + "\n")
