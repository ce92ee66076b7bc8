"""One request of the MCP server, answered in a process of its own, which has limits of time and memory and can be ended.

Standard input holds the request as JSON: `tool`, `arguments`, `folder` (the only one in which files may be opened, or null) and
`seconds`. Standard output gets `{"answer": ...}` or `{"error": sentence}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import ConfigError, EstimatorError
from .estimator import estimate as estimate_job
from .inputs import SCRIPTS, YAML
from .inputs.setting_names import canonical, full_name
from .job.training_job import TrainingJob
from .mcp_job import Files, job_of, refuse_standard_input
from .wording import shown

MOST_CASES = 20
MOST_PLANS = 50
LARGEST_MEMORY = 4 * 2**30
"""Bytes of address space of one request."""

Arguments = Mapping[str, Any]


def _job(arguments: Arguments, files: Files) -> TrainingJob:
    model, text, gpus, settings = map(arguments.get, ("model", "text", "num_gpus", "settings"))
    return job_of(model, text, gpus, settings, files)


def _full(arguments: Arguments) -> bool:
    """Whether the whole document is wanted, and not its summary."""
    detail = arguments.get("detail") or "summary"
    if detail not in ("summary", "full"):
        raise ConfigError(f"detail={shown(detail)} is not one of summary, full")
    return bool(detail == "full")


def _estimate(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .report.summary import estimate_summary

    found = estimate_job(_job(arguments, files))
    return found.to_dict() if _full(arguments) else estimate_summary(found)


def _explain(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .report.document import explanation
    from .report.summary import explain_summary

    report = explanation if _full(arguments) else explain_summary
    return report(estimate_job(_job(arguments, files)), arguments.get("stage"), arguments.get("at", "peak"))


def _compare(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .report.comparison import Case, as_json
    from .report.summary import compare_summary

    models, layouts = arguments["models"], arguments.get("layouts") or [{}]
    if not models:
        raise ConfigError("give at least one model")
    if len(models) * len(layouts) > MOST_CASES:
        raise ConfigError(f"compare takes at most {MOST_CASES} cases, not {len(models) * len(layouts)}")
    common = canonical(arguments.get("settings") or {}, full_name)
    cases = []
    for model in models:
        for layout in layouts:
            words = ",".join(f"{name}={value}" for name, value in layout.items())
            label = " ".join(part for part in (model if len(models) > 1 or not words else "", words) if part)
            given = {**common, **canonical(layout, full_name)}
            gpus = None if "world_size" in given else arguments.get("num_gpus")
            try:
                cases.append(Case(label, estimate_job(job_of(model, None, gpus, given, files))))
            except EstimatorError as error:
                raise ConfigError(f"{label}: {error}") from None
    return as_json(cases) if _full(arguments) else compare_summary(cases)


def _plan(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .planner.planning import plan
    from .report.plans import rows_of
    from .report.plans_document import found_document
    from .report.summary_plans import plan_summary

    full = _full(arguments)
    job, axes, batch, habits, said = _search_of(arguments, files)
    fewest = bool(arguments.get("fewest_gpus"))
    if not fewest and "num_gpus" not in axes:
        if job.layout.world_size == 1:
            raise ConfigError("num_gpus is needed, or fewest_gpus=true to find how many GPUs hold the model")
        said = [*said, f"num_gpus as the run has it: {job.layout.world_size}"]
    result, notes = plan(
        job,
        axes,
        global_batch_size=batch,
        objective=arguments.get("objective") or "throughput",
        top=min(max(int(arguments.get("top", 5)), 1), MOST_PLANS),
        fewest_gpus=fewest,
        stop=lambda: time.monotonic() > deadline,
    )
    rows, said = rows_of(result), [*said, *notes]
    return found_document(result, rows, said) if full else plan_summary(result, rows, said, job, habits)


class Search(NamedTuple):
    """The job that is planned anew, the axes of its search, the global batch where it is given, and what was decided."""

    job: TrainingJob
    axes: dict[str, str]
    global_batch_size: int | None
    habits: dict[str, bool]
    said: list[str]


def _search_of(arguments: Arguments, files: Files) -> Search:
    """What a request of `plan` searches.

    Settings that are axes say which of their values are tried, as on the command line.
    """
    from .cli.plan import fixed
    from .cli.plan_options import AXES, FIXED
    from .planner.base import overlap_habits
    from .planner.space.axes import axis_name

    given = canonical(arguments.get("settings") or {}, full_name)
    for name in given:
        if name in FIXED:
            raise ConfigError(f"{name} is decided by the search; the axis split says which splits are tried")
    batch = given.pop("global_batch_size", None)
    axes = {axis_name(name): str(value) for name, value in (arguments.get("axes") or {}).items()}
    if arguments.get("num_gpus") is not None:
        axes.setdefault("num_gpus", str(arguments["num_gpus"]))
    for name in [name for name in given if name in AXES]:
        value = given.pop(name)
        words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if value is not None and axes.setdefault(axis_name(name), words) != words:
            raise ConfigError(f"{name} is given twice, as an axis and as a setting, with different values; give one")
    whole_run = arguments.get("text") is not None or str(arguments.get("model")).lower().endswith((*YAML, *SCRIPTS))
    habits, note = ({}, "") if whole_run else overlap_habits(given)
    job = job_of(arguments.get("model"), arguments.get("text"), None, {**given, **habits}, files)
    fixed(axes, given, job)
    if batch is None and whole_run and not job.batch_is_assumed:
        batch = job.training.global_batch_size
    return Search(job, axes, batch, habits, [note] if note else [])


def _advise(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .planner.advise import advise
    from .report.advice import advice_document
    from .report.summary_plans import advice_summary

    report = advice_document if _full(arguments) else advice_summary
    return report(advise(_job(arguments, files)))


def _models(arguments: Arguments, files: Files, deadline: float) -> Any:
    from .inputs.catalog import entries
    from .inputs.hf import load_named
    from .report.catalogue import matching, model_facts
    from .report.summary import MOST_MODELS, models_summary

    word = arguments.get("model")
    if word is not None:
        refuse_standard_input(word)
        if files.path(word) is not None:
            try:
                return model_facts(word, files.named)
            except EstimatorError:
                raise ConfigError(
                    f"{shown(word)} cannot be read as a model; pass its content to estimate as text"
                ) from None
    names = list(entries()) if word is None else matching(word)
    if not names:
        return model_facts(str(word), load_named)
    if _full(arguments):
        return [model_facts(name, load_named) for name in names]
    return models_summary([model_facts(name, load_named) for name in names[:MOST_MODELS]], len(names[MOST_MODELS:]))


TOOLS: dict[str, Callable[[Mapping[str, Any], Files, float], Any]] = {
    "estimate": _estimate,
    "explain": _explain,
    "compare": _compare,
    "plan": _plan,
    "advise": _advise,
    "models": _models,
}


def answered(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of one request, or its error in one sentence."""
    deadline = time.monotonic() + 0.9 * float(request["seconds"])
    try:
        return {"answer": TOOLS[request["tool"]](request["arguments"], Files(request["folder"]), deadline)}
    except EstimatorError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "the request is nested too deeply"}
    except MemoryError:
        return {"error": f"the request needs more than {LARGEST_MEMORY // 2**30} GiB"}


def main() -> None:
    """Answer the request on standard input."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))
    except (ImportError, ValueError, OSError):  # no such limits on this system
        pass
    print(json.dumps(answered(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
