"""Host memory of a rank, term by term."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Stage, TrainingJob, estimate
from megatron_memory_estimator.device.host import conversion_terms, per_node, written
from megatron_memory_estimator.job.hardware import GIB

from .helpers import moe_config, small_job

GB = 10**9


def terms(found: Stage) -> dict[str, tuple[int, int]]:
    return {term.name: (term.low, term.high) for term in found.host}


EMBEDDING, QKV = 32_000 * 1024, 1536 * 1024
"""Elements of the two kinds of weights of a small model that are no power of two: two tables, and one of each of four layers."""
BEYOND = 2 * (32_768 * 1024 - EMBEDDING) + 4 * (2048 * 1024 - QKV)
"""Elements up to the next powers of two of all of them."""


def test_a_process_its_data_and_a_checkpoint() -> None:
    """Of one GPU: two workers of a loader, each with two batches of 1,024 tokens; 2 bytes of weights and 12 of state while a checkpoint is
    written, whose tensors are rounded up to powers of two."""
    found = estimate(small_job(1)).stages[0]
    batches = 2 * 2 * 1024 * (8 + 8 + 8 + 4)
    assert terms(found) == {
        "Python, CUDA and NCCL of the process": (4 * GB, 6 * GB),
        "data loader, 2 workers": (GB, 12 * GB),
        "batches that are ready": (batches, 3 * batches),
        "checkpoint while it is written": (0, 14 * sum(found.num_parameters)),
        "rounding of pinned memory": (0, 14 * BEYOND),
    }


def test_a_mask_of_a_long_sequence_is_gibibytes() -> None:
    """A mask of 32,768 tokens is a GiB; one worker has two batches."""
    made = {
        "seq_length": 32768,
        "max_position_embeddings": 32768,
        "num_workers": 1,
        "create_attention_mask_in_dataloader": True,
    }
    low, _ = terms(estimate(small_job(1, **made)).stages[0])["batches that are ready"]
    assert low == 2 * (2**30 + 28 * 32768)
    assert "batches that are ready" not in terms(estimate(small_job(1, num_workers=0)).stages[0])


def test_a_node_has_a_loader_of_each_tensor_parallel_group_at_least() -> None:
    """8 GPUs, tp 4: two groups; stages in the middle load nothing with Megatron-LM."""
    first = estimate(small_job(8, tensor_model_parallel_size=4)).stages[0]
    node = per_node(first.host, 8, first.job.layout)
    assert node.low == 8 * 4 * GB + 2 * (GB + terms(first)["batches that are ready"][0])
    assert node.high == 8 * first.host_bytes.high
    middle = estimate(small_job(4, pipeline_model_parallel_size=4)).stages[1]
    assert terms(middle)["data loader, 2 workers"] == (0, 12 * GB)


def test_activations_of_every_microbatch_in_flight() -> None:
    """Two stages of two layers: the first has two microbatches in flight, the last one; of a power of two there is nothing to round."""
    made = small_job(
        2, pipeline_model_parallel_size=2, global_batch_size=8, fine_grained_activation_offloading=True,
        offload_modules=("core_attn",), min_offloaded_tensor_size=2**20,
    )  # fmt: skip
    first, last = map(terms, estimate(made).stages)
    each = 2 * 2 * 1024 * 1024  # queries of 1,024 tokens and 16 heads of 64
    assert last["activation offload"] == (each, each)
    assert first["activation offload"] == (2 * each, 2 * each)
    assert first["rounding of pinned memory"][0] == 0


def test_activations_are_rounded_one_by_one() -> None:
    """1,000 tokens: 3/125 above, in each of two microbatches."""
    made = small_job(
        2, pipeline_model_parallel_size=2, global_batch_size=8, seq_length=1000, fine_grained_activation_offloading=True,
        offload_modules=("core_attn",), min_offloaded_tensor_size=2**19,
    )  # fmt: skip
    first = terms(estimate(made).stages[0])
    assert first["activation offload"][0] == 2 * 2 * 2 * 1000 * 1024
    assert first["rounding of pinned memory"][0] == 2 * 2 * 2 * 24 * 1024


def test_state_in_host_memory_is_not_staged_again() -> None:
    """The optimizer's state on the host is written from where it is: a quarter of the weights remains."""
    settings: dict[str, Any] = {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True}
    on_gpu, away = (
        terms(estimate(small_job(4, **settings, **more)).stages[0])["checkpoint while it is written"][1]
        for more in ({}, {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0})
    )
    number = sum(estimate(small_job(4, **settings)).stages[0].num_parameters)
    assert away == pytest.approx(2 * number / 4, rel=0.1)
    assert on_gpu - away == pytest.approx(12 * number / 4, rel=1e-3)


@pytest.mark.parametrize("aware", [True, False])
def test_an_offloaded_optimizer(aware: bool) -> None:
    """16 bytes per parameter. fp32 gradients are pinned, and fp32 masters where the optimizer does not hold weights of 16 bits; else a
    copy of these is made first, of which torch keeps the memory. All of one GPU, by whole parameters."""
    made = small_job(
        1, use_precision_aware_optimizer=aware, optimizer_cpu_offload=True, optimizer_offload_fraction=1.0,
        use_distributed_optimizer=True,
    )  # fmt: skip
    found = estimate(made).stages[0]
    number = sum(found.num_parameters)
    has = terms(found)
    assert has["optimizer offload"] == (16 * number, 16 * number)
    low, high = has["rounding of pinned memory"]
    assert low == (4 if aware else 8) * BEYOND
    on_gpu = 2 if aware else 6  # without, the masters are on the GPU too
    assert has["checkpoint while it is written"][1] == on_gpu * number
    copies = 2 * (number + BEYOND) if aware else 0
    assert high == low + copies + on_gpu * BEYOND


@pytest.mark.parametrize(
    ("dense", "expert", "dp", "expert_dp", "most"),
    [
        ([9, 7, 6, 5, 5, 4], [], 3, 1, 13),
        ([50000, 4096, 1000, 1000, 64], [], 4, 4, 50000),
        ([4096, 1000, 64, 64], [3072, 2048, 2048], 4, 2, 7168),
        ([100, 90, 1], [30, 20, 20, 10], 4, 1, 180),
        ([4096, 1000, 64, 64], [3072, 2048, 2048], 2, 2, 6208),
    ],
)
def test_weights_are_dealt_as_megatron_deals_them(
    dense: list[int], expert: list[int], dp: int, expert_dp: int, most: int
) -> None:
    """distribute_shards_to_ranks of Megatron-Core 0.19.2 with these sizes: what the fullest rank writes."""
    parallel = dp // expert_dp
    job = TrainingJob.from_config(
        {**moe_config(), "num_moe_experts": 2 * parallel}, dp, expert_model_parallel_size=parallel
    )
    assert (job.layout.dp, job.layout.expert_dp) == (dp, expert_dp)
    assert sum(written(dense, expert, job.layout, parallel=True)) == most
    assert written(dense, expert, job.layout, parallel=False) == dense + expert


def test_a_format_that_gathers_the_state_of_all_ranks() -> None:
    """fully_reshardable: every rank gathers 12 bytes of each parameter in pageable memory, and copies the quarter that it writes."""
    made = small_job(4, use_distributed_optimizer=True, dist_ckpt_optim_fully_reshardable=True)
    found = estimate(made).stages[0]
    number, has = sum(found.num_parameters), terms(found)
    assert has["optimizer state of all ranks, for a checkpoint"][1] == pytest.approx(12 * number * 5 / 4, rel=1e-3)
    assert has["checkpoint while it is written"][1] == pytest.approx(2 * number / 4, rel=0.1)


def test_a_process_that_writes_checkpoints() -> None:
    """Megatron-LM turns --async-save off without --use-persistent-ckpt-worker."""
    words = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    without, beside = (
        TrainingJob.from_megatron_args(f"{words} --vocab-size 1000 --micro-batch-size 1 --async-save{more}".split(), 1)
        for more in ("", " --use-persistent-ckpt-worker")
    )
    assert (without.training.async_save, beside.training.async_save) == (False, True)
    assert terms(estimate(beside).stages[0])["process that writes checkpoints"] == (GB, 3 * GB)
    one, two = (estimate(job).stages[0].device_used for job in (without, beside))
    assert (two.low - one.low, two.high - one.high) == (int(0.4 * GIB), int(0.5 * GIB))


def test_conversion_of_hugging_face_weights() -> None:
    """DeepSeek-V3 without MTP: 1.6 TB were enough for one process, as public reports have it, 1.34 TB are its weights."""
    alone, ranks = conversion_terms(671 * 10**9)
    assert alone.low == 1_342 * GB + 5 * GB < 1_600 * GB < alone.high
    assert (ranks.low, ranks.high) == (5 * GB, 5 * GB)


def test_the_paged_stash_overflows_to_the_host_where_it_is_asked_for() -> None:
    settings: dict[str, Any] = {
        "moe_paged_stash": True, "moe_expert_rank_capacity_factor": 1.5, "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep", "expert_model_parallel_size": 2, "gpu": "H100", "seq_length": 1024,
        "moe_router_dtype": "fp32", "use_transformer_engine_op_fuser": False,
    }  # fmt: skip
    one, two = (
        terms(
            estimate(
                TrainingJob.from_config(moe_config(), 2, **settings, moe_paged_stash_buffer_size_factor_cpu=factor)
            ).stages[0]
        )
        for factor in (1.0, 2.0)
    )
    name = "paged stash overflow (offload)"
    assert two[name][0] == 2 * one[name][0] > 0
    assert one[name][1] == one[name][0]
    assert one["rounding of pinned memory"][1] >= one[name][0], "a pinned request of any size may double"
