"""`megatron-memory plan`: output, limits of memory, the fewest GPUs, calibration."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.report.plans import nothing_fits, rows_of
from megatron_memory_estimator.report.plans_text import Asked, front_chart, print_found

from .helpers import FACTS, ROOT


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


PLAN = ("plan", "Qwen/Qwen3-8B", "--num-gpus", "16", "--gpu", "H100", "--global-batch-size", "128")


def test_the_document_of_a_plan_is_what_estimate_says(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, *PLAN, "--top", "3", "--pp", "1-4", "--tp", "not:8", "--json"))
    assert document["schema"] == "megatron-memory-plan/1" and len(document["plans"]) == 3
    counts = document["counts"]
    assert counts["examined"] == counts["legal"] + sum(counts["ruled_out"].values())
    assert counts["evaluated"] >= counts["fits"] + counts["tight"]
    assert counts["too_large"] + counts["fits"] + counts["tight"] <= counts["legal"]
    for one in document["plans"]:
        launch = one["launch"]
        job = TrainingJob.from_megatron_args(
            launch["megatron_lm"], 16, gpu="H100", **launch["settings_without_argument"]
        )
        assert [s.peak_allocated_bytes for s in estimate(job).stages] == one["peak_of_stages_bytes"]
        assert max(one["peak_of_stages_bytes"]) == one["peak_allocated_bytes"]
        assert sum(one["parts_s"].values()) == pytest.approx(one["step_s"])
        assert one["head_room_bytes"]["low"] >= 0


def test_the_text_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *PLAN, "--top", "2", "--show", "2", "--launch", "bridge")
    assert "stays the recipe's own" in text and "ddp.overlap_grad_reduce=true" in text
    lengths = dict(line.split("=") for line in text.splitlines() if ".seq_length=" in line)
    assert lengths["model.seq_length"] == lengths["dataset.seq_length"], "Megatron-Bridge asserts it"
    assert "model.tensor_model_parallel_size=" in text and "tokens/s/GPU" in text
    document, verbose = json.loads(printed(capsys, *PLAN, "--json")), printed(capsys, *PLAN, "-v")
    counts = document["counts"]
    assert f"{counts['legal']:,} legal layouts: " in text and " cannot fit, " in text and "ruled out: " not in text
    assert (
        verbose.count("ruled out: ") == len([count for count in counts["ruled_out"].values() if count])
        and "layouts of the space" in verbose
    )
    assert "MODEL_ARGS:" in printed(capsys, *PLAN, "--top", "1", "--launch", "yaml")
    assert "--bf16" in printed(capsys, *PLAN, "--top", "1", "--show", "1")


def test_a_row_is_slower_than_the_one_before_it_and_needs_a_gib_less() -> None:
    """Against the search with every plan of its own."""
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, gpu="H100")
    axes = {"cp": "1,2", "micro_batch_size": "1,2", "recompute": "none,mlp,full"}
    rows = plan(job, axes, global_batch_size=1024, top=4).found.plans
    every = plan(job, axes, global_batch_size=1024, top=200, every=True).found.plans
    assert len(every) == 200 and rows[0] == every[0]
    for one, next_one in itertools.pairwise(rows):
        assert one.step < next_one.step and next_one.needed.high <= one.needed.high - 2**30
    left_out = [one for one in every if one.step <= rows[-1].step and one not in rows]
    for one in left_out:  # each is beaten, but for less than a GiB
        assert any(row.step <= one.step and row.needed.high <= one.needed.high + 2**30 for row in rows)


def test_two_spellings_of_a_layout_are_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """`1/1` and the same as a layout in words have the same bytes and seconds."""
    words = (
        "plan",
        "meta-llama/Llama-3.1-405B",
        "--num-gpus",
        "512",
        "--gpu",
        "H100",
        "--tp",
        "2",
        "--pp",
        "64",
        "--cp",
        "4",
        "--cp-comm-type",
        "p2p",
        "--features",
        "gradient-overlap+expandable-segments",
    )
    every, folded = (
        json.loads(printed(capsys, *words, "--recompute", "none", "--json", *more))["plans"]
        for more in (["--every"], [])
    )
    assert {one["layout"]["split"] for one in every} == {"1/1", "Et|(tt|)*62tL"} and len(
        {one["step_s"] for one in every}
    ) == 1
    assert [one["layout"]["split"] for one in folded] == ["1/1"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_plan_in_a_narrow_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ("plan", "Qwen/Qwen3-30B-A3B", "--num-gpus", "16", "--gpu", "H100", "--launch", "none")
    text = printed(capsys, *words).split("Assumed:")[0]
    assert max(map(len, text.splitlines())) <= width and "\u2026" not in text
    assert "All plans: 16 GPUs, etp 1, bf16, distributed optimizer" in text and " slower than 1: " in text
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))))
    assert len(rows) == 5
    for row in rows:
        numbers = {name: float(value) for name, value in row.items() if name.endswith(("_bytes", "_gpu", "_s", "mfu"))}
        room = [f"{numbers[f'head_room_{end}_bytes'] / 2**30:.1f}" for end in ("low", "high")]
        for shown in (f"{numbers['tokens_per_s_gpu']:,.0f}", f"{numbers['mfu']:.1%}", " to ".join(room)):
            assert shown in text
        assert f"{numbers['peak_allocated_bytes'] / 2**30:.2f}" in text
    chart = front_chart(plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100"), {"cp": "1"}).found, width, "ascii")
    lines = list(chart)
    assert len(lines) <= 10 and max(map(len, lines)) <= width and all(line.isascii() for line in lines)
    assert "tokens/s/GPU" in lines[0] and "GiB allocated" in lines[-1]


def test_where_no_layout_resumes_those_that_train_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """The review's first question: 16 H100 train Llama-3.1-70B with full recomputation, and load no optimizer's state."""
    run = (
        "plan",
        "meta-llama/Llama-3.1-70B",
        "--num-gpus",
        "16",
        "--gpu",
        "H100",
        "--tp",
        "8",
        "--cp",
        "1",
        "--recompute",
        "full",
        "--features",
        "gradient-overlap+expandable-segments",
    )
    with pytest.raises(SystemExit) as ended:
        main(list(run))
    assert ended.value.code == 4
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith(
        "The fastest: tp 8, cp 1, pp 2, vpp 2, micro batch 1, recompute full, 690 tokens/s/GPU (614 to 814 by published runs). "
        "Trains on 16 H100-80GB"
    )
    assert "Cannot resume with optimizer state, at least 33.1 GiB too much: loading takes 112.2 to 114.4 GiB" in first
    assert "; none surely resumes" in first
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 16, gpu="H100", expandable_segments=True)
    axes = {"tp": "8", "cp": "1", "recompute": "full", "features": "gradient-overlap+expandable-segments"}
    alone = dataclasses.replace(job, env=dataclasses.replace(job.env, phases=("training",)))
    both, trains = plan(job, axes).found, plan(alone, axes).found
    assert both.trains_only and not trains.trains_only
    assert both.plans[0].job.env.phases == job.env.phases and not rows_of(both)[0].verdict.fits
    assert [one.tokens_per_s_gpu for one in both.plans] == [one.tokens_per_s_gpu for one in trains.plans]
    assert "no layout fits in 40.00 GiB" in nothing_fits(plan(job, axes, limit=40 * 2**30).found)


def test_memory_that_may_be_used_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    room = json.loads(printed(capsys, *PLAN, "--max-memory", "40", "--head-room", "10%", "--json"))
    assert room["limit_bytes"] == 40 * 2**30 - int(40 * 2**30 * 0.1)
    assert all(one["device_bytes"]["high"] <= room["limit_bytes"] for one in room["plans"])


def test_state_that_all_gpus_cannot_hold_is_said_before_anything_is_searched() -> None:
    """Qwen3-8B: 2 + 4 + 12 bytes of each of 8,190,735,360 parameters, and a GPU of 40 GiB."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 1, gpu="A100-40GB")
    found = plan(job, {"features": "none"}).found
    assert found.state == pytest.approx(18 * 8_190_735_360, rel=1e-6)
    assert not found.legal and not found.plans and found.least is None
    assert "1 GPU has 39.40 GiB. 4 GPUs could just hold them" in nothing_fits(found)
    assert plan(job, {"features": "none"}, limit=found.state).found.state is None


def test_nothing_fits_is_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*PLAN, "--pp", "1", "--recompute", "none", "--max-memory", "8")
    for form in ("table", "json", "csv"):
        with pytest.raises(SystemExit) as left:
            main(
                [
                    *words,
                    "--format" if form == "csv" else "--launch",
                    "csv" if form == "csv" else "none",
                    *["--json"][: form == "json"],
                ]
            )
        assert left.value.code == 3
        out, err = capsys.readouterr()
        if form == "json":
            assert json.loads(out)["plans"] == []
        else:
            said = out if form == "table" else err
            assert "no layout fits in 8.00 GiB: the nearest needs" in said and "--min-num-gpus" in said
            assert form == "table" or out == ""


def test_the_fewest_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """A number of GPUs holds the model, and no smaller one that is tried does."""
    words = [
        "plan",
        "Qwen/Qwen3-8B",
        "--gpu",
        "A100-40GB",
        "--min-num-gpus",
        "--json",
        "--cp",
        "1",
        "--recompute",
        "none,full",
    ]
    found = json.loads(printed(capsys, *words))
    gpus = found["plans"][0]["layout"]["num_gpus"]
    assert found["fewest_gpus"] == gpus > 1
    assert f"{gpus} GPUs train and resume it" in printed(capsys, *[w for w in words if w != "--json"]).splitlines()[0]
    with pytest.raises(SystemExit) as ended:
        main([*[w for w in words if w != "--min-num-gpus"], "--num-gpus", str(gpus // 2)])
    fewer = json.loads(capsys.readouterr().out)
    assert ended.value.code == 4 and fewer["judged"] == "training"
    assert all(one["phase"] == "load" and one["verdict"] != "fits" for one in fewer["plans"])


@pytest.mark.parametrize(
    "words",
    [
        ["--tp", "4", "--cp", "4", "--seq-length", "8192", "--cp-comm-type", "a2a,p2p"],  # a2a has too few groups
        ["--attention-kernel", "unfused", "--cp", "1-4"],  # not with context parallelism
        ["--optimizer-offload-fraction", "1"],  # demands the precision-aware optimizer
        ["--optimizer", "sgd"],  # without the distributed optimizer
    ],
)
def test_what_one_value_forbids_another_allows(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        printed(capsys, "plan", "Qwen/Qwen3-8B", "--num-gpus", "16", "--gpu", "H100", "--top", "2", *words, "--json")
    )
    assert len(found["plans"]) == 2
    assert all(one["launch"]["megatron_lm"] for one in found["plans"])


def test_more_gpus_are_no_shortcut_to_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    """9, 11, 13 and 17 GPUs do not divide by tp 8; 8 do."""
    words = [
        "plan",
        "Qwen/Qwen3-8B",
        "--min-num-gpus",
        "--num-gpus",
        "1,4,8,9,11,13,17",
        "--tp",
        "8",
        "--gpu",
        "H100",
        "--json",
    ]
    found = json.loads(printed(capsys, *words))
    assert found["fewest_gpus"] == 8


def test_a_whole_run_is_planned_anew(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 8}\ntraining: {num_gpus: 16, global_batch_size: 64, seq_length: 8192}\n"
    )
    found = json.loads(printed(capsys, "plan", str(file), "--top", "1", "--json"))
    assert found["plans"][0]["global_batch_size"] == 64
    assert found["plans"][0]["layout"]["num_gpus"] == 16


def test_calibration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Measured steps that are all twice as slow make plans slower, and the error smaller."""
    plain = json.loads(printed(capsys, *PLAN, "--top", "1", "--json"))["plans"][0]
    settings = {"global_batch_size": 128, "tensor_model_parallel_size": 2}
    rate = 0.7 * plain["tokens_per_s_gpu"]
    file = tmp_path / "measured.jsonl"
    lines = [
        {
            "model": "Qwen/Qwen3-8B",
            "num_gpus": 16,
            "gpu": "H100",
            "settings": {**settings, "micro_batch_size": n},
            "tokens_per_s_gpu": rate,
        }
        for n in (1, 2, 4)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([*PLAN, "--top", "1", "--calibrate", str(file), "--launch", "none"])
    said = capsys.readouterr().err
    assert "calibrated with 3 measured steps" in said and "gemm x0." in said
    fitted = json.loads(printed(capsys, *PLAN, "--top", "1", "--json", "--calibrate", str(file)))["plans"][0]
    assert fitted["step_s"] > plain["step_s"]


def test_an_interrupt_prints_the_best_so_far() -> None:
    tool = str(Path(sys.executable).with_name("megatron-memory"))
    words = ["plan", "deepseek-ai/DeepSeek-V3", "--num-gpus", "256", "--gpu", "B200", "--complete", "-v"]
    # a job in the background inherits that it is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen([tool, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(3)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if "nothing was evaluated yet" in out else 0), err
    assert "Traceback" not in err
    assert "interrupted: the best so far" in out + err and "layouts of the space" in out


def test_published_layouts_beside_the_first_choice() -> None:
    """All are legal; what is more than 10 % from the first choice is explained; two cheap rows are computed again."""
    rows = {one["id"]: one for one in map(json.loads, (FACTS / "published_plans.jsonl").read_text().splitlines())}
    assert len(rows) >= 30
    assert all(bool(one["why"]) is (abs(one["gap"]) > 0.1) for one in rows.values())
    spec = importlib.util.spec_from_file_location("plan_published", ROOT / "scripts" / "plan_published.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    records = {one["id"]: one for one in script.records()}
    assert set(records) == set(rows)
    for name in (
        "card-qwen3-8b-pretrain-h100",
        "doc-26-08-nemotron-3-nano-pretrain-8-gb300-fp8mx-mbs4-gbs512-tp1pp1cp1vp1ep8",
    ):
        assert script.compared(records[name]) == rows[name]


def test_sets_of_recomputation_that_a_model_does_not_have_are_named() -> None:
    """Qwen3-8B has fused norms and no experts: neither set would recompute anything."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, gpu="H100", global_batch_size=64)
    axes = {"tp": "2", "cp": "1", "pp": "1", "micro_batch_size": "1", "recompute": "none,layernorm+mlp,moe_act"}
    planned = plan(job, axes=axes)
    assert (
        "recompute layernorm+mlp, moe_act left out: this model has core_attn, mlp to recompute" in planned.assumptions
    )
    assert not any("left out" in note for note in plan(job, axes={**axes, "recompute": "none,mlp"}).assumptions)


def test_launch_words_are_written_to_a_file_and_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    document = json.loads(printed(capsys, *PLAN, "--json"))
    said = printed(capsys, *PLAN, "--show", "2", "--launch", "yaml", "--write", str(file))
    assert "arguments of plan" not in said
    again = json.loads(printed(capsys, "estimate", str(file), "--gpu", "H100", "--num-gpus", "16", "--json"))
    assert again["peak"]["allocated_bytes"] == document["plans"][1]["peak_allocated_bytes"]
    assert "--num-layers" in printed(capsys, *PLAN, "--show", "1") and "--num-layers" not in printed(capsys, *PLAN)


@pytest.mark.parametrize("asked", [
    "Qwen/Qwen3-8B --num-gpus 8 --gpu H100 --cp 1",
    "Qwen/Qwen3-30B-A3B --num-gpus 16 --gpu GB200 --precision mxfp8 --cp 1 --tp 1",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --num-gpus 16 --gpu H100 --cp 1 --tp 1",
])  # fmt: skip
def test_a_script_that_is_written_is_read_back_as_the_plan(
    asked: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command that is named behind it gives the plan's own bytes: GPUs and environment are in the script."""
    file = tmp_path / "run.sh"
    main(["plan", *asked.split(), "--json", "--write", str(file)])
    document, said = capsys.readouterr()
    plan_ = json.loads(document)["plans"][0]
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    words = said.split("read back: megatron-memory ")[1].split()
    again = json.loads(printed(capsys, *words, "--json"))
    assert again["peak"]["allocated_bytes"] == plan_["peak_allocated_bytes"]
    assert again["verdict"]["device_bytes"] == plan_["device_bytes"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_plan_is_one_screen(width: int) -> None:
    """On 24 lines: its answer first, the five plans where the lines are not short, and the command to type next, whole."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, gpu="H100", global_batch_size=64)
    found, said = plan(job, {"cp": "1", "recompute": "none,full"}, top=5)
    text = io.StringIO()
    screen = Console(file=text, width=width, height=24, force_terminal=True, color_system=None)
    print_found(found, rows_of(found), screen, said, Asked(command=("Qwen/Qwen3-8B", "--num-gpus", "8")))
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("The fastest: tp ") and len(lines) < (30 if width < 80 else 24)
    assert "Trains on 8 H100-80GB, at least " in " ".join(" ".join(lines).split())
    assert any(line.startswith("Next: megatron-memory plan Qwen/Qwen3-8B --num-gpus 8") for line in lines)
    assert all(len(line) <= width for line in lines)
    figures = [f"{one.tokens_per_s_gpu:,.0f}" for one in found.plans[: 5 if width >= 80 else 2]]
    assert all(any(figure in line for line in lines) for figure in figures)
    common = " ".join(" ".join(lines).split()).split("All plans: ")[1].split(" # ")[0].split(", ")
    for one in found.plans:
        degrees = {f"{name} {getattr(one.job.layout, name)}" for name in ("tp", "pp", "cp")}
        assert {word for word in common if word.split()[0] in ("tp", "pp", "cp")} <= degrees


@pytest.mark.parametrize(("words", "said"), [
    (("--write", "x", "--launch", "none"), "--launch none has none"),
    (("--show", "1", "--format", "csv"), "--show and --launch go with the table"),
])  # fmt: skip
def test_launch_words_that_nothing_would_print_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*PLAN, *words])
    assert left.value.code == 2 and said in capsys.readouterr().err


def test_a_plan_that_has_only_what_all_have_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(
        capsys, "plan", "meta-llama/Llama-3.1-70B", "--num-gpus", "64", "--tp", "4", "--pp", "2", "--cp", "1", "--vpp", "1,10",
        "--recompute", "none", "--micro-batch-size", "1", "--split", "even", "--features", "published",
    )  # fmt: skip
    assert re.search(r"(?m)^\d  vpp ", found) and re.search(r"(?m)^\d  nothing more ", found), found


def test_an_axis_is_no_setting() -> None:
    """`features` given to a run is refused with where it belongs, at every door alike."""
    with pytest.raises(
        ConfigError, match=r'features is no setting but an axis of plan: .* \{"features": "safe"\} in axes'
    ):
        TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, features="safe")  # type: ignore[call-arg]


def test_a_first_plan_that_leaves_little_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The same plan with 1 % of what it may take left, and with as much of what it needs again."""
    (first,) = json.loads(printed(capsys, *PLAN, "--top", "1", "--json"))["plans"]
    needed, little = first["device_bytes"]["high"] / 2**30, "is little: --head-room 5% keeps more free."
    assert little in printed(
        capsys, *PLAN, "--top", "1", "--max-memory", str(needed * 1.01), "--recompute", first["recompute"]
    )
    assert "is little" not in printed(capsys, *PLAN, "--top", "1", "--head-room", "5%")
