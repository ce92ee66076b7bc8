"""The same odd input at every door: commands, Python, requests of servers; each gives one sentence, and waits for nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.shell.script import read_script
from megatron_memory_estimator.inputs.shell.values import readable
from megatron_memory_estimator.service.answers import answered

QWEN = "Qwen/Qwen3-8B"
GROWING: dict[str, list[Any]] = {
    "pipeline_model_parallel_layout": ["(t*11111" + "*11111" * 11, "(t*99999)*14000", "|*100000" * 1000],
    "moe_layer_freq": ["+".join(["[0]*99999"] * 800), "²", "--5", "9" * 5000],
    "cp_comm_type": [5],
    "cuda_graph_modules": [5],
}
"""Settings with values that once grew, hung or crashed."""
ONE = [(name, value) for name, values in GROWING.items() for value in values]


@pytest.mark.parametrize(("name", "value"), ONE, ids=lambda value: ascii(value)[:20])
def test_a_setting_is_refused_in_one_sentence_by_python_and_by_servers(name: str, value: Any) -> None:
    with pytest.raises(EstimatorError) as refused:
        estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, pp=2, **{name: value}))
    said = str(refused.value)
    assert name in said and len(said) <= 500
    request = {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 8, "settings": {"pp": 2, name: value}}
    found = answered({"tool": "estimate", "arguments": request, "folder": None, "seconds": 60, "hub": False})
    assert name in found["error"] and len(found["error"]) <= 500


@pytest.mark.parametrize(
    "words",
    [["validate", "--log", "PIPE", QWEN, "--num-gpus", "8"], ["validate", "--against", "PIPE"],
     ["plan", QWEN, "--num-gpus", "8", "--calibrate", "PIPE"], ["check", QWEN, "--num-gpus", "8", "--max-increase", "PIPE"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_pipe_is_not_waited_for(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SystemExit) as stop:
        main([str(pipe) if word == "PIPE" else word for word in words])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1
    assert "not a regular file" in err or "is no document of check" in err


@pytest.mark.parametrize(
    "verb",
    ["estimate", "explain", "timeline", "advise", "check", "compare --layout tp=1 --layout tp=2", "plan --tp 1 --pp 1"],
)
def test_a_name_with_markup_is_printed_as_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "[/red]x [bold]y"
    Path(name).mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    Path(name, "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    command, *options = verb.split()
    with contextlib.suppress(SystemExit):  # check ends with its verdict
        main([command, name, "--num-gpus", "2", *options])
    found = capsys.readouterr()
    assert found.out and "error" not in found.err
    if command in ("estimate", "explain", "timeline"):
        assert "red]x [bold]y" in found.out


def test_a_home_folder_and_large_whole_numbers_are_bash_s() -> None:
    assert read_script("A=$((9007199254740993/1))\npython pretrain_gpt.py --save $A").words[-1] == "9007199254740993"
    launch = read_script("python pretrain_gpt.py --num-layers 2 --save ~/checkpoints")
    assert "/root" not in " ".join(map(readable, launch.words))


@pytest.mark.parametrize("count", ["9" * 5000, "0", "-1", "1_0"])
def test_a_node_s_gpus_that_are_no_count_are_asked_for(
    count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {
        "--num-layers": 2,
        "--hidden-size": 64,
        "--num-attention-heads": 4,
        "--seq-length": 64,
        "--max-position-embeddings": 64,
    }
    run = {"ENV_VARS": {"GPUS_PER_NODE": count}, "MODEL_ARGS": {**sizes, "--micro-batch-size": 1, "--vocab-size": 1000}}
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run))
    with pytest.raises(SystemExit) as stop:
        main(["estimate", str(file)])
    assert stop.value.code == 2 and "is no count; give --num-gpus N" in capsys.readouterr().err
    main(["estimate", str(file), "--num-gpus", "2"])
