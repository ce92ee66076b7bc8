"""The bars of `estimate`: as wide as the terminal, no number cut, in proportion to the bytes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.markup import escape as rich_escape
from rich.text import Text

from megatron_memory_estimator import Estimate, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.report.bars import MARKS, print_bars
from megatron_memory_estimator.report.document import SHARES, share_bytes
from megatron_memory_estimator.report.markup import escape, unmarked
from megatron_memory_estimator.report.text import print_estimate

DEEPSEEK = ["deepseek-ai/DeepSeek-V3", "--pp", "16", "--ep", "64", "--num-gpus", "2048"]


def deepseek() -> Estimate:
    settings: dict[str, Any] = {"pp": 16, "ep": 64}
    return estimate(TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 2048, **settings))


class Page(io.StringIO):
    """A file of an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.name_of_encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.name_of_encoding


def drawn(found: Estimate, width: int, encoding: str = "utf-8") -> list[str]:
    page = Page(encoding)
    print_bars(found.stages, found.job.gpu.memory_bytes, Console(file=page, width=width))
    return page.getvalue().splitlines()


def test_sixteen_different_stages_are_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["estimate", *DEEPSEEK])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert lines[0].startswith("Cannot train on 2048 H100-80GB, at least ")
    assert lines[-2:] == [
        "Next: megatron-memory advise deepseek-ai/DeepSeek-V3 --pp 16 --ep 64 \\",
        "    --num-gpus 2048  # what to change",
    ]
    assert "and 4 rows more of 30.76 to 52.97 GiB (--table)" in lines


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_every_stage_is_a_line_with_its_peak_whole(width: int) -> None:
    found = deepseek()
    lines = [line for line in drawn(found, width) if line.split()[:1] and line.split()[0].isdigit()]
    assert len(lines) == 16 and max(map(len, lines)) <= width
    for stage, line in zip(found.stages, lines, strict=True):
        assert f" {stage.peak_allocated_bytes / 2**30:.2f}  " in line
    page = io.StringIO()
    print_estimate(found, Console(file=page, width=width))
    assert "\u2026" not in page.getvalue() and max(map(len, page.getvalue().splitlines())) <= width


def test_every_share_has_a_mark() -> None:
    assert list(MARKS) == list(SHARES)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_marks_are_in_proportion(encoding: str) -> None:
    """One column stands for as many bytes in every bar; the mark of the GPU's memory covers one."""
    found = deepseek()
    legend, *rows = drawn(found, 100, encoding)
    start = legend.index(MARKS["weights"].block if encoding == "utf-8" else MARKS["weights"].letter)
    lines = [line[start:] for line in rows]
    memory = found.job.gpu.memory_bytes / lines[0].index("|")
    for stage, line in zip(found.stages, lines, strict=True):
        for mark, size in zip(MARKS.values(), [*share_bytes(stage).values()], strict=True):
            marks = line.count(mark.block if encoding == "utf-8" else mark.letter)
            assert abs(marks - size / memory) <= 2
    assert "\u2588" not in "".join(lines) or encoding == "utf-8"


def test_equal_stages_are_one_bar() -> None:
    settings: dict[str, Any] = {"tp": 8, "pp": 8, "recompute_granularity": "full"}
    found = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, **settings))
    assert len(drawn(found, 80)) == 1 + 8  # warm-up differs from stage to stage
    alone = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, global_batch_size=1, **settings))
    assert any("-" in line.split()[0] for line in drawn(alone, 80)[1:])


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "[bold]x[/bold]",
        "a[0] [red]b[/]",
        "[1] [link=x]y[/link]",
        r"back\[bold]slash",
        "ends in \\",
        "[/] [@x] []",
    ],
)
def test_markup_without_rich(text: str) -> None:
    """What is escaped comes back as it was, by rich and without it."""
    assert escape(text) == rich_escape(text)
    assert unmarked(escape(text)) == Text.from_markup(escape(text)).plain


@pytest.mark.parametrize("text", ["[bold]x[/bold] y", "[bold red]a[/]b[i]c[/i]", "none"])
def test_marked_text_is_plain_without_colours(text: str) -> None:
    assert unmarked(text) == Text.from_markup(text).plain
