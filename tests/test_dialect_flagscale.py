"""FlagScale: an experiment and its second file become words of Megatron-LM; what is not one run is refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator.errors import ConfigError, EstimatorError
from megatron_memory_estimator.inputs.dialects import flagscale
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.job.training_job import TrainingJob

from .random_trees import leaves, trees

EXPERIMENT = """
defaults: [_self_, {train: tiny}]
experiment:
  exp_name: tiny
  seed: 7
  load: null
  task: {type: train, backend: megatron, entrypoint: flagscale/train/train_gpt.py}
  runner: {backend: torchrun, nnodes: 1, nproc_per_node: 8, hostfile: null}
  envs: {CUDA_DEVICE_MAX_CONNECTIONS: 1, LOGLEVEL: INFO}
action: run
hydra: {run: {dir: "${experiment.exp_name}/hydra"}}
"""
SECOND = """
system:
  tensor_model_parallel_size: 2
  sequence_parallel: true
  use_distributed_optimizer: ${oc.env:SHARDED,true}
  recompute_granularity: null
  overlap_grad_reduce: false
  precision: {bf16: true, initial_loss_scale: 65536}
  logging: {log_interval: 1, wandb_project: "${experiment.exp_name}"}
  checkpoint: {load: "${experiment.load}", save_interval: 100, ckpt_format: torch}
model:
  num_layers: 16
  hidden_size: 1024
  multiple_of: 256
  num_attention_heads: 16
  seq_length: 2048
  max_position_embeddings: 2048
  micro_batch_size: 2
  global_batch_size: 64
  swiglu: true
  untie_embeddings_and_output_weights: true
  use_rotary_position_embeddings: true
  no_position_embedding: true
  disable_bias_linear: true
  seed: ${experiment.seed}
  optimizer: {clip_grad: 1.0, lr_scheduler: {lr: 3.0e-4}}
data:
  data_path: /corpora/x
  tokenizer: {tokenizer_type: QwenTokenizerFS, tokenizer_path: qwen, vocab_size: 151851, make_vocab_size_divisible_by: 64}
"""
FILES = {"train/tiny.yaml": SECOND, "conf/experiment.yaml": EXPERIMENT, "conf/train/tiny.yaml": SECOND}


def reader(files: dict[str, str]) -> Callable[[str], str | None]:
    return files.get


def job(
    text: str = EXPERIMENT, num_gpus: int | None = None, files: dict[str, str] | None = None, **more: Any
) -> TrainingJob:
    run = Run(path="e.yaml", document=yaml.safe_load(text), text_of=reader(FILES if files is None else files), **more)
    dialect = dialect_of(run)
    assert dialect is not None
    assert dialect.name == "FlagScale"
    return job_of(dialect, run, num_gpus, {})


def refusal(text: str, files: dict[str, str] | None = None) -> str:
    with pytest.raises(EstimatorError) as found:
        job(text, files=files)
    return str(found.value)


def test_the_second_file_becomes_words_of_megatron() -> None:
    found = job()
    assert (found.layout.world_size, found.layout.tensor_model_parallel_size, found.layout.sequence_parallel) == (
        8,
        2,
        True,
    )
    assert (found.training.seq_length, found.training.micro_batch_size, found.training.global_batch_size) == (
        2048,
        2,
        64,
    )
    assert (found.training.params_dtype, found.training.use_distributed_optimizer) == ("bf16", True)
    assert found.model.num_layers == 16
    assert not found.training.overlap_grad_reduce


def test_megatrons_own_defaults_hold() -> None:
    found = job().training
    assert found.create_attention_mask_in_dataloader
    assert (found.cross_entropy_loss_fusion, found.gradient_accumulation_fusion) == (False, True)
    assert job().model.attention_dropout == 0.1


def test_the_width_follows_from_its_multiple() -> None:
    """Two thirds of 4 x 1024 is 2730, of which the next multiple of 256 is 2816; a factor comes before."""
    assert job().model.ffn_hidden_size == 2816
    wider = SECOND.replace("multiple_of: 256", "multiple_of: 1024\n  hidden_dim_multiplier: 1.3")
    assert job(files={"train/tiny.yaml": wider}).model.ffn_hidden_size == 4096
    given_too = SECOND.replace("multiple_of: 256", "multiple_of: 256\n  ffn_hidden_size: 4000")
    assert job(files={"train/tiny.yaml": given_too}).model.ffn_hidden_size == 4000


def test_its_tokenizers_take_the_files_vocabulary() -> None:
    found = job()
    assert (found.model.vocab_size, found.model.make_vocab_size_divisible_by) == (151851, 64)
    assert any("QwenTokenizerFS" in one for one in found.warnings)
    assert "--vocab-size N" in refusal(EXPERIMENT, {"train/tiny.yaml": SECOND.replace("vocab_size: 151851, ", "")})


def test_variables_of_the_environment_are_read() -> None:
    assert not job(env={"SHARDED": "false"}).training.use_distributed_optimizer


def test_both_files_may_be_one() -> None:
    whole = EXPERIMENT.replace("defaults: [_self_, {train: tiny}]\n", "")
    indented = "\n".join(f"  {line}" for line in SECOND.splitlines())
    assert job(f"{whole}train:{indented}", files={}).model.num_layers == 16
    assert job(SECOND).layout.world_size == 8
    assert job(SECOND, num_gpus=4).layout.world_size == 4


@pytest.mark.parametrize(
    ("runner", "envs", "gpus"),
    [
        ("{nnodes: 4, nproc_per_node: 8, hostfile: hosts}", "{}", 32),
        ("{nnodes: 4, nproc_per_node: 8, hostfile: two}", "{}", 16),
        ("{nproc_per_node: 8, hostfile: two}", "{}", 16),
        ("{hostfile: null}", '{CUDA_VISIBLE_DEVICES: "0,1,2,3"}', 4),
        ("{nnodes: 2, hostfile: null}", '{CUDA_VISIBLE_DEVICES: "0,1"}', 4),
    ],
)
def test_gpus_are_those_of_the_runner(runner: str, envs: str, gpus: int) -> None:
    lines = EXPERIMENT.splitlines()
    text = "\n".join(
        f"  runner: {runner}" if "runner:" in line else f"  envs: {envs}" if "envs:" in line else line for line in lines
    )
    found = job(text, files={**FILES, "two": "a slots=8\n# c slots=8\nb slots=8\n"})
    assert found.layout.world_size == gpus
    assert any("hostfile" in one for one in found.warnings) == ("nnodes: 2" in runner)


def test_gpus_that_nothing_says_are_the_fewest_nodes_that_go() -> None:
    text = EXPERIMENT.replace("nproc_per_node: 8, ", "")
    found = job(text)
    assert found.layout.world_size == 8
    assert any(one.startswith("num_gpus not given: 8, the fewest nodes of 8 GPUs") for one in found.assumptions)
    of_sixteen = job(
        EXPERIMENT.replace("hostfile: hosts", "hostfile: lost").replace("nproc_per_node: 8", "nproc_per_node: 16")
    )
    assert of_sixteen.layout.world_size == 16
    assert job(text, num_gpus=4).layout.world_size == 4


def test_words_of_hydra_win() -> None:
    words = ("--config-path", "./conf", "--config-name", "experiment", "action=run", "train.system.tensor_model_parallel_size=4",
             "+train.system.context_parallel_size=2", "~train.system.precision.initial_loss_scale")  # fmt: skip
    run = Run(program="run.py", words=words, text_of=reader(FILES))
    dialect = dialect_of(run)
    assert dialect is not None
    found = job_of(dialect, run, None, {})
    assert (found.layout.tensor_model_parallel_size, found.layout.context_parallel_size) == (4, 2)


def test_a_model_of_the_examples_by_name() -> None:
    files = {"examples/tiny/conf/train.yaml": EXPERIMENT, "examples/tiny/conf/train/tiny.yaml": SECOND}
    for program, words in (("flagscale train", ("tiny",)), ("flagscale", ("train", "tiny"))):
        assert (
            job_of(flagscale.DIALECT, Run(program=program, words=words, text_of=files.get), None, {}).layout.world_size
            == 8
        )
    with pytest.raises(ConfigError, match=r"examples/other/conf/train\.yaml"):
        flagscale.read(Run(program="flagscale train", words=("other",), text_of=files.get))


def test_its_program_by_itself_takes_words() -> None:
    words = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1"
    words += " --tokenizer-type HFTokenizerFS --vocab-size 32000 --bf16 --no-shared-fs --log-dir /x"
    run = Run(program="FlagScale/flagscale/train/train_gpt.py", words=tuple(words.split()), num_gpus=2)
    assert job_of(flagscale.DIALECT, run, None, {}).model.vocab_size == 32000


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("type: train", "type: inference", "inference"),
        ("type: train", "type: rl", "rl"),
        ("backend: megatron", "backend: vllm", "vllm"),
        ("action: run", "action: auto_tune", "auto_tune"),
        ("action: run", "auto_tuner: {space: {}}", "auto_tune"),
        ("train_gpt.py", "train_qwen2_5_vl.py", "another kind of model"),
        ("train_gpt.py", "train_rwkv.py", "another kind of model"),
        ("{train: tiny}", "{train: big}", "train/big.yaml"),
    ],
)
def test_what_is_not_a_training_run_is_refused(old: str, new: str, name: str) -> None:
    assert name in refusal(EXPERIMENT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("hetero: {enable_hetero: true, hetero_process_meshes: [1, 1, 1, 4, 1]}", "hetero"),
        ("hetero_pipeline_layer_split: [8, 8]", "hetero"),
        ("recompute_num_layers_per_stage_micro_batch: [1, 2, 0, 3]", "recompute_num_layers_per_stage_micro_batch"),
        ("peft_type: lora", "peft_type"),
        ("use_dualpipev: true", "use_dualpipev"),
        ("my_offload_states: true", "my-offload-states"),
    ],
)
def test_what_decides_memory_is_refused(line: str, name: str) -> None:
    assert name in refusal(EXPERIMENT, {"train/tiny.yaml": SECOND.replace("system:", f"system:\n  {line}")})


def test_what_decides_nothing_is_passed_over() -> None:
    lines = (
        "system:\n  hetero: {enable_hetero: false}\n  no_shared_fs: true\n  brand_new_logger: x\n  wandb_mode: offline"
    )
    found = job(files={"train/tiny.yaml": SECOND.replace("system:", lines)})
    assert any("--brand-new-logger" in one for one in found.warnings)
    assert not any("wandb" in one or "shared" in one for one in found.warnings)


def test_files_that_name_themselves_end() -> None:
    assert "more than 20 files" in refusal(EXPERIMENT, {"train/tiny.yaml": "defaults: [tiny]"})


LEAVES = leaves("${experiment.x}", "${a.b}", "[1")
KEYS = st.sampled_from(
    [
        "defaults",
        "experiment",
        "train",
        "system",
        "model",
        "data",
        "task",
        "runner",
        "type",
        "backend",
        "hostfile",
        "nnodes",
        "nproc_per_node",
        "envs",
        "hetero",
        "num_layers",
        "vocab_size",
        "tokenizer_type",
        "multiple_of",
        "hidden_size",
        "swiglu",
        "action",
    ]
)
TREES = trees(KEYS, LEAVES)


@settings(max_examples=150, deadline=None)
@given(TREES, LEAVES | TREES)
def test_no_tree_breaks_the_reader(document: dict[str, Any], second: Any) -> None:
    text = yaml.safe_dump(second)
    for tree in (document, {**yaml.safe_load(EXPERIMENT), **document}):
        run = Run(document=tree, text_of=lambda path: text if path.endswith("tiny.yaml") else None)
        flagscale.knows(run)
        with contextlib.suppress(EstimatorError):
            job_of(flagscale.DIALECT, run, None, {})
