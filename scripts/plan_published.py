"""Published layouts of the newest releases beside the planner's choices: writes tests/facts/published_plans.jsonl.

For each run of the newest performance tables and each verified card: is its layout legal, does it fit, and how far is its predicted rate
from that of the first choice for the same model, GPUs, precision, batch and features; and from that of the model by its name, with the
features of recipes of other models. Takes two or three minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.planner.base import base_job
from megatron_memory_estimator.planner.found import Plan
from megatron_memory_estimator.planner.search import search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.choices import PRECISIONS, precision_of
from megatron_memory_estimator.planner.space.features import published, sets_of_recipes
from megatron_memory_estimator.planner.space.recompute import own_recompute
from megatron_memory_estimator.report.plan_words import layout_text
from megatron_memory_estimator.report.plans import WORDS, Row
from megatron_memory_estimator.throughput import throughput

FACTS = Path(__file__).resolve().parent.parent / "tests" / "facts"
NEWEST = ("doc-26-08", "doc-26-06", "card-")
OLDER = "doc-26-06-"
HUB = {
    "deepseek_v3": "deepseek-ai/DeepSeek-V3", "gpt_oss_120b": "openai/gpt-oss-120b", "gpt_oss_20b": "openai/gpt-oss-20b",
    "kimi_k2": "moonshotai/Kimi-K2-Instruct", "llama31_405b": "meta-llama/Llama-3.1-405B", "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "moonlight_16b": "moonshotai/Moonlight-16B-A3B", "nemotron_3_5_lightning": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron_3_nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron_3_super": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "qwen3_235b_a22b": "Qwen/Qwen3-235B-A22B", "qwen3_30b_a3b": "Qwen/Qwen3-30B-A3B", "qwen3_8b": "Qwen/Qwen3-8B",
}  # fmt: skip
"""The Hub ids of the records' models. Lightning's layers are those of Nano."""
FAR = 0.1
"""A distance to the first choice from which on it is explained."""


def records() -> list[dict[str, Any]]:
    """The records of the newest releases: of a run that two releases print, the newer one."""
    lines = (FACTS / "throughput.jsonl").read_text().splitlines()
    found = [one for one in map(json.loads, lines) if one["id"].startswith(NEWEST)]
    newest: dict[str, dict[str, Any]] = {}
    for one in sorted(found, key=lambda one: one["id"].startswith(OLDER)):
        newest.setdefault(_run(one["id"]), one)
    return [one for one in found if newest[_run(one["id"])] is one]


def _run(name: str) -> str:
    """The name of a row of the tables without its release."""
    return name.removeprefix(NEWEST[0]).removeprefix(OLDER).removeprefix("-").removeprefix("01-")


def compared(one: dict[str, Any]) -> dict[str, Any]:
    """A published layout beside the planner's choices. Expandable segments are those of all these recipes."""
    job = TrainingJob.from_bridge(
        one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17", phases="training",
        expandable_segments=True,
    )  # fmt: skip
    theirs = estimate(job)  # raises LayoutError for an illegal layout
    time = throughput(theirs)
    base, _ = base_job(job, (one["num_gpus"],), job.training.global_batch_size)
    found = search(base, Space(), best=1)
    best = Row(found.plans[0])
    gap = 1 - time.tokens_per_s_gpu / best.time.tokens_per_s_gpu
    saved = {name: (value - best.time.parts.get(name, 0.0)) / time.step for name, value in time.parts.items()}
    return {
        "id": one["id"],
        "verdict": theirs.verdict().word,
        "theirs": round(time.tokens_per_s_gpu),
        "best": round(best.time.tokens_per_s_gpu),
        "gap": round(gap, 4),
        **by_name(one, job, time.tokens_per_s_gpu),
        "layout": layout_text(best.plan).split(", fp8")[0].split(", CUDA")[0].split(", all-to-all")[0],
        "why": "; ".join(_why(gap, theirs.verdict().word, job, best.plan, saved)),
    }


def by_name(one: dict[str, Any], job: TrainingJob, theirs: float) -> dict[str, Any]:
    """The first choice for the model by its name, with features that recipes of other models have; empty for fine-tuning."""
    if job.training.peft != "none" or "-sft-" in one["id"]:
        return {}
    t, family = job.training, one["family"]
    given = {name: value for name, value in PRECISIONS[precision_of(t)].items() if value}
    named = TrainingJob.from_hf(HUB[family], one["num_gpus"], gpu=one["gpu"], seq_length=t.seq_length, **given)
    others = [row for row in published() if set(row.models) - {family}]
    sets = dict.fromkeys("+".join(names) for names in sets_of_recipes(named, others))
    found, _ = plan(named, {"features": ",".join(sets)}, global_batch_size=t.global_batch_size, top=1)
    if not found.plans:
        return {"named": 0, "named_gap": 1.0}
    best = found.plans[0]
    return {
        "named": round(best.tokens_per_s_gpu),
        "named_gap": round(1 - best.tokens_per_s_gpu / theirs, 4),
        "named_layout": f"{best.degrees}, micro batch {best.job.training.micro_batch_size}, recompute {best.recompute}, "
        + "+".join(best.features),
    }


def _why(gap: float, verdict: str, job: TrainingJob, best: Plan, saved: dict[str, float]) -> Iterator[str]:
    """Why a published layout is far from the first choice, and in what they differ."""
    if abs(gap) <= FAR:
        return
    if gap < 0 and verdict != "fits":
        yield f"the published layout {'is tight' if verdict == 'tight' else verdict}; a first choice must surely fit"
    else:
        name = (max if gap > 0 else min)(saved, key=saved.__getitem__)
        yield f"{WORDS.get(name, name)}: {saved[name]:+.0%} of the published step"
    theirs = Plan(job, own_recompute(job.training), best.precision, 0.0, {}, 0.0, 0, best.needed)
    words = [
        f"{name} {value}"
        for name, value, other in zip(*_details(theirs), _details(best)[1], strict=True)
        if value != other
    ]
    yield f"it has {', '.join(words)}" if words else "the same layout with other details"


def _details(plan: Plan) -> tuple[list[str], list[Any]]:
    layout, t = plan.job.layout, plan.job.training
    found = {
        "tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "vpp": plan.virtual, "ep": layout.ep, "micro batch": t.micro_batch_size,
        "recompute": plan.recompute,
    }  # fmt: skip
    return list(found), list(found.values())


if __name__ == "__main__":
    rows = []
    for number, one in enumerate(records(), 1):
        print(f"{number} {one['id']}", file=sys.stderr)
        rows.append(json.dumps(compared(one)))
    (FACTS / "published_plans.jsonl").write_text("\n".join(rows) + "\n")
