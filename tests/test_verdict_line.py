"""The first line of an estimate: the verdict for the chosen GPU with its numbers, and what to type next."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from megatron_memory_estimator import GPUS, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.device.verdict import VERDICTS
from megatron_memory_estimator.report.verdict import (
    next_step,
    other_gpus,
    others_line,
    sentences,
    short_names,
    verdict_line,
    way_out,
)

RUNS: list[tuple[str, int, dict[str, Any], str]] = [
    ("Qwen/Qwen3-8B", 8, {"tp": 2, "gpu": "H100"}, "fits"),
    ("Qwen/Qwen3-8B", 8, {"tp": 1, "gpu": "H100"}, "does not fit"),
    ("Qwen/Qwen3-235B-A22B", 128, {"tp": 4, "pp": 8, "ep": 8, "num_layers_in_first_pipeline_stage": 11,
                                   "num_layers_in_last_pipeline_stage": 11, "gpu": "H100"}, "fits only without fragmentation"),
    ("meta-llama/Llama-3.1-70B", 16, {"tp": 8, "pp": 2, "vpp": 2, "recompute_granularity": "full", "gpu": "H100"}, "does not fit"),
]  # fmt: skip


HEADS = {
    "fits": "Trains on {}, at least {} GiB left: ",
    "fits only without fragmentation": "Trains on {} only without fragmentation: ",
    "tight": "Might not train on {}, up to {} GiB too much: ",
    "does not fit": "Cannot train on {}, at least {} GiB too much: ",
}


@pytest.mark.parametrize(("model", "gpus", "settings", "word"), RUNS)
def test_the_first_line_is_training_with_its_numbers(
    model: str, gpus: int, settings: dict[str, Any], word: str
) -> None:
    found = estimate(TrainingJob.from_hf(model, gpus, **settings))
    line = re.sub(r"\[/?(bold .*?)?\]", "", verdict_line(found))
    verdict = found.verdict()
    training = verdict.events[0]
    low, high = (f"{nbytes / 2**30:.1f}" for nbytes in training.device)
    margin = abs(79.1 - float(low if training.word == "does not fit" else high))
    head = HEADS[training.word].format(f"{gpus} H100-80GB", f"{margin:.1f}")
    assert verdict.word == word and training.phase == "training"
    assert line.startswith(f"{head}needs {low} to {high} of 79.1 GiB on ")
    assert f": {found.stages[training.pp_rank].peak.candidate.label})" in line
    assert ("advise" in next_step(found)[0]) == (word != "fits")
    assert ("Cannot resume" in line) == (verdict.phase == "load")
    groups = other_gpus(found)
    names = short_names()
    listed = [name for members in groups.values() for name in members]
    assert sorted(listed) == sorted(names[one.name] for one in GPUS if one.name != "H100-80GB")
    assert set(groups) <= set(VERDICTS)
    assert " do not" in others_line(found, 1000)


def test_the_chosen_gpu_is_judged_first_and_the_table_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Trains on 8 H200-141GB, at least ")
    assert any(line.startswith("Other GPUs: ") and " fit too" in line for line in lines)
    assert not any("head-room GiB" in line for line in lines)
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--all-gpus"])
    assert "head-room GiB" in capsys.readouterr().out


def phases(**settings: Any) -> list[str]:
    """The sentences behind the first."""
    found = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 16, tp=8, pp=2, gpu="H100", **FULL, **settings))
    return [one.text for one in sentences(found.verdict(), found)][1:]


FULL: dict[str, Any] = {
    "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1, "expandable_segments": True,
}  # fmt: skip


def test_another_phase_has_its_own_figures_and_its_way_out() -> None:
    (said,) = phases()
    assert re.fullmatch(
        r"Cannot resume with optimizer state, at least 33\.\d GiB too much: loading takes 112\.\d to 114\.\d GiB on stage 1 of 0-1; "
        r"with --no-load-optim loading fits, \d+\.\d GiB left\.",
        said,
    )
    assert phases(load_optim=False) == []
    assert phases(phases=("training",)) == ["Nothing but training is judged."]


def test_phases_in_any_order_begin_with_training() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", phases=("save", "load", "training"))
    found = estimate(job)
    assert [one.phase for one in found.verdict().events] == ["training", "load", "save"]
    assert found.stages[0].device == found.stages[0].phase_ranges["training"]
    assert sentences(found.verdict(), found)[0].text.startswith("Cannot train on 8 H100-80GB, at least ")


def test_where_training_fails_it_decides() -> None:
    found = estimate(
        TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 128, tp=4, pp=4, ep=8, num_layers_in_last_pipeline_stage=16)
    )
    verdict = found.verdict()
    assert verdict.phase == "training" and verdict.head_room == verdict.events[0].head_room
    assert verdict.events[1].device.low > verdict.device.low


def test_the_next_command_is_the_run_again() -> None:
    """What a shell makes of the lines are the words that were given, also where a quoted word is longer than a line."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, gpu="H100"))
    long = "EXTRA_ARGS=" + " ".join(f"word{at}" for at in range(30))
    for words in (["run.sh", "--set", long], ["--num-gpus", "8", "--", "--num-layers", "4"], ["a b.json", "--tp=2"]):
        for width in (40, 80, 300):
            shown = "\n".join(next_step(found, words, width)).partition("  # ")[0].removeprefix("Next: ")
            at = words.index("--") if "--" in words else len(words)
            read = subprocess.run(["bash", "-c", f"printf '%s\\0' {shown}"], capture_output=True, text=True, check=True)
            assert read.stdout.split("\0")[:-1] == [
                "megatron-memory",
                "explain",
                *words[:at],
                "--stage",
                "0",
                *words[at:],
            ]
    assert next_step(found, ["a\nb"], 80)[0].startswith("Next: megatron-memory explain ... --stage 0")


def test_no_range_is_of_two_phases_or_stages() -> None:
    for model, gpus, settings, _ in RUNS:
        found = estimate(TrainingJob.from_hf(model, gpus, **settings))
        for event in found.verdict().events:
            assert event.device == found.stages[event.pp_rank].phase_ranges[event.phase]


def test_a_way_out_that_is_milder_is_named_first() -> None:
    """Of dense and expert state, which are copied one after the other from such a checkpoint."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, ep=8, gpu="H200", seq_length=4096)
    found = estimate(job)
    load = next(one for one in found.verdict().events if one.phase == "load")
    split = estimate(replace(job, training=replace(job.training, dist_ckpt_optim_fully_reshardable=True)))
    less = next(one for one in split.verdict().events if one.phase == "load")
    assert less.device.high < load.device.high
    assert (
        way_out(found.verdict(less.device.high), found)
        == "with --dist-ckpt-optim-fully-reshardable loading fits, 0.0 GiB left"
    )
    without = estimate(replace(job, training=replace(job.training, load_optim=False)))
    least = next(one for one in without.verdict().events if one.phase == "load").device.high
    assert way_out(found.verdict(least), found) == "with --no-load-optim loading fits, 0.0 GiB left"
    assert way_out(found.verdict(least // 2), found).startswith("with --no-load-optim ")
