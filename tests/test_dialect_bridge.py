"""Megatron-Bridge: recipes by name with words and files over them, against recipes whose every section is known."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, count_parameters, estimate
from megatron_memory_estimator.errors import ConfigError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.bridge_config import peft_values
from megatron_memory_estimator.inputs.dialects import bridge, bridge_launcher, bridge_table
from megatron_memory_estimator.inputs.dialects.bridge_table import all_recipes, is_recipe, names, recipe
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.report.document import features_text

from .helpers import FACTS
from .random_trees import nested

OVERRIDE = """
model: {tensor_model_parallel_size: 2, sequence_parallel: true, recompute_granularity: full, recompute_method: uniform,
        recompute_num_layers: 1, cross_entropy_loss_fusion: false}
train: {global_batch_size: 48, micro_batch_size: 2, train_iters: 5}
dataset: {seq_length: 3072}
optimizer: {lr: 0.0001, use_precision_aware_optimizer: true}
logger: {log_interval: 1}
checkpoint: {pretrained_checkpoint: /ckpt}
"""


def run_of(words: str, program: str = "scripts/training/run_recipe.py", **more: Any) -> Run:
    return Run(path="run.sh", program=program, words=tuple(words.split()), **more)


def job(words: str, num_gpus: int | None = None, **more: Any) -> TrainingJob:
    """The job of words that this dialect knows."""
    run = run_of(words, **more)
    dialect = dialect_of(run)
    assert dialect is bridge.DIALECT
    return job_of(dialect, run, num_gpus, {})


def override(model: str = "", num_gpus: int | None = None, text: str = OVERRIDE) -> TrainingJob:
    run = Run(path="over.yaml", document=yaml.safe_load(text), model=model)
    dialect = dialect_of(run)
    assert dialect is bridge.DIALECT
    return job_of(dialect, run, num_gpus, {})


def test_the_table_is_whole_and_quick() -> None:
    found = list(all_recipes())
    assert len(found) == 620
    assert sum(len(one.aliases) for one in found) == 242
    assert all(one.hub for one in found if not one.own_model)
    assert all({"model", "train", "dataset", "optimizer", "ddp"} <= one.sections.keys() for one in found)
    bridge_table._table.cache_clear()
    bridge_table._names.cache_clear()
    start = time.process_time()
    assert is_recipe("llama3_8b_pretrain_config")
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("gpt_oss_20b_sft_config", "lib-gpt-oss-20b-sft-8gpu-h100-bf16"),
        ("gpt_oss_20b_peft_config", "lib-gpt-oss-20b-peft-1gpu-h100-bf16"),
        ("qwen3_8b_sft_config", "lib-qwen3-8b-sft-4gpu-h100-bf16"),
        ("qwen3_8b_peft_config", "lib-qwen3-8b-peft-1gpu-h100-bf16"),
        ("moonlight_16b_peft_config", "lib-moonlight-16b-peft-4gpu-h100-bf16"),
        ("glm52_peft_208gpu_h100_bf16_config", "lib-glm52-peft-208gpu-h100-bf16"),
        ("deepseek_v3_pretrain_1024gpu_h100_bf16_config", "perf-deepseek-v3-pretrain-1024gpu-h100-bf16"),
        ("gpt_oss_120b_pretrain_64gpu_gb200_bf16_config", "perf-gpt-oss-120b-pretrain-64gpu-gb200-bf16"),
        ("qwen3_235b_a22b_pretrain_256gpu_gb200_fp8mx_config", "perf-qwen3-235b-a22b-pretrain-256gpu-gb200-fp8mx"),
    ],
)
def test_a_name_is_the_recipe_with_all_its_sections(name: str, record: str) -> None:
    lines = map(json.loads, (FACTS / "recipes.jsonl").read_text().splitlines())
    fact = next(line for line in lines if line["id"] == record)
    whole = TrainingJob.from_bridge(fact["bridge"], fact["num_gpus"], gpu=fact["gpu"], env=fact["env"])
    named = job(f"--recipe {name}")
    assert named.gpu == whole.gpu
    assert named.layout.world_size == fact["num_gpus"]
    peaks = [estimate(one).peak_stage.peak_allocated_bytes for one in (named, whole)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.003)


def test_recipes_that_offload_layers_and_recipes_that_route_evenly() -> None:
    """Both switches are in the table. MoE pre-training for speed is balanced but for GPT-OSS 20B."""
    offloading = job("--recipe llama3_70b_pretrain_64gpu_gb200_fp8cs_config")
    assert offloading.training.cpu_offloading_num_layers == 40
    assert estimate(offloading).verdict().word != "does not fit"
    names = (
        "deepseek_v3_pretrain_1024gpu_h100_bf16_config", "gpt_oss_20b_pretrain_8gpu_gb200_nvfp4_config", "gpt_oss_20b_sft_config",
    )  # fmt: skip
    phases = [job(f"--recipe {name}").training.routing_phase for name in names]
    assert phases == ["forced_balance", "pretraining", "pretraining"]


def test_words_change_a_recipe_and_sections_win() -> None:
    found = job(
        "--recipe llama3_8b_pretrain_config -tp 4 -cp 2 -mb 1 -gb 64 -sl 16384 -ms 9 model.tensor_model_parallel_size=2",
        16,
    )
    assert found.layout.degrees.startswith("tp 2, cp 2")
    assert (found.training.seq_length, found.training.global_batch_size) == (16384, 64)
    assert found.model.vocab_size == 32000, "NullTokenizer of the recipe"


def test_model_and_mode_choose_a_recipe() -> None:
    words = "--nodes 2 --gpus-per-node 8 --account a --model qwen3_8b --mode lora train.global_batch_size=32"
    found = job(words, program="scripts/training/train.sh")
    assert found.layout.world_size == 16
    assert (found.training.peft, found.training.global_batch_size) == ("lora", 32)
    assert job("--model qwen3_8b --mode dora").training.peft == "dora"
    with pytest.raises(ConfigError, match="--mode"):
        job("--model qwen3_8b")
    with pytest.raises(ConfigError, match="nearest are qwen3_8b"):
        job("--model qwen3_8bb --mode sft")


PERFORMANCE = "--model_family_name llama --model_recipe_name llama3_70b --task pretrain --gpu h100 --compute_dtype {} --num_gpus {}"


def test_the_performance_launcher_chooses_by_size_gpu_and_precision() -> None:
    program = "scripts/performance/setup_experiment.py"
    found = job(PERFORMANCE.format("fp8_cs", 64) + " --micro_batch_size 2", program=program)
    assert (found.layout.world_size, found.training.fp8_recipe, found.training.micro_batch_size) == (
        64,
        "tensorwise",
        2,
    )
    own = recipe("llama3_70b_pretrain_64gpu_h100_bf16_config").sections["train"]["global_batch_size"]
    twice = job(PERFORMANCE.format("bf16", 128), program=program)
    assert twice.training.global_batch_size == 2 * own
    assert any("scaled" in str(note) for note in twice.assumptions)
    assert job(PERFORMANCE.format("bf16", 128) + f" -gb {own}", program=program).training.global_batch_size == own
    with pytest.raises(ConfigError, match="nearest"):
        job(PERFORMANCE.format("int1", 64), program=program)


LAUNCHER = "-m llama -mr llama3_70b -g h100 -c bf16 -gn 8 -ng 64 {}"
EXPERTS = "-m qwen -mr qwen3_30b_a3b -g h100 -c bf16 -gn 8 -ng 16 {}"
LARGE = "-m deepseek -mr deepseek_v3 -g h100 -c bf16 -gn 8 -ng 1024 {}"


def tuned(words: str, **more: Any) -> TrainingJob:
    """The job of words of the performance launcher."""
    return job(words, program="scripts/performance/setup_experiment.py", **more)


def test_an_option_of_the_performance_launcher_wins_over_sections() -> None:
    words = (
        "-mb 2 -tp 1 -vp None -sl 4096 train.micro_batch_size=4 model.tensor_model_parallel_size=8 model.seq_length=512"
    )
    found = tuned(LAUNCHER.format(words))
    assert (found.training.micro_batch_size, found.training.seq_length) == (2, 4096)
    assert (found.layout.tp, found.layout.sequence_parallel) == (1, False)
    assert found.layout.virtual_pipeline_model_parallel_size in (None, 1)
    assert tuned(LAUNCHER.format("-tp 2")).layout.sequence_parallel
    assert tuned(LAUNCHER.format("train.micro_batch_size=4")).training.micro_batch_size == 4


def test_options_set_what_goes_with_them() -> None:
    full = tuned(LAUNCHER.format("-rl 2")).training
    assert (full.recompute_granularity, full.recompute_method, full.recompute_num_layers) == ("full", "block", 2)
    some = tuned(EXPERTS.format("--recompute_modules moe_act,layernorm --cuda_graph_impl none")).training
    assert (some.recompute_granularity, some.recompute_modules) == ("selective", ("moe_act", "layernorm"))
    assert (some.cuda_graph_impl, some.cuda_graph_modules) == ("none", ())
    assert tuned(LAUNCHER.format("-ol 10")).training.cpu_offloading_num_layers == 10
    sharded = tuned(LAUNCHER.format("--use_megatron_fsdp 1 -tp 1 -pp 1 -vp None -cp 1")).training
    assert (sharded.use_megatron_fsdp, sharded.data_parallel_sharding_strategy) == (True, "optim_grads_params")
    assert not tuned(LAUNCHER.format("--use_megatron_fsdp false")).training.use_megatron_fsdp
    graphs = tuned(EXPERTS.format("--cuda_graph_impl transformer_engine --cuda_graph_scope attn")).training
    assert graphs.cuda_graph_modules == ("attn",)


def test_dispatchers_and_overlap_of_the_performance_launcher() -> None:
    flex = tuned(EXPERTS.format("--moe_flex_dispatcher_backend deepep")).training
    assert (flex.moe_token_dispatcher_type, flex.moe_flex_dispatcher_backend) == ("flex", "deepep")
    plain = tuned(EXPERTS.format("--moe_flex_dispatcher_backend None --moe_a2a_overlap false")).training
    assert (plain.moe_token_dispatcher_type, plain.overlap_moe_expert_parallel_comm) == ("alltoall", False)
    overlapped = tuned(EXPERTS.format("-cv dev --moe_a2a_overlap true")).training
    assert overlapped.overlap_moe_expert_parallel_comm and overlapped.delay_wgrad_compute


def test_the_performance_launcher_finishes_the_optimizer_and_the_stages() -> None:
    own = tuned(LAUNCHER.format("")).training
    assert (own.use_precision_aware_optimizer, own.overlap_param_gather_with_optimizer_step) == (True, False)
    assert job("--recipe llama3_70b_pretrain_64gpu_h100_bf16_config").training.use_precision_aware_optimizer is False
    other = tuned(LAUNCHER.format("-ng 128 optimizer.use_precision_aware_optimizer=false")).training
    assert (other.use_precision_aware_optimizer, other.overlap_param_gather_with_optimizer_step) == (True, True)
    assert not tuned(LAUNCHER.format("-ng 128 -c fp8_cs")).training.use_precision_aware_optimizer
    assert tuned(LARGE.format("-pp 16 -vp None")).layout.pipeline_model_parallel_layout == "Et*4|(t*4|)*14t*1mL"
    assert tuned(LARGE.format("-pp 8 -vp None")).layout.pipeline_model_parallel_layout == "Et*8|(t*8|)*6t*5mL"
    small = tuned(LARGE.format("-pp 1 -vp None --num_layers 6 --first_k_dense_replace 1"))
    assert (small.model.num_layers, str(small.model.moe_layer_freq)) == (6, "[0, 1, 1, 1, 1, 1]")


def test_variants_of_recipes_are_chosen_by_name() -> None:
    assert any("_bf16_dev_config" in str(note) for note in tuned(EXPERTS.format("-ng 32 -cv dev")).assumptions)
    with pytest.raises(ConfigError, match="qwen3_30b_a3b pretrain h100 bf16 none_such"):
        tuned(EXPERTS.format("-cv none_such"))
    with pytest.raises(QuestionsError, match="--offload_all_of_it decides memory"):
        tuned(EXPERTS.format("--offload_all_of_it 3"))


TORCHRUN = """
LAUNCHER=${LAUNCHER:-scripts/performance/custom_setup_experiment.py}
inner=$(cat <<- EOM
  cd /opt ; numactl --cpunodebind=\\$((LOCAL_RANK/4)) python ${LAUNCHER} --gpu h100 --model_family_name llama \\
    --model_recipe_name llama3_70b --num_gpus 64 --compute_dtype bf16 --tensor_model_parallel_size 4 \\
    --recompute_num_layers 3 --virtual_pipeline_model_parallel_size None
EOM
)
echo "$inner" > inner.sh
torchrun --nproc-per-node=8 --nnodes=2 --node_rank=$RANK --no-python bash inner.sh
"""
ENVIRONMENT = """
set -eu
GPU_TYPE=${GPU_TYPE:?needed}
DTYPE=${DTYPE:?needed}
TOTAL=${JOB_TOTAL_GPUS:?needed}
if [[ $DTYPE == fp8 ]]; then COMPUTE=fp8_cs; else COMPUTE=$DTYPE; fi
python3 scripts/performance/setup_experiment.py --compute_dtype $COMPUTE --gpu ${GPU_TYPE,,} --num_gpus $TOTAL \
  --model_family_name llama --model_recipe_name llama3_${MODEL_SIZE:?needed} ${CONFIG_OVERRIDES:-} --account $SBATCH_ACCOUNT
"""


def test_gpus_are_the_launchers_inside_torchrun_too(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(TORCHRUN)
    found = TrainingJob.from_file(str(script))
    assert (found.layout.world_size, found.layout.tp, found.training.recompute_num_layers) == (64, 4, 3)
    assert any("custom_setup_experiment.py goes with the Megatron-Bridge" in said for said in found.warnings)


def test_names_of_the_environment_that_choose_a_recipe_are_asked_for_with_choices(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(ENVIRONMENT)
    with pytest.raises(
        QuestionsError, match=r"\$GPU_TYPE, which has none: .*h100.*\$JOB_TOTAL_GPUS.*recipes are for"
    ) as caught:
        TrainingJob.from_file(str(script))
    options = {one.option.split("=")[0] for one in caught.value.questions}
    assert options == {f"--set {name}" for name in ("GPU_TYPE", "DTYPE", "JOB_TOTAL_GPUS", "MODEL_SIZE")}
    given = {
        "GPU_TYPE": "H100",
        "DTYPE": "bf16",
        "JOB_TOTAL_GPUS": "64",
        "MODEL_SIZE": "70b",
        "CONFIG_OVERRIDES": "-tp 8 -rl 1",
    }
    found = TrainingJob.from_file(str(script), set_variables=given)
    assert (found.layout.world_size, found.layout.tp, found.training.recompute_method) == (64, 8, "block")


def test_gpus_are_the_launchers_or_the_recipes() -> None:
    assert job("--recipe qwen3_8b_sft_config").layout.world_size == 4
    assert job("--recipe qwen3_8b_sft_config", num_gpus=8).layout.world_size == 8
    run = run_of("--recipe qwen3_8b_sft_config", num_gpus=16)
    assert job_of(bridge.DIALECT, run, None, {}).layout.world_size == 16
    with pytest.raises(QuestionsError, match="--num-gpus"):
        job_of(bridge.DIALECT, run_of("--recipe qwen3_8b_sft_config", gpus_unknown="$N has no value"), None, {})


def test_the_vocabulary_is_the_recipes() -> None:
    tokenizer = job("--recipe qwen3_8b_pretrain_config").model
    assert (tokenizer.vocab_size, tokenizer.padded_vocab_size) == (151669, None)
    config = job("--recipe qwen3_8b_sft_config").model
    assert (config.vocab_size, config.padded_vocab_size) == (151936, 151936)
    own = job("--recipe moonlight_16b_peft_config").model
    assert own.padded_vocab_size == 163842


def test_precisions_are_names_or_keys() -> None:
    named = job("--recipe llama3_8b_sft_config mixed_precision=bf16_with_fp8_current_scaling_mixed").training
    assert (named.fp8, named.fp8_recipe, named.first_last_layers_bf16) == ("hybrid", "tensorwise", True)
    keyed = job("--recipe llama3_8b_sft_config mixed_precision.grad_reduce_in_fp32=false").training
    assert keyed.accumulate_allreduce_grads_in_fp32 is False
    with pytest.raises(ConfigError, match="mixed_precision 'bf17'"):
        job("--recipe llama3_8b_sft_config mixed_precision=bf17")


def test_adapters_are_those_of_the_recipe() -> None:
    found = job("--recipe moonlight_16b_peft_config peft.dim=4").training
    assert found.peft_dim == 4
    assert found.peft_target_modules == ("linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
    assert job("--recipe qwen3_8b_peft_config peft=null").training.peft == "none"


def test_recipes_that_state_an_architecture_need_no_catalogue() -> None:
    found = job("--recipe nemotronh_8b_pretrain_config")
    assert (found.model.num_layers, found.model.hidden_size) == (52, 4096)
    assert found.model.vocab_size == 32000, "NullTokenizer"
    assert found.name == "nemotronh_8b_pretrain_2gpu_h100_bf16_config"
    assert job("--recipe nemotron_3_nano_pretrain_config").model.vocab_size == 131072


def test_an_override_asks_for_a_model_and_takes_a_recipe_too() -> None:
    with pytest.raises(QuestionsError, match=r"over\.yaml.*override file.*recipe.*--model NAME"):
        override()
    found = override("Qwen/Qwen3-8B", 8)
    assert (found.layout.tp, found.layout.dp, found.training.seq_length) == (2, 4, 3072)
    assert (found.training.use_precision_aware_optimizer, found.training.cross_entropy_loss_fusion) == (True, False)
    assert found.model.padded_vocab_size is None
    assert found.model.make_vocab_size_divisible_by == 1
    named = override("qwen3_8b_sft_config")
    assert (named.name, named.layout.world_size, named.training.global_batch_size) == ("Qwen/Qwen3-8B", 4, 48)


def test_a_script_with_a_file_of_sections_asks_by_name() -> None:
    files = {"conf/over.yaml": OVERRIDE}
    run = run_of(
        "--config-file conf/over.yaml train.global_batch_size=96", "finetune_mine.py", text_of=files.get, num_gpus=8
    )
    assert dialect_of(run) is bridge.DIALECT
    with pytest.raises(QuestionsError, match=r"finetune_mine\.py"):
        job_of(bridge.DIALECT, run, None, {})
    found = job_of(
        bridge.DIALECT,
        run_of(" ".join(run.words), run.program, text_of=files.get, num_gpus=8, model="Qwen/Qwen3-8B"),
        None,
        {},
    )
    assert (found.training.global_batch_size, found.training.micro_batch_size) == (96, 2)


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {encoder_seq_length: 2048, mcore_gpt: true}",
        "trainer: {devices: 8}\nexp_manager: {name: x}",
    ],
)
def test_nemo_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match="a run of NeMo"):
        override("Qwen/Qwen3-8B", 8, text)
    with pytest.raises(UnsupportedError, match="a run of NeMo"):
        job("llm pretrain --factory llama3_8b", program="nemo")


VISION = [
    ("qwen3_vl_8b_sft_config", 2, {"tensor_model_parallel_size": 2, "micro_batch_size": 2}, "", 8_767_123_696),
    (
        "qwen3_vl_8b_pretrain_mock_config",
        4,
        {"tensor_model_parallel_size": 4},
        "language model and vision layers",
        None,
    ),
    ("qwen35_vl_9b_peft_config", 1, {"peft": "lora"}, "", None),
    ("gemma4_vl_26b_sft_config", 8, {"expert_model_parallel_size": 8}, "vision layers", None),
    ("glm_45v_sft_config", 128, {"pipeline_model_parallel_size": 8}, "", 107_710_927_360),
    ("qwen25_vl_72b_sft_config", 32, {"tensor_model_parallel_size": 8}, "", 73_410_777_344),
]


@pytest.mark.parametrize(("name", "gpus", "settings", "frozen", "parameters"), VISION, ids=[row[0] for row in VISION])
def test_vision_recipes_are_read_by_name(
    name: str, gpus: int, settings: dict[str, Any], frozen: str, parameters: int | None
) -> None:
    """What the recipe functions of megatron-bridge 0.6.2 return, with the providers that it makes of the models' configs; GLM-4.5V has an
    uneven split without MTP."""
    found = job(f"--recipe {name}")
    assert found.layout.world_size == gpus
    values = {**vars(found.layout), **vars(found.training)}
    assert {key: values[key] for key in settings} == settings
    assert found.model.towers[0].blocks and not found.refusal
    said = list(features_text(found.training))
    assert (f"{frozen} frozen" in said) if frozen else not any(word.endswith("frozen") for word in said)
    if parameters is not None:
        assert count_parameters(found.model).total == parameters
    assert estimate(found).verdict().not_counted.endswith("--images counts them")


@pytest.mark.parametrize(
    "more",
    [
        {"vision_config": {"depth": 2}},
        {"thinker_config": {"a": 1}},
        {"freeze_vision_model": True},
        {"image_token_id": 7},
    ],
)
def test_a_provider_with_a_tower_of_its_own_is_refused(more: dict[str, Any]) -> None:
    """Its model would be counted as one of text."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "seq_length": 64}
    with pytest.raises(UnsupportedError, match="the vision or audio tower of a provider is not modelled"):
        TrainingJob.from_bridge({"model": {**model, **more}}, 8)


def test_what_decides_memory_and_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="freeze_mtp_model"):
        job("--recipe llama3_8b_sft_config model.freeze_mtp_model=true")
    with pytest.raises(ConfigError, match="freeze_language_model=True leaves nothing to train"):
        estimate(job("--recipe llama3_8b_sft_config model.freeze_language_model=true"))
    assert any("my_own_switch" in word for word in job("--recipe llama3_8b_sft_config model.my_own_switch=3").warnings)


def test_other_files_are_not_bridges() -> None:
    for text in (
        "model: Qwen/Qwen3-8B\nmax_length: 1",
        "num_layers: 2",
        "model: {num_layers: 2, hidden_size: 8, num_attention_heads: 2}\ntrain: {micro_batch_size: 1}",
        "model: {path: 1}\ntrain: {}",
        "model: {path: 1}\ntrain: {epochs: 1}",
        "policy: {megatron_cfg: {}}\ntrain: {}\nmodel: {}",
    ):
        assert not bridge.knows(Run(document=yaml.safe_load(text)))
    assert not bridge.knows(run_of("--tensor-model-parallel-size 2", "pretrain_gpt.py"))


def outcome(name: str) -> str:
    """What becomes of a recipe: "" for a job, else why not."""
    try:
        job(f"--recipe {name}")
    except EstimatorError as error:
        return str(error)
    return ""


def test_every_recipe_reads_or_says_why_not() -> None:
    refused = [said for said in map(outcome, names()[::7]) if said]
    assert len(refused) < len(names()[::7]) / 3
    assert all(len(said) > 20 for said in refused)


KEYS = st.sampled_from(
    ["model.tensor_model_parallel_size", "model.pipeline_model_parallel_layout", "dataset.seq_length", "train.global_batch_size", "peft",
     "mixed_precision", "mixed_precision.fp8", "ddp", "comm_overlap.bucket_size", "model", "~model", "model.a.b.c",
     "dataset.offline_packing_specs", "tokenizer.tokenizer_model", "peft.target_modules"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["1", "null", "true", "[a,b]", "{a:1}", "-1", "1e99", "bf16_mixed", "lora", "", "$N"]),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(KEYS, VALUES), max_size=4),
    st.sampled_from(
        ["llama3_8b_sft_config", "qwen3_30b_a3b_pretrain_config", "moonlight_16b_peft_config", "", "no_config"]
    ),
    st.sampled_from(["--recipe", "--model", "-tp", "--num_gpus", "--mode"]),
)
def test_random_words_end_in_a_job_or_a_message(pairs: list[tuple[str, str]], name: str, option: str) -> None:
    words = ("--recipe", name, option, "2", *(f"{key}={value}" for key, value in pairs))
    with contextlib.suppress(EstimatorError):
        job_of(bridge.DIALECT, Run(program="run_recipe.py", words=words), None, {})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*bridge_launcher.WORDS, *bridge_launcher.OPTIONS, *bridge_launcher.CHOOSING]), VALUES
        ),
        max_size=4,
    ),
    st.sampled_from([LAUNCHER, EXPERTS, LARGE]),
)
def test_random_options_end_in_a_job_or_a_message(pairs: list[tuple[str, str]], begin: str) -> None:
    words = (*begin.format("").split(), *(word for option, text in pairs for word in (f"--{option}", text)))
    with contextlib.suppress(EstimatorError):
        job_of(bridge.DIALECT, Run(program="setup_experiment.py", words=words), None, {})


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(), st.text(max_size=6))
TREES = nested(LEAVES, max_leaves=6)
SECTION = st.sampled_from(
    [
        "model",
        "train",
        "dataset",
        "ddp",
        "optimizer",
        "mixed_precision",
        "peft",
        "comm_overlap",
        "tokenizer",
        "logger",
        "trainer",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        SECTION,
        st.one_of(
            TREES,
            st.dictionaries(
                st.sampled_from(["seq_length", "bf16", "dim", "type", "vocab_size", "fp8"]), TREES, max_size=3
            ),
        ),
        max_size=5,
    )
)
def test_random_trees_end_in_a_job_or_a_message(document: dict[str, Any]) -> None:
    run = Run(document=document, model="Qwen/Qwen3-8B")
    if bridge.knows(run):
        with contextlib.suppress(EstimatorError):
            job_of(bridge.DIALECT, run, 8, {})


def test_a_peft_section_that_names_no_adapters_is_refused_by_its_words() -> None:
    """peft.dim=4 over a recipe that has no adapters."""
    with pytest.raises(UnsupportedError, match=r"the peft section \(dim\) does not say which adapters"):
        peft_values(SimpleNamespace(dim=4))
    assert peft_values(SimpleNamespace(type="lora", dim=4))["peft"] == "lora"


@pytest.mark.parametrize(
    ("short", "degrees", "loss", "batch"),
    [
        ("deepseek_v3_pretrain_config", (2, 16, 1, 64), "te", 4096),
        ("gpt_oss_120b_pretrain_config", (2, 4, 1, 16), "native", 512),
        ("llama3_70b_peft_config", (8, 1, 1, 1), "native", 8),
        ("llama3_70b_sft_config", (8, 4, 1, 1), "native", 8),
        ("nemotron_3_nano_gb200_pretrain_config", (1, 1, 1, 8), "native", 512),
        ("qwen3_235b_a22b_pretrain_config", (4, 16, 2, 8), "te", 32),
    ],
)
def test_a_short_name_is_the_library_s_recipe(short: str, degrees: tuple[int, ...], loss: str, batch: int) -> None:
    """Recipe functions of Megatron-Bridge 0.6.2 (`recipes/*/h100/`), whose long names are those of other, performance recipes."""
    found = recipe(short)
    model = found.sections["model"]
    names = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
    )
    assert tuple(model.get(name) or 1 for name in names) == degrees
    assert (model.get("cross_entropy_fusion_impl", "native"), found.sections["train"]["global_batch_size"]) == (
        loss,
        batch,
    )
    assert model.get("recompute_granularity") is None
    assert not found.performance
