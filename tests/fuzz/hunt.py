"""A reader hunted in a process of its own: mutation that keeps what is answered in a new way or reaches new lines, until its CPU
time is spent.

The process notes the case that it is about to read, so that the parent can tell what a hang, a kill or lost memory was about.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from megatron_memory_estimator.errors import EstimatorError
from megatron_memory_estimator.inputs.hf import load_named

from .lines import Lines
from .mutate import smaller
from .watch import Events, Finding, Outcome, Reader, masked, observed, scratch

MOST_MEMORY = 4 * 2**30
"""Bytes of address space of a process."""
HANG = 6
"""How many times the CPU seconds of a case may pass before the process is ended."""
STUCK = 60
"""Seconds without an end, for a case that waits."""
NEWEST = 40
SMALLER = 400
"""How many smaller cases are tried for a finding."""


@dataclass
class Counts:
    """What became of the cases of a reader."""

    runs: int = 0
    accepted: int = 0
    refusals: int = 0
    lines: int = 0
    cpu_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Pool:
    """Cases that were answered in a new way or reached new lines: those that were accepted, and the others."""

    accepted: list[Any] = field(default_factory=list)
    refused: list[Any] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)

    def add(self, case: Any, outcome: Outcome, *, reaches: bool = False) -> bool:
        """Keep a case if its answer is new, or it reaches new lines; whether the answer is."""
        answer = f"{outcome.accepted} {masked(' '.join(outcome.said))[:200]}"
        is_new = answer not in self.answers
        if is_new or reaches:
            self.answers.add(answer)
            (self.accepted if outcome.accepted else self.refused).append(case)
        return is_new

    def choose(self, random: Random, seeds: list[Any]) -> Any:
        """A case to change: a seed, one that was accepted, one of the newest, or any."""
        kind = random.random()
        if kind < 0.25 or not (self.accepted and self.refused):
            return random.choice(seeds)
        if kind < 0.6:
            return random.choice(self.accepted)
        return random.choice(self.refused[-NEWEST:] if kind < 0.8 else self.refused)


def cases(reader: Reader, seed: str, pool: Pool) -> Iterator[Any]:
    """The seeds, then mutations of them and of what the caller adds to the pool."""
    random, words, seeds = Random(seed), reader.words(), reader.seeds()
    yield from seeds
    while True:
        yield reader.change(random, pool.choose(random, seeds), pool.choose(random, seeds), words)


def hunt(reader: Reader, seed: str, seconds: float, folder: Path, notes: Path, known: frozenset[str]) -> None:
    """Read cases until the CPU time is spent; `notes` gets the counts, the findings and the case in hand."""
    _limit(notes)
    os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=str(folder), OPENBLAS_NUM_THREADS="1")
    sys.dont_write_bytecode = True
    events = Events(str(folder))
    with suppress(EstimatorError):
        load_named("nobody/nothing")  # what is loaded once is no growth of a case
    for case in reader.seeds():
        _timed(reader, case, folder, None, notes)
    events.install()
    counts, pool, keys, saved, lines = Counts(), Pool(), set(known), 0.0, Lines()
    for case in cases(reader, seed, pool):
        with lines.watched():
            outcome, found = _timed(reader, case, folder, events, notes)
        if found is not None and found.kind == "time":  # watching takes time too
            outcome, found = _timed(reader, case, folder, events, notes)
        counts.runs += 1
        counts.accepted += outcome.accepted
        counts.lines = len(lines.known)
        if found is None and pool.add(case, outcome, reaches=lines.new):
            counts.refusals += not outcome.accepted
        if found is not None and found.key not in keys:
            keys.add(found.key)
            counts.findings.append(_smallest(reader, found, folder, events, notes))
        now = time.process_time()
        if now - saved > 1 or now > seconds or found is not None:
            saved, counts.cpu_seconds = now, now
            (notes / "counts.json").write_text(json.dumps(asdict(counts)))
        if now > seconds:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)


def _timed(
    reader: Reader, case: Any, folder: Path, events: Events | None, notes: Path
) -> tuple[Outcome, Finding | None]:
    """One case, noted before it is read, with the process ended after a time."""
    (notes / "case.json").write_text(json.dumps(case))
    signal.setitimer(signal.ITIMER_PROF, reader.seconds * HANG)
    signal.alarm(STUCK)
    return observed(reader, case, folder, events)


def _limit(notes: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    trace = open(notes / "trace.txt", "w")  # noqa: SIM115  (for the life of the process)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
        faulthandler.register(number, file=trace, chain=True)


def _smallest(reader: Reader, found: Finding, folder: Path, events: Events, notes: Path) -> Finding:
    """The finding with a smaller case that shows the same."""
    tries, start = 0, time.process_time()
    progress = True
    while progress:
        progress = False
        for case in smaller(found.case):
            tries += 1
            if tries > SMALLER or time.process_time() - start > 10:
                return found
            _, again = _timed(reader, case, folder, events, notes)
            if again is not None and again.key == found.key:
                found, progress = again, True
                break
    return found


def hunted(reader: Reader, seed: str, minutes: float) -> Counts:
    """What a hunt of so many CPU minutes found; a process that is ended is a finding, and another one goes on."""
    total, generation = Counts(), 0
    while (left := 60 * minutes - total.cpu_seconds) > 0:
        folder, notes = scratch(), scratch()
        known = frozenset(one.key for one in total.findings)
        process = get_context("spawn").Process(
            target=hunt, args=(reader, f"{seed} {reader.name} {generation}", left, folder, notes, known)
        )
        process.start()
        process.join()
        _add(total, notes)
        if process.exitcode:
            ended = _ended(reader, process.exitcode, notes)
            total.findings += [ended] if ended.key not in known else []
            total.cpu_seconds += reader.seconds * HANG
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(notes, ignore_errors=True)
        generation += 1
    return total


def _add(total: Counts, notes: Path) -> None:
    """Add what a process noted."""
    file = notes / "counts.json"
    if not file.exists():
        return
    found = json.loads(file.read_text())
    total.runs += found["runs"]
    total.accepted += found["accepted"]
    total.refusals = max(total.refusals, found["refusals"])
    total.lines = max(total.lines, found["lines"])
    total.cpu_seconds += found["cpu_seconds"]
    total.findings += [Finding(**one) for one in found["findings"]]


def _ended(reader: Reader, code: int, notes: Path) -> Finding:
    """The finding of a process that did not come to its end."""
    kinds = {-signal.SIGPROF: "hang", -signal.SIGALRM: "waits for ever"}
    trace = (notes / "trace.txt").read_text() if (notes / "trace.txt").exists() else ""
    frames = [line.strip() for line in trace.splitlines() if "megatron_memory_estimator" in line]
    text = (notes / "case.json").read_text() if (notes / "case.json").exists() else "null"
    kind = kinds.get(-abs(code), f"the process ended with {code}")
    return Finding(reader.name, kind, "\n".join(frames[:6]), f"{kind} {frames[:1]}", json.loads(text or "null"))
