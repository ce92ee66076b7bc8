"""`megatron-memory plan MODEL`: the best legal layouts that fit.

A progress bar for long searches.

The options of `megatron-memory plan`: axes, the search itself, and every setting that is no axis.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import ConfigError
from ..inputs.searched import AXES, FIXED, OTHER_AXES
from ..wording import counted
from .given import job_from_options
from .job_command import JobCommand, same_run
from .options import (
    SECTIONS,
    format_option,
    json_option,
    model_argument,
    one_format,
    option_names,
    setting_fields,
    special_options,
)

if TYPE_CHECKING:
    from ..job.training_job import TrainingJob
    from ..planner.found import Found
    from ..planner.planning import Planned
    from ..throughput.machine import Efficiency


TOP = 5
FORMS = ["megatron-lm", "script", "yaml", "bridge", "none"]


def axis_options() -> list[click.Option]:
    """The options of the axes."""
    found = []
    fields = {f.name: f for _, part in SECTIONS for f in dataclasses.fields(part)}
    for name in AXES:
        field = fields[name]
        found.append(
            click.Option([*option_names(field), name], default=None, metavar="VALUES", help=field.metadata["help"])
        )
    return [
        *found,
        click.Option(
            ["--split"], metavar="VALUES", help="layers over stages: even, uneven (first and last), layout (generated)"
        ),
        click.Option(["--recompute"], metavar="VALUES", help="none, full, block:N, uniform:N, core_attn+mlp"),
        click.Option(["--precision"], metavar="VALUES", help="bf16, or a recipe: delayed, mxfp8, nvfp4, ..."),
        click.Option(
            ["--features"],
            metavar="VALUES",
            help="published (default), safe, all, none, or A+B",
        ),
        click.Option(["--complete"], is_flag=True, help="search every axis whole, precisions and optimizers too"),
    ]


def plan_options() -> list[click.Option]:
    """The options of the search itself."""
    return [
        click.Option(
            ["--objective"], default="throughput", metavar="NAME", help="throughput (default), memory, or head-room"
        ),
        click.Option(["--top"], type=click.IntRange(1, 1000), default=TOP, help=f"plans to show (default {TOP})"),
        click.Option(["--every"], is_flag=True, help="show plans too that another one beats in speed and memory"),
        click.Option(["--tight"], is_flag=True, help="also rank layouts that may not fit"),
        click.Option(["--min-num-gpus"], is_flag=True, help="find the smallest number of GPUs on which it fits"),
        click.Option(
            ["--show"], type=click.IntRange(1), default=None, metavar="N", help="print the launch arguments of plan N"
        ),
        click.Option(
            ["--launch"],
            type=click.Choice(FORMS),
            default=None,
            help=f"form of the launch arguments (default {FORMS[0]})",
        ),
        click.Option(["--write"], metavar="FILE", help="write the launch arguments, to x.sh a script"),
        click.Option(
            ["--calibrate"],
            metavar="FILE",
            help="measured steps, one JSON object per line, that the efficiencies are fitted to",
        ),
        json_option(),
        format_option("plan"),
        click.Option(["--verbose", "-v"], is_flag=True, help="name every rule that ruled layouts out"),
    ]


def other_settings() -> list[dataclasses.Field[Any]]:
    """Every setting that is not an axis."""
    return setting_fields(without=(*AXES, *FIXED))


HELP = """The best legal layouts that fit: the fastest first, then what less memory costs.

MODEL is what `estimate` takes; a whole run is planned anew, only its model and training settings are kept. Every axis takes a value
(8), a list (1,2,4), a range (2-16) or an exclusion (not:8); what is not given is searched. A model by name has features of published
recipes: CUDA graphs, overlap, optimizer dtypes. Exits with 3 where nothing fits, 4 where nothing surely does, 130 if interrupted.
"""
NOTHING_FITS, TIGHT, INTERRUPTED = 3, 4, 130
"""Exit codes of searches that find no layout that surely fits; the first two are those of `check`, the last that of shells."""


def callback(model: tuple[str, ...], **values: Any) -> None:
    """Search and print."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: more threads only wait for each other
    asked = Asked(**{name: values.pop(name) for name in Asked._fields})
    form = one_format(asked.form, as_json=asked.as_json)
    if asked.write is not None and asked.launch == "none":
        raise ConfigError("--write needs a form of launch arguments; --launch none has none")
    if form != "table" and asked.write is None and (asked.show is not None or asked.launch not in (None, "none")):
        raise ConfigError(
            f"--show and --launch go with the table, or with --write FILE; --format {form} has no launch arguments to choose"
        )
    efficiency = fitted(asked.calibrate, quiet=form != "table")
    found = searched(model, values, asked, efficiency)
    print_plans(found, asked, form)
    if code := code_of(found.found):
        sys.exit(code)


def code_of(found: Found) -> int:
    """The exit code of a search: also where a layout trains, and none resumes, that is not sure to fit."""
    if found.trains_only:
        return TIGHT
    if found.plans:
        return 0
    return INTERRUPTED if found.interrupted else TIGHT if found.tight else NOTHING_FITS


class Asked(NamedTuple):
    """The options of the search itself and of its output."""

    objective: str
    top: int
    every: bool
    min_num_gpus: bool
    tight: bool
    show: int | None
    launch: str | None
    write: str | None
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
            tight=asked.tight,
            complete=asked.complete,
            fewest_gpus=asked.min_num_gpus,
            efficiency=efficiency,
            progress=progress,
        )
    return planned._replace(assumptions=(*said, *planned.assumptions))


def print_plans(one: Planned, asked: Asked, form: str) -> None:
    """Print the result of a search: as text, as a document, or as a row for each plan."""
    from ..report.plans import nothing_fits, plan_records, rows_of
    from . import fail

    found, said = one
    rows = rows_of(found)
    if rows and asked.show is not None and asked.show > len(rows):
        raise ConfigError(
            f"--show {asked.show}: the search found {counted(len(rows), 'plan')}; give at most {len(rows)}"
        )
    if form == "json":
        from ..report.plans import found_document
        from .files import print_json

        print_json(found_document(found, rows, said))
    elif form == "table":
        from ..report import plans_text
        from .console import console

        wanted = asked.show is not None or asked.launch is not None
        launch = asked.launch or FORMS[0] if wanted and asked.write is None else "none"
        words = () if wanted or asked.write else tuple(same_run())
        shown = plans_text.Asked(asked.show or 1, launch, asked.verbose, words)
        plans_text.print_found(found, rows, console(), said, shown)
    elif rows:
        from ..report.records import FORMATS

        click.echo(FORMATS[form](plan_records(rows)), nl=False)
    else:
        fail(nothing_fits(found), code_of(found) or 2)
    if asked.write is not None and not rows:
        click.echo(f"nothing fits: {asked.write} is not written", err=True)
    elif asked.write is not None:
        from ..planner.launch import FORMS as MADE
        from .files import write

        number, launch = asked.show or 1, asked.launch or ("script" if asked.write.endswith(".sh") else FORMS[0])
        job = rows[number - 1].plan.job
        write(asked.write, f"{MADE[launch](job)}\n".encode(), "--write")
        click.echo(
            f"wrote {asked.write}: launch arguments of plan {number} ({launch}){_read_back(job, asked.write, launch)}",
            err=True,
        )


def _read_back(job: TrainingJob, path: str, launch: str) -> str:
    """How a file is estimated as the plan: with its GPUs and its environment, where it does not say them, and what has no argument."""
    from ..planner.launch import megatron_lm
    from ..report.advice import option_text

    if launch not in ("script", "yaml"):
        return ""
    if job.model.towers:
        return "; they build the language model alone (--launch bridge builds its towers too)"
    words = ["--gpu", job.gpu.name]
    if launch == "yaml":
        words += ["--num-gpus", str(job.layout.world_size), *(["--expandable-segments"] * job.env.expandable_segments)]
    words += [option_text(name, value) for name, value in megatron_lm(job).beside.items()]
    return f"; read back: megatron-memory estimate {path} {' '.join(words)}"


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
            f"calibrated with {counted(len(runs), 'measured step')}: median error {found.before:.1%} before, "
            f"{found.after:.1%} after; {factors}",
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


SOON = 0.3
"""Seconds from which on a search says how far it is."""


class Bar:
    """A progress bar on standard error once a search takes longer than that; nothing where that is no terminal."""

    def __enter__(self) -> Callable[[float, Any], None] | None:
        self._bar: Any = None
        if not sys.stderr.isatty():
            return None
        import time

        self._start = time.monotonic()
        return self._update

    def _update(self, share: float, found: Any) -> None:
        import time

        if self._bar is None:
            if time.monotonic() - self._start < SOON:
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            self._bar = Progress(
                TextColumn("searching"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        self._bar.update(self._task, completed=share, description=f"{found.evaluated:,} evaluated")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
