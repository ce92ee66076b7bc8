"""A progress bar for long searches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Bar:
    """A progress bar on standard error once a search takes longer than a second; nothing where that is no terminal."""

    def __enter__(self) -> Callable[[float, Any], None] | None:
        self._bar: Any = None
        if not sys.stderr.isatty():
            return None
        import time

        self._start = time.monotonic()
        return self._update

    def _update(self, share: float, found: Any) -> None:
        import time

        if self._bar is None:
            if time.monotonic() - self._start < 1:
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            self._bar = Progress(
                TextColumn("searching"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        self._bar.update(self._task, completed=share, description=f"{found.fits:,} fit")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
