"""What may be chosen in a request: every value of a name, legal or with the sentence that refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..accept import accepted
from ..errors import ConfigError, EstimatorError
from ..job.training_job import TrainingJob
from ..wording import shown
from .choosing import DEFAULT_NAMES, NUM_GPUS, Tried, canonical_name, chosen
from .request import Request

MOST_NAMES = 50
FIXED = "what is pasted says {name} by itself, and no setting takes that away; change it there"


def choices_of(request: Request, names: list[str]) -> dict[str, Any]:
    """`{name: {"value": the request's, "values": [...]}}`: each value with the settings that make it, and why it is refused, or null.

    A value is refused by the sentence with which `estimate` refuses the request with that one change. Raises EstimatorError where not
    even the model can be read.
    """
    if len(names) > MOST_NAMES:
        raise ConfigError(f"choices takes at most {MOST_NAMES} names, not {len(names)}")
    asked = request._replace(files=request.files.remembering())
    base, now = _base(asked)
    refusal = refused(asked)
    found: dict[str, Any] = {}
    for name in dict.fromkeys(canonical_name(word) for word in names or DEFAULT_NAMES):
        way = chosen(name)
        value = way.value(base) if now else _given(asked, name)
        rows = []
        for tried in way.tried(base):
            own = now and tried.value == value
            change = Tried(tried.value, {}) if own else tried._replace(settings=spelled(asked, name, tried.settings))
            rows.append(_row(name, change, refusal if own else _refused(asked, name, change)))
        found[name] = {"value": value, "values": rows}
    return found


def _row(name: str, one: Tried, refusal: str | None) -> dict[str, Any]:
    row = {"value": one.value, "settings": one.settings, "refusal": refusal}
    return {**row, "num_gpus": one.value} if name == NUM_GPUS else row


def _base(request: Request) -> tuple[TrainingJob, bool]:
    """The job whose values are near, and whether it is the request's: else its model on so many GPUs, or the model alone."""
    kept = {name: request.arguments.get(name) for name in ("model", "text")}
    bare = ({**kept, NUM_GPUS: request.get(NUM_GPUS)}, kept)
    jobs = [_job(one) for one in (request, *(request._replace(arguments=arguments) for arguments in bare))]
    found = next((job for job in jobs if isinstance(job, TrainingJob)), None)
    if found is None:
        assert isinstance(jobs[0], EstimatorError)
        raise jobs[0]
    return found, found is jobs[0]


def _job(request: Request) -> TrainingJob | EstimatorError:
    try:
        return request.job
    except EstimatorError as error:
        return error


def _given(request: Request, name: str) -> Any:
    """What a request that is no job says of a name, or None."""
    if name == NUM_GPUS and request.get("num_gpus") is not None:
        return request.get("num_gpus")
    settings = request.get("settings") or {}
    return next((value for word, value in settings.items() if canonical_name(word) == name), None)


def spelled(request: Request, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a change, and None for what a request says of the same in other words."""
    names = {NUM_GPUS} if name == NUM_GPUS else set(settings)
    given = request.get("settings") or {}
    return {**{word: None for word in given if canonical_name(word) in names}, **settings}


def with_settings(request: Request, settings: Mapping[str, Any], **arguments: Any) -> Request:
    """The request with more settings; None takes one away."""
    merged = {**(request.get("settings") or {}), **settings}
    kept = {name: value for name, value in merged.items() if name not in settings or value is not None}
    return request._replace(arguments={**request.arguments, "settings": kept, **arguments})


def refused(request: Request) -> str | None:
    """The sentence with which `estimate` refuses a request, or None."""
    try:
        accepted(request.job)
    except EstimatorError as error:
        return str(error)
    return None


def _refused(request: Request, name: str, one: Tried) -> str | None:
    """The sentence that refuses a change, or None; also where settings do not reach what a text says."""
    other = with_settings(request, one.settings, **({NUM_GPUS: one.value} if name == NUM_GPUS else {}))
    try:
        job = other.job
        accepted(job)
    except EstimatorError as error:
        return str(error)
    return None if chosen(name).value(job) == one.value else FIXED.format(name=shown(name))
