"""What is searched: one axis per setting, each with the values to try."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..context import Context
from ..errors import ConfigError, UnsupportedError
from ..estimator import context_of
from ..job import TrainingJob
from ..layout import SHORT, Layout
from ..legality import balanced_split
from ..legality.stages import pipeline
from ..model import Model
from ..modules.kinds import recomputable
from ..modules.layers import layer_unit
from ..pipeline import split_layers
from ..settings import nearest
from ..training import Training
from ..wording import shown, whole
from .borders import EVEN, generated_layout
from .shapes import Shape

POWERS = tuple(2**i for i in range(11))
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "core_attn": {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)},
    "layernorm": {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    "mla_up_proj": {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj",)},
    "mlp": {"recompute_granularity": "selective", "recompute_modules": ("mlp",)},
    "moe_act": {"recompute_granularity": "selective", "recompute_modules": ("moe_act",)},
    "moe_act+layernorm": {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
    "mla_up_proj+moe_act+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "moe_act", "layernorm"),
    },
    "mla_up_proj+mlp+moe_act+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "mlp", "moe_act", "layernorm"),
    },
    "core_attn+mlp": {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "mlp")},
    "moe+layernorm": {"recompute_granularity": "selective", "recompute_modules": ("moe", "layernorm")},
    "mla_up_proj+mlp+moe+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "mlp", "moe", "layernorm"),
    },
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Sets of recomputation by name; those that have nothing to recompute in a model are dropped. `block:N` is full recomputation of N
layers of each model chunk, `uniform:N` of all layers with one checkpoint for N, and any modules joined by + a selective set."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"fp8": None, "fp4": None},
    "delayed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp4": None},
    "tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp4": None},
    "blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise", "fp4": None},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp4": None},
    "nvfp4": {"fp4": "e2m1", "fp8": None},
}
"""Precisions of TransformerEngine's linears by name."""


@dataclass(frozen=True)
class Space:
    """What is searched. An empty axis takes its values from the job and the model (`completed`)."""

    num_gpus: tuple[int, ...] = ()
    tensor_model_parallel_size: tuple[int, ...] = ()
    pipeline_model_parallel_size: tuple[int, ...] = ()
    virtual_pipeline_model_parallel_size: tuple[int, ...] = ()
    context_parallel_size: tuple[int, ...] = ()
    expert_model_parallel_size: tuple[int, ...] = ()
    expert_tensor_parallel_size: tuple[int, ...] = ()
    micro_batch_size: tuple[int, ...] = ()
    sequence_parallel: tuple[bool, ...] = ()
    cp_comm_type: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    use_distributed_optimizer: tuple[bool, ...] = ()
    use_precision_aware_optimizer: tuple[bool, ...] = ()
    optimizer_offload_fraction: tuple[float, ...] = ()


AXES = tuple(f.name for f in dataclasses.fields(Space))
SPLITS = ("even", "uneven", "layout")
"""How layers are split over stages: evenly; first and last stage apart where layers do not divide; by a generated
pipeline_model_parallel_layout."""


@dataclass(frozen=True)
class Style:
    """Settings that change which tensors a layer has, beside the degrees and recomputation."""

    cp_comm_type: str
    precision: str
    sequence_parallel: bool


@dataclass(frozen=True)
class Option:
    """Settings of the optimizer: they change model state only."""

    distributed: bool
    precision_aware: bool
    offloaded: float

    def settings(self) -> dict[str, Any]:
        """As settings of a training."""
        found: dict[str, Any] = {
            "use_distributed_optimizer": self.distributed,
            "use_precision_aware_optimizer": self.precision_aware,
            "optimizer_cpu_offload": self.offloaded > 0,
        }
        if self.offloaded:
            found["optimizer_offload_fraction"] = self.offloaded
        return found


def completed(space: Space, job: TrainingJob, *, everything: bool = False) -> Space:
    """The space with values for every axis.

    By default the precision and the optimizer's dtypes stay as the job has them, because they change the training; `everything` tries
    all that the GPU supports. Raises ConfigError for an axis without a value that the model could take.
    """
    model, t = job.model, job.training
    world = space.num_gpus or (job.layout.world_size,)
    most = max(world)
    given = {name: getattr(space, name) for name in AXES}
    moe = bool(model.num_moe_experts)
    stages = model.num_layers + model.mtp + 1
    defaults: dict[str, tuple[Any, ...]] = {
        "num_gpus": world,
        "tensor_model_parallel_size": tuple(n for n in POWERS[:5] if n <= min(most, max(job.gpu.nvlink_domain, 8), 16)),
        "pipeline_model_parallel_size": tuple(sorted(n for n in {*POWERS[:7], *_divisors(model.num_layers)} if n <= min(most, stages, 64))),
        "virtual_pipeline_model_parallel_size": (1, 2, 3, 4, 5, 6, 8, 10) if tabled(t) else (1, 2, 4, 8),
        "context_parallel_size": tuple(n for n in POWERS[:7] if n == 1 or (n <= most and t.seq_length // n >= 1024)),
        "expert_model_parallel_size": tuple(n for n in POWERS if n <= most and (model.num_moe_experts or 1) % n == 0),
        "expert_tensor_parallel_size": tuple(n for n in (1, 2, 4, 8) if n <= most) if moe and everything else (1,),
        "micro_batch_size": tuple(n for n in POWERS[:5] if n <= (t.global_batch_size or 1)),
        "sequence_parallel": (True, False) if everything and not moe else (True,),
        "cp_comm_type": ("p2p", "a2a", "all_gather") if everything else ("p2p", "a2a"),
        "split": SPLITS,
        "recompute": (*RECOMPUTE, *_blocks(model, everything=everything)) if tabled(t) else ("none", own_recompute(t)),
        "precision": tuple(PRECISIONS) if everything else (_precision_of(t),),
        "use_distributed_optimizer": (True, False) if everything else (t.optimizer != "sgd",),
        "use_precision_aware_optimizer": (False, True) if everything else (t.use_precision_aware_optimizer,),
        "optimizer_offload_fraction": (t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0,),
    }  # fmt: skip
    found = {name: tuple(dict.fromkeys(given[name] or defaults[name])) for name in AXES}
    _check_size(found)
    for name in _WHOLE:
        for value in found[name]:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: {value!r} must be a whole number of at least 1")
    _check_words(found)
    return Space(**found)


_WHOLE = (
    "num_gpus", "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size",
)  # fmt: skip


MOST_VALUES = 1000
"""Values of one axis."""
MOST_COMBINATIONS = 20_000
"""Combinations of the degrees of one pipeline, and of pipelines: several times what is tried of all axes together by default."""


def _check_size(found: dict[str, tuple[Any, ...]]) -> None:
    """Raise ConfigError for a space that is too large to be held in memory."""
    for name, values in found.items():
        if len(values) > MOST_VALUES:
            raise ConfigError(f"{name} has {len(values)} values to try; at most {MOST_VALUES} are accepted")
    for names in (_WHOLE[2:4], (_WHOLE[1], *_WHOLE[4:7])):
        count = prod(len(found[name]) for name in names)
        if count > MOST_COMBINATIONS:
            raise ConfigError(
                f"{', '.join(names)} have {count} combinations; at most {MOST_COMBINATIONS} are accepted: list fewer values"
            )


def _check_words(found: dict[str, tuple[Any, ...]]) -> None:
    for name, known in (
        ("precision", tuple(PRECISIONS)), ("split", SPLITS), ("cp_comm_type", ("p2p", "a2a", "all_gather")),
    ):  # fmt: skip
        for word in found[name]:
            if word not in known:
                raise ConfigError(f"{name}: {word!r} is not one of {', '.join(known)}.{nearest(str(word), known)}")
    for word in found["recompute"]:
        recompute_settings(word)
    for value in found["optimizer_offload_fraction"]:
        if not 0 <= value <= 1:
            raise ConfigError(f"optimizer_offload_fraction: {value} must be between 0 and 1")


def tabled(training: Training) -> bool:
    """Whether tables hold everything that decides the memory of a run. Else the engine runs on arrays of whole ranks, which takes
    longer: the default space is smaller."""
    t = training
    return not (
        t.use_megatron_fsdp or t.use_torch_fsdp2 or t.peft != "none" or t.cuda_graph_impl != "none" or t.cpu_offloading_num_layers
        or t.fine_grained_activation_offloading or t.overlap_moe_expert_parallel_comm or t.moe_paged_stash
        or t.defer_embedding_wgrad_compute or t.optimizer == "muon"
    )  # fmt: skip


def own_recompute(training: Training) -> str:
    """The job's own recomputation as a value of the axis."""
    t = training
    if t.recompute_granularity == "full":
        return f"{t.recompute_method}:{t.recompute_num_layers}"
    if t.recompute_granularity == "selective":
        return "+".join(t.recompute_modules or ("core_attn",))
    return "none"


def recompute_settings(word: str) -> dict[str, Any]:
    """The settings of a set of recomputation by name. Raises ConfigError for an unknown one."""
    from ..training import RECOMPUTE_MODULES

    if word in RECOMPUTE:
        return RECOMPUTE[word]
    method, colon, number = word.partition(":")
    if colon and method in ("block", "uniform") and (layers := whole(number)):
        return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": layers}
    modules = tuple(dict.fromkeys(word.split("+")))
    for module in modules:
        if module not in RECOMPUTE_MODULES:
            known = (*RECOMPUTE, *RECOMPUTE_MODULES)
            raise ConfigError(
                f"recompute: {shown(module)} is not none, full, block:N, uniform:N or modules joined by +, such as "
                f"moe_act+layernorm.{nearest(module, known)}"
            )
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(2, number + 1) if number % n == 0)


def _blocks(model: Model, *, everything: bool) -> tuple[str, ...]:
    """Full recomputation of some layers of each chunk."""
    return tuple(f"block:{n}" for n in ((1, 2, 3, 4, 6, 8) if everything else (1, 2)) if n < model.num_layers)


def _precision_of(training: Training) -> str:
    return training.low_precision or "bf16"


def precision_settings(job: TrainingJob, name: str) -> dict[str, Any]:
    """The settings of a precision; the job's own are kept."""
    return {} if name == _precision_of(job.training) else PRECISIONS[name]


def recompute_sets(job: TrainingJob, space: Space) -> list[tuple[str, Training]]:
    """The trainings of the sets of recomputation that this model has something for, by name."""
    known = recomputable(job.model)
    cleared: dict[str, Any] = {
        "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None, "recompute_modules": (),
    }  # fmt: skip
    found = []
    for name in space.recompute:
        settings = recompute_settings(name)
        training = dataclasses.replace(job.training, **{**cleared, **settings})
        if set(settings.get("recompute_modules", ())) <= known and _modelled(job, training):
            found.append((name, training))
    if not found:
        raise ConfigError(
            f"recompute: nothing of {', '.join(space.recompute)} exists in this model; it has {', '.join(sorted(known))}"
        )
    return found


def _modelled(job: TrainingJob, training: Training) -> bool:
    return not _refusal(dataclasses.replace(context_of(job), layout=Layout(), training=training))


def _declare(c: Context) -> None:
    for kind in {*c.model.kinds, *c.model.mtp_kinds}:
        layer_unit(c, kind)


def _refusal(c: Context) -> str:
    try:
        _declare(c)
    except UnsupportedError as error:
        return error.rule
    return ""


def asks_for_sequences(job: TrainingJob, space: Space) -> bool:
    """Whether any layer has other tensors with several sequences in a microbatch than with one."""
    training = dataclasses.replace(job.training, micro_batch_size=2)
    for cp in (1, 2):
        for way in space.cp_comm_type:
            if unsupported(job, cp > 1, Style(way, "", sequence_parallel=False)):
                continue
            c = dataclasses.replace(
                context_of(job), layout=Layout(cp, context_parallel_size=cp, cp_comm_type=(way,)), training=training
            )
            _declare(c)
            if "several_sequences" in vars(c):
                return True
    return False


def unsupported(job: TrainingJob, several: bool, style: Style) -> str:
    """The rule by which layers are not modelled with (`several`) or without context parallelism, or nothing."""
    layout = Layout(2 if several else 1, context_parallel_size=2 if several else 1, cp_comm_type=(style.cp_comm_type,))
    training = dataclasses.replace(job.training, recompute_granularity=None)
    return _refusal(dataclasses.replace(context_of(job), layout=layout, training=training))


def options(space: Space) -> list[Option]:
    """All settings of the optimizer."""
    axes = (space.use_distributed_optimizer, space.use_precision_aware_optimizer, space.optimizer_offload_fraction)
    found = [Option(zero, aware or share > 0, share) for zero, aware, share in product(*axes)]  # offloading demands it
    return list(dict.fromkeys(found))


def styles(space: Space, *, tp: bool, cp: bool) -> list[Style]:
    """All styles where tp and cp are above 1 or not: without them there is nothing to choose."""
    ways = space.cp_comm_type if cp else space.cp_comm_type[:1]
    parallel = space.sequence_parallel if tp else (False,)
    return [Style(way, precision, on) for way in ways for precision in space.precision for on in parallel]


def shapes(job: TrainingJob, space: Space) -> Iterator[tuple[Shape | None, str]]:
    """Every pipeline of the space that is legal, or None and the rule that it breaks."""
    model = job.model
    for pp, vp in product(space.pipeline_model_parallel_size, space.virtual_pipeline_model_parallel_size):
        if vp > 1 and pp == 1:
            yield None, "virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size above 1"
            continue
        for layout in _splits(job, space, pp, vp):
            broken = next(iter(pipeline(model, layout, overlap_p2p_comm=job.training.overlap_p2p_comm)), None)
            yield (None, broken.rule) if broken else (Shape(layout, vp), "")


def _splits(job: TrainingJob, space: Space, pp: int, vp: int) -> Iterator[Layout]:
    model = job.model
    plain = dataclasses.replace(
        job.layout, **EVEN, world_size=pp, tensor_model_parallel_size=1, context_parallel_size=1, expert_model_parallel_size=1,
        expert_tensor_parallel_size=1 if model.num_moe_experts else None, sequence_parallel=False,
        pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
        num_layers_per_virtual_pipeline_stage=None, microbatch_group_size_per_vp_stage=None,
        num_distributed_optimizer_instances=1,
    )  # fmt: skip
    if pp == 1 or model.hybrid:
        yield plain
        return
    found = []
    divides = split_layers(model, plain) % (pp * vp) == 0
    if divides and "even" in space.split:
        found.append(plain)
    split = balanced_split(model.num_layers, pp, vp) if not divides and "uneven" in space.split else None
    if split is not None:
        first, last = split
        found.append(
            dataclasses.replace(plain, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last)
        )
    text = generated_layout(model, pp, vp) if "layout" in space.split and (not divides or model.mtp) else None
    if text is not None:
        found.append(
            dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=text)
        )
    yield from found or [plain]  # whose rule says why there is none


def axis_name(word: str) -> str:
    """The axis of a name or short name. Raises ConfigError with the nearest match."""
    name = SHORT.get(word, word).replace("-", "_")
    if name == "world_size":
        name = "num_gpus"
    if name not in AXES:
        raise ConfigError(f'unknown axis "{word}".{nearest(word, [*SHORT, *AXES])} The axes are {", ".join(AXES)}.')
    return name
