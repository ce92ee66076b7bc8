"""Changes of a run of reinforcement learning: less of the trainer or of the engine on the GPU while samples are generated."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.rollout import MOVED
from ..job.training_job import TrainingJob
from .change import Change, change

LEAST_SHARE = 0.2
"""Of a GPU's memory for an engine: what is less leaves no KV cache worth the name."""


def rollout_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes for an engine that shares the GPUs; none without one."""
    r = job.rollout
    if not r.shares_gpus:
        return
    if set(r.rollout_offload) != set(MOVED):
        words = "weights, gradients and optimizer in host memory while samples are generated"
        yield change(words, "the framework moves them twice a step", "host memory", rollout_offload=MOVED)
    share = r.rollout_memory_share
    for less in (0.1, 0.2, 0.3):
        if share is not None and share - less >= LEAST_SHARE:
            lower = round(share - less, 2)
            words = f"{lower:g} of the GPU for the engine instead of {share:g}"
            yield change(words, "a smaller KV cache", rollout_memory_share=lower)
    if not r.rollout_sleeps:
        yield change("an engine that sleeps while the trainer runs", rollout_sleeps=True)
