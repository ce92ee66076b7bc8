"""How far a search is, and whether its caller wants more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import StoppedError


@dataclass
class Watch:
    """Asks `stop` between pieces of work on some numbers of GPUs."""

    worlds: tuple[int, ...]
    stop: Callable[[], bool] | None = None
    done: int = 0
    total: int = 0

    def ask(self) -> None:
        """Raise StoppedError where the caller wants no more."""
        if self.stop is None or not self.stop():
            return
        far = f"{self.done:,} of {self.total:,} layouts were evaluated" if self.total else "no layout was evaluated yet"
        shown = ", ".join(map(str, self.worlds if len(self.worlds) < 9 else (*self.worlds[:8], "...")))
        raise StoppedError(
            f"the search on {shown} GPUs was stopped when {far}; narrow the space: fewer num_gpus, one "
            "tensor_model_parallel_size or recompute, one pipeline_model_parallel_size"
        )
