"""Whether a run may start: one exit code and one line of reason, alone or beside an earlier answer."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..estimator import Estimate
from ..inputs.text_files import read_text
from ..job.training_job import TrainingJob
from ..wording import shown
from .document import SCHEMA as ESTIMATE
from .quantities import document as quantities
from .quantities import gib, table
from .verdict import verdict_sentence

SCHEMA = "megatron-memory-check/1"
FITS, DOES_NOT_FIT, UNSURE, TAKES_MORE = 0, 3, 4, 5
"""Exit codes; 2 is an input that is refused."""
LATER = ("load", "save")
"""Phases that a run without a checkpoint begins without."""


class Increase(NamedTuple):
    """Peaks of a stage, now and in the baseline, in bytes; the stage whose peak grew most."""

    pp_rank: int
    before: int
    now: int

    @property
    def share(self) -> float:
        """How much of the baseline's bytes came on top."""
        return self.now / self.before - 1

    def __str__(self) -> str:
        more, stage = self.now - self.before, f"Stage {self.pp_rank}'s peak"
        if not more:
            return f"{stage} is unchanged ({gib(self.before)} GiB)"
        where = "above" if more > 0 else "below"
        return f"{stage} is {gib(abs(more))} GiB ({abs(self.share):.2%}) {where} the baseline's {gib(self.before)} GiB"


class Checked(NamedTuple):
    """An answer: its exit code, the line that says why, and what grew beside the baseline, if there is one."""

    code: int
    reason: str
    increase: Increase | None = None


def checked(estimate: Estimate, baseline: dict[int, int] | None = None, tolerance: float = 0.0) -> Checked:
    """0 where a run surely fits, 3 where it does not, 4 where that is not sure (a file of the script is not read, or a tower not counted,
    too) or it trains and cannot load or save, 5 where the peak of a stage is more than `tolerance` (a share) above the baseline's."""
    increase = grown(estimate, baseline) if baseline else None
    code, reason = _judged(estimate)
    if increase is None:
        return Checked(code, reason)
    if code != DOES_NOT_FIT and increase.share > tolerance:
        return Checked(TAKES_MORE, f"{increase}. {reason}", increase)
    return Checked(code, f"{reason} {increase}.", increase)


def _judged(estimate: Estimate) -> tuple[int, str]:
    found, sentence = estimate.verdict(), verdict_sentence(estimate)
    if unread := estimate.job.unread:
        names = shown(unread[0]) + (f" and {len(unread) - 1} more" if len(unread) > 1 else "")
        sentence += f" {names} is sourced and not read, and may set something else (--follow opens it where it is)."
    limit, uncounted = estimate.job.bound, bool(estimate.job.uncounted)
    if found.word == "fits":
        partial = unread or _without_tower(estimate.job) or (uncounted and limit != "upper")
        return UNSURE if partial else FITS, sentence
    if found.word != "does not fit":
        return UNSURE, sentence
    trains = [one.word != "does not fit" for one in found.events if one.phase not in LATER]
    return (UNSURE if (trains and all(trains)) or (uncounted and limit != "lower") else DOES_NOT_FIT), sentence


def _without_tower(job: TrainingJob) -> bool:
    """Whether the figures lack a tower, or what it computes of images or sound where nobody said how many there are."""
    said = {"audio_tokens"} if "audio_tokens" in job.given else {"images", "image_tokens"} & job.given.keys()
    return any(tower.lacks(job.training) and not (tower.sees and said) for tower in job.model.towers)


def grown(estimate: Estimate, baseline: dict[int, int]) -> Increase:
    """The stage whose peak grew most; of as many stages as there were, else the fullest of both."""
    now = {stage.pp_rank: stage.peak_allocated_bytes for stage in estimate.stages}
    if now.keys() == baseline.keys():
        rank = max(now, key=lambda rank: now[rank] / baseline[rank])
        return Increase(rank, baseline[rank], now[rank])
    top = estimate.peak_stage
    return Increase(top.pp_rank, max(baseline.values()), top.peak_allocated_bytes)


def read_baseline(path: str) -> dict[int, int]:
    """Peak bytes by stage of a file that `check --json` or `estimate --json` wrote. Raises ConfigError for any other file."""
    text = read_text(path)
    try:
        return peaks_of(json.loads(text))
    except (ValueError, RecursionError):
        raise ConfigError(
            f"--max-increase {shown(path)} is not the output of check --json or estimate --json"
        ) from None


def peaks_of(document: Any) -> dict[int, int]:
    """Peak bytes by stage of a document of check or estimate. Raises ValueError for any other."""
    try:
        assert document["schema"] in (SCHEMA, ESTIMATE)
        found = {stage["pp_rank"]: stage["peak_allocated_bytes"] for stage in document["stages"]}
        assert found and all(type(value) is int and value > 0 for value in found.values())
        assert all(type(rank) is int for rank in found)
    except (TypeError, KeyError, AssertionError):
        raise ValueError("not a document of check or estimate") from None
    return found


def tolerance_of(text: str, name: str) -> float:
    """A percentage as a share. Raises ConfigError with the name that was given it."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise ConfigError(f"{name} {text!r} must be a percentage such as 1%")
    return share


CHECK = table(
    "check",
    {
        "schema": lambda _: SCHEMA,
        "exit_code": lambda both: both[1].code,
        "verdict": lambda both: both[0].verdict().word,
        "reason": lambda both: both[1].reason,
        "warnings": lambda both: both[0].job.warnings,
        "increase": lambda both: both[1].increase,
        "stages": lambda both: both[0].stages,
    },
)
"""Of an estimate and what was checked of it."""


def document(estimate: Estimate, found: Checked) -> dict[str, Any]:
    """Schema `megatron-memory-check/1`; bytes are whole numbers."""
    return quantities(CHECK, (estimate, found))
