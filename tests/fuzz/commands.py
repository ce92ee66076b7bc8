"""The command line in this process: options, layouts of `compare`, variables of scripts, axes of `plan`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_memory_estimator.cli import main
from megatron_memory_estimator.wording import LONGEST_MESSAGE, LONGEST_QUESTIONS

from . import seeds
from .mutate import Words, argv
from .watch import CONTROL, Outcome, Reader, written

MODEL = "Qwen/Qwen3-0.6B"
OPTIONS = (
    f"estimate {MODEL} --num-gpus 8 --tp 2 --json",
    f"estimate {MODEL} --num-gpus 8 --pp 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    f"explain {MODEL} --num-gpus 8 --tp 2 --stage 0 --at steady --json",
    f"compare {MODEL} --num-gpus 8 --layout tp=1 --layout tp=2,recompute_granularity=selective --json",
    f"compare {MODEL} Qwen/Qwen3-1.7B --num-gpus 8 --layout tp=2 --format csv",
    "estimate run.sh --set N=2 --set 1=x --json",
    "estimate run.yaml --json",
    f"estimate --json -- {seeds.SMALL}",
    "models Qwen/Qwen3-0.6B --json",
    "gpus",
    "validate --log run.log --json -- " + seeds.SMALL,
    "validate --against runs.jsonl --json",
)
PLANS = (
    f"plan {MODEL} --num-gpus 8 --tp 1,2 --pp 1 --cp 1 --json",
    f"plan {MODEL} --num-gpus 8 --tp 2 --pp 2 --cp 1 --vpp 1 --split even --recompute none,full,block:2 --precision bf16 --top 2",
    f"plan {MODEL} --num-gpus 8 --tp not:8 --pp 1-2 --cp 1 --micro-batch-size 1 --head-room 5% --objective memory --launch yaml",
    f"plan {MODEL} --num-gpus 8 --tp 2 --pp 1 --cp 1 --calibrate steps.jsonl --global-batch-size 16 --json",
    f"plan {MODEL} --num-gpus 8 --tp 8 --pp 1 --cp 1 --max-memory 40 --tight --show 1 --launch bridge",
)


def commands() -> list[Any]:
    """Command lines of the verbs that answer at once."""
    return [line.split() for line in OPTIONS]


def plans() -> list[Any]:
    """Command lines of the search."""
    return [line.split() for line in PLANS]


def changed(random: Any, case: Any, other: Any, words: Words) -> Any:
    """A command line changed; a server is none."""
    found = argv(random, case, other, words)
    return case if {"mcp", "serve"} & set(found[:1]) or any("/dev" in word for word in found) else found


def options() -> Words:
    """Every option of the verbs, and words of their values."""
    from megatron_memory_estimator.cli.options import setting_fields, special_options, spellings

    names = [name for option in special_options() for name in option.opts]
    names += [name for field in setting_fields() for name in spellings(field)]
    own = (
        "--json",
        "--layout",
        "--format",
        "--set",
        "--stage",
        "--at",
        "--strict",
        "--ignore-unknown",
        "--case",
        "--gpu",
    )
    return Words((*seeds.PIECES, "tp=2", "tp=2,pp=2", "N=3", "csv", "markdown", "steady", "peak"), (*names, *own))


def axes() -> Words:
    """Options of the search, and values of axes."""
    found = options()
    names = (
        "--tp", "--pp", "--cp", "--vpp", "--ep", "--micro-batch-size", "--split", "--recompute", "--precision", "--objective", "--top",
        "--max-memory", "--head-room", "--show", "--launch", "--calibrate", "--tight", "--global-batch-size",
    )  # fmt: skip
    pieces = (
        "1,2",
        "2-16",
        "not:8",
        "1-",
        "-2",
        "8-2",
        "not:",
        "even",
        "uneven",
        "layout",
        "block:2",
        "uniform:1",
        "mlp+core_attn",
        "head-room",
        "10%",
        "5",
    )
    return Words((*pieces, *found.pieces), (*names * 4, *found.names))


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """In a folder with the files that command lines name: what is printed on standard output and error."""
    kept = os.getcwd(), sys.stdin, os.cpu_count
    out, err = io.BytesIO(), io.BytesIO()
    if not (folder / "run.sh").exists():
        written(folder, "run.sh", "torchrun --nproc-per-node $N " + seeds.LAUNCH.removeprefix("python "))
        written(folder, "runs.jsonl", json.dumps(seeds.RUN))
        written(folder, "steps.jsonl", json.dumps(seeds.STEP))
        written(folder, "run.log", seeds.LOGS[0])
        written(folder, "run.yaml", seeds.documents()[1])
    os.chdir(folder)
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    os.cpu_count = lambda: 1
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(out, "utf-8", write_through=True)) as one:
            with contextlib.redirect_stderr(
                io.TextIOWrapper(err, "utf-8", "backslashreplace", write_through=True)
            ) as two:
                yield out, err
            two.detach()
        one.detach()
    finally:
        os.chdir(kept[0])
        sys.stdin, os.cpu_count = kept[1:]


def read_command(case: Any, folder: Path) -> Outcome:
    """What the command prints, and whether it ends as it should."""
    code: Any = 0
    with inside(folder) as (out, err):
        try:
            main(list(case))
        except SystemExit as done:
            code = done.code or 0
    printed, complained = out.getvalue().decode(), err.getvalue().decode()
    return judged(code, printed, complained, as_json="--json" in case)


def judged(code: Any, printed: str, complained: str, *, as_json: bool) -> Outcome:
    """The outcome of a command: exit code 0, or 2 with one sentence and nothing else."""
    if code not in (0, 2):
        return Outcome(False, wrong=f"exit code {code}: {complained[:300]}")
    if odd := CONTROL.search(printed + complained):
        return Outcome(False, wrong=f"control character {odd[0]!r} is printed")
    if code == 2 and complained.startswith("Usage:"):
        return Outcome(False)
    if code == 2:
        wrong = (
            ""
            if not printed and complained.strip()
            else f"exit code 2 with output {printed[:100]!r} {complained[:100]!r}"
        )
        lines = tuple(line.removeprefix("error: ") for line in complained.splitlines())
        asks = any(re.match(r"[0-9]+ things must be settled: ", line) for line in lines)
        return Outcome(False, lines, wrong, longest=LONGEST_QUESTIONS if asks else LONGEST_MESSAGE)
    if as_json and printed.startswith("{"):
        try:
            json.loads(printed, parse_constant=_constant)
        except ValueError as error:
            return Outcome(True, wrong=f"no JSON is printed: {error}")
    elif as_json and not printed.startswith(("[", "Usage:")):
        return Outcome(True, wrong=f"no JSON is printed: {printed[:200]!r}")
    return Outcome(True, tuple(complained.splitlines()[:3]))


def _constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


COMMANDS = (
    Reader("options", commands, changed, read_command, options, names_files=True),
    Reader("plan", plans, changed, read_command, axes, seconds=20.0, names_files=True),
)
