"""Families that look like another one: exact parameters of what they are, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, UnsupportedError, count_parameters, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.families import FAMILIES, REFUSED

Config = dict[str, Any]


def shape(kind: str, hidden: int, layers: int, heads: int, groups: int, width: int, vocab: int, **more: Any) -> Config:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups, "intermediate_size": width, "vocab_size": vocab, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def experts(number: int, topk: int, width: int, **more: Any) -> Config:
    return {
        "num_experts": number, "num_experts_per_tok": topk, "moe_intermediate_size": width, "num_shared_experts": 1,
        "first_k_dense_replace": 1, **more,
    }  # fmt: skip


LATENT: Config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
NEMOTRON = shape(
    "nemotron",
    6144,
    32,
    48,
    8,
    24576,
    256000,
    head_dim=128,
    hidden_act="relu2",
    partial_rotary_factor=0.5,
    norm_eps=1e-5,
)
QWEN25_VL = shape("qwen2_5_vl", 3584, 28, 28, 4, 18944, 152064)
SARVAM_MLA = shape(
    "sarvam_mla", 4096, 32, 64, 64, 16384, 262144, q_lora_rank=None, qk_nope_head_dim=128, v_head_dim=128,
    **LATENT, **experts(128, 8, 2048),
)  # fmt: skip
HY3 = shape(
    "hy_v3",
    4096,
    80,
    64,
    8,
    13312,
    120832,
    head_dim=128,
    qk_norm=True,
    num_nextn_predict_layers=1,
    **experts(192, 8, 1536),
)
GLM52 = {
    **entries()["zai-org/GLM-5"]["config"],
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
}
LLAMA = shape("llama", 64, 2, 4, 4, 128, 1000)

# Totals of the real Megatron classes that Megatron-Bridge builds, and of published checkpoints (text part).
EXACT: dict[str, tuple[Config, int]] = {
    "Nemotron-4-15B": (NEMOTRON, 15_628_775_424),
    "EXAONE-4.0-1.2B": (
        shape("exaone4", 2048, 30, 32, 8, 4096, 102400, head_dim=64, tie_word_embeddings=True),
        1_279_391_488,
    ),
    "EXAONE-4.0-32B": (shape("exaone4", 5120, 64, 40, 8, 27392, 102400, head_dim=128), 32_003_216_384),
    "Qwen2.5-VL-7B, flat": (QWEN25_VL, 8_292_166_656 - 676_550_144),
    "Qwen2.5-VL-7B, nested": (
        {"model_type": "qwen2_5_vl", "text_config": {**QWEN25_VL, "model_type": "qwen2_5_vl_text"}},
        8_292_166_656 - 676_550_144,
    ),
    "Qwen2-VL-7B": ({**QWEN25_VL, "model_type": "qwen2_vl"}, 7_615_616_512),
    "Qwen3-VL-8B": (
        {"text_config": shape("qwen3_vl_text", 4096, 36, 32, 8, 12288, 151936, head_dim=128)},
        8_767_123_696 - 576_388_336,
    ),
    "Qwen3-VL-30B-A3B": (
        {
            "text_config": shape(
                "qwen3_vl_moe_text",
                2048,
                48,
                32,
                4,
                6144,
                151936,
                head_dim=128,
                num_experts=128,
                num_experts_per_tok=8,
                moe_intermediate_size=768,
                decoder_sparse_step=1,
                mlp_only_layers=[],
            )
        },
        30_532_122_624,
    ),
    "GLM-5.2": (GLM52, 743_377_000_704),
    "GLM-4.7-Flash": (
        shape(
            "glm4_moe_lite",
            2048,
            47,
            20,
            20,
            10240,
            154880,
            n_routed_experts=64,
            n_shared_experts=1,
            num_experts_per_tok=4,
            moe_intermediate_size=1536,
            first_k_dense_replace=1,
            num_nextn_predict_layers=1,
            q_lora_rank=768,
            qk_nope_head_dim=192,
            v_head_dim=256,
            **LATENT,
        ),
        29_943_390_976,
    ),
    "Hy3-preview": (HY3, 295_033_528_320),
    "sarvam-30b": (
        shape("sarvam_moe", 4096, 19, 64, 4, 8192, 262144, head_dim=64, **experts(128, 6, 1024)),
        32_152_648_064,
    ),
    "Gemma-2B": (
        shape("gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256, hidden_act="gelu", tie_word_embeddings=True),
        2_506_172_416,
    ),
    "Ministral-3-8B": (
        {"model_type": "mistral3", "text_config": shape("ministral3", 4096, 34, 32, 8, 14336, 131072, head_dim=128)},
        8_489_553_920,
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_of_the_real_class(name: str) -> None:
    config, total = EXACT[name]
    assert count_parameters(TrainingJob.from_hf(config).model).total == total


@pytest.mark.parametrize(("config", "mtp"), [(HY3, 3_752_612_096), (EXACT["GLM-4.7-Flash"][0], 643_706_112)])
def test_multi_token_prediction_layers_follow_the_config(config: Config, mtp: int) -> None:
    assert count_parameters(TrainingJob.from_hf(config).model).mtp == mtp


@pytest.mark.parametrize(
    ("config", "settings", "stage", "counts"),
    [
        (NEMOTRON, {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2}, 0, (1_953_890_304, 0)),
        (
            SARVAM_MLA,
            {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 16},
            1,
            (784_543_744, 3_221_225_472),
        ),
        (
            HY3,
            {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 24, "mtp_num_layers": 0},
            0,
            (4_445_513_728, 5_888_802_816),
        ),
    ],
    ids=["nemotron", "sarvam_mla", "hy_v3"],
)
def test_a_rank_holds_the_parameters_of_the_real_class(
    config: Config, settings: Config, stage: int, counts: tuple[int, int]
) -> None:
    """Megatron-Core gives an uncompressed MLA query a norm that the published Sarvam-MLA count does not have."""
    gpus = 48 if config is HY3 else 32
    vocab = 128 if config is not HY3 else 120832
    job = TrainingJob.from_hf(
        config, gpus, make_vocab_size_divisible_by=vocab, expert_tensor_parallel_size=1, **settings
    )
    assert estimate(job).stages[stage].num_parameters == counts


def test_a_nemotron_layer_keeps_the_bytes_of_the_real_class() -> None:
    """Two layers at tp 2 with sequence parallelism and 4096 tokens keep 361,136,152 bytes each, 24 of them attention's seeds."""
    of_no_effect: dict[str, Any] = {"bias_dropout_fusion": False}
    job = TrainingJob.from_hf(
        {**NEMOTRON, "num_hidden_layers": 2}, 2, tensor_model_parallel_size=2, sequence_parallel=True, seq_length=4096,
        micro_batch_size=1, bias_activation_fusion=False, apply_rope_fusion=True, **of_no_effect,
    )  # fmt: skip
    runs = estimate(job).stages[0].rank.plans[0].runs
    layers = [run.trace.saved_bytes for run in runs for _ in range(run.copies) if run.first_layer >= 0]
    assert layers == [361_136_152 - 24] * 2


def test_nemotron_is_not_gated_and_has_layer_norms_with_bias() -> None:
    model = TrainingJob.from_hf(NEMOTRON).model
    assert (model.normalization, model.gated_linear_unit, model.activation_func) == ("LayerNorm", False, "squared_relu")
    assert model.rotary_percent == 0.5 and not model.add_bias_linear and not model.add_qkv_bias


@pytest.mark.parametrize(
    "more", [{}, {"layer_types": ["full_attention"] * 2}, {"layer_types": ["sliding_attention"] * 2}]
)
def test_exaone4_has_norms_behind_its_linears_alone_with_and_without_layer_types(more: Config) -> None:
    job = TrainingJob.from_hf({**LLAMA, "model_type": "exaone4", **more})
    assert job.model.norm_placement == "post" and job.model.kinds == ("gqa+dense",) * 2
    assert any("exaone4_layer_spec" in warning for warning in job.warnings)


def test_the_indexers_of_glm_5_2_are_where_its_file_says() -> None:
    kinds = TrainingJob.from_hf(GLM52).model.kinds
    assert ["full" if kind.startswith("dsa+") else "shared" for kind in kinds] == GLM52["indexer_types"]
    with pytest.raises(ConfigError, match="indexer_types"):
        TrainingJob.from_hf({**GLM52, "index_skip_topk_offset": 2})


@pytest.mark.parametrize("kind", REFUSED)
def test_a_family_with_parts_of_its_own_is_refused_by_name(kind: str) -> None:
    for config in (
        {**LLAMA, "model_type": kind},
        {"model_type": "outer", "text_config": {**LLAMA, "model_type": kind}},
    ):
        with pytest.raises(UnsupportedError, match=kind):
            TrainingJob.from_hf(config)


def test_a_refused_family_has_no_mapping() -> None:
    assert not set(FAMILIES) & set(REFUSED)


def test_gemma_4_without_experts_says_what_every_layer_is() -> None:
    config = {**LLAMA, "model_type": "gemma4_text", "hidden_size_per_layer_input": 256}
    with pytest.raises(ConfigError, match="layer_types with a word for each layer"):
        TrainingJob.from_hf(config)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**LLAMA, "vision_config": {"depth": 2}}, "vision"),
        ({**LLAMA, "audio_config": {"depth": 2}}, "audio"),
        ({**LLAMA, "mm_vision_tower": "clip"}, "vision"),
        ({"text_config": LLAMA}, "vision"),
        ({**LLAMA, "hidden_act": "relu2"}, "relu2"),
        ({**LLAMA, "hidden_act": "gelu", "type_vocab_size": 2}, "gelu"),
        ({**LLAMA, "layer_norm_eps": 1e-5}, "LayerNorm"),
        ({**LLAMA, "ffn_hidden_dim": 12}, "ffn_hidden_dim"),
        ({**LLAMA, "num_global_tokens": 12}, "num_global_tokens"),
        ({**LLAMA, "blocks": [{"width": 3}]}, "blocks"),
        ({**LLAMA, "intermediate_sise": 12}, r"intermediate_sise \(did you mean intermediate_size\?\)"),
    ],
)
def test_an_unknown_type_that_is_no_plain_decoder_is_refused(config: Config, why: str) -> None:
    inner = config.get("text_config", config)
    changed = {**inner, "model_type": "brandnew"}
    with pytest.raises(ConfigError, match=why):
        convert({"text_config": changed} if inner is not config else changed, "x", "t")


def test_architectures_say_what_an_unknown_type_is() -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "model_type"}
    for config in (bare, {**bare, "model_type": "brandnew"}):
        found = convert({**config, "architectures": ["NemotronForCausalLM"]}, "x", "t")
        assert found.model_type == "nemotron" and found.config["normalization"] == "LayerNorm"
        assert any("read as nemotron, as its architectures say" in warning for warning in found.warnings)
        assert convert({**config, "architectures": ["Qwen3VLForConditionalGeneration"]}, "x", "t").config[
            "qk_layernorm"
        ]
        with pytest.raises(UnsupportedError, match="glm4 is"):
            convert({**config, "architectures": ["Glm4ForCausalLM"]}, "x", "t")
    assert any("without model_type" in warning for warning in convert(bare, "x", "t").warnings)


@pytest.mark.parametrize("name", EXACT)
def test_every_key_of_a_published_config_is_known(name: str) -> None:
    warnings = convert(EXACT[name][0], "x", "t").warnings
    assert not [warning for warning in warnings if "reads" in warning]


def test_a_list_says_which_layers_are_dense() -> None:
    config = entries()["deepseek-ai/DeepSeek-V3"]["config"]
    first = convert(config, "x", "t").config["moe_layer_freq"]
    assert convert({**config, "moe_layer_freq": [0] * 3 + [1] * 58}, "x", "t").config["moe_layer_freq"] == first
    kinds = ["dense"] * 3 + ["sparse"] * 58
    assert convert({**config, "mlp_layer_types": kinds}, "x", "t").config["moe_layer_freq"] == first


def test_the_output_bias_that_llama_has_too_is_named_as_not_counted() -> None:
    warnings = convert({**LLAMA, "attention_bias": True}, "x", "t").warnings
    assert warnings == ("the bias of the attention output, which attention_bias means too, is not counted",)
