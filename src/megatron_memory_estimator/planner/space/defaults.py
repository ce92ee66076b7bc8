"""Values for every axis of a space, from the job and the model."""

from __future__ import annotations

from math import prod
from typing import Any

from ...errors import ConfigError
from ...job.model import Model
from ...job.settings import nearest
from ...job.training_job import TrainingJob
from ...modules.kinds import costly_core_attention, has_compressed
from ...states.optimizers import OPTIMIZERS
from .axes import AXES, COMM_TYPES, DEGREES, PIPELINE, SPLITS, WHOLE, Space
from .choices import PRECISIONS, precision_of
from .features import named
from .recompute import RECOMPUTE, recompute_settings

POWERS = tuple(2**i for i in range(11))
MOST_CHUNKS = 12
"""Chunks of a stage up to which splits are tried that are not even; published recipes with more split evenly."""
CONTEXT = POWERS[:7]
"""All sizes of context parallelism that are tried."""
TOKENS, SPLIT = 4096, 1024
"""Tokens of a sequence on a rank down to which context parallelism is tried by default, as published recipes with few exceptions have it
(30 of 31 published rates and 35 of 40 recipes with it, of Megatron-Bridge), and down to which everything is."""
MOST_VALUES = 1000
"""Values of one axis."""
MOST_COMBINATIONS = 20_000
"""Combinations of the degrees of one pipeline, and of pipelines: several times what is tried of all axes together by default."""


def completed(space: Space, job: TrainingJob, *, everything: bool = False) -> Space:
    """The space with values for every axis.

    By default the precision and the optimizer's dtypes stay as the job has them, because they change the training; `everything` tries
    all that the GPU supports. Raises ConfigError for an axis without a value that the model could take.
    """
    usual = _usual(job, space.num_gpus or (job.layout.world_size,), everything=everything)
    values = {name: tuple(dict.fromkeys(getattr(space, name) or usual[name])) for name in AXES}
    _check_size(values)
    for name in WHOLE:
        for value in values[name]:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: {value!r} must be a whole number of at least 1")
    _check_words(values)
    return Space(**values)


def _usual(job: TrainingJob, worlds: tuple[int, ...], *, everything: bool) -> dict[str, tuple[Any, ...]]:
    """What is tried of every axis that is not given."""
    model, t = job.model, job.training
    most, stages = max(worlds), model.num_layers + model.mtp + 1
    moe = bool(model.num_moe_experts)
    divided = (moe and everything) or bool(model.ngram_table_rows)
    """Whether experts are divided by tensor parallelism, as n-gram tables need them to be."""
    widest_tp = min(most, max(job.gpu.nvlink_domain, 8), 16)
    deepest = min(most, stages, 64)
    parts = {1, *(part for gpus in worlds for part in _divisors(gpus))}
    """Into how many parts the GPUs divide."""
    pipelines = tuple(sorted(n for n in parts if n <= deepest))
    return {
        "num_gpus": worlds,
        "tensor_model_parallel_size": tuple(n for n in POWERS[:5] if n <= widest_tp),
        "pipeline_model_parallel_size": pipelines,
        "virtual_pipeline_model_parallel_size": _virtual(model, pipelines),
        "context_parallel_size": _context(job, most, SPLIT if everything else TOKENS),
        "expert_model_parallel_size": tuple(sorted(n for n in parts if (model.num_moe_experts or 1) % n == 0)),
        "expert_tensor_parallel_size": tuple(n for n in (1, 2, 4, 8) if n <= most) if divided else (1,),
        "micro_batch_size": tuple(n for n in POWERS[:5] if n <= (t.global_batch_size or 1)),
        "sequence_parallel": (True, False) if everything and not moe else (True,),
        "cp_comm_type": COMM_TYPES if everything else ("p2p", "a2a"),
        "split": SPLITS,
        "recompute": _recompute(job, everything=everything),
        "precision": tuple(PRECISIONS) if everything else (precision_of(t),),
        "use_distributed_optimizer": (True, False) if everything else (OPTIMIZERS[t.optimizer].distributed,),
        "use_precision_aware_optimizer": (False, True) if everything else (t.use_precision_aware_optimizer,),
        "optimizer_offload_fraction": (t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0,),
        "features": ("none",),
    }


def _context(job: TrainingJob, most: int, fewest: int) -> tuple[int, ...]:
    """Sizes of context parallelism at which a rank keeps the fewest tokens at least. Compressed attention would need packed sequences:
    another data set."""
    alone = has_compressed(job.model)
    return tuple(n for n in CONTEXT if n == 1 or (not alone and n <= most and job.training.seq_length // n >= fewest))


def left_out_of_context(job: TrainingJob, space: Space) -> tuple[int, ...]:
    """Sizes of context parallelism that are not tried by default because a rank would keep fewer tokens than in published recipes."""
    return tuple(n for n in _context(job, max(space.num_gpus), SPLIT) if n not in space.context_parallel_size)


def _check_size(axes: dict[str, tuple[Any, ...]]) -> None:
    """Raise ConfigError for a space that is too large to be held in memory."""
    for name, values in axes.items():
        if len(values) > MOST_VALUES:
            raise ConfigError(f"{name} has {len(values)} values to try; at most {MOST_VALUES} are accepted")
    for names in (PIPELINE, DEGREES):
        count = prod(len(axes[name]) for name in names)
        if count > MOST_COMBINATIONS:
            raise ConfigError(
                f"{', '.join(names)} have {count} combinations; at most {MOST_COMBINATIONS} are accepted: list fewer values"
            )


def _check_words(axes: dict[str, tuple[Any, ...]]) -> None:
    known_words = {"precision": tuple(PRECISIONS), "split": SPLITS, "cp_comm_type": COMM_TYPES}
    for name, known in known_words.items():
        for word in axes[name]:
            if word not in known:
                raise ConfigError(f"{name}: {word!r} is not one of {', '.join(known)}.{nearest(str(word), known)}")
    for word in axes["recompute"]:
        recompute_settings(word)
    for word in axes["features"]:
        named(word)
    for value in axes["optimizer_offload_fraction"]:
        if not 0 <= value <= 1:
            raise ConfigError(f"optimizer_offload_fraction: {value} must be between 0 and 1")


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(2, number + 1) if number % n == 0)


def _virtual(model: Model, pipelines: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks of a stage: all that split the layers evenly, and up to `MOST_CHUNKS` for other splits."""
    even = {vp for pp in pipelines if pp > 1 and model.num_layers % pp == 0 for vp in _divisors(model.num_layers // pp)}
    return tuple(sorted({*range(1, MOST_CHUNKS + 1), *even}))


def _recompute(job: TrainingJob, *, everything: bool) -> tuple[str, ...]:
    """Sets of recomputation by name, without those that core attention makes slower and larger, and some layers of each chunk."""
    costly = costly_core_attention(job.model, job.kernel)
    sets = tuple(name for name in RECOMPUTE if not (costly and "core_attn" in name.split("+")))
    return (*sets, *_blocks(job.model, everything=everything))


def _blocks(model: Model, *, everything: bool) -> tuple[str, ...]:
    """Full recomputation of some layers of each chunk."""
    return tuple(f"block:{n}" for n in ((1, 2, 3, 4, 6, 8) if everything else (1, 2)) if n < model.num_layers)
