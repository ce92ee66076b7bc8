"""Runs of LLaMA-Factory: both engines of Megatron-Core, their defaults and batches, and what is refused by name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, UnsupportedError
from megatron_memory_estimator.errors import ConfigError, QuestionsError
from megatron_memory_estimator.inputs.dialects import llama_factory
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.megatron.files import Caller, from_script

from .dialect_runs import job, started, written
from .random_trees import leaves

MCA = """
model_name_or_path: Qwen/Qwen3-30B-A3B
stage: sft
finetuning_type: full
cutoff_len: 8192
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
lr_scheduler_type: cosine
max_grad_norm: 1.0
bf16: true
tensor_model_parallel_size: 2
sequence_parallel: true
pipeline_model_parallel_size: 2
expert_model_parallel_size: 8
expert_tensor_parallel_size: 1
use_distributed_optimizer: true
moe_token_dispatcher_type: alltoall
recompute_granularity: full
"""
BRIDGE = """
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
lora_rank: 16
lora_target: q_proj
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
tensor_model_parallel_size: 2
sequence_parallel: true
use_packed_sequences: true
mixed_precision: bf16_mixed
"""
PLAIN = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ncutoff_len: 2048\nbf16: true\n"
PAIRS = """
model_name_or_path: /models/Qwen2.5-7B-Instruct
stage: dpo
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
tensor_model_parallel_size: 4
sequence_parallel: true
use_distributed_optimizer: true
"""


def said(found: TrainingJob) -> str:
    return " ".join((*map(str, found.assumptions), *found.warnings))


def test_a_file_of_experts_is_read_as_mcas() -> None:
    """Full recomputation without a method is uniform with one layer; 1 x 16 x 16 / (2 x 2) rows are a step."""
    found = job(written(MCA), 16)
    layout, t = found.layout, found.training
    assert (layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, layout.dp) == (2, 2, 1, 8, 1, 4)
    assert layout.sequence_parallel
    assert (t.seq_length, t.micro_batch_size, t.global_batch_size) == (8192, 1, 64)
    assert (t.recompute_granularity, t.recompute_method, t.recompute_num_layers) == ("full", "uniform", 1)
    assert (t.use_distributed_optimizer, t.grad_dtype, t.gradient_accumulation_fusion) == (True, "fp32", False)
    assert (t.moe_token_dispatcher_type, t.moe_router_dtype) == ("alltoall", "fp32")
    assert found.model.padded_vocab(2) == 151936
    assert "USE_MCA=1 is taken as set" in said(found) and "padded to 8192" in said(found)
    assert not any("unknown" in warning for warning in found.warnings)


def test_the_file_does_not_say_the_number_of_gpus() -> None:
    with pytest.raises(QuestionsError, match="--num-gpus") as caught:
        job(written(MCA))
    assert len(caught.value.questions) == 1
    assert job(written(MCA, variables={"NPROC_PER_NODE": "8", "NNODES": "2"})).layout.world_size == 16


def test_a_script_starts_it_with_words_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "moe.yaml").write_text(MCA)
    script = tmp_path / "run.sh"
    script.write_text(
        "export USE_MCA=1\nNNODES=${NNODES:-4} NPROC_PER_NODE=8 NODE_RANK=${RANK:-0} llamafactory-cli train moe.yaml "
        "per_device_train_batch_size=2 gradient_accumulation_steps=4\n"
    )
    found = TrainingJob.from_file(script)
    assert (found.layout.world_size, found.layout.dp) == (32, 8)
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (2, 64)
    assert "taken as set" not in said(found)
    eight = TrainingJob.from_file(script, set_variables={"NNODES": "1"}, tensor_model_parallel_size=4)
    assert (eight.layout.world_size, eight.layout.tp, eight.training.global_batch_size) == (8, 4, 8)


def test_global_batches_of_both_engines_by_hand() -> None:
    """MCA: 32 GPUs over tp 2 and pp 2 are 8 ranks, 2 x 8 x 8 = 128. Bridge divides by ep too: 16 / (2 x 8) = 1, 2 x 8 = 16."""
    rows = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "8"}
    words = "moe.yaml " + " ".join(f"{key}={value}" for key, value in rows.items())
    env = {"NPROC_PER_NODE": "8", "NNODES": "4", "USE_MCA": "1"}
    assert job(started("lmf train", words, {"moe.yaml": MCA}, env=env)).training.global_batch_size == 128
    env = {"NPROC_PER_NODE": "8", "NNODES": "2", "USE_MEGATRON_BRIDGE": "true"}
    more = f"{words} pipeline_model_parallel_size=1 recompute_method=uniform recompute_num_layers=1"
    found = job(started("llamafactory-cli train", more, {"moe.yaml": MCA}, env=env))
    assert found.training.global_batch_size == 16


def test_keys_that_only_bridge_has_choose_it() -> None:
    """Targets are always the four linears, whatever lora_target says; gradients are fp32, both overlaps on."""
    found = job(written(BRIDGE), 8)
    t = found.training
    assert (
        "USE_MEGATRON_BRIDGE=1 is taken as set: only Megatron-Bridge's engine has mixed_precision, use_packed"
        in said(found)
    )
    assert (t.peft, t.peft_dim, t.peft_target_modules) == ("lora", 16, llama_factory.TARGETS)
    assert (t.seq_length, t.micro_batch_size, t.global_batch_size, t.recompute_granularity) == (4096, 1, 32, None)
    assert (t.use_distributed_optimizer, t.overlap_grad_reduce, t.overlap_param_gather, t.grad_dtype) == (
        True,
        True,
        True,
        "fp32",
    )
    assert (t.cross_entropy_loss_fusion, t.cross_entropy_fusion_impl) == (True, "native")
    assert found.model.padded_vocab(2) == 128256 and not t.create_attention_mask_in_dataloader


def test_packed_rows_of_bridge_are_one_and_the_callers_variable_wins() -> None:
    text = BRIDGE.replace("per_device_train_batch_size: 1", "per_device_train_batch_size: 4")
    assert job(written(text), 8).training.micro_batch_size == 1
    mca = written(f"{PLAIN}tensor_model_parallel_size: 2\n", variables={"USE_MEGATRON_BRIDGE": "1"})
    assert job(mca, 8).training.peft == "lora", "LLaMA-Factory's own default"


def test_a_pair_is_two_rows_and_the_reference_stays() -> None:
    """8 steps of accumulation with one pair are 8 microbatches of two rows, on each of 2 ranks."""
    found = job(written(PAIRS), 8)
    t = found.training
    assert (t.seq_length, t.micro_batch_size, t.global_batch_size, found.num_microbatches) == (2048, 2, 32, 8)
    assert found.rollout.reference_model == "device" and "Qwen2.5-7B-Instruct" in said(found)
    assert job(written(f"{PAIRS}pref_loss: simpo\n"), 8).rollout.reference_model == "none"


def test_rows_of_mca() -> None:
    """Longest rows are padded to a multiple of 64; packed ones are as long as cutoff_len says."""
    text = f"{PLAIN}tensor_model_parallel_size: 2\n".replace("2048", "2000")
    assert job(written(text), 8).training.seq_length == 2048
    packed = job(written(f"{text}neat_packing: true\n"), 8)
    assert packed.training.seq_length == 2000 and "packed to rows of 2000" in said(packed)
    assert job(written(text.replace("sft", "pt")), 8).training.seq_length == 2000
    assert job(written(text.replace("cutoff_len: 2000", "finetuning_type: full")), 8).training.seq_length == 2048


def test_defaults_of_mca() -> None:
    found = job(written(f"{PLAIN}tensor_model_parallel_size: 2\n"), 8)
    t = found.training
    assert not (t.use_distributed_optimizer or found.layout.sequence_parallel or t.apply_rope_fusion)
    assert (t.micro_batch_size, t.global_batch_size, t.recompute_granularity) == (8, 32, None)
    moe = f"{PLAIN}tensor_model_parallel_size: 2\nexpert_model_parallel_size: 4\nmoe_layer_recompute: true\n"
    found = job(written(moe.replace("Qwen3-8B", "Qwen3-30B-A3B")), 8)
    assert found.layout.sequence_parallel and found.layout.etp == 2
    assert found.training.recompute_modules == ("core_attn", "moe")
    assert (found.training.moe_token_dispatcher_type, found.training.moe_grouped_gemm) == ("allgather", True)


def test_other_settings_lie_over_the_keys() -> None:
    text = f"{PLAIN}tensor_model_parallel_size: 2\nuse_distributed_optimizer: true\n"
    found = job(
        written(text + "additional_configs: {recompute_granularity: full, moe_router_dtype: fp64}\n"), 8
    ).training
    assert (found.recompute_granularity, found.recompute_method, found.moe_router_dtype) == ("full", "uniform", "fp64")
    quoted = job(written(text + "additional_configs: '{\"bias_activation_fusion\": true}'\n"), 8)
    assert quoted.training.bias_activation_fusion
    offloaded = (
        text + "use_precision_aware_optimizer: true\noptimizer_cpu_offload: true\noptimizer_offload_fraction: 0.5\n"
    )
    t = job(written(offloaded), 8).training
    assert (t.optimizer_cpu_offload, t.optimizer_offload_fraction) == (True, 0.5)
    extra = (
        '{"model.recompute_granularity": "selective", "ddp": {"overlap_grad_reduce": false}, "checkpoint.save": "x"}'
    )
    t = job(written(f"{BRIDGE}extra_config: '{extra}'\n"), 8).training
    assert (t.recompute_granularity, t.overlap_grad_reduce) == ("selective", False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{PLAIN}deepspeed: examples/deepspeed/ds_z3_config.json\n", "deepspeed="),
        (f"{PLAIN}fsdp: full_shard\ntensor_model_parallel_size: 2\n", "fsdp="),
        (f"{PLAIN}fsdp_config: fsdp.json\n", "fsdp_config="),
        (f"{PLAIN}use_unsloth: true\n", "use_unsloth="),
        (PLAIN, "PyTorch alone"),
        (f"{MCA}quantization_bit: 4\n", "quantization_bit="),
        (f"{MCA}use_galore: true\n", "use_galore="),
        (f"{MCA}optim: adafactor\n", "optim='adafactor'"),
        (f"{MCA}freeze_everything: 3\n", "freeze_everything"),
        (MCA.replace("finetuning_type: full", "finetuning_type: lora"), "finetuning_type='lora'.*USE_MCA; full is"),
        (BRIDGE.replace("finetuning_type: lora", "finetuning_type: oft"), "finetuning_type='oft'"),
        (BRIDGE.replace("stage: sft", "stage: dpo"), "stage='dpo'"),
        (MCA.replace("stage: sft", "stage: kto"), "stage='kto'"),
        (f"{MCA}additional_configs: more.json\n", "additional_configs='more.json' must be a mapping"),
        (f"{BRIDGE}extra_config: {{peft.dim: 8}}\n", "extra_config.peft.dim"),
        (BRIDGE.replace("bf16_mixed", "odd"), "mixed_precision 'odd'"),
    ],
)
def test_what_is_refused_is_named(text: str, says: str) -> None:
    with pytest.raises(EstimatorError, match=says):
        job(written(text), 16)


def test_engines_by_variables() -> None:
    files = {"run.yaml": f"{PLAIN}tensor_model_parallel_size: 2\n"}

    def of(**env: str) -> TrainingJob:
        return job(started("llamafactory-cli train", "run.yaml", files, env={"NPROC_PER_NODE": "8", **env}))

    assert not of(USE_MCA="1").training.use_distributed_optimizer
    assert of(USE_MEGATRON_BRIDGE="y").training.use_distributed_optimizer
    assert "USE_MCA=1 is taken as set" in said(of(USE_MCA="0"))
    with pytest.raises(ConfigError, match="two engines"):
        of(USE_MCA="1", USE_MEGATRON_BRIDGE="1")
    with pytest.raises(UnsupportedError, match="USE_V1"):
        of(USE_V1="1")
    assert llama_factory.knows(started("src/train.py", "run.yaml", env={"USE_MCA": "1"}))
    assert not llama_factory.knows(started("src/train.py", "run.yaml"))


def test_files_that_are_missing_and_gpus_of_a_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lost\.yaml"):
        job(started("lmf train", "lost.yaml"))
    (tmp_path / "moe.yaml").write_text(MCA)
    for line, says in (
        ("USE_MCA=1 llamafactory-cli train moe.yaml", "without NPROC_PER_NODE takes the GPUs that are there"),
        ("USE_MCA=1 NPROC_PER_NODE=$N lmf train moe.yaml", r"NPROC_PER_NODE takes its value from \$N"),
        ("USE_MCA=1 NPROC_PER_NODE=8 llamafactory-cli train $CONFIG", "--set CONFIG="),
        ("llamafactory-cli export moe.yaml", "not a training run"),
    ):
        (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{line}\n")
        with pytest.raises(EstimatorError, match=says):
            TrainingJob.from_file(tmp_path / "run.sh")
    header = "#SBATCH --nodes=2 --gpus-per-node=8\nexport USE_MCA=1 NNODES=$SLURM_NNODES\nsrun llamafactory-cli train moe.yaml\n"
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{header}")
    assert TrainingJob.from_file(tmp_path / "run.sh").layout.world_size == 16


def test_unknown_keys_are_passed_over_by_name() -> None:
    found = job(written(f"{MCA}some_new_switch: true\nadditional_configs: {{odd_field: 3}}\n"), 16)
    assert "unknown keys of LLaMA-Factory passed over: some_new_switch, additional_configs.odd_field" in found.warnings


KEYS = st.sampled_from(
    ["model_name_or_path", "cutoff_len", "stage", "finetuning_type", "tensor_model_parallel_size", "additional_configs", "extra_config",
     "mixed_precision", "lora_rank", "recompute_granularity", "per_device_train_batch_size", "bf16", "optim", "expert_model_parallel_size",
     "x"]
)  # fmt: skip
LEAVES = leaves("full", "${cutoff_len}", "{}", '{"a.b": 1}', "bf16_mixed", "dpo", "pt")
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_random_trees_end_in_a_job_or_a_message(changes: dict[str, Any]) -> None:
    document = {
        "model_name_or_path": "Qwen/Qwen3-8B",
        "stage": "sft",
        "cutoff_len": 512,
        "sequence_parallel": True,
        **changes,
    }
    with suppress(EstimatorError):
        job(Run(document=document), 8)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["run.yaml", "--lora_rank", "4", "cutoff_len=8k", "bf16=true", "~stage"]),
            st.text(max_size=6),
        )
    )
)
def test_random_words_end_in_a_job_or_a_message(words: list[str]) -> None:
    run = Run(program="lmf train", words=tuple(words), env={"USE_MCA": "1"}, text_of={"run.yaml": MCA}.get)
    with suppress(EstimatorError):
        job(run, 16)


def test_words_that_are_printed_start_nothing() -> None:
    with pytest.raises(ConfigError, match="starts no training script"):
        from_script("echo llamafactory-cli train moe.yaml", "run.sh", "run", Caller(), ignore_unknown=False)
