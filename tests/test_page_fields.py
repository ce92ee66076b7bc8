"""Every field of a document that the page gets is shown by it, or is left out for a reason that is written here."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.report.lanes import moment_document
from megatron_memory_estimator.report.page import page_report

from .helpers import ROOT

SOURCES = ROOT / "web" / "src"
TYPES = re.compile(r"export type (\w+) = \{\n(.*?)\n\};", re.DOTALL)
FIELD = re.compile(r"readonly (\w+):")
SHOWN = (
    "Estimate", "Stage", "Chunk", "Term", "Verdict", "Event", "PhaseTerms", "Sentence", "Said", "Top", "Routing", "OnGpu", "Model",
    "ModelParameters", "Lanes", "Speed", "Lane", "LeftOut", "Advice", "Change", "OneChange", "Plans", "Plan", "Counts", "Worth",
    "OwnPlan", "Comparison", "Case", "Moment", "Tensor", "Launch",
)  # fmt: skip
"""Types of the documents of the page's tools."""
ANOTHER_WAY = "another field of the page says it"
LEFT_OUT = {
    "schema": "of programs, not of people",
    "ddp_buffers": "the tensors of a moment have the buffers",
    "num_parameters.Stage": "the head says the model's, tensors have a rank's",
    "device_bytes_of_phases": "phases of the stage that needs most are shown",
    "phases.Stage": "their terms are shown for the stage that needs most (PhaseTerms)",
    "rollout": "their terms are shown for the stage that needs most (PhaseTerms)",
    "saved_bytes.Chunk": "the tensors of a moment say what is kept",
    "max_in_flight": "in_flight of the stage is shown",
    "vp_stage": "layers are listed for the stage",
    "uncounted": "the page takes no run without what is not modelled",
    "bound": "the page takes no run without what is not modelled",
    "sentence.Sentence": "sentences, one by one, are shown",
    "mtp.ModelParameters": ANOTHER_WAY,
    "config": "All settings as resolved lists it",
    "model_type": "the search for models looks in it",
    "timeline_s": "the axis of the timeline ends there",
    "step_s.Lanes": "speed has it",
    "moments.LeftOut": "microbatches are said",
    "repeats": "microbatches are said",
    "purpose": "the sentence says it",
    "now": "the head has the run as it is",
    "limit_bytes.Plans": ANOTHER_WAY,
}
"""Fields, or fields of a type, that the page does not show: why."""


def types() -> dict[str, list[str]]:
    return {name: FIELD.findall(body) for name, body in TYPES.findall((SOURCES / "quantities.ts").read_text())}


def used() -> set[str]:
    """Every word of the page's own sources."""
    own: list[Path] = [path for path in SOURCES.glob("*.ts*") if path.name not in ("quantities.ts", "tools.ts")]
    return set(re.findall(r"\b\w+\b", "\n".join(path.read_text() for path in own)))


@pytest.mark.parametrize("name", SHOWN)
def test_every_field_is_shown_or_left_out(name: str) -> None:
    words = used()
    missing = [
        field
        for field in types()[name]
        if field not in words and field not in LEFT_OUT and f"{field}.{name}" not in LEFT_OUT
    ]
    assert not missing, f"{name}: the page shows none of {missing}"


def test_what_is_left_out_exists() -> None:
    known = types()
    for key in LEFT_OUT:
        field, _, name = key.partition(".")
        assert any(field in fields for of, fields in known.items() if not name or of == name), key


def frozen(html: str) -> list[dict[str, Any]]:
    """The documents of a report."""
    found = re.search(r'id="frozen">([^<]+)<', html)
    assert found
    documents: list[dict[str, Any]] = json.loads(zlib.decompress(base64.b64decode(found[1]), -15))["documents"]
    return documents


def test_a_report_answers_every_moment_of_its_timeline() -> None:
    """Moments with the same tensors share a document, which is that of each of them but for the number of the microbatch."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, pipeline_model_parallel_size=4, global_batch_size=32)
    result = estimate(job)
    held = frozen(page_report(result))
    (lanes,) = (one["answer"] for one in held if one["tool"] == "lanes")
    moments = {
        (one["arguments"]["stage"], index): one["answer"]
        for one in held
        if one["tool"] == "moment"
        for index in (one["arguments"]["moment"], *one["also"])
    }
    asked = {(lane["pp_rank"], index) for lane in lanes["stages"] for index in lane["columns"]["index"]}
    assert moments.keys() == asked
    assert len({id(one) for one in moments.values()}) < len(moments)
    for stage, index in sorted(asked)[::7]:
        own = moment_document(result.stages[stage], index)
        assert own["allocated_bytes"] == moments[stage, index]["allocated_bytes"]
        assert [one["bytes"] for one in own["tensors"]] == [one["bytes"] for one in moments[stage, index]["tensors"]]
