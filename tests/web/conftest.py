"""A server on loopback for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..serving import served


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """Its port."""
    with served("--seconds", "20") as (found, _):
        yield found
