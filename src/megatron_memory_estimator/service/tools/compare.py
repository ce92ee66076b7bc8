"""Several runs side by side: models and layouts, each with each."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, EstimatorError
from ...estimator import estimate
from ...inputs.setting_names import canonical, full_name
from ..jobs import job_of
from ..request import Request

MOST_CASES = 20


def answer(request: Request) -> Any:
    """The figures of every case, or those that differ."""
    from ...report.comparison import Case, as_json
    from ...report.summary import compare_summary

    models, layouts = request.arguments["models"], request.get("layouts") or [{}]
    if not models:
        raise ConfigError("give at least one model")
    if len(models) * len(layouts) > MOST_CASES:
        raise ConfigError(f"compare takes at most {MOST_CASES} cases, not {len(models) * len(layouts)}")
    common = canonical(request.get("settings") or {}, full_name)
    cases = []
    for model in models:
        for layout in layouts:
            words = ",".join(f"{name}={value}" for name, value in layout.items())
            label = " ".join(part for part in (model if len(models) > 1 or not words else "", words) if part)
            given = {**common, **canonical(layout, full_name)}
            gpus = None if "world_size" in given else request.get("num_gpus")
            try:
                cases.append(Case(label, estimate(job_of(model, None, gpus, given, request.files))))
            except EstimatorError as error:
                raise ConfigError(f"{label}: {error}") from None
    return as_json(cases) if request.full else compare_summary(cases)
