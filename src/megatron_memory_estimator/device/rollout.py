"""Phases of a step of reinforcement learning on one GPU: what of the trainer is there, what runs, and what the engine takes.

Sources: THUDM/slime `slime/backends/megatron_utils/actor.py`, `docs/en/blogs/release_v0.1.0.md`; volcengine/verl
`verl/utils/megatron_utils.py`; NVIDIA-NeMo/RL `nemo_rl/models/policy/workers/megatron_policy_worker.py`; radixark/miles
`docs/examples/`. What a framework moves between phases are settings (`job/rollout.py`); docs/how-to/rl.md has them by framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

from ..job.rollout import MOVED
from ..job.training_job import TrainingJob
from ..modules.counts import count_parameters
from ..rank.build import context_of
from ..rank.declare import Declarer
from ..rank.rank import Rank, workspace_bytes
from ..states.state import CRITIC, REFERENCE, is_second, reference
from ..tape.simulate import forward_peak
from ..tape.tensor import DTYPE_BYTES, largest
from .terms import Range, Term, together

GIB = 2**30
ASLEEP = (0.4, 5.0)
"""GiB of an engine that sleeps: at least a CUDA context (pytorch PR 86509), at most what a process keeps with graphs and libraries once its
memory is paused (3 to 5 GB in THUDM/slime docs/en/blogs/release_v0.1.0.md; about 11 GB in one test of radixark/miles)."""


class RolloutPhase(NamedTuple):
    """A phase: what the trainer has allocated in it, by name, and what the engine takes beside it."""

    name: str
    trainer: tuple[Term, ...]
    engine: Term | None

    @property
    def terms(self) -> tuple[Term, ...]:
        """Everything that is named in it."""
        return (*self.trainer, self.engine) if self.engine else self.trainer

    @property
    def allocated(self) -> Range:
        """Bytes that the trainer has allocated."""
        return together(self.trainer)

    @property
    def beside(self) -> Range:
        """Bytes of the engine."""
        return Range(self.engine.low, self.engine.high) if self.engine else Range(0, 0)


def rollout_phases(job: TrainingJob, rank: Rank) -> tuple[RolloutPhase, ...]:
    """The phases beside training, in the order of a step; none without reinforcement learning."""
    r = job.rollout
    if r.rollout_engine is None:
        return ()
    found = []
    if r.shares_gpus:
        found.append(RolloutPhase("generation", tuple(_resident(job, rank, r.rollout_offload)), _awake(job)))
    forward = _forward(job, rank, entropy=job.training.loss_function == "verl")
    here = tuple(one for one in r.log_prob_offload if one != "weights")
    found.append(RolloutPhase("log_probs", (*_resident(job, rank, here), forward), asleep(job)))
    if r.reference_model == "offloaded":
        copy = reference(rank.context, [pair for plan in rank.plans for pair in plan.params]).nbytes
        weights = Term("reference weights", copy, copy, "on the device for its forward only")
        away = tuple(_resident(job, rank, r.rollout_offload))
        found.append(RolloutPhase("reference", (*away, weights, _forward(job, rank, entropy=False)), asleep(job)))
    if r.shares_gpus:
        kept = tuple(one for one in r.rollout_offload if one != "weights")
        found.append(
            RolloutPhase("weight_sync", (*_resident(job, rank, kept), _buckets(job, rank)), _engine_weights(job))
        )
    return tuple(found)


def asleep(job: TrainingJob) -> Term | None:
    """What an engine on the same GPU keeps while the trainer runs."""
    if not job.rollout.shares_gpus:
        return None
    if not job.rollout.rollout_sleeps:
        return _awake(job)
    low, high = ASLEEP
    return Term("engine asleep", int(low * GIB), int(high * GIB), "context, graphs and libraries of its process")


def _awake(job: TrainingJob) -> Term:
    """The engine's share of the GPU's memory."""
    share = job.rollout.rollout_memory_share
    if share is None:  # nothing says how much: it may take all that is left
        return _engine_weights(job)
    size = int(share * job.gpu.memory_bytes)
    return Term("engine", size, size, f"{share:g} of the GPU's memory: weights and KV cache")


def _engine_weights(job: TrainingJob) -> Term:
    """The engine's weights, awake for the sync, and its process."""
    ways = job.rollout.rollout_tensor_parallel_size
    low, high = (int(end * GIB) for end in ASLEEP)
    if ways is None:
        return Term("engine", low, high, "its weights are not counted: rollout_tensor_parallel_size is not given")
    weights = DTYPE_BYTES["bf16"] * count_parameters(job.model).total // ways
    return Term("engine's weights", weights + low, weights + high, f"16-bit weights over {ways} GPUs, and its process")


def _resident(job: TrainingJob, rank: Rank, away: tuple[str, ...]) -> Iterator[Term]:
    """State of the trainer that is on the device."""
    for part in MOVED:
        here = (s for s in rank.states if s.part == part and not s.of_step and not is_second(s))
        size = sum(s.nbytes for s in here)
        if part not in away and size:
            yield Term(part, size, size, "resident")
    for name in (REFERENCE, CRITIC):
        size = sum(s.nbytes for s in rank.states if s.group.startswith(name))
        if size:
            yield Term(name, size, size, "resident beside the policy")
    scratch = workspace_bytes(rank)
    if scratch and set(away) != set(MOVED):
        yield Term("workspaces", scratch, scratch, "persistent scratch of kernels")


def _forward(job: TrainingJob, rank: Rank, *, entropy: bool) -> Term:
    """One microbatch forward without gradients: its inputs, and the unit that takes most."""
    t = job.training
    tokens = job.rollout.log_prob_micro_batch_tokens
    changes: dict[str, Any] = {"loss_entropy": True} if entropy else {}
    if tokens is not None:
        changes |= {"seq_length": tokens, "micro_batch_size": 1}
    plans = rank.plans
    if changes:
        declarer = Declarer(context_of(dataclasses.replace(job, training=dataclasses.replace(t, **changes))))
        plans = tuple(declarer.plan(plan.chunk) for plan in plans)
    peaks = [forward_peak(run.unit) + run.beside_bytes("F") + plan.batch_bytes for plan in plans for run in plan.runs]
    peaks += [plan.cutting.nbytes for plan in plans if plan.uncut]
    size = reduce(largest, peaks)
    return Term("forward without gradients", size, size, "one layer or the logits of one microbatch, nothing kept")


def _buckets(job: TrainingJob, rank: Rank) -> Term:
    """Two buckets of whole tensors, or the largest tensor where that is larger."""
    c = rank.context
    each = (p.numel_each * _ways(p.shape) * DTYPE_BYTES["bf16"] for plan in rank.plans for p, _ in plan.params)
    size = 2 * largest(job.rollout.weight_sync_bytes, reduce(largest, each, 0))
    assert c is not None
    return Term("buckets of the weight sync", size, size, "one sends, one receives; a larger tensor goes alone")


def _ways(shape: object) -> int:
    ways = 1
    for dim in shape:  # type: ignore[attr-defined]
        ways = ways * dim.ways
    return ways
