"""Several runs side by side: requests of their own, or models and layouts, each with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, EstimatorError
from ..estimator import estimate
from ..inputs.loaded_model import LONGEST_NAME
from ..inputs.setting_names import canonical, full_name
from ..wording import plain, shown
from .arguments import arguments, of_kinds
from .jobs import job_of
from .request import Request

if TYPE_CHECKING:
    from ..report.comparison import Case, Columns, Refused

LEAST_CASES, MOST_CASES = 2, 20
PARTS_OF_A_CASE = ("label", "model", "text", "num_gpus", "settings")


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


def _own(request: Request, given: list[dict[str, Any]]) -> list[Case | Refused]:
    """A case for each request. Raises the refusal of the first where all are refused, ConfigError for what is none."""
    from ..report.comparison import Refused

    if not LEAST_CASES <= len(given) <= MOST_CASES:
        raise ConfigError(f"compare takes {LEAST_CASES} to {MOST_CASES} cases, not {len(given)}")
    cases: list[Case | Refused] = []
    refused: list[EstimatorError] = []
    for number, one in enumerate(given, 1):
        unknown = next((name for name in one if name not in PARTS_OF_A_CASE), None)
        if unknown is not None:
            raise ConfigError(f"case {number}: {shown(unknown)} is not one of {', '.join(PARTS_OF_A_CASE)}")
        try:
            own = of_kinds({name: value for name, value in one.items() if name != "label"}, arguments()["estimate"])
        except ConfigError as error:
            raise ConfigError(f"case {number}: {error}") from None
        label = plain(str(one.get("label") or one.get("model") or f"case {number}"), LONGEST_NAME)
        found = _estimated(request._replace(arguments=own), label)
        refused += [found] if isinstance(found, EstimatorError) else []
        cases.append(Refused(label, str(found)) if isinstance(found, EstimatorError) else found)
    if len(refused) == len(cases):
        raise refused[0]
    return cases


def _estimated(request: Request, label: str) -> Case | EstimatorError:
    """The case of a request, or why it is refused."""
    from ..report.comparison import Case

    try:
        return Case(label, request.estimate)
    except EstimatorError as error:
        return error


def _combined(request: Request) -> list[Case]:
    """A case for each model with each layout."""
    from ..report.comparison import Case

    models, layouts = request.get("models"), request.get("layouts") or [{}]
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
    return cases
