"""What may be chosen in a request: every value of a name, legal or with the sentence that refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..accept import accepted
from ..errors import ConfigError, EstimatorError
from ..job.training_job import TrainingJob
from .choosing import DEFAULT_NAMES, Chosen, canonical_name, chosen
from .following import NUM_GPUS, following
from .request import Request

MOST_NAMES = 50
FIXED = "what is pasted says this by itself, and no setting takes that away; change it there"


def choices_of(request: Request, names: list[str]) -> dict[str, Any]:
    """`{name: {"value": the request's, "values": [...]}}`: each value with the settings that make it, and why it is refused, or null.

    A value is refused by the sentence with which `estimate` refuses the request with that one change. Raises EstimatorError where not
    even the model can be read.
    """
    if len(names) > MOST_NAMES:
        raise ConfigError(f"choices takes at most {MOST_NAMES} names, not {len(names)}")
    asked = request._replace(files=request.files.remembering())
    base, error = _base(asked)
    now = error is None
    again = asked._replace(files=request.files.remembering(settled=now))
    refusal = _refusal(base) if error is None else str(error)
    found: dict[str, Any] = {}
    for name in dict.fromkeys(canonical_name(word) for word in names or DEFAULT_NAMES):
        way = chosen(name)
        value = way.value(base) if now else _given(asked, name)
        rows = []
        for tried in way.tried(base):
            own = now and tried.value == value
            change = following(asked, {} if own else {NUM_GPUS: tried.value} if name == NUM_GPUS else tried.settings)
            said = refusal if own else _refused(again, change, way, tried.value)
            rows.append({"value": tried.value, **change, "refusal": said})
        found[name] = {"value": value, "values": rows}
    return found


def _base(request: Request) -> tuple[TrainingJob, EstimatorError | None]:
    """The job whose values are near, and why it is not the request's, if it is not: its model on so many GPUs, or the model alone."""
    kept = {name: request.arguments.get(name) for name in ("model", "text")}
    first = _job(request)
    if isinstance(first, TrainingJob):
        return first, None
    for arguments in ({**kept, NUM_GPUS: request.get(NUM_GPUS)}, kept):
        found = _job(request._replace(arguments=arguments))
        if isinstance(found, TrainingJob):
            return found, first
    raise first


def _refusal(job: TrainingJob) -> str | None:
    """The sentence with which `estimate` refuses a job, or None."""
    try:
        accepted(job)
    except EstimatorError as error:
        return str(error)
    return None


def _job(request: Request) -> TrainingJob | EstimatorError:
    try:
        return request.job
    except EstimatorError as error:
        return error


def _given(request: Request, name: str) -> Any:
    """What a request that is no job says of a name, or None."""
    if name == NUM_GPUS and request.get(NUM_GPUS) is not None:
        return request.get(NUM_GPUS)
    settings = request.get("settings") or {}
    return next((value for word, value in settings.items() if canonical_name(word) == name), None)


def with_changes(request: Request, change: Mapping[str, Any]) -> Request:
    """The request with the `settings` and `num_gpus` of an answer."""
    settings = {**(request.get("settings") or {}), **change["settings"]}
    gpus = request.get(NUM_GPUS) if change[NUM_GPUS] is None else change[NUM_GPUS]
    return request._replace(arguments={**request.arguments, "settings": settings, NUM_GPUS: gpus})


def _refused(request: Request, change: Mapping[str, Any], way: Chosen, value: Any) -> str | None:
    """The sentence that refuses a change, or None; also where settings do not reach what a text says."""
    try:
        job = with_changes(request, change).job
        accepted(job)
    except EstimatorError as error:
        return str(error)
    return None if way.value(job) == value else FIXED
