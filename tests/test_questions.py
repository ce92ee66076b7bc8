"""What a run leaves open stands in one message; what memory does not depend on is never asked for, and never stops an estimate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.errors import Question, QuestionsError
from megatron_memory_estimator.inputs.questions import settle

from .dialect_runs import job as of_dialect
from .dialect_runs import written

SIZES = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --bf16 --tokenizer-type NullTokenizer --vocab-size 1000"
)


def job_of(tmp_path: Path, words: str, **settings: Any) -> TrainingJob:
    return of_script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {words}", **settings)


def of_script(tmp_path: Path, text: str, **settings: Any) -> TrainingJob:
    script = tmp_path / "run.sh"
    script.write_text(f"{text}\n")
    return TrainingJob.from_megatron_args(script, **settings)


def test_everything_that_is_open_stands_in_one_message_with_its_options(tmp_path: Path) -> None:
    words = (
        "--num-layers $LAYERS --hidden-size --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size x "
        "--tensor-model-parallel-size $TP --context-parallel-size $TP --bf16 --made-up 3 --save $OUT/$(date) "
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model $MODEL"
    )
    with pytest.raises(QuestionsError) as error:
        job_of(tmp_path, words)
    said, options = str(error.value).rsplit("Give: ", 1)
    assert said.startswith("6 things must be settled: ")
    for part in (
        "$LAYERS",
        "TP is not known, and decides --tensor-model-parallel-size and --context-parallel-size",
        "--hidden-size needs a value",
        "--micro-batch-size='x'",
        "--made-up",
        "HuggingFaceTokenizer",
    ):
        assert part in said
    assert shlex.split(options) == shlex.split(
        "--set LAYERS=VALUE --hidden-size VALUE --micro-batch-size VALUE --set TP=VALUE --ignore-unknown --vocab-size N"
    )
    assert "OUT" not in str(error.value)


def test_the_options_of_the_message_answer_it(tmp_path: Path) -> None:
    words = f"{SIZES} --tensor-model-parallel-size $TP --made-up 3 --num-query-groups $KV"
    words = words.replace("--hidden-size 64", "--hidden-size")
    answers = {"set_variables": {"TP": "2", "KV": "2"}, "ignore_unknown": True, "hidden_size": 128}
    job = job_of(tmp_path, words, **answers)
    assert (job.layout.tp, job.model.hidden_size) == (2, 128)
    assert (
        job_of(tmp_path, words, **{**answers, "set_variables": {"KV": "2"}, "tensor_model_parallel_size": 4}).layout.tp
        == 4
    )


def test_sizes_that_no_argument_says_are_asked_for_together() -> None:
    with pytest.raises(QuestionsError, match="--num-layers VALUE --hidden-size VALUE --num-attention-heads VALUE"):
        TrainingJob.from_megatron_args(["--bf16", "--vocab-size", "1000"])
    stored = "--use-checkpoint-args takes the model from a checkpoint, which is not read; .* --num-layers VALUE .* --num-query-groups VALUE"
    with pytest.raises(QuestionsError, match=stored):
        TrainingJob.from_megatron_args(["--bf16", "--use-checkpoint-args"])
    with pytest.raises(QuestionsError, match="--tensor-model-parallel-size VALUE --pipeline-model-parallel-size VALUE"):
        TrainingJob.from_megatron_args(["--bf16", "--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"])


MODEL = (
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 "
    "--vocab-size 32000 --tokenizer-type NullTokenizer"
)


def test_a_file_that_is_missing_is_one_question(tmp_path: Path) -> None:
    words = f"source ./env.sh\ntorchrun --nproc-per-node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN {MODEL}"
    with pytest.raises(QuestionsError) as error:
        of_script(tmp_path, words)
    said = str(error.value)
    assert said.count("./env.sh") == 1 and said.endswith("give --set LAYERS=VALUE --set HIDDEN=VALUE")
    assert of_script(tmp_path, words, set_variables={"LAYERS": "4", "HIDDEN": "512"}).model.hidden_size == 512


def test_adapters_of_a_fork_are_counted_where_the_caller_says_them(tmp_path: Path) -> None:
    words = f"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 {MODEL} --lora-r 16"
    with pytest.raises(QuestionsError, match="with --peft lora --peft-dim N it counts adapters"):
        of_script(tmp_path, words)
    assert of_script(tmp_path, words, without_unmodelled=True).uncounted
    adapted = of_script(tmp_path, words, without_unmodelled=True, peft="lora", peft_dim=16)
    assert adapted.training.peft == "lora" and not adapted.uncounted


@pytest.mark.parametrize(
    ("path", "variable"), [("$MODEL_PATH", "MODEL_PATH"), ("$1", "1"), ("${oc.env:HUB_ID}", "HUB_ID")]
)
def test_a_model_from_a_variable_is_asked_by_its_variable(path: str, variable: str) -> None:
    text = f"model: '{path}'\ntuner_type: full\nmax_length: 1024\nmicro_batch_size: 1\nglobal_batch_size: 8\n"
    with pytest.raises(
        QuestionsError,
        match=f"the model takes its value from \\${variable}, which has none; give --set {variable}=NAME",
    ):
        of_dialect(written(text), 8)


WITHOUT_EFFECT = [
    ("--tokenizer-model <path to tokenizer> --bf16", "--tokenizer-model <path to tokenizer>"),
    ("--save --load --bf16", "--save without a value, --load without a value"),
    ("--lr fast --seed one --train-iters 1e3", "--lr fast, --seed one, --train-iters 1e3"),
    ("--log-interval 10 20 --mock-data true", "--log-interval 10 20, --mock-data true"),
    ("--wandb-project my project --log-params-norm yes", "--wandb-project my project, --log-params-norm yes"),
]


@pytest.mark.parametrize(("words", "odd"), WITHOUT_EFFECT)
def test_what_has_no_effect_never_stops_an_estimate(words: str, odd: str) -> None:
    job = TrainingJob.from_megatron_args([*SIZES.split(), *words.split()])
    expected = TrainingJob.from_megatron_args(SIZES.split())
    assert (job.model, job.training, job.layout) == (expected.model, expected.training, expected.layout)
    assert f"Megatron's parser would stop at these words, which have no effect here: {odd}" in job.warnings


@pytest.mark.parametrize(
    "words", ['"$NOTHING" --bf16', '--bf16 "$NOTHING"', '--swiglu ""', '--num-layers 4 "" --bf16', '"" --bf16']
)
def test_stray_empty_words_are_passed_over_with_a_warning(tmp_path: Path, words: str) -> None:
    job = job_of(tmp_path, f"{words} {SIZES}" if words.startswith('"') else f"{SIZES} {words}")
    assert job.model.num_layers == 4
    assert any("an empty word" in note or "$NOTHING" in note for note in job.warnings)


def test_a_size_that_is_empty_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--tensor-model-parallel-size takes its value from \$TP.*give --set TP=VALUE"
    ):
        job_of(tmp_path, f'{SIZES} --tensor-model-parallel-size "$TP"')
    with pytest.raises(
        ConfigError, match="--tensor-model-parallel-size needs a value; give --tensor-model-parallel-size VALUE"
    ):
        job_of(tmp_path, f'{SIZES} --tensor-model-parallel-size ""')


def test_variables_of_the_environment_with_any_name_do_not_matter(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    names = "export Grouped_Gemm=1\nexport PYTORCH_CUDA_ALLOC_CONG=x\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    script.write_text(f"{names}python pretrain_gpt.py {SIZES}\n")
    assert TrainingJob.from_megatron_args(script, 1).env.expandable_segments


def test_a_message_of_many_questions_has_an_end() -> None:
    many = [Question(f"thing {at} is missing", f"--set V{at}=VALUE") for at in range(60)]
    with pytest.raises(QuestionsError) as error:
        settle(many)
    assert len(str(error.value)) <= 2000 and "; and " in str(error.value) and "--set V59=VALUE" in str(error.value)
    assert len(error.value.questions) == 60
    settle([])


def test_arguments_of_a_missing_file_are_one_question(tmp_path: Path) -> None:
    launch = "torchrun --nproc-per-node 8 pretrain_gpt.py ${NETWORK_ARGS[@]} --micro-batch-size 1 --global-batch-size 8 --bf16"
    text = f"source conf/net.sh\n{launch}"
    with pytest.raises(QuestionsError) as error:
        of_script(tmp_path, text)
    said = str(error.value)
    assert said.startswith("arguments are taken from $NETWORK_ARGS: conf/net.sh") and "--num-layers is not" not in said
    assert said.endswith("give --set NETWORK_ARGS='--num-layers N ...'")


def test_the_number_of_gpus_is_asked_for_as_a_multiple() -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nuse_mca: true\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 1024\n"
        "per_device_train_batch_size: 1\ntensor_model_parallel_size: 4\npipeline_model_parallel_size: 2\n"
    )
    with pytest.raises(QuestionsError, match="a multiple of 8 by its degrees; give --num-gpus N"):
        of_dialect(written(text))
