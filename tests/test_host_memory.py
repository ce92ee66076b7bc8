"""Host memory of a rank, term by term."""

from __future__ import annotations

from typing import Any

from megatron_memory_estimator import Stage, TrainingJob, estimate

from .helpers import moe_config, small_job

GB = 10**9


def terms(found: Stage) -> dict[str, tuple[int, int]]:
    return {term.name: (term.low, term.high) for term in found.host}


def test_a_process_and_a_checkpoint_are_always_there() -> None:
    """5 to 10 GB of Python, CUDA and the data loader; while a checkpoint is written 2 bytes of weights and 12 of state."""
    found = estimate(small_job(1)).stages[0]
    assert terms(found) == {
        "Python, CUDA host structures, data loader": (5 * GB, 10 * GB),
        "checkpoint while it is written": (0, 14 * sum(found.num_parameters)),
    }


def test_activations_of_every_microbatch_in_flight() -> None:
    """Two stages of two layers: the first has two microbatches in flight, the last one; pinned requests may double."""
    made = small_job(
        2, pipeline_model_parallel_size=2, global_batch_size=8, fine_grained_activation_offloading=True,
        offload_modules=("core_attn",), min_offloaded_tensor_size=2**20,
    )  # fmt: skip
    first, last = (terms(stage)["activation offload"] for stage in estimate(made).stages)
    each = 2 * 2 * 1024 * 1024  # queries of 1,024 tokens and 16 heads of 64
    assert last == (each, 2 * each)
    assert first == (2 * each, 4 * each)


def test_what_an_offloaded_optimizer_writes_into_a_checkpoint() -> None:
    """12 bytes of main parameter and moments wherever they are, and the weights of this rank: the same as without offloading."""
    settings: dict[str, Any] = {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True}
    on_gpu, half = (
        terms(estimate(small_job(4, **settings, **more)).stages[0])["checkpoint while it is written"]
        for more in ({}, {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5})
    )
    assert on_gpu == half


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
    assert one[name][1] == 2 * one[name][0], "pinned requests are rounded up to a power of two"
