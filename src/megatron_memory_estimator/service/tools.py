"""The answer of every tool: a document, or its summary. Each loads what it needs, when it is asked."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from ..errors import ConfigError, EstimatorError
from ..estimator import estimate
from ..inputs.catalog import entries
from ..inputs.loaded_model import LoadedModel
from ..job.choices import SIZABLE
from ..wording import any_of, shown
from .cases import compared
from .exports import at_moment, exported
from .jobs import job_of, refuse_standard_input
from .request import Request, following
from .searches import plans


def _estimate(request: Request) -> Any:
    """The estimate, or its summary."""
    from ..report.summary import estimate_summary

    found = request.estimate
    return found.to_dict() if request.full else estimate_summary(found)


def _explain(request: Request) -> Any:
    """The tensors, or the largest of them."""
    from ..report.document import explanation
    from ..report.summary import explain_summary

    report = explanation if request.full else explain_summary
    return report(request.estimate, request.get("stage"), request.get("at", "peak"))


def _advise(request: Request) -> Any:
    """The changes as a document, or their summary."""
    from ..planner.advise import advise
    from ..report.advice import advice_document
    from ..report.summary import advice_summary

    found = advise(request.job)
    if not request.full:
        return advice_summary(found)
    document = advice_document(found)
    rows = [{**one, **following(request, _all_settings(one))} for one in document["advice"]]
    return {**document, "advice": rows}


def _card(request: Request) -> Any:
    """What the model takes before anything is laid out."""
    from ..planner.card import card
    from ..report.card import card_document

    return card_document(card(request.job, stop=request.late))


def _all_settings(one: dict[str, Any]) -> dict[str, Any]:
    """The settings of several changes."""
    return {name: value for change in one["changes"] for name, value in change["settings"].items()}


@cache
def _every(by_name: Callable[[str], LoadedModel]) -> Any:
    """The facts of all bundled models, which never change."""
    from ..report.catalogue import model_facts

    return [model_facts(name, by_name) for name in entries()]


def _models(request: Request) -> Any:
    """The facts of models, or short rows of them."""
    from ..report.catalogue import matching, model_facts
    from ..report.summary import MOST_MODELS, models_summary

    word, files = request.get("model"), request.files
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
        return model_facts(str(word), files.by_name)
    if request.full and word is None:
        return _every(files.by_name)
    if request.full:
        return [model_facts(name, files.by_name) for name in names]
    return models_summary([model_facts(name, files.by_name) for name in names[:MOST_MODELS]], len(names[MOST_MODELS:]))


def _gpus(request: Request) -> Any:
    """The facts of GPUs."""
    from ..report.catalogue import gpu_facts

    return gpu_facts(request.get("gpu", ""))


def _settings(request: Request) -> Any:
    """The catalogue of settings; it is the same for every request."""
    from ..report.settings import settings_document

    return settings_document()


def _timeline(request: Request) -> Any:
    """The moments of a stage, of the highest peak where none is given, or the largest of them."""
    from ..report.summary import timeline_summary

    found = request.estimate
    line = found.timeline(request.get("stage"))
    return line.to_dict() if request.full else timeline_summary(found, line)


def _check(request: Request) -> Any:
    """Whether the run may start."""
    from ..report.check import checked, document, peaks_of, tolerance_of

    baseline = request.get("baseline")
    try:
        before = None if baseline is None else peaks_of(baseline)
    except ValueError as error:
        raise ConfigError(f"baseline is {error}") from None
    found = request.estimate
    return document(found, checked(found, before, tolerance_of(request.get("tolerance", "0%"), "tolerance")))


def _validate(request: Request) -> Any:
    """The reports of a log beside the estimate."""
    from ..report.log import compared_log, log_document

    if request.get("log") is None:
        raise ConfigError("log is needed: the text of a training log")
    found = request.estimate
    return log_document(compared_log(request.get("log"), found))


def _why(request: Request) -> Any:
    """What would make a measured figure what it is."""
    from ..evidence.why import bytes_of, why
    from ..report.why import why_document

    if request.get("measured") is None:
        raise ConfigError("measured is needed: a figure of one GPU with its unit, such as 85.3GiB")
    return why_document(why(request.job, bytes_of(request.get("measured")), request.get("kind")))


def _snapshot(request: Request) -> Any:
    """What a memory snapshot of torch says, beside the run that made it where one is named."""
    from ..evidence.account import account
    from ..evidence.snapshot import read_snapshot
    from ..report.snapshot import ran, snapshot_document

    try:
        data = base64.b64decode(request.get("snapshot") or "", validate=True)
    except ValueError:
        raise ConfigError("snapshot is no base64: it is the content of a file, packed with gzip or not") from None
    if not data:
        raise ConfigError("snapshot is needed: the content of a memory snapshot of torch, in base64")
    found = account(read_snapshot(data))
    named = request.get("model") is not None or request.get("text") is not None
    return snapshot_document(found, ran(found, request.job) if named else None)


def _largest(request: Request) -> Any:
    """How large a setting of the run can be."""
    from ..planner.largest import largest
    from ..report.limit import largest_document

    if request.get("setting") is None:
        raise ConfigError(f"setting is needed: {any_of(SIZABLE)}")
    return largest_document(largest(request.job, request.get("setting"), stop=request.late))


def _lengths(request: Request) -> Any:
    """What sample lengths do to the run; no file is read."""
    from ..lengths.samples import samples_of
    from ..planner.sample_lengths import sample_lengths
    from ..report.lengths import lengths_document

    if not request.get("lengths"):
        raise ConfigError("lengths are needed: mean,p99,max, a list, one length, or the text of a file of lengths")
    return lengths_document(sample_lengths(request.job, samples_of(request.get("lengths")), stop=request.late))


def _lanes(request: Request) -> Any:
    """The moments of every stage in columns."""
    from ..report.lanes import lanes_document

    return lanes_document(request.estimate)


def _choices(request: Request) -> Any:
    """The choices of `names`, or of those that most runs change."""
    from .choices import choices_of

    return {"schema": "megatron-memory-choices/1", "choices": choices_of(request, request.get("names", []))}


def _launch(request: Request) -> Any:
    """The arguments of a run that `estimate` takes, and settings that no argument says."""
    from ..accept import accepted
    from ..planner.launch import launch_document

    job = request.job
    accepted(job)
    return launch_document(job)


def _megatron_config(request: Request) -> Any:
    """Its fields, without those of parts that the model does not have."""
    from ..report.document import model_section

    return model_section(request.job)["config"]


RENAMED = {"mbs": "micro_batch_size", "seq_len": "seq_length"}
PASSED = (
    "tp", "pp", "ep", "cp", "vpp", "etp", "use_distributed_optimizer", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)  # fmt: skip
"""Settings that have one name here and there."""


def _mbridge(request: Request) -> Any:
    """`raw_report`, an object for each pipeline stage; `processed_report`, the same without `details`."""
    from ..report.classic import stage_report

    config = request.get("custom_hf_config")
    if config is None and request.get("hf_model_path") is None:
        raise ConfigError("give hf_model_path, a model's name, or custom_hf_config, the content of a config.json")
    model = request.get("hf_model_path") if config is None else None
    text = None if config is None else json.dumps(config)
    found = estimate(job_of(model, text, request.get("num_gpus"), settings(request), request.files))
    raw = [stage_report(stage) for stage in found.stages]
    processed = [{name: value for name, value in report.items() if name != "details"} for report in raw]
    return {"processed_report": processed, "raw_report": raw}


def settings(request: Request) -> dict[str, Any]:
    """The settings of a request; what recomputation of the other granularity would need is left out, as Megatron ignores it."""
    given = {name: request.get(name) for name in PASSED}
    given |= {name: request.get(word) for word, name in RENAMED.items()}
    granularity = request.get("recompute_granularity")
    given["recompute_granularity"] = granularity
    if granularity == "full":
        given |= {name: request.get(name) for name in ("recompute_method", "recompute_num_layers")}
    elif granularity == "selective":
        given["recompute_modules"] = request.get("recompute_modules")
    return {name: value for name, value in given.items() if value is not None}


ANSWERS: dict[str, Callable[[Request], Any]] = {
    "advise": _advise,
    "card": _card,
    "check": _check,
    "choices": _choices,
    "compare": compared,
    "estimate": _estimate,
    "explain": _explain,
    "export": exported,
    "gpus": _gpus,
    "lanes": _lanes,
    "largest": _largest,
    "lengths": _lengths,
    "launch": _launch,
    "mbridge": _mbridge,
    "megatron_config": _megatron_config,
    "models": _models,
    "moment": at_moment,
    "plan": plans,
    "settings": _settings,
    "snapshot": _snapshot,
    "timeline": _timeline,
    "validate": _validate,
    "why": _why,
}
"""Every tool by its name."""
