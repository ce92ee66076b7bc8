"""The throughput model: published FLOPs, measured rates, properties of times. docs/explanation/throughput.md holds every row."""

from __future__ import annotations

import dataclasses
import json
from itertools import combinations, product
from statistics import median
from typing import Any, get_args

import numpy as np
import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.hardware import GPUS, MIB, Family, Host, find_gpu
from megatron_memory_estimator.job.training_job import with_settings
from megatron_memory_estimator.modules.context_parallel import NAME as CORE
from megatron_memory_estimator.modules.layers import embedding_unit, layer_unit
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.work import Attention, Send, Streamed
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.calibrate import Measured, calibrate, errors
from megatron_memory_estimator.throughput.certainty import DENSE, FIXED, FORCED, ROUTED, SPARSE, Likely, likely, untimed
from megatron_memory_estimator.throughput.kernels import attention_rate
from megatron_memory_estimator.throughput.links import collective, copies, dispatch
from megatron_memory_estimator.throughput.machine import Efficiency, machine
from megatron_memory_estimator.throughput.step import collectives, training_flops
from megatron_memory_estimator.throughput.units import backward, forward, until_waited

from .helpers import FACTS, moe_job, small_job

# Megatron-Bridge's printed TFLOP/s over its tokens/s (src/megatron/bridge/training/utils/flop_utils.py)
PUBLISHED_TFLOP_PER_TOKEN = [
    ("deepseek-ai/DeepSeek-V3", 4096, 0.2600), ("Qwen/Qwen3-235B-A22B", 4096, 0.1480), ("Qwen/Qwen3-30B-A3B", 4096, 0.02301),
    ("meta-llama/Meta-Llama-3-70B", 8192, 0.4492), ("meta-llama/Meta-Llama-3-8B", 8192, 0.05147), ("Qwen/Qwen3-8B", 4096, 0.04903),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seq_length", "expected"), PUBLISHED_TFLOP_PER_TOKEN)
def test_model_flops(name: str, seq_length: int, expected: float) -> None:
    job = TrainingJob.from_hf(name, 1, seq_length=seq_length)
    assert training_flops(job.model, job.training) / 1e12 == pytest.approx(expected, rel=5e-4)


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTS / name).read_text().splitlines()]


def measured(one: dict[str, Any], **settings: Any) -> Measured:
    job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], **one.get("settings", {}), **settings)
    return Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"])


@pytest.fixture(scope="module")
def runs() -> list[Measured]:
    """Verified cards, the newest table, SimuMax: the runs that were looked at when constants were set."""
    return [measured(one, transformer_engine_version="2.17") for one in records("throughput.jsonl") if one["primary"]]


def spread(runs: list[Measured]) -> tuple[int, float, float]:
    """(runs, median error, share within 25 %)."""
    found = [abs(error) for error in errors(runs)]
    return len(found), median(found), sum(error <= 0.25 for error in found) / len(found)


def test_rates_that_were_looked_at(runs: list[Measured]) -> None:
    """No check of a prediction: some constants were set after looking at these (docs/explanation/throughput.md marks them)."""
    count, middle, within = spread(runs)
    assert count == 55
    assert middle <= 0.05
    assert within >= 0.96


def test_rates_that_no_constant_was_set_on() -> None:
    """Other recipes of the same families: seen while the model was written, joined with settings of a later release."""
    others = [
        measured(one, transformer_engine_version="2.17") for one in records("throughput.jsonl") if not one["primary"]
    ]
    count, middle, within = spread(others)
    assert count == 26
    assert middle <= 0.095
    assert within >= 0.96


def test_rates_that_were_not_looked_at() -> None:
    """arXiv 2205.05198: other models, GPU and years, scored when every constant stood. Selective recomputation is faster each time."""
    papers = [measured(one) for one in records("throughput_papers.jsonl")]
    count, middle, within = spread(papers)
    assert count == 6
    assert middle <= 0.12
    assert within == 1
    rate = {run.id: error for run, error in zip(papers, errors(papers), strict=True)}
    for model in ("175b", "530b", "1t"):
        full, selective = (f"paper-2205-05198-{model}-{way}" for way in ("full", "selective"))
        seen = {run.id: run.tokens_per_s_gpu for run in papers}
        ratio = (1 + rate[selective]) / (1 + rate[full])  # of predicted over measured gains
        assert seen[selective] > seen[full]
        assert ratio == pytest.approx(1, abs=0.1)


SLOW_RELEASE = "doc-26-06-01-gpt-oss-120b-pretrain-64-gb200"


def test_ranges_are_those_of_published_rates() -> None:
    """Measured over predicted, the least and the most of every kind of runs, but of one release that was slower than its neighbours."""
    found: dict[Likely, list[float]] = {}
    lines = [(one, {"transformer_engine_version": "2.17"}) for one in records("throughput.jsonl")]
    lines += [(one, {}) for one in records("throughput_papers.jsonl")]
    runs = [measured(one, **settings) for one, settings in lines if not one["id"].startswith(SLOW_RELEASE)]
    for run, error in zip(runs, errors(runs), strict=True):
        found.setdefault(likely(run.estimate.job), []).append(1 / (1 + error))
    assert found.keys() == {DENSE, FIXED, FORCED, ROUTED}
    for kind, shares in found.items():
        assert (min(shares), max(shares)) == pytest.approx((kind.low, kind.high), abs=0.015), kind.of


def test_sparse_attention_is_slower_than_its_kernels() -> None:
    """GLM-5.2 on H100: no run reached its prediction; without deterministic kernels all are in the range that is said."""
    for one in records("throughput_sparse.jsonl"):
        job = TrainingJob.from_hf(one["model"], one["num_gpus"], gpu=one["gpu"], **one["settings"])
        (error,) = errors([Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"])])
        share = 1 / (1 + error)
        if job.training.deterministic_mode:
            assert share == pytest.approx(0.365, abs=0.01)
            assert "several times slower" in untimed(job)
        else:
            assert SPARSE.low - 0.005 <= share <= 0.57
            assert likely(job) == SPARSE


def test_deterministic_kernels_widen_a_range() -> None:
    plain = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
    exact = with_settings(plain, {"deterministic_mode": True, "cross_entropy_loss_fusion": False})
    assert likely(exact)[:2] == pytest.approx((DENSE.low / 1.15, DENSE.high / 1.04))
    assert not untimed(exact)
    assert "several times slower" in untimed(
        TrainingJob.from_hf("Qwen/Qwen3-Next-80B-A3B-Instruct", 8, deterministic_mode=True)
    )


def test_calibration_improves_what_it_is_fitted_to(runs: list[Measured]) -> None:
    some = [run for run in runs if run.family == "llama3_70b"]
    found = calibrate(some)
    assert found.after < found.before
    assert all(0.6 < factor < 1.7 for factor in found.factors.values())


def test_one_run_moves_the_level_alone(runs: list[Measured]) -> None:
    """All efficiencies by one multiplier, and the run is met."""
    one = next(run for run in runs if run.family == "llama3_70b")
    found = calibrate([one])
    assert len(set(found.factors.values())) == 1 and found.factors["gemm"] != 1
    assert found.after < 0.01 < found.before


def rate(**settings: Any) -> Any:
    return throughput(
        estimate(small_job(8, **{"gpu": "H100", "seq_length": 4096, "global_batch_size": 64, **settings}))
    )


def test_the_parts_are_the_step() -> None:
    found = rate(pipeline_model_parallel_size=2, tensor_model_parallel_size=2, sequence_parallel=True)
    assert sum(found.parts.values()) == pytest.approx(found.step)
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert found.tokens_per_s_gpu == pytest.approx(64 * 4096 / found.step / 8)


def test_the_bubble_is_that_of_the_schedule() -> None:
    """Equal stages without exposed communication: (pp - 1) / (vp * microbatches) of the pipeline."""
    one = rate(pipeline_model_parallel_size=2, global_batch_size=32)
    more = rate(pipeline_model_parallel_size=2, global_batch_size=64)
    assert more.parts["bubble"] == pytest.approx(one.parts["bubble"])
    assert more.bubble < one.bubble
    interleaved = rate(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, global_batch_size=32)
    assert interleaved.parts["bubble"] < 0.6 * one.parts["bubble"]


@pytest.mark.parametrize(
    ("slower", "part"),
    [
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, "recompute"),
        ({"recompute_granularity": "selective", "recompute_modules": ("mlp",)}, "recompute"),
        ({"tensor_model_parallel_size": 4, "sequence_parallel": True}, "tp"),
        ({"context_parallel_size": 4, "cp_comm_type": ("a2a",)}, "cp"),
    ],
)
def test_a_setting_costs_its_part(slower: dict[str, Any], part: str) -> None:
    assert rate().parts[part] == 0
    assert rate(**slower).parts[part] > 0


@pytest.mark.parametrize(
    ("hidden", "part"),
    [
        ({"tp_comm_overlap": True}, "tp"),
        ({"overlap_grad_reduce": True}, "gradient reduction"),
        ({"overlap_grad_reduce": True, "overlap_param_gather": True}, "parameter gather"),
    ],
)
def test_overlap_hides_communication(hidden: dict[str, Any], part: str) -> None:
    base: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
    }
    assert rate(**base, **hidden).parts[part] < rate(**base).parts[part]


def test_two_moments_are_read_and_written_in_the_step() -> None:
    """Adam beside SGD without momentum: two fp32 moments of every parameter are read and written, 16 bytes, at the rate of HBM."""
    adam, sgd = (
        estimate(small_job(1, gpu="H100", optimizer=name, sgd_momentum=0.0, global_batch_size=8))
        for name in ("adam", "sgd")
    )
    more = throughput(adam).parts["optimizer"] - throughput(sgd).parts["optimizer"]
    assert more * machine(adam.job.gpu).hbm == pytest.approx(16 * sum(adam.stages[0].num_parameters))


def test_experts_communicate_and_launch() -> None:
    settings: dict[str, Any] = {"gpu": "H100", "seq_length": 4096, "global_batch_size": 64}
    alone = throughput(estimate(moe_job(8, **settings)))
    spread = throughput(estimate(moe_job(8, **settings, expert_model_parallel_size=8)))
    assert alone.parts["ep"] == 0 < spread.parts["ep"]
    graph = throughput(estimate(moe_job(8, **settings, expert_model_parallel_size=8, cuda_graph_impl="full_iteration")))
    assert graph.parts["host"] == 0 < spread.parts["host"]


@pytest.mark.parametrize(
    ("kernels", "seconds"),
    [((5, 0.1, 0.1), 6.2), ((0.1, 0.1, 5), 8), ((0.1, 0.1, 0.1), 3.1), ((2, 2, 2), 7)],
)
def test_launches_add_behind_a_wait(kernels: tuple[float, ...], seconds: float) -> None:
    """Three launches of a second each: a long kernel first hides the others, a long one last is launched at 3; nothing hides the first."""
    assert until_waited([(1, kernel) for kernel in kernels]) == pytest.approx(seconds)


def test_the_host_waits_for_counts_of_rows() -> None:
    """Large kernels: rows that are padded to a capacity are known, so the launches hide; unknown, those behind the wait show."""
    settings: dict[str, Any] = {
        "gpu": "H100", "seq_length": 4096, "micro_batch_size": 8, "global_batch_size": 64, "expert_model_parallel_size": 8,
        "routing_phase": "forced_balance",
    }  # fmt: skip
    known: dict[str, Any] = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    waits, hidden = (
        throughput(estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, **settings, **more))).parts
        for more in (dict[str, Any](), known)
    )
    assert hidden["host"] < waits["host"]


def test_every_expert_of_a_rank_is_launched() -> None:
    """64 experts on a rank launch 0.3 of a call each in fc1 and fc2; as one grouped tensor they are one call."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 2, expert_model_parallel_size=2)
    for one, calls in ((job, 1 + 0.3 * 64), (with_settings(job, {"moe_use_grouped_tensor": True}), 1)):
        unit = layer_unit(context_of(one), one.model.kinds[0]).unit
        found = {op.name: op.calls for op in flattened(unit.items)}
        assert found["mlp.experts.linear_fc1"] == found["mlp.experts.linear_fc2"] == pytest.approx(calls)


def test_overlap_of_the_dispatch_gains_what_it_hides() -> None:
    """DeepSeek-V3 on 256 GB200 with HybridEP: launches do not stand in the way of what overlap hides."""
    settings: dict[str, Any] = {
        "gpu": "GB200", "pipeline_model_parallel_size": 4, "pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL", "fp8": "e4m3",
        "expert_model_parallel_size": 64, "global_batch_size": 2048, "fp8_recipe": "mxfp8", "moe_router_fusion": True,
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep",
    }  # fmt: skip
    plain, hidden = (
        throughput(
            estimate(
                TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 256, overlap_moe_expert_parallel_comm=on, **settings)
            )
        )
        for on in (False, True)
    )
    assert hidden.parts["ep"] < 0.5 * plain.parts["ep"]
    assert 1.1 < plain.step / hidden.step < 1.35


def test_fused_routers_launch_less() -> None:
    """`moe_utils.py`: 12 functions and 10 of the balancing loss, or 3 and 5."""
    settings: dict[str, Any] = {
        "gpu": "H100",
        "moe_aux_loss_coeff": 0.01,
        "moe_router_load_balancing_type": ("aux_loss",),
    }

    def calls(*, fused: bool) -> int:
        c = context_of(moe_job(8, **settings, moe_router_fusion=fused))
        return sum(op.calls for op in flattened(layer_unit(c, c.model.kinds[-1]).unit.items))

    assert calls(fused=False) - calls(fused=True) == 12 + 10 - 3 - 5


def sends_of(job: TrainingJob, op: str) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """What an op of the first layer sends in its forward and in its backward."""
    c = context_of(job)
    one = next(one for one in flattened(layer_unit(c, c.model.kinds[0]).unit.items) if one.name == op)
    return [(s.kind, s.nbytes) for s in one.sends], [(s.kind, s.nbytes) for s in one.returns]


def test_a_ring_passes_keys_and_values_and_in_the_backward_their_gradients_too() -> None:
    """TransformerEngine `context_parallel.py`: kv of every rank goes round, in the backward with dkv. 1,024 tokens, 4 groups of 64."""
    whole = 1024 * 2 * 4 * 64 * 2
    assert sends_of(small_job(4, context_parallel_size=4), CORE) == ([("ring", whole)], [("ring", 2 * whole)])


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "all_reduce"),
        ({"sequence_parallel": True}, "reduce_scatter"),
        ({"sequence_parallel": True, "scatter_embedding_sequence_parallel": False}, "all_reduce"),
    ],
)
def test_the_embedding_is_summed_over_tensor_parallel_ranks(settings: dict[str, Any], kind: str) -> None:
    """Megatron-LM `language_model_embedding.py` (reduce_scatter_embeddings): 1,024 tokens of 1,024 in 16 bits, of which a rank of a
    sequence-parallel group gets its own."""
    c = context_of(small_job(2, tensor_model_parallel_size=2, **settings))
    (send,) = [send for op in flattened(embedding_unit(c, alone=True).unit.items) for send in op.sends]
    assert (send.kind, send.ranks, send.nbytes) == (kind, 2, 1024 * 1024 * 2)


def test_the_backward_of_the_delta_rule_reads_keys_six_times() -> None:
    """flash-linear-attention `fla/ops/gated_delta_rule/chunk.py` (chunk_gated_delta_rule_bwd): keys in recompute_w_u_fwd, fwd_h,
    bwd_dv_local, bwd_dhu, bwd_dqkwg and prepare_wy_repr_bwd; queries and the output's gradient in the middle three. One read of each is
    the op's own pass."""
    c = context_of(TrainingJob.from_hf("Qwen/Qwen3-Next-80B-A3B-Instruct", 8, seq_length=1024))
    op = next(one for one in flattened(layer_unit(c, "gdn+moe").unit.items) if one.name == "self_attention.delta_rule")
    (work,) = op.work
    assert isinstance(work, Streamed)
    of_heads = 1024 * 32 * 128 * 2  # 32 value heads of 128; queries, keys and the output are as wide
    assert work.backward == ((3 - 1) + (6 - 1) + (3 - 1)) * of_heads


# GB/s on the bus (stas00/ml-engineering network/README.md): GPU, operation, ranks, bytes
MEASURED_BUS = [
    ("B200", "all_reduce", 8, 64 * MIB, 401), ("B200", "all_reduce", 8, 256 * MIB, 646), ("B200", "all_reduce", 8, 1024 * MIB, 723),
    ("B200", "all_reduce", 32, 1 * MIB, 5.4), ("B200", "all_reduce", 32, 64 * MIB, 157), ("B200", "all_reduce", 32, 256 * MIB, 229),
    ("B200", "all_reduce", 32, 1024 * MIB, 362), ("H200", "all_reduce", 32, 4096 * MIB, 365),
    ("H200", "all_gather", 8, 16384 * MIB, 361), ("H200", "reduce_scatter", 8, 16384 * MIB, 363),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "op", "ranks", "size", "expected"), MEASURED_BUS)
def test_collectives_are_as_fast_as_measured(gpu: str, op: str, ranks: int, size: int, expected: float) -> None:
    """Measurements that no constant here was taken from; small and large messages, one host and four."""
    seconds = collective(machine(find_gpu(gpu)), op, size, ranks, 1)
    passes = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    assert size * passes / seconds / 1e9 == pytest.approx(expected, rel=0.2)


def test_a_collective_of_one_rank_takes_no_time_and_one_across_hosts_more() -> None:
    m = machine(find_gpu("H100"))
    assert collective(m, "all_gather", 256e6, 1, 1) == 0
    # one GPU of each of four hosts
    inside, across = (collective(m, "all_gather", 256e6, 4, stride) for stride in (1, 8))
    assert across > 5 * inside


def test_an_h800_is_an_h100_with_slower_nvlink() -> None:
    """Public data sheets: 400 GB/s both ways instead of 900."""
    h100, h800 = machine(find_gpu("H100")), machine(find_gpu("H800"))
    assert h100.gemm == h800.gemm and h100.attention == h800.attention and h800.measured
    large = 2.0**34
    ratio = collective(h800, "all_gather", large, 8, 1) / collective(h100, "all_gather", large, 8, 1)
    assert ratio == pytest.approx(450 / 200, rel=1e-3)


@pytest.mark.parametrize("gpu", ["B200", "B300", "GB200", "GB300"])
@pytest.mark.parametrize("dim", [160, 192, 224])
def test_attention_at_a_head_dim_between_measured_ones_is_as_fast(gpu: str, dim: int) -> None:
    m = machine(find_gpu(gpu))
    low, between, high = (attention_rate(m, 8192, width, width, fp8=False) for width in (128, dim, 256))
    assert low < between < high


@pytest.mark.parametrize(("ranks", "topk"), [(2, 1), (2, 4), (3, 3), (4, 2)])
def test_a_token_goes_to_a_rank_once(ranks: int, topk: int) -> None:
    """Counted over every choice of a rank by each of a token's experts: other ranks that are chosen at all."""
    choices = list(product(range(ranks), repeat=topk))
    assert copies(ranks, topk) == pytest.approx(sum(len({*chosen} - {0}) for chosen in choices) / len(choices))


@pytest.mark.parametrize(
    ("ranks", "topk", "taken", "groups"), [(4, 2, 1, 2), (2, 3, 2, 4), (4, 3, 2, 4), (8, 2, 2, 4), (2, 3, 3, 4)]
)
def test_experts_of_few_groups_are_on_few_ranks(ranks: int, topk: int, taken: int, groups: int) -> None:
    """Counted over every set of groups, and every choice of a rank in them: groups stand on the ranks in order."""
    places = [(group, part) for group in range(groups) for part in range(max(ranks // groups, 1))]
    rank_of = {place: at * ranks // len(places) for at, place in enumerate(places)}
    counted = []
    for some in combinations(range(groups), taken):
        within = [place for place in places if place[0] in some]
        counted += [len({rank_of[one] for one in chosen} - {0}) for chosen in product(within, repeat=topk)]
    assert copies(ranks, topk, (taken, groups)) == pytest.approx(sum(counted) / len(counted))
    assert copies(np.array([ranks, ranks]), topk, (taken, groups)) == pytest.approx(sum(counted) / len(counted))


# us of a bf16 combine of DeepEP on 24 SMs (ai-dynamo/aiconfigurator wideep_deepep_normal_perf): GPU, ranks, tokens of 7,168 to top-8
MEASURED_COMBINES = [
    ("H100", 8, 4096, 961), ("H200", 8, 4096, 979), ("B200", 8, 4096, 756), ("B300", 8, 4096, 745), ("GB200", 4, 4096, 597),
    ("GB300", 4, 4096, 585), ("GB200", 8, 16384, 2634), ("GB300", 8, 16384, 2588),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "ranks", "tokens", "expected"), MEASURED_COMBINES)
def test_a_combine_takes_as_long_as_measured(gpu: str, ranks: int, tokens: int, expected: float) -> None:
    """Numbers of tokens that no rate was taken from; eight ranks of a GB200 and a GB300 beside those of a B200 and a B300."""
    send = Send("dispatch", "ep", ranks, 1, 8 * tokens * 7168 * 2, copies=8)
    assert dispatch(machine(find_gpu(gpu)), send) * 1e6 == pytest.approx(expected, rel=0.07)


def test_node_limited_routing_sends_less() -> None:
    """DeepSeek-V3, 8 of 256 experts in 4 of 8 groups, on 64 ranks of 8 nodes: to 3.15 other nodes instead of 4.59."""
    assert copies(8, 8) == pytest.approx(7 * (1 - (7 / 8) ** 8)) == pytest.approx(4.595, abs=1e-3)
    assert copies(8, 8, (4, 8)) == pytest.approx(7 * 0.5 * (1 - (3 / 4) ** 8)) == pytest.approx(3.15, abs=1e-3)
    assert copies(8, 8, (1, 1)) == copies(8, 8)


def test_a_rate_exists_for_every_chip_beside_every_host() -> None:
    """A new GPU is one entry: any family and host that an entry may name."""
    for family, host in product(get_args(Family), get_args(Host)):
        gpu = dataclasses.replace(find_gpu("H100"), family=family, host=host)
        assert machine(gpu).sustained > 0


def test_parameters_and_gradients_are_sent_in_their_dtypes() -> None:
    """Rank 0 of a data-parallel run: twice the bytes in fp32, and half a byte in nvfp4 where fp8 has one."""

    def sent(**settings: Any) -> tuple[float, float]:
        made = estimate(small_job(8, gpu="B200", use_distributed_optimizer=True, **settings))
        rank = made.stages[0].rank
        return collectives(machine(made.job.gpu), rank.context, rank)

    plain, wide = sent(), sent(params_dtype="fp32", attention_kernel="unfused")
    assert plain[0] == pytest.approx(wide[0])  # gradients are reduced in fp32 in both
    assert wide[1] > plain[1]
    low, lower = (
        sent(**{kind: "e2m1" if kind == "fp4" else "hybrid", f"{kind}_param_gather": True}) for kind in ("fp8", "fp4")
    )
    assert plain[1] > low[1] > lower[1]
    fsdp = {"use_megatron_fsdp": True, "gradient_accumulation_fusion": False}
    assert sent(**fsdp, megatron_fsdp_main_grads_dtype="fp32")[0] > sent(**fsdp)[0]


def test_a_slow_host_launches_all_of_a_recomputed_step_as_much_slower() -> None:
    made = estimate(small_job(1, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1))
    slow, slower = (throughput(made, Efficiency(host=many)).parts["host"] for many in (100, 200))
    assert slower / slow == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("gpu", [gpu.name for gpu in GPUS])
def test_every_gpu_times_a_step(gpu: str) -> None:
    found = throughput(estimate(small_job(1, gpu=gpu)))
    assert 0 < found.mfu < 1


def sparse(length: int, **settings: Any) -> float:
    """Seconds of the core attention of a DeepSeek-V3.2 layer, there and back."""
    job = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3.2", 1, gpu="H100", seq_length=length, micro_batch_size=1, **settings
    )
    c = context_of(job)
    names = (CORE, *(f"{CORE}.{step}" for step in ("scores", "softmax", "mask")))
    m, ops = machine(job.gpu), flattened(layer_unit(c, c.model.kinds[-1]).unit.items)
    return sum(
        float(forward(m, c, op).total + backward(m, c, op, {t.name for t in op.writes}, set()).total)
        for op in ops
        if op.name in names
    )


def test_sparse_attention_grows_with_the_keys_that_are_picked() -> None:
    """Behind 2,048 keys a query meets no more: eight times the tokens take about eight times as long, not 64 times."""
    short, long = (sparse(length, dsa_kernel_backend="cudnn") for length in (8192, 65536))
    assert 7 < long / short < 10
    assert Attention(8192, 128, 2 * 2048 - 2048**2 // 8192, 576, 512).flops == 8192 * 128 * 3584 * 1088


def test_sparse_attention_without_kernels_meets_every_key_in_fp32() -> None:
    """`dsa.py`: the scores of all keys are a product in fp32, at a fifteenth of the rate of 16 bits."""
    assert sparse(8192, dsa_kernel_backend="none", apply_rope_fusion=False) > 5 * sparse(
        8192, dsa_kernel_backend="cudnn"
    )


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "forward", "backward"),
    [(1, False, [], []), (2, False, ["all_reduce"], []), (2, True, ["reduce_scatter"], ["all_gather"])],
)
def test_a_row_parallel_linear_sums_its_output(
    tp: int, sequence_parallel: bool, forward: list[str], backward: list[str]
) -> None:
    """Over the whole output of 1,024 tokens of 1,024 in 16 bits (Megatron-LM `tensor_parallel/layers.py`, RowParallelLinear)."""
    job = small_job(tp, tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel)
    ops = flattened(layer_unit(context_of(job), job.model.kinds[0]).unit.items)
    (op,) = (one for one in ops if one.name == "self_attention.linear_proj")
    assert ([send.kind for send in op.sends], [send.kind for send in op.returns]) == (forward, backward)
    assert {send.nbytes for send in (*op.sends, *op.returns)} <= {2 * 1024 * 1024}


@pytest.mark.parametrize(("dtype", "moved"), [(None, 0), ("fp32", 4 * 1024 * 1024), ("fp64", 8 * 1024 * 1024)])
def test_a_router_in_a_wider_dtype_widens_its_input_again_for_the_backward(dtype: str | None, moved: int) -> None:
    job = moe_job(moe_router_dtype=dtype)
    ops = flattened(layer_unit(context_of(job), job.model.kinds[0]).unit.items)
    (op,) = (one for one in ops if one.name == "mlp.router")
    assert [work.backward for work in op.work if isinstance(work, Streamed)] == [moved]
