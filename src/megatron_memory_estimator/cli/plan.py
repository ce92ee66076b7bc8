"""`megatron-memory plan MODEL`: the best legal layouts that fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from ..inputs import SCRIPTS, YAML
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from .bar import Bar
from .options import JobCommand, job_from_options, model_argument, special_options
from .plan_options import AXES, axis_options, other_settings, plan_options

if TYPE_CHECKING:
    from ..planner.planning import Planned
    from ..throughput.machine import Efficiency

HELP = """The best legal layouts that fit: memory and step time of every layout of a space.

MODEL is what `estimate` takes; a whole run is planned anew, only its model and training settings are kept. Every axis takes a value
(8), a list (1,2,4), a range (2-16) or an exclusion (not:8); what is not given is searched. Precision and optimizer dtypes stay as
given unless --complete or their axes say otherwise.
"""
SWITCHES = ("sequence_parallel", "use_distributed_optimizer", "use_precision_aware_optimizer")
"""Settings that stay options of their own and fix their axis."""
LARGEST_GIB = 10**6
RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")


def callback(
    model: tuple[str, ...],
    objective: str,
    top: int,
    max_memory: float | None,
    head_room: str | None,
    min_num_gpus: bool,
    tight: bool,
    show: int,
    launch: str,
    calibrate: str | None,
    as_json: bool,
    complete: bool,
    split: str | None,
    recompute: str | None,
    precision: str | None,
    **values: Any,
) -> None:
    """Search and print."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: more threads only wait for each other
    from ..job.settings import nearest
    from ..planner.found import OBJECTIVES
    from ..planner.planning import plan

    if objective not in OBJECTIVES:
        raise ConfigError(
            f"--objective {objective!r} is not one of {', '.join(OBJECTIVES)}.{nearest(objective, OBJECTIVES)}"
        )
    words = {AXES[name] or name: values.pop(name) for name in AXES}
    words |= {"split": split, "recompute": recompute, "precision": precision}
    job, batch, habit = starting_job(model, values, complete=complete)
    given = {name: text for name, text in words.items() if text is not None}
    fixed(given, values, job)
    efficiency = fitted(calibrate, quiet=as_json)
    limit = memory_limit(job, max_memory, head_room)
    if not min_num_gpus and "num_gpus" not in given and job.layout.world_size == 1:
        raise ConfigError("--num-gpus is needed (or --min-num-gpus, to find how many GPUs hold the model)")
    with Bar() as progress:
        planned = plan(
            job,
            given,
            global_batch_size=batch,
            objective=objective,
            top=top,
            limit=limit,
            tight=tight,
            complete=complete,
            fewest_gpus=min_num_gpus,
            efficiency=efficiency,
            workers=min(os.cpu_count() or 1, 2),
            progress=progress,
        )
    said = (*habit, *planned.assumptions)
    if "num_gpus" not in given and not min_num_gpus:
        said = (*said, f"num_gpus as the run has it: {job.layout.world_size}")
    print_plans(planned, said, efficiency, show=show, launch=launch, as_json=as_json)


def print_plans(
    planned: Planned, said: tuple[str, ...], efficiency: Efficiency | None, *, show: int, launch: str, as_json: bool
) -> None:
    """Print the result of a search, as text or as a document."""
    from ..report.plans import Row, print_found
    from ..report.plans_document import found_document

    found = planned.found
    rows = [Row(plan, efficiency) for plan in found.plans]
    if rows and show > len(rows):
        raise ConfigError(f"--show {show}: there are {len(rows)} plans")
    if as_json:
        import json

        click.echo(json.dumps(found_document(found, rows, said), indent=1))
    else:
        from .console import console

        print_found(found, rows, console(), said=said, shown=show, form=launch)


def starting_job(
    model: tuple[str, ...], values: dict[str, Any], *, complete: bool
) -> tuple[TrainingJob, int | None, list[str]]:
    """The job that is planned anew, its global batch where it is given, and what was decided."""
    from ..planner.base import overlap_habits

    given = dict(values)
    batch = given.pop("global_batch_size", None)
    if model[0].startswith("--") or model[0].lower().endswith((*YAML, *SCRIPTS)):  # a whole run
        job = job_from_options({**given, "model": model})
        return job, batch if batch is not None else job.training.global_batch_size, []
    habits, said = overlap_habits(given, complete=complete)
    return job_from_options({**given, **habits, "model": model}), batch, [said] if said else []


def fixed(given: dict[str, str], values: dict[str, Any], job: TrainingJob) -> None:
    """Axes that other options fix: switches, and recomputation by Megatron's own names."""
    for name in SWITCHES:
        if values.get(name) is not None:
            given[name] = "on" if values[name] else "off"
    if values.get("recompute_granularity") is None and any(
        values.get(name) not in (None, ()) for name in RECOMPUTE[1:]
    ):
        raise ConfigError(
            "recompute_method, _num_layers and _modules go with --recompute-granularity; or use --recompute"
        )
    if any(values.get(name) not in (None, ()) for name in RECOMPUTE):
        if "recompute" in given:
            raise ConfigError("--recompute and --recompute-granularity say the same thing; give one of them")
        from ..planner.space.recompute import own_recompute

        given["recompute"] = own_recompute(job.training)
    if values.get("optimizer_cpu_offload") and "optimizer_offload_fraction" not in given:
        given["optimizer_offload_fraction"] = "1"


def memory_limit(job: TrainingJob, max_memory: float | None, head_room: str | None) -> int:
    """Bytes of a GPU that a plan may use."""
    limit = job.gpu.memory_bytes
    if max_memory is not None:
        if not 0 < max_memory < LARGEST_GIB:
            raise ConfigError(f"--max-memory {max_memory:g} must be more than 0 GiB, and a number")
        limit = int(max_memory * GIB)
    if head_room is not None:
        text = head_room.removesuffix("%")
        try:
            size = float(text)
        except ValueError:
            raise ConfigError(f"--head-room {head_room!r} must be GiB such as 4, or a percentage such as 5%") from None
        if not 0 <= size < LARGEST_GIB:
            raise ConfigError(f"--head-room {head_room} must not be negative, and a number")
        room = int(limit * size / 100) if head_room.endswith("%") else int(size * GIB)
        if room >= limit:
            raise ConfigError(f"--head-room {head_room} leaves nothing of {limit / GIB:.2f} GiB")
        limit -= room
    return limit


def fitted(path: str | None, *, quiet: bool) -> Efficiency | None:
    """Efficiencies fitted to the measured steps of a file; says how well on standard error."""
    if path is None:
        return None
    from ..throughput.calibrate import calibrate
    from ..validation.steps import read_measured

    runs = read_measured(path)
    found = calibrate(runs)
    if not quiet:
        factors = ", ".join(f"{name} x{factor:.2f}" for name, factor in found.factors.items())
        click.echo(
            f"calibrated with {len(runs)} measured steps: median error {found.before:.1%} before, {found.after:.1%} after; {factors}",
            err=True,
        )
    return found.efficiency


command = JobCommand(
    "plan",
    params=[
        model_argument(),
        *axis_options(),
        *plan_options(),
        *special_options(),
        *other_settings(),
    ],
    callback=callback,
    help=HELP,
)
