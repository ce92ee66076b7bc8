"""A notebook session: what results show, as frames, figures and HTML; the cells of docs/how-to/notebook.ipynb in IPython."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, Estimate, TrainingJob, advise, estimate, plan
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.colours import COLOURS
from megatron_memory_estimator.device.terms import Range
from megatron_memory_estimator.planner.advise import Advice
from megatron_memory_estimator.planner.planning import Planned
from megatron_memory_estimator.rank.rank import PARTS
from megatron_memory_estimator.report.verdict import verdict_text
from megatron_memory_estimator.throughput.machine import Efficiency

from .helpers import ROOT

GIB = 2**30


@pytest.fixture(scope="module")
def found() -> Estimate:
    return estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, gpu="H100", tp=4, pp=8, global_batch_size=16))


@pytest.fixture(scope="module")
def planned() -> Planned:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, gpu="H100")
    return plan(job, {"tp": "1,2", "pp": "1,2", "cp": "1", "micro_batch_size": "1"}, global_batch_size=64, top=3)


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", tp=2))


class Page(HTMLParser):
    """The tags, attributes and text of a fragment; every tag is closed where HTML wants it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_an_estimate_in_a_notebook_says_the_verdict_and_the_figures_of_every_stage(found: Estimate) -> None:
    page = Page(found._repr_html_())
    assert verdict_text(found.verdict(), found) in page.text
    header, *rows = page.rows
    assert header == ["stage", "layers", "GiB at the peak", "weights", "gradients", "optimizer", "activations", "other",
                      "peak", "needs"]  # fmt: skip
    assert [row[0] for row in rows] == [str(stage.pp_rank) for stage in found.stages]
    for row, stage in zip(rows, found.stages, strict=True):
        assert row[8] == f"{stage.peak_allocated_bytes / GIB:.2f}"
        assert sum(map(float, row[3:8])) == pytest.approx(float(row[8]), abs=0.03)
        assert row[9] == f"{stage.device.low / GIB:.1f} to {stage.device.high / GIB:.1f}"


def test_bars_are_as_long_as_their_figures(found: Estimate) -> None:
    page = Page(found._repr_html_())
    whole = max(found.job.gpu.memory_bytes, *(stage.device.high for stage in found.stages)) / GIB
    shares = [attrs for _, attrs in page.tags if re.match(r"\w+ [0-9.]+ GiB", attrs.get("title") or "")]
    weights = [one for one in shares if (one["title"] or "").startswith("weights")]
    assert len(weights) == len(found.stages)
    for one, stage in zip(weights, found.stages, strict=True):
        width = re.search(r"width:([0-9.]+)%", one["style"] or "")
        assert width is not None
        assert float(width[1]) == pytest.approx(100 * stage.breakdown_bytes["weights"] / GIB / whole, abs=0.1)
    marks = [attrs for _, attrs in page.tags if (attrs.get("title") or "").startswith("memory")]
    assert len(marks) == len(found.stages)


def test_equal_neighbours_are_one_bar() -> None:
    job = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 64, gpu="H100", tp=4, pp=8, global_batch_size=2, micro_batch_size=1
    )
    shown = Page(estimate(job)._repr_html_()).rows[1:]
    assert len(shown) < 8
    assert any("-" in row[0] for row in shown)


def test_fragments_are_safe_and_readable_on_any_page(found: Estimate, planned: Planned, advice: Advice) -> None:
    for html in (found._repr_html_(), planned._repr_html_(), planned.found._repr_html_(), advice._repr_html_()):
        page = Page(html)
        assert {tag for tag, _ in page.tags} <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}
        assert {name for _, attrs in page.tags for name in attrs} <= {"style", "title"}
        styles = " ".join(attrs.get("style") or "" for _, attrs in page.tags)
        assert not re.search(r"(?<![-\w])color:", styles)  # the text has the colour of the page
        assert "url(" not in styles
        assert len(html) < 40_000


def test_a_name_is_not_markup() -> None:
    config = {"num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "seq_length": 128}
    job = dataclasses.replace(TrainingJob.from_config(config, 1), name="<script>alert(1)</script>")
    html = estimate(job)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    page = Page(advise(job)._repr_html_())
    assert "script" not in {tag for tag, _ in page.tags}


def test_text_is_what_the_command_prints(
    found: Estimate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")  # of the terminal, not of str()
    text = str(found)
    monkeypatch.delenv("FORCE_COLOR")
    words = "meta-llama/Llama-3.1-70B --num-gpus 64 --gpu H100 --tp 4 --pp 8 --global-batch-size 16"
    main(["estimate", *words.split()])
    shown = capsys.readouterr().out
    lines = [line.rstrip() for line in shown.partition("Next: ")[0].splitlines()]
    assert text.partition("Next: ")[0].splitlines() == lines
    assert "Next: megatron-memory explain ... --stage" in text and f"explain {words} --stage " in " ".join(
        shown.replace("\\\n", "").split()
    )


def test_frames_are_the_tables(found: Estimate, planned: Planned, advice: Advice) -> None:
    pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    for one in (found, planned, planned.found, advice):
        frame, table = one.to_frame(), one.table()
        assert frame.shape == (len(table), len(table[0]))
        for name in frame.columns:
            values = [record[name] for record in table]
            assert frame[name].tolist() == values
            assert all(isinstance(value, int | float | str | bool) for value in values), name
    frame = found.to_frame()
    assert (sum(frame[f"{part}_bytes"] for part in PARTS) == frame["peak_allocated_bytes"]).all()
    tensors = found.peak_stage.to_frame()
    assert tensors["nbytes"].sum() == found.peak_stage.peak_allocated_bytes


def test_records_of_plans_are_their_figures(planned: Planned) -> None:
    for record, one in zip(planned.table(), planned.found.plans, strict=True):
        found = estimate(one.job)
        verdict = found.verdict(planned.found.limit)
        assert record["step_s"] == one.step
        assert record["peak_allocated_bytes"] == one.peak_allocated_bytes == found.peak_stage.peak_allocated_bytes
        assert Range(record["device_low_bytes"], record["device_high_bytes"]) == verdict.device
        assert record["head_room_low_bytes"] == planned.found.limit - verdict.device.high
        assert one.needed == found.needed
        assert (record["verdict"], record["phase"]) == (verdict.word, verdict.phase)
        assert record["tensor_model_parallel_size"] == one.job.layout.tp
    header, *rows = Page(planned._repr_html_()).rows
    assert [row[header.index("tokens/s/GPU")] for row in rows] == [
        f"{one.tokens_per_s_gpu:,.0f}" for one in planned.found.plans
    ]


def test_rates_of_a_search_are_those_of_its_records() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100")
    slow = Efficiency(gemm=0.25)
    axes = {"tp": "2", "pp": "1", "cp": "1", "micro_batch_size": "1", "recompute": "none"}
    (record,) = plan(job, axes, global_batch_size=64, efficiency=slow, top=1, limit=10**12).table()
    (usual,) = plan(job, axes, global_batch_size=64, top=1, limit=10**12).table()
    assert record["step_s"] > usual["step_s"]
    assert record["mfu"] / usual["mfu"] == pytest.approx(usual["step_s"] / record["step_s"], rel=1e-6)


def test_advice_begins_with_the_run_as_it_is(advice: Advice) -> None:
    now, *changes = advice.table()
    assert now["change"] == "" and now["saved_bytes"] == 0
    assert now["device_high_bytes"] == advice.now.needed.high
    assert [one["peak_allocated_bytes"] for one in changes] == [one.peak for one in advice.outcomes]
    page = Page(advice._repr_html_())
    assert [row[0] for row in page.rows[1:]] == [one["change"] for one in changes]


def test_every_repr_is_a_line(planned: Planned) -> None:
    expected = r"<Planned \d plans of [\d,]+ legal layouts on 79\.11 GiB, the first <Plan [^\n]+ GiB allocated>>"
    assert re.fullmatch(expected, repr(planned))
    found, assumptions = planned  # a tuple still
    assert found is planned.found and assumptions is planned.assumptions


def test_figures_show_the_figures(found: Estimate, planned: Planned, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    figure = found.plot(str(tmp_path / "stages.png"))
    tops = [patch.get_y() + patch.get_height() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert max(tops) == pytest.approx(found.peak_stage.peak_allocated_bytes / GIB)
    assert figure.axes[0].lines[0].get_ydata()[0] == found.job.gpu.memory_bytes / GIB  # type: ignore[index]
    best, _ = planned.plot(str(tmp_path / "plans.svg")).axes[0].lines
    speeds = [one.tokens_per_s_gpu for one in planned.found.plans]
    assert list(best.get_ydata()) == sorted(speeds)  # type: ignore[arg-type]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plans.svg", "stages.png"]
    with pytest.raises(ConfigError, match="must end in one of"):
        found.plot("stages.gif")
    with pytest.raises(ConfigError, match="No such file or directory"):
        found.plot(str(tmp_path / "nowhere" / "a.png"))


def test_what_is_not_installed_is_named(found: Estimate, planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for one in (found, found.peak_stage, planned):
        with pytest.raises(
            ConfigError, match=r"pip install pandas, or pip install 'megatron-memory-estimator\[notebook\]'"
        ):
            one.to_frame()
    for drawn in (found, planned):
        with pytest.raises(ConfigError, match=r"pip install 'megatron-memory-estimator\[plot\]'"):
            drawn.plot()
    assert found.table() and found._repr_html_()


def test_the_notebook_has_the_outputs_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython.core.interactiveshell", reason="the extra `dev` is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    notebook = importlib.import_module("docs_notebook")
    cells = [cell for cell in json.loads(notebook.PATH.read_text())["cells"] if cell["cell_type"] == "code"]
    data = notebook.shown(["".join(cell["source"]) for cell in cells])
    for cell, shown in zip(cells, data, strict=True):
        last = cell["source"][-1]
        wanted = "image/png" if ".plot(" in last else "text/plain" if last == "job" else "text/html"
        assert set(shown) == {"text/plain", wanted}, last
        [output] = cell["outputs"]
        assert set(output["data"]) == set(shown)
        if "to_frame" not in last:  # how a frame is written is pandas' own
            assert notebook.words(cell["outputs"]) == notebook.words(notebook.stored(shown, 1)), last
    [result] = [shown for cell, shown in zip(cells, data, strict=True) if cell["source"][-1] == "result"]
    assert result["text/html"].startswith("<div") and "Trains on " in result["text/html"]
    [plot] = [shown for cell, shown in zip(cells, data, strict=True) if cell["source"][-1] == "result.plot()"]
    assert plot["image/png"].startswith(b"\x89PNG")


def test_the_page_has_the_same_colours() -> None:
    sheet = (ROOT / "web" / "src" / "colours.ts").read_text()
    own = sheet.partition("export const COLOURS")[2].partition("};")[0]
    assert dict(re.findall(r"(\w+): \"(#[0-9a-f]{6})\"", own)) == COLOURS
