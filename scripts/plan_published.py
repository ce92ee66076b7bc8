"""Published layouts of the newest releases beside the planner's first choice: writes tests/facts/published_plans.jsonl.

For each run of the newest performance table and each verified card: is its layout legal, does it fit, and how far is its predicted
rate from that of the best layout that the search finds for the same model, GPUs, precision, batch and features. Takes a minute or two.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.planner.base import base_job
from megatron_memory_estimator.planner.search import search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.report.plans import WORDS, Row, layout_text, split_text
from megatron_memory_estimator.throughput import throughput

FACTS = Path(__file__).resolve().parent.parent / "tests" / "facts"
NEWEST = ("doc-26-08", "card-")


def published() -> list[dict[str, Any]]:
    """The records of the newest releases."""
    lines = (FACTS / "throughput.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["primary"] and one["id"].startswith(NEWEST)]


def compared(one: dict[str, Any]) -> dict[str, Any]:
    """A published layout beside the planner's first choice."""
    job = TrainingJob.from_bridge(
        one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17", phases="training"
    )
    theirs = estimate(job)  # raises LayoutError for an illegal layout
    time = throughput(theirs)
    base, _ = base_job(job, (one["num_gpus"],), job.training.global_batch_size)
    found = search(base, Space(), best=1)
    best = Row(found.plans[0])
    gap = 1 - time.tokens_per_s_gpu / best.time.tokens_per_s_gpu
    saved = {name: (value - best.time.parts.get(name, 0.0)) / time.step for name, value in time.parts.items()}
    name = max(saved, key=saved.__getitem__)
    return {
        "id": one["id"],
        "verdict": theirs.verdict().word,
        "theirs": round(time.tokens_per_s_gpu),
        "best": round(best.time.tokens_per_s_gpu),
        "gap": round(gap, 4),
        "layout": f"{layout_text(best.plan).split(', fp8')[0].split(', CUDA')[0].split(', all-to-all')[0]}, split {split_text(best.plan)}",
        "why": f"{WORDS.get(name, name)}: {saved[name]:.0%} of the published step" if gap > 0.15 else "",
    }


if __name__ == "__main__":
    rows = []
    for number, one in enumerate(published(), 1):
        print(f"{number} {one['id']}", file=sys.stderr)
        rows.append(json.dumps(compared(one)))
    (FACTS / "published_plans.jsonl").write_text("\n".join(rows) + "\n")
