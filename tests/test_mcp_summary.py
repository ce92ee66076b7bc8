"""Short answers of the MCP server: small enough, true, and enough to go on with."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.report.summary import MOST_TOKENS, compact, shortened, tokens
from megatron_memory_estimator.service.answers import answered
from megatron_memory_estimator.service.schema import TOOLS

from .helpers import ROOT

LARGE = [
    "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct", "inclusionAI/Ling-1T", "meta-llama/Llama-3.1-405B",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct", "zai-org/GLM-4.5", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
]  # fmt: skip
GIB = 2**30


def ask(tool: str, **arguments: Any) -> Any:
    """The answer of a tool; its error as a word."""
    found = answered({"tool": tool, "arguments": arguments, "folder": None, "seconds": 60})
    return found["answer"] if "answer" in found else found["error"]


def rows_of(found: dict[str, Any], columns: str, rows: str) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    return [dict(zip(found[columns], row, strict=True)) for row in found[rows]]


@pytest.mark.parametrize("model", LARGE)
def test_sixteen_different_stages_are_small_enough(model: str) -> None:
    run: dict[str, Any] = {"model": model, "settings": {"pp": 16, "recompute_granularity": "selective"}}
    found = ask("estimate", **run)
    assert len(found["stages"]) == 16 and "left_out" not in found
    for answer in (found, ask("explain", **run), ask("advise", **run)):
        assert answer["answer"] and tokens(compact(answer)) <= MOST_TOKENS


def test_an_estimate_says_what_the_document_says() -> None:
    run = {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": 32, "settings": {"pp": 4, "ep": 8, "gpu": "H200"}}
    short, full = ask("estimate", **run), ask("estimate", **run, detail="full")
    sentence, _ = full["verdict"].pop("sentence"), full["verdict"].pop("sentences")
    assert short["verdict"] == full["verdict"] and short["verdict"]["gpu"] == "H200-141GB"
    assert short["answer"].startswith(sentence)
    assert short["answer"].startswith("Trains on 32 H200-141GB, at least ") and " GiB left" in short["answer"]
    stages = rows_of(short, "stage_columns", "stages")
    assert [one["peak_allocated_gib"] for one in stages] == [
        round(one["peak_allocated_bytes"] / GIB, 2) for one in full["stages"]
    ]
    for one in stages:
        parts = sum(one[f"{part}_gib"] for part in ("weights", "gradients", "optimizer", "activations", "other"))
        assert parts == pytest.approx(one["peak_allocated_gib"], abs=0.03)
    assert short["peak"]["when"] == full["stages"][short["peak"]["stage"]]["peak_event"]
    gpus = {gpu.split("-")[0] for names in short["other_gpus"].values() for gpu in names.split(", ")}
    assert "H200" not in gpus and {"H100", "B200", "RTX"} <= gpus
    assert short["assumptions"] == full["assumptions"] and short.get("warnings", []) == full["warnings"]


def test_equal_neighbours_are_one_row_and_the_fullest_stay() -> None:
    run = {"model": "meta-llama/Llama-3.1-405B", "settings": {"pp": 42, "global_batch_size": 1}}
    found = ask("estimate", **run)
    assert any("-" in row[0] for row in found["stages"]) and len(found["stages"]) <= 16
    many = ask("estimate", model="meta-llama/Llama-3.1-405B", settings={"pp": 42})
    assert len(many["stages"]) == 16 and many["left_out"]["stages"] > 0 and tokens(compact(many)) <= MOST_TOKENS
    assert str(many["verdict"]["pp_rank"]) in [row[0] for row in many["stages"]]


def test_explained_parts_and_tensors_add_up() -> None:
    run = {
        "model": "deepseek-ai/DeepSeek-V3",
        "num_gpus": 1024,
        "settings": {"tp": 2, "pp": 16, "ep": 16},
        "at": "steady",
    }
    found, full = ask("explain", **run), ask("explain", **run, detail="full")
    tensors = rows_of(found, "tensor_columns", "tensors")
    assert len(tensors) <= 15 and len(tensors) + found["other_tensors"]["count"] == len(full["tensors"])
    total = full["allocated_bytes"] / GIB
    assert sum(one["gib"] for one in tensors) + found["other_tensors"]["gib"] == pytest.approx(total, abs=0.1)
    assert sum(found["parts_gib"].values()) == pytest.approx(total, abs=0.05)
    assert [one["gib"] for one in tensors] == sorted((one["gib"] for one in tensors), reverse=True)


@pytest.mark.parametrize(
    ("model", "gpus", "settings"),
    [
        ("Qwen/Qwen3-8B", 8, {"recompute_granularity": "full"}),
        ("Qwen/Qwen3-30B-A3B", 16, {"gpu": "H200", "cp": 1, "micro_batch_size": "1,2"}),
    ],
)
def test_the_settings_of_a_plan_describe_it(model: str, gpus: int, settings: dict[str, Any]) -> None:
    found = ask("plan", model=model, num_gpus=gpus, settings=settings, top=3)
    assert tokens(compact(found)) <= MOST_TOKENS and found["launch_of_first"].startswith("--bf16 ")
    for one in rows_of(found, "plan_columns", "plans"):
        again = ask("estimate", model=model, settings={**settings, **found["settings_of_all"], **one["settings"]})
        assert again["peak"]["allocated_gib"] == one["peak_allocated_gib"]
        assert again["verdict"]["verdict"] == one["verdict"] == "fits"
        assert round(again["verdict"]["head_room_bytes"]["low"] / GIB, 2) == one["head_room_low_gib"]


def test_a_plan_needs_a_number_of_gpus() -> None:
    needed = "num_gpus is needed, or fewest_gpus=true to find how many GPUs hold the model"
    assert ask("plan", model="deepseek-ai/DeepSeek-V3") == needed
    assert ask("plan", model="deepseek-ai/DeepSeek-V3", settings={"tp": 8}) == needed
    run = "model: {name: Qwen/Qwen3-0.6B}\nparallelism: {num_gpus: 8}\n"
    found = ask("plan", text=run, axes={"tp": "1,2", "pp": "1", "cp": "1"})
    assert "num_gpus as the run has it: 8" in found["assumptions"] and found["plans"]
    fewest = ask("plan", model="Qwen/Qwen3-8B", fewest_gpus=True, axes={"tp": "1", "cp": "1"})
    assert fewest["answer"].startswith("4 GPUs train and resume it")
    advised = ask("advise", model="deepseek-ai/DeepSeek-V3")
    assert "num_gpus not given: 1, the smallest legal count" in advised["assumptions"]


def test_settings_that_are_axes_fix_them() -> None:
    found = ask("plan", model="Qwen/Qwen3-8B", num_gpus=8, settings={"tp": 4, "pp": 1, "cp": 1}, top=50)
    assert {
        one["settings"].get("tp", found["settings_of_all"].get("tp")) for one in rows_of(found, "plan_columns", "plans")
    } == {4}
    both = ask("plan", model="Qwen/Qwen3-8B", num_gpus=8, settings={"tp": 4}, axes={"tp": "1,2"})
    assert "is given twice" in both
    split = ask("plan", model="Qwen/Qwen3-8B", num_gpus=8, settings={"num_layers_in_first_pipeline_stage": 4})
    assert "is decided by the search" in split


def test_no_plan_says_why() -> None:
    found = ask(
        "plan", model="deepseek-ai/DeepSeek-V3", num_gpus=8, axes={"micro_batch_size": "1", "recompute": "full"}
    )
    assert "81 GPUs could just hold them" in found["answer"] and "fewest_gpus" in found["next"] and "plans" not in found


def test_advice_can_be_followed() -> None:
    run = {"tp": 2, "seq_length": 32768}
    found = ask("advise", model="Qwen/Qwen3-8B", num_gpus=8, settings=run)
    first = rows_of(found, "advice_columns", "advice")[0]
    assert found["verdict"]["verdict"] != "fits" and first["verdict"] == "fits"
    assert sum(note.startswith("global_batch_size not given") for note in found["assumptions"]) == 1
    again = ask("estimate", model="Qwen/Qwen3-8B", num_gpus=8, settings={**run, **first["settings"]})
    assert again["verdict"]["verdict"] == "fits"


def test_compared_cases_have_their_verdicts() -> None:
    layouts = [{"tp": tp, "pp": 16, "num_gpus": 2048, "ep": ep} for tp in (1, 2, 4, 8, 16) for ep in (8, 16)]
    found = ask("compare", models=LARGE[:2], layouts=layouts, settings={"gpu": "H200"})
    assert len(found["cases"]) == 20 and tokens(compact(found)) <= MOST_TOKENS and found["left_out"]
    assert all(one["verdict"].startswith("H200-141GB: ") for one in rows_of(found, "case_columns", "cases"))
    two = ask("compare", models=["Qwen/Qwen3-8B"], layouts=[{"tp": 1}, {"tp": 4}], num_gpus=8)
    assert two["differs"]["tp"] == ["1", "4"] and "sequence" not in two["differs"] and two["same"] > 10


def test_models_are_filtered_by_a_word() -> None:
    everything = ask("models")
    assert len(everything["models"]) == 30 and everything["other_models"] > 30
    found = ask("models", model="qwen3-")
    assert found["models"] and all("qwen3-" in name.lower() for name, *_ in found["models"])
    assert ["Qwen/Qwen3-8B", 8190735360, 8190735360] in found["models"]
    assert ask("models", model="Qwen/Qwen3-8B")["num_parameters"]["total"] == 8190735360


SCRIPT = """#!/bin/bash
# usage: run.sh TP NODES
torchrun --nproc-per-node 8 --nnodes $2 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\
  --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 1000 --tokenizer-type NullTokenizer \\
  --bf16 --tensor-model-parallel-size $1 $MORE
"""
ARGUMENTS = {
    "num-layers": 4, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "max-position-embeddings": 64,
    "micro-batch-size": 1, "vocab-size": 1000, "tokenizer-type": "NullTokenizer", "bf16": True, "tensor-model-parallel-size": 2,
}  # fmt: skip


def test_a_script_as_text_with_its_words() -> None:
    words = {"1": "2", "2": "4", "MORE": "--pipeline-model-parallel-size 2"}
    found = ask("estimate", text=SCRIPT, settings={"set_variables": words, "gpu": "A100-40GB"})
    assert found["layout"] == {"num_gpus": 32, "tp": 2, "pp": 2, "vpp": 1, "cp": 1, "dp": 8}
    assert found["verdict"]["gpu"] == "A100-40GB"
    assert "$1, which has none" in ask("estimate", text=SCRIPT)


def test_yaml_as_text() -> None:
    run = "model: {name: Qwen/Qwen3-0.6B}\nparallelism: {num_gpus: 8, tp: 2}\ntraining: {seq_length: 2048}\n"
    found = ask("estimate", text=run)
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, tensor_model_parallel_size=2, seq_length=2048)
    expected = estimate(job)
    assert found["peak"]["allocated_gib"] == round(expected.peak_stage.peak_allocated_bytes / GIB, 2)
    arguments = "MODEL_ARGS:\n" + "".join(f"  --{name}: {json.dumps(value)}\n" for name, value in ARGUMENTS.items())
    assert ask("estimate", text=arguments, num_gpus=4)["layout"]["dp"] == 2


def test_unknown_words_are_refused_with_the_nearest() -> None:
    assert 'Did you mean "recompute_granularity"?' in ask(
        "estimate", model="Qwen/Qwen3-8B", settings={"recompute_granularty": "full"}
    )
    assert "is not one of" in ask("estimate", model="Qwen/Qwen3-8B", settings={"recompute_granularity": "ful"})
    assert 'Did you mean "H200"?' in ask("estimate", model="Qwen/Qwen3-8B", settings={"gpu": "H2000"})
    assert ask("estimate", model="Qwen/Qwen3-8B", detail="ful") == "detail='ful' is not one of summary, full"


def test_what_is_too_long_is_cut_and_counted() -> None:
    document = {"answer": "fits", "verdict": {"word": "x" * 400}, "rows": [["y" * 90]] * 200, "notes": ["z" * 10] * 20}
    found = shortened(document)
    assert tokens(compact(found)) <= MOST_TOKENS
    assert found["verdict"] == document["verdict"] and len(found["rows"]) + found["left_out"]["rows"] == 200
    assert shortened({"rows": [1, 2]}) == {"rows": [1, 2]}
    long = shortened({"answer": "fits", "launch": "w " * 50_000})
    assert long == {"answer": "fits", "left_out": {"launch": 1}}


def test_the_page_asks_for_the_whole_of_what_has_a_summary() -> None:
    asked = re.search(
        r"SHORTENED: ReadonlySet<string> = new Set\(\[(.+?)\]\)", (ROOT / "web" / "src" / "tools.ts").read_text()
    )
    assert asked is not None
    assert set(re.findall(r'"(\w+)"', asked[1])) == {name for name, tool in TOOLS.items() if tool.summary}
