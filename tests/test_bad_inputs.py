"""Bad input gets one sentence on standard error, exit code 2, no traceback, and nothing on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.cli import main

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
    "intermediate_size": 128,
}  # fmt: skip
MOE = "Qwen/Qwen3-30B-A3B"
DENSE = "Qwen/Qwen3-8B"

# (options or model, a word that the sentence must contain)
COMMANDS: list[tuple[str, str]] = [
    ("nosuchverb", "No such command"),
    ("estimte Qwen/Qwen3-8B", "estimate"),
    ("estimate", "MODEL"),
    (f"estimate {DENSE} extra", "extra"),
    (f"estimate {__file__}", "is Python, which is not run"),
    (f"estimate {DENSE} --tpp 2", "--tp"),
    (f"estimate {DENSE} --recompute-granuality full", "--recompute-granularity"),
    (f"estimate {DENSE} --tp", "--tp"),
    (f"estimate {DENSE} --tp two", "two"),
    (f"estimate {DENSE} --tp 2.5", "2.5"),
    (f"estimate {DENSE} --tp 0", "tensor_model_parallel_size"),
    (f"estimate {DENSE} --tp -4", "tensor_model_parallel_size"),
    (f"estimate {DENSE} --pp 0", "pipeline_model_parallel_size"),
    (f"estimate {DENSE} --cp -1", "context_parallel_size"),
    (f"estimate {DENSE} --num-gpus 0", "num_gpus"),
    (f"estimate {DENSE} --num-gpus 3 --tp 2", "num_gpus=3"),
    (f"estimate {DENSE} --tp 3", "num_attention_heads=32"),
    (f"estimate {MOE} --router-imbalance much", "a number, or one of balanced, worst"),
    (f"estimate {MOE} --router-imbalance 0.5", "at least 1"),
    (f"estimate {MOE} --routing-phase late", "routing_phase='late' is not one of"),
    (f"estimate {DENSE} --peft lora --peft-dim 0", "peft_dim=0 must be at least 1"),
    (f"estimate {DENSE} --peft lora --peft-target-modules linear_qkw", 'Did you mean "linear_qkv"'),
    (f"estimate {DENSE} --peft lora --peft-target-modules in_proj", "names no linear of this model"),
    (f"estimate {DENSE} --fp8-format e4m3 --fp8-recipe mxfp8 --gpu H100", "compute capability 10.0"),
    (f"estimate {DENSE} --fp4-param-gather", "fp4_param_gather needs fp4"),
    (f"estimate {MOE} --moe-paged-stash", "needs moe_expert_rank_capacity_factor"),
    (f"estimate {DENSE} --num-gpus 8 --use-megatron-fsdp --use-torch-fsdp2", "exclude each other"),
    (f"estimate {DENSE} --cpu-offloading-num-layers 36", "between 0 and num_layers-1=35"),
    (f"estimate {DENSE} --fine-grained-activation-offloading --offload-modules attention", "is not one of"),
    (f"estimate {DENSE} --ep 2", "num_moe_experts"),
    (f"estimate {MOE} --ep 3", "num_moe_experts=128"),
    (f"estimate {MOE} --tp 4 --ep 64 --num-gpus 16", "expert_model_parallel_size"),
    (f"estimate {MOE} --tp 2 --no-sequence-parallel", "sequence_parallel"),
    (f"estimate {DENSE} --sequence-parallel", "sequence_parallel"),
    (f"estimate {DENSE} --vpp 2", "virtual_pipeline_model_parallel_size"),
    (f"estimate {DENSE} --pp 4 --num-layers-in-last-pipeline-stage 5", "num_layers=36"),
    (f"estimate {DENSE} --pp 5 --strict --num-gpus 5", "pipeline_model_parallel_size=5"),
    (f"estimate {DENSE} --strict", "num_gpus"),
    (f"estimate {DENSE} --num-layers-in-first-pipeline-stage 4", "pipeline_model_parallel_size"),
    (f"estimate {DENSE} --pp 2 --pipeline-model-parallel-layout Et*36|L|L", "stages"),
    (f"estimate {DENSE} --pp 2 --pipeline-model-parallel-layout Ex*36|L", "symbols"),
    (f"estimate {DENSE} --pp 2 --pipeline-model-parallel-layout Et*30|L", "num_layers=36"),
    (f"estimate {DENSE} --cp 4 --seq-length 4097", "seq_length=4097"),
    (f"estimate {DENSE} --seq-length 0", "seq_length"),
    (f"estimate {DENSE} --micro-batch-size -1", "micro_batch_size"),
    (f"estimate {DENSE} --global-batch-size 3 --micro-batch-size 2", "global_batch_size=3"),
    (f"estimate {DENSE} --seq-length 99999999999999999999999999", "seq_length"),
    (f"estimate {DENSE} --hidden-size " + "9" * 5000, "hidden-size"),
    (f"estimate {DENSE} --recompute-granularity partial", "partial"),
    (f"estimate {DENSE} --recompute-granularity selective --recompute-modules core_atn", "core_attn"),
    (f"estimate {DENSE} --recompute-granularity selective --recompute-method uniform", "recompute_method"),
    (f"estimate {DENSE} --bf16 --fp16", "exclude"),
    (f"estimate {DENSE} --gpu H1000", "H100"),
    (f"estimate {DENSE} --transformer-engine-version two", "2.20"),
    (f"estimate {DENSE} --router-imbalance nan", "router_imbalance"),
    (f"estimate {DENSE} --router-imbalance 0.5", "router_imbalance"),
    (f"estimate {DENSE} --exp-avg-dtype bf16", "use_precision_aware_optimizer"),
    (f"estimate {DENSE} --optimizer sgd --use-distributed-optimizer", "sgd"),
    (f"plan {DENSE}", "--num-gpus is needed"),
    (f"plan {DENSE} --num-gpus eight", "must be a whole number, a list such as 1,2,4"),
    (f"plan {DENSE} --num-gpus 0", "num_gpus: 0 must be a whole number of at least 1"),
    (f"plan {DENSE} --num-gpus 8 --tp 3", "with tensor_model_parallel_size 1, 2, 4, 8"),
    (f"plan {DENSE} --num-gpus 8 --tp 4-2", "runs backwards"),
    (f"plan {DENSE} --num-gpus 8 --tp 5-7", "no value of 1, 2, 4, 8 lies in 5-7"),
    (f"plan {DENSE} --num-gpus 8 --tp not:3", "nothing to exclude"),
    (f"plan {DENSE} --num-gpus 8 --tp ,", "has no value to try"),
    (f"plan {DENSE} --num-gpus 8 --objective speed", "throughput"),
    (f"plan {DENSE} --num-gpus 8 --precision fp9", "bf16, delayed, tensorwise"),
    (f"plan {DENSE} --num-gpus 8 --gpu A100 --precision mxfp8", "compute capability"),
    (f"plan {DENSE} --num-gpus 8 --recompute mlps", 'Did you mean "mlp"'),
    (f"plan {DENSE} --num-gpus 8 --recompute none --recompute-granularity full", "say the same thing"),
    (f"plan {DENSE} --num-gpus 8 --split balanced", "even, uneven, layout"),
    (f"plan {DENSE} --num-gpus 8 --max-memory 0", "must be more than 0"),
    (f"plan {DENSE} --num-gpus 8 --max-memory nan", "must be a finite number"),
    (f"plan {DENSE} --num-gpus 8 --head-room inf", "must not be negative"),
    (f"plan {DENSE} --num-gpus 8 --global-batch-size 99999999999999999999", "global_batch_size"),
    (f"plan {DENSE} --num-gpus 8 --recompute-modules mlp", "--recompute-granularity"),
    (f"plan {DENSE} --num-gpus 8 --head-room lots", "GiB such as 4, or a percentage"),
    (f"plan {DENSE} --num-gpus 8 --head-room 100%", "leaves nothing"),
    (f"plan {DENSE} --num-gpus 8 --show 2 --top 1", "the search found 1 plan; give at most 1"),
    (
        f"plan {DENSE} --num-gpus 8 --vpp 1 --global-batch-size 7 --micro-batch-size 2",
        "global_batch_size is not divisible",
    ),
    (f"plan {DENSE} --num-gpus 8 --num-layers-in-first-pipeline-stage 4", "--num-layers-in-first-pipeline-stage"),
    (f"plan {DENSE} --num-gpus 8 --calibrate nowhere.jsonl", "no such file"),
    (f"plan {DENSE} --num-gpus 8 --nvlink-domain 0", "nvlink_domain"),
    (
        f"plan {MOE} --num-gpus 8 --ep 3 --tp 1 --cp 1 --pp 1",
        "num_moe_experts is not divisible by expert_model_parallel_size",
    ),
    (f"advise {DENSE} --tp 3", "num_attention_heads=32"),
    (f"advise {DENSE} --head-room -3", "must not be negative"),
    (f"advise {DENSE} --tpp 2", "--tp"),
    (f"estimate {DENSE} --fp8 hybrid --gpu A100", "delayed needs a GPU of compute capability 8.9"),
    (f"estimate {DENSE} --fp8 hybrid --fp8-recipe mxfp8 --gpu H100", "mxfp8 needs a GPU of compute capability 10.0"),
    (f"estimate {DENSE} --lr 1e-4", "does not change memory"),
    (f"estimate {DENSE} --context-gib -5", "context_gib"),
    (f"estimate {DENSE} --fragmentation -1", "fragmentation"),
    (f"estimate {DENSE} --attention-dropout 2", "attention_dropout"),
    (f"estimate {DENSE} --rotary-percent 5", "rotary_percent"),
    (f"estimate {DENSE} --fp16 --params-dtype bf16", "contradicts"),
    (f"estimate {DENSE} --num-layers 1000000000", "num_layers"),
    (f"estimate {DENSE} --mtp-num-layers 1000000", "mtp_num_layers"),
    (f"estimate {DENSE} --pp 100000 --num-layers 2000", "pipeline_model_parallel_size"),
    (f"estimate {DENSE} --pp 37", "36 stages"),
    (f"estimate {DENSE} --attention-kernel flash --params-dtype fp32", "bf16 or fp16"),
    (f"estimate {DENSE} --optimizer adamm", "adam"),
    (f"estimate {DENSE} --cp-comm-type ring --cp 2", "ring"),
    (f"estimate {DENSE} --attention-kernel local", "transformer_impl"),
    (f"estimate {MOE} --moe-layer-freq ([0]*2+[1]*2)", "moe_layer_freq"),
    (f"estimate {MOE} --moe-layer-freq __import__('os')", "moe_layer_freq"),
    ("estimate MiniMaxAI/MiniMax-M1-80k", "lightning attention"),
    ("estimate MiniMaxAI/MiniMax-M1-80k", "lightning attention"),
    ("estimate allenai/OLMo-2-1124-7B", "OLMo 2"),
    ("estimate ./no/such/config.json", "no such file"),
    ("estimate Qwen/Qwen3-8BB", "Qwen/Qwen3-8B"),
    ("estimate not-a-model-at-all/really", "catalogue"),
    (f"explain {DENSE} --stage 7", "error: stage 7 does not exist"),
    (f"explain {DENSE} --at now", "now"),
]


@pytest.mark.parametrize(("command", "word"), COMMANDS, ids=lambda x: x[:60])
def test_a_bad_command_is_refused_in_one_sentence(
    command: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refuse(command.split(), word, capsys)


def refuse(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert word in err
    assert "Traceback" not in err


def _write(text: str | bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def config(**changes: object) -> Callable[[Path], None]:
    return _write(json.dumps({**LLAMA, **changes}))


FILES: list[tuple[str, Callable[[Path], None], str]] = [
    ("truncated", _write('{"hidden_size": 64,'), "not valid JSON"),
    ("empty", _write(""), "not valid JSON"),
    ("list", _write("[1, 2]"), "object"),
    ("nan", _write('{"hidden_size": NaN}'), "NaN"),
    ("infinity", _write('{"hidden_size": Infinity}'), "Infinity"),
    ("not utf-8", _write(b'{"model_type": "\xff\xfe"}'), "UTF-8"),
    ("binary", _write(bytes(range(256))), "UTF-8"),
    ("nested", _write("[" * 100_000), "JSON"),
    ("empty object", _write("{}"), "hidden_size"),
    ("string for a number", config(hidden_size="64"), "hidden_size"),
    ("negative number", config(num_hidden_layers=-2), "num_hidden_layers"),
    ("zero layers", config(num_hidden_layers=0), "num_hidden_layers"),
    ("zero heads", config(num_attention_heads=0), "num_attention_heads"),
    ("fraction", config(hidden_size=64.5), "hidden_size"),
    ("switch for a number", config(hidden_size=True), "hidden_size"),
    ("number for a switch", config(tie_word_embeddings=3), "tie_word_embeddings"),
    ("absurdly large", config(hidden_size=10**40), "hidden_size"),
    ("missing field", _write(json.dumps({"model_type": "llama", "hidden_size": 64})), "num_hidden_layers"),
    ("heads do not divide", config(num_attention_heads=7), "kv_channels"),
    ("unknown type, not plain", config(model_type="brandnew", num_experts=8), "num_experts"),
    ("a key twice", _write('{"hidden_size": 64, "hidden_size": 128}'), "hidden_size"),
    ("head dim zero", config(head_dim=0), "kv_channels"),
    ("unknown activation", config(hidden_act="foo"), "hidden_act"),
    ("text_config is no object", config(text_config=3), "text_config"),
]


@pytest.mark.parametrize(("write", "word"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_a_bad_file_is_refused_in_one_sentence(
    write: Callable[[Path], None], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    write(file)
    refuse(["estimate", str(file), "--json"], word, capsys)


def test_a_directory_without_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(["estimate", str(tmp_path)], "no config.json", capsys)


def test_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    refuse(["estimate", str(tmp_path / "fifo")], "neither a file nor a directory", capsys)


@pytest.mark.parametrize(("redirect", "word"), [(">&-", "closed"), ("> /dev/full", "cannot write"), ("<&-", "closed")])
def test_closed_and_full_streams_give_one_sentence(redirect: str, word: str) -> None:
    import subprocess
    import sys

    model = "-" if redirect == "<&-" else "Qwen/Qwen3-0.6B"
    command = f"{sys.executable} -m megatron_memory_estimator estimate {model} {redirect}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert word in done.stderr


def test_a_reader_that_stops_is_no_error() -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m megatron_memory_estimator explain Qwen/Qwen3-8B | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_table_has_at_least_forty_rows() -> None:
    assert len(COMMANDS) + len(FILES) >= 40


RUN = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --vocab-size 50257"
)


@pytest.mark.parametrize("comment", [b"# r\xe9glage", "# 参数".encode("gbk"), "# réglage".encode()])
def test_a_letter_of_another_encoding_in_a_script_is_what_bash_makes_of_it(comment: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(comment + b"\n" + RUN.encode() + b"\n")
    assert TrainingJob.from_file(str(tmp_path / "run.sh")).model.num_layers == 4


def test_utf_16_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(RUN.encode("utf-16"))
    with pytest.raises(ConfigError, match="is UTF-16 text; save it as UTF-8"):
        TrainingJob.from_file(str(tmp_path / "run.sh"))


@pytest.mark.parametrize(("window", "right"), [("128,0", True), ("(128,0)", True), ("x", False), ("1,x", False)])
def test_a_window_is_whole_numbers(window: str, *, right: bool) -> None:
    """Megatron-LM `training/arguments.py` (tuple_type)."""
    words = [*RUN.split()[4:], "--window-size", window]
    if right:
        assert TrainingJob.from_megatron_args(words, 8).model.num_layers == 4
    else:
        with pytest.raises(ConfigError, match=r"--window-size .* must be two whole numbers"):
            TrainingJob.from_megatron_args(words, 8)


def test_a_list_of_coefficients_holds_numbers() -> None:
    args = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "moe_aux_loss_coeff": ["a"]}
    with pytest.raises(ConfigError, match="moe_aux_loss_coeff has 'a', which must be a number"):
        TrainingJob.from_megatron_args(args, 1)


@pytest.mark.parametrize("columns", ["0", "1", "5", "12", "19", "-3"])
@pytest.mark.parametrize(
    "words",
    [
        "timeline Qwen/Qwen3-8B --num-gpus 8 --tp 2 --pp 2",
        "plan Qwen/Qwen3-8B --num-gpus 8 --gpu H100 --tp 1,2 --pp 1 --recompute none --launch none",
    ],
)
def test_narrow_terminals(
    words: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some terminals without a size set COLUMNS=0."""
    monkeypatch.setenv("COLUMNS", columns)
    main(words.split())
    assert len(capsys.readouterr().out) > 100
