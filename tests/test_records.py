"""The stages of an estimate as records: the same in Python, CSV and Markdown, plain numbers that add up."""

from __future__ import annotations

import csv
import io

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.rank.rank import PARTS

WORDS = ["estimate", "meta-llama/Meta-Llama-3-70B", "--num-gpus", "64", "--tp", "8", "--pp", "8"]


def test_rows_of_csv_are_those_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    main([*WORDS, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = estimate(TrainingJob.from_hf("meta-llama/Meta-Llama-3-70B", 64, tp=8, pp=8))
    assert rows == [{name: str(value) for name, value in record.items()} for record in found.table()]
    assert [int(row["pp_rank"]) for row in rows] == list(range(8))
    for row in rows:
        assert sum(int(row[f"{part}_bytes"]) for part in PARTS) == int(row["peak_allocated_bytes"])
    assert max(int(row["peak_allocated_bytes"]) for row in rows) == found.peak_stage.peak_allocated_bytes


def test_markdown_has_a_row_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    main([*WORDS, "--format", "markdown"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 8
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_json_has_two_names(capsys: pytest.CaptureFixture[str]) -> None:
    main([*WORDS, "--json"])
    document = capsys.readouterr().out
    main([*WORDS, "--format", "json"])
    assert capsys.readouterr().out == document


@pytest.mark.parametrize("other", ["--json", "--formulas", "--verbose", "--all-gpus"])
def test_a_format_excludes_what_it_cannot_hold(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([*WORDS, "--format", "csv", other])
    assert exited.value.code == 2
    assert "--format csv is a row for each stage" in capsys.readouterr().err
