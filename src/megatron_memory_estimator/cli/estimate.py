"""`megatron-memory estimate MODEL`: what every pipeline stage holds and when it peaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError, EstimatorError
from ..job.choices import SIZABLE
from ..job.training_job import TrainingJob
from ..wording import any_of, counted, dashed
from ..wording import shown as quoted
from .job_command import job_command, same_run
from .options import json_option

HELP = """What every GPU of every pipeline stage holds, and when it peaks.

MODEL is a bundled model or Hub id, a directory, a config.json, or - for standard input; or a whole run: a YAML file, a launch
script (read, never run), or Megatron-LM arguments after --. What you do not give is chosen for you and printed. Options have
Megatron's names; --tp, --pp, --ep, --cp, --etp, --vpp and --num-gpus are short for the long ones.
"""

if TYPE_CHECKING:
    from ..estimator import Estimate

RECORDS = ("csv", "markdown")
"""Formats of one row for each stage."""


def run(
    job: TrainingJob,
    *,
    as_json: bool,
    form: str,
    formulas: bool,
    html: str | None,
    largest: str | None,
    sample_lengths: str | None,
    **shown: bool,
) -> None:
    """Print the estimate, how large a setting can be, or what sample lengths do."""
    questions = {"largest": largest, "sample_lengths": sample_lengths}
    if asking := [name for name, word in questions.items() if word is not None]:
        alone(asking, {"formulas": formulas, "html": html is not None, "format": form not in ("text", "json"), **shown})
        answer = print_largest if largest is not None else print_lengths
        answer(job, str(questions[asking[0]]), as_json=as_json or form == "json")
        return
    whole(form, {**shown, "formulas": formulas, "json": as_json})
    form = "json" if as_json else form
    shown["table"] = shown["table"] or form == "table"
    if (
        job.nothing_laid_out
        and not job.gpu.chip_unknown
        and form == "text"
        and html is None
        and not any((formulas, *shown.values()))
    ):
        print_card(job)
        return
    from ..estimator import estimate

    if html is not None and not html.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--html {quoted(html)} must end in .html")
    result = estimate(job)
    if html is not None:
        from ..report.page import page_report
        from .files import write

        write(html, page_report(result).encode(), "--html")
    if form in RECORDS:
        from ..report.records import FORMATS, stage_records

        click.echo(FORMATS[form](stage_records(result)), nl=False)
    elif form == "json":
        print_document(result, formulas=formulas)
    else:
        from ..report.text import Shown, print_estimate
        from .console import console, page

        tables = formulas or any(shown[name] for name in ("table", "verbose", "all_gpus"))
        terminal = console() if tables else page()
        open_layout = job.only_data_parallel and not result.verdict().fits and not job.gpu.chip_unknown
        print_estimate(result, terminal, Shown(**shown, command=tuple(same_run()), next=not open_layout))
        if open_layout:
            print_least(job)
        if formulas:
            from ..report.formulas import print_formulas

            print_formulas(result, terminal)


def alone(asking: list[str], beside: dict[str, bool]) -> None:
    """Raises ConfigError where a question that is an answer of its own stands beside another, or beside a form of the estimate."""
    if listed := [dashed(name) for name in (*asking[1:], *(name for name, on in beside.items() if on))]:
        raise ConfigError(f"{dashed(asking[0])} is an answer of its own; leave {', '.join(listed)} out")


def whole(form: str, asked: dict[str, bool]) -> None:
    """Raises ConfigError where a form that has everything stands beside options that add to the text."""
    held = ("table", "assumptions", "verbose", "all_gpus") if form not in RECORDS else tuple(asked)
    if (form in RECORDS or asked["json"] or form == "json") and (beside := [name for name in held if asked[name]]):
        options = ", ".join(dashed(name) for name in beside)
        what = "a row for each stage" if form in RECORDS else "the whole document"
        raise ConfigError(f"--format {form if form in RECORDS else 'json'} is {what}; leave {options} out")


def print_largest(job: TrainingJob, setting: str, *, as_json: bool) -> None:
    """How large a setting of the run can be, in a sentence or as a document."""
    from ..planner.largest import largest
    from ..report.limit import largest_document, sentence

    found = largest(job, setting)
    print_answer(job, [sentence(found)], largest_document(found), as_json=as_json)


def print_lengths(job: TrainingJob, given: str, *, as_json: bool) -> None:
    """What sample lengths do to the run, in sentences or as a document."""
    from ..planner.sample_lengths import sample_lengths
    from ..report.lengths import lengths_document, sentences

    found = sample_lengths(job, given)
    print_answer(job, sentences(found), lengths_document(found), as_json=as_json)


def print_answer(job: TrainingJob, lines: list[str], document: dict[str, Any], *, as_json: bool) -> None:
    """An answer of its own: its sentences and the warnings of the run, or its document."""
    if as_json:
        from .files import print_json

        print_json(document)
        return
    from ..report.text import print_warnings
    from .console import page

    terminal = page()
    for line in lines:
        terminal.print(line, highlight=False, markup=False)
    print_warnings(job, terminal)


def print_document(result: Estimate, *, formulas: bool) -> None:
    """The JSON document, with what the formulas say where that is asked for."""
    document = result.to_dict()
    if formulas:
        from ..report.formulas import formulas_section

        document["formulas"] = formulas_section(result.job)
    from .files import print_json

    print_json(document)


def print_card(job: TrainingJob) -> None:
    """What the model takes before anything is laid out, with a command for each kind of GPU."""
    from ..planner.card import card
    from ..report.card import card_table, commands, model_line, notes, sentence, tried_line
    from ..report.text import print_warnings
    from .console import console

    terminal = console()
    with trying() as progress:
        found = card(job, progress)
    for line in (sentence(found), model_line(found), tried_line(found)):
        terminal.print(line, highlight=False, markup=False)
    terminal.print(card_table(found))
    for line in notes(found):
        terminal.print(line, highlight=False, markup=False)
    print_warnings(job, terminal)
    lines = list(commands(found, same_run(), terminal.width))
    if lines:
        terminal.print("The fastest layouts on these numbers of GPUs:", highlight=False)
    for line in lines:
        terminal.print(line, highlight=False, markup=False, soft_wrap=True)


def print_least(job: TrainingJob) -> None:
    """The layout that needs least on the GPUs of a run that has no layout, beside data parallelism alone."""
    from ..planner.card import on_its_gpus
    from ..report.card import least_lines
    from .console import page

    with trying() as progress:
        try:
            found = on_its_gpus(job, progress)
        except EstimatorError:  # the estimate above is the answer
            return
    for line in least_lines(found, same_run(), page().width):
        page().print(line, highlight=False, markup=False, soft_wrap=line.startswith(("Next:", "    ")))


@contextmanager
def telling() -> Iterator[Callable[[str], None] | None]:
    """A line on standard error that says what is tried; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


@contextmanager
def trying() -> Iterator[Callable[[int], None] | None]:
    """A line on standard error that says which number of GPUs is tried; nothing where that is no terminal."""
    with telling() as tell:
        yield tell and (lambda gpus: tell(f"trying layouts on {counted(gpus, 'GPU')}"))


command = job_command(
    "estimate",
    HELP,
    [
        json_option(),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["text", "table", "json", *RECORDS]),
            default="text",
            show_default=True,
            help="csv and markdown are a row for each stage, in bytes",
        ),
        click.Option(
            ["--table"], is_flag=True, help="every part of every stage's peak in GiB, and the whole configuration"
        ),
        click.Option(["--assumptions"], is_flag=True, help="all that was decided because it was not given"),
        click.Option(
            ["--verbose", "-v"],
            is_flag=True,
            help="--table and --assumptions, with device-memory terms, phases and chunks",
        ),
        click.Option(
            ["--all-gpus"], is_flag=True, help="the verdict and head-room on every GPU of the catalogue, as a table"
        ),
        click.Option(
            ["--largest"],
            metavar="SETTING",
            default=None,
            help=f"the largest {any_of(SIZABLE)} that fits",
        ),
        click.Option(
            ["--sample-lengths"],
            metavar="LENGTHS",
            default=None,
            help="what samples of these lengths (a file, or mean,p99,max) do to a run that packs them",
        ),
        click.Option(
            ["--html"],
            metavar="FILE",
            help="also write the page of this run as one file",
        ),
        click.Option(
            ["--formulas"], is_flag=True, help="also print what Megatron-Bridge's and Megatron-LM's formulas say"
        ),
    ],
    run,
)
