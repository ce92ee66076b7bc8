"""What may be chosen in a request: every value of a name, legal or with the sentence that refuses it.

The values that a person would try of a setting, for one model and number of GPUs, as changes of a request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..accept import accepted
from ..errors import ConfigError, EstimatorError
from ..inputs.searched import RECOMPUTE as RECOMPUTED_BY
from ..inputs.setting_names import full_name, known_settings
from ..job.hardware import CATALOGUE
from ..job.pipeline import virtual_stages
from ..job.settings import field_kind, nearest
from ..job.training_job import TrainingJob
from ..modules.kinds import recomputable
from ..planner.space.choices import PRECISIONS, precision_of
from ..planner.space.recompute import RECOMPUTE, own_recompute, recompute_settings
from .request import NUM_GPUS, Request, following

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
    kept = {name: request.arguments.get(name) for name in ("model", "text", "files")}
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


RECOMPUTATION, PRECISION = "recompute", "precision"
"""Names that are no setting, as NUM_GPUS is none: two axes of a plan that stand for several settings."""
DEFAULT_NAMES = (
    NUM_GPUS, "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "micro_batch_size",
    RECOMPUTATION, PRECISION, "use_distributed_optimizer", "use_precision_aware_optimizer", "gpu",
)  # fmt: skip
POWERS = tuple(2**i for i in range(7))
DEEPEST, WIDEST_TP, SHORTEST_SEQUENCE = 64, 16, 512
"""Most stages and most tensor parallel ranks that are tried, and the fewest tokens that context parallelism leaves a rank."""
CHUNKS = (2, 3, 4, 5, 6, 8, 10)
"""Virtual stages that are tried."""


class Tried(NamedTuple):
    """A value, and the settings that make it; None takes one away. The number of GPUs is no setting."""

    value: Any
    settings: dict[str, Any]


class Chosen(NamedTuple):
    """How a name is chosen: its value in a job, and what is tried of it."""

    value: Callable[[TrainingJob], Any]
    tried: Callable[[TrainingJob], Iterator[Tried]]


def chosen(name: str) -> Chosen:
    """How a name is chosen. Raises ConfigError for one that has no list of values."""
    if name in OWN:
        return OWN[name]
    known = known_settings()
    if name not in known:
        raise ConfigError(f'unknown setting "{name}".{nearest(name, [*DEFAULT_NAMES, *known])}')
    field = next(f for f in dataclasses.fields(known[name]) if f.name == name)
    values = (False, True) if field_kind(field) == "bool" else field.metadata.get("choices") or ()
    if not values:
        raise ConfigError(
            f"{name} has no list of values; choices are listed of {', '.join(DEFAULT_NAMES)}, switches and words"
        )
    return Chosen(lambda job: plain(_now(job, name)), lambda job: _each(name, values))


def plain(value: Any) -> Any:
    """A value as JSON has it; a list of one word as that word."""
    if isinstance(value, tuple | list):
        return value[0] if len(value) == 1 else list(value)
    return value


def canonical_name(word: str) -> str:
    """The name of a choice, which may be short, dashed or old."""
    name = full_name(word)
    return NUM_GPUS if name == "world_size" else name


def _now(job: TrainingJob, name: str) -> Any:
    part = next(part for part in (job.model, job.layout, job.training, job.rollout, job.env) if hasattr(part, name))
    return getattr(part, name)


def _each(name: str, values: Iterable[Any]) -> Iterator[Tried]:
    return (Tried(value, {name: value}) for value in values)


def _numbers(name: str, now: Any, values: Iterable[int]) -> Iterator[Tried]:
    return _each(name, sorted({*values, now or 1}))


def _gpus(job: TrainingJob) -> Iterator[Tried]:
    """Half and double, again and again, and so many whole copies of the model."""
    now, layout = job.layout.world_size, job.layout
    one = layout.tp * layout.cp * layout.pp
    near = {now * 2**i for i in range(5)} | {now // 2**i for i in range(1, 5) if now % 2**i == 0}
    return (Tried(count, {}) for count in sorted(near | {one, 2 * one}))


def _pipeline(job: TrainingJob) -> Iterator[Tried]:
    most = min(job.layout.world_size, job.model.num_layers + job.model.mtp + 1, DEEPEST)
    values = {n for n in POWERS if n <= most} | {n for n in range(2, most + 1) if job.model.num_layers % n == 0}
    return _numbers("pipeline_model_parallel_size", job.layout.pp, values)


def chunks_of(job: TrainingJob) -> int:
    """Model chunks of a stage, in whatever spelling; 1 where they cannot be counted."""
    try:
        return max(virtual_stages(job.model, job.layout), 1)
    except EstimatorError:
        return job.layout.virtual_pipeline_model_parallel_size or 1


def _chunks(job: TrainingJob) -> Iterator[Tried]:
    name, most = "virtual_pipeline_model_parallel_size", -(-job.model.num_layers // job.layout.pp)
    yield Tried(1, {name: None})
    yield from _each(name, sorted({chunks_of(job), *(n for n in CHUNKS if n <= most)} - {1}))


def _sequence(job: TrainingJob) -> Iterator[Tried]:
    longest = min(job.training.seq_length // SHORTEST_SEQUENCE, job.layout.world_size)
    return _numbers("context_parallel_size", job.layout.cp, (n for n in POWERS if n == 1 or n <= longest))


def _experts(job: TrainingJob) -> Iterator[Tried]:
    number, world = job.model.num_moe_experts or 1, job.layout.world_size
    divisors = (n for n in range(1, min(number, world) + 1) if number % n == 0)
    return _numbers("expert_model_parallel_size", job.layout.ep, divisors)


def _expert_tensor(job: TrainingJob) -> Iterator[Tried]:
    most = min(job.layout.world_size, 8) if job.model.num_moe_experts else 1
    return _numbers("expert_tensor_parallel_size", job.layout.etp, (n for n in POWERS if n <= most))


def _recompute_word(job: TrainingJob) -> str:
    """The run's recomputation by the name of a set, where it has one."""
    own = own_recompute(job.training)
    if own == "uniform:1":
        return "full"
    modules = set(own.split("+"))
    return next((word for word in RECOMPUTE if set(word.split("+")) == modules), own)


NO_RECOMPUTATION = dict.fromkeys(RECOMPUTED_BY)


def _recompute(job: TrainingJob) -> Iterator[Tried]:
    has = recomputable(job.model)
    words = [word for word, found in RECOMPUTE.items() if set(found.get("recompute_modules", ())) <= has]
    for word in dict.fromkeys((*words, _recompute_word(job))):
        found = recompute_settings(word)
        yield Tried(word, {**NO_RECOMPUTATION, **{name: _listed(value) for name, value in found.items()}})


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _precision(job: TrainingJob) -> Iterator[Tried]:
    for word, settings in PRECISIONS.items():
        yield Tried(word, {"fp8_recipe": None, **settings})


def _numbers_of(name: str, values: Callable[[TrainingJob], Iterable[int]], now: Callable[[TrainingJob], int]) -> Chosen:
    return Chosen(now, lambda job: _numbers(name, now(job), values(job)))


OWN: dict[str, Chosen] = {
    NUM_GPUS: Chosen(lambda job: job.layout.world_size, _gpus),
    "tensor_model_parallel_size": _numbers_of(
        "tensor_model_parallel_size",
        lambda job: (n for n in POWERS if n <= min(WIDEST_TP, job.layout.world_size)),
        lambda job: job.layout.tp,
    ),
    "pipeline_model_parallel_size": Chosen(lambda job: job.layout.pp, _pipeline),
    "virtual_pipeline_model_parallel_size": Chosen(chunks_of, _chunks),
    "context_parallel_size": Chosen(lambda job: job.layout.cp, _sequence),
    "expert_model_parallel_size": Chosen(lambda job: job.layout.ep, _experts),
    "expert_tensor_parallel_size": Chosen(lambda job: job.layout.etp, _expert_tensor),
    "micro_batch_size": _numbers_of(
        "micro_batch_size", lambda job: POWERS[:5], lambda job: job.training.micro_batch_size
    ),
    RECOMPUTATION: Chosen(_recompute_word, _recompute),
    PRECISION: Chosen(lambda job: precision_of(job.training), _precision),
    "gpu": Chosen(lambda job: job.gpu.name, lambda job: _each("gpu", (gpu.name for gpu in CATALOGUE))),
}
"""Names whose values are not those of a switch or a list of words."""
