"""One verdict and one device range of a run, whoever is asked: docs/explanation/verdicts.md."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.estimate_from_hf import main as skill
from megatron_memory_estimator.device.verdict import Verdict
from megatron_memory_estimator.report.verdict import verdict_text
from megatron_memory_estimator.service.answers import answered

from .helpers import FACTS, long

RUNS = [json.loads(line) for line in (FACTS / "verdict_runs.jsonl").read_text().splitlines()]
AXES = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "micro_batch_size": "micro-batch-size"}


class Said(NamedTuple):
    """What somebody says of a run."""

    verdict: str
    phase: str
    low: int
    high: int


def said(document: dict[str, Any]) -> Said:
    """The verdict of a document."""
    return Said(document["verdict"], document["phase"], *document["device_bytes"].values())


def of(found: Verdict) -> Said:
    return Said(found.word, found.phase, *found.device)


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as options."""
    found: list[str] = []
    for name, value in settings.items():
        found += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return found


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command prints; a plan without a layout that surely fits says so in its exit code."""
    with nullcontext() if argv[0] != "plan" else suppress(SystemExit):
        main(list(argv))
    return capsys.readouterr().out


WITHOUT_FEATURES = ("--features", "none")
"""What `plan` takes from recipes and `estimate` does not is off."""


def planned(capsys: pytest.CaptureFixture[str], run: dict[str, Any]) -> Said:
    """What `plan` says of the run's own layout as the only one: of the plan, or of the layout that needs least where none fits."""
    settings = dict(run["settings"])
    own = {option: str(settings.pop(name, 1)) for name, option in AXES.items()}
    layout = [word for option, value in own.items() for word in (f"--{option}", value)]
    layout += ["--vpp", "1", "--etp", "1", "--split", "even", "--tight", "--num-gpus", str(run["num_gpus"])]
    recompute = [settings.pop(f"recompute_{name}", None) for name in ("granularity", "method", "num_layers")]
    layout += ["--recompute", "full" if recompute[0] else "none"]
    document = json.loads(printed(capsys, "plan", run["model"], *layout, *WITHOUT_FEATURES, *words(settings), "--json"))
    if document["plans"]:
        return said(document["plans"][0])
    return Said("does not fit", "", *document["least"]["device_bytes"].values())


def same_everywhere(run: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks library, `estimate`, its JSON, `compare`, `advise`, `plan`, the MCP server and the skill's script."""
    model, gpus, settings = run["model"], run["num_gpus"], run["settings"]
    result = estimate(TrainingJob.from_hf(model, gpus, **settings))
    verdict = result.verdict()
    expected = of(verdict)
    call = [model, "--num-gpus", str(gpus), *words(settings)]
    first = printed(capsys, "estimate", *call).splitlines()[0]
    assert first == verdict_text(verdict, result)
    assert said(json.loads(printed(capsys, "estimate", *call, "--json"))["verdict"]) == expected
    cases = json.loads(
        printed(capsys, "compare", *call, "--layout", "tp=1", "--layout", f"tp={settings.get('tp', 1)}", "--json")
    )
    assert said(cases["cases"][-1]["estimate"]["verdict"]) == expected
    assert said(json.loads(printed(capsys, "advise", *call, "--json"))["now"]) == expected
    plan = planned(capsys, run)
    assert plan == (expected if plan.phase else expected._replace(phase=""))
    request = {"model": model, "num_gpus": gpus, "settings": settings, "detail": "full"}
    answer = answered({"tool": "estimate", "arguments": request, "folder": None, "seconds": 60})
    assert said(answer["answer"]["verdict"]) == expected
    skill(call)
    assert verdict_text(verdict, result) in capsys.readouterr().out


@pytest.mark.parametrize("number", [3, 9, 14])
def test_a_run_has_one_verdict(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    same_everywhere(RUNS[number], capsys, monkeypatch)


@long
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_every_run_has_one_verdict(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    same_everywhere(RUNS[number], capsys, monkeypatch)


def test_the_runs_have_every_verdict() -> None:
    found = {
        estimate(TrainingJob.from_hf(run["model"], run["num_gpus"], **run["settings"])).verdict().word for run in RUNS
    }
    assert found == {"fits", "fits only without fragmentation", "tight", "does not fit"} and len(RUNS) == 20
