"""Documents of the tools beside one another: the same figures everywhere, settings of answers that lead to the figures beside them."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.resolve import habits_for
from megatron_memory_estimator.inputs.setting_names import known_settings
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.report.settings import UNITS
from megatron_memory_estimator.service.answers import TOOLS, answered
from megatron_memory_estimator.service.arguments import arguments
from megatron_memory_estimator.service.searches import EVERY_S

from .helpers import ROOT
from .test_choices import SCRIPT, TEXT, changed

Run = dict[str, Any]
QWEN: Run = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"pp": 4, "global_batch_size": 32}}


def ask(tool: str, run: Run | None = None, **arguments: Any) -> Any:
    """The answer of a tool in full; its error as a word."""
    given = {"detail": "full", **(run or {}), **arguments}
    found = answered({"tool": tool, "arguments": given, "folder": None, "seconds": 60, "hub": False})
    return json.loads(json.dumps(found["answer"])) if "answer" in found else found["error"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    main(list(words))
    return capsys.readouterr().out


# -- what does not depend on a run ------------------------------------------------------------------------------------


def test_every_tool_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    of_mbridge = ("mbridge", "megatron_config")  # docs/reference/server.md has these
    assert [
        tool for tool in TOOLS if tool not in of_mbridge and not re.search(rf"`{tool}\b|megatron-memory {tool} ", page)
    ] == []


def keys_of(document: Any, *, depth: int = 2) -> set[str]:
    """Names of keys, of objects in lists too."""
    if isinstance(document, list):
        return set().union(*(keys_of(one, depth=depth) for one in document[:2])) if document else set()
    if not isinstance(document, dict) or not depth:
        return set()
    return set(document).union(*(keys_of(value, depth=depth - 1) for value in document.values()))


def test_every_key_of_the_documents_of_the_page_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    words = set(re.findall(r"[a-z0-9_]+", page))
    documents = {
        "lanes": ask("lanes", QWEN), "moment": ask("moment", QWEN, moment=3), "settings": ask("settings"), "gpus": ask("gpus"),
        "launch": {**ask("launch", QWEN), "without_argument": {}}, "export": ask("export", QWEN, what="stages"),
        "choices": [ask("choices", QWEN), *ask("choices", QWEN)["choices"].values()],
        "compare": {**ask("compare", cases=[QWEN, QWEN]), "cases": [], "figures": {}, "differs": []},
    }  # fmt: skip
    documents["choices"][0].pop("choices")
    for name, document in documents.items():
        assert keys_of(document) - words == set(), name


def test_the_catalogue_of_settings_is_whole_and_true() -> None:
    found = ask("settings")
    by_name = {one["name"]: one for one in found["settings"]}
    assert len(by_name) == len(found["settings"]) and set(known_settings()) <= set(by_name)
    assert all(one["help"] and one["topic"] in found["topics"] for one in found["settings"])
    assert {name for names in UNITS.values() for name in names} <= set(by_name)
    assert by_name["tensor_model_parallel_size"]["short"] == "tp" and by_name["world_size"]["short"] == "num_gpus"
    assert by_name["seq_length"]["unit"] == "tokens" and by_name["fp8"]["choices"] == ["hybrid", "e4m3"]
    assert by_name["gpu"]["choices"] == [gpu["name"] for gpu in ask("gpus")]
    assert {one["kind"] for one in found["settings"]} <= {
        "bool", "int", "float", "str", "list", "ints", "words", "variants", "object", "any",
    }  # fmt: skip


def test_defaults_of_the_catalogue_are_those_of_a_run() -> None:
    """Giving a default changes nothing, where neither a habit of recipes nor the model says otherwise."""
    bare, checked = TrainingJob.from_hf("Qwen/Qwen3-8B", 1), 0
    for one in ask("settings")["settings"]:
        part = known_settings().get(one["name"])
        if part is None or part is Model or one["default"] is None or one["name"] in habits_for({}, {}):
            continue
        default = tuple(one["default"]) if isinstance(one["default"], list) else one["default"]
        given: dict[str, Any] = {one["name"]: default}
        job = TrainingJob.from_hf("Qwen/Qwen3-8B", 1, **given)
        assert (job.layout, job.training, job.env, job.rollout) == (
            bare.layout,
            bare.training,
            bare.env,
            bare.rollout,
        ), given
        checked += 1
    assert checked > 80


def test_gpus_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("gpus") == json.loads(printed(capsys, "gpus", "--json"))
    assert [one["name"] for one in ask("gpus", gpu="h200")] == ["H200-141GB", "GH200-96GB", "GH200-144GB"]
    assert 'no GPU has "X1" in its name' in ask("gpus", gpu="X1") and "must be a word" in ask("gpus", gpu=3)


ODD: list[Any] = [
    True, 3, -1, 10**30, 1.5, float("nan"), "", "x", "\x00", [], [1], ["x"], [[]], {}, {"a": 1}, {"a": {"b": [None]}}, {1: 2}, [{}, {}],
]  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_odd_arguments_get_one_sentence(tool: str) -> None:
    base = {"model": "Qwen/Qwen3-0.6B", "num_gpus": 2, "settings": {"pp": 2}, "moment": 1, "what": "stages", "names": ["tp"],
            "axes": dict.fromkeys(("tp", "cp", "pp", "micro_batch_size"), "1")}  # fmt: skip
    known = arguments()[tool]
    run = {name: value for name, value in base.items() if name in known}
    sentences = 0
    for name in known:
        for odd in ODD:
            found = answered(
                {"tool": tool, "arguments": {**run, name: odd}, "folder": None, "seconds": 60, "hub": False}
            )
            assert set(found) in ({"answer"}, {"error"})
            if "error" in found:
                sentences += 1
                assert found["error"] and len(found["error"]) <= 500 and "\n" not in found["error"]
    assert sentences >= 10 * len(known)
    for bad in (None, 3, [run], "x"):
        assert "must be an object" in answered({"tool": tool, "arguments": bad, "folder": None, "seconds": 60})["error"]
    assert 'unknown argument "details"' in ask(tool, {**run, "details": "full"})


# -- one run ----------------------------------------------------------------------------------------------------------

WORDS = ["Qwen/Qwen3-8B", "--num-gpus", "8", "--pp", "4", "--global-batch-size", "32"]


def test_the_timeline_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("timeline", QWEN, stage=1) == json.loads(printed(capsys, "timeline", *WORDS, "--stage", "1", "--json"))
    assert ask("timeline", QWEN)["pp_rank"] == 0
    assert "must be a whole number" in ask("timeline", QWEN, stage="1")
    assert "must be a whole number" in ask("explain", QWEN, stage=True)


def test_the_verdict_is_the_sentence_that_the_command_line_prints_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    sentence = ask("estimate", QWEN)["verdict"]["sentence"]
    assert sentence.startswith("Trains on 8 H100-80GB, at least ") and sentence in printed(capsys, "estimate", *WORDS)


def test_open_questions_of_a_text_are_named_in_one_sentence() -> None:
    script = "torchrun --nproc-per-node 8 --nnodes $NODES pretrain_gpt.py --num-layers $L --hidden-size 64\n"
    found = ask("estimate", text=script)
    assert isinstance(found, str) and "\n" not in found and "$NODES" in found


@pytest.mark.parametrize("run", [QWEN, {"text": SCRIPT}, {"text": TEXT}, {"model": "deepseek-ai/DeepSeek-V3", "num_gpus": 256,
                                 "settings": {"pp": 16, "ep": 8, "fp8": "e4m3", "fp8_recipe": "blockwise"}}])  # fmt: skip
def test_launch_arguments_are_read_back_as_the_same_run(run: Run) -> None:
    found = ask("launch", run)
    words = " ".join(line.removesuffix("\\") for line in found["megatron_lm"].split("\n"))
    now = ask("estimate", run)
    beside = {**found["without_argument"], "gpu": now["training"]["gpu"]}
    script = f"#!/bin/bash\ntorchrun --nproc-per-node 8 pretrain_gpt.py {words}\n"
    gpus = now["layout"]["world_size"]
    for text in (script, found["yaml"]):
        again = ask("estimate", text=text, num_gpus=gpus, settings=beside)
        assert again["peak"]["allocated_bytes"] == now["peak"]["allocated_bytes"]
    assert (
        "model.pipeline_model_parallel_size=" in found["bridge"] or now["layout"]["pipeline_model_parallel_size"] == 1
    )


def test_a_refused_run_has_no_launch_arguments() -> None:
    run = {**QWEN, "settings": {"tp": 3}}
    assert ask("launch", run) == ask("estimate", run)


def test_tables_are_exported_as_files() -> None:
    found = ask("estimate", QWEN)

    def rows(what: str, **more: Any) -> tuple[str, list[dict[str, str]]]:
        one = ask("export", {**QWEN, **more}, what=what)
        return one["name"], list(csv.DictReader(io.StringIO(one["text"])))

    name, stages = rows("stages")
    assert name == "Qwen3-8B-stages.csv"
    assert [int(row["peak_allocated_bytes"]) for row in stages] == [
        one["peak_allocated_bytes"] for one in found["stages"]
    ]
    name, moments = rows("moments", stage=2)
    assert name == "Qwen3-8B-stage-2-moments.csv" and len(moments) == len(ask("timeline", QWEN, stage=2)["moments"])
    name, tensors = rows("tensors", stage=0)
    assert name == "Qwen3-8B-stage-0-peak-tensors.csv"
    assert sum(int(row["bytes"]) for row in tensors) == found["stages"][0]["peak_allocated_bytes"]
    name, tensors = rows("tensors", stage=0, moment=3)
    assert name == "Qwen3-8B-stage-0-moment-3-tensors.csv"
    assert sum(int(row["bytes"]) for row in tensors) == ask("moment", QWEN, stage=0, moment=3)["allocated_bytes"]
    name, plans = rows("plans", axes={"tp": "1,2", "cp": "1", "recompute": "none"})
    assert name == "Qwen3-8B-plans.csv" and plans and plans[0]["plan"] == "1"
    name, advice = rows("advice")
    assert name == "Qwen3-8B-advice.csv" and advice[0]["change"] == ""
    cases = ask("export", what="cases", cases=[QWEN, {**QWEN, "settings": {"tp": 2}}])
    assert cases["name"] == "compared.csv" and cases["text"].count("\n") == 3
    table = ask("export", QWEN, what="stages", format="markdown")
    assert table["name"] == "Qwen3-8B-stages.md" and table["text"].startswith("| pp_rank |")
    snapshot = ask("export", QWEN, what="snapshot", stage=0)
    assert (snapshot["name"], snapshot["encoding"]) == ("Qwen3-8B-stage-0-snapshot.pickle", "base64")
    told = ask("snapshot", snapshot=snapshot["text"])
    assert told["requested_bytes"] == found["stages"][0]["peak_allocated_bytes"]
    assert "is not one of stages, moments" in ask("export", QWEN, what="bars")
    assert "is not one of csv, markdown" in ask("export", QWEN, what="stages", format="xls")


# -- settings of answers ----------------------------------------------------------------------------------------------

ADVISED: list[Run] = [
    {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2, "seq_length": 32768}},
    {"model": "meta-llama/Llama-3.1-70B", "num_gpus": 64, "settings": {"tp": 8, "gpu": "H100"}},
    {"model": "meta-llama/Llama-3.1-70B", "num_gpus": 64, "settings": {
        "tensor_model_parallel_size": 4, "pp": 4, "global_batch_size": 128, "recompute_granularity": "selective",
        "recompute_modules": ["core_attn"]}},
    {"model": "deepseek-ai/DeepSeek-V3", "num_gpus": 1024, "settings": {"pp": 16, "ep": 64, "tp": 2, "gpu": "B200"}},
    {"model": "Qwen/Qwen3-30B-A3B", "settings": {
        "num_gpus": 32, "pp": 4, "ep": 8, "vpp": 3, "gpu": "H200", "recompute_granularity": "full"}},
    {"model": "meta-llama/Llama-3.1-8B", "num_gpus": 1, "settings": {}},
    {"text": TEXT, "settings": {}}, {"text": SCRIPT, "settings": {}},
]  # fmt: skip


@pytest.mark.parametrize("run", ADVISED, ids=lambda run: str(run.get("model", "text"))[-12:])
def test_advice_is_applied_to_the_byte(run: Run) -> None:
    found = ask("advise", run)
    assert found["advice"]
    for one in found["advice"]:
        again = ask("estimate", changed(run, one))
        assert again["peak"]["allocated_bytes"] == one["peak_allocated_bytes"], one["changes"]
        assert again["verdict"]["device_bytes"] == one["device_bytes"]
        assert again["verdict"]["verdict"] == one["verdict"]


PLANNED: list[Run] = [
    {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"recompute_granularity": "full"}},
    {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 16, "settings": {"gpu": "H200", "cp": 1, "micro_batch_size": "1,2"}},
    {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 16, "settings": {}, "fewest_gpus": True, "axes": {"num_gpus": "8,16,32", "tp": "1"}},
    {"text": TEXT, "axes": {"num_gpus": "4", "cp": "1", "recompute": "none,full"}, "top": 8},
]  # fmt: skip


@pytest.mark.parametrize("run", PLANNED, ids=["dense", "experts", "fewest", "text"])
def test_the_settings_of_a_plan_describe_it_to_the_byte(run: Run) -> None:
    search = {name: run[name] for name in ("fewest_gpus", "axes", "top") if name in run}
    asked = {name: value for name, value in run.items() if name not in search}
    if "num_gpus" in (search.get("axes") or {}):
        asked.pop("num_gpus", None)
    found = ask("plan", asked, **search)
    assert found["plans"]
    for one in found["plans"]:
        again = ask("estimate", changed(asked, one))
        assert again["peak"]["allocated_bytes"] == one["peak_allocated_bytes"]
        assert again["verdict"]["device_bytes"] == one["device_bytes"]
        assert again["layout"]["world_size"] == one["layout"]["num_gpus"] == one["num_gpus"]
        assert not set(one["settings"]) & {"num_gpus", "world_size"}


def test_a_plan_of_the_command_line_has_settings_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "Qwen/Qwen3-8B",
        "--num-gpus",
        "8",
        "--tp",
        "1,2",
        "--cp",
        "1",
        "--recompute",
        "none",
        "--top",
        "2",
        "--json",
    ]
    plans = json.loads(printed(capsys, "plan", *words))["plans"]
    for one in plans:
        again = ask("estimate", model="Qwen/Qwen3-8B", settings=one["settings"])
        assert again["peak"]["allocated_bytes"] == one["peak_allocated_bytes"]


# -- plans that tell how far they are ---------------------------------------------------------------------------------


def test_a_plan_tells_how_far_it_is() -> None:
    told: list[dict[str, Any]] = []
    run = {"model": "Qwen/Qwen3-8B", "num_gpus": 64, "settings": {"gpu": "H200"}, "detail": "full"}
    start = time.monotonic()
    found = answered({"tool": "plan", "arguments": run, "folder": None, "seconds": 60}, told.append)["answer"]
    took = time.monotonic() - start
    assert 1 <= len(told) <= took / EVERY_S + 2
    shares = [one["share"] for one in told]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] == 1
    assert told[-1]["legal"] == found["counts"]["legal"] and told[-1]["evaluated"] == found["counts"]["evaluated"]
    assert {tuple(one) for one in told} == {("share", "legal", "evaluated", "best")}
    speeds = [one["best"]["tokens_per_s_gpu"] for one in told if one["best"]]
    assert speeds and speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(max(one["tokens_per_s_gpu"] for one in found["plans"]))


# -- compare ----------------------------------------------------------------------------------------------------------


def test_cases_are_requests_of_their_own() -> None:
    cases = [
        {**QWEN, "label": "dense"}, {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 32, "settings": {"ep": 8, "pp": 4}},
        {"text": TEXT, "label": "pasted"}, {**QWEN, "settings": {"tp": 3}, "label": "refused"},
    ]  # fmt: skip
    found = ask("compare", cases=cases)
    assert [one["label"] for one in found["cases"]] == ["dense", "Qwen/Qwen3-30B-A3B", "pasted", "refused"]
    for case, one in zip(cases[:3], found["cases"], strict=False):
        run = {name: value for name, value in case.items() if name != "label"}
        assert one["estimate"] == ask("estimate", run)
    assert found["cases"][3] == {"label": "refused", "refusal": ask("estimate", {**QWEN, "settings": {"tp": 3}})}
    assert [values["values"][3] for values in found["settings"]] == [None] * len(found["settings"])
    short = ask("compare", cases=cases, detail="summary")
    assert [row[0] for row in short["cases"]] == [one["label"] for one in found["cases"]]


def test_differences_add_up_to_the_peaks() -> None:
    cases = [QWEN, {**QWEN, "settings": {"pp": 2, "tp": 2, "global_batch_size": 32, "recompute_granularity": "full"}},
             {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 32, "settings": {"ep": 8, "pp": 4}}]  # fmt: skip
    found = ask("compare", cases=cases)
    for place, case in enumerate(found["cases"]):
        peak = case["estimate"]["peak"]["allocated_bytes"]
        assert sum(one["bytes"][place] for one in found["parts"]) == peak
        tensors = sum(one["bytes"][place] for one in found["tensors"])
        assert tensors + found["other_tensors"]["bytes"][place] == peak
    spreads = [one["difference"] for one in found["tensors"]]
    assert spreads == sorted(spreads, reverse=True)
    assert all(one["difference"] == max(one["bytes"]) - min(one["bytes"]) for one in found["tensors"])
    assert not any(re.search(r"layers\.\d|chunk \d", one["name"]) for one in found["tensors"])
    assert len(found["tensors"]) <= 100
    settings = {one["name"]: one["values"] for one in found["settings"]}
    assert settings["pipeline_model_parallel_size"] == [4, 2, 4]
    assert settings["recompute_granularity"] == [None, "full", None] and "seq_length" not in settings
    same = ask("compare", cases=[QWEN, {**QWEN, "label": "again"}])
    assert same["settings"] == [] and {one["difference"] for one in same["tensors"]} == {0}


def test_cases_that_make_no_sense_are_refused() -> None:
    assert "2 to 20 cases, not 1" in ask("compare", cases=[QWEN])
    assert "2 to 20 cases, not 21" in ask("compare", cases=[QWEN] * 21)
    assert "must be a list of objects" in ask("compare", cases=["Qwen/Qwen3-8B"] * 2)
    assert "'gpus' is not one of label, model" in ask("compare", cases=[QWEN, {**QWEN, "gpus": 3}])
    assert "case 2: settings=3 must be an object" in ask("compare", cases=[QWEN, {**QWEN, "settings": 3}])
    assert "goes without cases" in ask("compare", cases=[QWEN, QWEN], models=["Qwen/Qwen3-8B"])
    refused = {**QWEN, "settings": {"tp": 3}}
    assert ask("compare", cases=[refused, refused]) == ask("estimate", refused)
    both = ask("compare", models=["Qwen/Qwen3-8B"], layouts=[{"tp": 1}, {"tp": 2}], num_gpus=8)
    assert both["figures"]["tp"] == ["1", "2"] and both["parts"]
    peaks = [
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=tp)).peak_stage for tp in (1, 2)
    ]
    assert [one["estimate"]["peak"]["allocated_bytes"] for one in both["cases"]] == [
        one.peak_allocated_bytes for one in peaks
    ]
