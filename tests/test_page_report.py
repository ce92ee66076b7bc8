"""The page frozen around one run: one file that loads nothing, with the library's own documents."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import Estimate, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.report.lanes import lanes_document
from megatron_memory_estimator.report.page import page_report

RUNS: list[tuple[str, int, dict[str, Any]]] = [
    ("Qwen/Qwen3-8B", 8, {"tensor_model_parallel_size": 2}),
    ("deepseek-ai/DeepSeek-V3", 1024, {"pipeline_model_parallel_size": 16, "expert_model_parallel_size": 64, "global_batch_size": 8192}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 32, {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8}),
]  # fmt: skip
LARGEST = 1_000_000


def documents(html: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="frozen">([\w+/=]+)</script>', html)
    assert found is not None
    held: list[dict[str, Any]] = json.loads(zlib.decompress(base64.b64decode(found[1]), -15))["documents"]
    return held


@pytest.fixture(params=RUNS, ids=[run[0] for run in RUNS])
def found(request: pytest.FixtureRequest) -> Estimate:
    name, gpus, settings = request.param
    return estimate(TrainingJob.from_hf(name, gpus, **settings))


def test_a_report_holds_the_documents_of_its_run(found: Estimate) -> None:
    html = page_report(found)
    assert len(html.encode()) < LARGEST
    held = documents(html)
    whole = {one["tool"]: one["answer"] for one in held if one["tool"] != "moment"}
    assert whole["estimate"] == json.loads(json.dumps(found.to_dict()))
    assert whole["lanes"] == json.loads(json.dumps(lanes_document(found)))
    moments = [one["answer"] for one in held if one["tool"] == "moment"]
    peaks = {
        one["pp_rank"]: max(m["allocated_bytes"] for m in moments if m["pp_rank"] == one["pp_rank"]) for one in moments
    }
    assert peaks == {stage.pp_rank: stage.peak_allocated_bytes for stage in found.stages}
    assert all(sum(t["bytes"] for t in one["tensors"]) == one["allocated_bytes"] for one in moments)


def test_a_report_runs_its_own_script_and_loads_nothing() -> None:
    html = page_report(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8)))
    policy = re.search(r'content="(default-src[^"]*)"', html)
    assert policy is not None
    allowed = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert allowed["default-src"] == "'none'" and "connect-src" not in allowed
    for tag, rule in (('<script type="module">', "script-src"), ("<style>", "style-src")):
        inside = re.search(re.escape(tag) + r"(.*?)</(?:script|style)>", html, re.S)
        assert inside is not None
        checksum = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert allowed[rule] == f"'sha256-{checksum}'"
    assert not re.search(r"<(?:link[^>]*href|script[^>]*src|img[^>]*src)=\"(?!data:)", html)


def test_the_command_writes_the_report_beside_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.html"
    run = ["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--html"]
    main([*run, str(file)])
    assert capsys.readouterr().out.startswith("Cannot train on 8 H100-80GB, ")
    assert file.read_text() == page_report(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8)))
    with pytest.raises(SystemExit) as left:
        main([*run, str(tmp_path / "x.pdf")])
    assert left.value.code == 2 and "must end in .html" in capsys.readouterr().err
    assert not (tmp_path / "x.pdf").exists()
