"""Run files of older releases and of forks: what they hold is read, asked for at once, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.inputs.megatron.readings import spread_layers

SIZES = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 2 --bf16"
WORDS = f"{SIZES} --tokenizer-type NullTokenizer --vocab-size 1000"
YAML = "MODEL_ARGS:\n" + "".join(f"  {pair[0]}: {pair[1]}\n" for pair in [
    ("--num-layers", 8), ("--hidden-size", 64), ("--num-attention-heads", 4), ("--seq-length", 64),
    ("--max-position-embeddings", 64), ("--micro-batch-size", 2), ("--bf16", "true"),
])  # fmt: skip
HYBRID = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --position-embedding-type none"


def script(folder: Path, text: str) -> str:
    path = folder / "run.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return str(path)


def asked(path: str, **settings: object) -> str:
    with pytest.raises(EstimatorError) as error:
        TrainingJob.from_megatron_args(path, **settings)  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize(
    ("count", "attention", "mlp", "pattern"),
    [
        (8, 0.0, 0.0, "MMMMMMMM"),
        (10, 0.1, 0.0, "MMMMM*MMMM"),
        (6, 0.0, 0.5, "M-M-M-"),
        (12, 0.3, 0.3, "M-*M*-M*-*M-"),
    ],
)
def test_shares_of_layers_are_spread_as_older_releases_spread_them(
    count: int, attention: float, mlp: float, pattern: str
) -> None:
    assert spread_layers(count, attention, mlp) == pattern


def test_a_hybrid_model_without_a_pattern_is_read_by_its_shares() -> None:
    job = TrainingJob.from_megatron_args(f"{WORDS} {HYBRID} --hybrid-attention-ratio 0.25".split(), 8)
    assert job.model.hybrid_layer_pattern == "MM*MM*MM"
    assert TrainingJob.from_megatron_args(f"{WORDS} {HYBRID}".split(), 8).model.hybrid_layer_pattern == "M" * 8
    given = f"{WORDS} {HYBRID} --hybrid-attention-ratio 0.5 --hybrid-override-pattern M-M-M-M-"
    assert TrainingJob.from_megatron_args(given.split(), 8).model.hybrid_layer_pattern == "M-M-M-M-"
    for wrong in ("--hybrid-mlp-ratio 2", "--hybrid-mlp-ratio 0.6 --hybrid-attention-ratio 0.6"):
        with pytest.raises(ConfigError, match="hybrid-mlp-ratio"):
            TrainingJob.from_megatron_args(f"{WORDS} {HYBRID} {wrong}".split(), 8)


def test_the_z_loss_keeps_the_logits_of_the_router() -> None:
    words = f"{WORDS} --num-experts 8 --disable-bias-linear --moe-router-dtype fp32".split()
    without, with_loss = (
        estimate(TrainingJob.from_megatron_args([*words, *more], 8)) for more in ([], ["--moe-z-loss-coeff", "1e-3"])
    )
    tokens, experts, layers, fp32 = 128, 8, 8, 4
    more = with_loss.peak_stage.peak_allocated_bytes - without.peak_stage.peak_allocated_bytes
    assert more == layers * (tokens * experts + tokens) * fp32


def test_layer_specs_that_follow_the_arguments_are_said_and_others_refused() -> None:
    spec = "mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec"
    job = TrainingJob.from_megatron_args(f"{WORDS} --spec {spec}".split(), 8)
    assert any(f"--spec {spec} is not read" in one for one in job.warnings)
    for other in (
        "local",
        "fork.specs.some_spec layer_spec",
        "megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_local_spec",
    ):
        with pytest.raises(EstimatorError, match="not modelled"):
            TrainingJob.from_megatron_args(f"{WORDS} --spec {other}".split(), 8)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("  --decoder-seq-length: 16\n", "--decoder-seq-length of an encoder with a decoder"),
        ("  --vocab-extra-ids: 100\n", "--vocab-extra-ids of an encoder"),
        ("  --bert-no-binary-head: true\n", "--bert-binary-head of BERT"),
        ("  --tokenizer-type: BertWordPieceCase\n", "BertWordPieceCase of BERT"),
        ("  --vocab-file: ${DATA}/vocab.txt\n", "vocab.txt of BERT"),
        ("  --img-h: 336\n", "--img-h of a vision model"),
    ],
)
def test_a_file_of_another_kind_of_model_is_refused(tmp_path: Path, more: str, said: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(YAML + more)
    assert said in asked(str(path))


def test_the_folder_of_a_test_case_says_which_program_it_is_of(tmp_path: Path) -> None:
    for folder, is_read in (("gpt", True), ("t5", False), ("bert", False)):
        path = tmp_path / folder / "case" / "model_config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(YAML + "  --vocab-extra-ids: 0\n  --img-h: 224\n")
        if is_read:
            assert TrainingJob.from_megatron_args(str(path)).layout.world_size == 8
        else:
            assert f"stands in the folder {folder}" in asked(str(path))


def test_gpus_that_do_not_go_with_the_layout_are_asked_with_what_else_is_missing(tmp_path: Path) -> None:
    words = f"{SIZES} --tokenizer-type Llama2Tokenizer --tokenizer-model $1 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"
    path = script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {words}")
    assert asked(path).endswith("Give: --vocab-size N --num-gpus 16")
    assert TrainingJob.from_megatron_args(path, 16, vocab_size=1000).layout.dp == 1
    more = f"{WORDS} --global-batch-size 24"
    path = script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {more}")
    assert "24 is not divisible by micro_batch_size*data_parallel_size=2*8=16; give --global-batch-size 32" in asked(
        path
    )


def test_words_of_the_caller_are_asked_for_by_their_places_through_eval(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        f'TP=$3\nrun="torchrun --nproc_per_node 8 pretrain_gpt.py {WORDS} --tensor-model-parallel-size ${{TP}}"\neval ${{run}}',
    )
    said = asked(path)
    assert "the script reads positional arguments" in said and said.endswith("--set 3=VALUE")
    assert TrainingJob.from_megatron_args(path, words=("a", "b", "2")).layout.tp == 2


PAI = "--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256 --max-padding-length"


def test_rows_of_a_patched_pretraining_are_those_of_its_sequence() -> None:
    for words, length in (
        (f"{PAI} --train-mode pretrain", 64),
        (f"{PAI} 32 --train-mode pretrain", 64),
        (f"{PAI} 32 --train-mode finetune --dataset SFT-Raw", 32),
        (f"{PAI} 32 --train-mode finetune --dataset SFT-Idxmap", 64),
    ):
        assert TrainingJob.from_megatron_args(f"{SIZES} {words}".split(), 8).training.seq_length == length


def test_a_command_joined_from_arrays_keeps_its_words_apart(tmp_path: Path) -> None:
    text = f"ENV=(--rank ${{RANK}} --local-rank ${{LOCAL}})\nARGS=({WORDS} ${{MORE}})\n"
    text += 'APP="python pretrain_gpt.py ${ENV[@]} ${ARGS[@]} --fp8-format hybrid"\n'
    for launch in ("${APP}", "mpirun -np 8 ${APP}", 'bash -c "$APP"', "eval ${APP}"):
        assert TrainingJob.from_megatron_args(script(tmp_path, text + launch)).training.fp8 == "hybrid"


def test_an_array_that_becomes_text_with_an_unknown_part_is_one_element(tmp_path: Path) -> None:
    text = "D=(--split 1,0,0 --num-workers 1)\nX=$(python3 blend.py)\n"
    text += f'D="${{D[@]}} --data-path $X --data-cache-path y"\ntorchrun pretrain_gpt.py {WORDS} $D'
    assert TrainingJob.from_megatron_args(script(tmp_path, text)).layout.world_size == 1


def test_arguments_that_may_be_passed_stay_with_their_names(tmp_path: Path) -> None:
    text = 'if [ -f "$S/latest.txt" ]; then C="--load $S"; else C="--load /x --no-load-rng"; fi\n'
    text += f"torchrun pretrain_gpt.py {WORDS} ${{C}} --save $S"
    assert TrainingJob.from_megatron_args(script(tmp_path, text)).training.seq_length == 64


def test_a_file_sourced_from_the_working_folder_is_read_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "sizes.sh").write_text(f'export ARGS="--tensor-model-parallel-size $TP {WORDS}"\n')
    for here in ("`pwd`", "$(pwd)", "$PWD", "${PWD}"):
        path = script(
            tmp_path,
            f'TP=2\n. {here}/sizes.sh\nsource "{here}/sizes.sh"\ntorchrun --nproc_per_node 2 pretrain_gpt.py $ARGS',
        )
        assert TrainingJob.from_megatron_args(path).layout.tp == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"pipe_parallel_size": 1\n"model_parallel_size": 2\n"num_layers": 4\n', "a configuration of GPT-NeoX"),
        (f"MODE: inference\n{YAML}", "a test of inference"),
        (f"{YAML}  --prompts: hello\n  --num-tokens-to-generate: 3\n", "--prompts of Megatron-LM \\(generates text\\)"),
    ],
)
def test_a_file_that_trains_nothing_of_megatrons_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(EstimatorError, match=said):
        TrainingJob.from_megatron_args(str(path), ignore_unknown=True)
