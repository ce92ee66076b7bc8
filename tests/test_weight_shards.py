"""Weight shards (generalized tensor parallelism): what the real classes of Megatron-Core 0.19.2 have on a rank, and the seconds of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, UnsupportedError, estimate, plan
from megatron_memory_estimator.formulas.beside import published
from megatron_memory_estimator.rank.chunks import Run
from megatron_memory_estimator.rank.rank import Rank, workspace_bytes
from megatron_memory_estimator.rank.weight_shards import Weight, _gradients, _tickets
from megatron_memory_estimator.throughput import throughput

from .helpers import FACTS

CASES = [json.loads(line) for line in (FACTS / "weight_shards.jsonl").read_text().splitlines()]
"""Three steps of real classes without a GPU: parameters as [shape..., how many], buffers as [use, rows, columns, dtype, how many]."""


def rank_of(case: dict[str, Any]) -> tuple[Rank, int]:
    job = TrainingJob.from_config({**case["settings"], "gpu": "H100"}, case["num_gpus"])
    stage = estimate(job).stages[case["stage"]]
    return stage.rank, stage.peak_allocated_bytes


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_shards_and_buffers_are_those_of_the_real_classes(case: dict[str, Any]) -> None:
    rank, peak = rank_of(case)
    shapes: Counter[tuple[int, ...]] = Counter()
    for one in rank.plans:
        for param, layers in one.params:
            shapes[tuple(dim.local for dim in param.shape)] += layers * param.copies
    assert shapes == {tuple(shape): count for *shape, count in case["parameters"]}
    assert [[buffer.group, buffer.numel] for buffer in rank.buffers] == case["buffer_elements"]
    found: Counter[tuple[Any, ...]] = Counter()
    for scratch in rank.workspaces:
        if scratch.source.startswith("generalized_tensor_parallelism.py") and len(scratch.shape) == 3:
            count, rows, columns = (dim.size for dim in scratch.shape)
            use = "pool" if "pool" in scratch.source else scratch.name.split()[0]
            found[use, rows, columns, scratch.dtype] += count
    assert found == {tuple(key): count for *key, count in case["persistent"]}
    if "peak_beside_state" in case:
        state = sum(state.nbytes for state in rank.states if state.since != "optimizer")
        assert abs(peak - state - workspace_bytes(rank) - case["peak_beside_state"]) < 4096


WORKED = {
    "num_layers": 8, "hidden_size": 8192, "ffn_hidden_size": 28672, "gated_linear_unit": True, "activation_func": "silu",
    "num_attention_heads": 64, "num_query_groups": 8, "kv_channels": 128, "normalization": "RMSNorm", "add_bias_linear": False,
    "vocab_size": 128256, "share_embeddings_and_output_weights": False, "gradient_accumulation_fusion": True,
    "use_distributed_optimizer": True, "tensor_model_parallel_size": 2, "sequence_parallel": True, "seq_length": 4096, "gpu": "H100",
    "transformer_engine_version": "2.20",
}  # fmt: skip
"""The layer that docs/api-guide/core/generalized_tensor_parallel.md's rules are worked for by hand: 8 shards of 2 tensor-parallel ranks."""


def worked(gpus: int = 64, **more: Any) -> Any:
    return estimate(TrainingJob.from_config({**WORKED, "tensor_parallel_num_weight_shards": 8, **more}, gpus))


def test_a_layer_by_hand() -> None:
    """Its shard has 106,954,752 elements of 427,819,008, with 7.5 bytes each over 8 data-parallel ranks: 802 MB, 2,727 MB without shards.
    Whole weights of one layer are 855.6 MB."""
    found = worked()
    rank = found.stages[0].rank
    layer = next(run for run in rank.plans[0].runs if run.first_layer >= 0)
    shard = sum(param.numel for param in layer.params if param.whole)
    assert shard == 106_954_752 == 427_819_008 // 4
    assert found.job.layout.dp == 8 and found.job.training.global_batch_size == 32, (
        "each of the 32 reads samples of its own"
    )
    assert round(shard * (2 + 4 + 12 / 8) / 1e6) == 802
    whole = [one for one in rank.workspaces if one.name.startswith("whole") and not one.name.endswith("wgrad")]
    assert (
        round(sum(one.nbytes for one in whole if "output" not in one.name and "embedding" not in one.name) / 1e6, 1)
        == 855.6
    )
    state = sum(one.nbytes for one in rank.states if one.since != "optimizer")
    plain = estimate(TrainingJob.from_config(WORKED, 64)).stages[0].rank
    unsharded = sum(one.nbytes for one in plain.states if one.since != "optimizer")
    assert unsharded / state == pytest.approx(6.375 * 4 / 7.5, rel=1e-3)


def weights(*sizes: int, chain: str = "", pooled: bool = True) -> list[Weight]:
    return [Weight(str(n), size, size, size // 2, (1,), 1, chain, n, pooled) for n, size in enumerate(sizes)]


def test_buffers_of_equal_neighbours() -> None:
    """Weights of one shape share a buffer unless they follow each other; the last one keeps that of its backward."""
    c = worked().stages[0].rank.context
    whole, summed = _tickets(c, weights(32, 64, 32, 64, 16))
    assert {key[0]: count for key, count in whole.most.items()} == {16: 1, 32: 1, 64: 1}
    assert {key[0]: count for key, count in summed.most.items()} == {16: 1, 32: 1, 64: 1}
    whole, summed = _tickets(c, weights(32, 32, 32))
    assert list(whole.most.values()) == [3] and list(summed.most.values()) == [2]
    pool, padding = _gradients(c, weights(32, 32, 32))
    assert list(pool.most.values()) == [2] and padding == 0


RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def test_the_gradient_of_the_output_layer_stays_until_that_of_the_last_layer_is_on_its_way() -> None:
    def runs_of(**settings: Any) -> list[Run]:
        return list(worked(**settings).stages[0].rank.plans[0].runs)

    def beside(runs: list[Run]) -> list[tuple[int, int]]:
        gradient = "output_layer.weight.wgrad"
        return [(run.first_layer, run.copies) for run in runs if any(one.name == gradient for one in run.beside[1])]

    runs = runs_of()
    assert [(run.first_layer, run.copies) for run in runs if run.first_layer >= 0] == [(0, 7), (7, 1)]
    assert beside(runs) == [(-1, 1)], "the final norm"
    plain, last = (run.trace.backward for run in runs if run.first_layer >= 0)
    more = [b.nbytes - a.nbytes for a, b in zip(plain, last, strict=True)]
    whole = 2 * 128_256 // 2 * 8192
    assert {a.op: extra for a, extra in zip(plain, more, strict=True) if extra} == {
        "mlp_bda.dropout": whole,
        "mlp_bda": whole,
        "mlp.linear_fc2": whole,
    }
    assert beside(runs_of(**RECOMPUTED)) == [(7, 1), (-1, 1)], "an upper bound where the layer runs again"


def test_seconds_have_the_traffic_of_the_shards() -> None:
    """With more shards a step sends more; what compute hides does not show, but a share does at least."""
    plain, few, many = (
        throughput(worked(tensor_parallel_num_weight_shards=2)),
        throughput(worked()),
        throughput(worked(tensor_parallel_num_weight_shards=32)),
    )
    assert "gtp" not in plain.parts and 0 < few.parts["gtp"] < many.parts["gtp"]
    assert sum(many.parts.values()) == pytest.approx(many.step)


def test_the_batch_counts_every_reader() -> None:
    """`global batch = micro-batch * DP * g * microbatches` (Megatron-LM `training/global_vars.py`)."""
    assert worked(global_batch_size=64).job.num_microbatches == 2
    with pytest.raises(Exception, match=r"data_parallel_size\*gtp_weight_remat_size=1\*32=32"):
        worked(global_batch_size=40)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"tensor_parallel_num_weight_shards": 5}, "weight-shards-over-tp"),
        ({"share_embeddings_and_output_weights": True}, "weight-shards-used-twice"),
        ({"num_distributed_optimizer_instances": 2}, "weight-shards-with-instances"),
        ({"use_megatron_fsdp": True, "use_distributed_optimizer": False}, "weight-shards-not-modelled"),
        ({"gradient_accumulation_fusion": False}, "weight-shards-not-modelled"),
        ({"transformer_engine_version": "2.14"}, "weight-shards-of-newer-version"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(LayoutError) as caught:
        worked(**settings)
    assert code in caught.value.codes


def test_plan_says_that_it_does_not_search_them() -> None:
    job = TrainingJob.from_config({**WORKED, "tensor_parallel_num_weight_shards": 8}, 64)
    with pytest.raises(UnsupportedError, match="plan does not search weight shards"):
        plan(job)


def test_published_formulas_have_no_weight_shards() -> None:
    job = TrainingJob.from_config({**WORKED, "tensor_parallel_num_weight_shards": 8}, 64)
    assert {one.refused for one in published(job)} == {"weight shards are not in this formula"}
