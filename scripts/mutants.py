"""Mutation testing of the engine: small changes of its code, one at a time, and the tests that do not notice them.

python scripts/mutants.py --map                     which tests run which line: first, and after tests are written
python scripts/mutants.py --room modules --draw 300    so many mutants of a room, by a seed
python scripts/mutants.py --modules tape/tensor.py --modules 'device/*' --sample 40 --seed 1
python scripts/mutants.py --sample 0                  every place (an hour or two)
python scripts/mutants.py --every --sample 0          every replacement at every place (hours)
python scripts/mutants.py --again                     what survived the last time
python scripts/mutants.py --table                     what is known, and nothing is run

cosmic-ray makes the mutants. A sample takes places of a module, a draw places of a room, and of what cosmic-ray puts in each place one. A
mutant is asked of the tests of `make test` that run its line (those of its module where the line runs at import), the quickest first,
so many as take a minute: what more tests would notice counts as a survivor. Everything happens in temporary copies of the tree; the last
results of each module are kept in build/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import fnmatch
import itertools
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import cosmic_ray.plugins
import toml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/megatron_memory_estimator")
CONFIG = toml.loads((ROOT / "scripts/mutants.toml").read_text())
KEPT = ROOT / "build/mutants.json"
MAP = ROOT / "build/mutants_map.json"
SAMPLE = 60
"""Places of a module: below an hour for all modules on two cores."""
TEST = 60
"""Seconds of the slowest test, several times over: a mutant that takes longer is killed."""
MEMORY = 8 * 2**30
"""Bytes of address space of a test run: an endless list ends there."""
BUDGET = 15
"""Seconds, as the map measured them (several times those without coverage), of the tests that are asked about one mutant."""


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a module: which operator of cosmic-ray, and which of its occurrences there."""

    module: str
    operator: str
    occurrence: int
    line: int
    column: int


@dataclass(frozen=True)
class Tried:
    """A mutant, what became of it (killed, survived), the test that failed, seconds, and the change."""

    mutant: Mutant
    outcome: str
    by: str
    seconds: float
    diff: str


def main() -> int:
    """Try mutants, print each, and at the end a table and every survivor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--modules", action="append", help="a module of scripts/mutants.toml, or a pattern; all without it"
    )
    parser.add_argument("--room", action="append", help="a room of scripts/mutants.toml")
    parser.add_argument("--draw", type=int, default=0, help="mutants of all chosen modules together, by the seed")
    parser.add_argument("--map", action="store_true", help="run the tests once, and write down which run which line")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="places of each module, 0 for all")
    parser.add_argument("--every", action="store_true", help="every replacement at a place instead of one")
    parser.add_argument("--seed", default="2026", help="of the sample")
    parser.add_argument(
        "--workers", type=int, default=min(os.cpu_count() or 1, 2), help="copies of the tree, each on a core"
    )
    parser.add_argument("--again", action="store_true", help="try the survivors of the last run again")
    parser.add_argument("--go-on", action="store_true", help="leave out what was tried before")
    parser.add_argument("--table", action="store_true", help="print the table of what is known")
    given = parser.parse_args()
    if given.map:
        return write_map()
    wanted = [*(given.modules or []), *(f"{room}/*" for room in given.room or [])] or ["*"]
    modules = [one for one in all_modules() if any(fnmatch.fnmatch(one, pattern) for pattern in wanted)]
    if not modules:
        parser.error(f"no module of {', '.join(CONFIG['rooms'])} is {' or '.join(wanted)}")
    before = _results()
    if given.table:
        print(table([one for one in before if one.mutant.module in modules]))
        return 0
    if given.again:
        mutants = [one.mutant for one in before if one.outcome == "survived" and one.mutant.module in modules]
        there = {one for module in modules for one in mutants_of(module, (ROOT / PACKAGE / module).read_text())}
        gone = {one for one in mutants if one not in there}
        mutants = [one for one in mutants if one in there]
    else:
        sample = 0 if given.draw else given.sample
        mutants = [one for module in modules for one in sampled(module, sample, given.seed, every=given.every)]
        if 0 < given.draw < len(mutants):
            mutants = sorted(Random(given.seed).sample(mutants, given.draw), key=lambda one: (one.module, one.line))
        known = {one.mutant for one in before if one.mutant.module in modules}
        mutants = [one for one in mutants if not (given.go_on and one in known)]
        gone = set() if given.go_on else known
    print(f"{len(mutants)} mutants of {len(modules)} modules", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    tried = list(run(mutants, given.workers, whole=given.again))
    done = gone | {one.mutant for one in tried}
    _keep([*(one for one in before if one.mutant not in done), *tried])
    print(table(tried))
    return 0


def all_modules() -> list[str]:
    """Every module of the rooms, by its path below the package."""
    package = ROOT / PACKAGE
    found = [
        str(file.relative_to(package)) for room in CONFIG["rooms"] for file in sorted((package / room).rglob("*.py"))
    ]
    return [one for one in found if one not in CONFIG["left_out"]]


def write_map() -> int:
    """Run `make test`'s tests in one process with line coverage, and keep for each line the tests that run it.

    Caches are emptied before each test (scripts/uncached.py): a test that reads what another computed runs the lines itself.
    """
    import coverage

    data = ROOT / "build/mutants.coverage"
    report = ROOT / "build/mutants.xml"
    measure = ["coverage", "run", f"--data-file={data}", f"--rcfile={ROOT / 'scripts/mutants.coveragerc'}"]
    rooms = ",".join(str(ROOT / PACKAGE / room / "*") for room in CONFIG["rooms"])
    quick = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "scripts.uncached", "--hypothesis-seed=0"]
    tests = ["pytest", *quick, f"--junitxml={report}", "--ignore=tests/web", *_deselected(), "tests"]
    code = subprocess.run(
        [sys.executable, "-m", *measure, f"--include={rooms}", "-m", *tests], cwd=ROOT, check=False
    ).returncode
    if code not in (0, 1):  # a test that fails has run its lines
        return code
    found = coverage.CoverageData(str(data))
    found.read()
    names: dict[str, int] = {}
    lines: dict[str, dict[str, list[int]]] = {}
    for file in found.measured_files():
        each = lines[str(Path(file).relative_to(ROOT / PACKAGE))] = {}
        for line, contexts in found.contexts_by_lineno(file).items():
            each[str(line)] = [names.setdefault(test_of(one), len(names)) for one in contexts if one]
    seconds = _seconds(report)
    MAP.write_text(json.dumps({"tests": [(name, seconds.get(name, 0.0)) for name in names], "lines": lines}) + "\n")
    return 0


def _deselected() -> list[str]:
    return [f"--deselect={name}" for name in CONFIG["left_out_tests"]]


def test_of(context: str) -> str:
    """The test of a context: `tests.test_tape.test_it` -> `tests/test_tape.py::test_it`."""
    folder, file, *names = context.split(".")
    return "::".join([f"{folder}/{file}.py", *names])


def _seconds(report: Path) -> dict[str, float]:
    """Seconds of every test function, its parameters together."""
    from xml.etree import ElementTree

    found: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = test_of(f"{case.attrib['classname']}.{case.attrib['name'].split('[')[0]}")
        found[name] = found.get(name, 0.0) + float(case.attrib["time"])
    return found


@cache
def _map() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MAP.read_text())
    return found


def asked(mutant: Mutant, *, whole: bool = False) -> Iterator[list[str]]:
    """The tests that run a mutant's line: those that are asked first of its module, then the others up to `BUDGET`, the quickest first.

    Where the line runs at import they are those of its module. `whole` asks all of the first files, so that tests that the map does not
    know are among them.
    """
    first = [file for name, files in CONFIG["first"].items() if fnmatch.fnmatch(mutant.module, name) for file in files]
    if not MAP.exists():
        yield list(dict.fromkeys([*first, *CONFIG["tests"]]))
        return
    known = _map()
    lines = known["lines"].get(mutant.module, {})
    numbers = lines.get(str(mutant.line)) or {one for each in lines.values() for one in each}
    tests = sorted(known["tests"][one][::-1] for one in numbers)
    yield first if whole else [name for _, name in tests if name.split("::")[0] in first]
    spent = itertools.accumulate(seconds for seconds, _ in tests)
    quick = [name for (_, name), total in zip(tests, spent, strict=True) if total <= BUDGET]
    yield [name for name in quick if name.split("::")[0] not in first]


def sampled(module: str, sample: int, seed: str, *, every: bool) -> list[Mutant]:
    """So many places of a module, and a mutant of each, by the seed and the module's name."""
    source = (ROOT / PACKAGE / module).read_text()
    places: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants_of(module, source):
        places.setdefault((mutant.line, mutant.column), []).append(mutant)
    random = Random(f"{seed} {module}")
    chosen = sorted(places if not sample or len(places) <= sample else random.sample(sorted(places), sample))
    return [one for place in chosen for one in (places[place] if every else [random.choice(places[place])])]


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant that cosmic-ray makes of a module outside of annotations."""
    tree = get_ast(source)
    silent = list(annotations(source))
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator = cosmic_ray.plugins.get_operator(name)
        if name in CONFIG["without"] or operator.arguments():
            continue
        places = (start for node in ast_nodes(tree) for start, _ in operator().mutation_positions(node))
        for occurrence, (line, column) in enumerate(places):
            if not any(first <= (line, column) < last for first, last in silent):
                yield Mutant(module, name, occurrence, line, column)


def annotations(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations begin and end: nothing evaluates them."""
    for node in ast.walk(ast.parse(source)):
        found: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for one in filter(None, found):
            yield (one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset)


def run(mutants: list[Mutant], workers: int, *, whole: bool = False) -> Iterator[Tried]:
    """Try mutants side by side, and print each as it is done; what is done when interrupted counts."""
    runner = Runner(whole=whole)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(min(workers, max(len(mutants), 1))):
            copies.put(copied(Path(folder) / str(number)))
        if not MAP.exists():
            print(f"the tests alone take {runner.measure(copies.queue[0]):.1f} s", flush=True)
        waiting = [pool.submit(runner.tried, mutant, copies) for mutant in mutants]
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                found = future.result()
                at = f"{found.mutant.module}:{found.mutant.line}"
                print(
                    f"{number:5}/{len(mutants)} {found.outcome:8} {found.seconds:5.1f} s  {at:30} {found.by}",
                    flush=True,
                )
                yield found
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            runner.stop()
            pool.shutdown(cancel_futures=True)


class Runner:
    """Runs tests on copies of the tree, and can be stopped."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.running: set[subprocess.Popen[str]] = set()
        self.lock = threading.Lock()
        self.stopped = False
        self.limit = 600.0

    def measure(self, copy: Path) -> float:
        """Seconds of all tests on the tree as it is, which must pass; a mutant may take three times as long."""
        code, output, seconds = self.tests(copy, CONFIG["tests"])
        if code:
            raise SystemExit(f"the tests fail without any mutant:\n{output}")
        self.limit = 3 * seconds + 10
        return seconds

    def tried(self, mutant: Mutant, copies: queue.Queue[Path]) -> Tried:
        """Whether a test fails with the mutant in its place."""
        copy = copies.get()
        path = copy / PACKAGE / mutant.module
        source = path.read_text()
        try:
            changed = mutate_code(source, cosmic_ray.plugins.get_operator(mutant.operator)(), mutant.occurrence)
            assert changed is not None and changed != source, mutant
            path.write_text(changed)
            code, output, seconds = 0, "", 0.0
            for tests in asked(mutant, whole=self.whole):
                if not code and tests:
                    code, output, more = self.tests(copy, tests)
                    seconds += more
        finally:
            path.write_text(source)
            copies.put(copy)
        shown = "".join(difflib.unified_diff(source.splitlines(True), changed.splitlines(True), n=0)).splitlines()[3:]
        return Tried(mutant, "killed" if code else "survived", _failed(code, output), seconds, "\n".join(shown))

    def tests(self, copy: Path, files: list[str]) -> tuple[int, str, float]:
        """Exit code, output and seconds of tests until the first that fails. Compiled modules are not read for what is changed."""
        left_out = [f"--deselect={name}" for name in CONFIG["deselect"]]
        limits = ["-o", f"faulthandler_timeout={TEST}", "-o", "faulthandler_exit_on_timeout=true"]
        quick = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "--tb=no", "-rfE"]
        there = [one for one in files if (copy / one.split("::")[0]).exists()]
        start = time.monotonic()
        with self.lock:
            if self.stopped:
                return 1, "", 0.0
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *quick, *limits, *left_out, *there],
                cwd=copy, env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            self.running.add(process)
        try:
            output, _ = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"FAILED no test: {self.limit:.0f} s\n{process.communicate()[0]}"
        self.running.discard(process)
        return process.returncode, output, time.monotonic() - start

    def stop(self) -> None:
        """End what runs, and begin nothing more."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def copied(target: Path) -> Path:
    """A copy of the tree, compiled but for the modules that change."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "tests"], cwd=target, check=True)
    for module in all_modules():
        path = target / PACKAGE / module
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
    return target


def _failed(code: int, output: str) -> str:
    if code and "Timeout (" in output:
        return f"a test of more than {TEST} s"
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else (f"exit code {code}" if code else "")


def table(tried: list[Tried]) -> str:
    """Mutants, killed and survived of every module, and every survivor with its change."""
    lines = ["", f"{'module':24} {'mutants':>8} {'killed':>7} {'survived':>9}"]
    names = dict.fromkeys(one for one in all_modules() if any(found.mutant.module == one for found in tried))
    for name, found in [
        *((name, [one for one in tried if one.mutant.module == name]) for name in names),
        ("all", tried),
    ]:
        left = sum(one.outcome == "survived" for one in found)
        lines.append(f"{name:24} {len(found):8} {len(found) - left:7} {left:9}")
    for one in sorted(tried, key=lambda one: (list(names).index(one.mutant.module), one.mutant.line)):
        if one.outcome == "survived":
            lines += [
                "",
                f"{PACKAGE}/{one.mutant.module}:{one.mutant.line} ({one.mutant.operator.removeprefix('core/')})",
                one.diff,
            ]
    return "\n".join(lines)


def _results() -> list[Tried]:
    if not KEPT.exists():
        return []
    return [Tried(**{**one, "mutant": Mutant(**one["mutant"])}) for one in json.loads(KEPT.read_text())]


def _keep(tried: list[Tried]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps([asdict(one) for one in tried], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
