"""A timeline is the peak's own moments in the order of the schedule, with the seconds of the throughput model."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

from megatron_memory_estimator import ConfigError, Estimate, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.files import json_text
from megatron_memory_estimator.rank.rank import Rank
from megatron_memory_estimator.report.timeline import print_timeline
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.machine import machine
from megatron_memory_estimator.throughput.stages import ChunkTime, chunk_times
from megatron_memory_estimator.timeline.axis import Axis
from megatron_memory_estimator.timeline.passes import MOST_PASSES, Listed, passes
from megatron_memory_estimator.timeline.timeline import Timeline, lanes, timeline

from .helpers import ROOT
from .random_jobs import random_job

PP, VPP, TP, EP = (
    f"{name}_parallel_size" for name in ("pipeline_model", "virtual_pipeline_model", "tensor_model", "expert_model")
)
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one GPU": ("Qwen/Qwen3-8B", 1, {"global_batch_size": 3}),
    "pipeline": ("Qwen/Qwen3-8B", 8, {PP: 4, "global_batch_size": 32}),
    "interleaved": ("Qwen/Qwen3-8B", 8, {PP: 4, VPP: 3, "global_batch_size": 32}),
    "full": ("Qwen/Qwen3-8B", 8, {PP: 4, "global_batch_size": 32, **FULL}),
    "selective": (
        "Qwen/Qwen3-30B-A3B", 32,
        {PP: 4, EP: 8, "global_batch_size": 256, "recompute_granularity": "selective", "recompute_modules": ("moe_act",)},
    ),
    "MTP": (
        "deepseek-ai/DeepSeek-V3", 128,
        {TP: 4, PP: 4, EP: 8, "num_layers_in_last_pipeline_stage": 16, "global_batch_size": 256},
    ),
    "two at a time": (
        "Qwen/Qwen3-30B-A3B", 32,
        {PP: 4, EP: 8, VPP: 3, "global_batch_size": 256, "overlap_moe_expert_parallel_comm": True},
    ),
    "graphs": ("Qwen/Qwen3-8B", 8, {PP: 4, "global_batch_size": 32, "cuda_graph_impl": "local"}),
    "deferred": ("Qwen/Qwen3-8B", 8, {PP: 4, "global_batch_size": 32, "defer_embedding_wgrad_compute": True}),
    "sharded": ("Qwen/Qwen3-8B", 8, {"use_megatron_fsdp": True, "global_batch_size": 64}),
    "long": ("Qwen/Qwen3-8B", 8, {PP: 4, VPP: 3, "global_batch_size": 4096}),
}  # fmt: skip


def case(name: str) -> Estimate:
    model, gpus, settings = CASES[name]
    return estimate(TrainingJob.from_hf(model, gpus, **settings))


def check(found: Estimate) -> None:
    """What is true of every stage of every estimate."""
    for stage in found.stages:
        line = found.timeline(stage.pp_rank)
        top = line.peak
        assert top.highest_bytes == stage.peak_allocated_bytes
        assert top.parts == stage.breakdown_bytes
        if any(plan.runs for plan in stage.rank.plans):  # else every moment is the same
            assert top.label.split(",")[0] == stage.peak.candidate.label.split(",")[0]
        steady = stage.steady_allocated_bytes
        assert line.moments[0].start_bytes == line.moments[-1].end_bytes == line.steady_allocated_bytes == steady
        for before, after in pairwise(line.moments):
            assert before.end_bytes == after.start_bytes
            assert before.end_s is not None and after.start_s is not None and before.end_s <= after.start_s + 1e-9
        for one in line.every:
            assert sum(one.parts.values()) == one.highest_bytes >= max(one.start_bytes, one.end_bytes)
            assert min(one.parts.values()) >= 0
        counts = Counter(one.event for one in line.moments)
        left_out = line.left_out.microbatches * len(stage.rank.plans) if line.left_out else 0
        for event in ("forward", "backward"):
            ran = counts["forward beside backward"] + sum(counts[name] for name in counts if name == event)
            assert ran + left_out == len(stage.rank.plans) * found.job.num_microbatches


@pytest.mark.parametrize("name", CASES)
def test_the_highest_moment_is_the_peak_and_the_moments_join_to_the_byte(name: str) -> None:
    check(case(name))


def test_the_same_of_random_jobs() -> None:
    checked = 0
    for seed in range(40):
        try:
            found = estimate(random_job(Random(seed)).job())
        except EstimatorError:
            continue
        check(found)
        checked += 1
    assert checked >= 30


def test_a_chunk_without_layers_only_passes_on() -> None:
    settings = {
        "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1024, "seq_length": 512, "gpu": "H100",
        "global_batch_size": 8, "pipeline_model_parallel_layout": "Ett|t||tL",
    }  # fmt: skip
    found = estimate(TrainingJob.from_config({**settings, PP: 4}, 4))
    empty = found.timeline(2)
    assert {one.label for one in empty.moments if one.event == "forward"} == {"forward of an empty chunk"}
    check(found)


def test_each_microbatch_of_each_chunk_goes_forward_once_and_back_once_in_the_order_of_1f1b() -> None:
    line = case("pipeline").timeline(2)
    ran = [(one.event[0], one.microbatch) for one in line.moments if one.event in ("forward", "backward")]
    assert ran[:6] == [("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("f", 3)]
    assert sorted(ran) == sorted((way, index) for way in "fb" for index in range(16))
    assert [one.in_flight for one in line.moments[1:7]] == [1, 2, 2, 2, 2, 2]
    chunks = Counter((one.chunk, one.event) for one in case("interleaved").timeline(0).moments if one.chunk >= 0)
    assert chunks == {(chunk, event): 16 for chunk in range(3) for event in ("forward", "backward")}


def test_the_capture_of_graphs_is_apart() -> None:
    found = case("graphs")
    line = found.timeline(0)
    assert line.peak is line.capture and line.peak.label == "capture of CUDA graphs"
    assert line.place(line.peak) is None
    assert line.table()[0]["index"] is None and line.table()[0]["start_s"] is None
    assert max(one.highest_bytes for one in line.moments) < line.peak.highest_bytes


# -- seconds ----------------------------------------------------------------------------------------------------------


def pipeline(found: Estimate) -> tuple[float, float]:
    """Seconds of the passes of all stages, on their lanes and by the step time."""
    parts = throughput(found).parts
    formula = sum(parts[name] for name in ("compute", "recompute", "tp", "cp", "ep", "pp", "host", "bubble"))
    line = found.timeline()
    last = line.moments[-1].end_s
    assert last is not None
    return last - (line.step_s - formula), formula


@pytest.mark.parametrize(("pp", "vp", "count"), [(1, 1, 5), (4, 1, 9), (4, 3, 16), (8, 2, 24)])
def test_equal_stages_take_the_step_time_of_the_throughput_model(pp: int, vp: int, count: int) -> None:
    plan = Listed(pp, vp, pp, False, count, count)
    times = [[ChunkTime(1.0, 2.0)] * vp] * pp
    found = lanes([list(passes(plan.schedule(rank), (0,) * vp)) for rank in range(pp)], times)
    assert max(lane[-1].end for lane in found) == pytest.approx(count * 3 * vp + (pp - 1) / vp * 3 * vp, rel=1e-12)


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "full", "selective", "MTP", "two at a time", "long"])
def test_unequal_stages_take_no_less_than_the_slowest_and_no_more_than_if_all_were(name: str) -> None:
    found = case(name)
    ranks: list[Rank] = [stage.rank for stage in found.stages]
    job, vp = found.job, len(ranks[0].plans)
    times = chunk_times(machine(job.gpu, None, job.env.network_gbs), found.declarer, ranks)
    slowest = max(sum(map(sum, chunks)) for chunks in times)
    highest = sum(max(one[way] for chunks in times for one in chunks) for way in (0, 1))
    seconds, formula = pipeline(found)
    assert job.num_microbatches * slowest - 1e-9 <= seconds
    assert seconds <= (job.num_microbatches * vp + len(ranks) - 1) * highest + 1e-9
    assert seconds == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize("name", ["one GPU", "sharded"])
def test_without_a_pipeline_the_seconds_are_those_of_the_step_time(name: str) -> None:
    line = case(name).timeline()
    assert line.moments[-1].end_s == pytest.approx(line.step_s, rel=1e-9) == throughput(case(name)).step


def test_no_pass_begins_before_what_it_needs() -> None:
    found = case("pipeline")
    lines = [found.timeline(rank) for rank in range(4)]
    for event, order in (("forward", lines), ("backward", lines[::-1])):
        for here, there in pairwise(order):
            ends = {one.microbatch: one.end_s for one in here.moments if one.event == event}
            for one in there.moments:
                if one.event == event:
                    ended = ends[one.microbatch]
                    assert ended is not None and one.start_s is not None and ended <= one.start_s + 1e-9


# -- long steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "most"),
    [({PP: 4}, 60), ({PP: 4, VPP: 3}, 240), ({PP: 2, VPP: 2, "microbatch_group_size_per_vp_stage": 3}, 100)],
)
def test_what_is_left_out_is_what_repeats(settings: dict[str, Any], most: int) -> None:
    """A step with its middle left out is the whole step without those moments, and the seconds of the others."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **settings, global_batch_size=8 // settings[PP] * 104))
    for stage in found.stages:
        rank = stage.rank
        whole, short = (timeline(found, rank, passes) for passes in (10**6, most))
        out = short.left_out
        assert whole.left_out is None and out is not None
        assert out.moments == len(whole.moments) - len(short.moments) > 0 and len(short.moments) <= most + 5
        kept = whole.moments[: out.behind] + whole.moments[out.behind + out.moments :]
        for one, other in zip(short.moments, kept, strict=True):
            assert one._replace(start_s=0.0, end_s=0.0) == other._replace(start_s=0.0, end_s=0.0)
            assert one.start_s == pytest.approx(other.start_s, rel=0.01, abs=1e-9)
        repeated = [one.highest_bytes for one in whole.moments[out.behind - out.repeats : out.behind]]
        gone = [one.highest_bytes for one in whole.moments[out.behind : out.behind + out.moments]]
        assert gone == repeated * (out.moments // out.repeats)
        assert [short.index(place) for place in (0, out.behind)] == [0, out.behind + out.moments]


def test_thousands_of_microbatches_have_no_more_moments() -> None:
    settings: dict[str, Any] = {PP: 16, VPP: 5, "global_batch_size": 4 * 16384}
    found = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, **settings))
    line = found.timeline()
    assert len(line.moments) <= MOST_PASSES + 5
    assert line.peak.highest_bytes == found.peak_stage.peak_allocated_bytes


# -- what is printed and written --------------------------------------------------------------------------------------

WORDS = ["Qwen/Qwen3-8B", "--num-gpus", "8", "--pp", "4", "--global-batch-size", "32"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["timeline", *words])
    return capsys.readouterr().out


def test_the_document_and_the_table_are_the_moments(capsys: pytest.CaptureFixture[str]) -> None:
    line = case("pipeline").timeline(1)
    document = json.loads(printed(capsys, *WORDS, "--stage", "1", "--json"))
    assert document == json.loads(json.dumps(line.to_dict())) and document["schema"] == "megatron-memory-timeline/1"
    assert document["peak_allocated_bytes"] == max(one["highest_bytes"] for one in document["moments"])
    text = printed(capsys, *WORDS, "--stage", "1", "--csv")
    assert text == printed(capsys, *WORDS, "--stage", "1", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["highest_bytes"] for row in rows] == [str(one.highest_bytes) for one in line.moments]
    assert rows[0].keys() == line.table()[0].keys()
    assert printed(capsys, *WORDS, "--format", "json", "--stage", "1") == json_text(document) + "\n"
    assert printed(capsys, *WORDS, "--format", "markdown").startswith("| index | event |")


@pytest.mark.parametrize("axis", ["seconds", "events"])
@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_the_chart_is_as_wide_as_the_terminal_and_cuts_no_number(
    columns: int, axis: Axis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys, *WORDS, "--axis", axis)
    lines = text.splitlines()
    assert "\x1b" not in text and max(map(len, lines)) <= columns
    chart = [line for line in lines if re.match(r" *[\d.]+ [|+]", line)]
    assert max(map(len, chart)) == columns
    settings: dict[str, Any] = {PP: 4, "global_batch_size": 32}
    peak = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **settings)).peak_stage
    said = " ".join(text.split())
    assert f"at most {peak.peak_allocated_bytes / 2**30:.2f} GiB allocated" in said and "\u2026" not in text
    assert peak.peak.candidate.label in said


def test_piped_it_is_80_columns_wide(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, printed(capsys, *WORDS).splitlines())) == 80


def test_the_mark_stands_under_the_peak_and_the_line_at_the_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    chart = [line for line in printed(capsys, *WORDS).splitlines() if re.match(r" *[\d.]+ [|+]", line)]
    line = case("pipeline").timeline()
    assert f"{line.peak.highest_bytes / 2**30:.1f}" in chart[0] and f"{line.staying_bytes / 2**30:.1f}" in chart[-2]
    place = line.place(line.peak)
    end = line.moments[-1].end_s
    assert place is not None and end is not None
    assert chart[-1].index("\u25b2") == 9 + int(place / end * 91)
    tight = printed(capsys, *WORDS, "--max-memory", "60").splitlines()
    assert any(one.startswith("   60.0 |\u2500\u2500") for one in tight) and "\u2500 60.0 GiB of H100-80GB" in " ".join(
        tight
    )
    small = printed(capsys, *WORDS, "--gpu", "B300")
    assert "GiB of B300-288GB, is above" in " ".join(small.split())


def test_a_terminal_without_blocks_gets_ascii() -> None:
    page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_timeline(case("pipeline").timeline(), "it fits", "seconds", Console(file=page, width=80))
    page.seek(0)
    assert "|::::" in page.read()


def test_a_long_step_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(capsys, *WORDS[:-1], "4096", "--axis", "seconds").split())
    assert (
        "left out: 3,072 forwards and backwards in the middle, of 1,536 microbatches, which repeat the 2 before" in text
    )


@pytest.mark.parametrize("name", ["pipeline", "graphs", "long"])
def test_figures_are_drawn_and_written_whole(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    line = case(name).timeline()
    figure = line.plot(str(tmp_path / "own.png"))
    axes = figure.axes[0]
    highest = line.peak.highest_bytes / 2**30
    assert f"{highest:.2f} GiB at {line.peak.label}" in axes.get_title()
    areas = [patch.get_data() for patch in axes.patches]  # type: ignore[attr-defined]
    tops = max(values.max() for values, _, _ in areas)
    assert tops == pytest.approx(max(one.highest_bytes for one in line.moments) / 2**30)
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    printed(capsys, *WORDS, "--png", str(png), "--svg", str(svg), "--axis", "events")
    assert png.read_bytes().startswith(b"\x89PNG") and "</svg>" in svg.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "a.svg", "own.png"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["timeline", *words])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_refusals_name_the_fix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stage 4 does not exist; the run has 4 stages, counted from 0" in refused(capsys, *WORDS, "--stage", "4")
    assert "exclude each other" in refused(capsys, *WORDS, "--json", "--csv")
    assert "exclude each other" in refused(capsys, *WORDS, "--json", "--format", "markdown")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'megatron-memory-estimator[plot]'" in refused(capsys, *WORDS, "--png", "a.png")
    monkeypatch.undo()
    line = case("one GPU").timeline()
    with pytest.raises(ConfigError, match="not one of seconds, events"):
        line.plot(axis="days")  # type: ignore[arg-type]


def test_the_words_of_a_timeline_are_one_line() -> None:
    line = case("pipeline").timeline()
    assert isinstance(line, Timeline)
    assert (
        repr(line).startswith("<Timeline of stage 0 of Qwen/Qwen3-8B: 36 moments, at most ") and len(repr(line)) < 200
    )


def test_the_program_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "how-to" / "timeline.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(program, "docs/how-to/timeline.md", "exec"), {})
