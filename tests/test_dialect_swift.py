"""Runs of ms-swift: what each key becomes, the framework's defaults, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob, UnsupportedError
from megatron_memory_estimator.errors import QuestionsError
from megatron_memory_estimator.inputs.dialects import swift
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run


def job(words: str, verb: str = "sft", env: dict[str, str] | None = None, **given: Any) -> TrainingJob:
    run = Run("run.sh", f"megatron {verb}", tuple(words.split()), env={"NPROC_PER_NODE": "8"} if env is None else env)
    assert swift.knows(run)
    return job_of(swift.DIALECT, run, None, given)


def test_a_packed_run_has_the_framework_defaults() -> None:
    """modelscope/ms-swift 4.6.0 `megatron_args.py`: core attention recomputed, native fused cross entropy, no mask, 16 samples a step."""
    found = job(
        "--model Qwen/Qwen3-14B --packing true --max_length 8192 --tensor_model_parallel_size 4 --sequence_parallel true"
    )
    t, layout = found.training, found.layout
    assert (layout.world_size, layout.tp, layout.dp, layout.sequence_parallel) == (8, 4, 2, True)
    assert (t.seq_length, t.micro_batch_size, t.global_batch_size) == (8192, 1, 16)
    assert (t.recompute_granularity, t.recomputed_modules) == ("selective", ("core_attn",))
    assert (t.cross_entropy_loss_fusion, t.cross_entropy_fusion_impl, t.use_distributed_optimizer) == (
        True,
        "native",
        True,
    )
    assert (t.grad_dtype, t.apply_rope_fusion, t.create_attention_mask_in_dataloader) == ("fp32", False, False)
    assert t.num_workers == 4
    assert found.model.padded_vocab(4) == 151936
    assert not any("unknown" in said for said in found.warnings)


def test_what_muon_orthogonalizes_is_read() -> None:
    found = job(
        "--model Qwen/Qwen3-8B --max_length 512 --optimizer muon --muon_tp_mode distributed --muon_momentum 0.95 "
        "--muon_scalar_optimizer adam"
    )
    assert (found.training.optimizer, found.training.muon_tp_mode) == ("muon", "distributed")
    assert not any("unknown" in said for said in found.warnings)


def test_none_turns_recomputation_off_and_sequence_parallelism_needs_tensor_parallelism() -> None:
    found = job("--model Qwen/Qwen3-8B --max_length 2048 --recompute_granularity none --sequence_parallel true")
    assert found.training.recompute_granularity is None and not found.layout.sequence_parallel


def test_gpus_are_the_launcher_s_environment() -> None:
    words = "--model Qwen/Qwen3-0.6B --max_length 512 --dataloader_num_workers 8"
    assert job(words).training.num_workers == 8
    assert job(words, env={}).layout.world_size == 1
    assert job(words, env={"NPROC_PER_NODE": "4", "NNODES": "2"}).layout.world_size == 8


def test_experts_have_their_own_tensor_parallel_size_and_cpu_adam_is_precision_aware() -> None:
    found = job(
        "--model Qwen/Qwen3-30B-A3B-Base --max_length 4096 --packing true --tensor_model_parallel_size 2 --expert_model_parallel_size 4 "
        "--optimizer_cpu_offload true --optimizer_offload_fraction 0.6 --global_batch_size 64"
    )
    t = found.training
    assert found.layout.etp == 1 and t.moe_grouped_gemm and t.moe_token_dispatcher_type == "alltoall"
    assert (t.optimizer_cpu_offload, t.optimizer_offload_fraction, t.use_precision_aware_optimizer) == (True, 0.6, True)
    assert any("Qwen/Qwen3-30B-A3B" in note for note in found.assumptions)


def test_lora_adapts_all_linears() -> None:
    found = job("--model Qwen/Qwen3-8B --tuner_type lora --lora_rank 16 --max_length 2048 --micro_batch_size 2")
    assert (found.training.peft, found.training.peft_dim) == ("lora", 16)
    assert {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"} <= set(found.training.peft_target_modules)


def test_preferences_hold_a_reference_and_two_answers() -> None:
    """`swift/megatron/trainers/rlhf_mixin.py`: ref_models stay on the device; a row of DPO is a chosen and a rejected answer."""
    words = "--rlhf_type dpo --model Qwen/Qwen3-8B --max_length 2048 --tensor_model_parallel_size 2"
    found = job(words, "rlhf")
    assert found.rollout.reference_model == "device" and found.training.seq_length == 4096
    assert job(f"{words} --packing true", "rlhf").training.seq_length == 2048
    assert job(f"{words} --tuner_type lora", "rlhf").rollout.reference_model == "none"


def test_grpo_shares_the_gpus_with_its_engine() -> None:
    words = "--rlhf_type grpo --model Qwen/Qwen3-8B --max_length 1024 --max_completion_length 3072 --vllm_mode colocate"
    found = job(f"{words} --vllm_gpu_memory_utilization 0.4 --sleep_level 2 --offload_optimizer true", "rlhf")
    r = found.rollout
    assert (r.rollout_engine, r.rollout_memory_share, r.rollout_sleeps, r.rollout_offload) == (
        "vllm",
        0.4,
        True,
        ("optimizer",),
    )
    assert found.training.seq_length == 4096 and found.training.loss_function == "swift"
    assert not job(f"{words} --vllm_mode server", "rlhf").rollout.rollout_colocated


def test_the_same_keys_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "ENV: {NPROC_PER_NODE: 4}\nmodel: Qwen/Qwen2.5-7B\ntensor_model_parallel_size: 2\nmax_length: 4096\npacking: true\n"
        "global_batch_size: 8\n"
    )
    found = TrainingJob.from_file(file)
    assert (found.layout.world_size, found.layout.tp, found.training.seq_length) == (4, 2, 4096)
    assert found.model.padded_vocab(2) == 152064


@pytest.mark.parametrize(
    ("words", "verb", "says"),
    [
        (
            "--model Qwen/Qwen3-8B --max_length 512 --freeze_parameters_ratio 0.5",
            "sft",
            "freeze_parameters_ratio=.0.5. chooses",
        ),
        (
            "--model Qwen/Qwen3-8B --max_length 512 --offload_everything true",
            "sft",
            "offload_everything=.True. decides memory",
        ),
        (
            "--model Qwen/Qwen3-8B --max_length 512 --optimizer muon --muon_scalar_optimizer lion",
            "sft",
            "muon_scalar_optimizer=.lion. is not modelled",
        ),
        ("--model Qwen/Qwen3-8B", "sft", "--seq-length"),
        ("--max_length 512", "sft", "--model NAME"),
        ("--model Qwen/Qwen3-8B --rlhf_type rm --max_length 512", "rlhf", "a reward model"),
        ("--model Qwen/Qwen3-8B --max_length 512 --tensor_model_parallel_size $TP", "sft", "--set TP=VALUE"),
        ("lost.yaml", "sft", "lost.yaml"),
    ],
)
def test_what_decides_memory_and_is_not_known_is_named(words: str, verb: str, says: str) -> None:
    with pytest.raises((QuestionsError, UnsupportedError, EstimatorError), match=says.replace("$", r"\$")):
        job(words, verb)


def test_unknown_keys_are_passed_over_by_name() -> None:
    found = job("--model Qwen/Qwen3-8B --max_length 512 --some_new_switch true --output_dir out --lr 1e-5")
    assert "unknown keys of ms-swift passed over: some_new_switch" in found.warnings


KEYS = st.sampled_from(
    ["model", "max_length", "tensor_model_parallel_size", "lora_rank", "tuner_type", "rlhf_type", "recompute_modules", "packing",
     "max_completion_length", "megatron_extra_kwargs", "vllm_gpu_memory_utilization", "target_modules", "fp8_format", "x", ""]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "true",
        "lora",
        "dpo",
        "grpo",
        "8",
        "-1",
        "1e9",
        "$X",
        "{a: [}",
        "null",
        "Qwen/Qwen3-8B",
        "selective",
        "",
        "\n",
        "core_attn",
    ]
)


@given(st.lists(st.tuples(KEYS, st.lists(WORDS, max_size=3)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_words_are_read_or_refused(keys: list[tuple[str, list[str]]]) -> None:
    words = tuple(word for key, values in keys for word in (f"--{key}", *values))
    run = Run("run.sh", "megatron rlhf", words, env={"NPROC_PER_NODE": "2"})
    with suppress(EstimatorError):
        assert job_of(swift.DIALECT, run, 2, {}).layout.world_size == 2


def test_nodes_that_are_not_known_are_asked_for() -> None:
    """A launcher that starts NNODES=$WORLD_SIZE is no run on one node."""
    words = ("--model", "Qwen/Qwen3-8B", "--max_length", "2048", "--tensor_model_parallel_size", "2")
    run = Run(
        "run.sh",
        "megatron sft",
        words,
        env={"NPROC_PER_NODE": "8"},
        gpus_unknown="NNODES takes its value from $WORLD_SIZE",
    )
    with pytest.raises(QuestionsError, match=r"WORLD_SIZE.*--num-gpus"):
        job_of(swift.DIALECT, run, None, {})
    assert job_of(swift.DIALECT, run, 16, {}).layout.dp == 8


def test_attention_of_npus_is_a_fused_one() -> None:
    """`swift/megatron/model/utils.py`: attention_backend=local is what NPUs run with."""
    found = job("--model Qwen/Qwen3-8B --max_length 2048 --attention_backend local")
    assert any("NPU" in said for said in found.warnings)


def test_models_with_towers_are_their_language_model() -> None:
    found = job("--model Qwen/Qwen3-VL-4B-Instruct --max_length 2048 --freeze_vit true --freeze_llm false")
    assert found.model.num_layers == 36
    assert any("only the language model is counted" in said for said in found.warnings)
    assert any("has the sizes of the catalogue model Qwen/Qwen3-4B" in note for note in found.assumptions)


EXPERTS = "--model Qwen/Qwen3-30B-A3B --max_length 2048 --expert_model_parallel_size 8 "


def test_fields_of_megatron_are_read_whatever_they_begin_with() -> None:
    """`megatron_args.py`, MegatronArguments: Megatron-FSDP shards all by default; a balancing loss may be none."""
    found = job(EXPERTS + "--moe_router_dtype fp64 --moe_aux_loss_coeff 1e-3 --moe_router_load_balancing_type none")
    assert (found.training.moe_router_dtype, found.model.moe_router_load_balancing_type) == ("fp64", ("none",))
    found = job(EXPERTS + "--dist_ckpt_optim_fully_reshardable true --moe_router_load_balancing_type seq_aux_loss")
    assert found.training.dist_ckpt_optim_fully_reshardable and found.model.moe_router_load_balancing_type == (
        "seq_aux_loss",
    )
    sharded = "--model Qwen/Qwen3-8B --max_length 2048 --use_megatron_fsdp true "
    assert job(sharded).training.data_parallel_sharding_strategy == "optim_grads_params"
    assert job(sharded + "--data_parallel_sharding_strategy optim").training.data_parallel_sharding_strategy == "optim"


VISION = "--model Qwen/Qwen3-VL-8B-Instruct --max_length 2048 "


def test_towers_are_frozen_with_what_leads_out_of_them_or_left_out() -> None:
    """`megatron_args.py`: freeze_vit and freeze_aligner are true by default, and language_model_only builds no tower."""
    t = job(VISION).training
    assert t.freeze_vision_model and t.freeze_audio_model and t.freeze_vision_projection and not job(VISION).unmodelled
    assert not job(VISION + "--freeze_vit yes").unmodelled
    for trained in ("--freeze_vit no", "--freeze_aligner false"):
        assert "which this run trains" in job(VISION + trained).unmodelled
    alone = job(VISION + "--language_model_only true --freeze_vit false")
    assert not (alone.unmodelled or alone.model.towers or alone.training.freeze_vision_model)


def test_what_is_off_by_default_is_not_said() -> None:
    said = job("--model Qwen/Qwen3-8B --max_length 2048 --save_interval 0 --muon_tp_mode blockwise").warnings
    assert not [one for one in said if "no effect" in one]


def test_checkpoints_are_written_by_a_process_beside_a_rank_where_it_is_persistent() -> None:
    """`trainers/base.py`: without use_persistent_ckpt_worker an asynchronous save forks a process, which has no CUDA context."""
    for off in ("--async_save true", "--async_save no --use_persistent_ckpt_worker true"):
        assert not job(EXPERTS + off).training.async_save
    assert job(EXPERTS + "--async_save true --use_persistent_ckpt_worker true").training.async_save


def test_a_file_alone_does_not_say_the_gpus_and_a_power_of_ten_is_a_number() -> None:
    """YAML 1.1 takes 1e-3 for a text; the command's environment has the processes."""
    document: dict[str, Any] = {
        "model": "Qwen/Qwen3-30B-A3B", "max_length": 2048, "packing": True, "moe_aux_loss_coeff": "1e-3", "expert_model_parallel_size": 4,
    }  # fmt: skip
    with pytest.raises(QuestionsError, match="--num-gpus"):
        job_of(swift.DIALECT, Run("run.yaml", document=document), None, {})
    assert job_of(swift.DIALECT, Run("run.yaml", document=document), 8, {}).model.moe_aux_loss_coeff == 1e-3
    named = {**document, "ENV": {"NPROC_PER_NODE": 4}}
    assert job_of(swift.DIALECT, Run("run.yaml", document=named), None, {}).layout.world_size == 4


def test_the_entry_itself_has_the_gpus_of_its_launcher() -> None:
    words = ("--model", "Qwen/Qwen3-8B", "--max_length", "2048", "--tensor_model_parallel_size", "4")
    run = Run("run.sh", "swift/cli/_megatron/sft.py", words, num_gpus=16)
    assert swift.knows(run)
    assert job_of(swift.DIALECT, run, None, {}).layout.dp == 4
