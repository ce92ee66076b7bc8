"""Files of records: what is odd in one is refused in a sentence with its line and key, and a record opens nothing outside its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.throughput.calibrate import Measured, calibrate
from megatron_memory_estimator.validation.replay import replay
from megatron_memory_estimator.validation.runs import Run, read_runs
from megatron_memory_estimator.validation.steps import read_measured

MODEL = {"num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "seq_length": 128}
ARGS = {
    "num-layers": 2, "hidden-size": 256, "num-attention-heads": 4, "seq-length": 128, "max-position-embeddings": 128,
    "micro-batch-size": 1, "vocab-size": 1000, "bf16": True,
}  # fmt: skip
RUN: dict[str, Any] = {
    "id": "own", "group": "g", "family": "f", "features": ["te"], "source": "s", "date": "2026-01-01", "gpu": "H100", "num_gpus": 1,
    "phase": "first-run", "rank": "last", "env": {"A": "b"}, "settings": {"transformer_engine_version": "2.5"}, "args": ARGS,
    "measured": {"allocated_bytes": 100000000, "max_allocated_bytes": 120000000},
}  # fmt: skip
STEP: dict[str, Any] = {
    "id": "own", "family": "f", "source": "s", "bridge": {"model": MODEL, "train": {"micro_batch_size": 1}}, "num_gpus": 1, "gpu": "H100",
    "settings": {"transformer_engine_version": "2.5"}, "tokens_per_s_gpu": 9000.0, "primary": True,
}  # fmt: skip
NAMED = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "gpu": "H100", "tokens_per_s_gpu": 9000.0}


def text_of(record: dict[str, Any], key: str, value: str) -> str:
    """The record as JSON with one value as it is written here."""
    return json.dumps({**record, key: "@"}).replace('"@"', value)


RATES = ["NaN", "Infinity", "-Infinity", "1e999", "1e308", "1e-320", "0", "-5", "9" * 400, '"9000"', "true", "null"]


@pytest.mark.parametrize("rate", RATES)
def test_rates_are_finite_and_sensible(rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(json.dumps(STEP) + "\n\n" + text_of(STEP, "tokens_per_s_gpu", rate))
    words = ["plan", "Qwen/Qwen3-8B", "--num-gpus", "8", "--tp", "2", "--cp", "1", "--pp", "1"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--calibrate", str(file)])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("error: steps.jsonl line 3: tokens_per_s_gpu ") and err.count("\n") == 1
    assert "a number of tokens per second from 0.001 to 1e9" in err


@pytest.mark.parametrize("rate", [0.001, 1e9])
def test_the_slowest_and_the_fastest_rate_give_efficiencies(rate: float, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(json.dumps({**STEP, "tokens_per_s_gpu": rate}))
    assert all(0.5 < factor < 2 for factor in calibrate(read_measured(str(file))).factors.values())


def test_efficiencies_that_no_number_describes_are_refused() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2)
    with pytest.raises(ConfigError, match="not finite"):
        calibrate([Measured("x", "x", estimate(job), float("nan"))])


WRONG_RUNS = [
    ("features", "5", "features must be a list of text, not 5"),
    ("features", "null", "features must be a list of text, not None"),
    ("group", "[]", "group must be text, not []"),
    ("family", "null", "family must be text, not None"),
    ("env", "5", "env must be an object of text, not 5"),
    ("env", '{"A": 1}', "env must be an object of text"),
    ("settings", "[1]", "settings must be an object, not [1]"),
    ("settings", "null", "settings must be an object"),
    *(("settings", f'{{"{name}": 4}}', f"settings must not hold {name};") for name in ("num_gpus", "gpu", "env")),
    *(("settings", f'{{"{name}": 4}}', f'"{name}" is no setting') for name in ("cls", "args", "model", "self", "config")),
    ("num_gpus", "true", "num_gpus must be a whole number from 1"),
    ("num_gpus", "9" * 400, "num_gpus is not finite, or a whole number of more than 18 digits"),
    ("date", "NaN", "date is not finite"),
    ("args", '{"num-layers": Infinity}', "args.num-layers is not finite"),
    ("args", '{"a": 1, "a": 2}', "the key 'a' stands twice"),
    ("args", '"run.sh"', "args must be an object"),
    ("args", "[" * 40 + "]" * 40, "nested more than 32 levels"),
    ("args", "[" * 100000 + "]" * 100000, "nested more than 32 levels"),
    ("rank", '"all"', "rank all goes with per_rank_max_allocated_bytes"),
    ("measured", '{"max_allocated_bytes": 1e9}', "max_allocated_bytes must be bytes as a positive whole number"),
    ("measured", '{"per_rank_max_allocated_bytes": 5}', "must be a list of bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "sentence"), WRONG_RUNS)
def test_odd_values_in_runs(key: str, value: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text_of(RUN, key, value))
    with pytest.raises(ConfigError) as refused:
        read_runs(str(file))
    assert str(refused.value).startswith("runs.jsonl line 1") and sentence in str(refused.value)


WRONG_STEPS = [
    ("settings", "[]", "settings must be an object, not []"),
    ("settings", "null", "settings must be an object, not None"),
    *(("settings", f'{{"{name}": 4}}', f"settings must not hold {name};") for name in ("num_gpus", "gpu")),
    *(("settings", f'{{"{name}": 4}}', f'"{name}" is no setting') for name in ("cls", "model", "set_variables")),
    ("primary", "5", "primary must be true or false"),
    ("family", "[]", "family must be text"),
    ("bridge", "{}", "needs the section model"),
    ("bridge", "5", "bridge must be an object, or text"),
    ("tokens", "5", 'unknown key "tokens"'),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "sentence"), WRONG_STEPS)
def test_odd_values_in_steps(key: str, value: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(text_of(STEP, key, value))
    with pytest.raises(ConfigError) as refused:
        read_measured(str(file))
    assert str(refused.value).startswith("steps.jsonl line 1: ") and sentence in str(refused.value)


def test_a_line_ends_only_where_lines_of_json_end(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({**RUN, "source": "a\u2028b"}, ensure_ascii=False) + "\r\n", newline="")
    (run,) = read_runs(str(file))
    assert run.source == "a\u2028b"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records, with a secret beside it, and another folder to work in."""
    records = tmp_path / "records"
    for name in ("records/model", "secret", "elsewhere/Qwen/Qwen3-8B"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secret" / "config.json").write_text('{"model_type": "secret"}')
    (tmp_path / "secret" / "run.yaml").write_text("secret: {secret: 1}")
    (records / "run.yaml").write_text(json.dumps(STEP["bridge"]))
    (records / "args.yaml").write_text(json.dumps({f"--{name}": value for name, value in ARGS.items()}))
    (records / "link.yaml").symlink_to(tmp_path / "secret" / "run.yaml")
    (records / "model" / "config.json").symlink_to(tmp_path / "secret" / "config.json")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return records


def measured_with(folder: Path, kind: str, name: str) -> list[Measured]:
    record = {"num_gpus": 1, "gpu": "H100", "tokens_per_s_gpu": 9000.0, kind: name}
    (folder / "steps.jsonl").write_text(json.dumps(record))
    return read_measured(str(folder / "steps.jsonl"))


OUTSIDE = [
    "-",
    "/etc/passwd",
    "../secret/run.yaml",
    "../secret",
    "link.yaml",
    "model",
    "~",
    "~/x",
    "a\0b",
    "\ud800",
    "x" * 9999,
    ".",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", ["model", "args", "bridge"])
def test_a_record_opens_nothing_outside_its_folder(kind: str, name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"line 1: {kind} must be .*below the folder of the records"):
        measured_with(folder, kind, name)


def test_a_record_reads_files_beside_it(folder: Path) -> None:
    for kind, name in (("bridge", "run.yaml"), ("bridge", "./run.yaml"), ("args", "args.yaml")):
        (run,) = measured_with(folder, kind, name)
        assert run.estimate.job.model.hidden_size == 256


def test_a_model_of_the_catalogue_is_no_directory_to_work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is a path in the working directory too"):
        measured_with(folder, "model", "Qwen/Qwen3-8B")
    monkeypatch.chdir(folder)
    (run,) = measured_with(folder, "model", "Qwen/Qwen3-8B")
    assert run.estimate.job.model.num_layers == 36


ODD = [
    "NaN", "-Infinity", "1e999", "1e308", "1e-320", "-1", "0", "1", "5", "2.5", "999999999999", "9" * 30, "true", "false", "null",
    '""', '"-"', '"a b"', '"[/red]x"', '"/etc/hosts"', '"\\ud800"', '"\\u0000"', '"8"', "[]", "[1]", '["a b"]', "{}", '{"a": 1}',
    '{"num_gpus": 4}', '{"cls": 1}', '{"a": 1, "a": 2}', "[[[[]]]]",
]  # fmt: skip
KEYS = ["num_gpus", "cls", "self", "settings", "name", "env", "bridge", "args", "measured", "x", ""]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a record."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, record: dict[str, Any]) -> str:
    """The record as JSON with one or two values replaced, removed or added."""
    tree = json.loads(json.dumps(record))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(tree))))
        holder = tree
        for key in path[:-1]:
            holder = holder[key]
        odd = f"@{draw(st.integers(0, len(ODD) - 1))}@"
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if what == "remove":
            del holder[path[-1]]
        elif what == "add" and isinstance(holder, dict):
            holder[draw(st.sampled_from(KEYS))] = odd
        else:
            holder[path[-1]] = odd
        if not tree:
            break
    text = json.dumps(tree)
    for index, odd in enumerate(ODD):
        text = text.replace(f'"@{index}@"', odd)
    return text


QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(
    text=st.one_of(mutated(RUN), mutated({**{k: v for k, v in RUN.items() if k != "args"}, "bridge": STEP["bridge"]}))
)
def test_an_odd_run_is_replayed_or_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    with contextlib.suppress(EstimatorError):
        assert all(run.measured for run in map(replayed, read_runs(str(file))))


def replayed(run: Run) -> Run:
    return replay(run).run


@QUIET
@given(text=st.one_of(mutated(STEP), mutated(NAMED)))
def test_an_odd_step_is_read_or_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(text)
    with contextlib.suppress(EstimatorError):
        assert all(0.001 <= run.tokens_per_s_gpu <= 1e9 for run in read_measured(str(file)))
