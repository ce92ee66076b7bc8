"""Values that a launch script leaves open, in runs of other frameworks: asked for where memory depends on them, never chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.errors import ConfigError, QuestionsError
from megatron_memory_estimator.inputs.dialects.launched import PARENTS, Place
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.unknowns import probes
from megatron_memory_estimator.inputs.runs.files import job_from_file
from megatron_memory_estimator.service.answers import answered

from .fuzz.dialects import NEMO, SLIME

SWIFT = "megatron sft --model Qwen/Qwen3-8B --max_length 2048 --packing true"
ACTOR, ENGINE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERL = (
    "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer algorithm.adv_estimator=grpo "
    f"actor_rollout_ref.model.path=Qwen/Qwen3-8B {ACTOR}.ppo_mini_batch_size=64 {ACTOR}.ppo_micro_batch_size_per_gpu=1"
)
FULL = f"+{ACTOR}.megatron.override_transformer_config.recompute_granularity=full"
EITHER = "if [ -f /x ]; then A='{0}'; else A='{1}'; fi\n"


def job(folder: Path, script: str, **given: Any) -> TrainingJob:
    path = folder / "run.sh"
    path.write_text(script)
    return TrainingJob.from_file(str(path), **given)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (EITHER.format("--recompute_granularity full", "") + f"NPROC_PER_NODE=8 {SWIFT} $A", "which words are passed"),
        (EITHER.format("full", "none") + f"NPROC_PER_NODE=8 {SWIFT} --recompute_granularity $A", "(full or none)"),
        (EITHER.format("2", "4") + f"NPROC_PER_NODE=8 {SWIFT} --tensor_model_parallel_size $A", "depends on `[ -f /x ]` (line 1)"),
        (f"NPROC_PER_NODE=8 {SWIFT} --optimizer_cpu_offload $A", "takes its value from $A"),
        (f"NPROC_PER_NODE=8 {SWIFT} $(cat args.txt)", "which arguments the program is given"),
        (f"export NPROC_PER_NODE=$A\n{SWIFT}", "NPROC_PER_NODE takes its value from $A"),
        (f"export NPROC_PER_NODE=$(nvidia-smi -L | wc -l)\n{SWIFT}", "which is not executed"),
        ("if [ -f /x ]; then export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fi\n" + f"NPROC_PER_NODE=8 {SWIFT}",
         "PYTORCH_CUDA_ALLOC_CONF"),
        (EITHER.format(FULL, "") + f"{VERL} $A", "which words are passed"),
        (EITHER.format("tensor_model_parallel_size", "pipeline_model_parallel_size") + f"{VERL} {ACTOR}.megatron.$A=2", "taken from $A"),
        (f"{VERL} {ENGINE}.name=$A", f"{ENGINE}.name: taken from $A"),
        (f"{VERL} algorithm.adv_estimator=$A", "algorithm.adv_estimator: taken from $A"),
        (f"{VERL} {ACTOR}.megatron.param_offload=$A", "$A is not known"),
        (f"{VERL} {ACTOR}.megatron.tensor_model_parallel_size=$(nproc)", "--tensor-model-parallel-size VALUE"),
        (f"python {SLIME} --entropy-coef $A", "$A is not known: give --set A=VALUE"),
        ("cat > c.yaml <<X\nactor_rollout_ref: {actor: {strategy: megatron, megatron: {tensor_model_parallel_size: $A}}}\nX\n"
         f"{VERL} --config-path=. --config-name=c", "takes its value from $A"),
        (EITHER.format("2", "4") + "cat > c.yaml <<X\nactor_rollout_ref: {actor: {strategy: megatron, megatron: "
         f"{{tensor_model_parallel_size: $A}}}}}}\nX\n{VERL} --config-path=. --config-name=c", "memory depends on c.yaml"),
        (f"echo 'a: 1' > c.yaml\nsed -i s/1/2/ c.yaml\n{VERL} --config-path=. --config-name=c", "is written by a command"),
    ],
)  # fmt: skip
def test_what_memory_depends_on_is_asked_for(script: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as found:
        job(tmp_path, script)
    assert sentence in str(found.value)
    assert isinstance(found.value, QuestionsError) or "written by a command" in sentence


@pytest.mark.parametrize(
    "script",
    [
        EITHER.format("1", "2") + f"NPROC_PER_NODE=8 {SWIFT} --seed $A --save $B/x --load $(date)",
        EITHER.format("trainer.logger=wandb", "")
        + f"{VERL} $A trainer.project_name=$B data.train_files=$HOME/x.parquet",
        f"{VERL} trainer.experiment_name=$(date) actor_rollout_ref.model.path=$ROOT/models/Qwen3-8B",
        f"python {SLIME} --sequence-parallel $EXTRA",
    ],
)
def test_what_changes_no_byte_stays_open(script: str, tmp_path: Path) -> None:
    assert job(tmp_path, script).model.num_layers in (36, 4)


def test_a_word_that_vanishes_is_said(tmp_path: Path) -> None:
    found = job(tmp_path, f"NPROC_PER_NODE=8 {SWIFT} $EXTRA")
    assert "set nowhere, taken as empty: $EXTRA" in found.warnings


def test_an_answer_is_taken(tmp_path: Path) -> None:
    script = EITHER.format("2", "4") + f"NPROC_PER_NODE=8 {SWIFT} --tensor_model_parallel_size $A"
    assert job(tmp_path, script, set_variables={"A": "2"}).layout.tp == 2
    assert job(tmp_path, script, tp=4).layout.tp == 4
    assert job(tmp_path, f"export NPROC_PER_NODE=$N\n{SWIFT}", num_gpus=16).layout.world_size == 16


def test_a_file_that_the_script_writes_wins_over_one_on_disk(tmp_path: Path) -> None:
    text = "actor_rollout_ref: {{actor: {{strategy: megatron, megatron: {{tensor_model_parallel_size: {}}}}}}}\n"
    (tmp_path / "c.yaml").write_text(text.format(8))
    assert job(tmp_path, f"cat > c.yaml <<X\n{text.format(4)}X\n{VERL} --config-path=. --config-name=c").layout.tp == 4


def test_files_are_opened_in_the_tree_of_the_run_alone(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "a" / "b"
    for folder in (outside, tree):
        folder.mkdir(parents=True)
    (outside / "x.yaml").write_text("a: 1")
    (tmp_path / "a" / "near.yaml").write_text("a: 2")
    (tree / "link.yaml").symlink_to("/etc/hostname")
    (tree / "here.yaml").symlink_to(tmp_path / "a" / "near.yaml")
    (tree / "run.sh").touch()
    place = Place(str(tree / "run.sh"))
    assert place.text_of("../near.yaml") == place.text_of("near.yaml") == place.text_of("here.yaml") == "a: 2"
    assert place.text_of("link.yaml") is None
    assert place.text_of(str(outside / "x.yaml")) is None
    (tree / "own.yaml").write_text("a: 3")
    assert place.text_of(str(tree / "own.yaml")) == "a: 3"
    assert place.text_of(str(tree / "link.yaml")) is None
    assert Place(str(tree / "run.sh"), follow=True).text_of(str(outside / "x.yaml")) == "a: 1"
    inside = Place(str(tree / "run.sh"), root=str(tmp_path / "a"))
    assert inside.text_of("../near.yaml") == "a: 2"
    assert inside.text_of("../../outside/x.yaml") is None
    deep = outside.joinpath(*"1234567")
    deep.mkdir(parents=True)
    (deep / "run.sh").touch()
    assert Place(str(deep / "run.sh")).text_of("../" * (PARENTS + 1) + "x.yaml") is None


def asked(folder: Path | None, **arguments: Any) -> dict[str, Any]:
    found = answered(
        {"tool": "estimate", "arguments": arguments, "folder": None if folder is None else str(folder), "seconds": 60}
    )
    return dict(found)


def test_the_server_opens_no_file_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "secret.yaml").write_text("policy: {model_name: Qwen/Qwen3-1.7B}\n")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "a")
    for name in ("secret.yaml", "../secret.yaml", str(tmp_path / "secret.yaml")):
        text = f"defaults: [grpo_math_1B_megatron.yaml, {name}]\npolicy: {{megatron_cfg: {{enabled: true}}}}\n"
        assert "is not there" in asked(None, text=text, num_gpus=8)["error"]
        assert "follow opens files anywhere" in asked(None, text=text, num_gpus=8, settings={"follow": True})["error"]
    for model in (str(tmp_path), "..", "-"):
        error = asked(None, text=f"megatron sft --model {model} --max_length 128\n", num_gpus=8)["error"]
        assert "is not known" in error and "config.json must" not in error


def test_the_server_opens_files_beside_a_run_below_its_folder(tmp_path: Path) -> None:
    import yaml

    conf = tmp_path / "in" / "conf"
    conf.mkdir(parents=True)
    (conf / "run.yaml").write_text(yaml.safe_dump({**NEMO, "defaults": "../base.yaml"}))
    (tmp_path / "in" / "base.yaml").write_text("defaults: grpo_math_1B_megatron.yaml\n")
    assert "answer" in asked(tmp_path / "in", model="conf/run.yaml", num_gpus=8)
    assert "cannot be read" in asked(conf, model="run.yaml", num_gpus=8)["error"]


def test_null_bytes_are_refused() -> None:
    with pytest.raises(EstimatorError, match="null byte"):
        TrainingJob.from_megatron_args(["--num-layers", "\0?1\0"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f"NPROC_PER_NODE=8 {SWIFT}"),
        ("run.yaml", "model: Qwen/Qwen3-8B\nmax_length: 512\nENV: {NPROC_PER_NODE: 8}\n"),
        ("run.yaml", "model: {name: Qwen/Qwen3-8B}\nparallelism: {num_gpus: 8}\n"),
    ],
)
def test_a_variable_that_changes_nothing_is_said(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = TrainingJob.from_file(str(path), set_variables={"NPROC_PER_NOD": "4"})
    assert "--set NPROC_PER_NOD changes nothing: the run is the same without it" in found.warnings
    assert not any("--set" in one for one in TrainingJob.from_file(str(path)).warnings)


def test_variables_of_the_caller_win_over_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: Qwen/Qwen3-8B\nmax_length: 512\nENV: {NPROC_PER_NODE: 8}\n")
    given = {"NPROC_PER_NODE": "4", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    found = TrainingJob.from_file(str(path), set_variables=given)
    assert found.layout.world_size == 4
    assert found.env.expandable_segments
    assert not any("--set" in one for one in found.warnings)


def test_words_that_are_no_numbers_of_gpus_or_tokens_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match="depends on the machines"):
        job(tmp_path, f"NPROC_PER_NODE=gpu {SWIFT}")
    with pytest.raises(QuestionsError, match="max_length is True"):
        job(tmp_path, "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --max_length")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{ACTOR}.ppo_mini_batch_sise=64", f"{ACTOR}.ppo_mini_batch_sise (is it ppo_mini_batch_size?)"),
        ("actor_rolout_ref.rollout.n=4", "actor_rolout_ref (is it actor_rollout_ref?)"),
        ("data.max_response_lenght=64", "data.max_response_lenght (is it max_response_length?)"),
    ],
)
def test_a_misspelled_key_of_a_tree_is_said(words: str, said: str, tmp_path: Path) -> None:
    text = VERL.replace(f"{ACTOR}.ppo_mini_batch_size=64 ", "")
    assert any(said in one for one in job(tmp_path, f"{text} {words}").warnings)
    assert not any("is it" in one for one in job(tmp_path, VERL).warnings)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"{ACTOR}.megatron.param_ofload=True", f"{ACTOR}.megatron.param_ofload (is it param_offload?)"),
        (f"{ACTOR}.ppo_max_token_len=8192", f"{ACTOR}.ppo_max_token_len (is it ppo_max_token_len_per_gpu?)"),
        ("trainer.n_nodes=2", "trainer.n_nodes (is it nnodes?)"),
        (
            "actor_rollout_ref.rollout.gpu_memory_util=0.8",
            "actor_rollout_ref.rollout.gpu_memory_util (is it gpu_memory_utilization?)",
        ),
    ],
)
def test_a_key_near_a_field_of_verl_is_said_once(word: str, said: str, tmp_path: Path) -> None:
    """Fields of volcengine/verl 0.9.1; hydra refuses a key that is none."""
    (warning,) = [one for one in job(tmp_path, f"{VERL} {word}").warnings if "unknown keys" in one]
    assert warning == f"unknown keys of verl passed over: {said}"


BRIDGE = "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.global_batchsize=64", "train.global_batchsize (is it global_batch_size?)"),
        ("modle.tensor_model_parallel_size=4", "modle (is it model?)"),
        ("ddp.use_distributed_optimzer=false", "ddp.use_distributed_optimzer (is it use_distributed_optimizer?)"),
        ("optimizer.use_precision_aware=true", "optimizer.use_precision_aware (is it use_precision_aware_optimizer?)"),
        ("model.sequence_paralel=false", "model.sequence_paralel (is it sequence_parallel?)"),
    ],
)
def test_a_key_near_a_field_of_bridge_is_said(word: str, said: str, tmp_path: Path) -> None:
    found = job(tmp_path, f"{BRIDGE} {word}").warnings
    assert f"unknown keys of Megatron-Bridge passed over: {said}" in found
    assert not any("unknown keys" in one for one in job(tmp_path, f"{BRIDGE} train.train_iters=4").warnings)


def test_a_misspelled_key_that_decides_memory_is_refused_with_what_is_meant(tmp_path: Path) -> None:
    for key, meant in (
        ("recompute_granularty=full", "recompute_granularity"), ("tensor_model_paralel_size=2", "tensor_model_parallel_size"),
    ):  # fmt: skip
        name, _, text = key.partition("=")
        said = rf"{name}='{text}' decides memory .* \(is it {meant}\?\)"
        with pytest.raises(EstimatorError, match=said):
            job(tmp_path, f"{BRIDGE} model.{key}")


def test_a_length_of_the_model_beside_another_one_of_the_data_set_is_refused(tmp_path: Path) -> None:
    """Megatron-Bridge `training/config.py` asserts that they are the same; until 0.5 the data set's is called sequence_length."""
    with pytest.raises(EstimatorError, match=r"model\.seq_length=4096 and dataset\.seq_length=8192 differ"):
        job(tmp_path, f"{BRIDGE} model.seq_length=4096")
    for word in ("dataset.seq_length", "dataset.sequence_length"):
        assert job(tmp_path, f"{BRIDGE} model.seq_length=4096 {word}=4096").training.seq_length == 4096
    alone = job(tmp_path, f"{BRIDGE} dataset.sequence_length=4096")
    assert alone.training.seq_length == 4096
    assert "dataset.sequence_length is read as dataset.seq_length, its name today" in alone.assumptions


def test_a_misspelled_key_over_a_base_is_said(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "run.yaml"
    policy = {key: value for key, value in NEMO["policy"].items() if key != "train_micro_batch_size"}
    path.write_text(yaml.safe_dump({**NEMO, "policy": {**policy, "train_micro_batch_sizes": 8}}))
    assert any("policy.train_micro_batch_sizes (is it" in one for one in TrainingJob.from_file(str(path)).warnings)


def test_a_variable_that_a_file_looks_for_is_asked_for(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "run.yaml"
    policy = {**NEMO["policy"], "generation": {"backend": "${oc.env:ENGINE}"}}
    path.write_text(yaml.safe_dump({**NEMO, "policy": policy, "logger": {"log_dir": "${oc.env:LOGS}"}}))
    with pytest.raises(QuestionsError, match="memory depends on the variable ENGINE") as found:
        TrainingJob.from_file(str(path))
    assert "LOGS" not in str(found.value)
    assert TrainingJob.from_file(str(path), set_variables={"ENGINE": "vllm"}).rollout.rollout_engine == "vllm"


def test_keys_that_stand_twice_are_said(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: Qwen/Qwen3-8B\nmax_length: 512\nmax_length: 1024\npacking: true\n")
    found = TrainingJob.from_file(str(path), 8)
    assert found.training.seq_length == 1024
    assert "keys that stand twice, of which the last counts: max_length" in found.warnings


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (f"python {SLIME} --sglang-mem-fraction-static abc", "--sglang-mem-fraction-static must be a number, not 'abc'"),
        (f"python {SLIME} --sglang-mem-fraction-static 0", "rollout_memory_share=0.0 must be above 0"),
        (f"python {SLIME} --entropy-coef 1,0", "--entropy-coef must be a number, not '1,0'"),
        (f"NPROC_PER_NODE=8 {SWIFT} --tuner_type lora --lora_rank 0", "peft_dim"),
        ("NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_length 64 --vllm_gpu_memory_utilization 0",
         "rollout_memory_share=0.0 must be above 0"),
    ],
)  # fmt: skip
def test_a_value_that_is_none_is_no_default(script: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(EstimatorError) as found:
        job(tmp_path, script)
    assert sentence in str(found.value)


def test_a_value_is_read_as_every_word_that_its_key_may_have(tmp_path: Path) -> None:
    run = Run(program="verl.trainer.main_ppo")
    words = probes(["++actor_rollout_ref.actor.megatron.override_transformer_config.recompute_modules"], run)
    assert {"moe", "layernorm", "core_attn", "full", "vllm", "gae", "1", "true"} <= set(words)
    assert {"fused", "unfused"} <= set(probes(["  attention_backend: $A"], run)) - set(
        probes(["  rollout_name: $A"], run)
    )
    script = VERL.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")
    fields = f"+{ACTOR}.megatron.override_transformer_config"
    with pytest.raises(QuestionsError, match=r"moe_router_dtype.*taken from \$A"):
        job(tmp_path, f"{script} {fields}.moe_router_dtype=$A")
    assert job(tmp_path, f"{script} {fields}.moe_router_bias_update_rate=$A").layout.world_size


def test_a_document_takes_overrides_behind_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nuse_mca: true\nstage: sft\ntensor_model_parallel_size: 2\nper_device_train_batch_size: 1\n"
    )
    changed = job_from_file(str(path), 8, {}, ["per_device_train_batch_size=4"])
    assert (changed.training.micro_batch_size, changed.layout.tp) == (4, 2)
    with pytest.raises(ConfigError, match="takes KEY=VALUE of its own and none of Megatron-LM's arguments: '--bf16'"):
        job_from_file(str(path), 8, {}, ["--bf16"])
