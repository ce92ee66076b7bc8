"""No short input takes long or much memory: what grows is bounded by one sentence, the rest is linear."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError, EstimatorError, LayoutError, StoppedError
from megatron_memory_estimator.job.layer_kinds import frequency_list
from megatron_memory_estimator.job.pipeline import parse_layout
from megatron_memory_estimator.planner.planning import plan
from megatron_memory_estimator.planner.search import search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.defaults import MOST_COMBINATIONS, MOST_VALUES
from megatron_memory_estimator.planner.space.recompute import recompute_settings
from megatron_memory_estimator.rank.schedule import Occupancy, occupancy

DENSE = "Qwen/Qwen3-8B"
MEMORY = 3 * 2**30
SECONDS = 10
"""Generous: what hung did not end in a minute."""


def short(value: object) -> str:
    """The name of a case."""
    return ascii(value)[:24]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process with bounds on time and memory."""
    return subprocess.run(
        [sys.executable, "-m", "megatron_memory_estimator", *arguments],
        capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )  # fmt: skip


# -- layout strings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Ettt|(tt|)*29,m|L", ("Ettt", *("tt",) * 29, "m", "L")),
        ("E(t*2|)*3L", ("Ett", "tt", "tt", "L")),
        (
            "Et(*3|)*2L",
            ("Ettt", "", "", "", "L"),
        ),  # groups and repetitions are replacements in the text, one after the other
        ("t**0", ("t",)),
        ("t*0tL", ("tL",)),
        ("t*007", ("ttttttt",)),
        ("t*(1)*2", ("t" * 11,)),
        ("||", ("", "", "")),
    ],
)
def test_a_layout_string_means_what_megatron_core_reads(text: str, stages: tuple[str, ...]) -> None:
    """Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py`, parse_str_to_list."""
    assert parse_layout(text) == stages


@pytest.mark.parametrize(
    "text", ["", "Et L", "((t)*2", "t*", "*3", "(t)", "()*2", "t*2*3", "3*t", "t*\u00b2", "E" + "(" * 9000], ids=short
)
def test_what_megatron_core_refuses_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="its symbols are"):
        parse_layout(text)


@pytest.mark.parametrize(
    "text",
    ["(t*99999)*14000", "(t*99999)*3000", "|*100000" * 1000, "t*2001", "(t|)*2000", "t*" + "9" * 5000, "(tt)*8000"],
    ids=short,
)
def test_a_layout_string_is_bounded_before_it_is_written_out(text: str) -> None:
    with pytest.raises(ConfigError, match="more than 2000 layers or stages"):
        parse_layout(text)


def test_the_largest_layout_strings_are_read() -> None:
    assert len(parse_layout("E(t*1|)*1999L")) == 2_000


# -- frequencies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("+".join(["[0]*99999"] * 800), "more than 2000 entries"),
        ("+".join(["[0]*1999"] * 900), "more than 2000 entries"),
        ("[0]*2000" + "*1" * 4900, "has 2000 entries for num_layers=48"),
        ("(" * 3000 + "[0]*48" + ")" * 2999, "is not a sum"),
        ("(" * 10_000 + "[", "is not a sum"),
        ("(" * 10_000, "is neither a whole number"),
        ("[\u00b2]", "is not a sum"), ("\u00b2", "is neither a whole number"), ("--5", "is neither a whole number"),
        ("9" * 5000, "is neither a whole number"), ("[" + "9" * 5000 + "]", "is not a sum"), ("-5", "must be at least 1"),
        ("[0]*3*[1]", "is not a sum"), ("2*3", "is neither a whole number"), ("2*3+[0]", "is not a sum"), ("[0]+", "is not a sum"),
    ], ids=short
)  # fmt: skip
def test_a_frequency_that_is_none_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        frequency_list("moe_layer_freq", text, 48)
    assert len(str(error.value)) <= 500


def test_frequencies_are_sums_of_repeated_lists() -> None:
    nested = "(" * 3000 + "[0]*2+2*[0,1]" + ")" * 3000
    assert frequency_list("f", nested, 6) == (0, 0, 0, 1, 0, 1)
    assert frequency_list("f", "([0]*1+[1]*3)*2", 8) == (0, 1, 1, 1) * 2
    assert frequency_list("f", " 2 ", 4) == (1, 0, 1, 0)


@pytest.mark.parametrize("pattern", ["M" * 40_000, "M/" + "M/" * 5000 + "M", "|" * 20_000 + "M"], ids=short)
def test_a_hybrid_pattern_is_bounded(pattern: str) -> None:
    with pytest.raises(EstimatorError, match="hybrid_layer_pattern"):
        TrainingJob.from_config(
            {
                "num_layers": 1,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "vocab_size": 100,
                "hybrid_layer_pattern": pattern,
            },
            1,
        )


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fifo.yaml", "fifo.sh"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    done = run("estimate", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a regular file" in done.stderr


# -- the schedule -------------------------------------------------------------------------------------------------------


def states(one: Occupancy, sizes: list[int], *, every: bool) -> dict[tuple[str, int, int], tuple[int, tuple[int, ...]]]:
    """The most that is kept at each kind of step, and the first occupancy with it."""
    found: dict[tuple[str, int, int], tuple[int, tuple[int, ...]]] = {}
    for step, kept in one.held(sizes, every=every):
        counts = one.in_flight(step)
        assert kept == sum(n * size for n, size in zip(counts, sizes, strict=True))
        assert sum(counts) == step.in_flight
        key = step.direction, step.chunk, step.beside
        if key not in found or kept > found[key][0]:
            found[key] = kept, counts
    return found


def test_the_ends_of_stretches_hold_what_any_step_holds() -> None:
    draw = random.Random(0)
    for _ in range(150):
        pp, vp = draw.randint(1, 5), draw.randint(1, 4)
        group = draw.randint(pp, pp + 3)
        overlap = draw.random() < 0.3
        microbatches = group * draw.randint(1, 4) + draw.choice([0, 0, pp if pp < group else 0])
        one = occupancy(pp, vp, draw.randrange(pp), microbatches, group, overlap)
        sizes = [draw.choice([0, 1, 3, 10]) for _ in range(vp)]
        assert states(one, sizes, every=False) == states(one, sizes, every=True)
        counts = [one.in_flight(step) for step, _ in one.held(sizes, every=True) if step.direction == "F"]
        assert one.max_in_flight == max(map(sum, counts))
        assert one.per_chunk == tuple(map(max, zip(*counts, strict=True)))


def test_many_chunks_and_layers_end() -> None:
    done = run("estimate", DENSE, "--num-layers", "2000", "--pp", "40", "--vpp", "50", "--num-gpus", "40", "--json")
    assert done.returncode == 0, done.stderr
    stages = json.loads(done.stdout)["stages"]
    assert [len(stage["chunks"]) for stage in stages] == [50] * 40
    assert stages[0]["in_flight"] == 2 * 39 + 49 * 40 + 1


def test_alternating_layers_end() -> None:
    done = run("estimate", "deepseek-ai/DeepSeek-V3", "--num-layers", "2000", "--moe-layer-freq", "2", "--json")
    assert done.returncode == 0, done.stderr
    (stage,) = json.loads(done.stdout)["stages"]
    assert sum(stage["breakdown_bytes"].values()) == stage["peak_allocated_bytes"]


def test_one_checkpoint_has_a_most_of_layers() -> None:
    settings: dict[str, Any] = {
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1500,
    }  # fmt: skip
    job = TrainingJob.from_hf(DENSE, 1, num_layers=2000, **settings)
    with pytest.raises(
        LayoutError, match="recompute_num_layers=1500 puts more layers under one checkpoint than are accepted, 1000"
    ):
        estimate(job)


def test_a_number_of_thousands_of_digits_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="num_gpus=a number of more than 18 digits must be a whole number"):
        TrainingJob.from_hf(DENSE, 10**6000)


# -- plans --------------------------------------------------------------------------------------------------------------


def small_job() -> TrainingJob:
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8)
    return dataclasses.replace(job, training=dataclasses.replace(job.training, global_batch_size=512))


def test_the_largest_global_batch_is_planned() -> None:
    axes = {"tp": "1", "cp": "1", "pp": "1,2", "recompute": "none"}
    assert plan(small_job(), axes, global_batch_size=2**40).found.plans


def test_a_refused_plan_says_what_would_help() -> None:
    done = run("plan", DENSE, "--num-gpus", "8", "--tp", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "legal layouts with tensor_model_parallel_size 1, 2, 4, 8: 3,150" in done.stderr


def test_a_search_is_stopped_by_its_caller() -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 50

    with pytest.raises(StoppedError, match=r"the search on 8 GPUs was stopped when .*; narrow the space"):
        plan(small_job(), {"num_gpus": "8"}, stop=stop)
    assert asked == 51


def test_a_stop_that_never_comes_changes_nothing() -> None:
    space = Space(tensor_model_parallel_size=(1,), context_parallel_size=(1,), recompute=("none",))
    asked: Callable[[], bool] = lambda: False  # noqa: E731
    assert search(small_job(), space, stop=asked) == search(small_job(), space)


def test_spaces_are_bounded() -> None:
    job = small_job()
    many = ",".join(map(str, range(1, MOST_VALUES + 2)))
    with pytest.raises(ConfigError, match=f"has {MOST_VALUES + 1} values to try; at most {MOST_VALUES}"):
        plan(job, {"tp": many})
    some = ",".join(map(str, range(1, 500)))
    with pytest.raises(ConfigError, match=f"have {499 * 499} combinations; at most {MOST_COMBINATIONS}"):
        plan(job, {"tp": some, "cp": some, "ep": "1", "etp": "1"})


@pytest.mark.parametrize(
    "word", ["block:\u00b2", "block:" + "9" * 5000, "uniform:--5", "block:0", "block:+1"], ids=short
)
def test_recomputation_of_odd_numbers_is_one_sentence(word: str) -> None:
    with pytest.raises(ConfigError, match="is not none, full, block:N") as error:
        recompute_settings(word)
    assert len(str(error.value)) <= 500


@pytest.mark.parametrize("version", ["2.\u00b2", "2." + "9" * 5000, "2", "2.-1", "", "."], ids=short)
def test_odd_versions_are_one_sentence(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", DENSE, f"--transformer-engine-version={version}"])
    assert ended.value.code == 2
    assert "must look like 2.20" in capsys.readouterr().err


def test_a_group_of_microbatches_is_bounded() -> None:
    layout: dict[str, Any] = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
    for size in (65_537, 10**12):
        with pytest.raises(
            LayoutError,
            match=f"microbatch_group_size_per_vp_stage={size} is more than the most that is accepted, 65536",
        ):
            estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **layout, microbatch_group_size_per_vp_stage=size))
