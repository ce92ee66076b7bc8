"""Rates of a step, worked by hand on a machine of round numbers: GEMMs, attention, collectives, dispatch, sends between stages."""

from __future__ import annotations

import dataclasses
from math import log2, sqrt
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.hardware import CATALOGUE as GPUS
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.ops import Op
from megatron_memory_estimator.tape.work import Gemm, Send, Streamed
from megatron_memory_estimator.throughput import stages, step
from megatron_memory_estimator.throughput.calibrate import Measured, left_out
from megatron_memory_estimator.throughput.kernels import (
    FEW_ROWS,
    LAUNCH,
    attention_rate,
    crowding,
    gemm,
    gemm_rate,
    grouped,
    operand_bytes,
)
from megatron_memory_estimator.throughput.links import (
    ACROSS,
    DISPATCH_ACROSS,
    NETWORK_SHARE,
    between,
    bus,
    collective,
    dispatch,
    within,
)
from megatron_memory_estimator.throughput.machine import MESSAGES, SEQUENCES, UNMEASURED, Efficiency, Machine, machine
from megatron_memory_estimator.throughput.stages import COPY_SHARE, P2P_EXPOSED, p2p, recomputed_share
from megatron_memory_estimator.throughput.step import offloaded_seconds, optimizer
from megatron_memory_estimator.throughput.units import (
    RING_EXPOSED,
    Cost,
    Costs,
    Passed,
    _Walk,
    backward,
    forward,
    transfer,
)

from .helpers import small_job
from .test_kinds import job as kimi

ALL = Efficiency(gemm=0.5, grouped=0.4, attention=0.5, hbm=1.0, expert_link=0.5)
DENSE = {"bfloat16": (800e12, 10e12, 5e-6), "fp8": (1000e12, 12e12, 6e-6), "fp8_block": (1400e12, 11e12, 7e-6)}
HEADS = {
    "bfloat16_d64": (1e12, 2e12, 3e12, 4e12, 5e12),
    "bfloat16_d128": (2e12, 4e12, 6e12, 8e12, 10e12),
}


def round_machine(**parts: Any) -> Machine:
    """An H100 whose measured rates are round; its network has 50 GB/s, its NVLink domain 8 GPUs."""
    found = machine(find_gpu("H100"), ALL, network=50.0)
    return dataclasses.replace(found, **{"gemm": DENSE, "attention": HEADS, **parts})


def test_rates_of_dense_gemms_by_recipe() -> None:
    """Low precision reaches 0.95 of its rate; nvfp4 3.5 of bf16's; one scale per tensor no less than 0.85 of block scales."""
    m = round_machine()
    assert gemm_rate(m, "mxfp8") == (1400e12 * 0.95 * 0.5, 11e12, 7e-6)
    assert gemm_rate(m, "tensorwise") == pytest.approx((0.85 * 1400e12 * 0.95 * 0.5, 12e12, 8e-6))
    assert gemm_rate(m, "nvfp4") == pytest.approx((3.5 * 800e12 * 0.95 * 0.5, 10e12, 9e-6))
    alone = round_machine(gemm={"bfloat16": DENSE["bfloat16"], "fp8": DENSE["fp8"]})
    assert gemm_rate(alone, "tensorwise") == pytest.approx((1000e12 * 0.95 * 0.5, 12e12, 8e-6))
    assert gemm_rate(m, "") == (800e12 * m.sustained, 10e12, 5e-6)
    assert (operand_bytes(""), operand_bytes("mxfp8"), operand_bytes("nvfp4")) == (2, 1, 0.5)
    rate = 800e12 * m.sustained
    assert gemm(m, 64, 32, 16) == pytest.approx(
        2 * 64 * 32 * 16 / rate + ((64 + 32) * 16 * 2 + 2 * 64 * 32) / 10e12 + 5e-6
    )


def test_a_grouped_gemm_moves_every_expert_s_weights_and_every_row_once() -> None:
    m = round_machine()
    one = Gemm(rows=4096.0, n=512, k=256, experts=8)
    rate = 800e12 * m.sustained * 0.4 / 0.5
    few = 1 + FEW_ROWS * 8 / 4096
    moved = 8 * 512 * 256 * 2 + 4096 * (256 * 2 + 512 * 2)
    assert grouped(m, one) == pytest.approx(2 * 4096 * 512 * 256 * few / rate + moved / m.hbm + LAUNCH)


@pytest.mark.parametrize(
    ("sequence", "dim", "expected"),
    [
        (1024, 64, 1.0), (1024, 128, 2.0), (1024, 96, 1.5), (16384, 128, 10.0), (2048 * sqrt(2), 128, 5.0),
        (512, 64, 1.0), (32768, 128, 10.0), (1024, 32, 1.0), (1024, 256, 2.0),
    ],
)  # fmt: skip
def test_rates_of_attention_lie_between_the_measured_ones(sequence: float, dim: int, expected: float) -> None:
    """By the logarithm of the length, in proportion to the head dim, and no further than the ends."""
    assert SEQUENCES[0] == 1024 and SEQUENCES[-1] == 16384
    assert attention_rate(round_machine(), sequence, dim, dim, fp8=False) == pytest.approx(expected * 1e12 * 0.5)


def test_fp8_attention_has_its_own_rates_where_they_are_measured() -> None:
    both = round_machine(attention={**HEADS, "fp8_d128": (20e12,) * 5})
    assert attention_rate(both, 1024, 128, 128, fp8=True) == 20e12 * 0.5
    assert attention_rate(both, 1024, 128, 128, fp8=False) == 2e12 * 0.5
    assert attention_rate(round_machine(), 1024, 128, 128, fp8=True) == 2e12 * 0.5


def test_few_heads_reach_a_share_of_the_rate() -> None:
    """SimuMax, B200: 0.19 and 0.45 at 4 heads of 4,096 tokens, 0.36 and 0.85 at 8, all at 64; between them by the logarithm."""
    assert crowding(4.0) == crowding(1.0) == (0.19, 0.45)
    assert crowding(8.0) == pytest.approx((0.36, 0.85)) and crowding(32.0) == pytest.approx((0.84, 1.0))
    assert crowding(16.0) == pytest.approx((0.66, 0.97)) and crowding(12.0)[0] == pytest.approx(0.36 + log2(1.5) * 0.3)
    share = log2(6 / 4)
    assert crowding(6.0) == pytest.approx((0.19 + share * 0.17, 0.45 + share * 0.4))
    assert crowding(64.0) == pytest.approx((1.0, 1.0)) and crowding(500.0) == (1.0, 1.0)
    works = [1.0, 4.0, 5.0, 9.0, 24.0, 33.0, 50.0, 64.0, 100.0]
    arrays = crowding(np.array(works))
    assert [tuple(pair) for pair in zip(*arrays, strict=True)] == [pytest.approx(crowding(work)) for work in works]


def test_a_line_through_points_goes_on_behind_the_last() -> None:
    xs, ys = (0.0, 10.0, 30.0), (1.0, 2.0, 8.0)
    expected = {0.0: 1.0, 5.0: 1.5, 10.0: 2.0, 20.0: 5.0, 30.0: 8.0, 40.0: 11.0}
    assert {x: between(x, xs, ys) for x in expected} == pytest.approx(expected)
    assert list(between(np.array([*expected]), xs, ys)) == pytest.approx([*expected.values()])


def test_a_group_of_one_sends_nothing_and_one_across_domains_goes_over_the_network() -> None:
    """8 GPUs a domain: 16 ranks side by side send over 8 links of 50 GB/s at 0.85, and wait 6.3 us for each rank."""
    links = {op: {8: tuple(1e-6 + size / 1e12 for size in MESSAGES)} for op in ("all_gather", "alltoall")}
    m = round_machine(collectives=links)
    size = 64e6
    assert collective(m, "all_gather", size, 1, 1) == 0
    assert collective(m, "all_gather", size, 16, 1) == pytest.approx(
        15 / 16 * (ACROSS * 16 + size / (8 * 50e9 * NETWORK_SHARE))
    )
    assert collective(m, "all_gather", size, 8, 1) == pytest.approx(1e-6 + size / 1e12)
    assert collective(m, "all_gather", size, 2, 8) == pytest.approx(
        1 / 2 * (ACROSS * 2 + size / (50e9 * NETWORK_SHARE))
    )


def test_a_dispatch_across_domains_takes_what_leaves_the_domain() -> None:
    links = {"alltoall": {8: tuple(1e-6 + size / 1e12 for size in MESSAGES)}}
    m = round_machine(collectives=links)
    size = 64e6
    near = Send("alltoall", "ep", 8, 1, size)
    assert dispatch(m, near) == pytest.approx(collective(m, "alltoall", size, 8, 1) / 0.5)
    far = dispatch(m, near._replace(ranks=32))
    assert far == pytest.approx(DISPATCH_ACROSS + size * 3 / 4 / (50e9 * NETWORK_SHARE * 0.5))


def test_sends_between_stages_are_hidden_but_for_a_share_where_chunks_are_interleaved() -> None:
    m = round_machine()

    def seconds(chunks: int, **settings: Any) -> Any:
        job = small_job(8, pipeline_model_parallel_size=2, **settings)
        c = context_of(job)
        size = c.residual("").nbytes
        return p2p(m, c, chunks) / (2 * size / (m.speed.nvlink * COPY_SHARE * 1e9))

    assert seconds(1) == pytest.approx(1.0)
    assert seconds(2) == pytest.approx(2 * P2P_EXPOSED)
    assert seconds(2, overlap_p2p_comm=False) == pytest.approx(2.0)
    assert p2p(m, context_of(small_job(8)), 1) == 0


@pytest.mark.parametrize(
    ("settings", "layers", "share"),
    [
        ({}, 4, 0.0),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, 4, 1.0),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}, 4, 0.25),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}, 1, 1.0),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4}, 2, 1.0),
    ],
)
def test_the_share_of_layers_that_full_recomputation_runs_again(
    settings: dict[str, Any], layers: int, share: float
) -> None:
    assert recomputed_share(context_of(small_job(8, **settings)), layers) == share


def test_a_long_sequence_has_the_rate_of_the_longest_measured_one() -> None:
    bent = round_machine(attention={"bfloat16_d128": (2e12, 4e12, 6e12, 9e12, 10e12)})
    for sequence, expected in ((SEQUENCES[-1], 10e12), (2 * SEQUENCES[-1], 10e12), (SEQUENCES[-2], 9e12), (1, 2e12)):
        found = attention_rate(bent, sequence, 128, 128, fp8=False)
        assert found == pytest.approx(expected * ALL.attention)


def test_a_large_collective_runs_at_the_bandwidth_of_the_largest_measured_one() -> None:
    """8 ranks that send 7/8 of a buffer each in 1e12 bytes a second."""
    links = {"all_gather": {2: (1.0,) * 6, 8: tuple(1e-6 + size / 1e12 for size in MESSAGES)}}
    assert bus(round_machine(collectives=links), "all_gather") == pytest.approx(7 / 8 * 1e12)


def test_a_ring_hides_behind_the_attention_of_the_other_ranks() -> None:
    """Of four ranks the attention of three is beside the passes of keys and values."""
    links = {"all_gather": {4: tuple(size / 1e12 for size in MESSAGES)}}
    m, c = round_machine(collectives=links), context_of(small_job(8))
    one = Send("ring", "cp", 4, 1, 64e6)
    whole = transfer(m, c, one, 0.0)
    assert transfer(m, c, one, whole) == pytest.approx(whole / 4)
    assert transfer(m, c, one, 100 * whole) == pytest.approx(RING_EXPOSED * whole)


def test_what_streams_matrices_multiplies_twice_as_much_in_the_backward() -> None:
    m, c = round_machine(), context_of(small_job(8))
    none, some = (Op("scan", work=(Streamed(flops, forward=8, backward=8),)) for flops in (0, 10**15))
    ahead, behind = (
        [forward(m, c, op).compute for op in (none, some)],
        [backward(m, c, op, set(), set()).compute for op in (none, some)],
    )
    assert behind[1] - behind[0] == pytest.approx(2 * (ahead[1] - ahead[0]))
    half = some._replace(work=(Streamed(0, forward=10**12),), filled=0.5)
    full = half._replace(filled=1.0)
    start = forward(m, c, full._replace(work=(Streamed(0, forward=1),))).compute
    assert forward(m, c, half).compute - start == pytest.approx((forward(m, c, full).compute - start) / 2)


def test_weight_shards_are_gathered_in_both_ways_and_their_gradients_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-bit weights twice, those of the embedding once; gradients in the dtype of their buffer, those of embedding and head in 16 bits.
    What is sent is hidden under 0.85 of the compute, and a twentieth of it shows. Here a byte takes a second."""
    sent: list[tuple[str, float]] = []

    def collective(m: Machine, op: str, nbytes: float, ranks: int, stride: int) -> float:
        sent.append((op, nbytes))
        return nbytes

    monkeypatch.setattr(stages, "collective", collective)
    shards = {"tensor_parallel_num_weight_shards": 4, "gradient_accumulation_fusion": True}
    found = estimate(small_job(8, use_distributed_optimizer=True, overlap_grad_reduce=True, **shards))
    (plan,) = found.stages[0].rank.plans
    ahead, behind = stages.shard_seconds(machine(found.job.gpu), found.declarer, plan)
    gathers, sums = ([nbytes for op, nbytes in sent if op == kind] for kind in ("all_gather", "reduce_scatter"))
    table, *others, head = gathers
    assert table == head == 2 * 32_000 * 1024 and sums == [table, *(2 * nbytes for nbytes in others), head]
    assert ahead == pytest.approx(sum(gathers)) and behind == pytest.approx(sum(sums) + sum(gathers) - table)
    assert stages.shown(10.0, 10.0) == pytest.approx(1.5) and stages.shown(1.0, 10.0) == pytest.approx(0.05)


def test_a_gradient_is_summed_in_fp32_and_a_weight_gathered_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, float] = {}
    monkeypatch.setattr(step, "collective", lambda m, op, nbytes, ranks, stride: sent.update({op: nbytes}) or 1.0)
    for distributed in (True, False):
        rank = estimate(small_job(8, use_distributed_optimizer=distributed)).stages[0].rank
        (buffer,) = rank.buffers
        empty = dataclasses.replace(rank, buffers=(buffer._replace(elements=0),))
        assert step.collectives(round_machine(), empty.context, empty) == (0.0, 0.0)
        assert step.collectives(round_machine(), rank.context, rank) == (1.0, 1.0 if distributed else 0.0)
    elements = buffer.elements
    assert sent == {"reduce_scatter": 4 * elements, "all_gather": 2 * elements, "all_reduce": 4 * elements}


def test_the_bank_of_attention_residuals_goes_from_stage_to_stage() -> None:
    """Blocks of two layers, one layer a stage: 0, 1, 1, 2 and 2 rows stand before the five borders, and the hidden state beside them."""
    found = estimate(
        kimi("k3_mla", pipeline_model_parallel_size=4, tensor_model_parallel_size=1, sequence_parallel=False)
    )
    carried = [stages.carried(stage.rank.context, stage.rank) for stage in found.stages]
    assert carried == [1 + (0 + 1) / 2, 1 + (1 + 1) / 2, 1 + (1 + 2) / 2, 1 + (2 + 2) / 2]


def test_full_sharding_shows_no_gather_of_its_own_behind_the_step() -> None:
    sharded = estimate(small_job(8, use_megatron_fsdp=True, gradient_accumulation_fusion=False)).declarer.context
    assert step.exposed(sharded, 10.0, 7.0, 5.0, 5.0) == pytest.approx((1.5, 0.0))


def test_a_checkpoint_that_covers_half_of_the_layers_launches_half_of_them_again() -> None:
    one = Passed(forward=Cost(8.0), host=4.0, host_backward=3.0, checkpoint=2.0)
    half = stages._full(one, 0.5)
    assert (half.recompute, half.host_backward) == (4.0, 6.0)


def test_a_graph_of_layers_is_launched_once_and_one_of_the_iteration_not_at_all() -> None:
    ops = (Op("a", part="qkv_linear", calls=3), Op("b", part="core_attn", calls=3), Op("c", part="mlp", calls=3))
    graphed = context_of(small_job(8, cuda_graph_impl="transformer_engine", cuda_graph_modules=("attn",)))
    assert list(_Walk(round_machine(), graphed, Costs({}, {})).calls(ops)) == [1, 0, 3]
    whole = context_of(small_job(8, cuda_graph_impl="full_iteration"))
    assert _Walk(round_machine(), whole, Costs({}, {})).launched(ops) == 0


def test_what_gets_no_gradient_hands_none_on() -> None:
    """Indices, and what an op stops at."""
    c = context_of(small_job(8))
    x, index, stopped, y = (
        c.new(name, c.seq, dtype=dtype) for name, dtype in (("x", "fp32"), ("i", "int64"), ("s", "fp32"), ("y", "fp32"))
    )
    op = Op("gather", (x, index, stopped), (y,), stops=(stopped,))
    assert _Walk(round_machine(), c, Costs({}, {}))._backward(op, {"y"}, set()).gives == ("x",)


def test_a_fitted_run_is_judged_by_the_runs_of_other_groups_alone() -> None:
    runs = [
        Measured(name, family, estimate(small_job(8)), 1.0) for name, family in (("b", "b"), ("a", "a"), ("c", "b"))
    ]

    def wrong(some: Any, efficiency: Any = None) -> list[float]:
        return [float(len(some)) for _ in some]

    assert left_out(runs, lambda run: run.family, wrong) == [2.0, 1.0, 2.0]


def test_a_gpu_that_nobody_measured_has_shares_of_its_data_sheet() -> None:
    """RTX 4090: 165 TFLOP/s of bf16 with fp32 accumulation, 1,008 GB/s: 0.8 of the peak for GEMMs, 0.5 for attention."""
    m = machine(find_gpu("RTX-4090"), ALL)
    assert not m.measured
    assert m.gemm["bfloat16"] == pytest.approx((0.8 * m.speed.bf16 * 1e12, 3 * m.speed.hbm * 1e9, 5e-6), rel=1e-12)
    assert m.attention["bfloat16_d128"] == pytest.approx((0.5 * m.speed.bf16 * 1e12,) * 5, rel=1e-12)
    assert within(m, "all_gather", 0.0, 1 << 20) >= 20e-6 * 0.5
    assert (m.peak(""), m.peak("mxfp8"), m.peak("nvfp4")) == (
        m.speed.bf16 * 1e12,
        m.speed.fp8 * 1e12,
        m.speed.fp4 * 1e12,
    )


def test_a_dispatcher_of_a_gpu_that_nobody_measured_is_that_of_the_judgement() -> None:
    """20 us and 180 GB/s beside the NVLink of the data sheet."""
    gpu = next(gpu for gpu in GPUS if not gpu.chip_unknown and not machine(gpu).measured)
    assert machine(gpu).dispatch == pytest.approx(
        (UNMEASURED.launch * 1e-6, UNMEASURED.dispatch * 1e9, gpu.speed.nvlink * 1e9)
    )


def test_an_optimizer_step_passes_through_memory() -> None:
    """A parameter of Adam on one rank: 12 bytes read and written, its fp32 gradient four times for what is owned and three times for the
    buffer, its 16-bit weight once: 24 + 16 + 2 + 12 bytes."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-0.6B", num_gpus=1, tp=1, seq_length=1024))
    rank, m = found.stages[0].rank, machine(find_gpu("H100"))
    padded = sum(buffer.numel for buffer in rank.buffers)
    assert optimizer(m, context_of(found.job), rank) * m.hbm == pytest.approx(54 * padded, rel=1e-3)


def test_an_offloaded_step_crosses_the_link_and_passes_through_the_host() -> None:
    """8 bytes of a parameter at 84 % of PCIe 5, and 28 bytes of host memory at 12 GB/s of one core."""
    settings: dict[str, Any] = {"num_gpus": 1, "seq_length": 1024, "optimizer_cpu_offload": True}
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-0.6B", use_precision_aware_optimizer=True, **settings))
    rank = found.stages[0].rank
    count = sum(buffer.offloaded for buffer in rank.buffers)
    each = 8 / (0.84 * 64e9) + 28 / 12e9
    assert count > 0
    assert offloaded_seconds(machine(find_gpu("H100")), rank) == pytest.approx(count * each)
