"""`megatron-memory plan MODEL`: the best legal layouts that fit."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import ConfigError
from ..inputs.searched import AXES, OTHER_AXES
from .bar import Bar
from .given import job_from_options
from .job_command import JobCommand
from .memory_limit import memory_limit
from .options import model_argument, one_format, special_options
from .plan_options import axis_options, other_settings, plan_options

if TYPE_CHECKING:
    from ..planner.found import Found
    from ..planner.planning import Planned
    from ..throughput.machine import Efficiency

HELP = """The best legal layouts that fit: memory and step time of every layout of a space.

MODEL is what `estimate` takes; a whole run is planned anew, only its model and training settings are kept. Every axis takes a value
(8), a list (1,2,4), a range (2-16) or an exclusion (not:8); what is not given is searched. Precision and optimizer dtypes stay as
given unless --complete or their axes say otherwise. Exits with 3 where no layout fits, 4 where none surely fits, 130 where it is
interrupted before it finds one.
"""
NOTHING_FITS, TIGHT, INTERRUPTED = 3, 4, 130
"""Exit codes of searches that find no layout that surely fits; the first two are those of `check`, the last that of shells."""


def callback(model: tuple[str, ...], **values: Any) -> None:
    """Search and print."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: more threads only wait for each other
    asked = Asked(**{name: values.pop(name) for name in Asked._fields})
    form = one_format(asked.form, as_json=asked.as_json)
    efficiency = fitted(asked.calibrate, quiet=form != "table")
    found = searched(model, values, asked, efficiency)
    print_plans(found, asked, form)
    if code := code_of(found.found):
        sys.exit(code)


def code_of(found: Found) -> int:
    """The exit code of a search."""
    if found.plans or found.fits:
        return 0
    return INTERRUPTED if found.interrupted else TIGHT if found.tight else NOTHING_FITS


class Asked(NamedTuple):
    """The options of the search itself and of its output."""

    objective: str
    top: int
    every: bool
    max_memory: float | None
    head_room: str | None
    min_num_gpus: bool
    tight: bool
    show: int
    launch: str
    calibrate: str | None
    form: str
    as_json: bool
    verbose: bool
    complete: bool


def searched(model: tuple[str, ...], values: dict[str, Any], asked: Asked, efficiency: Efficiency | None) -> Planned:
    """The result of the search."""
    from ..job.settings import nearest
    from ..planner.found import OBJECTIVES
    from ..planner.planning import plan

    if asked.objective not in OBJECTIVES:
        raise ConfigError(
            f"--objective {asked.objective!r} is not one of {', '.join(OBJECTIVES)}.{nearest(asked.objective, OBJECTIVES)}"
        )
    words = {AXES.get(name) or name: values.pop(name) for name in (*AXES, *OTHER_AXES)}
    given = {name: text for name, text in words.items() if text is not None}
    batch = values.pop("global_batch_size", None)
    job = job_from_options({**values, "model": model})
    said: tuple[str, ...] = ()
    if not asked.min_num_gpus and "num_gpus" not in given:
        if job.layout.world_size == 1:
            raise ConfigError("--num-gpus is needed (or --min-num-gpus, to find how many GPUs hold the model)")
        said = (f"num_gpus as the run has it: {job.layout.world_size}",)
    with Bar() as progress:
        planned = plan(
            job,
            given,
            global_batch_size=batch,
            objective=asked.objective,
            top=asked.top,
            every=asked.every,
            limit=memory_limit(job, asked.max_memory, asked.head_room),
            tight=asked.tight,
            complete=asked.complete,
            fewest_gpus=asked.min_num_gpus,
            efficiency=efficiency,
            workers=min(os.cpu_count() or 1, 2),
            progress=progress,
        )
    return planned._replace(assumptions=(*said, *planned.assumptions))


def print_plans(one: Planned, asked: Asked, form: str) -> None:
    """Print the result of a search: as text, as a document, or as a row for each plan."""
    from ..report.plans import nothing_fits, plan_records, rows_of
    from . import fail

    found, said = one
    rows = rows_of(found)
    if rows and asked.show > len(rows):
        raise ConfigError(f"--show {asked.show}: there are {len(rows)} plans")
    if form == "json":
        from ..report.plans_document import found_document
        from .documents import print_json

        print_json(found_document(found, rows, said))
    elif form == "table":
        from ..report.plans_text import print_found
        from .console import console

        print_found(found, rows, console(), said=said, shown=asked.show, form=asked.launch, verbose=asked.verbose)
    elif rows:
        from ..report.records import FORMATS

        click.echo(FORMATS[form](plan_records(rows)), nl=False)
    else:
        fail(nothing_fits(found), code_of(found) or 2)


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
        if len(runs) == 1:
            click.echo(
                "one run moves the level of all rates; which layout is faster than another it hardly changes",
                err=True,
            )
    return found.efficiency


command = JobCommand(
    "plan",
    other_settings(),
    params=[
        model_argument(),
        *axis_options(),
        *plan_options(),
        *special_options(),
    ],
    callback=callback,
    help=HELP,
)
