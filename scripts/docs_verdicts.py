"""The table of docs/explanation/verdicts.md: runs with their verdict and device range."""

from __future__ import annotations

from docs_markdown import lines_of, markdown


def run_words(settings: dict[str, object]) -> str:
    """Settings in a few words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "gpu")


def verdicts() -> str:
    """Each run with its verdict, its device range, and what decides it."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.report.verdict import verdict_sentence

    rows = []
    for one in lines_of("verdict_runs.jsonl"):
        settings = one["settings"]
        result = estimate(TrainingJob.from_hf(one["model"], one["num_gpus"], **settings))
        what = f"{one['model']}, {run_words(settings)}"
        rows.append((what, result.verdict().word, verdict_sentence(result)))
    return markdown(("run", "verdict", "what every door says first"), rows)


TABLES = {"verdicts": verdicts}
