"""Random legal jobs keep the properties that every estimate has."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings

from megatron_memory_estimator import EstimatorError, LayoutError

from .job_comparisons import EVERY, SHARED, broken
from .job_properties import case_of
from .random_jobs import RandomJob, random_jobs

JOBS = int(os.environ.get("MANY_JOBS", "30"))
"""Legal jobs; `make test-all` has 3,000."""
CHUNKS = max(2, JOBS // 150)
SHARE = 6
"""Of so many jobs one has each of the properties that take longer."""


def rules(error: EstimatorError) -> list[str]:
    """The rules that refuse a job."""
    return list(error.rules) if isinstance(error, LayoutError) else [str(error)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_legal_jobs_keep_every_property(chunk: int) -> None:
    """Jobs that a rule refuses are counted by rule and drawn again."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    seen: set[str] = set()

    @seed(chunk)
    @settings(max_examples=-(-JOBS // CHUNKS), database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_jobs())
    def check(drawn: RandomJob) -> None:
        assume(repr(drawn) not in seen)
        counts["drawn"] += 1
        try:
            case = case_of(drawn)
        except EstimatorError as error:
            refused.update(rules(error))
            assume(False)
        counts["legal"] += 1
        shared = [one for place, one in enumerate(SHARED) if counts["legal"] % SHARE == place]
        found = broken(case, (*EVERY, *shared))
        if found:
            pytest.fail(f"{found}\n{drawn!r}")
        seen.add(repr(drawn))

    check()
    print(dict(counts), dict(refused))
    assert counts["legal"] >= JOBS // CHUNKS
    assert counts["legal"] > 0.85 * counts["drawn"], refused
