"""Lines of the package that cases reach: what makes a case worth keeping beside a new answer.

A code object whose lines are all known costs a call and no more: it is traced again once in a while only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import megatron_memory_estimator as package

PATIENCE = 100
"""Calls of a code object without a new line after which it is left alone."""
AGAIN = 25
"""Every so many cases everything is traced."""


class Lines:
    """The lines that were reached so far, and whether the last case reached a new one."""

    def __init__(self) -> None:
        self.known: set[tuple[CodeType, int]] = set()
        self.new = False
        self._package = str(package.__file__).removesuffix("__init__.py")
        self._boring: Counter[CodeType] = Counter()
        self._cases = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """One case."""
        self.new, self._cases = False, self._cases + 1
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._package):
            return None
        if self._boring[code] > PATIENCE and self._cases % AGAIN:
            return None
        self._boring[code] += 1
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and (place := (frame.f_code, frame.f_lineno)) not in self.known:
            self.known.add(place)
            self.new = True
            self._boring[frame.f_code] = 0
        return self._line
