"""Write tests/facts/played_shares.jsonl: what the allocator's rules leave unused in whole runs of recipes and catalogue models.

Each stage is played for its first, middle and last GPU, with scratch before and after results, from the start and resumed; dropless
experts also with rows that vary from layer to layer and microbatch to microbatch. Takes about ten minutes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_memory_estimator import Estimate, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.device.phases import built_apart
from megatron_memory_estimator.device.replay import Replayed, Uneven, refusal, replay
from megatron_memory_estimator.device.reserved import freed_bytes, recomputes_routers
from megatron_memory_estimator.estimator import Stage
from megatron_memory_estimator.rank.build import context_of

FACTS = Path(__file__).parent.parent / "tests" / "facts"
EXCESS = 0.25
"""Rows above those of balanced routing at which sizes are read a second time; between the two they are linear."""
SPREAD = 0.05
"""Standard deviation of a rank's rows; from 0.01 to 0.2 the shares hardly change, because any difference misses the best fit."""
SEEDS = (0, 1)
LAYOUTS: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "meta-llama/Meta-Llama-3-8B": [
        (8, {"tp": 2}), (16, {"tp": 2, "cp": 2}), (8, {"tp": 1, "pp": 2, "recompute": "full"}),
    ],
    "meta-llama/Meta-Llama-3-70B": [
        (64, {"tp": 4, "pp": 4}), (128, {"tp": 4, "pp": 4, "vpp": 5}), (64, {"tp": 8, "pp": 2, "recompute": "full"}),
    ],
    "meta-llama/Llama-3.1-405B": [(448, {"tp": 8, "pp": 14}), (1008, {"tp": 8, "pp": 9, "cp": 2})],
    "Qwen/Qwen2.5-32B": [(32, {"tp": 4, "pp": 2}), (16, {"tp": 8})],
    "Qwen/Qwen3-14B": [(16, {"tp": 2, "pp": 2}), (8, {"tp": 4, "cp": 2})],
    "mistralai/Mixtral-8x7B-v0.1": [(64, {"tp": 1, "pp": 4, "ep": 8}), (32, {"tp": 2, "pp": 2, "ep": 8})],
    "Qwen/Qwen3-30B-A3B": [(16, {"tp": 1, "pp": 2, "ep": 8}), (32, {"tp": 1, "pp": 4, "ep": 8})],
    "Qwen/Qwen3-235B-A22B": [(128, {"tp": 2, "pp": 8, "ep": 8}), (256, {"tp": 4, "pp": 16, "ep": 8})],
    "deepseek-ai/DeepSeek-V2-Lite": [(16, {"tp": 1, "pp": 2, "ep": 8})],
    "zai-org/GLM-4.5-Air": [(64, {"tp": 1, "pp": 8, "ep": 8})],
}  # fmt: skip
"""Layouts of catalogue models: GPUs, degrees, and whether everything is recomputed."""
SHORT = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
         "vpp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size"}  # fmt: skip


def family(name: str) -> str:
    """The family of a model or recipe, by its name."""
    families = ("deepseek", "gpt-oss", "moonlight", "nemotron", "glm", "qwen3", "qwen2", "llama", "mixtral")
    return next(word for word in families if word in name.lower())


def jobs() -> Iterator[tuple[str, str, TrainingJob]]:
    """(id, family, job) of recipes that are played, and of layouts of catalogue models."""
    seen = set()
    for one in map(json.loads, (FACTS / "recipes.jsonl").read_text().splitlines()):
        if not one["fits"]:
            continue
        same = json.dumps([one["bridge"], one["num_gpus"]])
        try:
            job = TrainingJob.from_bridge(
                one["bridge"], one["num_gpus"], gpu=one["gpu"], env=one["env"], transformer_engine_version="2.17"
            )
        except EstimatorError:
            continue
        if not refusal(job) and same not in seen:
            seen.add(same)
            yield one["id"], family(one["id"]), balanced(job)
    for name, layouts in LAYOUTS.items():
        for gpus, words in layouts:
            settings = {SHORT[word]: value for word, value in words.items() if word in SHORT}
            if words.get("recompute") == "full":
                settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
            settings |= {"sequence_parallel": True} if words["tp"] > 1 else {}
            job = TrainingJob.from_hf(name, gpus, gpu="H100", global_batch_size=16 * gpus, **settings)
            yield f"{name} {gpus} {words}", family(name), balanced(job)


def balanced(job: TrainingJob) -> TrainingJob:
    """The same with as many rows on every rank, so that what varies is drawn here alone."""
    return dataclasses.replace(job, training=dataclasses.replace(job.training, router_imbalance=1.0))


def varies(job: TrainingJob) -> bool:
    """Whether the rows of a balanced job would vary."""
    free = dataclasses.replace(job.training, router_imbalance=None)
    return context_of(dataclasses.replace(job, training=free)).routing is not None


def varying(found: Estimate, stage: Stage, seed: int) -> Uneven:
    """Rows of experts that vary, for a stage."""
    training = dataclasses.replace(found.job.training, router_imbalance=1 + EXCESS)
    declarer = found.declarer.with_routing(context_of(dataclasses.replace(found.job, training=training)))
    return Uneven(tuple(declarer.plan(plan.chunk) for plan in stage.rank.plans), EXCESS, SPREAD, seed)


def shares(played: list[Replayed]) -> list[float]:
    """The least and the most that is reserved beyond the allocated peak, as shares of it."""
    found = [one.slack / one.allocated[-1] for one in played]
    return [round(min(found), 4), round(max(found), 4)]


def stage_shares(found: Estimate, stage: Stage) -> dict[str, Any]:
    """The shares of one stage by allocator."""
    job, rank, layout = found.job, stage.rank, found.job.layout
    width = layout.tp * layout.cp * layout.dp
    places = sorted({0, width // 2, width - 1})
    row: dict[str, Any] = {"freed": round(freed_bytes(rank, stage.peak) / stage.peak.nbytes, 4)}
    for name, expandable in (("native", False), ("expandable", True)):
        played = [
            replay(job, rank, place, expandable=expandable, results_first=late)
            for place in places
            for late in (False, True)
        ]
        built = max(one.built for one in played)
        row[f"{name}_built"] = round(built / built_apart(rank) - 1, 4)
        if not expandable:
            row["resumed"] = shares([replay(job, rank, place, expandable=False, resumed=True) for place in places])
        row[name] = shares(played)
        if varies(job):
            uneven = [replay(job, rank, 0, expandable=expandable, uneven=varying(found, stage, seed)) for seed in SEEDS]
            row[f"{name}_varying"] = shares(uneven)
    return row


def row(name: str, kind: str, found: Estimate, stage: Stage) -> dict[str, Any]:
    """The record of a stage."""
    return {
        "id": name,
        "family": kind,
        "moe": found.job.model.has_moe,
        "router_recomputed": found.job.model.has_moe and recomputes_routers(found.job.training),
        "stage": stage.pp_rank,
        **stage_shares(found, stage),
    }


def main() -> None:
    """Play every job and write the file."""
    with (FACTS / "played_shares.jsonl").open("w") as file:
        for name, kind, job in jobs():
            found = estimate(job)
            for stage in {stage.pp_rank: stage for stage in (found.stages[0], found.stages[-1])}.values():
                file.write(json.dumps(row(name, kind, found, stage)) + "\n")
                file.flush()
                print(name, stage.pp_rank, file=sys.stderr)


if __name__ == "__main__":
    main()
