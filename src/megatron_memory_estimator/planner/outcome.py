"""How a search begins: what is refused at once, what is said where nothing is legal; how far it is, and whether its caller wants more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError, LayoutError, StoppedError, UnsupportedError
from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency
from .counting import relaxations
from .found import OBJECTIVES, Found
from .space.axes import Space
from .space.defaults import completed

Progress = Callable[[float, Found], None]
"""Told the share of layouts that are bounded, and what is found so far."""


def begun(
    base: TrainingJob,
    space: Space | None,
    objective: str,
    limit: int | None,
    efficiency: Efficiency | None,
    *,
    everything: bool,
) -> Found:
    """The result of a search before it looks at anything. Raises UnsupportedError and ConfigError for what cannot be searched."""
    if base.refusal:
        raise UnsupportedError(base.refusal)
    if base.training.global_batch_size is None:
        raise ConfigError("the search needs global_batch_size")
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    whole = completed(space or Space(), base, everything=everything)
    return Found(whole, base.gpu.memory_bytes if limit is None else limit, objective, efficiency=efficiency)


def nothing_legal(base: TrainingJob, found: Found, watch: Watch) -> LayoutError:
    """What most layouts break, and which axes would leave something legal."""
    rules = [f"{rule} (layouts: {count:,})" for rule, count in found.illegal.most_common(3)]
    help_ = relaxations(base, found.space, watch.ask)
    return LayoutError(("no layout of the space is legal: " + "; ".join((*rules, *help_)),))


@dataclass
class Watch:
    """Asks `stop` between pieces of work on some numbers of GPUs."""

    worlds: tuple[int, ...]
    stop: Callable[[], bool] | None = None
    done: int = 0
    total: int = 0
    tell: Callable[[], None] | None = None
    """Called before anything is bounded, as often as `stop` is asked."""

    def ask(self) -> None:
        """Raise StoppedError where the caller wants no more."""
        if not self.total and self.tell is not None:
            self.tell()
        if self.stop is None or not self.stop():
            return
        far = f"{self.done:,} of {self.total:,} layouts were looked at" if self.total else "no layout was looked at yet"
        shown = ", ".join(map(str, self.worlds if len(self.worlds) < 9 else (*self.worlds[:8], "...")))
        raise StoppedError(
            f"the search on {shown} GPUs was stopped when {far}; narrow the space: fewer num_gpus, one "
            "tensor_model_parallel_size or recompute, one pipeline_model_parallel_size"
        )
