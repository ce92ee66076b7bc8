"""The command as a process: outputs, readers that stop, odd terminals, names with markup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_memory_estimator.cli import main

COMPARE = ["compare", "Qwen/Qwen3-0.6B", "--layout", "tp=1", "--layout", "tp=2", "--num-gpus", "8"]
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
    "intermediate_size": 128,
}  # fmt: skip


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence on standard error of a refused command."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    return err


def test_a_reader_that_stops_reading_is_no_error() -> None:
    command = [sys.executable, "-m", "megatron_memory_estimator", *COMPARE]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
            assert process.wait() == 0 and b"Traceback" not in said


def test_output_keeps_the_mode_of_a_file_and_refuses_what_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.csv"
    path.touch(0o600)
    main([*COMPARE, "--format", "csv", "--output", str(path)])
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text().startswith("case,model")
    capsys.readouterr()
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    assert "links lead in a circle" in refused([*COMPARE, "--output", str(one)], capsys)
    assert one.is_symlink()
    assert "no such device" in refused([*COMPARE, "--output", "/dev/nope-at-all"], capsys)
    assert not os.path.exists("/dev/nope-at-all")


def test_a_name_that_is_not_utf8_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"\xff")
    refused(
        [
            "compare",
            name,
            "--layout",
            "tp=1",
            "--layout",
            "tp=2",
            "--output",
            str(tmp_path / "u.csv"),
            "--format",
            "csv",
        ],
        capsys,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["estimate", "explain", "advise", "models"])
def test_markup_and_control_characters_in_names_are_plain(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "[" / "red]x\x1b[2J"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    main([verb, str(folder), *(["--num-gpus", "1"] if verb != "models" else [])])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


def test_odd_columns_are_passed_over(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "²")
    main(["gpus"])
    assert "H100-80GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["estimate", "\x1b[31mx"], '"[31mx" is neither a file nor a Hub id'),
        (
            ["estimate", "Qwen/Qwen3-0.6B", "--hierarchical-context-parallel-sizes", "²,2"],
            "must be whole numbers such as 2,4",
        ),
        (["estimate", "Qwen/Qwen3-30B-A3B", "--moe-layer-freq", "²"], "moe_layer_freq="),
        (["estimate", "Qwen/Qwen3-30B-A3B", "--moe-layer-freq=--5"], "moe_layer_freq="),
        (["estimate", "Qwen/Qwen3-0.6B", "--set", "²=1"], "must be NAME=VALUE, or 1=VALUE"),
    ],
)
def test_odd_options(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = refused(words, capsys)
    assert sentence in found and found.rstrip("\n").isprintable()


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"], ["estimate", "--help-all"]])
def test_nobody_has_to_read_the_help(words: list[str]) -> None:
    command = [sys.executable, "-m", "megatron_memory_estimator", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [(["plan", *["Qwen/Qwen3-0.6B", "--num-gpus", "2", "--tp", "1", "--pp", "1", "--cp", "1"]], 0), (COMPARE, 0),
     (["estimate", "Qwen/Qwen3-0.6B", "--num-gpus", "2", "--tp", "0"], 2)],
)  # fmt: skip
def test_standard_error_may_be_closed(words: list[str], code: int) -> None:
    """No sentence of it reaches standard output."""
    done = subprocess.run(
        ["bash", "-c", '"$@" 2>&-', "bash", sys.executable, "-m", "megatron_memory_estimator", *words],
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert done.returncode == code and bool(done.stdout) == (code == 0)


@pytest.mark.parametrize(
    "words", [[*COMPARE, "--output"], ["estimate", "Qwen/Qwen3-0.6B", "--num-gpus", "8", "--html"]]
)
def test_a_pipe_that_nobody_reads_is_not_waited_for(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    with pytest.raises(SystemExit) as stop:
        main([*words, str(pipe)])
    assert stop.value.code == 2 and "nobody reads this pipe" in capsys.readouterr().err
    with open(tmp_path / "read", "wb") as read:  # whatever its size, the reader never waits
        reader = subprocess.Popen(["cat", pipe], stdout=read)
    for _ in range(50):  # until it has opened the pipe
        try:
            main([*words, str(pipe)])
            break
        except SystemExit:
            time.sleep(0.1)
    assert reader.wait(timeout=60) == 0 and (tmp_path / "read").stat().st_size > 100


def test_text_that_goes_elsewhere_loads_no_rich() -> None:
    """Colours and tables are what rich is for: a text in a pipe has neither."""
    code = "import sys\nfrom megatron_memory_estimator.cli import main\nmain(sys.argv[1:])\nassert 'rich' not in sys.modules"
    words = ["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Cannot train on 8 H100-80GB")
