"""YAML run descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.inputs.runs.files import job_from_yaml

GOOD = """
model:
  name: deepseek-ai/DeepSeek-V3
parallelism:
  tp: 4
  pipeline_model_parallel_size: 4
  expert_model_parallel_size: 8
  num_layers_in_last_pipeline_stage: 16
training:
  num_gpus: 128
  recompute_granularity: full
precision:
  accumulate_allreduce_grads_in_fp32: true
"""


def written(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def test_a_named_model(tmp_path: Path) -> None:
    job = job_from_yaml(written(tmp_path, GOOD))
    same = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3", 128, tensor_model_parallel_size=4, pipeline_model_parallel_size=4,
        expert_model_parallel_size=8, num_layers_in_last_pipeline_stage=16, recompute_granularity="full",
        accumulate_allreduce_grads_in_fp32=True,
    )  # fmt: skip
    assert job == same
    assert job_from_yaml(written(tmp_path, GOOD), tensor_model_parallel_size=8).layout.tp == 8


def test_transformer_config_fields(tmp_path: Path) -> None:
    text = """
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 16, vocab_size: 32000, add_bias_linear: false}
parallelism: {num_gpus: 4, tensor-model-parallel-size: 2}
training: {seq_length: 1024}
"""
    job = job_from_yaml(written(tmp_path, text))
    assert (job.name, job.layout.dp, job.layout.sequence_parallel) == ("run", 2, False)
    assert estimate(job).peak_stage.peak_allocated_bytes > 0


def test_a_config_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,'
        ' "intermediate_size": 4096, "vocab_size": 32000}'
    )
    job = job_from_yaml(written(tmp_path, "model: {name: config.json}\n"))
    assert job.model.num_layers == 2


WRONG = [
    ("model: {nam: x}", 'unknown setting "nam" in model. Did you mean "name"?'),
    ("model: {name: a/b, seq_length: 3}", "seq_length belongs in the section training, not in model"),
    ("modl: {name: a/b}", 'unknown section "modl"; the sections are model'),
    ("training: {num_gpus: 8}", "the section model is missing"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: 5", "the section training must hold settings, not 5"),
    ("model: {name: Qwen/Qwen3-8B}\nprecision: {tp: 2}", "tp belongs in the section parallelism, not in precision"),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: two}", "tensor_model_parallel_size='two' must be a whole number"),
    ("model: {name: Qwen/Qwen3-8B, name: x}", 'the key "name" appears twice'),
    ("model: {name: 5}", "model.name=5 must be a Hub id or a path"),
    ("model: {name: a/b", "not valid YAML"),
    ("- a\n- b", "must hold a mapping"),
    ("", "must hold a mapping"),
    (
        "model: {name: Qwen/Qwen3-8B}\ntraining: {fp8_output_proj: true}",
        "fp8_output_proj=True is not modelled",
    ),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {1: 2}", "parallelism.1 must be a word"),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {[1]: 2}", "not valid YAML"),
    (
        "model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 2, tensor_model_parallel_size: 4}",
        "is given twice with different",
    ),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {num_gpus: 8}\ntraining: {num_gpus: 16}", "world_size is given twice"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: {num_gpus: 8, world_size: 16}", "world_size is given twice"),
    ("model: {name: '-'}", "must be a Hub id or a path"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: {env: {1: 2}}", "must be the name of a variable"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: {env: {NCCL_NVLS_ENABL: 1}}", 'Did you mean "NCCL_NVLS_ENABLE"?'),
    (
        "\n".join([f"a{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else '1'] * 9)}]" for i in range(9)]),
        "more than 100000 values",
    ),
    ("model: !!python/object:os.system {}", "the tag '!!python/object:os.system' is not one of !!str"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_mistakes(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        estimate(job_from_yaml(written(tmp_path, text)))
    assert sentence in str(error.value)


def test_spellings_do_not_hide_each_other(tmp_path: Path) -> None:
    tied = written(tmp_path, "model: {name: Qwen/Qwen3-8B, tie_embeddings: true}")
    assert job_from_yaml(tied).model.share_embeddings_and_output_weights
    assert not job_from_yaml(tied, share_embeddings_and_output_weights=False).model.share_embeddings_and_output_weights
    experts = written(tmp_path, "model: {name: Qwen/Qwen3-30B-A3B, num_experts: 64}")
    assert job_from_yaml(experts, num_moe_experts=32).model.num_moe_experts == 32
    gpus = written(tmp_path, "model: {name: Qwen/Qwen3-8B}\ntraining: {num_gpus: null, world_size: 16}")
    assert job_from_yaml(gpus).layout.world_size == 16


def test_values_mean_what_they_say(tmp_path: Path) -> None:
    off = written(tmp_path, "model: {name: Qwen/Qwen3-8B}\ntraining: {env: {NCCL_NVLS_ENABLE: false}}")
    assert job_from_yaml(off).env.nccl_nvls is False
    full = written(tmp_path, "model: {name: Qwen/Qwen3-8B}\nprecision: {bf16: false, fp16: false}")
    assert job_from_yaml(full).training.params_dtype == "fp32"
    text = "model: {name: Qwen/Qwen3-8B}\nparallelism: &p {tp: 2, pp: 2}\ntraining: {num_gpus: 8, recompute_modules: 'mlp,core_attn'}"
    assert job_from_yaml(written(tmp_path, text)).training.recompute_modules == ("mlp", "core_attn")


def test_merge_keys(tmp_path: Path) -> None:
    text = "model:\n  name: Qwen/Qwen3-8B\ntraining: &t {seq_length: 1024}\nprecision:\n  <<: {params_dtype: fp16}\n  params_dtype: bf16\n"
    assert job_from_yaml(written(tmp_path, text)).training.params_dtype == "bf16"


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    text = "model: {nam: x}\nparalelism: {tp: 2}\nprecision: {cp: 2}\n"
    with pytest.raises(ConfigError) as error:
        job_from_yaml(written(tmp_path, text))
    for word in ('"nam"', '"paralelism"', "cp belongs in"):
        assert word in str(error.value)
    with pytest.raises(ConfigError, match="no such file"):
        job_from_yaml(str(tmp_path / "none.yaml"))
