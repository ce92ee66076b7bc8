"""`megatron-memory validate`: measured runs beside their estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import ConfigError
from ..job.hardware import DEFAULT_GPU
from ..wording import plain
from .options import gpu_option, json_option
from .verb import Verb

if TYPE_CHECKING:
    from ..report.log import Log
    from ..validation.replay import Replay
    from ..validation.runs import Run

HELP = """Replay measured runs and compare: the project's own table, or your own runs.

--against reads runs in the schema of docs/how-to/validation.md, one JSON object per line. --log reads the memory figures of a
training log, of nvidia-smi or of W&B and compares them with the estimate of the same ARGUMENTS (a YAML file, a launch script, or words
after --).
"""


def callback(
    arguments: tuple[str, ...], case: str | None, against: str | None, log: str | None, num_gpus: int | None, gpu: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the comparison."""
    if log is not None:
        if case or against:
            raise ConfigError("--log goes with arguments, not with --case or --against")
        compare_log(log, arguments, num_gpus, gpu, as_json=as_json)
        return
    if arguments or num_gpus:
        raise ConfigError("arguments and --num-gpus go with --log")
    from ..validation.runs import TABLE, read_runs

    runs = read_runs(against or TABLE)
    if case is not None:
        explain_case(chosen(runs, case))
        return
    replays = replayed(runs)
    if as_json:
        from ..report.validation import validation_document
        from .files import print_json

        print_json(validation_document(replays))
        return
    from ..report.validation import print_validation
    from .console import console

    print_validation(replays, console())


def replayed(runs: list[Run]) -> list[Replay]:
    """Every run replayed, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import track

    from ..validation.replay import replay

    screen = Console(stderr=True)
    bar = track(runs, description="replaying", console=screen, transient=True, disable=not screen.is_terminal)
    return [replay(run) for run in bar]


def chosen(runs: list[Run], case: str) -> Run:
    """The run of an id; an unknown one is refused with the nearest."""
    from difflib import get_close_matches

    found = [run for run in runs if run.id == case] or [run for run in runs if case in run.id]
    if len(found) == 1:
        return found[0]
    names = [run.id for run in found or runs]
    near = names[:3] if found else get_close_matches(case, names, n=3, cutoff=0.3)
    raise ConfigError(
        f'--case "{case}" matches {"several runs" if found else "no run"}; {"give one of" if found else "nearest ids:"} '
        f"{', '.join(near) or 'none'}"
    )


def explain_case(run: Run) -> None:
    """One run: its figures, and the tensors of its peak."""
    from ..estimator import estimate
    from ..report.tree import print_rows
    from ..report.validation import CASE_COLUMNS, case_row
    from ..validation.replay import job_of, measured_stage, replay
    from .console import console

    found = replay(run)
    screen = console()
    for name, value in zip(CASE_COLUMNS, case_row(found), strict=True):
        screen.print(f"{name:12} {plain(value)}", highlight=False, soft_wrap=True, markup=False)
    screen.print(f"source       {plain(run.source)}", highlight=False, soft_wrap=True, markup=False)
    if run.iteration is not None:
        screen.print(f"iteration    {run.iteration}", highlight=False)
    if run.printed:
        screen.print(f"printed as   {plain(run.printed)}", highlight=False, soft_wrap=True, markup=False)
    if found.refused:
        return
    for name, pair in found.formulas:
        screen.print(f"{name:12} {100 * pair.error:+.2f} % of the peak", highlight=False)
    result = estimate(job_of(run))
    print_rows(result, measured_stage(run, result)[0], "peak", screen)


def compare_log(log: str, arguments: tuple[str, ...], num_gpus: int | None, gpu: str, *, as_json: bool) -> None:
    """What a log says of memory beside the estimate of its run."""
    from ..estimator import estimate
    from ..inputs.text_files import read_text
    from ..report.log import compared_log, log_document
    from .given import job_from_options

    if not arguments:
        raise ConfigError("--log needs the run's arguments: a YAML file, a launch script, or words after --")
    result = estimate(job_from_options({"model": arguments, "world_size": num_gpus, "gpu": gpu}))
    found = compared_log(read_text(log, script=True), result)
    if as_json:
        from .files import print_json

        print_json(log_document(found))
    else:
        print_log(found)


LOG_COLUMNS = ("", "between steps MiB", "estimate", "error", "peak MiB", "estimate", "error", "compared with")


LAYER_COLUMNS = ("kept for the backward", "MiB, mean", "at most", "estimate")
FIGURE_COLUMNS = ("", "GiB", "expected", "more")


def print_log(log: Log) -> None:
    """The answer in a sentence, then the reports of a log and its other figures, beside the estimates, as tables."""
    from ..job.hardware import MIB
    from ..report.log import figure_text, log_lines
    from ..report.quantities import exactly, gib
    from ..report.validation import percent, print_table
    from .console import console

    screen = console()
    for line in log_lines(log):
        screen.print(line, highlight=False, markup=False)
    table = []
    for row in log.ranks:
        cells = []
        for measured, ours in (
            (row.report.allocated_bytes, row.allocated_bytes),
            (row.report.max_allocated_bytes, row.max_allocated_bytes),
        ):
            cells += [f"{measured / MIB:.1f}", f"{ours / MIB:.1f}", percent(ours / max(measured, 1) - 1)]
        where = f"rank {row.report.rank}, stage {row.pp_rank}, iteration {row.report.iteration}"
        table.append((where, *cells, row.figure))
    if table:
        print_table(screen, LOG_COLUMNS, table)
    told = [
        (
            figure_text(one),
            gib(one.figure.nbytes),
            exactly(one.expected) if one.expected is not None else "-",
            gib(one.more) if one.more else "-",
        )
        for one in log.figures
    ]
    if told:
        print_table(screen, FIGURE_COLUMNS, told)
    kept = [
        (
            f"layer {one.report.number} ({one.report.kind}), stage {one.pp_rank}",
            *(f"{size / MIB:.1f}" for size in one.retained.values()),
        )
        for one in log.layers
    ]
    if kept:
        print_table(screen, LAYER_COLUMNS, kept)


command = Verb(
    "validate",
    params=[
        click.Argument(["arguments"], nargs=-1, metavar="[ARGUMENTS]"),
        click.Option(["--case"], metavar="ID", help="explain one run: its figures and every tensor of its peak"),
        click.Option(["--against"], metavar="FILE", help="your own measured runs, one JSON object per line"),
        click.Option(
            ["--log"], metavar="FILE", help="a training log, or what nvidia-smi, rocm-smi, DCGM or W&B recorded"
        ),
        click.Option(["--num-gpus"], type=click.INT, help="GPUs of the logged run"),
        gpu_option(DEFAULT_GPU, "GPU of the logged run"),
        json_option(),
    ],
    callback=callback,
    help=HELP,
)
