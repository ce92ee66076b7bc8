"""Words that people type are understood, or answered with the right word, at every door."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.everyday import WORDS, in_megatrons_words
from megatron_memory_estimator.inputs.layouts import parse_layout_words
from megatron_memory_estimator.service.jobs import Files, job_of
from megatron_memory_estimator.wording import dashed

from .test_plan import printed

MODEL = "Qwen/Qwen3-0.6B"
MXFP8 = {"fp8": "e4m3", "fp8_recipe": "mxfp8"}
UNDERSTOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"fp8": "mxfp8"}, MXFP8),
    ({"fp8": "tensorwise"}, {"fp8": "hybrid", "fp8_recipe": "tensorwise"}),
    ({"fp4": "nvfp4", "fp4_recipe": "nvfp4"}, {"fp4": "e2m1"}),
    ({"precision": "mxfp8"}, MXFP8),
    ({"precision": "nvfp4"}, {"fp4": "e2m1"}),
    ({"precision": "fp16"}, {"params_dtype": "fp16"}),
    ({"lora": True}, {"peft": "lora"}),
    ({"recompute": "full"}, {"recompute_granularity": "full"}),
    ({"recompute": "none"}, {"recompute_granularity": None}),
    ({"recompute": "core_attn+mlp"}, {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "mlp")}),
    ({"sp": True, "tp": 2}, {"sequence_parallel": True, "tensor_model_parallel_size": 2}),
    ({"zero": 1}, {"use_distributed_optimizer": True}),
    ({"attention_backend": "fused"}, {"attention_kernel": "cudnn"}),
    ({"attention_kernel": "fused"}, {"attention_kernel": "cudnn"}),
    ({"attention_backend": "unfused"}, {"attention_kernel": "unfused"}),
    ({"attention_backend": "auto"}, {"attention_kernel": None}),
    ({"recompute_activations": True}, {"recompute_granularity": "selective"}),
    ({"no_rope_fusion": True}, {"apply_rope_fusion": False}),
    ({"no_bias_swiglu_fusion": True}, {"bias_activation_fusion": False}),
    ({"zero": 0}, {"use_distributed_optimizer": False}),
    ({"seq_length": "8k"}, {"seq_length": 8192}),
    ({"seq": "2k", "mbs": 2, "gbs": 32}, {"seq_length": 2048, "micro_batch_size": 2, "global_batch_size": 32}),
    (
        {"cuda_graph_scope": ("attn",), "cuda_graph_impl": "local"},
        {"cuda_graph_modules": ("attn",), "cuda_graph_impl": "local"},
    ),
]


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as a user types them."""
    found = []
    for name, value in settings.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        found += [dashed(name)] if value is True else [dashed(name), text]
    return found


@pytest.mark.parametrize(("typed", "meant"), UNDERSTOOD, ids=lambda one: str(one)[:40])
def test_what_is_typed_is_understood(
    typed: dict[str, Any], meant: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = TrainingJob.from_hf(MODEL, 8, gpu="B200", **meant)
    assert TrainingJob.from_hf(MODEL, 8, gpu="B200", **typed) == job
    asked = job_of(MODEL, None, 8, {"gpu": "B200", **typed}, Files(None))
    assert (asked.model, asked.layout, asked.training) == (job.model, job.layout, job.training)
    if None not in meant.values() and False not in meant.values():
        texts = [
            printed(capsys, "estimate", MODEL, "--num-gpus", "8", "--gpu", "B200", *words(one))
            for one in (typed, meant)
        ]
        assert texts[0].partition("Next: ")[0] == texts[1].partition("Next: ")[0]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"dp": 4}, "the data parallel size follows from the GPUs, num_gpus / (tp * cp * pp); give num_gpus"),
        ({"zero": 3}, "ZeRO-3 are use_megatron_fsdp with data_parallel_sharding_strategy=optim_grads and optim_grads_params"),
        ({"precision": "fp8"}, "bf16, fp16, fp32, delayed, tensorwise, blockwise, mxfp8 or nvfp4"),
        ({"recompute": "half"}, "is not one of full, selective, none"),
        ({"fp8": "mxfp8", "fp8_recipe": "delayed"}, "fp8=mxfp8 contradicts fp8_recipe='delayed'; give one"),
        ({"lora": True, "peft": "dora"}, "contradicts peft='dora'; give one"),
    ],
)  # fmt: skip
def test_what_has_another_word_is_answered_with_it(
    typed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainingJob.from_hf(MODEL, 8, gpu="B200", **typed)
    assert said in str(refused.value)
    with pytest.raises(SystemExit) as ended:
        main(["estimate", MODEL, "--num-gpus", "8", "--gpu", "B200", *words(typed)])
    assert ended.value.code == 2
    assert said.replace("lora=True ", "") in capsys.readouterr().err


def test_an_option_behind_the_dashes_has_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size 1000"
    with pytest.raises(SystemExit):
        main(["estimate", "--", *line.split(), "--micro-batch-size", "1", "--json"])
    assert "--json (an option of megatron-memory: put it before --)" in capsys.readouterr().err


def test_other_words_stay() -> None:
    assert in_megatrons_words({"tp": 2, "bf16": True}) == {"tp": 2, "bf16": True}
    assert all(word.help for word in WORDS.values())


def test_a_layout_of_compare_takes_the_same_words() -> None:
    assert parse_layout_words("tp=2,recompute=full,mbs=4,sp=true,lora=true") == {
        "tensor_model_parallel_size": 2, "recompute_granularity": "full", "micro_batch_size": 4, "sequence_parallel": True, "peft": "lora",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r'--layout "dp=2": dp=2: the data parallel size follows from the GPUs'):
        parse_layout_words("dp=2")


def test_what_is_known_of_an_argument_that_is_not_modelled_is_said_at_every_door(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: dict[str, Any] = {"engram_layer_ids": [3]}
    known = "engram_layer_ids is not modelled. Known of it: each of its tables, whose length is the next prime"
    with pytest.raises(ConfigError, match=known):
        TrainingJob.from_hf(MODEL, 8, **asked)
    with pytest.raises(ConfigError, match=known):
        job_of(MODEL, None, 8, asked, Files(None))
    for option, said in (
        ("--engram-layer-ids", "is not modelled. Known of it: each of its tables"),
        ("--log-interval", "does not change memory; leave it out"),
        ("--inference-max-seq-length", "is not modelled, and ignored among Megatron-LM's arguments; leave it out"),
        (
            "--tokenizer-type",
            "is an argument of Megatron-LM and no setting; give it among the arguments of a run, behind --",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["estimate", MODEL, "--num-gpus", "8", option])
        assert ended.value.code == 2
        assert f"{option} {said}" in capsys.readouterr().err
