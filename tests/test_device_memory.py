"""Terms beside torch's allocated peak: buffers of communication, published or hand-worked, and what a run is on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Estimate, TrainingJob, estimate
from megatron_memory_estimator.device.outside import (
    NCCL_HIGH,
    NCCL_LOW,
    Group,
    _communicator_bytes,
    communicators,
    deepep_bytes,
    nccl_terms,
)
from megatron_memory_estimator.device.phases import own_storage
from megatron_memory_estimator.device.terms import Range, Term
from megatron_memory_estimator.device.verdict import explain_terms, judged
from megatron_memory_estimator.job.hardware import GIB, MIB

from .helpers import moe_job, records, small_job

FLEX: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_permute_fusion": True}


def terms(found: Estimate) -> dict[str, Term]:
    stage = found.stages[0]
    return {term.name: term for term in explain_terms(found.job, stage.rank, stage.peak)}


def mib(size: int, span: int, kind: str = "ring", *, domain: int = 8, channels: int = 24, nvls: bool = False) -> float:
    """MiB of a communicator."""
    return _communicator_bytes(Group("group", size, span, kind), domain, channels, nvls=nvls) / MIB


def test_rings_inside_a_node() -> None:
    """12 MiB for each of 24 channels on A100 (nccl issue 964: 544 MB are 256 of its pool and 288), of 32 on Blackwell."""
    assert mib(2, 2) == mib(8, 8) == 544 - 256
    assert mib(8, 8, channels=32) == 384


def test_nvls_takes_two_mib_of_16_channels_for_each_head() -> None:
    """8 H100: 256 MiB beside the ring; no more than 32 heads (NVIDIA/nccl src/transport/nvls.cc)."""
    assert mib(8, 8, nvls=True) - mib(8, 8) == 256
    assert mib(64, 64, domain=72, nvls=True) - mib(64, 64, domain=72) == 2 * 16 * 32


def test_an_all_to_all_inside_a_domain() -> None:
    """12 MiB for each of 32 channels and every other rank: 8 H100 3.28 GB with what else the first one connects (nccl issue 1685);
    64 ranks of an NVL72 need 23.6 GiB, for which a pool of 31 was enough (marin issue 7279)."""
    assert mib(8, 8, "all-to-all") == 12 * 32 * 7
    assert 0.8 < mib(8, 8, "all-to-all") * MIB / 3.28e9 < 1
    assert mib(64, 64, "all-to-all", domain=72) / 1024 == pytest.approx(23.6, abs=0.05)
    assert mib(2, 2, "p2p") == 12 * 32


def test_an_all_to_all_across_nodes() -> None:
    """Two channels to each NVLink neighbour, 32 * 16 * 128 KiB both ways for the network, and 2 * 20 MiB of its ring."""
    network = 2 * 32 * 16 * 128 / 1024 + 2 * 20
    assert mib(16, 16, "all-to-all") == 7 * 2 * 12 + network
    assert mib(16, 32, "all-to-all") == 3 * 2 * 12 + network, "every second rank: four in a node of eight"
    assert mib(2, 16, "all-to-all") == network, "no neighbour in the node"


def test_a_communicator_across_nodes() -> None:
    """Pool and ring (168 MiB) less what lazy connections leave out: 130 to 200 MiB for a pair or a ring."""
    assert 130 < mib(2, 16, "p2p") < 200
    assert 130 < mib(16, 16) < 200
    assert mib(16, 16) == mib(16, 16, nvls=True), "NVLS is counted inside a domain"


def test_one_rank_is_no_communicator() -> None:
    assert mib(1, 1) == mib(1, 1, "all-to-all") == mib(1, 1, "p2p") == 0
    assert nccl_terms(small_job(1)) == []


def test_groups_of_a_dense_rank() -> None:
    """tp2 cp2 pp2 dp2 on 16 GPUs, in rank order tp-cp-dp-pp."""
    layout = small_job(16, tensor_model_parallel_size=2, context_parallel_size=2, pipeline_model_parallel_size=2).layout
    assert {(group.name, group.size, group.span, group.kind) for group in communicators(layout, moe=False)} == {
        ("world", 16, 16, "ring"), ("tensor", 2, 2, "ring"), ("context", 2, 4, "ring"), ("data x context", 4, 8, "ring"),
        ("pipeline", 2, 16, "p2p"), ("model x optimizer instance", 16, 16, "ring"),
    }  # fmt: skip


def test_groups_of_experts() -> None:
    """ep4 etp2 pp2 on 16 GPUs: the experts of a stage are on all of its 8."""
    made = moe_job(16, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=2,
                   expert_tensor_parallel_size=2, sequence_parallel=True)  # fmt: skip
    found = {group.name: group for group in communicators(made.layout, moe=True)}
    assert found["expert"] == Group("expert", 2, 4, "all-to-all")
    assert found["expert x expert tensor"] == Group("expert x expert tensor", 4, 4, "ring")
    assert found["expert tensor"] == Group("expert tensor", 2, 2, "ring")
    assert found["expert data"] == Group("expert data", 2, 8, "ring")
    assert found["tensor x context"] == Group("tensor x context", 2, 2, "ring")
    flex = {group.name: group for group in communicators(made.layout, moe=True, all_to_all=False)}
    assert flex["expert"].kind == "ring"


def test_nccl_of_a_run_is_the_sum_of_its_groups() -> None:
    """tp8 in each of two nodes: a ring of 288 MiB; world, pipeline and optimizer across nodes. More than 8 groups: a quarter GiB each."""
    made = small_job(16, tensor_model_parallel_size=8, pipeline_model_parallel_size=2, gpu="H100")
    (term,) = nccl_terms(made)
    assert term.name == "NCCL (4 communicators)"
    total = (288 + mib(2, 16, "p2p") + 2 * mib(16, 16)) * MIB
    assert (term.low, term.high) == (int(NCCL_LOW * total), int(NCCL_HIGH * total))
    many = moe_job(16, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=2,
                   expert_tensor_parallel_size=2, sequence_parallel=True, gpu="H100", context_parallel_size=2)  # fmt: skip
    (more,) = nccl_terms(many)
    assert more.name == "NCCL (11 communicators)"
    assert more.high - more.low / NCCL_LOW * NCCL_HIGH == pytest.approx(3 * GIB / 4, abs=8)
    (wide,) = nccl_terms(small_job(8, tensor_model_parallel_size=8, gpu="B200"))
    assert wide.low == int(NCCL_LOW * 3 * 384 * MIB), "world, tensor and optimizer on 32 channels"


# MiB over NVLink and over RDMA with 20 SMs (deepseek-ai/DeepEP csrc/legacy/config.hpp); the heap of NVSHMEM grows by 512 MiB
DEEPEP = [
    (8, 4096, 200, 0), (16, 4096, 225, 512), (32, 4096, 225, 512), (64, 4096, 225, 512), (128, 4096, 438, 512),
    (8, 7168, 320, 0), (16, 7168, 360, 512), (32, 7168, 360, 512), (64, 7168, 360, 512), (128, 7168, 700, 1024),
    (4, 7168, 160, 0),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "width", "near", "far"), DEEPEP)
def test_deepep(ranks: int, width: int, near: int, far: int) -> None:
    assert deepep_bytes(ranks, width) / MIB == pytest.approx(near + far + 32, abs=0.6)


def test_deepep_to_the_byte() -> None:
    """8 ranks: 10 channels of 8 peers with 20 bytes of counters and 256 rows of 2 * 4096 + 8 + 2048; 16 ranks: 288 rows and 28 bytes."""
    assert deepep_bytes(8, 4096) == 80 * (20 + 256 * 10248) + 32 * MIB
    assert deepep_bytes(16, 4096) == 80 * (28 + 288 * 10248) + 512 * MIB + 32 * MIB
    assert deepep_bytes(12, 4096) == 80 * (20 + 288 * 10248) + 512 * MIB + 32 * MIB, "nodes of eight, rounded down"


def test_a_deepep_buffer_may_be_there_twice_and_only_where_it_is_used() -> None:
    made: dict[str, Any] = {"expert_model_parallel_size": 8, "gpu": "H100"}
    term = terms(estimate(moe_job(8, **made, **FLEX, moe_flex_dispatcher_backend="deepep")))["DeepEP buffer"]
    assert (term.low, term.high) == (deepep_bytes(8, 1024), 2 * deepep_bytes(8, 1024))
    assert not {"DeepEP buffer", "HybridEP buffer"} & set(terms(estimate(moe_job(8, **made))))
    sharded: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "sequence_parallel": True,
    }
    alone = terms(estimate(moe_job(8, gpu="H100", **sharded, **FLEX, moe_flex_dispatcher_backend="deepep")))
    assert "DeepEP buffer" not in alone, "every rank has all experts"


@pytest.mark.parametrize(
    ("gpu", "ranks", "seq_length", "gib"),
    [("GB200", 64, 4096, 3.8), ("H100", 64, 4096, 4.8), ("GB200", 32, 8192, 3.8)],
)
def test_hybridep_of_deepseek_v3(gpu: str, ranks: int, seq_length: int, gib: float) -> None:
    """In one NVLink domain of 72, and over 8 nodes of 8 (deepseek-ai/DeepEP hybrid-ep, csrc/hybrid_ep/buffer/)."""
    made = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3", ranks, gpu=gpu, seq_length=seq_length, expert_model_parallel_size=ranks, **FLEX,
        moe_flex_dispatcher_backend="hybridep",
    )  # fmt: skip
    term = terms(estimate(made))["HybridEP buffer"]
    assert term.low == term.high
    assert term.low / GIB == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "bytes_each"),
    [({}, 24), ({"transformer_engine_version": "2.6"}, 20), ({"fp8": "hybrid"}, 16)],
)
def test_userbuffers(settings: dict[str, Any], bytes_each: int) -> None:
    """12 buffers of [seq * b, h] in bf16, 10 before TransformerEngine 2.7; in fp8 the 8 that gather are of one byte."""
    base: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "tp_comm_overlap": True,
        "gpu": "H100",
    }
    found = terms(estimate(small_job(2, **base, **settings)))["userbuffers"]
    assert found.low == found.high == bytes_each * 1024 * 1024


def test_userbuffers_of_long_sequences() -> None:
    made = small_job(
        8, tensor_model_parallel_size=2, sequence_parallel=True, tp_comm_overlap=True, gpu="H100", micro_batch_size=2,
        context_parallel_size=4, seq_length=4096,
    )  # fmt: skip
    assert terms(estimate(made))["userbuffers"].low == 24 * 4096 // 4 * 2 * 1024


def test_what_the_environment_sets_is_taken() -> None:
    found = terms(estimate(small_job(2, context_gib=0.5, libraries_gib=0.25, nccl_gib=1.5, fragmentation=0.125)))
    for name, gib in (("CUDA context", 0.5), ("CUDA libraries and kernels", 0.25), ("NCCL communicators", 1.5)):
        assert (found[name].low, found[name].high) == (gib * GIB, gib * GIB)
    stage = estimate(small_job(2, fragmentation=0.125)).stages[0]
    assert found["fragmentation"].low == found["fragmentation"].high == stage.peak_allocated_bytes // 8


def test_a_context_takes_what_was_measured() -> None:
    """274 MiB to 1010 MiB for the context with its libraries (pytorch PR 86509, nccl issue 1685); graphs 1347 (Megatron-LM PR 6479)."""
    found = terms(estimate(small_job(1, gpu="H100", cuda_graph_impl="full_iteration")))
    context, libraries = found["CUDA context"], found["CUDA libraries and kernels"]
    assert 274 * MIB <= context.low <= 426 * MIB and 0 <= libraries.low < 274 * MIB
    assert context.high + libraries.high >= 1010 * MIB and context.high <= 1.5 * 1010 * MIB
    assert (
        found["CUDA graph executables"].low == 0 and 1347 * MIB <= found["CUDA graph executables"].high < 2 * 1347 * MIB
    )


def test_verdicts() -> None:
    """The device range, its high end with expandable segments, the memory: at the border it fits."""
    assert judged(Range(10, 10), 10, 10) == "fits"
    assert judged(Range(10, 11), 11, 10) == "tight"
    assert judged(Range(10, 11), 10, 10) == "fits only without fragmentation"
    assert judged(Range(11, 11), 11, 10) == "does not fit"
    assert judged(Range(11, 12), 11, 10) == "does not fit"


def test_the_ranges_are_sums_of_terms() -> None:
    found = estimate(moe_job(8, expert_model_parallel_size=8, gpu="H100"))
    stage = found.stages[0]
    named = terms(found)
    slack = named.pop("fragmentation")
    assert (slack.low, stage.reserved.low) == (0, stage.peak_allocated_bytes)
    assert stage.reserved.high == stage.peak_allocated_bytes + slack.high
    training = stage.phase_ranges["training"]
    assert training.low - stage.reserved.low == sum(term.low for term in named.values()) > 0
    assert training.high - stage.reserved.high == sum(term.high for term in named.values())


@pytest.mark.parametrize("padded", [False, True])
def test_expandable_segments_reserve_what_public_runs_did(padded: bool) -> None:
    """The most of the public pairs with room to spare, to a point; what is surely enough counts only what the rules leave unused."""
    capacity: dict[str, Any] = (
        {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True} if padded else {}
    )
    found = estimate(moe_job(8, expert_model_parallel_size=8, gpu="H100", expandable_segments=True, **capacity))
    stage = found.stages[0]
    shares = [
        one["reserved"] / one["allocated"] - 1
        for one in records("reserved_pairs.json")
        if (one["family"] == "padded") is padded
    ]
    ours = terms(found)["fragmentation"].high / stage.peak_allocated_bytes
    assert max(shares) <= ours + 1e-6 < max(shares) + 0.01
    outside = sum(term.high for name, term in terms(found).items() if name != "fragmentation")
    left = stage.phase_ranges["training"].high - outside - stage.peak_allocated_bytes
    assert 0 < left <= 0.03 * stage.peak_allocated_bytes


@pytest.mark.parametrize(("dropless", "of_peak", "of_freed"), [(False, 0.1, 0.29), (True, 0.16, 0.6)])
def test_the_default_allocator_leaves_the_smaller_share(dropless: bool, of_peak: float, of_freed: float) -> None:
    """Of the peak, or of what is freed at some time: what is no state, and the parameters' own storage.

    docs/explanation/device_memory.md has the shares.
    """
    found = estimate(moe_job(8, gpu="H100") if dropless else small_job(8, gpu="H100"))
    stage = found.stages[0]
    state = sum(s.nbytes for s in stage.rank.states if s.since in ("setup", "first step"))
    freed = stage.peak_allocated_bytes - state + own_storage(stage.rank)
    expected = int(min(of_peak * stage.peak_allocated_bytes, of_freed * freed))
    assert terms(found)["fragmentation"].high == expected
    outside = sum(term.high for name, term in terms(found).items() if name != "fragmentation")
    assert stage.phase_ranges["training"].high == stage.peak_allocated_bytes + expected + outside


@pytest.mark.parametrize(("expandable", "more"), [(False, 1.1), (True, 1.005)])
def test_building_may_reserve_more_than_training(expandable: bool, more: float) -> None:
    """64 ranks share the optimizer's state: 8 bytes of a parameter while the model is built, 6 and little more afterwards."""
    settings: dict[str, Any] = {
        "use_distributed_optimizer": True,
        "seq_length": 64,
        "expandable_segments": expandable,
        "gpu": "H100",
    }
    stage = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 64, **settings)).stages[0]
    built = 8 * stage.rank.buffers[0].numel
    assert stage.peak_allocated_bytes < built
    assert (stage.reserved.low, stage.reserved.high) == (built, int(more * built))
