"""A run described in YAML: sections `model`, `parallelism`, `training` and `precision`; every mistake is one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from ...errors import ConfigError
from ...job.layout import SHORT, Layout
from ...job.model import Model
from ...job.settings import nearest
from ...job.training_job import TrainingJob
from ..hf.load import load
from ..loaded_model import LoadedModel
from ..resolve import job_from_parts
from ..setting_names import full_name, known_settings
from ..text_files import read_yaml, shortened
from ..transformer_config import IRRELEVANT, UNCOUNTED, UNSUPPORTED

SECTIONS = ("model", "parallelism", "training", "precision")
EXTRA = {
    "model": {"name"},
    "training": {"num_gpus", "gpu", "env", "strict", "attention_backend"},
    "parallelism": {*SHORT, "num_gpus"},
    "precision": {"bf16", "fp16"},
}
PRECISION = {
    "params_dtype", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32", "grad_reduce_in_bf16",
    "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
    "store_param_remainders", "moe_router_dtype", "attention_softmax_in_fp32",
}  # fmt: skip


MOST_MISTAKES = 20
"""Mistakes of a file that are looked for; a message has no room for more."""


def job_from_yaml(path: str, num_gpus: int | None = None, **settings: Any) -> TrainingJob:
    """The job of a YAML file; settings given here win over the file's.

    With `model.name` the model is read as by `TrainingJob.from_hf`, otherwise `model` holds TransformerConfig names as for
    `TrainingJob.from_config`. Raises ConfigError with one sentence per mistake.
    """

    def named(model: str) -> LoadedModel:
        beside = os.path.join(os.path.dirname(path), model)
        return load(beside if os.path.exists(beside) else model)

    return job_from_document(read_yaml(path), path, num_gpus, settings, named)


def job_from_document(
    document: Mapping[Any, Any],
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    named: Callable[[str], LoadedModel],
) -> TrainingJob:
    """The job of a run description that is read already; `named` gives the model of `model.name`."""
    mistakes = list(islice(wrong(document), MOST_MISTAKES))
    if mistakes:
        raise ConfigError(f"{shortened(path)}: {'; '.join(mistakes)}")
    values: dict[str, Any] = {}
    for section in SECTIONS:
        for name, value in (document.get(section) or {}).items():
            word = full_name(name)
            if value is None and word in values:
                continue
            if values.get(word) is not None and values[word] != value:
                raise ConfigError(f"{shortened(path)}: {word} is given twice with different values; give one")
            values[word] = value
    values.update({full_name(name): value for name, value in settings.items()})
    gpus = values.pop("world_size", None)
    model = values.pop("name", None)
    num_gpus = gpus if num_gpus is None else num_gpus
    if model is not None:
        if not isinstance(model, str) or model == "-":
            raise ConfigError(f"{shortened(path)}: model.name={shortened(repr(model))} must be a Hub id or a path")
        return job_from_parts(named(model), num_gpus, values, habits=True)
    name = os.path.splitext(os.path.basename(path))[0]
    return TrainingJob.from_config({"name": name, **values}, num_gpus)


def wrong(document: Mapping[Any, Any]) -> Iterator[str]:
    """One sentence for every section or setting that does not belong where it stands."""
    for section, values in document.items():
        if section not in SECTIONS:
            yield f'unknown section "{section}"; the sections are {", ".join(SECTIONS)}'.rstrip(".")
        elif values is not None and not isinstance(values, dict):
            yield f"the section {section} must hold settings, not {shortened(repr(values))}"
        else:
            for name in values or {}:
                yield from _misplaced(section, name)
    if not document.get("model"):
        yield "the section model is missing; give model.name or TransformerConfig names"


def _misplaced(section: str, name: Any) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"{section}.{name!r} must be a word"
        return
    word = full_name(name)
    homes = sections_of(word)
    if not homes and name.replace("-", "_") not in {x for extra in EXTRA.values() for x in extra}:
        known = [*known_settings(), *(x for extra in EXTRA.values() for x in extra)]
        yield f'unknown setting "{name}" in {section}.{nearest(name, known)}'.rstrip(".")
    elif section not in homes:
        yield f"{name} belongs in the section {' or '.join(homes)}, not in {section}"


def sections_of(word: str) -> tuple[str, ...]:
    """The sections in which a setting may stand."""
    homes = [section for section, names in EXTRA.items() if word in names]
    if word in SHORT.values():
        return ("parallelism",)
    if word in ("world_size", "num_gpus"):
        return ("training", "parallelism")
    if word in PRECISION:
        return ("precision", "training")
    owner = known_settings().get(word)
    if owner is not None:
        homes.append({Model: "model", Layout: "parallelism"}.get(owner, "training"))
    elif word in IRRELEVANT or word in UNCOUNTED or word in UNSUPPORTED:
        return SECTIONS
    return tuple(dict.fromkeys(homes))
