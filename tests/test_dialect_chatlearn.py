"""ChatLearn: words over its file, packed rows and rows of one length, phases, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.errors import ConfigError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.dialects import chatlearn
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .dialect_runs import job, started
from .random_trees import leaves, nested

TEMPLATE = """
runtime_args:
  train_backend: megatron
  rollout_backend: vllm
  colocation: [policy, policy_trainer, ref_policy]
  train_micro_batch_size: 4
  train_global_batch_size: 512
models:
  policy_trainer:
    free_gpu_memory: {offload_weights: true, offload_optimizer_states: true, free_grad_buffers: true}
    optimizer: {lr: 1e-6}
    bf16: true
    tokenizer_model: ${models.policy.load}
    trainable: true
    num_gpu: 1
    train_micro_batch_size: ${runtime_args.train_micro_batch_size}
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 1
    expert_tensor_parallel_size: null
    expert_model_parallel_size: 1
    virtual_pipeline_model_parallel_size: null
    decoder_first_pipeline_num_layers: null
    load: megatron_checkpoint
    sequence_parallel: true
    use_distributed_optimizer: true
    recompute_granularity: null
    packing: true
    max_token_in_packing: ${models.policy_trainer.seq_length}
  ref_policy:
    free_gpu_memory: {offload_weights: true}
    trainable: false
    tensor_model_parallel_size: ${models.policy_trainer.tensor_model_parallel_size}
    pipeline_model_parallel_size: ${models.policy_trainer.pipeline_model_parallel_size}
    expert_model_parallel_size: ${models.policy_trainer.expert_model_parallel_size}
  policy:
    load: hf_model
    tensor_model_parallel_size: 1
    max_prompt_tokens_length: 1024
    max_response_tokens_length: 2048
    gpu_memory_utilization: 0.8
"""
FILES = {"template/grpo_megatron.yaml": TEMPLATE}
PROGRAM = "chatlearn/entrypoint.py"
START = "grpo --config-file template/grpo_megatron.yaml "
WORDS = f"{START} models.policy_trainer.num_gpu=8 models.policy.load=Qwen/Qwen3-8B models.policy_trainer.packing=False "


def run_of(words: str = "") -> TrainingJob:
    return job(started(PROGRAM, WORDS + words, FILES))


def script(folder: Path, text: str) -> TrainingJob:
    (folder / "template").mkdir()
    (folder / "template" / "grpo_megatron.yaml").write_text(TEMPLATE)
    path = folder / "run.sh"
    path.write_text(text)
    return TrainingJob.from_file(str(path))


def test_packed_rows_of_a_script_that_ends_with_the_status_of_its_pipe(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        """#!/bin/bash
[ -z "$WORLD_SIZE" ] && export WORLD_SIZE=2
[ -z "$GPUS_PER_NODE" ] && export GPUS_PER_NODE=8
export num_device=$(($WORLD_SIZE * $GPUS_PER_NODE))
python chatlearn/entrypoint.py grpo --config-file template/grpo_megatron.yaml \\
    runtime_args.train_global_batch_size=1024 runtime_args.train_micro_batch_size=1 \\
    models.policy_trainer.num_gpu=${num_device} models.policy_trainer.packing=True \\
    models.policy_trainer.max_token_in_packing=6144 models.policy_trainer.tensor_model_parallel_size=2 \\
    models.policy_trainer.pipeline_model_parallel_size=2 models.policy_trainer.expert_tensor_parallel_size=1 \\
    models.policy_trainer.expert_model_parallel_size=8 models.policy_trainer.recompute_granularity=full \\
    models.policy_trainer.recompute_method=uniform models.policy_trainer.recompute_num_layers=1 \\
    models.policy.load=pretrained/Qwen3-30B-A3B models.policy.max_response_tokens_length=3072 \\
    models.policy.tensor_model_parallel_size=2 models.policy.gpu_memory_utilization=0.7 \\
    2>&1 | tee log.txt ; exit ${PIPESTATUS[0]}
""",
    )
    layout, training, around = found.layout, found.training, found.rollout
    assert (layout.world_size, layout.tp, layout.pp, layout.ep, layout.etp, layout.dp) == (16, 2, 2, 8, 1, 4)
    assert layout.sequence_parallel and training.use_distributed_optimizer
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (6144, 1, 1024)
    assert (training.recompute_granularity, training.recompute_method, training.recompute_num_layers) == (
        "full",
        "uniform",
        1,
    )
    assert (training.params_dtype, training.accumulate_allreduce_grads_in_fp32) == ("bf16", True)
    assert (training.moe_token_dispatcher_type, training.moe_grouped_gemm) == ("alltoall", True)
    assert (around.rollout_engine, around.rollout_memory_share, around.rollout_tensor_parallel_size) == ("vllm", 0.7, 2)
    assert around.rollout_colocated and around.rollout_offload == ("weights", "gradients", "optimizer")
    assert around.reference_model == "offloaded"
    assert found.model.vocab_size == 151936
    assert not any("ref_policy" in said for said in found.warnings)


def test_rows_of_one_length(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        """export num_device=8
python chatlearn/entrypoint.py grpo --config-file template/grpo_megatron.yaml models.policy_trainer.num_gpu=${num_device} \\
    models.policy_trainer.packing=False runtime_args.train_micro_batch_size=2 runtime_args.train_global_batch_size=256 \\
    models.policy_trainer.tensor_model_parallel_size=4 models.policy.load=pretrained/Qwen3-8B \\
    models.policy.max_response_tokens_length=1024 models.policy.gpu_memory_utilization=0.6
""",
    )
    training = found.training
    assert (found.layout.world_size, found.layout.tp, found.layout.dp) == (8, 4, 2)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (2048, 2, 256)
    assert training.recompute_granularity is None
    assert found.rollout.rollout_memory_share == 0.6
    assert any("padded to 2048 tokens, 2 samples" in str(note) for note in found.assumptions)


def test_fsdp_is_refused_by_name_whether_its_file_is_there_or_not() -> None:
    with pytest.raises(UnsupportedError, match="fsdp"):
        job(started(PROGRAM, "grpo --config-file template/grpo_fsdp.yaml runtime_args.train_backend=fsdp"))
    with pytest.raises(UnsupportedError, match="fsdp"):
        job(
            started(
                PROGRAM, "grpo --config-file a.yaml", {"a.yaml": TEMPLATE.replace("backend: megatron", "backend: fsdp")}
            )
        )
    with pytest.raises(UnsupportedError, match="train_backend is not given"):
        job(started(PROGRAM, "grpo models.policy.load=Qwen/Qwen3-8B"))
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        job(started(PROGRAM, "grpo --config-file other.yaml"))


def test_the_file_is_the_run() -> None:
    document = yaml.safe_load(TEMPLATE)
    document["models"]["policy_trainer"] |= {"num_gpu": 4, "max_token_in_packing": 8192}
    document["models"]["policy"]["load"] = "Qwen/Qwen3-8B"
    run = Run(path="try.yaml", document=document)
    assert dialect_of(run) is chatlearn.DIALECT
    found = job(run)
    assert (found.layout.world_size, found.training.seq_length) == (4, 8192)
    assert not found.layout.sequence_parallel, "tp is 1"


def test_what_is_missing_is_asked_for_together() -> None:
    words = "grpo runtime_args.train_backend=megatron models.policy_trainer.packing=True models.policy_trainer.sequence_parallel=True"
    with pytest.raises(QuestionsError) as caught:
        job(started(PROGRAM, words))
    assert {one.option for one in caught.value.questions} == {"--model NAME", "--num-gpus N", "--seq-length N"}
    with pytest.raises(QuestionsError) as caught:
        job(started(PROGRAM, words.replace("packing=True", "packing=False")))
    assert {"--seq-length N", "--micro-batch-size N"} <= {one.option for one in caught.value.questions}


def test_phases_follow_what_is_on_the_same_gpus() -> None:
    apart = run_of("runtime_args.colocation=[] models.policy_trainer.free_gpu_memory.offload_weights=False")
    assert (apart.rollout.rollout_colocated, apart.rollout.reference_model) == (False, "none")
    assert apart.rollout.rollout_offload == ("gradients", "optimizer")
    stays = run_of("models.ref_policy.free_gpu_memory.offload_weights=False")
    assert stays.rollout.reference_model == "device"
    split = run_of("models.policy_trainer.tensor_model_parallel_size=2 models.ref_policy.tensor_model_parallel_size=1")
    assert any("models.ref_policy has tensor_model_parallel_size=1 instead of 2" in said for said in split.warnings)
    longer = run_of("models.policy_trainer.packing=True models.policy_trainer.max_token_in_packing=2048")
    assert longer.training.seq_length == 3072
    assert any("above models.policy_trainer.max_token_in_packing=2048" in said for said in longer.warnings)


def test_what_is_not_known_is_said() -> None:
    found = run_of("models.policy_trainer.strange=1 models.policy.load=Qwen/Qwen3-Next-80B-A3B-Instruct")
    said = " ".join(found.warnings)
    assert "models.policy_trainer.strange" in said
    assert "hybrid" in said
    assert "log-probabilities" in said
    assert any("vocabulary" in str(note) for note in found.assumptions)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("models.policy_trainer.lora_rank=8", "lora_rank"),
        ("models.value_trainer.trainable=True", "value_trainer"),
        ("models.policy_trainer.optimizer.offload_it=True", "offload_it"),
    ],
)
def test_what_is_refused_by_name(words: str, named: str) -> None:
    with pytest.raises(QuestionsError, match=named):
        run_of(words)


TREES = nested(leaves("${models.policy.load}", "${a"))
PATHS = st.sampled_from(
    ["runtime_args.colocation", "runtime_args.train_micro_batch_size", "runtime_args.rollout_backend", "models.policy_trainer.num_gpu",
     "models.policy_trainer.packing", "models.policy_trainer.max_token_in_packing", "models.policy_trainer.optimizer", "models.ref_policy",
     "models.policy_trainer.free_gpu_memory", "models.policy", "models.policy.load", "models.policy.gpu_memory_utilization",
     "models.policy_trainer.tensor_model_parallel_size", "models.policy_trainer.recompute_granularity", "models", "models.policy_trainer"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(PATHS, TREES, max_size=3))
def test_random_trees_end_in_a_job_or_a_message(changes: dict[str, Any]) -> None:
    document = yaml.safe_load(TEMPLATE)
    for path, value in changes.items():
        *above, last = path.split(".")
        node = document
        for part in above:
            node = node[part] if isinstance(node, dict) and part in node else {}
        if isinstance(node, dict):
            node[last] = value
    run = Run(document=document)
    if chatlearn.knows(run):
        with contextlib.suppress(EstimatorError):
            job(run)
