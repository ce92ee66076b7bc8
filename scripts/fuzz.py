"""Fuzz every reader for minutes of CPU time each; exits with 1 after printing a reproduction of everything that is found.

python scripts/fuzz.py --minutes 10 --only shell --only yaml_text --seed 1
python scripts/fuzz.py --again build/fuzz/shell-0123456789.json
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

SERVED = 36
"""Requests to the real MCP server."""


def main() -> int:
    """Fuzz, print counts, and write reproductions."""
    from tests.fuzz.hunt import hunted
    from tests.fuzz.readers import READERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="CPU minutes of each reader")
    parser.add_argument(
        "--only", action="append", choices=[*READERS, "server"], help="a reader; all of them without it"
    )
    parser.add_argument("--seed", default="0", help="of the random numbers")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz", help="folder of reproductions")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 2), help="readers at once")
    parser.add_argument("--again", type=Path, help="read one reproduction again, and nothing else")
    given = parser.parse_args()
    if given.again:
        return again(given.again)
    names = given.only or [*READERS, "server"]
    readers = [READERS[name] for name in names if name in READERS]
    print(
        f"{'reader':12} {'runs':>8} {'accepted':>9} {'refusals':>9} {'lines':>7} {'CPU min':>8} {'findings':>9}",
        flush=True,
    )
    bad = False
    with ThreadPoolExecutor(given.jobs) as pool:
        for reader, found in zip(
            readers, pool.map(lambda one: hunted(one, given.seed, given.minutes), readers), strict=True
        ):
            minutes = found.cpu_seconds / 60
            figures = f"{found.runs:8} {found.accepted:9} {found.refusals:9} {found.lines:7} {minutes:8.2f} {len(found.findings):9}"
            print(f"{reader.name:12} {figures}", flush=True)
            for one in found.findings:
                bad = True
                name = hashlib.sha256(f"{one.key}".encode("utf-8", "replace")).hexdigest()[:10]
                path = given.keep / f"{one.reader}-{name}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(
                    json.dumps({"reader": one.reader, "kind": one.kind, "what": one.what, "case": one.case}, indent=1)
                )
                print(
                    f"\n{one.reader}: {one.kind}: {plain(one.what)}\n  case: {json.dumps(one.case)[:400]}\n  kept: {path}\n",
                    flush=True,
                )
    if "server" in names:
        bad |= served(given.seed)
    return int(bad)


def plain(text: str) -> str:
    """A text without characters that a terminal would follow."""
    return "\n".join(line.encode("ascii", "backslashreplace").decode() for line in text.split("\n"))


def served(seed: str) -> bool:
    """Whether the real MCP server does something wrong."""
    from tests.fuzz import requests
    from tests.fuzz.hunt import Pool, cases

    (reader,) = requests.REQUESTS
    wrong = requests.served(list(itertools.islice(cases(reader, f"{seed} server", Pool()), SERVED)))
    print(f"{'server':12} {SERVED:8}" + "".join(f"\n  {one}" for one in wrong), flush=True)
    return bool(wrong)


def again(path: Path) -> int:
    """Read one reproduction, watched, with its traceback."""
    from tests.fuzz.readers import READERS
    from tests.fuzz.watch import Events, observed, scratch

    kept, folder = json.loads(path.read_text()), scratch()
    events = Events(str(folder))
    os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=str(folder))
    reader = READERS[kept["reader"]]
    observed(reader, reader.seeds()[0], folder)
    events.install()
    outcome, found = observed(reader, kept["case"], folder, events)
    print(outcome if found is None else f"{found.kind}: {found.what}")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
