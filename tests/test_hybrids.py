"""Bytes per token of single layers, hand-worked from the sources named in the modules.

Counts: Megatron-Core, mamba-ssm 2.3.2, flash-linear-attention 0.5.1 run with shape-only tensors.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.rank.chunks import Run
from megatron_memory_estimator.tape.ops import Op, flattened
from megatron_memory_estimator.tape.simulate import leftovers, trace
from megatron_memory_estimator.tape.work import Streamed

from .helpers import context, small_config

NEMOTRON: dict[str, Any] = {
    "num_layers": 52, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "kv_channels": 128,
    "ffn_hidden_size": 21504, "activation_func": "squared_relu", "normalization": "RMSNorm", "add_bias_linear": False,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "vocab_size": 131072, "position_embedding_type": "none",
    "mamba_num_heads": 128, "mamba_head_dim": 64, "hybrid_layer_pattern": "M-" * 24 + "*-*-",
}  # fmt: skip
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def job(model: str | dict[str, Any], **settings: Any) -> TrainingJob:
    if isinstance(model, str):
        return TrainingJob.from_hf(model, **settings)
    return TrainingJob.from_config(model, 1, **settings)


CASES: list[tuple[str | dict[str, Any], str, dict[str, Any], float]] = [
    (NEMOTRON, "mamba", {}, 102_692),
    (NEMOTRON, "dense", {}, 102_404),
    (NEMOTRON, "gqa", {}, 36_996),
    (NEXT, "gdn", {}, 103_236),
    (NEXT, "gdn", {"compiled_gates": False}, 127_812),
    (NEXT, "gdn", {"recompute_granularity": "selective", "recompute_modules": ["gdn_norm_out"]}, 86_724),
    (NEXT, "gdn", {"compiled_gates": False, "recompute_granularity": "selective", "recompute_modules": ["gdn_norm_out"]}, 86_724),
    (NEXT, "gqa", {}, 52_364),
    (NEXT, "gqa", {"compiled_gates": False}, 60_556),
    (NEXT, "moe", {}, 93_415),
    ("deepseek-ai/DeepSeek-V3", "mla+moe", {}, 459_468),
    ("meta-llama/Meta-Llama-3-70B", "gqa+dense", {}, 274_696),
    # absorbed MLA, and a contiguous copy of the value up-projection of 16 MiB per layer
    ("deepseek-ai/DeepSeek-V3.2", "dsa", {"dsa_kernel_backend": "cudnn"}, 406_668 + 2**24 / 4096),
    # unfused: 13 bytes per score (fp32 exp and probabilities, bf16 probabilities, three bool masks) of 128 heads and 4,096 keys, query and
    # keys in fp32, 17 bytes per row of scores (the largest's index, a mask, two sums); instead of query, 2,048 int32 indices and an LSE.
    # The keys stay too, which the values are a view of
    ("deepseek-ai/DeepSeek-V3.2", "dsa", {"dsa_kernel_backend": "none"},
     406_668 + 2**24 / 4096 + 13 * 128 * 4096 + 17 * 128 + 4 * (128 + 1) * 576 - 2 * 128 * 576 - 4 * 2048 - 4 * 128),
]  # fmt: skip


@pytest.mark.parametrize(("model", "kind", "settings", "expected"), CASES, ids=lambda x: str(x)[:30])
def test_saved_bytes_per_token(
    model: str | dict[str, Any], kind: str, settings: dict[str, Any], expected: float
) -> None:
    made = job(model, **settings)
    saved = trace(layer_unit(context(made), kind).unit).saved_bytes
    assert saved / made.training.seq_length == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("model", "kind", "expected"), [(NEMOTRON, "mamba", 190_980), (NEXT, "gdn", 4096 + 4 * 8192 + 14 * 4096)]
)
def test_backward_of_a_mixer_beyond_its_saved_bytes(model: str | dict[str, Any], kind: str, expected: float) -> None:
    made = job(model)
    found = trace(layer_unit(context(made), kind).unit)
    extra = max(event.nbytes for event in found.backward) - found.saved_bytes
    assert extra / made.training.seq_length == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("model", "kind", "settings", "_"), CASES, ids=lambda x: str(x)[:30])
def test_a_backward_leaves_the_gradient_of_its_input_alone(
    model: str | dict[str, Any], kind: str, settings: dict[str, Any], _: float
) -> None:
    unit = layer_unit(context(job(model, **settings)), kind).unit
    assert unit.entry is not None
    assert list(leftovers(unit).values()) == [unit.entry.nbytes]


def test_a_hybrid_pair_is_a_transformer_layer() -> None:
    """`*-` has the parameters and saved bytes of one GPT layer."""
    plain = small_config()
    gpt = estimate(TrainingJob.from_config(plain, 1)).stages[0]
    pair = {**plain, "num_layers": 8, "hybrid_layer_pattern": "*-" * 4}
    hybrid = estimate(TrainingJob.from_config(pair, 1)).stages[0]
    assert hybrid.num_parameters == gpt.num_parameters
    assert hybrid.rank.plans[0].saved_bytes == gpt.rank.plans[0].saved_bytes


def test_hybrid_segments_follow_the_borders() -> None:
    config = {**NEMOTRON, "num_layers": 6, "hybrid_layer_pattern": "M-|M-*-"}
    result = estimate(TrainingJob.from_config(config, 2, pipeline_model_parallel_size=2, seq_length=2048))
    assert [stage.rank.plans[0].chunk.layers for stage in result.stages] == [(0, 1), (2, 3, 4, 5)]


def test_mamba_groups_are_replicated_under_context_parallelism() -> None:
    """Saved bytes per local token stay the same while groups are at least tp * cp; the convolution of a rank's channels is cut out."""
    one = trace(layer_unit(context(TrainingJob.from_config(NEMOTRON, 1)), "mamba").unit).saved_bytes
    two = TrainingJob.from_config(NEMOTRON, 8, context_parallel_size=8, use_distributed_optimizer=True)
    m = two.model
    channels = m.mamba_heads * m.mamba_head_dim + 2 * m.mamba_num_groups * m.mamba_state_dim
    saved = trace(layer_unit(context(two), "mamba").unit).saved_bytes * 8
    assert saved - 2 * (4 + 1) * channels == pytest.approx(one, rel=1e-5)


HYBRID: dict[str, Any] = {
    "num_moe_experts": 8, "moe_ffn_hidden_size": 512, "mamba_num_heads": 32, "mamba_head_dim": 64, "mamba_num_groups": 8,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "position_embedding_type": "rope", "multi_latent_attention": False, "q_lora_rank": 256,
    "kv_lora_rank": 128, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64, "dsa_indexer_n_heads": 4,
    "dsa_indexer_head_dim": 64, "dsa_indexer_topk": 64,
}  # fmt: skip
ALIKE: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    (
        "*-G-",
        "*-*-/G-",
        {"experimental_attention_variant": "gdn2"},
        {"deterministic_mode": True},
        "deterministic_mode",
    ),
    (
        "M-*-",
        "M-M-/*-",
        {"num_query_groups": 2},
        {"context_parallel_size": 4, "cp_comm_type": "a2a"},
        "num_query_groups",
    ),
    ("M-D-", "M-M-/D-", {}, {"context_parallel_size": 2, "cp_comm_type": "p2p"}, "cp_comm_type"),
    ("*-G-", "*-*-/G-", {"linear_num_value_heads": 24}, {}, "linear_num_value_heads"),
    ("*-*E", "*-*-/*E", {}, {"tensor_model_parallel_size": 2, "sequence_parallel": False}, "sequence_parallel"),
]


@pytest.mark.parametrize(("main", "mtp", "model", "settings", "named"), ALIKE)
def test_a_layer_of_mtp_is_refused_as_one_of_the_main_part_is(
    main: str, mtp: str, model: dict[str, Any], settings: dict[str, Any], named: str
) -> None:
    for pattern in (main, mtp):
        config = small_config(**{**HYBRID, **model, "hybrid_layer_pattern": pattern})
        with pytest.raises(LayoutError, match=named):
            estimate(TrainingJob.from_config(config, 8, **settings))


def test_one_part_of_a_pattern_serves_several_depths_with_the_switch() -> None:
    config = {
        "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "mamba_num_groups": 4, "hybrid_layer_pattern": "M*-M/*-", "mtp_num_layers": 3,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="one part serves all depths with mtp_use_repeated_layer"):
        TrainingJob.from_config(config, 1)
    assert TrainingJob.from_config({**config, "mtp_use_repeated_layer": True}, 1).model.mtp == 3


def test_recomputed_modules_of_mtp_are_known() -> None:
    config = small_config(**HYBRID, hybrid_layer_pattern="M-M-/*-")
    made = TrainingJob.from_config(config, 1, recompute_granularity="selective", recompute_modules=["core_attn"])
    assert not [warning for warning in made.warnings if "nothing to recompute" in warning]


def test_every_chunk_of_a_rotary_model_has_a_table() -> None:
    """Also one whose layers do not ask for it (Megatron-LM `hybrid_model.py`, forward): seq * kv_channels * 4 bytes."""
    config = small_config(**HYBRID, num_layers=8, hybrid_layer_pattern="M-M-*-*-")
    made = estimate(TrainingJob.from_config(config, 2, pipeline_model_parallel_size=2, seq_length=2048))
    tables = [[w.nbytes for w in stage.rank.workspaces if w.name == "rotary table"] for stage in made.stages]
    assert tables == [[2048 * 64 * 4]] * 2


@pytest.mark.parametrize("pattern", ["+-+-", "D-D-", "*-*-", "M-M-/+-"])
def test_a_layer_with_heads_needs_some(pattern: str) -> None:
    with pytest.raises(ConfigError, match="num_attention_heads=0 must be at least 1"):
        TrainingJob.from_config(small_config(**HYBRID, hybrid_layer_pattern=pattern, num_attention_heads=0), 1)


def op(made: TrainingJob, kind: str, name: str) -> Op:
    (found,) = [one for one in flattened(layer_unit(context(made), kind).unit.items) if one.name == name]
    return found


def test_hyper_connections_keep_four_streams_and_the_mappings_twice() -> None:
    """A sub-layer keeps 4 streams in 16 bits and in fp32 and its output, and per token 248 bytes of mappings, and a bias of 24 numbers.

    Megatron-LM dev (2f2f8ebae), the real class: unfused, as min-cut partitions.
    """
    with_streams, plain = (
        TrainingJob.from_config(small_config(enable_mhc_connections=streams, mhc_num_residual_streams=4), 1)
        for streams in (True, False)
    )
    more, less = (
        trace(layer_unit(context(made), made.model.kinds[0]).unit).saved_bytes for made in (with_streams, plain)
    )
    assert more - less == 2 * (plain.training.seq_length * ((4 * 2 + 4 * 4 + 2) * 1024 + 248) + 96)


@pytest.mark.parametrize(("version", "forward"), [("2.20", (3, 2)), ("2.19", (3, 4))])
def test_a_ring_receives_the_keys_of_other_ranks(version: str, forward: tuple[int, int]) -> None:
    """Four ranks, 4,096 tokens each, 4 groups of 64, beside the keys, values and output that stay. Before TransformerEngine 2.20 the last
    rank keeps those of 3 ranks and the outputs of 4 steps; since, 2 buffers and 2 variables: at most 3 more pairs and 2 more outputs
    (when a buffer is made) or 2 pairs and 3 outputs, here less."""
    made = TrainingJob.from_config(
        small_config(), 4, seq_length=16384, context_parallel_size=4, transformer_engine_version=version
    )
    kv, out = 2 * 4096 * 2 * 4 * 64, 2 * 4096 * 16 * 64
    ring = op(made, made.model.kinds[0], "self_attention.core_attention")
    pairs, outputs = forward
    either = {pairs * kv + outputs * out, (pairs - 1) * kv + (outputs + 1) * out}
    received, statistics = (t.nbytes for t in ring.forward)
    assert received == (max(either) if version == "2.20" else pairs * kv + outputs * out)
    assert statistics == (2 + 5 if version == "2.20" else 4 + 5) * 4 * 4096 * 16, (
        "of steps, and of the correction of their sum"
    )
    buffers = [t.nbytes for t in ring.backward[:2]]
    assert buffers == [3 * kv, kv + out], (
        "two buffers of keys, values and their gradients, one of which is returned; a step's gradients"
    )


def test_a_scan_reads_its_operands_as_often_as_its_kernels_do() -> None:
    """mamba-ssm `ssd_combined.py`, 128 heads of 64, 8 groups, state 128, chunk 128; beyond the once that the op says, in bytes per token.

    Forward: x, B and C once more, and the products C B (fp32 [8, 128]) written and read. Backward: x six times and B and C three
    times in all, the output's gradient six times, C B written once and read three times, its gradient written once and read twice.
    """
    x, bc, y, gram = 2 * 8192, 2 * 2 * 8 * 128, 2 * 8192, 4 * 8 * 128
    made = job(NEMOTRON)
    (scan,) = op(made, "mamba", "mixer.scan").work
    assert isinstance(scan, Streamed)
    assert scan.forward / made.training.seq_length == x + bc + 2 * gram
    assert scan.backward / made.training.seq_length == pytest.approx(5 * x + 2 * bc + 5 * y + (7 - 2) * gram, rel=0.05)


DETERMINISTIC = {(512, 1, 1): 297_694_336, (512, 2, 1): 595_380_352, (500, 1, 1): 295_721_248, (512, 2, 2): 297_694_272}
"""Bytes that one layer keeps in deterministic mode, by sequence length, micro batch and tp: Megatron-Core 0.19.2 and TransformerEngine
2.20.2 on tensors without contents."""


def delta_job(seq_length: int, micro_batch_size: int, tp: int, **settings: Any) -> TrainingJob:
    """A layer on a middle stage: 16 key and 32 value heads of 128, hidden 2,048, MLP 8,192."""
    config = {
        "num_layers": 3, "hidden_size": 2048, "num_attention_heads": 16, "num_query_groups": 4, "kv_channels": 128,
        "ffn_hidden_size": 8192, "gated_linear_unit": True, "activation_func": "silu", "normalization": "RMSNorm",
        "add_bias_linear": False, "attention_dropout": 0.0, "hidden_dropout": 0.0, "qk_layernorm": True, "attention_output_gate": True,
        "experimental_attention_variant": "gated_delta_net", "linear_attention_freq": [1, 1, 1], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "bias_activation_fusion": True, "apply_rope_fusion": True, "gradient_accumulation_fusion": True,
    }  # fmt: skip
    return TrainingJob.from_config(
        config, 3 * tp, seq_length=seq_length, micro_batch_size=micro_batch_size, vocab_size=64000, pipeline_model_parallel_size=3,
        tensor_model_parallel_size=tp, sequence_parallel=tp > 1, compiled_gates=False, max_position_embeddings=4096, **settings,
    )  # fmt: skip


def delta_layer(*shape: int) -> Run:
    """The layer in deterministic mode."""
    return estimate(delta_job(*shape, deterministic_mode=True)).stages[1].rank.plans[0].runs[0]


@pytest.mark.parametrize("shape", DETERMINISTIC)
def test_deterministic_delta_rule_keeps_what_the_real_class_does(shape: tuple[int, int, int]) -> None:
    """Megatron-LM `ssm/gated_delta_net/common.py` (torch_chunk_gated_delta_rule): 200 bytes are not counted, A_log and dt_bias."""
    assert delta_layer(*shape).trace.saved_bytes == pytest.approx(DETERMINISTIC[shape], abs=200)


def test_the_seconds_of_the_deterministic_delta_rule_are_said_to_be_unknown() -> None:
    said = [
        [note for note in delta_job(512, 1, 1, deterministic_mode=on).warnings if "seconds" in note]
        for on in (True, False)
    ]
    assert len(said[0]) == 1 and not said[1]


def test_deterministic_delta_rule_by_hand() -> None:
    """Of a token and head of 128: ten rows of 128 in fp32, two of them not of the one chunk in 64 tokens, the state of a chunk, six rows of
    64, what solving the chunk row by row keeps, four numbers; and the masks."""
    kept = delta_layer(4096, 1, 1).trace.saved
    found = sum(live.tensor.nbytes for live in kept if " in fp32" in live.tensor.name or "masks" in live.tensor.name)
    heads, chunks = 32, 64
    rows = 4 * (10 * 128 + 128 * 128 // 64 + 6 * 64 + (85_344 + 2016) // 64 + 4)
    assert found == heads * (4096 * rows - 2 * 64 * 128 * 4 + 4 * chunks) + 2 * 64 * 64
    assert found / (heads * 4096) == pytest.approx(13_128, rel=0.01)


def test_a_scan_multiplies_each_channel_with_its_states() -> None:
    """7 FLOPs per token, channel and state (Megatron-LM `training.py`, mamba_layer_flops): 128 heads of 64, 128 states."""
    made = job(NEMOTRON)
    (scan,) = op(made, "mamba", "mixer.scan").work
    assert isinstance(scan, Streamed)
    assert scan.flops == 7 * made.training.seq_length * 128 * 64 * 128


def test_the_larger_of_a_scans_two_moments_counts() -> None:
    """Per token, 128 heads of 64 and 8 groups, chunks of 128: fp32 states of 4 x 8192 x states / 128 bytes; later C B of 4 x 8 x 128 and
    two outputs of 2 x 8192. With 128 states the later moment is larger by 4 KiB, with 256 states (Nemotron-H 56B) the earlier one."""
    later = {"CB": 4 * 8 * 128}
    for states, expected in ((128, later), (256, {"chunk states": 4 * 8192 * 2})):
        made = job({**NEMOTRON, "mamba_state_dim": states})
        found = {t.name.removeprefix("mixer."): t.nbytes for t in op(made, "mamba", "mixer.scan").forward}
        s = made.training.seq_length
        assert {name: found[name] / s for name in ("CB", "chunk states") if name in found} == expected
        assert found["chunk states passed on"] == s * 2 * 8192 * states // 128


def test_a_ring_passes_the_keys_of_every_rank_round() -> None:
    """Four ranks: keys and values in the forward; in the backward their gradients with them."""
    made = TrainingJob.from_config(small_config(), 4, seq_length=16384, context_parallel_size=4)
    ring = op(made, made.model.kinds[0], "self_attention.core_attention")
    kv = 2 * 4096 * 2 * 4 * 64
    assert [send.nbytes for send in (*ring.sends, *ring.returns)] == [4 * kv, 2 * 4 * kv]


def test_an_indexers_loss_copies_query_and_keys_of_several_sequences() -> None:
    """2 sequences of 256 tokens, 8 heads of 32 + 8 latent numbers in 16 bits (`dsa.py`, compute_dsa_indexer_loss)."""
    config = {
        "num_layers": 2, "hidden_size": 256, "num_attention_heads": 8, "ffn_hidden_size": 512, "vocab_size": 1024,
        "normalization": "RMSNorm", "multi_latent_attention": True, "qk_layernorm": True, "q_lora_rank": 64, "kv_lora_rank": 32,
        "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16, "experimental_attention_variant": "dsa", "dsa_indexer_n_heads": 4,
        "dsa_indexer_head_dim": 16, "dsa_indexer_topk": 32, "dsa_indexer_loss_coeff": 0.01, "add_bias_linear": False,
        "seq_length": 256, "micro_batch_size": 2, "dsa_kernel_backend": "none",
    }  # fmt: skip
    made = TrainingJob.from_config(config, 1)
    loss = op(made, made.model.kinds[0], "self_attention.core_attention.indexer.loss")
    copies = [t.nbytes for t in loss.forward if t.name.endswith(("query by head", "key of every head"))]
    assert copies == [2 * 2 * 256 * 8 * (32 + 8)] * 2
