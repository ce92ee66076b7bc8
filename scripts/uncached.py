"""A plugin of pytest for `mutants.py --map`: caches of the package are empty when a test begins."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

CACHED = type(functools.cache(lambda: None))


def pytest_runtest_setup() -> None:
    """Empty every cache of a function or method of the package."""
    for cached in found():
        cached.cache_clear()


def found() -> Iterator[Any]:
    """Every cached function of the loaded modules of the package."""
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron_memory_estimator"):
            for value in list(vars(module).values()):
                if isinstance(value, CACHED):
                    yield value
                elif isinstance(value, type) and value.__module__ == name:
                    yield from (one for one in vars(value).values() if isinstance(one, CACHED))
