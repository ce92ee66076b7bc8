"""Primus: overrides over a model's file or the catalogue's model, with variables of the environment."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import estimate
from megatron_memory_estimator.errors import ConfigError, EstimatorError, QuestionsError
from megatron_memory_estimator.inputs.dialects import primus
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.primus import MODELS, substituted
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.inputs.hf.load import load
from megatron_memory_estimator.job.training_job import TrainingJob

from .random_trees import leaves, trees

EXPERIMENT = """
work_group: ${TEAM:lab}
user_name: ${USER:root}
exp_name: try
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: MODEL.yaml
    overrides:
      train_iters: 10
      micro_batch_size: ${MBS:2}
      global_batch_size: 128
      seq_length: 4096
      max_position_embeddings: 4096
      tensor_model_parallel_size: ${TP:1}
      mock_data: true
      train_data_path: ${DATA}
      lr_decay_iters: null
"""
FOLDER = "primus/configs/models/megatron/"
FILES = {
    FOLDER
    + "own_base.yaml": "bases: [language_model.yaml]\ntokenizer_type: Qwen3Tokenizer\ntokenizer_model: Qwen/Qwen3-8B\n"
    "normalization: RMSNorm\nposition_embedding_type: rope\nattention_dropout: 0.0\nhidden_dropout: 0.0\ngroup_query_attention: true\n",
    FOLDER
    + "own.yaml": "bases: [own_base.yaml]\nnum_layers: 12\nhidden_size: 2048\nffn_hidden_size: 6144\nnum_attention_heads: 16\n"
    "num_query_groups: 4\nfp8_interval: 1\n",
    FOLDER + "lost.yaml": "bases: [nowhere.yaml]\nnum_layers: 4\n",
    FOLDER + "round.yaml": "includes: round.yaml\n",
    "configs/try.yaml": EXPERIMENT.replace("MODEL", "own"),
}


def run_of(file: str, extra: str = "", **more: Any) -> Run:
    text = EXPERIMENT.replace("MODEL", file) + "".join(f"      {line}\n" for line in extra.splitlines())
    return Run(path="try.yaml", document=yaml.safe_load(text), text_of=FILES.get, **more)


def job(file: str, extra: str = "", num_gpus: int | None = 8, **more: Any) -> TrainingJob:
    run = run_of(file, extra, **more)
    dialect = dialect_of(run)
    assert dialect is not None
    assert dialect.name == "Primus"
    return job_of(dialect, run, num_gpus, {})


def test_a_model_of_the_framework_is_the_catalogues() -> None:
    found = job("llama3.1_8B", "overlap_grad_reduce: true\ngradient_accumulation_fusion: false")
    training = found.training
    assert (found.model.num_layers, found.model.hidden_size, found.model.vocab_size) == (32, 4096, 128256)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (4096, 2, 128)
    assert (training.params_dtype, training.use_distributed_optimizer) == ("bf16", True)
    assert training.create_attention_mask_in_dataloader
    assert (training.overlap_grad_reduce, training.gradient_accumulation_fusion) == (True, False)
    assert not found.layout.sequence_parallel
    assert any("llama3.1_8B.yaml of Primus" in one for one in found.assumptions)


def test_sequence_parallelism_is_on_with_tensor_parallelism() -> None:
    for model in ("llama3.1_8B", "own"):
        assert job(model, variables={"TP": "4"}).layout.sequence_parallel
        assert not job(model, "sequence_parallel: false", variables={"TP": "4"}).layout.sequence_parallel


def test_experts_of_the_catalogue_are_dispatched_by_alltoall() -> None:
    found = job("deepseek_v2_lite", "expert_model_parallel_size: 8")
    assert (found.training.moe_token_dispatcher_type, found.training.moe_grouped_gemm) == ("alltoall", True)
    assert found.layout.expert_tensor_parallel_size == 1
    assert job("own").training.moe_token_dispatcher_type == "allgather"


def test_the_files_of_a_model_are_read_with_their_bases() -> None:
    found = job("own")
    assert (found.model.num_layers, found.model.num_query_groups, found.model.gated_linear_unit) == (12, 4, True)
    assert (found.model.vocab_size, found.model.share_embeddings_and_output_weights) == (151669, False)
    assert not found.model.add_bias_linear
    assert found.training.seq_length == 4096


def test_the_environment_and_set_fill_variables() -> None:
    assert job("own", env={"MBS": "4"}).training.micro_batch_size == 4
    assert job("own", env={"MBS": "4"}, variables={"MBS": "1"}).training.micro_batch_size == 1
    with pytest.raises(QuestionsError, match="--set LENGTH=VALUE"):
        job("own", "seq_length: ${LENGTH}")


def test_gpus_stand_in_the_launcher() -> None:
    found = job("own", num_gpus=None)
    assert found.layout.world_size == 8
    start = "num_gpus not given: 8, the fewest nodes of 8 GPUs that the layout and the batch allow"
    assert any(one.startswith(start) for one in found.assumptions)
    assert job("own", num_gpus=None, env={"NNODES": "2"}).layout.world_size == 16
    words = (
        "--config",
        "configs/try.yaml",
        "seq_length=2048",
        "--tensor_model_parallel_size",
        "2",
        "context_parallel_size=2",
    )
    run = Run(program="primus/train.py", words=words, num_gpus=8, text_of=FILES.get)
    dialect = dialect_of(run)
    assert dialect is not None
    found = job_of(dialect, run, None, {})
    assert (found.training.seq_length, found.layout.tensor_model_parallel_size, found.layout.context_parallel_size) == (
        2048,
        2,
        2,
    )


def test_the_launcher_takes_the_file_from_the_environment() -> None:
    run = Run(
        program="examples/run_pretrain.sh",
        words=("micro_batch_size=1",),
        env={"EXP": "configs/try.yaml", "NNODES": "4"},
        text_of=FILES.get,
    )
    dialect = dialect_of(run)
    assert dialect is not None
    found = job_of(dialect, run, None, {})
    assert (found.layout.world_size, found.training.micro_batch_size) == (32, 1)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        primus.read(Run(program="primus/train.py", words=("--config=nowhere.yaml",)))
    with pytest.raises(ConfigError, match="--config FILE"):
        primus.read(Run(program="primus/train.py"))


def test_kernels_of_amd_are_warned_of() -> None:
    for model in ("own", "llama2_7B"):
        lines = "enable_primus_turbo: true\nuse_turbo_attention: true\nfused_padded_mla_attention: false\nmoe_use_legacy_grouped_gemm: true"
        found = job(model, lines)
        assert any(
            "enable_primus_turbo, use_turbo_attention, moe_use_legacy_grouped_gemm" in one for one in found.warnings
        )


def test_forced_balance_is_what_routing_is_taken_from() -> None:
    assert job("mixtral_8x7B_v0.1", "moe_router_force_load_balancing: true").training.routing_phase == "forced_balance"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("enable_zero_bubble: true", "pipeline schedule"),
        ("pp_algorithm: zbv-formatted\npatch_primus_pipeline: true", "pipeline schedule"),
        ("turbo_sync_free_moe_stage: 2\nenable_primus_turbo: true", "buffers of the worst case"),
        ("recompute_layer_ids: '0,3'", "recomputes a list of layers"),
        ("enable_fused_linear_ce: true", "loss in parts"),
        ("recompute_layer_ids: [0, 1]", "recompute_layer_ids"),
        ("spec: [my.module, layers]", "spec"),
    ],
)
@pytest.mark.parametrize("model", ["own", "llama3_8B"])
def test_what_decides_memory_is_refused(model: str, line: str, name: str) -> None:
    with pytest.raises(EstimatorError, match=name):
        job(model, line)


def test_layers_of_virtual_stages_are_a_layout() -> None:
    """`decoder_pipeline_manual_split_list`: 12 layers on two ranks with two chunks each."""
    found = job("own", "pipeline_model_parallel_size: 2\ndecoder_pipeline_manual_split_list: [2, 4, 4, 2]")
    assert (found.layout.pp, len(estimate(found).stages)) == (2, 2)
    assert str(found.layout.pipeline_model_parallel_layout) in ("Et*2|t*4|t*4|t*2L", "Ett|tttt|tttt|ttL")


def test_a_post_trainer_is_fine_tuning_with_its_own_defaults_and_adapters() -> None:
    """AMD-AGI/Primus `primus/configs/modules/megatron/sft_trainer.yaml`: 1 row, 128 samples, 2,048 tokens; LoRA of dimension 32 where it
    is enabled."""
    text = """
modules:
  post_trainer:
    framework: megatron
    config: sft_trainer.yaml
    model: llama3_8B.yaml
    overrides: {stage: sft, tensor_model_parallel_size: 2%s}
"""

    def read(more: str) -> TrainingJob:
        run = Run(path="sft.yaml", document=yaml.safe_load(text % more), text_of=FILES.get)
        return job_of(primus.DIALECT, run, 8, {})

    full = read("")
    t = full.training
    assert (t.micro_batch_size, t.global_batch_size, t.seq_length, t.peft) == (1, 128, 2048, "none")
    tuned = read(", lora: {enabled: true, dim: 16}")
    assert (tuned.training.peft, tuned.training.peft_dim) == ("lora", 16)
    assert tuned.training.peft_target_modules == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    assert read(", lora: {enabled: false, dim: 16}").training.peft == "none"
    with pytest.raises(EstimatorError, match="only sft"):
        read(", stage: dpo")


def test_the_command_of_primus_takes_a_file_and_words(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/try.yaml").write_text(EXPERIMENT.replace("MODEL", "llama3_8B").replace("${DATA}", "none"))
    (tmp_path / "run.sh").write_text(
        "export NNODES=2 TP=4\n"
        "bash runner/primus-cli direct -- train pretrain --config configs/try.yaml micro_batch_size=1 --num_layers 24\n"
    )
    found = TrainingJob.from_file(tmp_path / "run.sh")
    assert (found.layout.world_size, found.layout.tp, found.training.micro_batch_size) == (16, 4, 1)
    assert found.model.num_layers == 24


def test_what_decides_nothing_is_passed_over() -> None:
    for model in ("own", "llama3_8B"):
        found = job(
            model, "stderr_sink_level: DEBUG\nturbo_deepep_num_cu: 64\na_new_switch: true\nenable_zero_bubble: false"
        )
        assert [one for one in found.warnings if "unknown" in one] == [
            "unknown keys of Primus passed over: a_new_switch"
        ]


def test_other_frameworks_and_modules_are_refused() -> None:
    for old, new, name in (
        ("framework: megatron", "framework: torchtitan", "torchtitan"),
        ("pre_trainer:", "sft_trainer:", "sft_trainer"),
    ):
        run = Run(document=yaml.safe_load(EXPERIMENT.replace(old, new)))
        assert dialect_of(run) is primus.DIALECT
        with pytest.raises(EstimatorError, match=name):
            primus.read(run)


def test_files_that_are_missing_are_named() -> None:
    with pytest.raises(ConfigError, match=FOLDER + r"nowhere\.yaml"):
        job("lost")
    with pytest.raises(ConfigError, match="more than 20 files"):
        job("round")
    with pytest.raises(QuestionsError, match=r"my_model.*--model NAME"):
        job("my_model")
    assert job("my_model", model="Qwen/Qwen3-8B").model.num_layers == 36


def test_every_model_of_the_framework_is_in_the_catalogue() -> None:
    for stem, entry in MODELS.items():
        assert load(entry).config, stem


LEAVES = leaves("${A}", "${A:3}", "own.yaml")
KEYS = st.sampled_from(
    [
        "modules",
        "pre_trainer",
        "framework",
        "model",
        "overrides",
        "num_layers",
        "seq_length",
        "bf16",
        "swiglu",
        "tensor_model_parallel_size",
        "disable_bias_linear",
        "recompute_granularity",
        "moe_layer_freq",
        "tokenizer_type",
        "micro_batch_size",
        "use_turbo_x",
        "enable_zero_bubble",
        "num_experts",
        "fp8",
    ]
)
TREES = trees(KEYS, LEAVES)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["own", "llama3_8B", "deepseek_v2_lite"]),
    st.dictionaries(KEYS, LEAVES | st.lists(LEAVES, max_size=2), max_size=5),
)
def test_no_override_breaks_the_reader(model: str, overrides: dict[str, Any]) -> None:
    document = yaml.safe_load(EXPERIMENT.replace("MODEL", model))
    document["modules"]["pre_trainer"]["overrides"] |= overrides
    with contextlib.suppress(EstimatorError):
        job_of(primus.DIALECT, Run(document=document, text_of=FILES.get), 8, {})


@settings(max_examples=100, deadline=None)
@given(
    TREES,
    st.lists(st.sampled_from(["a=1", "--b", "c", "=", "--d=[", "x={", "--", "-1"]), max_size=5),
)
def test_no_tree_breaks_the_reader(tree: dict[str, Any], words: list[str]) -> None:
    text = yaml.safe_dump(tree)
    for run in (
        Run(document=tree),
        Run(program="primus/train.py", words=("--config", "x.yaml", *words), text_of=lambda path: text),
    ):
        primus.knows(run)
        with contextlib.suppress(EstimatorError):
            job_of(primus.DIALECT, run, 8, {})


def test_a_default_in_quotes_is_what_stands_in_them() -> None:
    assert substituted('${PRIMUS_MOE_LAYER_FREQ:"([0]*3+[1]*58)"}', {}) == "([0]*3+[1]*58)"
    assert substituted("${A:'x'}-${B:\"}", {"A": "y"}) == 'y-"'
