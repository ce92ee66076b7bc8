"""`megatron-memory compare`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main

LAYOUTS = [
    "--num-gpus",
    "8",
    "--layout",
    "tp=2",
    "--layout",
    "tp=4,recompute_granularity=selective,recompute_modules=core_attn,mlp",
]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["compare", *words])
    return capsys.readouterr().out


def test_csv_has_a_column_per_case_and_marks_differences(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        row[1]: row for row in csv.reader(io.StringIO(printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv")))
    }
    assert rows["tp"] == ["*", "tp", "2", "4"]
    assert rows["GPUs"] == ["", "GPUs", "8", "8"]
    assert rows["recompute"][3] == "selective (core_attn, mlp)"
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2)
    peak = estimate(job).peak_stage.peak_allocated_bytes
    assert rows["peak allocated (GiB)"][2:] == [f"{peak / 2**30:.2f}", rows["peak allocated (GiB)"][3]]
    assert rows["peak allocated (GiB)"][3].endswith("(lowest)")


def test_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys, "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "--format", "markdown")
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("| ")}) == 1
    assert "| * | model | Qwen/Qwen3-8B | Qwen/Qwen3-30B-A3B |" in text
    latex = printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", "latex")
    assert latex.startswith("\\begin{tabular}{llrr}") and "recompute\\_granularity" in latex
    document = json.loads(printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--json"))
    assert document["schema"] == "megatron-memory-compare/1" and len(document["cases"]) == 2
    assert "on the device" in printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS)
    for form in ("table", "csv"):
        file = tmp_path / f"out.{form}"
        assert printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", form, "--output", str(file)) == ""
        assert "peak allocated (GiB)" in file.read_text()


def test_mixes_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 2}\ntraining: {num_gpus: 8}\n")
    rows = list(csv.reader(io.StringIO(printed(capsys, str(run), "Qwen/Qwen3-8B", "--format", "csv"))))
    assert rows[0][2:] == [str(run), "Qwen/Qwen3-8B"]


WRONG = [
    (["Qwen/Qwen3-8B"], "at least two cases"),
    (["Qwen/Qwen3-8B", "--layout", "tp=2", "--layout", "tp=3"], "tp=3: num_attention_heads=32 is not divisible"),
    (["Qwen/Qwen3-8B", "--layout", "tpp=2", "--layout", "tp=1"], 'unknown setting "tpp". Did you mean "tp"?'),
    (["Qwen/Qwen3-8B", "--layout", "tp=two", "--layout", "tp=1"], "must be a whole number"),
    (["Qwen/Qwen3-8B", "--layout", "tp", "--layout", "tp=1"], "must be name=value"),
    (["Qwen/Qwen3-8B", "--layout", "tp=1,tp=2", "--layout", "tp=1"], "is given twice"),
    (["Qwen/Qwen3-8B", "--layout", "sequence_parallel=maybe", "--layout", "tp=1"], "must be true or false"),
    (["Qwen/Qwen3-8B", "nobody/nothing"], "not in the catalogue"),
    (["Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv", "--output", "/nowhere/x.csv"], "cannot write '/nowhere/x.csv'"),
    (["Qwen/Qwen3-8B", *LAYOUTS, "--format", "xml"], "xml"),
    (["Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv", "--json"], "exclude each other"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_mistakes(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as stop:
        main(["compare", *words])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1


def test_output_keeps_links_and_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv", "--output", str(link))
    assert link.is_symlink() and "peak allocated" in target.read_text()
    with pytest.raises(SystemExit):
        main(["compare", "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv", "--output", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_says_what_was_decided(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv"])
    out, err = capsys.readouterr()
    assert "assumed" not in out and "assumed: seq_length not given: 4096" in err
    text = printed(capsys, "Qwen/Qwen3-8B", "--num-gpus", "8", "--layout", "bf16=true", "--layout", "fp16=true")
    assert "*   dtype" in text


def test_layouts_take_the_names_of_a_yaml_file(capsys: pytest.CaptureFixture[str]) -> None:
    layouts = ["--layout", "num_experts=64,gpu=H200,num_gpus=8", "--layout", "attention_backend=flash,ep=8"]
    text = printed(capsys, "Qwen/Qwen3-30B-A3B", *layouts, "--format", "csv")
    assert "*,attention,cudnn,flash" in text
