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
from typing import Any

from .errors import ConfigError, EstimatorError, LayoutError
from .estimator import estimate as estimate_job
from .inputs import SCRIPTS, YAML
from .inputs.hf import load, load_named
from .inputs.loaded_model import LoadedModel
from .inputs.resolve import job_from_parts
from .inputs.setting_names import canonical, full_name
from .job.training_job import TrainingJob
from .wording import shown

MOST_CASES = 20
LARGEST_MEMORY = 4 * 2**30
"""Bytes of address space of one request."""
PARAMETERS = {"cls", "model", "path", "self", "num_gpus", "text", "config", "settings"}
"""Names that are parameters of Python functions on the way, not settings."""


class Files:
    """Which files may be opened: those below one folder, or none."""

    def __init__(self, folder: str | None) -> None:
        self.folder = None if folder is None else os.path.realpath(folder)

    def path(self, name: str) -> str | None:
        """The path of a name that stands for a file below the folder, or None. Nothing outside is looked at."""
        if self.folder is None:
            return None
        try:
            full = os.path.realpath(os.path.join(self.folder, name))
        except ValueError:  # a null byte or half a character, which no file's name has
            return None
        inside = os.path.commonpath([self.folder, full]) == self.folder
        return full if inside and os.path.exists(full) else None

    def named(self, name: str) -> LoadedModel:
        """The model of a name, or of a config.json below the folder."""
        full = self.path(name)
        if full is None:
            return load_named(name)
        inner = os.path.join(full, "config.json") if os.path.isdir(full) else full
        if self.path(os.path.relpath(inner, self.folder)) is None:
            raise ConfigError("a config.json outside the folder is not opened")
        return load(inner)

    def beside(self, path: str) -> Callable[[str], LoadedModel]:
        """Models by name, or by their paths seen from a file below the folder."""

        def named(name: str) -> LoadedModel:
            near = os.path.relpath(os.path.join(os.path.dirname(path), name), self.folder)
            return self.named(near if self.path(near) is not None else name)

        return named


def job_of(
    model: str | None, text: str | None, num_gpus: int | None, settings: Mapping[str, Any] | None, files: Files
) -> TrainingJob:
    """The job of a request: of a model by name, of a file below the folder, or of a file's text.

    Raises EstimatorError with the sentence that says what is wrong; nothing of a file's content is in it.
    """
    from .inputs.runs.files import job_from_text
    from .inputs.text_files import read_text

    given = canonical(settings or {}, full_name)
    world = given.pop("world_size", None)
    if None not in (world, num_gpus) and world != num_gpus:
        raise ConfigError(f"num_gpus={num_gpus} and world_size={shown(world)} of the settings differ; give one")
    gpus = world if num_gpus is None else num_gpus
    for name in PARAMETERS & given.keys():
        raise ConfigError(f'unknown setting "{name}"')
    if (model is None) == (text is None):
        raise ConfigError("give either model, a name, or text, that of a config.json, a YAML file or a launch script")
    if text is not None:
        return job_from_text(text, gpus, given, files.named)
    assert model is not None
    refuse_standard_input(model)
    path = files.path(model)
    try:
        if path is not None and path.lower().endswith((*YAML, *SCRIPTS)):
            return job_from_text(read_text(path), gpus, given, files.beside(path))
        if path is None and (model.startswith(("/", ".", "~")) or model.lower().endswith((*YAML, *SCRIPTS, ".json"))):
            raise _NoFileError(
                "files are opened below the folder that the server was started with (--folder), and nowhere else; pass the "
                "file's content as text"
            )
        return job_from_parts(files.named(model), gpus, given, habits=True)
    except LayoutError:
        raise
    except EstimatorError as error:
        if path is None or isinstance(error, _NoFileError):
            raise
        raise ConfigError(f"{shown(model)} cannot be read as a run; pass its content as text to be told why") from None


class _NoFileError(ConfigError):
    """A name that is a path outside the folder."""


def refuse_standard_input(model: str) -> None:
    """Raise ConfigError for "-": standard input carries the protocol."""
    if model.strip() in ("", "-"):
        raise ConfigError("the model must be a name or a path; standard input belongs to the protocol")


def _job(arguments: Mapping[str, Any], files: Files) -> TrainingJob:
    model, text, gpus, settings = map(arguments.get, ("model", "text", "num_gpus", "settings"))
    return job_of(model, text, gpus, settings, files)


def _estimate(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    return estimate_job(_job(arguments, files)).to_dict()


def _explain(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    from .report.document import explanation

    return explanation(estimate_job(_job(arguments, files)), arguments.get("stage"), arguments.get("at", "peak"))


def _compare(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    from .report.comparison import Case, as_json

    models, layouts = arguments["models"], arguments.get("layouts") or [{}]
    if not models:
        raise ConfigError("give at least one model")
    if len(models) * len(layouts) > MOST_CASES:
        raise ConfigError(f"compare takes at most {MOST_CASES} cases, not {len(models) * len(layouts)}")
    cases = []
    for model in models:
        for layout in layouts:
            words = ",".join(f"{name}={value}" for name, value in layout.items())
            label = " ".join(part for part in (model if len(models) > 1 or not words else "", words) if part)
            gpus = None if {"num_gpus", "num-gpus", "world_size"} & layout.keys() else arguments.get("num_gpus")
            try:
                cases.append(Case(label, estimate_job(job_of(model, None, gpus, layout, files))))
            except EstimatorError as error:
                raise ConfigError(f"{label}: {error}") from None
    return as_json(cases)


def _plan(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    from .planner.base import overlap_habits
    from .planner.planning import plan
    from .report.plans import Row
    from .report.plans_document import found_document

    given = canonical(arguments.get("settings") or {}, full_name)
    batch = given.pop("global_batch_size", None)
    gpus, fewest = arguments.get("num_gpus"), bool(arguments.get("fewest_gpus"))
    words = {name: str(value) for name, value in (arguments.get("axes") or {}).items()}
    if gpus is not None:
        words.setdefault("num_gpus", str(gpus))
    whole_run = arguments.get("text") is not None or str(arguments.get("model")).lower().endswith((*YAML, *SCRIPTS))
    habits, note = ({}, "") if whole_run else overlap_habits(given)
    job = job_of(arguments.get("model"), arguments.get("text"), None, {**given, **habits}, files)
    if batch is None and whole_run and not job.batch_is_assumed:
        batch = job.training.global_batch_size
    if not fewest and "num_gpus" not in words and job.layout.world_size == 1:
        raise ConfigError("num_gpus is needed, or fewest_gpus to find how many GPUs hold the model")
    result, notes = plan(
        job,
        words,
        global_batch_size=batch,
        objective=arguments.get("objective", "throughput"),
        top=min(max(int(arguments.get("top", 5)), 1), 50),
        fewest_gpus=fewest,
        stop=lambda: time.monotonic() > deadline,
    )
    return found_document(result, [Row(one) for one in result.plans], (*([note] if note else []), *notes))


def _advise(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    from .planner.advise import advise
    from .report.advice import advice_document

    return advice_document(advise(_job(arguments, files)))


def _models(arguments: Mapping[str, Any], files: Files, deadline: float) -> Any:
    from .inputs.catalog import entries
    from .report.catalogue import model_facts

    model = arguments.get("model")
    if model is None:
        return [model_facts(name, load_named) for name in entries()]
    refuse_standard_input(model)
    if files.path(model) is not None:
        try:
            return [model_facts(model, files.named)]
        except EstimatorError:
            raise ConfigError(
                f"{shown(model)} cannot be read as a model; pass its content to estimate as text"
            ) from None
    return [model_facts(model, load_named)]


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
