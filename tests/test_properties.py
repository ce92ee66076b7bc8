"""Properties: arrays of layouts give the numbers of single ones; more sharding never costs more state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.modules.layers import (
    Declaration,
    embedding_unit,
    final_norm_unit,
    layer_unit,
    mtp_unit,
    output_unit,
)
from megatron_memory_estimator.states.buffers import Buffer
from megatron_memory_estimator.states.padding import bucket_multiple
from megatron_memory_estimator.states.state import buffer_state
from megatron_memory_estimator.tape.simulate import trace

from .helpers import context

MODELS = [
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
]
RECOMPUTE: list[dict[str, Any]] = [
    {},
    {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "mlp", "moe_act", "layernorm")},
    {"moe_token_dispatcher_type": "flex"},
    {"moe_token_dispatcher_type": "allgather", "router_imbalance": 1.25},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te", "transformer_engine_version": "2.11"},
]
GRID = [(tp, cp, ep) for tp in (2, 4) for cp in (2, 4) for ep in (2, 4, 8)]


def grids(job: TrainingJob) -> list[list[tuple[int, int, int]]]:
    """The grid by structure: whether tp exceeds the query groups."""
    shared = [[p for p in GRID if (p[0] > job.model.groups) is above] for above in (False, True)]
    return [points for points in shared if points]


def arrays(job: TrainingJob, points: list[tuple[int, int, int]]) -> Context:
    """The job's context with many layouts at once."""
    tp, cp, ep = (np.array(column) for column in zip(*points, strict=True))
    layout: Any = Layout
    return Context(
        job.model,
        layout(
            world_size=tp * cp * 8, tensor_model_parallel_size=tp, context_parallel_size=cp, expert_model_parallel_size=ep,
            expert_tensor_parallel_size=1, sequence_parallel=True, cp_comm_type=job.layout.cp_comm_type,
        ),
        job.training,
        job.kernel,
    )  # fmt: skip


def one(job: TrainingJob, point: tuple[int, int, int]) -> Context:
    tp, cp, ep = point
    layout = Layout(
        world_size=tp * cp * 8, tensor_model_parallel_size=tp, context_parallel_size=cp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1, sequence_parallel=True, cp_comm_type=job.layout.cp_comm_type,
    )  # fmt: skip
    return Context(job.model, layout, job.training, job.kernel)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("extra", RECOMPUTE, ids=str)
def test_an_array_of_layouts_gives_the_bytes_of_each(model: str, extra: dict[str, Any]) -> None:
    job = TrainingJob.from_hf(model, **extra)
    units: list[Callable[[Context], Declaration]] = [partial(_layer, kind) for kind in dict.fromkeys(job.model.kinds)]
    units += [
        partial(embedding_unit, alone=True),
        final_norm_unit,
        lambda c: output_unit(c, owns_weight=True, shared=False),
    ]
    if job.model.mtp:
        units.append(lambda c: mtp_unit(c, owns_embedding=True))
    for points in grids(job):
        many = arrays(job, points)
        for declare in units:
            vector = declare(many)
            whole = trace(vector.unit)
            params = sum(p.numel for p in vector.params)
            for index, point in enumerate(points):
                scalar = declare(one(job, point))
                found = trace(scalar.unit)
                assert sum(p.numel for p in scalar.params) == _at(params, index)
                assert found.saved_bytes == _at(whole.saved_bytes, index)
                for a, b in zip(found.forward + found.backward, whole.forward + whole.backward, strict=True):
                    assert (a.phase, a.op, a.nbytes) == (b.phase, b.op, _at(b.nbytes, index))


def _layer(kind: str, c: Context) -> Declaration:
    return layer_unit(c, kind)


def _at(value: Any, index: int) -> int:
    return int(value) if np.ndim(value) == 0 else int(value[index])


def test_state_bytes_of_an_array_of_shard_counts() -> None:
    c = context(TrainingJob.from_hf("Qwen/Qwen3-8B", use_precision_aware_optimizer=True))
    shards = np.array([1, 2, 3, 8])
    numel = 3 * 2**20
    vector = buffer_state(c, Buffer(0, False, "bf16", "fp32", numel, numel, numel, numel // shards, 0, ""))  # type: ignore[arg-type]
    for index, count in enumerate(shards.tolist()):
        scalar = buffer_state(c, Buffer(0, False, "bf16", "fp32", numel, numel, numel, numel // count, 0, ""))
        assert [s.nbytes for s in scalar] == [_at(s.nbytes, index) for s in vector]
    assert bucket_multiple(shards, busbw=False).tolist() == [128, 128, 384, 128]  # type: ignore[attr-defined, arg-type]


@settings(max_examples=40, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([8, 16]),
    axis=st.sampled_from(["tp", "ep", "dp"]),
)
def test_more_sharding_never_costs_more_state(tp: int, pp: int, ep: int, dp: int, axis: str) -> None:
    def state(tp: int, ep: int, dp: int) -> int:
        job = TrainingJob.from_hf(
            "Qwen/Qwen3-30B-A3B", num_gpus=tp * pp * dp, tensor_model_parallel_size=tp, expert_model_parallel_size=ep,
            pipeline_model_parallel_size=pp, make_vocab_size_divisible_by=1024,
        )  # fmt: skip
        return max(sum(s.nbytes for s in stage.rank.states) for stage in estimate(job).stages)

    before = state(tp, ep, dp)
    more = state(
        tp * (2 if axis == "tp" and tp < 8 else 1),
        ep * (2 if axis == "ep" and ep < 8 else 1),
        dp * (2 if axis == "dp" else 1),
    )
    assert more <= before


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 6))
def test_more_microbatches_than_the_default_change_nothing(pp: int, vp: int, extra: int) -> None:
    if pp == 1 and vp > 1:
        return
    kwargs: dict[str, Any] = {
        "num_gpus": pp, "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vp if vp > 1 else None, "num_layers": pp * vp,
    }  # fmt: skip
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", **kwargs)
    more = TrainingJob.from_hf("Qwen/Qwen3-0.6B", global_batch_size=job.num_microbatches + pp * extra, **kwargs)
    peaks = [[stage.peak_allocated_bytes for stage in estimate(j).stages] for j in (job, more)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("model", MODELS)
def test_recompute_keeps_less(model: str) -> None:
    def kept(**changes: Any) -> int:
        return estimate(TrainingJob.from_hf(model, **changes)).stages[0].rank.plans[0].saved_bytes

    assert kept(recompute_granularity="full") < kept()
