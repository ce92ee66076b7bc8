"""The API fuzzed from its own description, and with mutated requests: never a 5xx, and every answer as described."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

from ..fuzz.requests import changed, request_words, requests
from ..serving import posted

LEFT_OUT = "positive_data_acceptance,unsupported_method"
"""Checks that do not apply: a name of a model that is a string may still be refused, and a body's type is looked at before its path."""
OPTIONS = (
    "--max-examples",
    "60",
    "--seed",
    "15",
    "--no-color",
    "--generation-database",
    "none",
    "--request-timeout",
    "90",
    "--exclude-checks",
    LEFT_OUT,
)
MUTATED = 400


def test_no_request_of_the_description_fails(port: int, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("schemathesis"))
    line = [program, "run", f"http://127.0.0.1:{port}/api/v1/openapi.json", *OPTIONS]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
    print(done.stdout[-600:])


def test_no_mutated_request_fails(port: int) -> None:
    random, words, cases = Random(15), request_words(), requests()
    statuses: Counter[int] = Counter()
    for _ in range(MUTATED):
        mutated = changed(random, random.choice(cases), random.choice(cases), words)
        status, found = posted(port, mutated["tool"], mutated["arguments"])
        statuses[status] += 1
        assert status < 500, (mutated, found)
        assert status == 200 or list(found) == ["error"]
        cases.append(mutated)
    print(dict(statuses))
    assert statuses[200] > 20 and statuses[422] > 20
