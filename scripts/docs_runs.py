"""Tables of what is known of real runs beside what the tool says: peaks, recipes, plans, the earlier skill."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from docs_markdown import lines_of, markdown, records_of

if TYPE_CHECKING:
    from megatron_memory_estimator import TrainingJob


def measured() -> str:
    """Measured peaks of real runs beside the estimate."""
    from megatron_memory_estimator import TrainingJob, estimate

    rows = []
    for case in records_of("measured_b200.json"):
        job = TrainingJob.from_megatron_args(
            case["args"], 8, gpu="B200", transformer_engine_version="2.11", megatron_core_version="0.14"
        )
        stages = estimate(job).stages
        for stage in stages:
            per = 8 // len(stages)
            peaks = case["max_allocated_bytes"][stage.pp_rank * per : (stage.pp_rank + 1) * per]
            state = sum(s.nbytes for s in stage.rank.states if s.since in ("setup", "first step"))
            ours, worst = stage.peak_allocated_bytes, max(peaks)
            rows.append(
                (
                    f"`{case['case']}`",
                    str(stage.pp_rank),
                    f"{min(peaks) / 2**30:.3f} - {worst / 2**30:.3f}",
                    f"{ours / 2**30:.3f}",
                    f"{100 * (ours / worst - 1):+.3f} %",
                    f"{100 * ((ours - state) / (worst - state) - 1):+.2f} %",
                )
            )
    header = ("case", "stage", "measured GiB (its ranks)", "estimated GiB", "error", "error without model state")
    return markdown(header, rows)


def skill() -> str:
    """The commands of the earlier skill: its result and ours."""
    from megatron_memory_estimator.cli.estimate_from_hf import answer, parser

    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    rows = []
    for record in records_of("skill_commands.json"):
        words = shlex.split(record["command"])[2:]
        values = vars(parser().parse_args(words))
        del values["json"], values["verbose"]
        if values["model_path"] == "/path/to/config.json":
            values.update(model_path=None, custom_config=json.dumps(config))
        result = answer(values)
        top, gpus = result.peak_stage, result.job.layout.world_size
        stages = "/".join(str(sum(len(p.chunk.layers) for p in stage.rank.plans)) for stage in result.stages)
        ours = f"{top.peak_allocated_bytes / 2**30:.2f} GiB: stage {top.pp_rank} of {stages} layers, {gpus} GPUs"
        rows.append((f"`{' '.join(words)}`", record["original"], ours))
    return markdown(("command: `estimate_from_hf.py` ...", "original", "ours"), rows)


def recipes() -> str:
    """Published recipes: what is known of them, and the verdict."""
    from megatron_memory_estimator import EstimatorError, estimate
    from megatron_memory_estimator.job.hardware import GIB

    rows = []
    for recipe in lines_of("recipes.jsonl"):
        known = "runs" if recipe["fits"] else "out of memory"
        start = (f"`{recipe['id']}`", f"{recipe['num_gpus']} {recipe['gpu']}", known)
        try:
            result = estimate(recipe_job(recipe))
        except EstimatorError as error:
            rows.append((*start, "", "", f"refused: {error}"))
            continue
        low, high = result.device
        peak = result.peak_stage.peak_allocated_bytes
        rows.append((*start, f"{peak / GIB:.1f}", f"{low / GIB:.1f} - {high / GIB:.1f}", str(result.verdict())))
    header = ("recipe", "GPUs", "known", "peak allocated GiB", "on the device GiB", "verdict")
    return markdown(header, rows)


def printed_peaks() -> str:
    """Every peak that Megatron-Bridge prints of a run, beside the estimate and, where they differ, what is missing."""
    from megatron_memory_estimator.validation.replay import replay
    from megatron_memory_estimator.validation.runs import read_runs

    facts = {fact["id"]: fact for fact in lines_of("printed_peaks.jsonl")}
    found = []
    for run in read_runs():
        folder, _, name = run.id.partition("/")
        if folder == "megatron-bridge":
            played = replay(run)
            peak = played.peak or played.first_step
            gpus, why = f"{run.num_gpus} {run.gpu}", facts.get(name, {}).get("why", "")
            assert peak is not None, name
            found.append((name if played.peak else f"{name}, first step", gpus, peak.measured, peak.estimated, why))
    for fact in facts.values():
        if "printed" in fact:
            gpus = f"{fact['num_gpus']} {fact['gpu']}"
            found.append((fact["id"], gpus, round(fact["printed"] * 10**9), peak_of(fact), fact["why"]))
    off = [ours / printed - 1 for _, _, printed, ours, _ in found]
    near = sum(abs(error) <= 0.03 for error in off)
    rows = [
        (f"`{name}`", gpus, f"{printed / 1e9:.2f}", f"{ours / 1e9:.2f}", f"{100 * error:+.1f} %", why)
        for (name, gpus, printed, ours, why), error in sorted(
            zip(found, off, strict=True), key=lambda one: -abs(one[1])
        )
    ]
    head = f"{near} of {len(found)} within 3 %.\n\n"
    return head + markdown(("run", "GPUs", "printed GB", "estimated GB", "error", "what is missing, or why"), rows)


def peak_of(fact: dict[str, Any]) -> int:
    """The estimate of a printed peak: of a training step; of the first, where the second ran out of memory; of a resumed run while the
    experts' state is made a second time."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.device.checkpoint import load_terms
    from megatron_memory_estimator.rank.rank import state_bytes

    if "config" in fact:
        job = TrainingJob.from_hf(fact["config"], fact["num_gpus"], gpu=fact["gpu"], **fact["settings"])
        return estimate(job).peak_stage.peak_allocated_bytes
    if "bridge" in fact:
        job = TrainingJob.from_bridge(fact["bridge"], fact["num_gpus"], gpu=fact["gpu"], **fact["settings"])
        ranks = [stage.rank for stage in estimate(job).stages]
        return max(int(state_bytes(rank, "setup", "first step") + load_terms(rank)[1][0].high) for rank in ranks)
    recipe = next(one for one in lines_of("recipes.jsonl") if one["id"] == fact["recipe"])
    return estimate(recipe_job(recipe)).stages[0].first_step_peak_allocated_bytes


def recipe_job(recipe: dict[str, Any]) -> TrainingJob:
    """The job of a published recipe."""
    from megatron_memory_estimator import TrainingJob

    settings = {"gpu": recipe["gpu"], "env": recipe["env"], "transformer_engine_version": "2.17", "phases": "training"}
    return TrainingJob.from_bridge(recipe["bridge"], recipe["num_gpus"], **settings)


def published_plans() -> str:
    """Published layouts beside the choices of the planner (scripts/plan_published.py)."""
    records = lines_of("published_plans.jsonl")
    rows = [
        (
            f"`{plan['id']}`",
            plan["verdict"],
            f"{plan['theirs']:,}",
            f"{plan['best']:,}",
            f"{-plan['gap']:+.0%}",
            plan["layout"],
            plan["why"],
            f"{plan['named']:,} ({-plan['named_gap']:+.0%})" if "named" in plan else "",
        )
        for plan in records
    ]
    named = [one for one in records if "named_gap" in one]
    near = sum(abs(plan["gap"]) <= 0.1 for plan in records)
    behind = sum(plan["gap"] > 0.1 for plan in records)
    head = (
        f"{len(records)} runs, all legal; {near} within 10 % of the first choice, {behind} more than 10 % behind it, "
        f"{len(records) - near - behind} more than 10 % ahead. By name, with features that recipes of other models of the same generation, "
        f"kind and precision have: {sum(one['named_gap'] <= 0.05 for one in named)} of {len(named)} within 5 % of the published layout's "
        "predicted rate, or faster.\n\n"
    )
    header = (
        "run", "published layout", "its rate, predicted", "first choice, predicted", "published against first",
        "first choice", "why it differs by more than 10 %", "first choice by name",
    )  # fmt: skip
    return head + markdown(header, rows)


TABLES = {
    "measured": measured,
    "skill": skill,
    "recipes": recipes,
    "printed peaks": printed_peaks,
    "published plans": published_plans,
}
