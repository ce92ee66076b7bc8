"""LoongForge: a model by name or in a file, which wins over Megatron-LM's words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.errors import ConfigError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.dialects import loongforge
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .dialect_runs import started

COMMON = (
    "--training-phase pretrain --seq-length 4096 --max-position-embeddings 40960 --micro-batch-size 2 --global-batch-size 512 --bf16 "
    "--tokenizer-type HFTokenizer --hf-tokenizer-path /data/tokenizer --use-distributed-optimizer "
)
FILE = """
_target_: lab.Config
model_type: gpt
num_layers: 12
hidden_size: 1024
ffn_hidden_size: 4096
num_attention_heads: 16
group_query_attention: true
num_query_groups: 4
num_experts: 8
moe_ffn_hidden_size: 512
moe_layer_freq: ${moe_freq:"[0]*2+[1]*10"}
vocab_size_in_config_file: 32000
position_embedding_type: rope
add_position_embedding: false
normalization: RMSNorm
swiglu: true
add_bias_linear: false
attention_dropout: 0
hidden_dropout: 0
untie_embeddings_and_output_weights: true
"""


def job(words: str, num_gpus: int = 64, files: dict[str, str] | None = None, **more: Any) -> TrainingJob:
    """The job of words behind those that every run here has."""
    run = started("/workspace/LoongForge/loongforge/train.py", COMMON + words, files, num_gpus=num_gpus, **more)
    assert dialect_of(run) is loongforge.DIALECT
    return job_of(loongforge.DIALECT, run, None, {})


def test_a_name_of_the_registry_is_the_catalogues_model() -> None:
    found = job("--model-name qwen3-14b --tensor-model-parallel-size 4 --context-parallel-size 2 --rotary-base 1000000")
    model, training = found.model, found.training
    assert (found.name, model.num_layers, model.hidden_size) == ("Qwen/Qwen3-14B", 40, 5120)
    assert (model.vocab_size, model.padded_vocab(4)) == (151936, 152064)
    assert (found.layout.world_size, found.layout.dp, training.micro_batch_size, training.seq_length) == (
        64,
        8,
        2,
        4096,
    )
    assert (training.recompute_granularity, training.use_distributed_optimizer) == (None, True)
    assert not any("has no effect" in said for said in found.warnings)


def test_the_registry_wins_over_the_words() -> None:
    found = job("--model-name qwen3-8b --num-layers 24 --hidden-size 4096")
    assert found.model.num_layers == 36
    said = [one for one in found.warnings if "has no effect" in one]
    assert said == ["--num-layers 24 has no effect: the registry's qwen3-8b says 36"]
    assert job("--model-name qwen3-8b +model.num_layers=24").model.num_layers == 24


def test_four_models_have_an_output_layer_of_their_own() -> None:
    """151936 x 2560 = 388,956,160 weights more than on Hugging Face, in bf16."""
    own, tied = job("--model-name qwen3-4b", 1), TrainingJob.from_hf("Qwen/Qwen3-4B", 1)
    assert (own.model.share_embeddings_and_output_weights, tied.model.share_embeddings_and_output_weights) == (
        False,
        True,
    )
    weights = [sum(estimate(one).stages[0].num_parameters) for one in (own, tied)]
    assert weights[0] - weights[1] == 388_956_160 + (own.model.padded_vocab(1) - 151936) * 2560
    assert not job("--model-name qwen3-8b").model.share_embeddings_and_output_weights


def test_experts_to_a_token_stand_in_no_file_of_the_registry() -> None:
    default = job("--model-name qwen3-30b-a3b --expert-model-parallel-size 8")
    assert (default.model.num_moe_experts, default.model.moe_router_topk) == (128, 2)
    assert (default.training.moe_token_dispatcher_type, default.training.moe_grouped_gemm) == ("allgather", False)
    words = "--moe-router-topk 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8"
    given_too = job(f"--model-name qwen3-30b-a3b {words}")
    assert (given_too.model.moe_router_topk, given_too.training.moe_token_dispatcher_type) == (8, "alltoall")


@pytest.mark.parametrize(
    ("name", "model", "mtp"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3", 1), ("deepseek-v3.2-sparse", "deepseek-ai/DeepSeek-V3.2", 1),
        ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 0), ("llama3.1-8b", "meta-llama/Llama-3.1-8B", 0),
        ("llama3-70b", "meta-llama/Meta-Llama-3-70B", 0), ("llama2-7b", "meta-llama/Llama-2-7b-hf", 0), ("glm5", "zai-org/GLM-5", 1),
        ("qwen3-coder-30b-a3b", "Qwen/Qwen3-30B-A3B", 0), ("minimax2.5-230b", "MiniMaxAI/MiniMax-M2.5", 0),
    ],
)  # fmt: skip
def test_names_that_the_catalogue_spells_otherwise(name: str, model: str, mtp: int) -> None:
    found = job(f"--model-name {name} --moe-router-topk 8")
    assert (found.name, found.model.mtp_num_layers or 0) == (model, mtp)


def test_the_vocabulary_of_llama_is_the_tokenizers() -> None:
    assert job("--model-name llama3.1-8b").model.vocab_size == 128256
    assert job("--model-name llama3.1-8b --hf-tokenizer-path /data/Llama-2-7b-hf").model.vocab_size == 32000
    assert job("--model-name qwen3-8b --padded-vocab-size 160000").model.padded_vocab(1) == 160000


def test_keys_of_a_file_win_over_the_words() -> None:
    files = {"conf/small.yaml": FILE}
    found = job(
        "--config-file conf/small.yaml --num-layers 3 --moe-router-topk 2 --expert-model-parallel-size 8", files=files
    )
    model = found.model
    assert (model.num_layers, model.num_query_groups, model.num_moe_experts, model.vocab_size) == (12, 4, 8, 32000)
    assert (model.add_bias_linear, model.gated_linear_unit, model.share_embeddings_and_output_weights) == (
        False,
        True,
        False,
    )
    assert "--num-layers 3 has no effect: small.yaml says 12" in found.warnings
    assert model.moe_layer_freq == "([0]*2+[1]*10)"
    changed = job("--config-file conf/small.yaml +model.num_query_groups=8 --expert-model-parallel-size 8", files=files)
    assert changed.model.num_query_groups == 8
    biased = job(
        "--config-file b.yaml --disable-bias-linear", files={"b.yaml": FILE.replace("linear: false", "linear: true")}
    )
    assert biased.model.add_bias_linear


def test_a_file_below_the_scripts_folder(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "small.yaml").write_text(FILE)
    script = tmp_path / "run.sh"
    script.write_text(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nMODEL_ARGS=( --config-file $HERE/conf/small.yaml --num-layers 5 )\n'
        f"torchrun --nproc_per_node 8 --nnodes 2 /opt/loongforge/train.py ${{MODEL_ARGS[@]}} {COMMON} --expert-model-parallel-size 8\n"
    )
    found = TrainingJob.from_file(str(script))
    assert (found.layout.world_size, found.layout.dp, found.model.num_layers) == (16, 16, 12)
    assert any("--num-layers 5" in said for said in found.warnings)


def test_supervised_rows() -> None:
    packed = job("--model-name qwen3-8b --training-phase sft --packing-sft-data")
    assert (packed.training.micro_batch_size, packed.training.global_batch_size) == (1, 512)
    assert any("--micro-batch-size 2 is 1" in said for said in packed.warnings)
    assert any("at most 4096" in str(note) for note in packed.assumptions)
    padded = job("--model-name qwen3-8b --training-phase sft")
    assert padded.training.micro_batch_size == 2
    assert any("lengths of their samples, at most 4096" in str(note) for note in padded.assumptions)


def test_stages_recomputation_and_context_parallelism() -> None:
    words = "--model-name qwen3-8b --pipeline-model-parallel-size 4 --custom-pipeline-layers 8,10,10,8"
    found = job(f"{words} --custom-pipeline-recompute-layers 2,2,2,2")
    assert found.layout.pipeline_model_parallel_layout == "Et*8|t*10|t*10|t*8L"
    training = found.training
    assert (training.recompute_granularity, training.recompute_method, training.recompute_num_layers) == (
        "full",
        "block",
        2,
    )
    with pytest.raises(ConfigError, match="another recomputation"):
        job(f"{words} --custom-pipeline-recompute-layers 4,2,2,0")
    with pytest.raises(ConfigError, match="virtual stages"):
        job(f"{words} --num-layers-per-virtual-pipeline-stage 2")
    with pytest.raises(ConfigError, match="counts with commas"):
        job("--model-name qwen3-8b --pipeline-model-parallel-size 2 --custom-pipeline-layers a,b")
    both = job("--model-name qwen3-8b --context-parallel-size 4 --context-parallel-ulysses-degree 2")
    assert both.layout.cp == 4
    assert tuple(both.layout.cp_comm_type) == ("a2a+p2p",)


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-vl-30b-a3b",
        "internvl3-8b",
        "llava-ov-1.5-4b",
        "qwen3.5-9b",
        "kimi-k2.5",
        "wan2.2",
        "pi05",
        "ernie4.5-vl-28b",
    ],
)
def test_names_with_towers_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        job(f"--model-name {name}")


def test_files_that_are_no_language_model_and_what_is_missing() -> None:
    with pytest.raises(UnsupportedError, match="image_encoder"):
        job("--config-file v.yaml", files={"v.yaml": "image_encoder: {num_layers: 3}\nfoundation: {num_layers: 12}"})
    with pytest.raises(ConfigError, match="defaults"):
        job("--config-file v.yaml", files={"v.yaml": "defaults: [base]\nnum_layers: 12"})
    with pytest.raises(ConfigError, match=r"w\.yaml, which run\.sh names, is not there"):
        job("--config-file w.yaml")
    with pytest.raises(QuestionsError, match=r"mimo.*--model NAME"):
        job("--model-name mimo")
    assert job("--model-name mimo", model="Qwen/Qwen3-8B").model.num_layers == 36
    with pytest.raises(QuestionsError, match=r"\$SIZE, which has none; give --set SIZE=VALUE"):
        job("--model-name qwen3-$SIZE")
    with pytest.raises(QuestionsError, match="--model NAME"):
        job("")
    with pytest.raises(ConfigError, match="--training-phase 'dpo'"):
        job("--model-name qwen3-8b --training-phase dpo")


KEYS = st.sampled_from(
    ["model-name", "config-file", "custom-pipeline-layers", "custom-pipeline-recompute-layers", "training-phase", "packing-sft-data",
     "context-parallel-size", "context-parallel-ulysses-degree", "vocab-size-in-config-file", "num-layers", "hf-tokenizer-path"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["qwen3-8b", "m.yaml", "1", "2", "0", "-1", "8,8", "sft", "$N", ""]), st.text(max_size=6)
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=3),
)
FIELDS = st.sampled_from(
    [
        "num_layers",
        "swiglu",
        "add_bias_linear",
        "moe_layer_freq",
        "num_experts",
        "vocab_size_in_config_file",
        "bf16",
        "x",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=4), st.dictionaries(FIELDS, LEAVES, max_size=4))
def test_random_words_end_in_a_job_or_a_message(pairs: list[tuple[str, str]], keys: dict[str, Any]) -> None:
    text = "\n".join(f"{key}: {value}" for key, value in keys.items())
    words = (*COMMON.split(), *(word for key, value in pairs for word in (f"--{key}", value)), "+model.num_layers=4")
    run = Run(program="loongforge/train.py", words=words, num_gpus=8, text_of={"m.yaml": FILE + text}.get)
    with contextlib.suppress(EstimatorError):
        job_of(loongforge.DIALECT, run, None, {})
