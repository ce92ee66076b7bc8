"""Measured runs: the table, its replay, logs, and runs of others. docs/explanation/accuracy.md holds every figure (tests/test_docs.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.job.hardware import GIB
from megatron_memory_estimator.validation.logs import Reported, read_log
from megatron_memory_estimator.validation.replay import Replay, differences, replay, scores, summary
from megatron_memory_estimator.validation.runs import read_runs

ARGS = {
    "num-layers": 2, "hidden-size": 256, "num-attention-heads": 4, "seq-length": 128, "max-position-embeddings": 128,
    "micro-batch-size": 1, "vocab-size": 1000,
}  # fmt: skip
RUN = {
    "id": "own", "gpu": "H100", "num_gpus": 1,
    "args": {**ARGS, "bf16": True},
    "measured": {"allocated_bytes": 100000000, "max_allocated_bytes": 120000000},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def replays() -> list[Replay]:
    return [replay(run) for run in read_runs()]


def test_the_table_is_the_public_record() -> None:
    runs = read_runs()
    assert len(runs) == 235 and len({run.group for run in runs}) == 50
    assert all(run.source for run in runs)


def test_scores_of_the_whole_table(replays: list[Replay]) -> None:
    """Steady memory and dense peaks; MoE peaks and refusals are listed in docs/explanation/accuracy.md as they are."""
    every = scores(replays)
    steady = summary(score.steady for score in every)
    assert steady is not None and steady.median < 0.006 and steady.p90 < 0.012
    dense = summary(score.peak for score in scores([found for found in replays if not found.moe]))
    assert dense is not None and dense.median < 0.0025
    beyond = summary(score.beyond_state for score in scores([found for found in replays if not found.moe]))
    assert beyond is not None and beyond.median < 0.01


def test_differences_between_two_runs() -> None:
    """docs/explanation/accuracy.md lists them; all but one of less than 0.01 GiB have the right sign and a size within 25 % or 0.3 GiB."""
    found = differences()
    assert len(found) >= 13
    assert all(one.agrees for one in found if abs(one.measured) > 0.01 * GIB)
    assert sum(not one.agrees for one in found) <= 1


def test_runs_of_bridge_replay_their_sections(replays: list[Replay]) -> None:
    """Nemotron-3 Nano on 16 H100, two runs, and DeepSeek-V3 in nvfp4 on 256 GB300."""
    errors = {found.run.id.rsplit("/", 1)[1]: found.peak.error for found in replays if found.run.bridge and found.peak}
    assert abs(errors["obs-nemotron3-nano-16h100-moe"]) < 0.005
    assert abs(errors["obs-pr-3364-dsv3-gb300-nvfp4-nogather"]) < 0.03


def test_refusals_name_a_feature(replays: list[Replay]) -> None:
    for found in replays:
        assert not found.refused or "not modelled" in found.refused or "expert" in found.refused


def test_figures_of_verification_cards_are_decimal() -> None:
    """The cards write "GiB" beside the digits of Megatron-Bridge's memory report, which divides bytes by 10^9."""
    cards = [run for run in read_runs() if "model_verification_cards" in run.source]
    assert len(cards) == 5
    for run in cards:
        digits, unit = run.printed.split(maxsplit=1)
        assert unit == '"GiB" of 10^9 bytes'
        assert run.measured["max_allocated_bytes"] == round(float(digits) * 10**9)


def test_peaks_of_nemotron_with_multi_token_prediction(replays: list[Replay]) -> None:
    """Nemotron-3.5 Lightning on 16 H100 and 8 GB200: within 2.1 %."""
    errors = [found.peak.error for found in replays if "card-nemotron-3-5" in found.run.id and found.peak]
    assert len(errors) == 5 and all(-0.021 < error < 0.0105 for error in errors)


def test_a_group_counts_once() -> None:
    runs = [run for run in read_runs() if run.group == "21c7462e"]
    (score,) = scores([replay(run) for run in runs])
    assert score.runs == len(runs) == 2


def test_log_lines() -> None:
    text = """
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.5 | max allocated: 20.0 | reserved: 30.0 | max reserved: 40.0
noise [Rank 0] (after 2 iterations) memory (MB) | allocated: 11.5 | max allocated: 21.0 | reserved: 3 | total device memory used: 50.0
[Rank 8] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 1.5 | mem-active-gigabytes: 1.5 | mem-max-allocated-gigabytes: 2.5
"""
    assert read_log(text) == [
        Reported(0, 1, 11010048, 20971520),
        Reported(0, 2, 12058624, 22020096),
        Reported(8, 2, 1500000000, 2500000000),
    ]
    assert read_log("nothing") == []


REPORT = "[Rank {}] (after {} iterations) memory (MB) | allocated: {} | max allocated: 120.5 | reserved: 200.0\n"
WRONG_REPORTS = [
    ("0", "2", "1e999", "line 2 of the log: allocated must be a number of MB below 10^15 bytes, not '1e999'"),
    ("0", "2", "1e20", "line 2 of the log: allocated must be a number"),
    ("0", "2", "1.2.3", "not '1.2.3'"),
    ("0", "2", ".", "not '.'"),
    ("0", "2", "-5", "not '-5'"),
    ("9" * 5000, "2", "100", "line 2 of the log: rank and iteration must be whole numbers of at most 18 digits"),
    ("0", "9" * 5000, "100", "line 2 of the log: rank and iteration"),
]


@pytest.mark.parametrize(("rank", "iteration", "figure", "sentence"), WRONG_REPORTS)
def test_reports_with_impossible_figures(rank: str, iteration: str, figure: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_log("noise\n" + REPORT.format(rank, iteration, figure))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("rank", "figure"), [("\u00b2", "100"), ("0", "nan")])
def test_what_is_no_report_is_passed_over(rank: str, figure: str) -> None:
    assert read_log(REPORT.format(rank, "2", figure)) == []


def test_a_long_line_of_a_log_is_read_at_once() -> None:
    text = "[Rank 0] (after 2 iterations) memory (MB) |" + " " * 10**6 + "| allocated: 1e2 | max allocated: 120.,\r\n"
    assert read_log(text) == [Reported(0, 2, 100 * 2**20, 120 * 2**20)]


def test_names_of_runs_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Markup of rich colours nothing and raises nothing; control characters and half characters do not reach the terminal."""
    names = {"source": "[/b]s\x1b[2J", "family": "[/f]", "features": ["[/i]"], "group": "[/g]", "printed": "[/p]"}
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({**RUN, **names, "id": "[/red]x\x1b[31m\ud800"}))
    whole = printed(capsys, "--against", str(file))
    case = printed(capsys, "--against", str(file), "--case", "[/red]x")
    assert "[/red]x [31m" in whole and "family [/f]" in whole and "feature [/i]" in whole
    assert "[/red]x [31m" in case and "[/b]s [2J" in case and "[/p]" in case
    assert "\x1b" not in whole + case


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["validate", *words])
    return capsys.readouterr().out


def test_own_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(RUN) + "\n\n")
    (case,) = json.loads(printed(capsys, "--against", str(file), "--json"))["cases"]
    assert (
        case["peak"]["measured"] == 120000000 and case["steady"]["error"] == case["steady"]["estimated"] / 100000000 - 1
    )
    assert "own" in printed(capsys, "--against", str(file))
    assert "hidden_states" in printed(capsys, "--against", str(file), "--case", "own")


def test_a_figure_is_compared_with_that_of_its_iteration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Adam's moments appear at the end of the first step: without a loaded optimizer state the first line has a peak without them."""
    words = [*["--num-layers", "4", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "1024"],
             *["--max-position-embeddings", "1024"],
             *["--micro-batch-size", "1", "--global-batch-size", "8", "--vocab-size", "50257", "--bf16"]]  # fmt: skip
    job = TrainingJob.from_megatron_args(words, 8)
    (stage,) = estimate(job).stages
    assert stage.first_step_peak_allocated_bytes < stage.peak_allocated_bytes
    log = tmp_path / "train.log"
    line = "[Rank 0] (after {} iterations) memory (MB) | allocated: 100 | max allocated: 120\n"
    resumed = "  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 500\n"
    for text, more, figure, expected in (
        (line.format(1), (), "first step", stage.first_step_peak_allocated_bytes),
        (line.format(2), (), "peak", stage.peak_allocated_bytes),
        (resumed + line.format(501), (), "peak", stage.peak_allocated_bytes),
        (resumed + line.format(501), ("--no-load-optim",), "first step", stage.first_step_peak_allocated_bytes),
    ):
        log.write_text(text)
        (row,) = json.loads(printed(capsys, "--log", str(log), "--num-gpus", "8", "--json", "--", *words, *more))[
            "ranks"
        ]
        assert (row["figure"], row["max_allocated_bytes"]["estimated"]) == (figure, expected)


def test_own_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("[Rank 0] (after 2 iterations) memory (MB) | allocated: 100 | max allocated: 120 | reserved: 1\n")
    words = [part for key, value in ARGS.items() for part in (f"--{key}", str(value))] + ["--bf16"]
    found = json.loads(printed(capsys, "--log", str(log), "--num-gpus", "1", "--json", "--", *words))
    assert found["ranks"][0]["max_allocated_bytes"]["measured"] == 120 * 2**20
    said = printed(capsys, "--log", str(log), "--num-gpus", "1", "--", *words)
    assert (
        said.startswith("The measured peak is ")
        and " below the estimate on stage 0 (rank 0, iteration 2): " in said
        and "peak MiB" in said
    )


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_log_is_answered_in_a_sentence_and_no_figure_is_cut(
    width: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that is farthest from its estimate is named, and every measured figure and error stands whole in the table."""
    monkeypatch.setenv("COLUMNS", str(width))
    job = TrainingJob.from_megatron_args({**ARGS, "bf16": True}, 2)
    (stage,) = estimate(job).stages
    ours, log = stage.peak_allocated_bytes, tmp_path / "train.log"
    line = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 123456.5 | max allocated: {} | reserved: 1\n"
    words = [part for key, value in ARGS.items() for part in (f"--{key}", str(value))] + ["--bf16"]
    above = 7 * 2**30
    log.write_text(line.format(0, (ours + above) / 2**20) + line.format(1, ours / 2**20))
    said = printed(capsys, "--log", str(log), "--num-gpus", "2", "--", *words)
    flat = " ".join(said.split())
    assert flat.startswith(
        "The measured peak is 7.0 GiB above the estimate on stage 0 (rank 0, iteration 2): the estimate is "
        f"{100 * above / (ours + above):.2f} % too low. Tensors to look at: 7.0"
    )
    assert (
        f"{(ours + above) / 2**20:.1f}" in said
        and f"{100 * (ours / (ours + above) - 1):+.2f} %" in said
        and "+0.00 %" in said
    )
    assert said.count("123456.5") == 2 and max(map(len, said.splitlines())) <= width
    log.write_text(line.format(1, ours / 2**20))
    assert printed(capsys, "--log", str(log), "--num-gpus", "2", "--", *words).startswith(
        "Every measured peak is within 0.0% of"
    )


WRONG = [
    ("{", "line 1 is not valid JSON"),
    ("[]", "must be a JSON object"),
    (json.dumps({**RUN, "gpuu": "x"}), 'unknown key "gpuu". Did you mean "gpu"?'),
    (json.dumps({**RUN, "num_gpus": "8"}), "line 1: num_gpus must be a whole number from 1 to 1000000000, not '8'"),
    (json.dumps({**RUN, "measured": {}}), "must hold bytes"),
    (json.dumps({**RUN, "measured": {"max": 3}}), 'unknown measurement "max"'),
    (
        json.dumps({**RUN, "measured": {"max_allocated_bytes": 1.5}}),
        "max_allocated_bytes must be bytes as a positive whole number, not 1.5",
    ),
    (json.dumps({**RUN, "measured": {"per_rank_max_allocated_bytes": [1, 2]}}), "one value for each"),
    (json.dumps({**RUN, "rank": "middle"}), "rank must be a rank, from 0, or one of"),
    (json.dumps({**RUN, "bridge": {"model": {}}}), "args and bridge say the same thing"),
    (json.dumps(RUN) + "\n" + json.dumps(RUN), "two runs with the id 'own'"),
    ("", "holds no runs"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_mistakes(text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["validate", "--against", str(file)])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "") and sentence in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--case", "no such run"], "matches no run"),
        (["--case", "gpt3"], "matches several runs; give one of"),
        (["--log", "x.log"], "needs the run's arguments"),
        (["run.sh"], "go with --log"),
        (["--log", "x", "--case", "y"], "--log goes with arguments"),
    ],
)
def test_wrong_options(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["validate", *words])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "") and sentence in err
