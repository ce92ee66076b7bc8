"""Random legal jobs keep the properties that every estimate has."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from megatron_memory_estimator import EstimatorError, LayoutError

from .job_comparisons import EVERY, SHARED, broken
from .job_properties import case_of
from .random_jobs import random_jobs

JOBS = int(os.environ.get("MANY_JOBS", "30"))
"""Legal jobs; `make test-all` has 3,000."""
FIRST = int(os.environ.get("FIRST_JOB", "0"))
"""The seed that they begin at: another number draws jobs that nobody has seen."""
CHUNKS = max(2, JOBS // 150)
APART = 1000
"""Seeds from one chunk to the next."""
SHARE = 6
"""Of so many jobs one has each of the properties that take longer."""


def rules(error: EstimatorError) -> list[str]:
    """The rules that refuse a job."""
    return list(error.rules) if isinstance(error, LayoutError) else [str(error)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_legal_jobs_keep_every_property(chunk: int) -> None:
    """Jobs that a rule refuses are counted by rule, and others drawn for them."""
    drawn = legal = 0
    refused: Counter[str] = Counter()
    for job in random_jobs(FIRST + chunk * APART):
        drawn += 1
        try:
            case = case_of(job)
        except EstimatorError as error:
            refused.update(rules(error))
            continue
        legal += 1
        shared = [one for place, one in enumerate(SHARED) if legal % SHARE == place]
        found = broken(case, (*EVERY, *shared))
        assert not found, f"{found}\n{job!r}"
        if legal * CHUNKS >= JOBS:
            break
    print({"drawn": drawn, "legal": legal}, dict(refused))
    assert legal > 0.85 * drawn, refused
