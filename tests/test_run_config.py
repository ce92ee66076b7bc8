"""YAML run descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.inputs.run_config import job_from_yaml

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
    ("modl: {name: a/b}", 'unknown section "modl". Did you mean "model"?'),
    ("training: {num_gpus: 8}", "the section model is missing"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: 5", "the section training must hold settings, not 5"),
    ("model: {name: Qwen/Qwen3-8B}\nprecision: {tp: 2}", "tp belongs in the section parallelism, not in precision"),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: two}", "tensor_model_parallel_size='two' must be a whole number"),
    ("model: {name: Qwen/Qwen3-8B, name: x}", 'the key "name" stands twice'),
    ("model: {name: 5}", "model.name=5 must be a word"),
    ("model: {name: a/b", "not valid YAML"),
    ("- a\n- b", "must hold a mapping"),
    ("", "must hold a mapping"),
    ("model: {name: Qwen/Qwen3-8B}\ntraining: {fp8: hybrid}", "fp8='hybrid' is not modelled"),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {1: 2}", "parallelism.1 must be a word"),
    ("model: {name: Qwen/Qwen3-8B}\nparallelism: {[1]: 2}", "not valid YAML"),
    ("model: !!python/object:os.system {}", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_mistakes(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        estimate(job_from_yaml(written(tmp_path, text)))
    assert sentence in str(error.value)


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    text = "model: {nam: x}\nparalelism: {tp: 2}\nprecision: {cp: 2}\n"
    with pytest.raises(ConfigError) as error:
        job_from_yaml(written(tmp_path, text))
    for word in ('"nam"', '"paralelism"', "cp belongs in"):
        assert word in str(error.value)
    with pytest.raises(ConfigError, match="no such file"):
        job_from_yaml(str(tmp_path / "none.yaml"))
