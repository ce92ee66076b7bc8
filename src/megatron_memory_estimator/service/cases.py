"""Several runs side by side: requests of their own, or models and layouts, each with each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, EstimatorError
from ..inputs.loaded_model import LONGEST_NAME
from ..inputs.setting_names import canonical, full_name
from ..wording import plain, shown
from .arguments import arguments, of_kinds
from .request import Request

if TYPE_CHECKING:
    from ..estimator import Estimate
    from ..report.comparison import Columns

LEAST_CASES, MOST_CASES = 2, 20
PARTS_OF_A_CASE = ("label", "model", "text", "files", "num_gpus", "settings")


def compared(request: Request) -> Any:
    """The figures of every case, or those that differ."""
    from ..report.comparison import as_json
    from ..report.summary import compare_summary

    report = as_json if request.full else compare_summary
    return report(cases_of(request))


def cases_of(request: Request) -> Columns:
    """What is compared."""
    if request.get("cases") is None:
        return _combined(request)
    for name in ("models", "layouts", "num_gpus", "settings"):
        if request.get(name) is not None:
            raise ConfigError(f"{name} goes without cases: each case is a run of its own")
    return _own(request, request.get("cases"))


def _own(request: Request, given: list[dict[str, Any]]) -> Columns:
    """A case for each request. Raises ConfigError for what is none."""
    if not LEAST_CASES <= len(given) <= MOST_CASES:
        raise ConfigError(f"compare takes {LEAST_CASES} to {MOST_CASES} cases, not {len(given)}")
    runs = []
    for number, one in enumerate(given, 1):
        unknown = next((name for name in one if name not in PARTS_OF_A_CASE), None)
        if unknown is not None:
            raise ConfigError(f"case {number}: {shown(unknown)} is not one of {', '.join(PARTS_OF_A_CASE)}")
        try:
            own = of_kinds({name: value for name, value in one.items() if name != "label"}, arguments()["estimate"])
        except ConfigError as error:
            raise ConfigError(f"case {number}: {error}") from None
        runs.append((plain(str(one.get("label") or one.get("model") or f"case {number}"), LONGEST_NAME), own))
    return _judged(request, runs)


def _judged(request: Request, runs: Sequence[tuple[str, dict[str, Any]]]) -> Columns:
    """A case for each labelled run, or why it is refused. Raises the refusal of the first where all are refused."""
    from ..report.comparison import Case, Refused

    found = [(label, _estimated(request._replace(arguments=own))) for label, own in runs]
    refused = [one for _, one in found if isinstance(one, EstimatorError)]
    if len(refused) == len(found):
        raise refused[0]
    return [Refused(label, str(one)) if isinstance(one, EstimatorError) else Case(label, one) for label, one in found]


def _estimated(request: Request) -> Estimate | EstimatorError:
    """The estimate of a request, or why it is refused."""
    try:
        return request.estimate
    except EstimatorError as error:
        return error


def _combined(request: Request) -> Columns:
    """A case for each model with each layout."""
    models, layouts = request.get("models"), request.get("layouts") or [{}]
    if not models:
        raise ConfigError("give at least one model")
    if len(models) * len(layouts) > MOST_CASES:
        raise ConfigError(f"compare takes at most {MOST_CASES} cases, not {len(models) * len(layouts)}")
    common = canonical(request.get("settings") or {}, full_name)
    runs = []
    for model in models:
        for layout in layouts:
            words = ",".join(f"{name}={value}" for name, value in layout.items())
            label = " ".join(part for part in (model if len(models) > 1 or not words else "", words) if part)
            given = {**common, **canonical(layout, full_name)}
            gpus = None if "world_size" in given else request.get("num_gpus")
            runs.append((label, {"model": model, "num_gpus": gpus, "settings": given}))
    return _judged(request, runs)
