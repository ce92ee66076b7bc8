"""ROLL: the worker that trains, its devices, its lengths and what is around it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.errors import ConfigError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.dialects import roll
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.roll import devices
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .random_trees import leaves, nested

EXPERIMENT = """
exp_name: try
prompt_length: 1024
response_length: 3072
pretrain: Qwen/Qwen3-8B
actor_train:
  model_args: {dtype: bf16, model_type: ~}
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 2, gradient_accumulation_steps: 16}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, use_distributed_optimizer: true}
  device_mapping: list(range(0,8))
actor_infer:
  generating_args: {max_new_tokens: "${response_length}"}
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.7}}
  device_mapping: list(range(0,8))
reference:
  strategy_args: {strategy_name: megatron_infer, strategy_config: {}}
  device_mapping: list(range(0,8))
"""


def document(**changes: Any) -> dict[str, Any]:
    """The experiment with values at dotted paths."""
    found: dict[str, Any] = yaml.safe_load(EXPERIMENT)
    for path, value in changes.items():
        *above, last = path.split("__")
        node = found
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return found


def job(**changes: Any) -> TrainingJob:
    run = Run(path="try.yaml", document=document(**changes))
    dialect = dialect_of(run)
    assert dialect is roll.DIALECT
    return job_of(dialect, run, None, {})


CONFIG = "actor_train__strategy_args__strategy_config__"


def test_lengths_batch_and_gpus() -> None:
    found = job()
    assert (found.layout.world_size, found.layout.tp, found.layout.dp) == (8, 2, 4)
    assert (found.training.seq_length, found.training.micro_batch_size, found.training.global_batch_size) == (
        4096,
        2,
        128,
    )
    assert job(sequence_length=2048).training.seq_length == 2048


def test_defaults_are_those_of_roll() -> None:
    found = job(**{CONFIG + "use_distributed_optimizer": None})
    training = found.training
    assert not training.use_distributed_optimizer
    assert not training.gradient_accumulation_fusion
    assert not training.apply_rope_fusion
    assert training.recompute_granularity is None
    assert not found.layout.sequence_parallel
    assert found.model.vocab_size == 151936
    assert job(actor_train__model_args__dtype=None).training.params_dtype == "fp32"


def test_recompute_and_sequence_parallelism() -> None:
    full = job(**{CONFIG + "recompute_granularity": "full"}).training
    assert (full.recompute_method, full.recompute_num_layers) == ("uniform", 1)
    found = job(
        pretrain="Qwen/Qwen3-30B-A3B",
        **{CONFIG + "moe_layer_recompute": True, CONFIG + "expert_model_parallel_size": 4},
    )
    assert found.training.recompute_modules == ("core_attn", "moe")
    assert found.layout.sequence_parallel, "forced with tp and ep above 1"
    assert (found.training.moe_token_dispatcher_type, found.training.moe_grouped_gemm) == ("allgather", True)


def test_packed_rows_bound_the_tokens() -> None:
    packed = job(
        actor_train__use_sequence_packing=True,
        actor_train__sequence_packing_args={"max_packed_sequence_length_train": 9216},
    )
    assert (packed.training.seq_length, packed.training.micro_batch_size, packed.training.global_batch_size) == (
        9216,
        1,
        128,
    )
    assert any("at most 9216" in str(note) for note in packed.assumptions)
    dynamic = job(actor_train__use_dynamic_batching_in_train=True, actor_train__max_tokens_per_microbatch_in_train=2048)
    assert dynamic.training.seq_length == 4096, "one sample may be longer than the bound"


def test_what_is_around_the_training() -> None:
    found = job().rollout
    assert (found.rollout_engine, found.rollout_memory_share, found.rollout_colocated) == ("vllm", 0.7, True)
    assert (found.reference_model, found.weight_sync_bytes) == ("offloaded", 2**30)
    apart = job(
        actor_infer__device_mapping="range(8,16)", is_offload_states=False, model_update_buffer_size_mb=512
    ).rollout
    assert (apart.rollout_colocated, apart.rollout_offload, apart.weight_sync_bytes) == (False, (), 2**29)
    assert apart.reference_model == "device"
    elsewhere = job(reference__device_mapping=[8, 9])
    assert elsewhere.rollout.reference_model == "none"


def test_adapters_and_what_is_refused() -> None:
    found = job(actor_train__model_args__lora_target="q_proj,v_proj,o_proj", actor_train__model_args__lora_rank=16)
    assert (found.training.peft_dim, found.training.peft_target_modules) == (16, ("linear_qkv", "linear_proj"))
    assert found.rollout.reference_model == "none"
    with pytest.raises(QuestionsError, match="freeze_module_prefix"):
        job(actor_train__model_args__freeze_module_prefix="vision_model,embedding")
    with pytest.raises(QuestionsError, match="trainable_module_prefix"):
        job(actor_train__model_args__trainable_module_prefix="vision_model")
    with pytest.raises(QuestionsError, match="freeze_module_prefix"):
        job(actor_train__model_args__freeze_module_prefix="vision_model.patch_embed")
    towers = job(actor_train__model_args__freeze_module_prefix="vision_model", pretrain="Qwen/Qwen3-VL-4B-Instruct")
    assert any("only the language model is counted" in said for said in towers.warnings)
    assert towers.training.freeze_vision_model and towers.training.freeze_vision_projection
    merger = job(
        actor_train__model_args__freeze_module_prefix="vision_model.merger", pretrain="Qwen/Qwen3-VL-4B-Instruct"
    )
    assert merger.training.freeze_vision_projection and not merger.training.freeze_vision_model
    with pytest.raises(UnsupportedError, match="deepspeed_train"):
        job(actor_train__strategy_args__strategy_name="deepspeed_train")
    with pytest.raises(UnsupportedError, match="fsdp2_train"):
        job(actor_train__strategy_args__strategy_name="fsdp2_train")


def test_adam_on_the_host_is_not_handed_on() -> None:
    found = job(**{CONFIG + "optimizer_cpu_offload": True, CONFIG + "optimizer_offload_fraction": 1.0})
    assert not found.training.optimizer_cpu_offload
    assert any("optimizer_cpu_offload" in word for word in found.warnings)


def test_what_is_missing_is_asked_for_together() -> None:
    changed = document(pretrain=None, prompt_length=None)
    changed["actor_train"]["device_mapping"] = None
    with pytest.raises(QuestionsError) as caught:
        job_of(roll.DIALECT, Run(document=changed), None, {})
    assert {one.option for one in caught.value.questions} >= {"--model NAME", "--seq-length N", "--num-gpus N"}


def test_a_supervised_worker_and_the_start_script() -> None:
    text = EXPERIMENT.replace("actor_train", "sft_train").split("actor_infer:")[0]
    run = Run(
        program="examples/start_sft_pipeline.py",
        words=("--config_path", "exp", "--config_name", "try"),
        text_of={"exp/try.yaml": text}.get,
    )
    assert dialect_of(run) is roll.DIALECT
    found = job_of(roll.DIALECT, run, None, {})
    assert found.rollout.rollout_engine is None
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        job_of(roll.DIALECT, Run(program="start_sft_pipeline.py", words=("--config_name", "other")), None, {})


@pytest.mark.parametrize(
    ("given_text", "count"),
    [
        ("list(range(0,8))", 8), ("range(8, 16)", 8), ("list(range(0, 16, 2))", 8), ("[0,1,2]", 3), ([4, 5], 2), (3, 1),
        ("list(range(0,4)) + list(range(8,12))", 8), ("[]", 0), ("list([0,1,2,3,8,9,10,11])", 8),
    ],
)  # fmt: skip
def test_devices(given_text: Any, count: int) -> None:
    found = devices(given_text, "device_mapping")
    assert found is not None
    assert len(found) == count


@pytest.mark.parametrize(
    "text", ["__import__('os')", "range(8", "range(0,999999999)", "range(0,8,0)", "list(8)", {"a": 1}, "[0]*8"]
)
def test_devices_that_are_not_read(text: Any) -> None:
    with pytest.raises(ConfigError):
        devices(text, "device_mapping")


TREES = nested(leaves("${pretrain}", "${a", "full"))
PATHS = st.sampled_from(
    ["actor_train__strategy_args__strategy_config", "actor_train__training_args", "actor_train__model_args", "actor_train__device_mapping",
     "actor_infer__strategy_args", "actor_infer__device_mapping", "pretrain", "response_length", "reference", "critic", "system_envs",
     CONFIG + "recompute_granularity", CONFIG + "tensor_model_parallel_size", "actor_train__use_sequence_packing",
     "actor_train__model_args__lora_target", "model_update_buffer_size_mb", "is_offload_states"]
)  # fmt: skip


def laid_over(changes: dict[str, Any]) -> dict[str, Any]:
    """The experiment with the changes that still fit together."""
    kept: dict[str, Any] = {}
    for path, value in changes.items():
        with contextlib.suppress(AttributeError, TypeError):
            document(**kept, **{path: value})
            kept[path] = value
    return document(**kept)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(PATHS, TREES, max_size=3))
def test_random_trees_end_in_a_job_or_a_message(changes: dict[str, Any]) -> None:
    run = Run(document=laid_over(changes))
    if roll.knows(run):
        with contextlib.suppress(EstimatorError):
            job_of(roll.DIALECT, run, None, {})
