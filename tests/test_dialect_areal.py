"""Runs of AReaL: which engine trains on how many GPUs, what its keys become, the stages of a pipeline, and what is refused by name."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, UnsupportedError
from megatron_memory_estimator.errors import ConfigError, QuestionsError
from megatron_memory_estimator.inputs.dialects import areal
from megatron_memory_estimator.inputs.dialects.areal import components, cut, weights
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .dialect_runs import job, started, written
from .random_trees import leaves, nested

DENSE = """
experiment_name: pairs
tokenizer_path: ${actor.path}
cluster: {n_nodes: 2, n_gpus_per_node: 8}
rollout: {backend: "sglang:d4p1t2", consumer_batch_size: "${train_dataset.batch_size}"}
gconfig: {n_samples: 8, max_new_tokens: 6144}
actor:
  backend: "megatron:d2p1t4"
  path: Qwen/Qwen3-8B
  gradient_checkpointing: false
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 12288}
  optimizer: {type: adam, lr: 2e-6, lr_scheduler_type: constant, gradient_clipping: 1.0}
  kl_ctl: 0.0
  ppo_n_minibatches: 2
train_dataset: {batch_size: 128, type: rl, max_length: 1024}
"""
EXPERTS = """
rollout: {backend: "sglang:d2t8"}
gconfig: {n_samples: 16, max_new_tokens: 8192}
actor:
  backend: "megatron:(attn:d1p6t4|ffn:d1p6e4)"
  path: Qwen/Qwen3-30B-A3B
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 24576}
  optimizer: {type: adam_bf16}
  kl_ctl: 0.01
  ppo_n_minibatches: 1
  megatron: {bridge_type: mbridge, recompute_granularity: full, moe_router_dtype: fp32, virtual_pipeline_parallel_size: 1}
ref:
  backend: ${actor.backend}
  path: ${actor.path}
  optimizer: null
  scheduling_strategy: {type: colocation, target: actor}
train_dataset: {batch_size: 64, type: rl, max_length: 2048}
"""
OLD = """
allocation_mode: sglang:d4t2+megatron:d2p2t2c2
cluster: {n_nodes: 3, n_gpus_per_node: 8}
gconfig: {n_samples: 4, max_new_tokens: 4096}
actor:
  path: meta-llama/Llama-3.1-8B
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 16384}
  optimizer: {type: adam}
  ppo_n_minibatches: 4
train_dataset: {batch_size: 256, type: rl}
"""
TUNED = """
actor:
  backend: "megatron:d2p1t4e8"
  path: Qwen/Qwen3-30B-A3B
  dtype: bfloat16
  gradient_checkpointing: false
  use_lora: true
  lora_rank: 16
  target_modules: [linear_qkv, linear_proj]
  mb_spec: {max_tokens_per_mb: 8192}
  megatron: {bridge_type: megatron-bridge}
  optimizer: {type: adam}
train_dataset: {batch_size: 32, type: sft}
"""


def changed(text: str, **changes: Any) -> Run:
    """The run of a text with values at dotted paths."""
    found: dict[str, Any] = copy.deepcopy(yaml.safe_load(text))
    for path, value in changes.items():
        *above, last = path.split("__")
        node = found
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return Run(path="run.yaml", document=found)


def said(found: TrainingJob) -> str:
    return " ".join((*map(str, found.assumptions), *found.warnings))


def test_policy_and_engine_have_gpus_of_their_own() -> None:
    """Eight GPUs train and eight generate; 128 x 8 / 2 samples are a step; without gradient_checkpointing nothing is recomputed."""
    found = job(written(DENSE))
    layout, t, r = found.layout, found.training, found.rollout
    assert (layout.world_size, layout.tp, layout.pp, layout.dp, layout.sequence_parallel) == (8, 4, 1, 2, True)
    assert (t.seq_length, t.micro_batch_size, t.global_batch_size, t.recompute_granularity) == (12288, 1, 512, None)
    assert (t.optimizer, t.use_distributed_optimizer, t.grad_dtype, t.params_dtype) == ("adam", True, "fp32", "bf16")
    assert (t.loss_function, t.loss_chunk_size, t.gradient_accumulation_fusion) == ("slime", 1024, False)
    assert (r.rollout_engine, r.rollout_colocated, r.reference_model, r.rollout_offload) == (
        "sglang",
        False,
        "none",
        (),
    )
    assert found.model.padded_vocab(4) == 151936
    assert "8 GPUs train (actor.backend); 8 others generate" in said(found) and "at most 12288 tokens" in said(found)
    assert not found.warnings


def test_one_layout_for_attention_and_one_for_experts() -> None:
    found = job(written(EXPERTS))
    layout, t = found.layout, found.training
    assert (layout.world_size, layout.tp, layout.pp, layout.ep, layout.etp, layout.dp) == (24, 4, 6, 4, 1, 1)
    assert (t.optimizer, t.use_precision_aware_optimizer, t.exp_avg_dtype, t.exp_avg_sq_dtype) == (
        "adam",
        True,
        "bf16",
        "bf16",
    )
    assert (t.recompute_granularity, t.recompute_method, t.recompute_num_layers) == ("full", "uniform", 1)
    assert (t.global_batch_size, t.moe_token_dispatcher_type, t.moe_router_dtype) == (1024, "alltoall", None)
    assert t.bias_activation_fusion and found.rollout.reference_model == "device"
    assert not any("unknown" in warning for warning in found.warnings)
    assert job(changed(EXPERTS, ref__offload=True)).rollout.reference_model == "offloaded"
    assert job(changed(EXPERTS, ref__scheduling_strategy=None)).rollout.reference_model == "none"
    assert job(changed(EXPERTS, actor__kl_ctl=0)).rollout.reference_model == "none"


def test_one_text_for_all_engines() -> None:
    """16,384 tokens of a microbatch are 8,192 on each of two context-parallel ranks."""
    found = job(written(OLD))
    layout, t = found.layout, found.training
    assert (layout.world_size, layout.tp, layout.pp, layout.cp, layout.dp) == (16, 2, 2, 2, 2)
    assert (t.seq_length // layout.cp, t.global_batch_size, t.recompute_granularity) == (8192, 256, "full")
    assert (found.rollout.rollout_engine, found.rollout.rollout_colocated) == ("sglang", False)
    shared = job(changed(OLD, allocation_mode="sglang[gen]:d8|megatron[actor]:t8", actor__offload=True)).rollout
    assert (shared.rollout_colocated, shared.rollout_memory_share) == (True, 0.9)
    assert shared.rollout_offload == ("weights", "gradients", "optimizer")
    three = "sglang[gen]:d8+megatron[critic]:d2t4|megatron[actor]:d2t4"
    assert job(changed(OLD, allocation_mode=three, critic__offload=True)).rollout.critic_model == "in_turn"
    with pytest.raises(ConfigError, match="critic: tensor_model_parallel_size=1 beside the policy's 4 is not modelled"):
        job(changed(OLD, allocation_mode=three.replace("[critic]:d2t4", "[critic]:d8"), critic__offload=True))
    with pytest.raises(ConfigError, match=r"critic: .* is another model than the policy"):
        job(changed(OLD, allocation_mode=three, critic__path="Qwen/Qwen3-0.6B"))


def test_adapters_turn_the_distributed_optimizer_off() -> None:
    """With Megatron-Bridge the keys of recomputation hold whatever gradient_checkpointing says."""
    found = job(written(TUNED))
    layout, t = found.layout, found.training
    assert (layout.world_size, layout.tp, layout.ep, layout.etp, layout.dp) == (8, 4, 8, 1, 2)
    assert (t.peft, t.peft_dim, t.peft_target_modules) == ("lora", 16, ("linear_qkv", "linear_proj"))
    assert (t.use_distributed_optimizer, t.gradient_accumulation_fusion, t.recompute_granularity) == (
        False,
        False,
        "full",
    )
    assert (t.global_batch_size, found.rollout.rollout_engine) == (32, None)
    everything = job(changed(TUNED, actor__target_modules=["all-linear"], actor__lora_rank=None)).training
    assert (everything.peft_target_modules, everything.peft_dim) == (areal.TARGETS, 32)
    whole = job(changed(TUNED, actor__use_lora=False)).training
    assert (whole.use_distributed_optimizer, whole.gradient_accumulation_fusion, whole.moe_permute_fusion) == (
        True,
        True,
        True,
    )
    off = {"bridge_type": "megatron-bridge", "recompute_granularity": None}
    assert job(changed(TUNED, actor__megatron=off)).training.recompute_granularity is None


def test_words_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(DENSE)
    (tmp_path / "old.yaml").write_text(OLD)
    script = tmp_path / "run.sh"
    script.write_text(
        'python3 examples/math/gsm8k_rl.py --config grpo.yaml scheduler.type=ray \\\n actor.backend="megatron:d4p1t2" '
        'rollout.backend="sglang:d4p1t2" actor.gradient_checkpointing=true actor.mb_spec.max_tokens_per_mb=16384\n'
    )
    found = TrainingJob.from_file(script)
    assert (found.layout.world_size, found.layout.tp, found.layout.dp) == (8, 2, 4)
    assert (found.training.seq_length, found.training.recompute_granularity) == (16384, "full")
    for start in ("-m areal.launcher.local", "-m areal.infra.launcher.slurm", "-u train.py"):
        script.write_text(f"python3 {start} my_own.py --config old.yaml actor.gradient_checkpointing=false\n")
        found = TrainingJob.from_file(script, tensor_model_parallel_size=1)
        assert (found.layout.world_size, found.layout.tp, found.layout.sequence_parallel) == (16, 1, False)
        assert found.training.recompute_granularity is None
    script.write_text("python3 my_sft.py --config lost.yaml\n")
    with pytest.raises(ConfigError, match=r"lost\.yaml"):
        TrainingJob.from_file(script)
    script.write_text("python3 gsm8k_grpo.py --config grpo.yaml actor.backend=$BACKEND\n")
    with pytest.raises(QuestionsError, match="--set BACKEND=VALUE"):
        TrainingJob.from_file(script)


def test_only_programs_that_name_a_file_of_areal_are_its_own() -> None:
    files = {"old.yaml": OLD, "other.yaml": "model: x\n", "broken.yaml": "a: [\n"}
    assert dialect_of(started("train.py", "--config old.yaml", files)) is areal.DIALECT
    for words in ("--config other.yaml", "--config broken.yaml", "--config lost.yaml", "--num-layers 4"):
        assert not areal.knows(started("train.py", words, files))


@pytest.mark.parametrize(
    ("text", "gpus", "degrees"),
    [
        ("megatron:d2p1t4", 8, {"d": 2, "p": 1, "t": 4}),
        ("megatron:t4d2", 8, {"t": 4, "d": 2}),
        ("megatron:d2t4e8", 8, {"d": 2, "t": 4, "e": 8}),
        ("megatron[actor]: d2 p2 t2 c2", 16, {"d": 2, "p": 2, "t": 2, "c": 2}),
        ("megatron:(attn:d1p6t4|ffn:d1p6e4)", 24, {"d": 1, "p": 6, "t": 4, "e": 4, "etp": 1}),
        ("megatron:attn:d4t2|ffn:t2e4", 8, {"d": 4, "t": 2, "e": 4, "etp": 2}),
        ("sglang:d4t2", 8, {"d": 4, "t": 2}),
    ],
)
def test_an_engine_with_its_degrees(text: str, gpus: int, degrees: dict[str, int]) -> None:
    (found,) = components(text, "backend")
    assert (found.gpus, found.degrees) == (gpus, degrees)


def test_a_plus_parts_gpus_and_a_bar_shares_them() -> None:
    found = components("sglang[g]:d2+megatron[a]:(attn:d4|ffn:e4)|fsdp[r]:d4+eval", "allocation_mode")
    assert [(one.engine, one.label, one.place) for one in found] == [
        ("sglang", "g", 0),
        ("megatron", "a", 1),
        ("fsdp", "r", 1),
    ]


@pytest.mark.parametrize(
    "text",
    ["d4t2", "sglang.d4+megatron.d4", "megatron:", "megatron:d0", "megatron:x2", "sglang:c2", "megatron:(attn:d1p2|ffn:d1p4)",
     "megatron:(attn:d4|ffn:d4e4)", "megatron:(attn:d4|ffn:e3)", "+", "nemo:d4"],
)  # fmt: skip
def test_texts_that_name_no_engine(text: str) -> None:
    with pytest.raises(ConfigError, match="backend="):
        components(text, "backend")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (changed(DENSE, actor__backend="fsdp:d4"), "trains with fsdp; only megatron"),
        (changed(DENSE, actor__backend="archon:d4"), "trains with archon"),
        (changed(OLD, allocation_mode="sglang:d4+fsdp:d4"), "trains with fsdp"),
        (changed(OLD, allocation_mode="sglang:d4p1t1+eval"), "trains nothing"),
        (changed(OLD, allocation_mode="vllm:d4"), "trains nothing"),
        (Run(document={"rollout": {"backend": "vllm:d4"}}), "rollout.backend='vllm:d4' of AReaL trains nothing"),
        (changed(DENSE, actor__backend="sglang:d4"), "generates and trains nothing"),
        (changed(DENSE, actor__backend="sglang:d4+megatron:d4"), "must be one engine"),
        (changed(DENSE, actor__optimizer=None), "actor.optimizer of AReaL is null"),
        (changed(DENSE, actor__optimizer={"type": "lion"}), "actor.optimizer.type='lion'"),
        (changed(DENSE, actor__use_lora=True), "bridge_type=megatron-bridge"),
        (changed(DENSE, actor__is_critic=True), "a reward model"),
        (changed(DENSE, actor__enable_tree_training=True), "trees of samples"),
        (changed(DENSE, actor__beta=0.1), "DPO"),
        (changed(DENSE, actor__megatron={"fp8_config": {"mode": "e4m3"}}), "fp8_config"),
        (changed(DENSE, actor__megatron={"use_custom_fsdp": True}), "use_custom_fsdp"),
        (changed(DENSE, actor__megatron={"wrap_with_ddp": False}), "wrap_with_ddp"),
        (changed(DENSE, actor__megatron={"bridge_type": "own"}), "bridge_type='own'"),
        (changed(DENSE, teacher={"engine_type": "train"}), "a teacher"),
        (changed(DENSE, actor__dtype="int8"), "actor.dtype='int8'"),
        (Run(program="areal.launcher.ray", words=("x.py",)), "needs --config FILE"),
        (started("gsm8k_rl.py", "--config a.yaml", {"a.yaml": "model: x"}), "names no engine that trains"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(run: Run, says: str) -> None:
    with pytest.raises((UnsupportedError, ConfigError, QuestionsError), match=says):
        job(run)


def test_what_is_missing_is_asked_for_together() -> None:
    with pytest.raises(QuestionsError) as caught:
        job(changed(DENSE, actor__path=None, actor__mb_spec=None))
    assert {one.option for one in caught.value.questions} == {"--model NAME", "--seq-length N"}


def test_a_sample_above_the_limit_and_unknown_keys_are_warned_about() -> None:
    found = job(changed(DENSE, actor__mb_spec={"max_tokens_per_mb": 4096}, actor__own_switch=1))
    assert any(
        "a sample may have 7168 tokens, above actor.mb_spec.max_tokens_per_mb=4096" in one for one in found.warnings
    )
    assert "unknown keys of AReaL passed over: actor.own_switch" in found.warnings


def test_variables_of_the_trainers_processes() -> None:
    spec = [{"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}]
    assert job(changed(DENSE, actor__scheduling_spec=spec)).env.expandable_segments


def test_parameters_of_a_layer_by_hand() -> None:
    """Qwen3-30B-A3B: 2048 x 128 x (32 + 2 x 4) of q, k and v, 2048 x 2048 that AReaL counts of o, two norms, a router of 128, and 32
    experts of 3 x 2048 x 768 on a rank of four; 151,936 x 2048 of an embedding."""
    layers, ends = weights("Qwen/Qwen3-30B-A3B", 4)
    assert (len(layers), set(layers), ends) == (
        48,
        {10_485_760 + 4_194_304 + 4096 + 262_144 + 150_994_944},
        311_164_928,
    )


@pytest.mark.parametrize(
    ("layers", "ends", "stages", "lengths"),
    [
        ([1, 1, 1, 1], 0, 2, [2, 2]),
        ([1, 1, 1, 1, 1, 1], 1, 3, [1, 3, 2]),
        ([1, 1, 1, 1], 4, 3, [0, 4, 0]),
        ([1], 5, 3, [0, 1, 0]),
        ([1], 5, 4, []),
        ([1, 1], 0, 9_000_000, []),
    ],
)
def test_the_fullest_stage_has_the_fewest_parameters(
    layers: list[int], ends: int, stages: int, lengths: list[int]
) -> None:
    assert cut(layers, ends, stages) == lengths


def test_stages_are_cut_by_parameters_with_mbridge() -> None:
    found = job(written(EXPERTS)).layout
    assert found.pipeline_model_parallel_layout == "Et*7|t*8|t*8|t*9|t*9|t*7L"
    chunks = job(
        changed(OLD, actor__megatron={"virtual_pipeline_parallel_size": 2})
    ).layout.pipeline_model_parallel_layout
    assert chunks == "Et*7|t*9|t*9|t*7L"
    even = job(changed(OLD, actor__megatron={"bridge_type": "megatron-bridge"})).layout
    assert even.pipeline_model_parallel_layout is None
    assert job(written(OLD), pipeline_model_parallel_size=1).layout.pipeline_model_parallel_layout is None


TREES = nested(
    leaves(
        "full",
        "${actor.path}",
        "megatron:d9999999p9999999",
        "megatron:(attn:d2|ffn:e2)",
        "mbridge",
        "adam_bf16",
        "a+b|c",
    )
)
PATHS = st.sampled_from(
    ["actor__backend", "actor__path", "actor__megatron", "actor__optimizer", "actor__mb_spec", "actor__dtype", "actor__target_modules",
     "actor__use_lora", "actor__scheduling_spec", "allocation_mode", "rollout", "ref", "critic", "gconfig", "train_dataset", "sglang",
     "actor"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([DENSE, EXPERTS, OLD, TUNED]), st.dictionaries(PATHS, TREES, max_size=3))
def test_random_trees_end_in_a_job_or_a_message(text: str, changes: dict[str, Any]) -> None:
    with suppress(AttributeError, TypeError):
        run = changed(text, **changes)
        if areal.knows(run):
            with suppress(EstimatorError):
                job(run)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="megatronsgladptcef:()|+[]12349 ", max_size=30))
def test_random_texts_name_engines_or_are_refused(text: str) -> None:
    with suppress(EstimatorError):
        assert all(one.gpus >= 1 for one in components(text, "backend"))
