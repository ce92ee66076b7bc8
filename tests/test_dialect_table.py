"""What every dialect has, by the table of them: a page, an example that is read, known settings, degrees of 1 that turn nothing on."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.inputs import dialects as package
from megatron_memory_estimator.inputs.dialects.keys import translated
from megatron_memory_estimator.inputs.dialects.run import Dialect, Run
from megatron_memory_estimator.inputs.dialects.table import MODULES, dialect_of, dialects
from megatron_memory_estimator.inputs.megatron.derive import DERIVED
from megatron_memory_estimator.inputs.setting_names import full_name, known_settings

from .dialect_runs import job, started, written
from .helpers import ROOT
from .test_file_keys import ARCHITECTURE

ONE = "tensor_model_parallel_size: 1, sequence_parallel: true"
"""A degree of 1 beside what only means something above it, as the defaults of several frameworks have it."""
BATCH = "micro_batch_size: 1, global_batch_size: 8"
WORDS = (
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 64 --bf16 "
    "--hf-checkpoint Qwen/Qwen3-8B --num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 512 "
    "--vocab-size 1000 --micro-batch-size 1 --rollout-max-prompt-len 256 --rollout-max-response-len 256 "
    "--tensor-model-parallel-size 1 --sequence-parallel"
)
VERL = f"""
actor_rollout_ref:
  model: {{path: Qwen/Qwen3-8B}}
  actor: {{strategy: megatron, ppo_micro_batch_size_per_gpu: 1, ppo_mini_batch_size: 8, megatron: {{{ONE}}}}}
  rollout: {{n: 1}}
data: {{train_batch_size: 8, max_prompt_length: 512, max_response_length: 512}}
"""
NEMO_RL = f"""
policy:
  model_name: Qwen/Qwen3-8B
  max_total_sequence_length: 1024
  train_micro_batch_size: 1
  train_global_batch_size: 8
  megatron_cfg: {{enabled: true, {ONE}}}
  generation: {{backend: vllm}}
grpo: {{}}
"""
ROLL = f"""
pretrain: Qwen/Qwen3-8B
prompt_length: 512
response_length: 512
actor_train:
  strategy_args: {{strategy_name: megatron_train, strategy_config: {{{ONE}}}}}
  training_args: {{per_device_train_batch_size: 1, gradient_accumulation_steps: 1}}
"""
EXAMPLES: dict[str, Run] = {
    "ms-swift": written(f"{{model: Qwen/Qwen3-8B, {ONE}, {BATCH}, max_length: 1024}}"),
    "verl": written(VERL),
    "NeMo-RL": written(NEMO_RL),
    "Primus": written(
        f"modules: {{pre_trainer: {{framework: megatron, model: qwen3_8B.yaml, overrides: {{{ONE}, seq_length: 1024, {BATCH}}}}}}}"
    ),
    "miles": started("train.py", f"{WORDS} --miles-router-timeout 10"),
    "slime": started("train.py", WORDS),
    "FlagScale": written(f"{{system: {{{ONE}}}, model: {{{', '.join(ARCHITECTURE.splitlines())}, {BATCH}}}}}"),
    "ROLL": written(ROLL),
    "Megatron-Bridge": written(f"{{model: {{{ONE}}}, train: {{{BATCH}}}}}", model="Qwen/Qwen3-8B"),
}


def test_every_dialect_has_an_example() -> None:
    assert [one.name for one in dialects()] == list(EXAMPLES)
    assert len(MODULES) == len(EXAMPLES)


@pytest.mark.parametrize("dialect", dialects(), ids=lambda one: one.name)
def test_an_example_is_read(dialect: Dialect) -> None:
    assert (ROOT / "docs" / "reference" / dialect.page).is_file()
    run = EXAMPLES[dialect.name]
    found = dialect_of(run)
    assert found is not None and found.name == dialect.name
    read = job(run, 8)
    assert (read.layout.tp, read.layout.sequence_parallel, read.training.micro_batch_size) == (1, False, 1)
    assert estimate(read).peak_stage.peak_allocated_bytes > 0


def test_every_default_of_a_framework_is_a_known_setting() -> None:
    known = {*known_settings(), *DERIVED}
    tables = 0
    for module in iter_modules(package.__path__):
        defaults = getattr(import_module(f"{package.__name__}.{module.name}"), "DEFAULTS", None)
        if isinstance(defaults, dict):
            tables += 1
            assert set(defaults) <= known, module.name
    assert tables >= 5


@pytest.mark.parametrize(
    "key", ["bias_activation_fusion", "main_grads_dtype", "fp8_format", "decoder_last_pipeline_num_layers"]
)
def test_every_framework_has_the_fields_of_megatrons_classes(key: str) -> None:
    found, unknown, refused = translated({key: 1})
    assert list(found) == [full_name(key)]
    assert not (unknown or refused)
