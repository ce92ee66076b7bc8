"""Whether a job is estimated at all: every refusal of `estimate`, found before anything is traced."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from .errors import ConfigError, UnsupportedError
from .job.model import LOOKED_UP, STATE_BYTES, known_text
from .job.pipeline import Pipeline, build_pipeline
from .job.training_job import TrainingJob
from .legality import check
from .modules.counts import count_parameters
from .rank.build import context_of
from .rank.declare import Declarer


class Accepted(NamedTuple):
    """What an estimate of a job starts from."""

    pipeline: Pipeline
    declarer: Declarer


def modelled(job: TrainingJob) -> None:
    """Raise UnsupportedError for a model, or a trained tower, whose memory is not modelled, with what is known of it."""
    if not job.unmodelled:
        return
    if not job.refusal:
        raise UnsupportedError(job.unmodelled)
    total, ep = count_parameters(job.model).total, job.layout.ep
    known = known_text(total)
    tables = sum(n for name, n in job.model.foreign_layers if name.startswith(LOOKED_UP))
    if tables:
        ranks = f"each of {ep} expert-parallel ranks" if ep > 1 else "every GPU without expert parallelism"
        known += f"; {ranks} has about {STATE_BYTES * tables / ep / 1e9:,.1f} GB of the tables"
    raise UnsupportedError(f"{job.refusal} (known: {known})")


def accepted(job: TrainingJob, *, declared: bool = True) -> Accepted:
    """The chunks of a job that is legal and modelled, and what declares their units.

    Whether all units can be declared is not asked before where `declared` is off: the one that cannot stops what declares it.
    Raises LayoutError for a layout that Megatron-Core refuses, UnsupportedError for features that are not modelled, and ConfigError
    for adapters of linears that the model does not have: all that `estimate` raises.
    """
    modelled(job)
    context = context_of(job)
    check(context, job.gpu, job.num_microbatches, declared=declared)
    _engine_fits(job)
    _comes_back(job)
    found = Accepted(build_pipeline(job.model, job.layout), Declarer(context))
    if job.training.base_frozen and not _trains(found):
        targets = ",".join(job.training.peft_target_modules)
        raise ConfigError(
            f"peft_target_modules={targets} names no linear of this model"
            if job.training.peft != "none"
            else "freeze_language_model=True leaves nothing to train: a tower that is counted and not frozen is needed"
        )
    return found


def _engine_fits(job: TrainingJob) -> None:
    """Raise ConfigError where an engine's tensor-parallel ranks cannot be the GPUs of the run.

    Sources: verl `verl/workers/rollout/`, slime `slime/ray/rollout.py` (GPUs of an engine), vLLM `vllm/config/model.py` (heads of a rank).
    """
    size, gpus, heads = job.rollout.rollout_tensor_parallel_size, job.layout.world_size, job.model.num_attention_heads
    if size is None or not job.rollout.shares_gpus:
        return
    if gpus % size:
        raise ConfigError(
            f"rollout_tensor_parallel_size={size} does not divide the {gpus} GPUs of the run; use {gcd(size, gpus)}"
        )
    if job.rollout.rollout_engine == "vllm" and heads % size:
        raise ConfigError(
            f"rollout_tensor_parallel_size={size} does not divide num_attention_heads={heads}, as vLLM needs; use {gcd(size, heads)}"
        )


def _comes_back(job: TrainingJob) -> None:
    """Raise ConfigError where weights are paused without a copy and no main parameters are there to make them from.

    Source: Megatron-LM pull request 5103 (disable_param_buffers_cpu_backup).
    """
    r = job.rollout
    if (
        r.torch_memory_saver
        and "weights" in r.moved
        and r.disable_param_buffers_cpu_backup
        and not job.training.use_distributed_optimizer
    ):
        raise ConfigError(
            "disable_param_buffers_cpu_backup needs use_distributed_optimizer, whose main parameters the weights come back from; "
            "turn use_distributed_optimizer on, or leave disable_param_buffers_cpu_backup out"
        )


def _trains(one: Accepted) -> bool:
    """Whether any parameter is trained."""
    chunks = (chunk for row in one.pipeline.chunks for chunk in row)
    return any(not param.frozen for chunk in chunks for param in one.declarer.params_of(chunk))
