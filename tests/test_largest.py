"""The largest sequence, tokens and micro batch of a run: what a scan by `estimate` finds, at every door."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, Estimate, LayoutError, TrainingJob, estimate, largest
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.planner.changes import changed
from megatron_memory_estimator.report.limit import sentence
from megatron_memory_estimator.service.answers import answered

GIB = 2**30


def job(**settings: Any) -> TrainingJob:
    given = {"tensor_model_parallel_size": 2, "global_batch_size": 64, **settings}
    return TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, **given)


def training(found: Estimate, limit: int) -> tuple[bool, bool]:
    """Whether training surely fits, and whether it may."""
    room = found.verdict(limit).event("training").head_room
    return room.low >= 0, room.high >= 0


@pytest.mark.parametrize("settings", [{}, {"context_parallel_size": 2}, {"pipeline_model_parallel_size": 2}])
def test_the_longest_sequence_is_the_one_that_a_scan_finds(settings: dict[str, Any]) -> None:
    run, limit = job(**settings), 12 * GIB
    found = largest(run, "seq_length", limit_bytes=limit)
    lengths = range(found.step, 2 * found.possible, found.step)
    fits = {length: training(estimate(changed(run, {"seq_length": length})), limit) for length in lengths}
    assert 0 < found.sure == max(length for length, (sure, _) in fits.items() if sure)
    assert found.possible == max(length for length, (_, possible) in fits.items() if possible)
    assert all(sure for length, (sure, _) in fits.items() if length <= found.sure), (
        "memory never falls with more tokens"
    )
    assert found.at is not None and found.at.job.training.seq_length == found.sure


def test_a_sequence_has_room_for_its_images() -> None:
    run = TrainingJob.from_hf("Qwen/Qwen3-VL-8B-Instruct", 8, tp=2, gpu="H100", seq_length=6144, images="4x1024x1024")
    found = largest(run, "seq_length")
    assert found.step == 128 and found.sure > 4096
    assert estimate(changed(run, {"seq_length": found.sure})).verdict().fits


def test_the_micro_batch_divides_the_samples_of_a_rank() -> None:
    run, limit = job(), 12 * GIB
    found = largest(run, "micro_batch_size", limit_bytes=limit)
    fits = [
        value for value in (1, 2, 4, 8, 16) if training(estimate(changed(run, {"micro_batch_size": value})), limit)[0]
    ]
    assert found.sure == max(fits) and found.given == 1


def test_tokens_of_a_gpu_are_its_part_of_the_sequence() -> None:
    run = job(context_parallel_size=2)
    tokens, length = largest(run, "max_tokens_per_gpu"), largest(run, "seq_length")
    assert (tokens.sure, tokens.possible) == (length.sure // 2, length.possible // 2)
    assert tokens.given == 4096 // 2


def test_the_batch_that_nobody_gave_grows_with_the_micro_batch() -> None:
    run = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, tensor_model_parallel_size=2)
    found = largest(run, "micro_batch_size", limit_bytes=20 * GIB)
    assert found.sure > 1 and found.at is not None
    assert found.at.job.training.global_batch_size == found.sure * run.layout.dp * run.num_microbatches


def test_what_is_said_where_nothing_fits_and_where_the_next_value_is_no_run() -> None:
    nothing = largest(job(), "seq_length", limit_bytes=GIB)
    assert (nothing.sure, nothing.possible) == (0, 0)
    assert sentence(nothing).startswith(
        "No sequence surely fits on 8 H100-80GB (the run has 4,096); with 128 tokens already training may"
    )
    all_fit = largest(job(global_batch_size=4), "micro_batch_size")
    assert all_fit.sure == 1 and "all that divide the batch fit" in sentence(all_fit)


def test_positions_that_are_learned_end_where_the_table_ends() -> None:
    run = job()
    run = replace(
        run, model=replace(run.model, position_embedding_type="learned_absolute", max_position_embeddings=4096)
    )
    found = largest(run, "seq_length")
    assert found.sure <= 4096 and found.refusal


def test_every_door_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    run = job()
    found = largest(run, "seq_length")
    words = [
        "estimate",
        "Qwen/Qwen3-0.6B",
        "--num-gpus",
        "8",
        "--tp",
        "2",
        "--global-batch-size",
        "64",
        "--largest",
        "seq_length",
    ]
    main(words)
    assert sentence(found) in " ".join(capsys.readouterr().out.split())
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["sure"], document["possible"]) == (found.sure, found.possible)
    settings = {"tensor_model_parallel_size": 2, "global_batch_size": 64}
    asked = {"model": "Qwen/Qwen3-0.6B", "num_gpus": 8, "settings": settings, "setting": "seq_length"}
    answer = answered({"tool": "largest", "arguments": asked, "folder": None, "seconds": 60})["answer"]
    assert (answer["sure"], answer["sentence"]) == (found.sure, sentence(found))


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="largest asks for seq_length, micro_batch_size or max_tokens_per_gpu"):
        largest(job(), "seq_len")
    with pytest.raises(LayoutError):
        largest(
            TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, tensor_model_parallel_size=2, expert_model_parallel_size=2),
            "seq_length",
        )
    with pytest.raises(SystemExit):
        main(["estimate", "Qwen/Qwen3-0.6B", "--num-gpus", "8", "--largest", "seq_length", "--table"])


def test_the_step_is_whole_blocks_that_every_rank_can_split() -> None:
    """A block of 128 tokens; with context parallelism each of tp x 2 cp pieces of a sequence is whole: 8 x 32 = 256."""
    assert largest(job(), "seq_length").step == 128
    wide = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 128, tensor_model_parallel_size=8, context_parallel_size=16)
    found = largest(wide, "seq_length", limit_bytes=20 * GIB)
    assert found.step == 256 and found.sure % 256 == 0
    assert found.room is not None and found.room.head_room.low >= 0 and found.room.memory_bytes == 20 * GIB
    nothing = largest(job(), "seq_length", limit_bytes=GIB)
    assert nothing.room is None and nothing.at is None and nothing.decider is not None
