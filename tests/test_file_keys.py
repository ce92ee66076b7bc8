"""Keys that name other files: read as the framework does, or refused by name; never passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError, EstimatorError
from megatron_memory_estimator.inputs.file_keys import names_files
from megatron_memory_estimator.inputs.megatron.files import given_arguments

from .dialect_runs import job, started, written

ARCHITECTURE = "num_layers: 4\nhidden_size: 512\nnum_attention_heads: 8\nvocab_size: 1000\nseq_length: 512\nmax_position_embeddings: 512\n"
DOCUMENTS = {
    "Megatron-LM": ARCHITECTURE,
    "NeMo-RL": "policy: {model_name: Qwen/Qwen3-8B, megatron_cfg: {enabled: true}, generation: {backend: vllm}}\ngrpo: {}\n",
    "verl": "actor_rollout_ref: {model: {path: Qwen/Qwen3-8B}, actor: {strategy: megatron}}\n",
    "ROLL": "pretrain: Qwen/Qwen3-8B\nactor_train: {strategy_args: {strategy_name: megatron_train, strategy_config: {}}}\n",
    "Primus": "modules: {pre_trainer: {framework: megatron, model: qwen3_8B.yaml, overrides: {}}}\n",
    "FlagScale": f"system: {{tensor_model_parallel_size: 1}}\nmodel: {{{', '.join(ARCHITECTURE.splitlines())}}}\n",
    "ms-swift": "model: Qwen/Qwen3-8B\ntensor_model_parallel_size: 1\nmicro_batch_size: 1\nglobal_batch_size: 8\nmax_length: 1024\n",
    "LLaMA-Factory": "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ncutoff_len: 1024\ntensor_model_parallel_size: 1\n",
    "AReaL": 'actor: {backend: "megatron:d8", path: Qwen/Qwen3-8B}\n',
    "Megatron-Bridge": "model: {tensor_model_parallel_size: 2}\ntrain: {global_batch_size: 8}\n",
}
READ = {
    "NeMo-RL": ("defaults",),
    "verl": ("defaults",),
    "ROLL": ("defaults",),
    "FlagScale": ("defaults",),
    "Primus": ("extends", "bases", "includes"),
}
KEYS = (
    "extends",
    "bases",
    "includes",
    "_base_",
    "base_config",
    "config_name",
    "defaults",
    "inherit_from",
    "my_base_path",
)


@pytest.mark.parametrize("ignoring", [False, True])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("dialect", DOCUMENTS)
def test_a_key_that_names_a_file_is_read_or_refused(dialect: str, key: str, ignoring: bool, tmp_path: Path) -> None:
    """A file that is not there in any case: the answer names it, or the key."""
    path = tmp_path / "run.yaml"
    path.write_text(f"{key}: [other.yaml]\n{DOCUMENTS[dialect]}")
    with pytest.raises(EstimatorError, match=r"other\.yaml" if key in READ.get(dialect, ()) else rf"\b{key}\b"):
        TrainingJob.from_file(path, 8, ignore_unknown=ignoring)


def test_arguments_that_name_files_are_not_ignored_either() -> None:
    with pytest.raises(EstimatorError, match=r"--extends \(names a file of settings, which is not read\)"):
        TrainingJob.from_megatron_args(["--extends", "house.yaml"], 1, ignore_unknown=True)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model.extends", "a.yaml", True),
        ("bases", None, False),
        ("include", [], False),
        ("house_base", "a.yml", True),
        ("house_base", "a", False),
        ("default_config", ["x.json"], True),
        ("tool_config_path", "tools.yaml", False),
        ("rotary_base", 10000, False),
        ("deepspeed_config", "zero3.json", False),
    ],
)
def test_which_keys_name_files(key: str, value: Any, expected: bool) -> None:
    assert names_files(key, value) is expected


FOLDER = "primus/configs/models/megatron/"
HOUSE = {
    FOLDER + "house_base.yaml": (
        "extends: [language_model.yaml]\nnormalization: RMSNorm\nposition_embedding_type: rope\ngroup_query_attention: true\n"
        "num_query_groups: 8\nvocab_size: 100000\nhidden_dropout: 0.0\nattention_dropout: 0.0\nseq_length: 16384\n"
    ),
    FOLDER + "house_routing.yaml": "num_query_groups: 4\nrotary_base: 5000\n",
    FOLDER + "house_6B.yaml": (
        "KEY:\n  - ${FIRST:house_base.yaml}\nnum_layers: 28\nhidden_size: 4096\nffn_hidden_size: 11264\nnum_attention_heads: 32\n"
    ),
    FOLDER + "house_two.yaml": "extends: [house_6B.yaml, house_routing.yaml]\nnum_layers: 2\n",
    FOLDER + "torn.yaml": "extends: [house_6B.yaml, lost.yaml]\n",
    FOLDER + "round.yaml": "extends: round.yaml\n",
}
RUN = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: house_6B
    overrides: {micro_batch_size: 2, seq_length: 4096, max_position_embeddings: 4096}
"""


def house(key: str = "extends") -> dict[str, str]:
    return {path: text.replace("KEY", key) for path, text in HOUSE.items()}


@pytest.mark.parametrize("key", ["extends", "bases"])
def test_a_model_of_primus_is_its_whole_chain(key: str) -> None:
    """The review's two files: 5.87 B parameters in 8 groups, RMSNorm and RoPE, not 6.18 B in 32 with what Megatron's parser has."""
    found = job(written(RUN, house(key)), 8)
    model = found.model
    assert (model.num_query_groups, model.normalization, model.position_embedding_type) == (8, "RMSNorm", "rope")
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (28, 4096, 100000)
    assert sum(estimate(found).stages[0].num_parameters) == pytest.approx(5.87e9, rel=1e-3)
    said = "passes bases over; read as extends"
    assert any(said in warning for warning in found.warnings) == (key == "bases")


def test_later_files_of_a_list_and_own_keys_win() -> None:
    found = job(written(RUN.replace("house_6B", "house_two.yaml"), house()), 8)
    assert (found.model.num_layers, found.model.num_query_groups, found.model.hidden_size) == (2, 4, 4096)


def test_the_modules_file_wins_over_the_models() -> None:
    """`seq_length` stands in both: 1024 of pre_trainer.yaml holds; overrides win over both."""
    text = RUN.replace("seq_length: 4096, max_position_embeddings: 4096", "max_position_embeddings: 16384")
    found = job(written(text, house()), 8)
    assert found.training.seq_length == 1024
    assert "lost, for the module's file wins over the model's: seq_length=16384 (the module has 1024)" in found.warnings
    own = {**house(), "primus/configs/modules/megatron/ours.yaml": "extends: [trainer_base.yaml]\nseq_length: 2048\n"}
    assert job(written(text.replace("pre_trainer.yaml", "ours.yaml"), own), 8).training.seq_length == 2048
    with pytest.raises(ConfigError, match=r"ours\.yaml, the config of the module, is not there"):
        job(written(text.replace("pre_trainer.yaml", "ours.yaml"), house()), 8)


def test_a_run_extends_a_run_key_by_key() -> None:
    child = "extends: ${BASE:base_run.yaml}\nmodules: {pre_trainer: {overrides: {seq_length: 8192, max_position_embeddings: 8192}}}\n"
    files = {
        **house(),
        "base_run.yaml": RUN,
        "other_run.yaml": RUN.replace("micro_batch_size: 2", "micro_batch_size: 1"),
    }
    found = job(written(child, files), 8)
    assert (found.training.seq_length, found.training.micro_batch_size, found.model.num_layers) == (8192, 2, 28)
    assert job(written(child, files, variables={"BASE": "other_run.yaml"}), 8).training.micro_batch_size == 1
    launched = started("primus/cli/main.py", "train pretrain --config configs/child.yaml", {
        **house(), "configs/child.yaml": child, "configs/base_run.yaml": RUN
    })  # fmt: skip
    assert job(launched, 8).training.seq_length == 8192


def test_a_variable_in_a_list_of_files_names_another() -> None:
    files = {**house(), FOLDER + "small_base.yaml": "normalization: LayerNorm\nvocab_size: 50257\n"}
    assert job(written(RUN, files, variables={"FIRST": "small_base.yaml"}), 8).model.normalization == "LayerNorm"


@pytest.mark.parametrize(
    ("model", "message"),
    [("torn", rf"{FOLDER}lost\.yaml, which {FOLDER}torn\.yaml extends"), ("round", "more than 20 files")],
)
def test_a_chain_that_is_broken_is_named(model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job(written(RUN.replace("house_6B", model), house()), 8)


@pytest.mark.parametrize("ignoring", [False, True])
def test_a_bare_file_of_a_model_is_no_run(ignoring: bool, tmp_path: Path) -> None:
    path = tmp_path / "house_6B.yaml"
    path.write_text(house()[FOLDER + "house_6B.yaml"])
    with pytest.raises(
        ConfigError, match=r"has no modules: runs of Primus build on it.*modules\.pre_trainer\.model: house_6B\.yaml"
    ):
        given_arguments(str(path), ignore_unknown=ignoring)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "house.yaml"
    path.write_text(f"_base_: [common.yaml]\n{ARCHITECTURE}")
    with pytest.raises(SystemExit) as stop:
        main(["estimate", str(path), "--num-gpus", "1", "--ignore-unknown"])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and "_base_ names 'common.yaml', which is not read here" in error[0]


def test_files_of_roll_and_flagscale_must_be_there() -> None:
    roll = f"defaults: [../config/deepspeed_zero@_here_, ../config/ours@_here_]\n{DOCUMENTS['ROLL']}"
    with pytest.raises(ConfigError, match=r"\.\./config/ours\.yaml, on which run\.yaml builds"):
        job(written(roll), 8)
    files = {
        "../config/ours.yaml": "sequence_length: 3072\nactor_train: {training_args: {per_device_train_batch_size: 2}}\n"
    }
    assert job(written(roll, files), 8).training.micro_batch_size == 2
    experiment = "defaults: [_self_, {train: tiny}, {house: base}]\nexperiment: {task: {type: train}, runner: {nproc_per_node: 8}}\n"
    with pytest.raises(ConfigError, match=r"house/base\.yaml"):
        job(written(experiment, {"train/tiny.yaml": DOCUMENTS["FlagScale"]}), 8)


def test_groups_that_verl_does_not_have_are_named() -> None:
    text = f"defaults: [ppo_megatron_trainer, {{house: big}}, _self_]\n{DOCUMENTS['verl']}"
    with pytest.raises(ConfigError, match=r"defaults names house/big\.yaml, a group that verl does not have"):
        job(written(text), 8)


def test_a_model_file_of_flagscale_says_that_its_entry_is_not_known() -> None:
    assert any(
        "its entry point is not known" in warning for warning in job(written(DOCUMENTS["FlagScale"]), 8).warnings
    )
