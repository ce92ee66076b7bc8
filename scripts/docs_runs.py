"""Tables of what is known of real runs beside what the tool says: peaks, recipes, plans, the earlier skill."""

from __future__ import annotations

import json
import shlex

from docs_markdown import lines_of, markdown, records_of


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
    from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
    from megatron_memory_estimator.job.hardware import GIB

    rows = []
    for recipe in lines_of("recipes.jsonl"):
        known = "runs" if recipe["fits"] else "out of memory"
        start = (f"`{recipe['id']}`", f"{recipe['num_gpus']} {recipe['gpu']}", known)
        try:
            settings = {
                "gpu": recipe["gpu"],
                "env": recipe["env"],
                "transformer_engine_version": "2.17",
                "phases": "training",
            }
            job = TrainingJob.from_bridge(recipe["bridge"], recipe["num_gpus"], **settings)
            result = estimate(job)
        except EstimatorError as error:
            rows.append((*start, "", "", f"refused: {error}"))
            continue
        low, high = result.device
        peak = result.peak_stage.peak_allocated_bytes
        rows.append((*start, f"{peak / GIB:.1f}", f"{low / GIB:.1f} - {high / GIB:.1f}", str(result.verdict())))
    header = ("recipe", "GPUs", "known", "peak allocated GiB", "on the device GiB", "verdict")
    return markdown(header, rows)


def published_plans() -> str:
    """Published layouts beside the first choice of the planner (scripts/plan_published.py)."""
    records = lines_of("published_plans.jsonl")
    rows = []
    for plan in records:
        why = plan["why"]
        if plan["gap"] < -0.15:
            why = "the published layout is tight; a first choice must surely fit"
        rows.append(
            (
                f"`{plan['id']}`",
                plan["verdict"],
                f"{plan['theirs']:,}",
                f"{plan['best']:,}",
                f"{-plan['gap']:+.0%}",
                plan["layout"],
                why,
            )
        )
    near = sum(abs(plan["gap"]) <= 0.15 for plan in records)
    behind = sum(plan["gap"] > 0.15 for plan in records)
    head = f"{len(records)} runs, all legal; {near} within 15 % of the first choice, {behind} more than 15 % behind it.\n\n"
    header = (
        "run",
        "published layout",
        "its rate, predicted",
        "first choice, predicted",
        "published against first",
        "first choice",
        "why it differs by more than 15 %",
    )
    return head + markdown(header, rows)


TABLES = {
    "measured": measured,
    "skill": skill,
    "recipes": recipes,
    "published plans": published_plans,
}
