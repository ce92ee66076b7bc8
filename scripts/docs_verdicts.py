"""The table of docs/explanation/verdicts.md: runs with their verdict and device range."""

from __future__ import annotations

from docs_markdown import lines_of, markdown


def run_words(settings: dict[str, object]) -> str:
    """Settings in a few words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "gpu")


def verdicts() -> str:
    """Each run with its verdict, its device range, and what decides it."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.report.verdict import bounds_text, room_text

    rows = []
    for one in lines_of("verdict_runs.jsonl"):
        settings = one["settings"]
        found = estimate(TrainingJob.from_hf(one["model"], one["num_gpus"], **settings)).verdict()
        what = f"{one['model']}, {run_words(settings)}"
        decides = f"{found.phase}, stage {found.pp_rank}"
        where = f"{one['num_gpus']} {found.gpu}"
        rows.append((what, where, found.word, bounds_text(found.device), room_text(found.head_room), decides))
    return markdown(("run", "GPUs", "verdict", "device GiB", "head-room", "decided by"), rows)


TABLES = {"verdicts": verdicts}
