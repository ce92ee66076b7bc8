"""A request: what is asked, what may be opened for it, until when it may work, and whom it tells how far it is.

Settings of an answer as what to change in the request that it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..estimator import Estimate, estimate
from ..inputs.setting_names import full_name
from ..job.training_job import TrainingJob
from ..wording import shown
from .jobs import Files, job_of

MOST_PLANS = 50
"""Plans of one answer."""
Progress = Callable[[dict[str, Any]], None]
"""Told how far a request is, as a JSON object."""


class Request(NamedTuple):
    """What a tool answers: `arguments` by name, from JSON; none of them is trusted."""

    arguments: Mapping[str, Any]
    files: Files
    deadline: float = inf
    progress: Progress | None = None

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An argument; one that is null counts as not given."""
        value = self.arguments.get(name)
        return otherwise if value is None else value

    @property
    def job(self) -> TrainingJob:
        """The run that is asked about. Raises EstimatorError with the sentence that says what is wrong."""
        return job_of(self.get("model"), self.get("text"), self.get("num_gpus"), self.get("settings"), self.opened)

    @property
    def opened(self) -> Files:
        """What may be opened for it: files that came with it, or those of the server."""
        return self.files.with_given(self.get("files"))

    @property
    def estimate(self) -> Estimate:
        """Its memory."""
        return estimate(self.job)

    @property
    def full(self) -> bool:
        """Whether the whole document is wanted, and not its summary."""
        detail = self.get("detail", "summary")
        if detail not in ("summary", "full"):
            raise ConfigError(f"detail={shown(detail)} is not one of summary, full")
        return bool(detail == "full")

    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.deadline


NUM_GPUS, WORLD = "num_gpus", "world_size"


def following(request: Request, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` to merge over those of the request, by full names, null for what it says of the same in other words; and `num_gpus`,
    the argument of that name, null where it stays."""
    named = {full_name(word): value for word, value in settings.items()}
    given = request.get("settings") or {}
    gpus = named.pop(WORLD, None)
    names = {*named, *([WORLD] if gpus is not None else [])}
    return {"settings": {**{word: None for word in given if full_name(word) in names}, **named}, NUM_GPUS: gpus}
