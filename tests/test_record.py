"""Measured runs written as records: `megatron-memory record` and what `validate --against` makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.planner.record import record, records_of_log
from megatron_memory_estimator.validation.replay import at_rank, job_of, replay
from megatron_memory_estimator.validation.runs import read_runs

from .helpers import ROOT

MIB = 2**20
REPORT = "[Rank {}] (after {} iterations) memory (MB) | allocated: {} | max allocated: {}\n"
LOADED = "  successfully loaded checkpoint from /ckpt/of/me [ t 1/1, p 1/1 ] at iteration 500\n"


def job(*words: str, gpus: int = 8, **settings: Any) -> TrainingJob:
    given = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    )
    given += "--micro-batch-size 1 --global-batch-size 16 --vocab-size 50257 --bf16 --pipeline-model-parallel-size 2"
    return TrainingJob.from_megatron_args([*given.split(), *words], gpus, **settings)


def read(lines: list[dict[str, Any]], path: Path) -> list[Any]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_runs(str(path))


RUNS = [
    ("--use-distributed-optimizer", "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
    ("--tensor-model-parallel-size", "2", "--sequence-parallel", "--swiglu", "--normalization", "RMSNorm"),
    ("--num-experts", "4", "--expert-model-parallel-size", "4", "--moe-router-topk", "2", "--moe-grouped-gemm", "--disable-bias-linear"),
    ("--optimizer", "dist_muon", "--use-distributed-optimizer"),
]  # fmt: skip


@pytest.mark.parametrize("words", RUNS)
def test_a_row_of_a_log_is_read_back_and_scored(words: tuple[str, ...], tmp_path: Path) -> None:
    """What the estimate says of ranks 0 and 4, as a log would have it, is met by the replay of its record in every figure."""
    ran = job(*words)
    text = ""
    for rank, pp_rank in ((0, 0), (4, 1)):
        stage = estimate(at_rank(ran, rank)).stages[pp_rank]
        text += REPORT.format(rank, 1, stage.steady_allocated_bytes / MIB, stage.first_step_peak_allocated_bytes / MIB)
        text += REPORT.format(rank, 2, stage.steady_allocated_bytes / MIB, stage.peak_allocated_bytes / MIB)
    runs = read(records_of_log(ran, text), tmp_path / "runs.jsonl")
    assert [(run.rank, run.iteration) for run in runs] == [(0, 2), (4, 2)]
    for run in runs:
        found = replay(run)
        assert not found.refused
        for pair in (found.steady, found.peak, found.first_step):
            assert pair is not None and pair.measured == pair.estimated


def test_the_table_says_of_which_iteration_its_figures_are() -> None:
    """All but five cards of Megatron-Bridge and four of a pull request do; the runs that print the first step alone say 1."""
    runs = read_runs()
    assert sum(run.iteration is None for run in runs) == 9
    for run in runs:
        first_alone = set(run.measured) == {"first_step_max_allocated_bytes"}
        assert run.iteration is None or (run.iteration == 1) == first_alone, run.id


def test_a_first_line_is_no_peak_and_a_resumed_one_no_first_step() -> None:
    ran = job("--use-distributed-optimizer")
    (fresh,) = records_of_log(ran, REPORT.format(0, 1, 10, 20))
    assert fresh["measured"] == {"allocated_bytes": 10 * MIB, "first_step_max_allocated_bytes": 20 * MIB}
    (resumed,) = records_of_log(ran, LOADED + REPORT.format(0, 501, 10, 20))
    assert resumed["measured"] == {"allocated_bytes": 10 * MIB, "max_allocated_bytes": 20 * MIB}
    assert (fresh["phase"], resumed["phase"]) == ("first-run", "resumed")


def test_a_record_has_neither_names_nor_paths(tmp_path: Path) -> None:
    """Of a model in a private folder, read from a launch script with a checkpoint."""
    folder = tmp_path / "secret-project"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024,
              "vocab_size": 1000, "max_position_embeddings": 2048, "_name_or_path": "secret-project"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    line = record(TrainingJob.from_hf(str(folder), 8), 0, {"max_allocated_bytes": 1})
    assert "secret" not in json.dumps(line) and str(tmp_path) not in json.dumps(line)
    assert job_of(*read([line], tmp_path / "runs.jsonl")).model.hidden_size == 512


def test_libraries_are_named_where_they_were_given() -> None:
    assert record(job(), "last", {"allocated_bytes": 1})["settings"] == {}
    given = record(job(transformer_engine_version="2.4"), "last", {"allocated_bytes": 1})["settings"]
    assert given == {"transformer_engine_version": "2.4"}


def test_a_rank_owns_its_share_of_a_layer_wise_optimizer() -> None:
    """Where each data-parallel rank owns whole parameters the rank of the record is replayed, not the fullest."""
    ran = job("--optimizer", "dist_muon", "--use-distributed-optimizer")
    states = [estimate(at_rank(ran, rank)).stages[0].steady_allocated_bytes for rank in range(4)]
    assert len(set(states)) > 1 and max(states) == estimate(ran).stages[0].steady_allocated_bytes


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        ((), "nothing", "no memory lines of Megatron"),
        ((), REPORT.format(8, 2, 1, 2), "there is no rank 8: the run has 8 GPUs"),
        (
            ("--cuda-graph-impl", "transformer_engine", "--cuda-graph-warmup-steps", "3", "--te-rng-tracker"),
            REPORT.format(0, 2, 1, 2), "before CUDA graphs are captured",
        ),
    ],
)  # fmt: skip
def test_a_log_without_a_peak_makes_no_record(words: tuple[str, ...], text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        records_of_log(job(*words), text)


def test_a_rank_of_a_record_is_one_of_the_run(tmp_path: Path) -> None:
    line = record(job(), 0, {"allocated_bytes": 1})
    for rank, sentence in (
        (8, "rank 8 is none of the 8 ranks"),
        (True, "must be a rank"),
        (0.0, "must be a rank"),
        (-1, "must be a rank"),
        ("1", "must be a rank"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            read([{**line, "rank": rank}], tmp_path / "runs.jsonl")


DENSE = """--num-layers 4 --hidden-size 1536 --num-attention-heads 12 --group-query-attention --num-query-groups 4 --kv-channels 128
--ffn-hidden-size 4096 --swiglu --normalization RMSNorm --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --vocab-size 50000
--seq-length 2048 --max-position-embeddings 2048 --bf16 --micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer
--position-embedding-type rope --untie-embeddings-and-output-weights --no-bias-swiglu-fusion"""


def test_a_snapshot_of_the_real_classes_makes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = str(ROOT / "tests" / "facts" / "snapshots" / "mcore_dense.pickle.gz")
    main(["record", "--snapshot", snapshot, "--rank", "0", "--num-gpus", "1", "--", *DENSE.split()])
    (run,) = read([json.loads(capsys.readouterr().out)], tmp_path / "runs.jsonl")
    peak = replay(run).peak
    assert peak is not None and round(peak.measured / 2**30, 2) == 5.38 and abs(peak.error) < 0.05


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give one of --log"),
        (["--log", "a", "--snapshot", "b", "--rank", "0"], "give one of --log"),
        (["--snapshot", "b"], "--rank goes with --snapshot"),
        (["--log", "a", "--rank", "0"], "--rank goes with --snapshot"),
        (["--snapshot", "nowhere.pickle", "--rank", "0"], "cannot be read: No such file"),
        (["--snapshot", "nowhere.pickle", "--rank", "8"], "there is no rank 8"),
    ],
)
def test_what_goes_together(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["record", *words, "Qwen/Qwen3-8B", "--num-gpus", "8"])
    assert ended.value.code == 2 and sentence in capsys.readouterr().err
