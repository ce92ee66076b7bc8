"""Every figure of a document is a row of `quantities.csv`, and each door shows the rows that are not left out of it, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import pytest

from megatron_memory_estimator import TrainingJob, advise, estimate
from megatron_memory_estimator.estimator import Estimate
from megatron_memory_estimator.planner.advise import Advice
from megatron_memory_estimator.planner.found import Found
from megatron_memory_estimator.planner.planning import plan
from megatron_memory_estimator.rank.rank import PARTS
from megatron_memory_estimator.report.advice import CHANGE, advice_document
from megatron_memory_estimator.report.comparison import COMPARED, Case, records, rows
from megatron_memory_estimator.report.document import ESTIMATE, SHARES, STAGE, TENSOR, VERDICT, explanation
from megatron_memory_estimator.report.plans import COUNTS, LAYOUT, PLAN, found_document, rows_of
from megatron_memory_estimator.report.quantities import Door, Table, Unit, chosen
from megatron_memory_estimator.report.quantities import rows as rows_of_csv
from megatron_memory_estimator.report.stage_table import MERGED, cells
from megatron_memory_estimator.report.summary import advice_summary, estimate_summary, plan_summary


class Answers(NamedTuple):
    """What doors are asked about: DeepSeek-V2-Lite, a search of two layouts, and advice for a run that does not fit."""

    estimate: Estimate
    found: Found
    advice: Advice


@pytest.fixture(scope="module")
def answers() -> Answers:
    job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V2-Lite", 16, ep=8, pp=2, gpu="H100")
    found, _ = plan(
        job, {"tp": "1", "cp": "1", "pp": "2", "ep": "8", "micro_batch_size": "1", "split": "uneven"}, top=2
    )
    return Answers(estimate(job), found, advise(job))


def names(table: Table, door: Door) -> list[str]:
    """The columns of a door: ranges are two, bytes by name as many as there are parts, GiB for agents."""
    found: list[str] = []
    for one in chosen(table, door):
        if one.unit == "bytes by name":
            found += [f"{part}_bytes" for part in (SHARES if one.name == "shares" else PARTS)]
        elif one.unit == "range":
            found += [one.name.replace("_bytes", f"_{end}_bytes") for end in ("low", "high")]
        else:
            found.append(one.column if door == "table" and one.column else one.name)
    in_gib = door == "agent"
    return [name.removesuffix("bytes") + "gib" if in_gib and name.endswith("bytes") else name for name in found]


def heads(table: Table, door: Door) -> list[str]:
    """The labels of a door."""
    return [
        label
        for one in chosen(table, door)
        for label in ([one.label.format(part) for part in PARTS] if one.unit == "bytes by name" else [one.label])
    ]


def test_rows_are_whole() -> None:
    subjects = set(rows_of_csv())
    seen = set[tuple[str, str, str]]()
    for row in (row for each in rows_of_csv().values() for row in each):
        doors = row["at"].split() or list(get_args(Door))
        assert set(doors) <= set(get_args(Door)), row
        assert row["unit"].removesuffix("?") in get_args(Unit) and row["meaning"], row
        assert set(row["fields"].split()) <= subjects and bool(row["fields"]) == row["unit"].startswith("object"), row
        once = {(row["subject"], row["name"], door) for door in doors}
        assert not seen & once, row  # a door has a name once
        seen |= once


def test_the_document_of_an_estimate_has_its_rows_alone(answers: Answers) -> None:
    document = answers.estimate.to_dict()
    assert _unlisted(document, ESTIMATE) == []
    assert all(_unlisted(stage, STAGE) == [] for stage in document["stages"])
    tensors = explanation(answers.estimate, None, "peak")["tensors"]
    assert all(list(one) == names_of(TENSOR) for one in tensors)


def names_of(table: Table) -> list[str]:
    return [one.name for one in chosen(table, "json")]


def _unlisted(document: Mapping[str, Any], table: Table) -> list[str]:
    """Keys of a document, and of the objects in it, that no row has, and rows without a key."""
    wrong = sorted(set(document) ^ set(names_of(table)))
    for one in chosen(table, "json"):
        value = document.get(one.name)
        for each in value if isinstance(value, list) else [value]:
            if one.fields and isinstance(each, Mapping) and one.name not in ("stages",):
                wrong += [f"{one.name}.{name}" for name in _unlisted(each, one.fields)]
    return wrong


def test_the_stages_are_the_same_at_every_door(answers: Answers) -> None:
    found = answers.estimate
    stage_names = names(STAGE, "table")
    verdict_names = [name for name in names(VERDICT, "table") if name not in (*stage_names, "limit_bytes")]
    of_run = {f"run_{name}" for name in verdict_names if name != "gpu"}
    assert set(found.table()[0]) == {*stage_names, *of_run, "gpu", "gpu_memory_bytes"}
    assert [name for name in cells(found.peak_stage) if name not in MERGED] == heads(STAGE, "terminal")
    assert estimate_summary(found)["stage_columns"] == ["stages", "layers", *names(STAGE, "agent")[2:]]
    summed = [row[2:-3] for row in estimate_summary(found)["stages"]]
    peaks = [row[-3] for row in estimate_summary(found)["stages"]]
    assert [sum(parts) for parts in summed] == pytest.approx(peaks, abs=0.03)


def test_what_is_compared_is_the_same_at_every_door(answers: Answers) -> None:
    cases = [Case("one", answers.estimate), Case("two", answers.estimate)]
    assert [row[1] for row in rows(cases)] == heads(COMPARED, "terminal")
    assert list(records(cases)[0]) == ["case", *names(COMPARED, "table"), "refusal"]


def test_plans_are_the_same_at_every_door(answers: Answers) -> None:
    found, shown = answers.found, rows_of(answers.found)
    document = found_document(found, shown, [])
    assert document["plans"] and all(_unlisted(one, PLAN) == [] for one in document["plans"])
    assert set(document["counts"]) == {*names_of(COUNTS), "ruled_out"}
    assert set(found.table()[0]) == {"plan", *names(LAYOUT, "table"), *names(PLAN, "table")}
    html = found.html()
    assert all(f">{label}</th>" in html for label in heads(PLAN, "notebook"))
    assert plan_summary(found, shown, [])["plan_columns"] == names(PLAN, "agent")


def test_changes_are_the_same_at_every_door(answers: Answers) -> None:
    advice = answers.advice
    document = advice_document(advice)
    assert document["advice"] and all(_unlisted(one, CHANGE) == [] for one in document["advice"])
    assert set(advice.table()[0]) == set(names(CHANGE, "table"))
    html = advice._repr_html_()
    assert all(f">{label}</th>" in html for label in heads(CHANGE, "notebook"))
    assert advice_summary(advice)["advice_columns"] == names(CHANGE, "agent")
