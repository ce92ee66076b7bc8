"""`megatron-memory compare`."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.rank.rank import PARTS
from megatron_memory_estimator.report.neighbours import change

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


def test_csv_has_a_row_of_plain_numbers_per_case(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = csv.DictReader(io.StringIO(printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv")))
    assert (first["case"], first["num_gpus"]) == ("tp=2", "8")
    assert [one["tensor_model_parallel_size"] for one in (first, second)] == ["2", "4"]
    assert second["recompute"] == "selective (core_attn, mlp)"
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2))
    assert int(first["peak_allocated_bytes"]) == found.peak_stage.peak_allocated_bytes
    room = found.verdict().head_room
    assert (int(first["head_room_low_bytes"]), int(first["head_room_high_bytes"])) == room
    parts = [name for name in first if name.endswith("_bytes") and name.split("_")[0] in PARTS]
    assert sum(int(first[name]) for name in parts) == int(first["peak_allocated_bytes"])
    for row in (first, second):
        assert all(int(value) >= 0 for name, value in row.items() if name.startswith(("num_", "device_")))


def test_what_is_refused_says_why_beside_what_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["Qwen/Qwen3-8B", "--num-gpus", "8", "--layout", "tp=2", "--layout", "tp=3"]
    reason = "num_attention_heads=32 is not divisible"
    text = " ".join(printed(capsys, *words).split())
    assert "tp=3: refused: num_gpus=8 is not divisible" in text and reason in text
    first, second = csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv")))
    assert first["refusal"] == "" and reason in second["refusal"]
    assert {value for name, value in second.items() if name not in ("case", "refusal")} == {""}
    document = json.loads(printed(capsys, *words, "--json"))
    assert "estimate" in document["cases"][0] and reason in document["cases"][1]["refusal"]


def test_rows_that_do_not_differ_are_left_out_unless_all_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    some, every = (printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, *more) for more in ([], ["--all"]))
    assert "micro batch" not in some and "micro batch" in every
    assert "*   tp " in every and "--all shows all" in some and "--all" not in every


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_number_is_cut(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that do not fit beside each other stand below each other."""
    monkeypatch.setenv("COLUMNS", str(width))
    layouts = [word for tp in (1, 2, 4, 8) for word in ("--layout", f"tp={tp},pp=2,recompute_granularity=full")]
    words = ("Qwen/Qwen3-8B", "--num-gpus", "16", *layouts)
    table = printed(capsys, *words).split("figures are the same")[0]
    assert max(map(len, table.splitlines())) <= width and "\u2026" not in table
    said = " ".join(table.split())
    for row in csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))):
        assert f"{int(row['peak_allocated_bytes']) / 2**30:.2f}" in table
        low, high = (int(row[f"device_{end}_bytes"]) / 2**30 for end in ("low", "high"))
        assert f"{low:.1f} to {high:.1f}" in said


def test_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys, "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "--format", "markdown")
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("| ")}) == 1
    assert "| * | model | Qwen/Qwen3-8B | Qwen/Qwen3-30B-A3B |" in text
    latex = printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", "latex")
    assert latex.startswith("\\begin{tabular}{llrr}") and "recompute\\_granularity" in latex
    document = json.loads(printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--json"))
    assert document["schema"] == "megatron-memory-compare/1" and len(document["cases"]) == 2
    assert "to resume" in printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS)
    for form, peak in (("table", "peak allocated (GiB)"), ("csv", "peak_allocated_bytes")):
        file = tmp_path / f"out.{form}"
        assert printed(capsys, "Qwen/Qwen3-8B", *LAYOUTS, "--format", form, "--output", str(file)) == ""
        assert peak in file.read_text()


def test_mixes_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 2}\ntraining: {num_gpus: 8}\n")
    rows = list(csv.reader(io.StringIO(printed(capsys, str(run), "Qwen/Qwen3-8B", "--format", "csv"))))
    assert [row[0] for row in rows[1:]] == [str(run), "Qwen/Qwen3-8B"]


WRONG = [
    (["Qwen/Qwen3-8B"], "at least two cases"),
    (["Qwen/Qwen3-8B", "--layout", "tp=5", "--layout", "tp=3"], "num_attention_heads=32 is not divisible"),
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
    assert link.is_symlink() and "peak_allocated" in target.read_text()
    with pytest.raises(SystemExit):
        main(["compare", "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv", "--output", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_says_what_was_decided(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "Qwen/Qwen3-8B", *LAYOUTS, "--format", "csv"])
    out, err = capsys.readouterr()
    assert "assumed" not in out and "assumed: seq_length not given: 4096" in err
    text = printed(capsys, "Qwen/Qwen3-8B", "--num-gpus", "8", "--layout", "bf16=true", "--layout", "fp16=true")
    assert "\ndtype" in text


def test_layouts_take_the_names_of_a_yaml_file(capsys: pytest.CaptureFixture[str]) -> None:
    layouts = ["--layout", "num_experts=64,gpu=H200,num_gpus=8", "--layout", "attention_backend=flash,ep=8"]
    rows = csv.DictReader(io.StringIO(printed(capsys, "Qwen/Qwen3-30B-A3B", *layouts, "--format", "csv")))
    assert [row["attention_kernel"] for row in rows] == ["cudnn", "flash"]


def test_the_change_between_neighbours_is_named_by_tensors() -> None:
    """Two copies of a weight in mxfp8 are a byte an element each and a scale for 32 of them (TransformerEngine
    `pytorch/tensor/mxfp8_tensor.py`), of every linear but the output layer."""
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, tp=2, gpu="B200")
    before, after = (
        estimate(job),
        estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, tp=2, gpu="B200", fp8="e4m3", fp8_recipe="mxfp8")),
    )
    weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) // 2
    said = change(before, after)
    more = after.peak_stage.peak_allocated_bytes - before.peak_stage.peak_allocated_bytes
    assert said.startswith(f"The peak is {more / 2**30:.2f} GiB higher: weights +{2 * weights * 33 / 32 / 2**30:.2f} (")
    assert f"mxfp8 weights +{weights / 2**30:.2f}" in said and "activations -" in said
    shares = [abs(float(one)) for one in re.findall(r"; activations -([\d.]+)", said)]
    assert shares and abs(2 * weights * 33 / 32 - shares[0] * 2**30 - more) < 2**30 // 20
    given: dict[str, Any] = {"fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}
    kept = estimate(
        TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, tp=2, gpu="B200", fp8="e4m3", fp8_recipe="mxfp8", **given)
    )
    saved = after.peak_stage.peak_allocated_bytes - kept.peak_stage.peak_allocated_bytes
    assert f"--reuse-grad-buf-for-mxfp8-param-ag would save {saved / 2**30:.2f} GiB of weights." in said
    back = change(after, before)
    assert f"{more / 2**30:.2f} GiB lower: weights -" in back and "would save" not in back
    assert change(before, before) == "The peak is the same. A token takes as long."
    unknown = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, tp=2, gpu="B200=190GB"))
    assert "A token takes" in change(before, unknown)
    assert "A token takes" not in change(
        before, estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, tp=2, gpu="190GB"))
    )
