"""SkyRL: its programs and their words, its defaults, what is around the training, and its SFT trainer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.errors import ConfigError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.dialects import skyrl
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .dialect_runs import job, started

BASE = "skyrl.train.entrypoints.main_base"
POLICY = "trainer.policy.megatron_config."
WORDS = (
    "trainer.strategy=megatron trainer.policy.model.path=Qwen/Qwen3-8B trainer.placement.policy_num_gpus_per_node=8 "
    f"{POLICY}tensor_model_parallel_size=2 trainer.ref.megatron_config.tensor_model_parallel_size=2 "
    "trainer.policy_mini_batch_size=32 generator.n_samples_per_prompt=4 "
)
SFT = "model.path=Qwen/Qwen3-8B max_length=4096 placement.num_gpus_per_node=8 "


def rl(words: str = "", program: str = BASE, **given_: object) -> TrainingJob:
    return job(started(program, WORDS + words), **given_)  # type: ignore[arg-type]


def sft(words: str = "") -> TrainingJob:
    return job(started("skyrl.train.main_sft", SFT + words))


def script(folder: Path, command: str) -> TrainingJob:
    path = folder / "run.sh"
    path.write_text(f'#!/bin/bash\nset -x\nMODEL="Qwen/Qwen3-30B-A3B"\nNODES=4\n{command} "$@"\n')
    return TrainingJob.from_file(str(path))


def test_a_mixture_of_experts_beside_its_engines(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        f"""uv run --isolated --extra megatron -m {BASE} \\
  data.train_data="['$HOME/data/train.parquet']" trainer.strategy=megatron trainer.policy.model.path=$MODEL \\
  trainer.placement.policy_num_nodes=$NODES trainer.placement.policy_num_gpus_per_node=8 \\
  {POLICY}tensor_model_parallel_size=4 {POLICY}pipeline_model_parallel_size=2 \\
  {POLICY}expert_model_parallel_size=8 {POLICY}expert_tensor_parallel_size=1 {POLICY}freeze_moe_router=true \\
  {POLICY}optimizer_config_kwargs.optimizer_cpu_offload=true \\
  {POLICY}optimizer_config_kwargs.optimizer_offload_fraction=1.0 \\
  {POLICY}optimizer_config_kwargs.use_precision_aware_optimizer=true \\
  trainer.policy_mini_batch_size=32 trainer.micro_forward_batch_size_per_gpu=2 trainer.max_prompt_length=1024 \\
  generator.sampling_params.max_generate_length=7168 generator.n_samples_per_prompt=8 \\
  generator.inference_engine.tensor_parallel_size=4 generator.inference_engine.gpu_memory_utilization=0.6""",
    )
    layout, training, around = found.layout, found.training, found.rollout
    assert (layout.world_size, layout.tp, layout.pp, layout.ep, layout.etp, layout.dp) == (32, 4, 2, 8, 1, 4)
    assert layout.sequence_parallel and training.freeze_moe_router and training.use_distributed_optimizer
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (8192, 1, 256)
    assert (training.recompute_granularity, training.recompute_method, training.recompute_num_layers) == (
        "full",
        "uniform",
        1,
    )
    assert (training.optimizer_cpu_offload, training.optimizer_offload_fraction) == (True, 1.0)
    assert training.use_precision_aware_optimizer and training.accumulate_allreduce_grads_in_fp32
    assert (training.moe_token_dispatcher_type, training.gradient_accumulation_fusion) == ("alltoall", False)
    assert (training.loss_function, training.loss_chunk_size) == ("skyrl", 1024)
    assert (around.rollout_engine, around.rollout_memory_share, around.rollout_colocated) == ("vllm", 0.6, True)
    assert (around.rollout_tensor_parallel_size, around.weight_sync_bytes) == (4, 2**30)
    assert around.rollout_offload == ("weights", "gradients", "optimizer")
    assert around.log_prob_offload == ("gradients", "optimizer")
    assert (around.reference_model, around.log_prob_micro_batch_tokens) == ("offloaded", 16384)
    assert found.model.vocab_size == 151936
    assert any("use_kl_loss=true" in str(note) for note in found.assumptions)
    split = next(said for said in found.warnings if "trainer.ref.megatron_config" in said)
    assert "tensor_model_parallel_size=1 instead of 4" in split and "too little" in split


def test_samples_packed_by_tokens_of_the_whole_microbatch(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "uv run --isolated --extra megatron -m examples.train.algorithms.dapo.main_dapo trainer.strategy=megatron "
        "trainer.policy.model.path=meta-llama/Llama-3.1-8B trainer.gradient_checkpointing=false "
        "trainer.algorithm.use_kl_loss=false trainer.fused_lm_head_logprob=true trainer.logprobs_chunk_size=2048 "
        "trainer.placement.colocate_all=false trainer.placement.policy_num_gpus_per_node=8 "
        f"{POLICY}tensor_model_parallel_size=2 {POLICY}context_parallel_size=2 trainer.max_tokens_per_microbatch=16384 "
        "trainer.policy_mini_batch_size=64 trainer.max_prompt_length=2048 generator.n_samples_per_prompt=4 "
        "generator.sampling_params.max_generate_length=8192",
    )
    training = found.training
    assert (found.layout.cp, found.layout.dp, training.seq_length, training.micro_batch_size) == (2, 2, 16384, 1)
    assert (training.recompute_granularity, training.global_batch_size) == (None, 256)
    assert (training.loss_function, training.loss_chunk_size) == ("skyrl_fused", 2048)
    assert (found.rollout.rollout_colocated, found.rollout.reference_model) == (False, "none")
    assert found.rollout.log_prob_offload == ()
    assert found.model.vocab_size == 128256


def test_supervised_rows_are_filled(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "uv run --isolated --extra megatron python -m skyrl.train.main_sft strategy=megatron model.path=Qwen/Qwen3-8B "
        "max_length=4096 batch_size=96 micro_train_batch_size_per_gpu=4 use_sequence_packing=true "
        "max_tokens_per_microbatch=8192 placement.num_nodes=1 placement.num_gpus_per_node=8 "
        "megatron_config.tensor_model_parallel_size=2 megatron_config.pipeline_model_parallel_size=1 "
        "megatron_config.transformer_config_kwargs.recompute_granularity=selective "
        "megatron_config.transformer_config_kwargs.recompute_method=null "
        "megatron_config.transformer_config_kwargs.recompute_num_layers=null "
        "megatron_config.transformer_config_kwargs.recompute_modules=\"['core_attn','layernorm']\"",
    )
    training = found.training
    assert (found.layout.world_size, found.layout.tp, found.layout.pp, found.layout.dp) == (8, 2, 1, 4)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (8192, 1, 96)
    assert (training.recompute_granularity, training.recompute_modules) == ("selective", ("core_attn", "layernorm"))
    assert found.rollout.rollout_engine is None and found.rollout.reference_model == "none"
    assert (training.loss_function, training.loss_entropy) == ("skyrl", False)


def test_adapters_of_every_linear(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        f"uv run --isolated --extra megatron -m {BASE} trainer.strategy=megatron trainer.policy.model.path=Qwen/Qwen3-14B "
        "trainer.policy.model.lora.rank=32 trainer.policy.model.lora.alpha=64 "
        f"trainer.placement.policy_num_gpus_per_node=4 {POLICY}tensor_model_parallel_size=4 "
        "trainer.policy_mini_batch_size=16 trainer.micro_train_batch_size_per_gpu=2 trainer.max_prompt_length=512 "
        "generator.sampling_params.max_generate_length=1536 generator.n_samples_per_prompt=5",
    )
    training = found.training
    assert (found.layout.world_size, found.layout.tp, found.layout.dp) == (4, 4, 1)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (2048, 2, 80)
    assert (training.peft, training.peft_dim) == ("lora", 32)
    assert training.peft_target_modules == (
        "linear_qkv",
        "linear_proj",
        "linear_fc1",
        "linear_fc2",
        "in_proj",
        "out_proj",
    )
    assert found.rollout.reference_model == "offloaded", "SkyRL builds one beside adapters too"
    apart = rl(f"trainer.policy.model.lora.rank=8 {POLICY}lora_config.lora_type=canonical_lora").training
    assert apart.peft == "canonical_lora"
    assert len(apart.peft_target_modules or ()) == 9
    hybrid = started(
        BASE, f"{WORDS} trainer.policy.model.lora.rank=8 trainer.policy.model.path=Qwen/Qwen3-Next-80B-A3B-Instruct"
    )
    assert "in_proj" not in skyrl.read(hybrid).settings["peft_target_modules"]
    assert rl(
        "trainer.policy.model.lora.rank=8 trainer.policy.model.lora.target_modules=[linear_qkv]"
    ).training.peft_target_modules == ("linear_qkv",)


def test_fsdp_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"trainer\.strategy=.?fsdp"):
        script(tmp_path, f"uv run --isolated --extra fsdp -m {BASE} trainer.policy.model.path=Qwen/Qwen3-8B")
    with pytest.raises(UnsupportedError, match="fsdp2"):
        rl("trainer.strategy=fsdp2")
    with pytest.raises(UnsupportedError, match="fsdp"):
        sft("strategy=fsdp")


def test_defaults() -> None:
    found = job(started(BASE, "trainer.strategy=megatron trainer.policy.model.path=Qwen/Qwen3-8B"))
    training = found.training
    assert (found.layout.world_size, training.seq_length, training.micro_batch_size) == (1, 1536, 1)
    assert (training.global_batch_size, training.attention_kernel) == (1280, "flash")
    assert (found.rollout.rollout_memory_share, found.rollout.rollout_tensor_parallel_size) == (0.8, 1)
    assert any("policy_num_gpus_per_node=1" in str(note) for note in found.assumptions)
    assert rl("trainer.flash_attn=false").training.attention_kernel == "cudnn"
    assert rl("generator.max_input_length=4000").training.seq_length == 4000 + 1024
    assert rl().rollout.log_prob_micro_batch_tokens is None


def test_chunks_that_hold_all_tokens_are_none() -> None:
    """Parts of as many tokens as a rank has: the softmax is kept instead of made again."""
    assert rl("trainer.logprobs_chunk_size=1536").training.loss_chunk_size is None
    assert rl("trainer.logprobs_chunk_size=1535").training.loss_chunk_size == 1535
    assert rl("trainer.logprobs_chunk_size=null").training.loss_chunk_size is None
    assert rl("trainer.algorithm.use_entropy_loss=true").training.loss_entropy
    assert sft().training.loss_chunk_size == 1024


def test_a_longer_sample_than_the_limit_runs_alone() -> None:
    found = rl("trainer.max_tokens_per_microbatch=1024")
    assert found.training.seq_length == 1536
    assert any("it runs alone" in said for said in found.warnings)
    padded = rl("trainer.max_tokens_per_microbatch=4096 trainer.remove_microbatch_padding=false")
    assert any("without padding" in said for said in padded.warnings)


def test_the_older_program() -> None:
    found = job(
        started(
            "skyrl_train.entrypoints.main_base",
            "trainer.strategy=megatron trainer.policy.model.path=Qwen/Qwen3-8B generator.gpu_memory_utilization=0.7 "
            "generator.inference_engine_tensor_parallel_size=2",
        )
    )
    assert (found.layout.world_size, found.training.loss_chunk_size) == (4, None)
    assert found.training.gradient_accumulation_fusion
    assert (found.rollout.rollout_memory_share, found.rollout.rollout_tensor_parallel_size) == (0.7, 2)


def test_the_supervised_trainer_alone_has_degrees() -> None:
    assert (sft().layout.tp, sft().layout.pp, sft().layout.world_size) == (2, 2, 8)
    one = sft("megatron_config.tensor_model_parallel_size=4")
    assert (one.layout.tp, one.layout.pp) == (4, 1)
    assert (one.training.seq_length, one.training.micro_batch_size, one.training.global_batch_size) == (4096, 2, 4)
    short = sft("use_sequence_packing=true max_tokens_per_microbatch=1024 batch_size=8")
    assert short.training.seq_length == 4096
    with pytest.raises(QuestionsError, match="max_length"):
        job(started("skyrl.train.main_sft", "model.path=Qwen/Qwen3-8B"))


def test_the_caller_s_degrees_decide_sequence_parallelism() -> None:
    assert not rl(tensor_model_parallel_size=1).layout.sequence_parallel
    assert rl(tensor_model_parallel_size=4).layout.sequence_parallel


def test_balancing_and_extra_layers_where_they_are_chosen() -> None:
    experts = "trainer.policy.model.path=Qwen/Qwen3-30B-A3B "
    assert rl(f"{experts}{POLICY}moe_aux_loss_coeff=0.1").model.moe_aux_loss_coeff == 0
    chosen = rl(f"{experts}{POLICY}moe_aux_loss_coeff=0.1 {POLICY}moe_router_load_balancing_type=aux_loss")
    assert chosen.model.moe_aux_loss_coeff == 0.1
    deepseek = "trainer.policy.model.path=deepseek-ai/DeepSeek-V3 "
    assert skyrl.read(started(BASE, WORDS + deepseek)).defaults["mtp_num_layers"] == 0
    drafts = skyrl.read(started(BASE, f"{WORDS}{deepseek}trainer.mtp.enabled=true"))
    assert "mtp_num_layers" not in drafts.defaults
    assert any("draft loss" in said for said in drafts.warnings)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("trainer.critic.model.path=Qwen/Qwen3-8B", "critic"),
        ("trainer.bf16=false", "trainer.bf16"),
        ("trainer.policy.model.fake_int4_qat.enabled=true", "fake_int4_qat"),
        ("trainer.ref.model.path=Qwen/Qwen3-32B", "another model"),
        ("trainer.policy.model.lora.rank=8 trainer.policy.model.lora.exclude_modules=linear_fc1", "exclude_modules"),
        (
            "trainer.policy.model.lora.rank=8 trainer.policy.model.lora.share_expert_adapters=false",
            "share_expert_adapters",
        ),
        (
            "trainer.policy.model.lora.rank=8 trainer.policy.model.lora.target_modules=['*.linear_qkv']",
            "target_modules",
        ),
        (f"trainer.policy.model.lora.rank=8 {POLICY}lora_config.normalize_moe_lora=true", "normalize_moe_lora"),
        (f"trainer.policy.model.lora.rank=8 {POLICY}lora_config.lora_type=dora", "lora_type"),
        (f"{POLICY}freeze_dsa_indexer=true", "freeze_dsa_indexer"),
        (f"{POLICY}offload_everything=true", "offload_everything"),
        (f"{POLICY}fp8=hybrid {POLICY}fp8_recipe=auto", "follows the GPU"),
    ],
)
def test_what_is_refused_or_asked_for_by_name(words: str, named: str) -> None:
    with pytest.raises(QuestionsError, match=named):
        rl(words)


def test_a_recipe_that_follows_the_gpu_is_answered() -> None:
    found = rl(f"{POLICY}fp8=hybrid {POLICY}fp8_recipe=auto", fp8_recipe="blockwise")
    assert (found.training.fp8, found.training.fp8_recipe) == ("hybrid", "blockwise")


def test_unknown_keys_are_named() -> None:
    found = rl("trainer.novel_thing=3")
    assert any("trainer.novel_thing" in said for said in found.warnings)
    with pytest.raises(UnsupportedError, match="trains nothing"):
        rl("trainer.fully_async.simulate_training=true")


def test_programs_that_are_told_apart(tmp_path: Path) -> None:
    assert dialect_of(started("examples.train.gsm8k.main_gsm8k", WORDS)) is skyrl.DIALECT
    assert dialect_of(started("integrations.verifiers.entrypoints.main_verifiers", WORDS)) is skyrl.DIALECT
    assert dialect_of(started("examples.other.main_thing", "--lr 1")) is None
    with pytest.raises(ConfigError, match="main_generate"):
        script(tmp_path, f"uv run --isolated -m skyrl.train.entrypoints.main_generate {WORDS}")


def test_fp32_logits_stay_whole_in_the_loss() -> None:
    """With chunks of one token the logits are kept in fp32: 4 bytes of 1,536 tokens x 75,968 columns."""
    found = estimate(rl("trainer.logprobs_chunk_size=1"))
    unit = next(run for run in found.stages[0].rank.plans[0].runs if run.unit.name == "output")
    assert unit.trace.saved_bytes == pytest.approx(4 * 1536 * 75968, rel=0.05)


VALUES = st.sampled_from(
    [
        "true",
        "false",
        "null",
        "0",
        "-1",
        "3",
        "1e9",
        "full",
        "selective",
        "[a,b]",
        "{a:1}",
        "${trainer.x}",
        "",
        "megatron",
        "9" * 30,
    ]
)
KEYS = st.sampled_from(
    [
        "trainer.strategy", "trainer.placement.policy_num_nodes", "trainer.max_tokens_per_microbatch", "trainer.max_prompt_length",
        f"{POLICY}tensor_model_parallel_size", f"{POLICY}transformer_config_kwargs", f"{POLICY}lora_config", f"{POLICY}ddp_config.overlap",
        f"{POLICY}transformer_config_kwargs.recompute_granularity", "trainer.policy.model.lora.rank",
        "trainer.policy.model.lora.target_modules",
        "trainer.logprobs_chunk_size", "trainer.algorithm.use_kl_loss", "generator.inference_engine.gpu_memory_utilization",
        "generator.inference_engine", "trainer.ref.megatron_config", "trainer", "max_length", "megatron_config", "model.path",
        "use_sequence_packing", "placement",
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_random_words_end_in_a_job_or_a_message(changes: dict[str, str], is_sft: bool) -> None:
    program, words = ("skyrl.train.main_sft", SFT) if is_sft else (BASE, WORDS)
    run = Run(program=program, words=(*words.split(), *(f"{key}={value}" for key, value in changes.items())))
    with contextlib.suppress(EstimatorError):
        job(run)


def test_towers_are_megatron_bridges_and_some_are_left_out() -> None:
    """`workers/megatron/model_bridges.py`: language_model_only routes Qwen3.5 to the bridge of its text."""
    words = WORDS.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-VL-8B-Instruct")
    assert words != WORDS
    assert job(started(BASE, words)).model.towers[0].blocks
    words = WORDS.replace("Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B")
    assert job(started(BASE, words)).model.towers
    assert not job(started(BASE, words + "trainer.policy.language_model_only=true")).model.towers
    words = WORDS.replace("Qwen/Qwen3-8B", "moonshotai/Kimi-K2.5")
    assert not job(started(BASE, words)).model.towers


def test_an_asynchronous_save_has_a_process_of_its_own() -> None:
    """`distributed/megatron/megatron_strategy.py`: AsyncCallsQueue(persistent=True)."""
    words = WORDS + "trainer.policy.megatron_config.async_dist_ckpt_save=true "
    assert job(started(BASE, words)).training.async_save
    words += "trainer.policy.megatron_config.dist_ckpt_optim_fully_reshardable=true"
    assert job(started(BASE, words)).training.dist_ckpt_optim_fully_reshardable
