"""slime and miles: what their arguments mean beside Megatron-LM's, and what is asked or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import count_parameters
from megatron_memory_estimator.errors import EstimatorError, QuestionsError, UnsupportedError
from megatron_memory_estimator.inputs.dialects import slime
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.job.training_job import TrainingJob

MODEL = """
    --swiglu --num-layers 28 --hidden-size 1024 --ffn-hidden-size 3072 --num-attention-heads 16 --group-query-attention
    --num-query-groups 8 --kv-channels 128 --qk-layernorm --use-rotary-position-embeddings --disable-bias-linear
    --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 1000000 --vocab-size 151936
"""
EXPERTS = " --num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 512 --moe-grouped-gemm"
ROLLOUT = """
    --hf-checkpoint /models/Qwen3-0.6B --ref-load /models/q --prompt-data /data/x.jsonl --input-key prompt --num-rollout 40
    --rollout-batch-size 16 --n-samples-per-prompt 8 --rollout-max-response-len 4096 --global-batch-size 64
    --advantage-estimator grpo --lr 1e-6 --sglang-mem-fraction-static 0.65 --sglang-log-level error
"""
PACKED = " --use-dynamic-batch-size --max-tokens-per-gpu 6144"


def run_of(words: str, program: str = "train.py", **more: Any) -> Run:
    return Run(path="run.sh", program=program, words=tuple(words.split()), **more)


def job(words: str, program: str = "train.py", **given: Any) -> TrainingJob:
    run = run_of(MODEL + words, program)
    dialect = dialect_of(run)
    assert dialect is not None
    return job_of(dialect, run, None, given)


def refusal(words: str, **given: Any) -> str:
    with pytest.raises(EstimatorError) as found:
        job(words, **given)
    return str(found.value)


def test_a_colocated_run_is_read_with_what_is_always_on() -> None:
    found = job(
        ROLLOUT + PACKED + " --actor-num-gpus-per-node 4 --colocate --tensor-model-parallel-size 2 --sequence-parallel"
    )
    training, rollout = found.training, found.rollout
    assert (found.layout.world_size, found.layout.tensor_model_parallel_size) == (4, 2)
    assert (training.params_dtype, training.use_distributed_optimizer) == ("bf16", True)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (6144, 1, 64)
    assert not training.create_attention_mask_in_dataloader
    assert (found.model.attention_dropout, found.model.hidden_dropout) == (0.0, 0.0)
    assert (training.loss_function, training.loss_entropy, training.loss_temperature) == ("slime", False, False)
    assert (rollout.rollout_engine, rollout.rollout_memory_share, rollout.rollout_sleeps) == ("sglang", 0.65, True)
    assert rollout.rollout_offload == ("weights", "gradients", "optimizer")
    assert (rollout.reference_model, rollout.weight_sync_bytes) == ("none", 512 * 2**20)
    assert any("at most 6144 tokens" in one for one in found.assumptions)
    assert not found.warnings


def test_tokens_are_those_of_a_gpu_and_rows_are_padded() -> None:
    """Tokens of a microbatch are those of all context-parallel ranks; each rank's are a multiple of 128 tp."""
    found = job(ROLLOUT + PACKED.replace("6144", "6000") + " --tensor-model-parallel-size 2 --context-parallel-size 2")
    assert found.training.seq_length == 2 * 6144
    forward = job(ROLLOUT + PACKED + " --log-probs-max-tokens-per-gpu 12288 --context-parallel-size 2")
    assert forward.rollout.log_prob_micro_batch_tokens == 2 * 12288


def test_a_sample_that_is_longer_than_the_limit_runs_alone() -> None:
    found = job(ROLLOUT + PACKED + " --rollout-max-context-len 16384")
    assert found.training.seq_length == 16384
    assert any("16384 tokens (--rollout-max-context-len)" in one for one in found.warnings)


def test_padded_microbatches_hold_the_longest_samples() -> None:
    found = job(
        ROLLOUT + " --micro-batch-size 2 --rollout-max-prompt-len 1024 --seq-length 4096 --max-position-embeddings 4096"
    )
    assert (found.training.seq_length, found.training.micro_batch_size) == (5120, 2)
    assert "--seq-length N" in refusal(ROLLOUT)
    assert job(ROLLOUT, seq_length=6000).training.seq_length == 6000
    assert "--max-tokens-per-gpu" in refusal(ROLLOUT + " --use-dynamic-batch-size")


def test_the_batch_follows_from_the_rollout() -> None:
    words = ROLLOUT.replace("--global-batch-size 64", "") + PACKED
    assert job(words + " --num-steps-per-rollout 2").training.global_batch_size == 64
    assert job(words).training.global_batch_size == 128
    assert "--global-batch-size N" in refusal(words.replace("--rollout-batch-size 16", "--rollout-num-gpus 8"))


def test_the_vocabulary_is_padded_to_128_times_tp() -> None:
    found = job(ROLLOUT + PACKED + " --tensor-model-parallel-size 8 --num-query-groups 8")
    assert (found.model.vocab_size, found.model.make_vocab_size_divisible_by) == (151936, 128)


def test_the_dispatcher_is_never_allgather() -> None:
    words = ROLLOUT + PACKED + EXPERTS + " --expert-model-parallel-size 4"
    assert job(words).training.moe_token_dispatcher_type == "alltoall"
    assert job(words + " --moe-token-dispatcher-type allgather").training.moe_token_dispatcher_type == "alltoall"
    flex = job(words + " --moe-token-dispatcher-type flex --moe-enable-deepep").training
    assert (flex.moe_token_dispatcher_type, flex.moe_flex_dispatcher_backend) == ("flex", "deepep")


def test_entropy_chunks_and_temperature_decide_what_the_loss_keeps() -> None:
    found = job(
        ROLLOUT + PACKED + " --entropy-coef 0.001 --log-probs-chunk-size 1024 --rollout-temperature 0.8"
    ).training
    assert (found.loss_entropy, found.loss_chunk_size, found.loss_temperature) == (True, 1024, True)
    assert job(ROLLOUT + PACKED + " --log-probs-chunk-size -1 --entropy-coef 0.0").training.loss_chunk_size is None


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        ("", "none"),
        ("--kl-loss-coef 0.01", "none"),
        ("--use-kl-loss --kl-loss-coef 0.00", "host"),
        ("--kl-coef 0.001", "host"),
        ("--kl-coef 0.0", "none"),
    ],
)
def test_a_reference_is_a_copy_in_host_memory(words: str, reference: str) -> None:
    assert job(f"{ROLLOUT} {PACKED} {words}").rollout.reference_model == reference


def test_a_draft_model_of_the_engine_is_named() -> None:
    """It is the engine's, whose share of a GPU is given; its own bytes are counted nowhere."""
    drafted = job(
        f"{ROLLOUT} {PACKED} --colocate --sglang-speculative-algorithm EAGLE --sglang-speculative-num-steps 3"
    )
    (said,) = [one for one in drafted.warnings if "draft" in one]
    assert said.startswith(
        "sglang_speculative_algorithm: the weights and caches of the engine's draft model are not counted"
    )
    assert not any("draft" in one for one in job(f"{ROLLOUT} {PACKED} --colocate").warnings)
    elsewhere = job(f"{ROLLOUT} {PACKED} --rollout-num-gpus 8 --sglang-speculative-algorithm EAGLE")
    assert not any("draft" in one for one in elsewhere.warnings)


def test_ppo_has_a_critic_in_turn() -> None:
    found = job(ROLLOUT.replace("grpo", "ppo") + PACKED + " --colocate")
    assert found.rollout.critic_model == "in_turn"
    assert any("critic" in one for one in found.warnings)


def test_gpus_of_the_rollout_do_not_train() -> None:
    found = job(ROLLOUT + PACKED + " --actor-num-nodes 2 --rollout-num-gpus 8", "slime/train_async.py")
    assert (found.layout.world_size, found.rollout.rollout_colocated, found.rollout.rollout_offload) == (16, False, ())


def test_what_colocation_offloads_can_be_kept() -> None:
    found = job(ROLLOUT + PACKED + " --colocate --no-offload-train --no-offload-rollout").rollout
    assert (found.rollout_offload, found.rollout_sleeps) == ((), False)


def test_supervised_training_has_no_engine() -> None:
    found = job(ROLLOUT + PACKED + " --loss-type sft_loss --debug-train-only --entropy-coef 0.1", "train_async.py")
    assert found.rollout.rollout_engine is None
    assert not found.rollout.has_phases
    assert not found.training.loss_entropy


def test_lora_of_miles() -> None:
    words = ROLLOUT + PACKED + " --lora-rank 16 --lora-alpha 32 --lora-dropout 0.0 --target-modules "
    run = run_of(MODEL + words + "all-linear")
    dialect = dialect_of(run)
    assert dialect is not None
    assert dialect.name == "miles"
    found = job(words + "all-linear").training
    assert (found.peft, found.peft_dim) == ("lora", 16)
    assert found.peft_target_modules == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    assert job(words + "q_proj,v_proj,o_proj").training.peft_target_modules == ("linear_qkv", "linear_proj")
    split = job(words + "q_proj v_proj --lora-type canonical_lora").training
    assert (split.peft, split.peft_target_modules) == ("canonical_lora", ("linear_q", "linear_v"))
    assert job(words.replace("16 --lora-alpha", "0 --lora-alpha") + "all-linear").training.peft == "none"


def test_layers_of_mtp_without_its_training_are_counted_and_said() -> None:
    words = ROLLOUT + PACKED + " --mtp-num-layers 1"
    assert any("--enable-mtp-training" in one for one in job(words).warnings)
    assert not job(words + " --enable-mtp-training").warnings


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--stream-optimizer-state-to-disk", "on disk"),
        ("--lora-rank 8 --offload-train-target disk", "on disk"),
        ("--freeze-params-name-list embedding mlp", "chooses what trains"),
        ("--only-train-params-name-list experts", "chooses what trains"),
        ("--custom-model-provider-path my.module.model", "is code"),
        ("--train-backend fsdp", "without Megatron"),
        ("--debug-rollout-only", "nothing is trained"),
        ("--swap-optimizer-states", "swap"),
        ("--spec my_lab.models.braid get_braid_spec", "my_lab.models.braid"),
        ("--spec slime_plugins.models.braid get_braid_spec", "slime_plugins.models.braid get_braid_spec is not known"),
        ("--spec miles_plugins.models.deepseek_v4 get_dsv4_spec", "DeepSeek-V4"),
        ("--spec slime_plugins.models.qwen3_5 get_qwen3_5_spec", "has no linear attention"),
        ("--spec slime_plugins.models.glm5.glm5 get_glm5_spec", "has no indexer"),
        ("--post-self-attn-layernorm", "adds norms"),
        ("--spec slime_plugins.models.glm4 get_glm_spec --post-mlp-layernorm", "alone"),
    ],
)
def test_what_decides_memory_is_refused(words: str, name: str) -> None:
    assert name in refusal(f"{ROLLOUT} {PACKED} {words}")


LINEAR = """
    --spec PLUGIN get_qwen3_5_spec --num-layers 40 --hidden-size 2048 --ffn-hidden-size 512 --num-attention-heads 16
    --group-query-attention --num-query-groups 2 --kv-channels 256 --qk-layernorm --attention-output-gate --normalization RMSNorm
    --disable-bias-linear --swiglu --position-embedding-type rope --rotary-percent 0.25 --untie-embeddings-and-output-weights
    --vocab-size 248320 --num-experts 256 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512
    --moe-shared-expert-gate --moe-router-topk 8 --moe-grouped-gemm --hf-checkpoint /root/Qwen3.5-35B-A3B --actor-num-nodes 2
    --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1 --rollout-batch-size 32 --n-samples-per-prompt 8 --use-dynamic-batch-size --max-tokens-per-gpu 8192
"""


@pytest.mark.parametrize(
    ("plugin", "kind", "ranks"),
    [
        ("slime_plugins.models.qwen3_5", "gdn_whole", "tensor- and context-parallel ranks"),
        ("miles_plugins.models.qwen3_5", "gdn_whole_cp", "tensor-parallel ranks"),
    ],
)
def test_linear_attention_of_a_spec_takes_its_sizes_from_the_checkpoint(plugin: str, kind: str, ranks: str) -> None:
    """Three of four layers; the words give the rest, and a model with fewer layers has the first ones."""
    run = run_of(LINEAR.replace("PLUGIN", plugin))
    dialect = dialect_of(run)
    assert dialect is not None and dialect.name == plugin.partition("_")[0]
    found = job_of(dialect, run, None, {})
    assert found.model.kinds == (f"{kind}+moe", f"{kind}+moe", f"{kind}+moe", "gqa+moe") * 10
    assert (found.layout.dp, found.training.seq_length, found.model.linear_num_value_heads) == (4, 16384, 32)
    (warning,) = found.warnings
    assert "linear attention" in warning and "weights are whole on each rank" in warning and warning.endswith(ranks)
    assert any("Qwen/Qwen3.5-35B-A3B" in one for one in found.assumptions)
    short = run_of(LINEAR.replace("PLUGIN", plugin).replace("--num-layers 40", "--num-layers 6"))
    assert [one.startswith("gdn") for one in job_of(dialect, short, None, {}).model.kinds] == [1, 1, 1, 0, 1, 1]


def test_a_checkpoint_that_nobody_knows_is_asked_for() -> None:
    words = LINEAR.replace("PLUGIN", "slime_plugins.models.qwen3_5").replace("/root/Qwen3.5-35B-A3B", "/root/own-model")
    with pytest.raises(QuestionsError, match=r"/root/own-model.*--model NAME"):
        job_of(slime.DIALECT, run_of(words), None, {})
    found = job_of(slime.DIALECT, run_of(words, model="Qwen/Qwen3.5-35B-A3B"), None, {})
    assert found.model.kinds[0] == "gdn_whole+moe"


def test_norms_over_all_heads_and_norms_behind_both_blocks() -> None:
    wide = job(ROLLOUT + PACKED + " --spec slime_plugins.models.minimax_m2 get_minimax_m2_layer_spec").model
    assert (wide.qk_layernorm, wide.qk_layernorm_scope) == (True, "gathered_projection")
    norms = " --post-self-attn-layernorm --post-mlp-layernorm"
    behind = job(ROLLOUT + PACKED + " --spec slime_plugins.models.glm4 get_glm_spec" + norms).model
    assert behind.norm_placement == "sandwich"
    plain = job(ROLLOUT + PACKED + " --spec slime_plugins.models.glm4 get_glm_spec").model
    assert plain.norm_placement == "pre"
    assert count_parameters(behind).total - count_parameters(plain).total == 28 * 2 * 1024
    assert "norms behind experts" in refusal(
        ROLLOUT + PACKED + EXPERTS + " --spec slime_plugins.models.glm4 get_glm_spec" + norms
    )


def test_sparse_attention_of_a_spec_is_megatron_s_with_whole_indexers() -> None:
    words = """ --multi-latent-attention --num-layers 6 --hidden-size 6144 --ffn-hidden-size 12288 --num-attention-heads 64
        --q-lora-rank 2048 --kv-lora-rank 512 --qk-head-dim 192 --qk-pos-emb-head-dim 64 --v-head-dim 256 --qk-layernorm
        --normalization RMSNorm --swiglu
        --disable-bias-linear --position-embedding-type rope --no-rope-fusion --untie-embeddings-and-output-weights --vocab-size 154880
        --spec miles_plugins.models.glm5.glm5 get_glm5_spec --hf-checkpoint zai-org/GLM-5"""
    found = job_of(slime.DIALECT, run_of(ROLLOUT + PACKED + words), None, {})
    assert set(found.model.kinds) == {"dsa+dense"}
    assert (found.model.dsa_indexer_n_heads, found.model.dsa_indexer_head_dim, found.model.dsa_indexer_topk) == (
        32,
        128,
        2048,
    )
    assert any("fp32 copies" in one for one in found.warnings)


def test_frozen_routers_are_read() -> None:
    found = job(ROLLOUT + PACKED + EXPERTS + " --freeze-params-name-list mlp.router.weight")
    assert found.training.freeze_moe_router


def test_unknown_arguments_are_passed_over_as_slime_does() -> None:
    found = job(
        ROLLOUT + PACKED + " --my-own-metric 3 --use-wandb --wandb-group x --eval-prompt-data aime /data/a.jsonl"
    )
    assert found.warnings == ("unknown keys of slime passed over: --my-own-metric",)


def test_numbers_that_are_not_known_are_asked_for() -> None:
    run = run_of(MODEL + ROLLOUT + " --use-dynamic-batch-size --max-tokens-per-gpu \0$TOKENS\0")
    with pytest.raises(QuestionsError, match=r"--set TOKENS=VALUE"):
        job_of(slime.DIALECT, run, None, {})
    with pytest.raises(QuestionsError, match="MODEL_ARGS"):
        job_of(slime.DIALECT, run_of(ROLLOUT + PACKED), None, {})


def test_variables_of_the_training_processes_are_theirs() -> None:
    words = (*MODEL.split(), *ROLLOUT.split(), *PACKED.split(), "--train-env-vars", '{"NVTE_FUSED_ATTN": "0", "X": 1}')
    reading = slime.read(Run(program="train.py", words=words, env={"X": "0"}))
    assert reading.env == {"NVTE_FUSED_ATTN": "0", "X": "1"}


def test_other_programs_of_the_same_name_are_not_slime() -> None:
    assert dialect_of(run_of(MODEL + "--micro-batch-size 1")) is None
    assert dialect_of(run_of(MODEL + ROLLOUT, "pretrain_gpt.py")) is None
    assert slime.knows(run_of("--hf-checkpoint x --sglang-log-level error"))


def test_another_backend_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="fsdp"):
        slime.read(run_of("--train-backend fsdp --num-rollout 3"))


KEYS = st.sampled_from(
    [
        "actor-num-nodes",
        "actor-num-gpus-per-node",
        "use-dynamic-batch-size",
        "max-tokens-per-gpu",
        "micro-batch-size",
        "rollout-max-context-len",
        "rollout-batch-size",
        "n-samples-per-prompt",
        "num-steps-per-rollout",
        "global-batch-size",
        "colocate",
        "lora-rank",
        "target-modules",
        "entropy-coef",
        "kl-coef",
        "sglang-mem-fraction-static",
        "advantage-estimator",
        "context-parallel-size",
        "tensor-model-parallel-size",
        "vocab-size",
        "log-probs-chunk-size",
        "data-pad-size-multiplier",
        "update-weight-buffer-size",
        "offload-train-target",
        "mtp-num-layers",
        "post-mlp-layernorm",
        "spec",
        "fp16",
        "zz",
    ]
)
VALUES = st.sampled_from(
    [
        "",
        "0",
        "1",
        "2",
        "7",
        "-1",
        "1e9",
        "x",
        "all-linear",
        "ppo",
        "0.5",
        "99999999999999999999",
        "\0?k\0",
        "true",
        "slime_plugins.models.glm4 get_glm_spec",
        "miles_plugins.models.qwen3_next get_qwen3_next_spec",
        "slime_plugins.models. x",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=8))
def test_no_words_break_the_reader(pairs: list[tuple[str, str]]) -> None:
    words = [*MODEL.split(), "--num-rollout", "3"]
    for key, value in pairs:
        words += [f"--{key}", value] if value else [f"--{key}"]
    run = Run(program="train.py", words=tuple(words))
    try:
        slime.read(run)
        if not any("\0" in word for word in words):
            job_of(slime.DIALECT, run, None, {})
    except EstimatorError:
        pass


SCRIPT = """HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
LINE="$(python3 "${HERE}/miles/utils/external_utils/model_args_utils.py" "NAME")" || exit 1
read -ra MODEL_ARGS <<< "${LINE}"
python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "${MODEL_ARGS[@]}" --hf-checkpoint Qwen/Qwen3-30B-A3B \\
  --use-miles-router --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \\
  --use-dynamic-batch-size --max-tokens-per-gpu 8192 --rollout-batch-size 16 --n-samples-per-prompt 8 --global-batch-size 128 MORE
"""
FILE = '''import os
from model_args_utils import moe_layer_freq

BASE = os.environ.get("MODEL_ARGS_ROTARY_BASE") or "1000000"


def model_args(nlayers=None, rotary_base=BASE):
    count = nlayers or int(os.environ.get("MODEL_ARGS_NUM_LAYERS") or 12)
    words = [f"--num-layers {count}", "--hidden-size 1024 --num-attention-heads 16 --swiglu --vocab-size 151936 --ffn-hidden-size 3072"]
    if count > 6:
        words += ["--num-experts 8 --moe-ffn-hidden-size 512 --moe-layer-freq " + moe_layer_freq(nlayers=count, first_k_dense_replace=2)]
    return " ".join(words) + f"""
    --use-rotary-position-embeddings --rotary-base {rotary_base} --disable-bias-linear --normalization RMSNorm"""
'''


def script(folder: Path, name: str, more: str = "", **given: str) -> TrainingJob:
    (folder / "run.sh").write_text(SCRIPT.replace("NAME", name).replace("MORE", more))
    return TrainingJob.from_file(folder / "run.sh", set_variables=given)


def test_words_of_a_model_are_read_from_its_python_file(tmp_path: Path) -> None:
    """radixark/miles since 9 August 2026: a function of `scripts/models/NAME.py` returns the words; a sibling's with other values."""
    folder = tmp_path / "scripts/models"
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(FILE)
    (folder / "own-6layer.py").write_text(
        "from model_args_utils import load_sibling_model_args\n\n"
        "def model_args():\n    return load_sibling_model_args(__file__, 'own', nlayers=6)\n"
    )
    whole = script(tmp_path, "own").model
    assert (whole.num_layers, whole.num_moe_experts, whole.moe_layer_freq) == (12, 8, "[0,0,1,1,1,1,1,1,1,1,1,1]")
    cut = script(tmp_path, "own-6layer", "--expert-model-parallel-size 1").model
    assert (cut.num_layers, cut.num_moe_experts) == (6, None)
    (folder / "code.py").write_text("def model_args():\n    return __import__('os').popen('touch /tmp/never').read()\n")
    assert script(tmp_path, "code").model.num_layers == 48  # what is not read is the checkpoint's


def test_without_the_file_the_checkpoint_s_model_is_meant(tmp_path: Path) -> None:
    found = script(tmp_path, "qwen3-30B-A3B")
    assert (found.model.num_layers, found.model.num_moe_experts, found.model.padded_vocab(2)) == (48, 128, 152064)
    assert found.training.moe_router_dtype == "fp32" and found.training.bias_activation_fusion
    assert any("qwen3-30B-A3B.py is not opened" in said for said in found.assumptions)
    assert script(tmp_path, "qwen3-30B-A3B-5layer").model.num_layers == 5


def test_a_model_whose_file_names_a_plug_in_has_its_layers(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        SCRIPT.replace("NAME", "qwen3.5-35B-A3B")
        .replace("MORE", "")
        .replace("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.5-35B-A3B")
    )
    found = TrainingJob.from_file(tmp_path / "run.sh")
    assert found.model.kinds[:4] == ("gdn_whole_cp+moe",) * 3 + ("gqa+moe",)
    assert any("linear attention" in one for one in found.warnings)


def test_bridge_s_model_takes_the_layout_and_passes_the_model_s_words_over(tmp_path: Path) -> None:
    """miles `--megatron-to-hf-mode bridge`: the model is Megatron-Bridge's of --hf-checkpoint; vpp, fusions and MTP are not copied."""
    more = "--megatron-to-hf-mode bridge --spec miles_plugins.models.x get_x --hidden-size 64 --mtp-num-layers 1 --lora-rank 8"
    more += " --recompute-granularity full --use-precision-aware-optimizer --optimizer-cpu-offload"
    found = script(tmp_path, "qwen3-30B-A3B-6layer", more)
    assert found.training.optimizer_cpu_offload and not any("enable-mtp-training" in said for said in found.warnings)
    assert (found.model.num_layers, found.model.hidden_size, found.model.mtp_num_layers) == (48, 2048, None)
    assert found.model.padded_vocab(2) == 151936 and not found.training.bias_activation_fusion
    assert (found.layout.tp, found.layout.ep, found.training.recompute_granularity) == (2, 8, "full")
    assert any(
        "without effect: --spec, --hidden-size, --mtp-num-layers, --num-layers and" in said for said in found.warnings
    )
