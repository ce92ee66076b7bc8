"""Arguments of older releases and of forks mean what they meant, in Megatron-LM's terms of today."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.errors import QuestionsError
from megatron_memory_estimator.inputs.megatron.readings import spread_layers

BASE = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --bf16 --tokenizer-type NullTokenizer --vocab-size 1000 --use-distributed-optimizer"
)
EXPERTS = f"{BASE} --num-experts 8 --moe-ffn-hidden-size 32 --disable-bias-linear --moe-token-dispatcher-type alltoall"


def job_of(words: str, base: str = BASE, gpus: int = 8, **settings: Any) -> TrainingJob:
    return TrainingJob.from_megatron_args([*base.split(), *words.split()], gpus, **settings)


SAME = [
    ("--model-parallel-size 2", "--tensor-model-parallel-size 2"),
    ("--intra-layer-model-parallel-size 2", "--tensor-model-parallel-size 2"),
    ("--use-rmsnorm", "--normalization RMSNorm"),
    ("--RMSNorm", "--normalization RMSNorm"),
    ("--use-rope", "--position-embedding-type rope"),
    ("--use-rotary-position-embeddings --no-position-embedding", "--position-embedding-type rope"),
    ("--position-embedding-type learned", "--position-embedding-type learned_absolute"),
    ("--layernorm-epsilon 1e-6 --apply-layernorm-1p", ""),
    ("--DDP-impl local --no-contiguous-buffers-in-local-ddp --data-impl mmap --use-mcore-models --use-flash-attn", ""),
    ("--fp8-hybrid", "--fp8-format hybrid"),
    ("--no-scaled-masked-softmax-fusion", "--no-masked-softmax-fusion"),
    ("--fp8-e4m3", "--fp8-format e4m3"),
    ("--use-custom-fsdp", "--use-megatron-fsdp --ckpt-format fsdp_dtensor"),
    ("--checkpoint-activations", "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
    (
        "--activations-checkpoint-method block --activations-checkpoint-num-layers 3",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
    ),
    (
        "--checkpoint-activations --checkpoint-num-layers 2",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
    ),
    ("--activations-checkpoint-granularity selective", "--recompute-granularity selective"),
    ("--rampup-batch-size 8 8 1000 --global-batch-size 32", "--global-batch-size 32"),
    ("--step-batch-size-schedule 0:16,2B:64", "--global-batch-size 64"),
    (
        "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo",
        "--context-parallel-size 2 --cp-comm-type a2a",
    ),
    (
        "--context-parallel-size 2 --context-parallel-algo megatron_cp_algo",
        "--context-parallel-size 2 --cp-comm-type p2p",
    ),
    ("--context-parallel-algo hybrid_cp_algo", ""),
    ("--stage sft --zero-stage 0 --variable-seq-lengths --neat-pack", ""),
    ("--max-padding-length 32 --dataset JSON-SFT", "--seq-length 32"),
    ("--max-padding-length 32 --dataset MMAP", ""),
    ("--max-padding-length 32", ""),
    ("--max-padding-length 128", "--seq-length 128 --max-position-embeddings 128"),
    (
        "--pipeline-model-parallel-size 2 --num-layer-list 5,3",
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*5|t*3L",
    ),
    ("--noop-layers 6,7", "--num-layers 6"),
    (
        "--pipeline-model-parallel-size 4 --noop-layers 7",
        "--pipeline-model-parallel-size 4 --num-layers 7 --pipeline-model-parallel-layout Et*2|t*2|t*2|t*1L",
    ),
]


@pytest.mark.parametrize(("old", "new"), SAME, ids=lambda words: words[:40])
def test_old_words_are_read_as_those_of_today(old: str, new: str) -> None:
    """Words at which Megatron-LM of today stops are those of a release before Megatron-Core."""
    found, expected = (job_of(words, megatron_core_version="0.1") for words in (old, new))
    assert (found.model, found.layout, found.training) == (expected.model, expected.layout, expected.training)


OF_EXPERTS = [
    ("--first-k-dense-replace 2", "--moe-layer-freq ([0]*2+[1]*6)"),
    ("--first-k-dense-replace 3 --moe-layer-freq 2", "--moe-layer-freq ([0]*4+[1,0]*2)"),
    ("--first-k-dense-replace 2 --noop-layers 6,7", "--num-layers 6 --moe-layer-freq ([0]*2+[1]*4)"),
    ("--n-shared-experts 2", "--moe-shared-expert-intermediate-size 64"),
    (
        "--moe-tp-extend-ep --tensor-model-parallel-size 2 --expert-model-parallel-size 2",
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1",
    ),
    (
        "--moe-extended-tp --tensor-model-parallel-size 2 --expert-model-parallel-size 2",
        "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 4",
    ),
    (
        "--expert-parallel --pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-size 2 --expert-model-parallel-size 4",
    ),
    ("--moe-token-dispatcher-type alltoall_seq", ""),
    ("--moe-layer-recompute", "--recompute-granularity selective --recompute-modules core_attn moe"),
    ("--use-fused-moe-token-permute-and-unpermute", "--moe-permute-fusion"),
]


@pytest.mark.parametrize(("old", "new"), OF_EXPERTS, ids=lambda words: words[:40])
def test_words_of_forks_about_experts(old: str, new: str) -> None:
    found, expected = job_of(old, EXPERTS), job_of(new, EXPERTS)
    assert found.model.every_kind == expected.model.every_kind
    assert (found.model.num_layers, found.layout, found.training) == (
        expected.model.num_layers, expected.layout, expected.training
    )  # fmt: skip


def test_batch_size_is_the_micro_batch_size() -> None:
    words = BASE.replace("--micro-batch-size 1", "--batch-size 2").split()
    with pytest.raises(LayoutError, match=r"^Megatron-LM no longer has --batch-size; use --micro-batch-size"):
        TrainingJob.from_megatron_args(words, 1)
    job = TrainingJob.from_megatron_args(words, 1, megatron_core_version="0.1")
    assert job.training.micro_batch_size == 2
    assert "--batch-size is read as --micro-batch-size 2; Megatron-LM of today stops at it" in job.warnings


def test_balanced_routing_is_said_by_the_script() -> None:
    assert job_of("--moe-router-force-load-balancing", EXPERTS).training.routing_phase == "forced_balance"
    assert job_of("", EXPERTS).training.routing_phase != "forced_balance"


def test_registered_buffers_are_as_large_as_others_and_double_under_full_sharding() -> None:
    assert not job_of("--use-nccl-ub").training.double_buffered
    sharded = job_of("--use-megatron-fsdp --ckpt-format fsdp_dtensor --use-nccl-ub --reuse-grad-buf-for-mxfp8-param-ag")
    assert sharded.training.double_buffered
    assert any("use_megatron_fsdp turns it off" in said for said in sharded.warnings)


def test_transposes_of_weights_are_a_matter_of_low_precision() -> None:
    config = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000, "params_dtype": "bf16"}
    off = TrainingJob.from_config({**config, "disable_parameter_transpose_cache": True}, 1)
    plain = TrainingJob.from_config(config, 1)
    assert estimate(off).peak_stage.peak_allocated_bytes == estimate(plain).peak_stage.peak_allocated_bytes
    with pytest.raises(LayoutError, match="disable_parameter_transpose_cache with fp8"):
        estimate(TrainingJob.from_config({**config, "fp8": "hybrid", "disable_parameter_transpose_cache": True}, 1))


def test_the_model_of_a_bridge_is_that_of_its_name() -> None:
    words = "--seq-length 4096 --micro-batch-size 1 --bf16 --use-bridge --bridge-hf-model Qwen/Qwen3-8B --tensor-model-parallel-size 4"
    job = TrainingJob.from_megatron_args(words.split(), 8)
    expected = TrainingJob.from_hf("Qwen/Qwen3-8B", 8).model
    assert (job.model.num_layers, job.model.hidden_size, job.model.num_query_groups) == (
        expected.num_layers, expected.hidden_size, expected.num_query_groups
    )  # fmt: skip
    with pytest.raises(ConfigError, match="--use-bridge takes the model's sizes from --bridge-hf-model"):
        job_of("--use-bridge")


REFUSED = [
    ("--noop-layers 9", "--noop-layers 9 does not name layers of 8"),
    (
        "--pipeline-model-parallel-size 2 --num-layer-list 5,4",
        "--num-layer-list 5,4 does not give 2 stages their layers",
    ),
    ("--context-parallel-size 2 --context-parallel-algo adaptive_cp_algo", "adaptive_cp_algo is not modelled"),
    ("--stage dpo", "--stage dpo of MindSpeed decides memory"),
    ("--n-shared-experts two", "--n-shared-experts takes one whole number, not 'two'"),
    ("--fp16", "--fp16 and --bf16 exclude each other"),
    ("--moe-layer-recompute --recompute-granularity full", "goes with selective recomputation"),
    ("--step-batch-size-schedule 0:a", "must hold steps such as"),
    ("--step-batch-size-schedule 0:4 --global-batch-size 4", "exclude each other"),
    ("--activations-checkpoint-method odd", "is uniform or block"),
    ("--spec local", "spec=.*is not modelled"),
    (
        "--fp16-lm-cross-entropy --freeze-all-layers",
        "arguments fp16_lm_cross_entropy=True, freeze_all_layers=True are not",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_has_no_reading_is_refused_by_name(words: str, sentence: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError), match=sentence):
        job_of(words)


def test_ratios_of_hybrids_are_the_pattern_that_megatron_allocates() -> None:
    """`megatron/core/ssm/mamba_hybrid_layer_allocation.py` of core_v0.15, run for these numbers."""
    assert spread_layers(56, 0.08, 0.5) == "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"
    job = job_of("--hybrid-attention-ratio 0.125 --hybrid-mlp-ratio 0.5 --is-hybrid-model")
    assert job.model == job_of(f"--hybrid-layer-pattern {spread_layers(8, 0.125, 0.5)} --is-hybrid-model").model


OTHER_PROGRAMS = [
    (
        "--num-tokens-to-generate 30 --prompts Hello",
        "--num-tokens-to-generate of Megatron-LM .generates text.*--prompts",
    ),
    ("--decoder-num-layers 12", "--decoder-num-layers of an encoder with a decoder"),
    (
        "--vocab-file /data/bert-large-cased-vocab.txt --tokenizer-type BertWordPieceCase",
        "--tokenizer-type BertWordPieceCase",
    ),
    ("--img-h 336 --img-w 336", "--img-h, --img-w of a vision model"),
]


@pytest.mark.parametrize(("words", "named"), OTHER_PROGRAMS)
def test_arguments_of_programs_that_train_no_decoder_are_refused_by_name(words: str, named: str) -> None:
    with pytest.raises(QuestionsError, match=named):
        job_of(words)


def test_an_encoder_alone_is_the_decoder() -> None:
    """Megatron-LM `arguments.py`: encoder_num_layers is num_layers where that is not given."""
    assert job_of("", BASE.replace("--num-layers", "--encoder-num-layers")).model == job_of("").model


def test_a_run_in_mxfp8_is_judged_on_a_gpu_that_has_it() -> None:
    job = job_of("--fp8-format hybrid --fp8-recipe mxfp8 --transformer-impl transformer_engine")
    assert job.gpu.name == "B200-180GB" and "gpu not given: B200-180GB, as mxfp8 needs Blackwell" in job.assumptions
    assert {one.gpu.rsplit("-", 1)[0] for one in estimate(job).verdicts()} == {"B200", "B300", "GB200", "GB300"}
