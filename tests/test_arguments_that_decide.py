"""Arguments that decide memory are read, or refused by name; nothing that changes the figure is passed over."""

from __future__ import annotations

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.errors import QuestionsError
from megatron_memory_estimator.inputs.megatron.forks import EFFECTS, NONE, fork_arguments, tells
from megatron_memory_estimator.inputs.megatron.table import arguments
from megatron_memory_estimator.inputs.megatron.words import parse_words
from megatron_memory_estimator.report.check import checked
from megatron_memory_estimator.report.verdict import verdict_sentence

BASE = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "max_position_embeddings": 64,
    "micro_batch_size": 1, "vocab_size": 1000, "bf16": True,
}  # fmt: skip
WORDS = [
    "--num-layers=4", "--hidden-size=64", "--num-attention-heads=4", "--seq-length=64", "--max-position-embeddings=64",
    "--micro-batch-size=1", "--tokenizer-type=NullTokenizer", "--vocab-size=1000", "--bf16",
]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--lora-r", "8"], ["--swap-optimizer"], ["--cpu-offloading"],
        ["--train-mode", "reward"], ["--zero-stage", "2"], ["--recompute-norm"], ["--freeze-LM"], ["--quant-states"],
        ["--deepspeed"], ["--no-pipeline-parallel"], ["--use-legacy-models"], ["--retro-add-retriever"], ["--recompute-granularty", "full"],
        ["--encoder-pipeline-model-parallel-size", "2"], ["--stage", "dpo"],
        ["--context-parallel-size", "2", "--context-parallel-algo", "hybrid_cp_algo"],
    ],
)  # fmt: skip
def test_what_decides_memory_is_refused_also_when_unknown_arguments_are_passed_over(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="not modelled") as error:
        TrainingJob.from_megatron_args([*WORDS, *words], ignore_unknown=True)
    assert any(word in str(error.value) for word in words if word.startswith("--"))


def test_an_unknown_name_that_speaks_of_memory_is_passed_over_in_the_verdict_s_words() -> None:
    with pytest.raises(QuestionsError, match="--ignore-unknown"):
        TrainingJob.from_megatron_args([*WORDS, "--my-lora-rank", "8"])
    job = TrainingJob.from_megatron_args([*WORDS, "--my-lora-rank", "8"], ignore_unknown=True)
    found = estimate(job)
    assert verdict_sentence(found).endswith("Not counted: --my-lora-rank; the figures may be off either way.")
    assert checked(found).code == 4


@pytest.mark.parametrize(
    ("words", "limit", "said", "code"),
    [
        (["--swap-optimizer"], "upper", "(keeps tensors on the host), which lowers memory; the figures are an upper bound.", 0),
        (["--swap-optimizer", "--reuse-fp32-param"], "upper", "which lower memory; the figures are an upper bound.", 0),
        (["--add-dense-bias"], "lower", "which raises memory; the figures are a lower bound.", 4),
        (["--mla-fa-without-pad"], "", "", 0),
    ],
)  # fmt: skip
def test_what_only_lowers_or_only_raises_can_be_left_out_of_a_bound(
    words: list[str], limit: str, said: str, code: int
) -> None:
    """The signs of `fork_arguments.csv`: Ascend/MindSpeed `mindspeed/arguments.py`, read or as its help text says."""
    if limit:
        with pytest.raises(ConfigError, match=rf"--without-unmodelled answers without (it|them): an? {limit} bound"):
            TrainingJob.from_megatron_args([*WORDS, *words])
    job = TrainingJob.from_megatron_args([*WORDS, *words], without_unmodelled=True)
    found = estimate(job)
    assert (job.bound, checked(found).code) == (limit, code)
    assert verdict_sentence(found).endswith(said)
    plain = estimate(TrainingJob.from_megatron_args(WORDS))
    assert found.peak_stage.peak_allocated_bytes == plain.peak_stage.peak_allocated_bytes
    document = found.to_dict()
    assert [one["argument"] for one in document["uncounted"]] == ([one for one in words if limit])
    assert document["bound"] == limit


def test_arguments_of_both_signs_are_no_bound() -> None:
    with pytest.raises(ConfigError, match=r"--swap-optimizer of MindSpeed .*--add-dense-bias of MindSpeed"):
        TrainingJob.from_megatron_args([*WORDS, "--swap-optimizer", "--add-dense-bias"], without_unmodelled=True)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--num-key-value-heads 2", "num_query_groups", 2),
        ("--n-head-kv 2", "num_query_groups", 2),
        ("--attention-head-type multiquery", "num_query_groups", 1),
        ("--glu-activation swiglu", "gated_linear_unit", True),
        ("--use-qk-norm", "qk_layernorm", True),
        ("--export-qk-l2-norm", "qk_l2_norm", True),
        ("--pad-vocab-size-to 1024", "padded_vocab_size", 1024),
    ],
)
def test_words_of_forks_that_have_ours_are_translated(words: str, field: str, value: object) -> None:
    assert getattr(TrainingJob.from_megatron_args([*WORDS, *words.split()]).model, field) == value


def test_recomputed_layers_of_a_rank_are_those_of_its_chunks_together() -> None:
    """Ascend/MindSpeed `recompute_common.py`: layer i of chunk v is recomputed when i*vpp + v < n; 4 layers of 2 chunks are 2 of each."""
    words = [
        *WORDS, "--num-layers", "16", "--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "4",
        "--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers",
    ]  # fmt: skip
    job = TrainingJob.from_megatron_args([*words, "4", "--enable-recompute-layers-per-pp-rank"], 2)
    assert job.training.recompute_num_layers == 2
    with pytest.raises(ConfigError, match="5 layers over 2 chunks"):
        TrainingJob.from_megatron_args([*words, "5", "--enable-recompute-layers-per-pp-rank"], 2)


def test_all_that_is_refused_stands_in_one_message() -> None:
    words = [
        *WORDS,
        "--lora-r",
        "16",
        "--lora-target-modules",
        "linear_qkv",
        "linear_proj",
        "--swap-attention",
        "--zero-stage",
        "3",
    ]
    with pytest.raises(ConfigError) as error:
        TrainingJob.from_megatron_args(words)
    for said in ("--lora-r of MindSpeed (trains adapters (LoRA))", "--swap-attention", "--zero-stage 3 of DeepSpeed"):
        assert said in str(error.value)


def test_other_unknown_arguments_are_passed_over() -> None:
    found = parse_words(["--bf16", "--made-up", "3", "--zero-stage", "0"], ignore_unknown=True).settled()
    assert found.values == {"bf16": True} and list(found.others.unknown) == ["--made-up"]
    job = TrainingJob.from_megatron_args([*WORDS, "--made-up", "3", "--zero-stage", "0"], ignore_unknown=True)
    assert "unknown arguments passed over: --made-up" in job.warnings


def test_unknown_arguments_stand_in_one_message_with_near_names() -> None:
    with pytest.raises(ConfigError) as error:
        TrainingJob.from_megatron_args([*WORDS, "--made-up", "a", "b", "-3", "--recompute-granularty", "full"])
    said = str(error.value)
    assert "--recompute-granularty (did you mean --recompute-granularity?): correct the spelling" in said
    assert said.endswith("unknown Megatron argument --made-up, to pass over or to correct. Give: --ignore-unknown")


def test_arguments_of_forks_without_effect_are_one_warning_with_their_words() -> None:
    words = [
        "--prompt-type",
        "qwen",
        "--no-shared-storage",
        "--handler-name",
        "A",
        "B",
        "--use-fused-rmsnorm",
        "--DDP-impl",
        "local",
    ]
    job = TrainingJob.from_megatron_args([*WORDS, *words])
    said = [note for note in job.warnings if note.startswith("without effect on memory")]
    assert said == [
        "without effect on memory, passed over: --prompt-type, --no-shared-storage, --handler-name, --use-fused-rmsnorm, --DDP-impl"
    ]
    assert job.model == TrainingJob.from_megatron_args(WORDS).model


def test_names_tell_of_four_in_five_arguments_that_decide_memory() -> None:
    """The rule is for forks that no table has; where it is wrong about a harmless name, a message says so."""
    decides = [one.flag for one in fork_arguments().values() if one.effect in EFFECTS and one.effect != "inference"]
    harmless = [one.flag for one in fork_arguments().values() if one.effect == NONE]
    assert sum(map(tells, decides)) > 0.8 * len(decides)
    assert sum(map(tells, harmless)) < 0.3 * len(harmless)


def test_the_table_holds_what_megatron_has_not_and_every_effect_is_known() -> None:
    assert not fork_arguments().keys() & arguments()[0].keys()
    assert {one.effect for one in fork_arguments().values()} == {*EFFECTS, "read", "none"}
    assert all(one.fork for one in fork_arguments().values() if one.effect in EFFECTS)


def test_layers_to_offload_are_not_the_switch() -> None:
    """TransformerConfig offloads only with `cpu_offloading`; Megatron-LM's argument is its own switch."""
    plain = {name: value for name, value in BASE.items() if name != "bf16"}
    off = TrainingJob.from_config({**plain, "cpu_offloading_num_layers": 2}, 1)
    assert off.training.cpu_offloading_num_layers == 0 and any("cpu_offloading is off" in note for note in off.warnings)
    on = TrainingJob.from_config({**plain, "cpu_offloading_num_layers": 2, "cpu_offloading": True}, 1)
    assert on.training.cpu_offloading_num_layers == 2
    assert (
        TrainingJob.from_megatron_args({**BASE, "cpu_offloading_num_layers": 2}, 1).training.cpu_offloading_num_layers
        == 2
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seq-length", "9" * 5000], "must be a whole number"),
        (["--seq-length", "²"], "--seq-length='²' must be a whole number"),
        (["--seq-length", "--5"], "must be a whole number"),
        (["--\x1b[31mx"], "stands before the first Megatron argument"),
    ],
)
def test_odd_words_are_one_plain_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_words(words).settled()
    text = str(error.value)
    assert sentence in text and len(text) <= 500 and text.isprintable()
