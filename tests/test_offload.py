"""Offloading of optimizer state and activations, and the host memory it takes, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, Stage, estimate
from megatron_memory_estimator.rank.peak import leaving, scheduled

from .helpers import small_job

TOKENS = 1024


def stage(num_gpus: int = 1, **settings: Any) -> Stage:
    return estimate(small_job(num_gpus, **settings)).stages[0]


def optimizer_bytes(found: Stage, *since: str) -> int:
    return sum(
        s.nbytes for s in found.rank.states if s.part == "optimizer" and s.since in (since or ("setup", "first step"))
    )


OFFLOAD: dict[str, Any] = {
    "use_distributed_optimizer": True, "use_precision_aware_optimizer": True, "optimizer_cpu_offload": True,
}  # fmt: skip
PLAIN: dict[str, Any] = {"use_distributed_optimizer": True, "optimizer_cpu_offload": True}


@pytest.mark.parametrize(
    ("fraction", "settings", "each"),
    [
        (0.25, OFFLOAD, 0.75 * 12), (0.5, OFFLOAD, 0.5 * 12), (1.0, OFFLOAD, 0),
        (0.5, {**OFFLOAD, "fp8_recipe": "tensorwise", "exp_avg_dtype": "bf16"}, 0.5 * 12),  # moments in fp32 whatever is asked for
        (0.25, PLAIN, 4 + 0.75 * 8), (0.5, PLAIN, 4 + 0.5 * 8), (1.0, PLAIN, 4),
    ],
)  # fmt: skip
def test_what_stays_on_the_gpu(fraction: float, settings: dict[str, Any], each: float) -> None:
    """fp32 master and two fp32 moments of the rest; without the precision-aware optimizer Megatron's fp32 masters all stay.

    The second is what Megatron-Bridge allows: Qwen3-30B-A3B saves 3.8 GB per 25 %, 8 bytes per parameter (docs/explanation/accuracy.md).
    """
    found = stage(4, **settings, optimizer_offload_fraction=fraction)
    owned = sum(buffer.owned for buffer in found.rank.buffers)
    assert optimizer_bytes(found) == pytest.approx(each * owned, rel=1e-6, abs=100)


def test_host_memory_of_an_offloaded_optimizer() -> None:
    """16 bytes per parameter; of a part of the optimizer no part is known by itself: the pinned gradient and the copy of the weight that
    comes first may double."""
    found = stage(4, **OFFLOAD, optimizer_offload_fraction=0.5)
    owned = sum(buffer.owned for buffer in found.rank.buffers)
    (term,) = [term for term in found.host if term.name == "optimizer offload"]
    assert (term.low, term.high) == (16 * (owned // 2), 16 * (owned // 2))
    (added,) = [term for term in found.host if term.name == "rounding of pinned memory"]
    assert added.low == 0 and added.high >= (4 + 2 * 2) * (owned // 2)


def kept(found: Stage, run: int) -> int:
    return found.rank.plans[0].runs[run].trace.saved_bytes


def test_layer_offload_takes_everything_the_first_layers_keep() -> None:
    """Four layers, two of them offloaded: two keep all, two nothing but one layer's tensors on their way."""
    plain, found = stage(), stage(cpu_offloading_num_layers=2)
    layers = [run for run in found.rank.plans[0].runs if run.first_layer >= 0]
    whole = next(run for run in plain.rank.plans[0].runs if run.first_layer == 0).trace.saved_bytes
    assert [(run.copies, run.trace.saved_bytes) for run in layers] == [(2, 0), (2, whole)]
    assert sum(t.nbytes for t in layers[0].offloaded) == whole
    assert layers[0].beside_bytes("F") == layers[0].beside_bytes("B") == whole
    (term,) = [term for term in found.host if term.name == "activation offload"]
    assert (term.low, term.high) == (2 * whole, 2 * whole)


def test_double_buffering_has_two_layers_on_their_way() -> None:
    one, two = (
        stage(cpu_offloading_num_layers=2),
        stage(cpu_offloading_num_layers=2, cpu_offloading_double_buffering=True),
    )
    first = [next(run for run in found.rank.plans[0].runs if run.first_layer == 0) for found in (one, two)]
    assert first[1].beside_bytes("F") == 2 * first[0].beside_bytes("F")


@pytest.mark.parametrize(
    ("modules", "least", "nbytes"),
    [
        # q, k, v [tokens, 24 heads of 64] in bf16; the output is linear_proj's too, the log-sum-exp below the smallest size
        (("core_attn",), 2**18, TOKENS * 2 * (1024 + 256 + 256)),
        (("core_attn",), 2**20, TOKENS * 2 * 1024),  # k and v have 2**18 elements
        (("core_attn", "attn_proj"), 2**20, TOKENS * 2 * (1024 + 2 * 1024)),  # the output is packed by both
        (
            ("qkv_linear",),
            2**20,
            TOKENS * 2 * (1024 + 1024),
        ),  # TransformerEngine fuses the norm into it: input and output
        (("attn_norm",), 2**20, 0),
        (("mlp_norm",), 2**20, 0),
    ],
)
def test_fine_grained_modules(modules: tuple[str, ...], least: int, nbytes: int) -> None:
    """Tensors that the module's ops keep, of at least so many elements, of every layer."""
    found = stage(fine_grained_activation_offloading=True, offload_modules=modules, min_offloaded_tensor_size=least)
    (layers,) = [run for run in found.rank.plans[0].runs if run.first_layer >= 0]
    assert layers.copies == 4
    assert sum(t.nbytes for t in layers.offloaded) == nbytes


def test_the_last_group_of_each_module_stays_for_one_microbatch() -> None:
    """Two stages, the first has two microbatches in flight: both layers of both leave, but one layer's queries of one stay."""
    found = stage(
        2, pipeline_model_parallel_size=2, global_batch_size=4, fine_grained_activation_offloading=True,
        offload_modules=("core_attn",), min_offloaded_tensor_size=2**20,
    )  # fmt: skip
    stays = [row for row in found.rows if row.name.endswith("that stays")]
    assert [(row.nbytes, row.copies) for row in stays] == [(TOKENS * 2 * 1024, 1)]


FINE: dict[str, Any] = {
    "fine_grained_activation_offloading": True, "offload_modules": ("core_attn", "attn_proj"), "min_offloaded_tensor_size": 2**18,
}  # fmt: skip


def names(found: Stage, direction: str, op: str) -> list[str]:
    """Tensors of a layer on the GPU while an op runs forward ("F") or backward ("B")."""
    run = next(run for run in found.rank.plans[0].runs if run.first_layer >= 0)
    events = run.trace.forward + run.trace.backward
    split = len(run.trace.forward)
    places = range(split) if direction == "F" else range(split, len(events))
    event = next(place for place in places if events[place].op == op)
    alive = run.alive(event)
    assert sum(live.tensor.nbytes for live in alive) == events[event].nbytes
    return [live.tensor.name.removeprefix("self_attention.") for live in alive if live.role == "saved"]


def test_a_module_leaves_when_it_is_done() -> None:
    """The attention's queries are gone once the residual behind linear_proj runs, its output once linear_proj is done with it."""
    found = stage(**FINE)
    assert "q rotated" in names(found, "F", "self_attention.core_attention")
    assert "q rotated" not in names(found, "F", "self_attention.linear_proj")
    assert "core_attention.output" in names(found, "F", "self_attention.linear_proj")
    assert "core_attention.output" not in names(found, "F", "mlp.linear_fc1")


def test_a_module_comes_back_when_the_one_behind_it_is_done() -> None:
    """attn_proj is the last module of a layer: its tensors are there from the layer's backward on. Those of core_attn follow; the
    attention's output, which both packed, is then there once more for the attention alone."""
    found = stage(**FINE)
    early = names(found, "B", "mlp.linear_fc2")
    assert early.count("core_attention.output") == 1 and "q rotated" not in early
    late = names(found, "B", "self_attention.core_attention")
    assert late.count("core_attention.output") == 1 and "q rotated" in late
    between = names(found, "B", "self_attention.linear_proj")
    assert between.count("core_attention.output") == 1 and "q rotated" not in between


def test_what_a_checkpoint_drops_comes_back_beside_its_recomputation() -> None:
    """The normalized input of linear_qkv is discarded, but was packed by qkv_linear before."""
    settings: dict[str, Any] = {**FINE, "offload_modules": ("attn_norm", "qkv_linear"), "normalization": "RMSNorm"}
    mla: dict[str, Any] = {
        "multi_latent_attention": True, "q_lora_rank": 512, "kv_lora_rank": 512, "qk_head_dim": 64, "qk_pos_emb_head_dim": 64,
        "v_head_dim": 64, "num_query_groups": None, "recompute_granularity": "selective", "recompute_modules": ("layernorm",),
    }  # fmt: skip
    found = stage(**settings, **mla)
    back = names(found, "B", "self_attention.linear_q_down_proj")
    assert back.count("input_layernorm.output from the host") == 1 and "input_layernorm.output" in back


def test_in_the_first_step_nothing_stays() -> None:
    """Its passes are lower by one layer's queries, keys, values and output, which stay later, and by what comes back ahead of its op."""
    found = stage(2, pipeline_model_parallel_size=2, global_batch_size=4, **FINE)
    stays = sum(row.nbytes for row in found.rows if row.name.endswith("that stays"))
    assert stays == TOKENS * 2 * (1024 + 256 + 256 + 1024)
    later, first = (max(one.nbytes for one in scheduled(rank)) for rank in (found.rank, leaving(found.rank)))
    assert stays <= later - first <= 2 * stays


def test_a_fraction_offloads_the_first_layers() -> None:
    found = stage(
        fine_grained_activation_offloading=True, offload_modules=("core_attn",), activation_offload_fraction=0.25,
        min_offloaded_tensor_size=2**18,
    )  # fmt: skip
    layers = [run for run in found.rank.plans[0].runs if run.first_layer >= 0]
    assert [(run.copies, bool(run.offloaded)) for run in layers] == [(1, True), (3, False)]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"cpu_offloading_num_layers": 4}, "must be between 0 and num_layers-1=3"),
        ({"optimizer_cpu_offload": True}, "needs use_distributed_optimizer"),
        (
            {"fine_grained_activation_offloading": True, "offload_modules": ("attn_proj",)},
            "attn_proj in offload_modules needs core_attn",
        ),
        ({"offload_modules": ("core_attn",)}, "needs fine_grained_activation_offloading"),
    ],
)
def test_rules(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(LayoutError, match=rule):
        stage(**settings)
