"""What every dialect has, by the table of them: a page, an example that is read, known settings, degrees of 1 that turn nothing on."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, UnsupportedError, estimate
from megatron_memory_estimator.inputs import dialects as package
from megatron_memory_estimator.inputs.dialects.keys import translated
from megatron_memory_estimator.inputs.dialects.launched import of_launch
from megatron_memory_estimator.inputs.dialects.run import Around, Dialect, Run
from megatron_memory_estimator.inputs.dialects.table import MODULES, dialect_of, dialects
from megatron_memory_estimator.inputs.dialects.unknowns import probes
from megatron_memory_estimator.inputs.door_defaults import rows
from megatron_memory_estimator.inputs.megatron.derive import DERIVED
from megatron_memory_estimator.inputs.setting_names import full_name, known_settings
from megatron_memory_estimator.inputs.shell.script import read_script
from megatron_memory_estimator.report.verdict import verdict_sentence

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
AREAL = """
actor: {backend: "megatron:d8", path: Qwen/Qwen3-8B, optimizer: {type: adam}, mb_spec: {max_tokens_per_mb: 1024}}
train_dataset: {batch_size: 8}
"""
SKYRL = (
    "trainer.strategy=megatron trainer.policy.model.path=Qwen/Qwen3-8B trainer.placement.policy_num_gpus_per_node=8 "
    "trainer.policy.megatron_config.tensor_model_parallel_size=1 trainer.policy_mini_batch_size=8 generator.n_samples_per_prompt=1"
)
CHATLEARN = f"""
runtime_args: {{train_backend: megatron, train_micro_batch_size: 1, train_global_batch_size: 8}}
models:
  policy: {{load: Qwen/Qwen3-8B, max_prompt_tokens_length: 512, max_response_tokens_length: 512}}
  policy_trainer: {{num_gpu: 8, {ONE}}}
"""
EXAMPLES: dict[str, Run] = {
    "ms-swift": written(f"{{model: Qwen/Qwen3-8B, {ONE}, {BATCH}, max_length: 1024}}"),
    "LLaMA-Factory": written(
        f"{{model_name_or_path: Qwen/Qwen3-8B, stage: sft, cutoff_len: 1024, bf16: true, {ONE}, per_device_train_batch_size: 1}}"
    ),
    "verl": written(VERL),
    "NeMo-RL": written(NEMO_RL),
    "Primus": written(
        f"modules: {{pre_trainer: {{framework: megatron, model: qwen3_8B.yaml, overrides: {{{ONE}, seq_length: 1024, {BATCH}}}}}}}"
    ),
    "miles": started("train.py", f"{WORDS} --miles-router-timeout 10"),
    "slime": started("train.py", WORDS),
    "FlagScale": written(f"{{system: {{{ONE}}}, model: {{{', '.join(ARCHITECTURE.splitlines())}, {BATCH}}}}}"),
    "ROLL": written(ROLL),
    "AReaL": written(AREAL),
    "LoongForge": started(
        "loongforge/train.py",
        "--model-name qwen3-0.6b --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--tensor-model-parallel-size 1 --sequence-parallel",
    ),
    "SkyRL": started("skyrl.train.entrypoints.main_base", SKYRL),
    "ChatLearn": written(CHATLEARN),
    "Megatron-Bridge": written(f"{{model: {{{ONE}}}, train: {{{BATCH}}}}}", model="Qwen/Qwen3-8B"),
}


def test_every_dialect_has_an_example() -> None:
    assert [one.name for one in dialects()] == list(EXAMPLES)
    assert len(MODULES) == len(EXAMPLES)


@pytest.mark.parametrize("dialect", dialects(), ids=lambda one: one.name)
def test_an_example_is_read(dialect: Dialect) -> None:
    run = EXAMPLES[dialect.name]
    found = dialect_of(run)
    assert found is not None and found.name == dialect.name
    read = job(run, 8)
    assert (read.layout.tp, read.layout.sequence_parallel, read.training.micro_batch_size) == (1, False, 1)
    assert estimate(read).peak_stage.peak_allocated_bytes > 0


@pytest.mark.parametrize("dialect", dialects(), ids=lambda one: one.name)
def test_a_dialect_has_its_page_and_stands_in_every_list(dialect: Dialect) -> None:
    page = ROOT / "docs" / "reference" / dialect.page
    assert page.is_file(), f"{dialect.name} needs the page {page}"
    for name in ("docs/reference/dialects/index.md", "docs/how-to/run_files.md"):
        assert page.name in (ROOT / name).read_text(), (
            f"{name} has no row for {dialect.name}, whose page is {page.name}"
        )
    for name in ("README.md", "docs/how-to/launch_scripts.md"):
        assert dialect.name in (ROOT / name).read_text(), f"{name} does not name {dialect.name}"


COMMANDS = {
    "ms-swift": "megatron sft --model Qwen/Qwen3-8B --max_length 1024",
    "LLaMA-Factory": "USE_MCA=1 llamafactory-cli train run.yaml",
    "verl": "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron",
    "NeMo-RL": "uv run examples/run_grpo_math.py --config run.yaml policy.model_name=x",
    "Primus": "bash runner/primus-cli direct -- train pretrain --config run.yaml",
    "miles": "ray job submit -- python3 train.py --actor-num-nodes 1 --use-miles-router",
    "slime": "ray job submit -- python3 train_async.py --actor-num-nodes 1 --rollout-num-gpus 8",
    "FlagScale": "python run.py --config-path ./conf --config-name train",
    "ROLL": "python examples/start_rlvr_pipeline.py --config_path conf --config_name run",
    "AReaL": "python3 -m areal.launcher.local examples/math/gsm8k_rl.py --config run.yaml",
    "LoongForge": "torchrun --nproc-per-node 8 loongforge/train.py --model-name qwen3-8b",
    "SkyRL": "uv run --isolated --extra megatron -m skyrl.train.entrypoints.main_base trainer.strategy=megatron",
    "ChatLearn": "python chatlearn/entrypoint.py grpo --config-file run.yaml",
    "Megatron-Bridge": "python scripts/performance/setup_experiment.py -m llama -mr llama3_8b -ng 8 -g h100 -c bf16",
}
"""How a script starts a run of each."""


@pytest.mark.parametrize("dialect", dialects(), ids=lambda one: one.name)
def test_a_script_reaches_every_dialect(dialect: Dialect) -> None:
    assert dialect.name in COMMANDS, f"say how a script starts a run of {dialect.name}"
    run = of_launch(read_script(COMMANDS[dialect.name]), "run.sh", {}, Around())
    found = dialect_of(run)
    assert found is not None and found.name == dialect.name


def test_every_default_of_a_framework_is_a_known_setting() -> None:
    assert {row.setting for row in rows()} <= {*known_settings(), *DERIVED}


@pytest.mark.parametrize(
    "key",
    [
        "bias_activation_fusion",
        "main_grads_dtype",
        "fp8_format",
        "decoder_last_pipeline_num_layers",
        "muon_tp_mode",
        "sgd_momentum",
    ],
)
def test_every_framework_has_the_fields_of_megatrons_classes(key: str) -> None:
    found, unknown, refused = translated({key: 1})
    assert list(found) == [full_name(key)]
    assert not (unknown or refused)


KEYS = """
    _self_ _target_ _override_ _global_ defaults hydra path train model exp_manager ddp optimizer vocab_size padded_vocab_size task runner
    ffn_hidden_size swiglu world_size recompute_granularity moe_router_dtype strategy_args num_layers num_experts hf_checkpoint
    tokenizer_model freeze_params_name_list mtp_num_layers sglang_mem_fraction_static max_tokens_per_gpu sequence_packing framework
    moe_router_force_load_balancing accumulate_allreduce_grads_in_fp32 attention_backend train.global_batch_size --rollout-max-response-len
    turbo_sync_free_moe_stage pp_algorithm post_trainer megatron_config GPUS_PER_NODE NNODES NPROC_PER_NODE EXP --config --exp -c --set
    model_name_or_path mixed_precision actor spec
    compute-dtype num-gpus model-recipe-name num-moe-experts pipeline-model-parallel-layout model.tensor_model_parallel_size
    dataset.seq_length vocab_size_in_config_file training_phase custom_pipeline_layers custom_pipeline_recompute_layers
    max_position_embeddings
    policy policy_trainer ref_policy
"""
"""Words that readers compare with keys, sections, variables and options."""
PROGRAMS = """
    nemo train.sh setup_experiment run_script run flagscale flagscale_train flagscale/train/ miles primus main pretrain fsdp_sft sft_trainer
    sft dpo rm distillation pretrain peft train
"""
"""... with programs, and with the kinds of training and of models that these and the recipes' names decide."""
OTHERS = "Store deepseek_v3 gdn dsa oc.env env oc.select oc.decode"
"""... with kinds of arguments, families of the catalogue and kinds of their layers, functions of OmegaConf."""


def test_values_that_a_reader_tells_apart_stand_in_its_row() -> None:
    """A value that is not known is read as each of these (`unknowns.probes`): a word that is missing would be a question not asked."""
    known = {word.lower() for dialect in dialects() for word in probes([], started_by(dialect))}
    named = {word.lower() for word in f"{KEYS} {PROGRAMS} {OTHERS}".split()} | {"flagscale train", "null"}
    strange = {
        f"{file.name}: {word}"
        for file in Path(package.__path__[0]).glob("*.py")
        for word in compared(ast.parse(file.read_text()))
        if re.search(r"\w", word) and word != "\0" and word.lower() not in known | named
    }
    assert strange == set()


def compared(tree: ast.AST) -> Iterator[str]:
    """The literal words that a module compares something with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                for one in getattr(side, "elts", [side]):
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield one.value


def started_by(dialect: Dialect) -> Run:
    """A run of a dialect."""
    return EXAMPLES[dialect.name]


def test_a_key_that_decides_memory_is_refused_however_deep_it_stands() -> None:
    values = {"extra": {"name": "x", "deep": {"recompute_all": True}}, "notes": {"offload": False, "author": "me"}}
    settings, unknown, refused = translated(values, where="policy.")
    assert refused == ["policy.extra.deep.recompute_all='True' decides memory and is not modelled"]
    assert unknown == ["policy.notes"] and not settings


def test_a_star_passes_over_no_setting() -> None:
    """`data_*` is of ms-swift's data; data_parallel_sharding_strategy shards weights."""
    found, unknown, refused = translated(
        {"data_seed": 1, "data_parallel_sharding_strategy": "optim", "moe_router_dtype": "fp64", "moe_router_x": 1},
        "data_* moe_router_*",
    )
    assert found == {"data_parallel_sharding_strategy": "optim", "moe_router_dtype": "fp64"}
    assert not (unknown or refused)
    assert not translated({"moe_router_dtype": "fp64"}, "moe_router_dtype")[0]


QWEN_VL = "Qwen/Qwen3-VL-8B-Instruct"
TOWERS: dict[str, tuple[Run, str, bool]] = {
    "ms-swift": (written(f"{{model: {QWEN_VL}, {BATCH}, max_length: 1024}}"), "freeze_vit: false", True),
    "verl": (
        written(VERL.replace("Qwen/Qwen3-8B", QWEN_VL).replace("megatron: {", "megatron: {vanilla_mbridge: true, ")),
        "",
        False,
    ),
    "LLaMA-Factory": (
        written(
            f"{{model_name_or_path: {QWEN_VL}, stage: sft, cutoff_len: 1024, bf16: true, {ONE}, per_device_train_batch_size: 1}}"
        ),
        "freeze_vision_tower: false",
        True,
    ),
    "ROLL": (written(ROLL.replace("Qwen/Qwen3-8B", QWEN_VL)), "", False),
}
"""Runs of a model with a tower; what trains the tower, and whether it is frozen without that."""


@pytest.mark.parametrize("name", TOWERS)
def test_a_frameworks_own_tower_is_refused_by_name_where_it_is_trained(name: str) -> None:
    """Its memory is not known; frozen, it is named as not counted."""
    run, trains, frozen = TOWERS[name]
    assert run.document is not None
    changed = {**run.document, **dict([trains.split(": ")] if trains else ())}
    changed = {key: value if value != "false" else False for key, value in changed.items()}
    trained = job(dataclasses.replace(run, document=changed), 8)
    assert f"the vision tower of {name}, which this run trains, was not examined" in trained.unmodelled
    with pytest.raises(UnsupportedError, match="freeze_vision_model"):
        estimate(trained)
    held = job(run, 8) if frozen else job(run, 8, freeze_vision_model=True, freeze_vision_projection=True)
    assert held.training.freeze_vision_model and not held.unmodelled
    assert "its vision tower is not counted" in verdict_sentence(estimate(held))
    with pytest.raises(ConfigError, match=f"nobody examined the vision tower of {name}"):
        job(run, 8, images="1x512x512")


BRIDGED = {
    "verl": written(VERL.replace("Qwen/Qwen3-8B", QWEN_VL)),
    "NeMo-RL": written(NEMO_RL.replace("Qwen/Qwen3-8B", QWEN_VL)),
    "AReaL": written(
        AREAL.replace("Qwen/Qwen3-8B", QWEN_VL).replace(
            "optimizer:", "megatron: {bridge_type: megatron-bridge}, optimizer:"
        )
    ),
    "SkyRL": started("skyrl.train.entrypoints.main_base", SKYRL.replace("Qwen/Qwen3-8B", QWEN_VL)),
    "slime": started("train.py", WORDS.replace("Qwen/Qwen3-8B", QWEN_VL) + " --megatron-to-hf-mode bridge"),
}
"""Runs of a model with a tower that Megatron-Bridge makes."""


@pytest.mark.parametrize("name", BRIDGED)
def test_towers_of_megatron_bridge_are_counted_at_every_framework_that_has_them(name: str) -> None:
    """`to_megatron_provider` of AutoBridge: verl 0.9.1 `workers/engine/megatron/transformer_impl.py`, AReaL `models/mcore/registry.py`."""
    found = job(BRIDGED[name], 8)
    assert [tower.num_parameters for tower in found.model.towers] == [576_388_336] and not found.unmodelled
    shown = job(BRIDGED[name], 8, images="1x512x512")
    assert estimate(shown).peak_stage.peak_allocated_bytes > estimate(found).peak_stage.peak_allocated_bytes


@pytest.mark.parametrize("name", ["ms-swift", "LLaMA-Factory"])
def test_a_frameworks_defaults_of_towers_say_nothing_of_a_model_without(name: str) -> None:
    assert not job(EXAMPLES[name], 8).training.freeze_vision_model
