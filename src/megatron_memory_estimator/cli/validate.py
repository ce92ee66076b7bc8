"""`megatron-memory validate`: measured runs beside their estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import ConfigError
from ..job.hardware import DEFAULT_GPU
from ..wording import plain
from .options import gpu_option, json_option
from .verb import Verb

if TYPE_CHECKING:
    from ..estimator import Estimate
    from ..validation.logs import Reported
    from ..validation.replay import Replay
    from ..validation.runs import Run

HELP = """Replay measured runs and compare: the project's own table, or your own runs.

--against reads runs in the schema of docs/how-to/validation.md, one JSON object per line. --log reads Megatron's memory lines of a
training log and compares them with the estimate of the same ARGUMENTS (a YAML file, a launch script, or words behind --).
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
    raise ConfigError(f'--case "{case}" names {len(found)} runs; near it: {", ".join(near) or "none"}')


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
    if run.printed:
        screen.print(f"printed as   {plain(run.printed)}", highlight=False, soft_wrap=True, markup=False)
    if found.refused:
        return
    for name, pair in found.formulas:
        screen.print(f"{name:12} {100 * pair.error:+.2f} % of the peak", highlight=False)
    result = estimate(job_of(run))
    print_rows(result, measured_stage(run, result)[0], "peak", screen)


def compare_log(log: str, arguments: tuple[str, ...], num_gpus: int | None, gpu: str, *, as_json: bool) -> None:
    """The last memory report of every rank beside the estimate of its stage."""
    from ..estimator import estimate
    from ..inputs.text_files import read_text
    from ..validation.logs import read_log
    from .given import job_from_options

    if not arguments:
        raise ConfigError("--log needs the run's arguments: a YAML file, a launch script, or words behind --")
    result = estimate(job_from_options({"model": arguments, "world_size": num_gpus, "gpu": gpu}))
    per_stage = result.job.layout.world_size // len(result.stages)
    rows = []
    for report in read_log(read_text(log, script=True)):
        if report.rank >= result.job.layout.world_size:
            raise ConfigError(f"the log has rank {report.rank}, but the run has {result.job.layout.world_size} GPUs")
        rows.append(compared(report, result, report.rank // per_stage))
    if as_json:
        from .files import print_json

        print_json(log_document(rows))
    else:
        print_log(rows, result)


class Compared(NamedTuple):
    """A report of a rank, and what the estimate of its stage says of that iteration: bytes allocated between two steps, the largest so far,
    and which of the estimate's figures that is."""

    report: Reported
    pp_rank: int
    allocated_bytes: int
    max_allocated_bytes: int
    figure: str

    @property
    def above(self) -> int:
        """Bytes that the measured peak is above the estimate."""
        return self.report.max_allocated_bytes - self.max_allocated_bytes

    @property
    def share(self) -> float:
        """The error of the estimated peak, as a share of the measured one."""
        return abs(self.above) / max(self.report.max_allocated_bytes, 1)


def compared(report: Reported, result: Estimate, pp_rank: int) -> Compared:
    """A report beside the figures of its iteration: the first step without loaded optimizer state has no moments while it runs; before
    TransformerEngine's graphs and those of whole iterations are captured nothing is kept for them."""
    import dataclasses

    from ..estimator import stage_of

    job, stage = result.job, result.stages[pp_rank]
    t = job.training
    figure = "peak"
    if t.cuda_graph_impl in ("transformer_engine", "full_iteration") and report.steps <= t.cuda_graph_warmup_steps:
        plain = dataclasses.replace(t, cuda_graph_impl="none", cuda_graph_modules=())
        stage, figure = stage_of(dataclasses.replace(job, training=plain), pp_rank), "peak before the capture"
    if report.steps == 1 and not (report.loaded and t.load_optim):
        return Compared(
            report, pp_rank, stage.steady_allocated_bytes, stage.first_step_peak_allocated_bytes, "first step"
        )
    return Compared(report, pp_rank, stage.steady_allocated_bytes, stage.peak_allocated_bytes, figure)


def log_document(rows: Sequence[Compared]) -> dict[str, Any]:
    """The reports of a log and the estimates, for JSON."""
    ranks = [
        {
            "rank": row.report.rank,
            "pp_rank": row.pp_rank,
            "iteration": row.report.iteration,
            "figure": row.figure,
            "allocated_bytes": {"measured": row.report.allocated_bytes, "estimated": row.allocated_bytes},
            "max_allocated_bytes": {"measured": row.report.max_allocated_bytes, "estimated": row.max_allocated_bytes},
        }
        for row in rows
    ]
    return {"schema": "megatron-memory-log/1", "ranks": ranks}


LOG_COLUMNS = ("", "between steps MiB", "estimate", "error", "peak MiB", "estimate", "error", "compared with")


def print_log(rows: Sequence[Compared], result: Estimate) -> None:
    """The answer in a sentence, then the reports of a log and the estimates as a table."""
    from ..job.hardware import MIB
    from ..report.validation import percent, print_table
    from .console import console

    screen = console()
    for line in log_lines(rows, result):
        screen.print(line, highlight=False, markup=False)
    table = []
    for row in rows:
        cells = []
        for measured, ours in (
            (row.report.allocated_bytes, row.allocated_bytes),
            (row.report.max_allocated_bytes, row.max_allocated_bytes),
        ):
            cells += [f"{measured / MIB:.1f}", f"{ours / MIB:.1f}", percent(ours / max(measured, 1) - 1)]
        where = f"rank {row.report.rank}, stage {row.pp_rank}, iteration {row.report.iteration}"
        table.append((where, *cells, row.figure))
    print_table(screen, LOG_COLUMNS, table)


def log_lines(rows: Sequence[Compared], result: Estimate) -> Iterator[str]:
    """How far the measured peak is from the estimate where it is farthest, and the tensors whose bytes are nearest to that."""
    from ..callback import NOTABLE, explained
    from ..job.hardware import GIB, MIB

    worst = max(rows, key=lambda row: row.share)
    where = f"stage {worst.pp_rank} (rank {worst.report.rank}, iteration {worst.report.iteration})"
    if worst.share <= NOTABLE:
        rest = max(abs(row.report.allocated_bytes / max(row.allocated_bytes, 1) - 1) for row in rows)
        yield (
            f"Every measured peak is within {worst.share:.1%} of the estimate (the farthest: {where}), and what is allocated between steps "
            f"within {rest:.1%}."
        )
        return
    side, high = ("above", "low") if worst.above > 0 else ("below", "high")
    size = f"{abs(worst.above) / GIB:.1f} GiB" if abs(worst.above) > GIB / 10 else f"{abs(worst.above) / MIB:.0f} MiB"
    yield f"The measured peak is {size} {side} the estimate on {where}: the estimate is {100 * worst.share:.2f} % too {high}."
    at_peak = worst.figure == "peak"  # before it moments, or graphs, are not there yet
    if at_peak and (why := explained(result.stages[worst.pp_rank].rows, worst.above, worst.report.max_allocated_bytes)):
        yield f"Tensors to look at: {why}."
    yield "docs/how-to/real_figure.md says what else makes a run take more or less."


command = Verb(
    "validate",
    params=[
        click.Argument(["arguments"], nargs=-1, metavar="[ARGUMENTS]"),
        click.Option(["--case"], metavar="ID", help="explain one run: its figures and every tensor of its peak"),
        click.Option(["--against"], metavar="FILE", help="your own measured runs, one JSON object per line"),
        click.Option(["--log"], metavar="FILE", help="a training log with Megatron's memory lines"),
        click.Option(["--num-gpus"], type=click.INT, help="GPUs of the logged run"),
        gpu_option(DEFAULT_GPU, "GPU of the logged run"),
        json_option(),
    ],
    callback=callback,
    help=HELP,
)
