"""The job that a search starts from: the model and training of a run, without its layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import gcd

from ..accept import modelled
from ..errors import ConfigError, UnsupportedError
from ..estimator import estimate
from ..job.assumption import Assumption
from ..job.settings import LARGEST_INTEGER
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..states.state import STATE_PARTS
from ..tape.tensor import ceil_div
from ..validation.json_lines import is_whole
from ..wording import shown
from .space.borders import EVEN

TOKENS_OF_A_STEP = 2**22
"""Tokens of a step where no global batch is given: 4 Mi, as in published pretraining runs of large models."""


def base_job(job: TrainingJob, worlds: tuple[int, ...], global_batch_size: int | None) -> tuple[TrainingJob, list[str]]:
    """The job on the largest number of GPUs with the global batch of a search, and what was decided.

    Without one the job's own holds; one that is given nowhere is a multiple of every number of GPUs. Raises ConfigError where that would
    be absurd.
    """
    modelled(job)
    if job.layout.shards_weights:
        raise UnsupportedError(
            "plan does not search weight shards (tensor_parallel_num_weight_shards); estimate, advise and compare take a layout with them"
        )
    if job.training.dynamic_context_parallel:
        raise UnsupportedError(
            "plan does not search layouts of dynamic_context_parallel, whose ranks follow the samples; estimate, advise and compare take it"
        )
    if job.training.chunked_optimizer_state_offload:
        raise UnsupportedError(
            "plan does not search layouts of chunked_optimizer_state_offload; estimate, advise and compare take a layout with it"
        )
    if job.rollout.has_phases:
        raise UnsupportedError(
            "plan does not search layouts of reinforcement learning; estimate and advise hold its phases, compare takes several layouts"
        )
    said = list(timed_as(job.training))
    if global_batch_size is None and not job.batch_is_assumed:
        global_batch_size = job.training.global_batch_size
    if global_batch_size is None:
        multiple = 1
        for world in worlds:
            multiple = multiple // gcd(multiple, world) * world
        wanted = max(TOKENS_OF_A_STEP // job.training.seq_length, 1)
        global_batch_size = _even_batch(wanted, multiple)
        if global_batch_size > 64 * wanted:
            raise ConfigError(
                "global_batch_size is needed: no batch near 4 Mi tokens divides over all the numbers of GPUs"
            )
        tokens = global_batch_size * job.training.seq_length / 2**20
        text = f"global_batch_size not given: {global_batch_size} ({tokens:.1f} Mi tokens)"
        said.append(Assumption(text, f"global batch {global_batch_size}"))
    if not is_whole(global_batch_size, LARGEST_INTEGER):
        raise ConfigError(
            f"global_batch_size={shown(global_batch_size)} must be a whole number between 1 and {LARGEST_INTEGER}"
        )
    layout = dataclasses.replace(
        job.layout,
        **EVEN,
        world_size=max(worlds),
        num_layers_per_virtual_pipeline_stage=None,
        virtual_pipeline_model_parallel_size=None,
        microbatch_group_size_per_vp_stage=None,
        hierarchical_context_parallel_sizes=None,
    )
    training = dataclasses.replace(job.training, global_batch_size=global_batch_size)
    return dataclasses.replace(job, layout=layout, training=training), said


MORE = 1.25
"""So many times the usual tokens a batch may have that divides into more microbatches."""


def _even_batch(wanted: int, multiple: int) -> int:
    """A global batch near the wanted one: of the multiples, one that divides by two as often as may be, so that micro batches of several
    sequences divide it too."""
    least = found = ceil_div(wanted, multiple) * multiple
    while (even := ceil_div(wanted, 2 * multiple) * 2 * multiple) <= MORE * least:
        multiple, found = 2 * multiple, even
    return found


def state_bytes(job: TrainingJob) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer of the whole model: those of one GPU that holds all of it."""
    (stage,) = estimate(job).stages
    return {part: sum(one.nbytes for one in stage.rank.states if one.part == part) for part in STATE_PARTS}


def timed_as(training: Training) -> Iterator[str]:
    """What the step times of a training leave out."""
    if training.params_dtype == "fp32":
        yield "step times take fp32 products for 16-bit ones: they are too short"


def fewest(worlds: tuple[int, ...], node: int) -> tuple[int, ...]:
    """Numbers of GPUs to try for the fewest that hold a model: powers of two within a node, then whole nodes."""
    if worlds:
        return worlds
    inside = [2**i for i in range(10) if 2**i < node]
    nodes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    return (*inside, *(node * count for count in nodes))
