"""What a whole run takes: days, dollars and goodput, by hand, by simulation, and at the doors."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.device.host import checkpoint_bytes
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.job.training_job import with_settings
from megatron_memory_estimator.modules.counts import count_parameters
from megatron_memory_estimator.planner.whole_run import best_interval, share_of_steps, whole_run
from megatron_memory_estimator.report.plans import Row, answer, plan_records, rows_of

FAILURES = {"gpu_mtbf_hours": 50_000.0, "restart_minutes": 15.0, "storage_gbs": 20.0}
AXES = {"tp": "1", "cp": "1", "pp": "1", "ep": "8", "micro_batch_size": "1", "features": "none"}


def test_goodput_by_hand() -> None:
    """An hour of steps, a minute of saving, ten of a restart, a failure every ten hours: 36,000 e^(1/60) (e^(3,660/36,000) - 1) is
    36,000 * 1.016806 * 0.107015 = 3,917.3 seconds for an hour of steps."""
    assert share_of_steps(3600, 60, 600, 36_000) == pytest.approx(3600 / 3917.3, rel=1e-4)
    assert share_of_steps(3600, 0, 0, 1e12) == pytest.approx(1)


def test_goodput_is_that_of_a_simulated_run() -> None:
    draw, steps, save, restart, mean = random.Random(7), 3600, 120, 900, 4 * 3600
    clock = done = 0.0
    while done < 20_000 * steps:
        clock += restart
        until = draw.expovariate(1 / mean) - restart  # a failure in a restart begins it again
        if until < 0:
            clock += until
            continue
        kept, lost = divmod(until, steps + save)
        done += kept * steps
        clock += kept * (steps + save) + lost
    assert share_of_steps(steps, save, restart, mean) == pytest.approx(done / clock, rel=0.02)


@pytest.mark.parametrize(("save", "mean"), [(60, 36_000), (600, 36_000), (30, 2e6)])
def test_no_other_interval_costs_less(save: float, mean: float) -> None:
    best = best_interval(4, save, mean)
    share = share_of_steps(4 * best, save, 600, mean)
    assert share >= max(share_of_steps(4 * best * factor, save, 600, mean) for factor in (0.8, 1.25))


@pytest.mark.parametrize("layout", [{}, {"pp": 4}, {"use_distributed_optimizer": True, "pp": 2}])
def test_a_checkpoint_has_fourteen_bytes_of_each_parameter(layout: dict[str, Any]) -> None:
    """A bf16 weight, an fp32 master and two fp32 moments."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **layout))
    ranks = [stage.rank for stage in found.stages]
    assert checkpoint_bytes(found.job, ranks) == 14 * count_parameters(found.job.model).total


def test_experts_are_written_once() -> None:
    """Alike on tensor parallel ranks, and so written by each of the two: norms and routers. The vocabulary is padded to 256."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, tp=2, ep=8))
    model = found.job.model
    norms = 48 * (2 * 2048 + 2 * 128) + 2048
    routers = 48 * 2048 * 128
    padding = 2 * 2048 * (152_064 - 151_936)
    whole = count_parameters(model).total
    assert checkpoint_bytes(found.job, [stage.rank for stage in found.stages]) == 14 * (
        whole + norms + routers + padding
    )


def test_columns_of_a_plan_by_hand() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 64, gpu="H100", global_batch_size=1024, seq_length=4096)
    job = with_settings(job, {"train_tokens": 15e12, "gpu_hour_dollars": 2.5, "save_interval": 500, **FAILURES})
    found = plan(job, AXES, top=1)
    (one,) = found.table()
    cycle, mean = 500 * one["step_s"], 50_000 * 3600 / 64
    assert one["checkpoint_bytes"] == 14 * count_parameters(job.model).total
    assert one["save_s"] == one["checkpoint_bytes"] / 20e9
    assert one["goodput"] == pytest.approx(share_of_steps(cycle, one["save_s"], 900, mean))
    assert one["run_tokens_per_s"] == pytest.approx(64 * one["tokens_per_s_gpu"] * one["goodput"])
    assert one["days"] == pytest.approx(15e12 / one["run_tokens_per_s"] / 86400)
    assert one["dollars"] == pytest.approx(one["days"] * 24 * 64 * 2.5)
    assert one["tokens_per_dollar"] == pytest.approx(15e12 / one["dollars"])
    assert one["failures_per_day"] == pytest.approx(64 * 24 / 50_000)
    said = " ".join(answer(found.found, rows_of(found.found)))
    assert f"{one['days']:,.1f} days" in said and "every 500 steps" in said


def test_only_what_is_asked_for_is_a_column() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 64, gpu="H100", global_batch_size=1024)
    (plain,) = plan(job, AXES, top=1).table()
    (priced,) = plan(with_settings(job, {"gpu_hour_dollars": 2.5}), AXES, top=1).table()
    assert priced.keys() - plain.keys() == {"run_tokens_per_s", "tokens_per_dollar"}
    assert priced["tokens_per_dollar"] == pytest.approx(priced["tokens_per_s_gpu"] * 3600 / 2.5)


def test_goodput_needs_all_of_it() -> None:
    job = with_settings(TrainingJob.from_hf("Qwen/Qwen3-8B", 8), {"gpu_mtbf_hours": 50_000.0})
    with pytest.raises(ConfigError, match="restart_minutes and storage_gbs are not given"):
        plan(job, {})
    with pytest.raises(ConfigError, match="storage_gbs=-1"):
        with_settings(job, {"storage_gbs": -1.0})


def test_a_script_says_how_often_it_saves() -> None:
    words = "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --bf16"
    text = f"{words} --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --make-vocab-size-divisible-by 1"
    often = TrainingJob.from_megatron_args(f"{text} --save-interval 40".split(), num_gpus=8)
    assert often.env.save_interval == 40
    assert TrainingJob.from_megatron_args(text.split(), num_gpus=8).env.save_interval is None
    asked = with_settings(often, FAILURES)
    found = estimate(asked)
    run = whole_run(asked, [stage.rank for stage in found.stages], 2.0)
    assert run is not None and run.save_interval == 40


def test_the_command_takes_trillions(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "Qwen/Qwen3-8B",
        "--num-gpus",
        "8",
        "--tp",
        "1,2",
        "--pp",
        "1",
        "--cp",
        "1",
        "--json",
        "--train-tokens",
    ]
    main([*words, "15T"])
    found = json.loads(capsys.readouterr().out)["plans"][0]["whole_run"]
    assert found["days"] == pytest.approx(15e12 / found["tokens_per_s"] / 86400) and found["goodput"] is None
    with pytest.raises(SystemExit) as refused:
        main([*words, "many"])
    assert refused.value.code == 2 and "15T" in capsys.readouterr().err


def test_rows_without_anything_asked_have_no_run() -> None:
    found = plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 8), {"tp": "2", "pp": "1", "cp": "1"}, top=1).found
    assert Row(found.plans[0]).whole is None and "goodput" not in plan_records(found)[0]
