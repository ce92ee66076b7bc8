"""Nobody waits for another: a run is read once a request, lists of choices have a process of their own, models are a constant."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from megatron_memory_estimator.inputs.dialects import job as jobs
from megatron_memory_estimator.service.answers import answered
from megatron_memory_estimator.service.pool import Pool, Workers

SCRIPT = """
python3 -m verl.trainer.main_ppo --config-path=config --config-name=ppo_megatron_trainer \\
    data.max_prompt_length=1024 data.max_response_length=3072 data.train_batch_size=64 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.strategy=megatron \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.project_name=$PROJECT trainer.experiment_name=$NAME \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def test_a_list_of_choices_reads_the_run_once_and_each_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script leaves open is settled by the first reading: there were as many readings for each value."""
    count, job_of = [0], jobs.job_of

    def counted(*args: Any, **more: Any) -> Any:
        count[0] += 1
        return job_of(*args, **more)

    monkeypatch.setattr(jobs, "job_of", counted)
    request = {"tool": "estimate", "arguments": {"text": SCRIPT}, "folder": None, "seconds": 60}
    assert "answer" in answered(request)
    once, count[0] = count[0], 0
    names = ["tensor_model_parallel_size", "micro_batch_size"]
    found = answered({**request, "tool": "choices", "arguments": {"text": SCRIPT, "names": names}})["answer"]["choices"]
    values = sum(len(one["values"]) for one in found.values())
    assert once > 10 and values > 5
    assert count[0] <= once + values


class Counting(Pool):
    """A pool that answers by itself."""

    def __init__(self) -> None:
        super().__init__(1, 10)
        self.requests: list[bytes] = []

    async def answer(self, request: bytes, seconds: float, progress: Any = None) -> bytes:
        self.requests.append(request)
        return b"{}"


def test_models_are_asked_once_and_choices_elsewhere() -> None:
    workers = Workers(None)
    quick, choosing = Counting(), Counting()
    workers.quick, workers.choosing = quick, choosing

    async def asked() -> None:
        for _ in range(3):
            await workers.answer("models", {"model": None, "detail": "full"})
        await workers.answer("models", {"model": "qwen", "detail": "full"})
        await workers.answer("estimate", {"model": "Qwen/Qwen3-8B"})
        await workers.answer("choices", {"model": "Qwen/Qwen3-8B"})

    anyio.run(asked)
    assert len(quick.requests) == 3 and len(choosing.requests) == 1
