"""From Megatron-LM arguments to a job, with Megatron's own defaults and derivations.

Sources: Megatron-LM `megatron/training/arguments.py` (parser and validate_args), `megatron/training/argument_utils.py`;
`arguments.csv` beside this file lists every argument of August 2026 with its default and class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...job.training_job import TrainingJob
from ..effects import OWNERS
from ..loaded_model import LoadedModel
from ..resolve import job_from_parts
from .classes import refuse_unmodelled
from .derive import derive
from .destinations import normalised
from .files import Caller, given_arguments, passed_over
from .table import arguments
from .vocabulary import vocabulary
from .words import parse_words


def job_from_args(args: Any, num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_megatron_args`."""
    settings = dict(settings)
    ignoring = bool(settings.pop("ignore_unknown", False))
    more = parse_words(settings.pop("more_arguments", ()), ignore_unknown=ignoring)
    caller = Caller(
        settings.pop("set_variables", None) or {}, settings.pop("words", ()), bool(settings.pop("follow", False))
    )
    source = given_arguments(args, caller, ignore_unknown=ignoring, overridden=more.values.keys())
    if num_gpus is None and source.num_gpus is None and source.gpus_unknown:
        raise ConfigError(f"the number of GPUs is not known: {source.gpus_unknown}")
    given = {**normalised(source.args), **more.values}
    vocab = vocabulary(given, settings)
    warnings = (*source.warnings, *passed_over(more.unknown), *refuse_unmodelled(given), *vocab.notes)
    values = derive(given, settings)
    if vocab.size is not None:
        values["vocab_size"] = vocab.size
    defaults = {name: values.pop(name) for name in _left_at_default(values, given)}
    values.update(settings)
    if source.env:
        values["env"] = {**source.env, **(settings.get("env") or {})}
    assumptions = []
    if num_gpus is None and source.num_gpus is not None:
        num_gpus = source.num_gpus
        assumptions.append(f"num_gpus as in {source.source}: {num_gpus}")
    loaded = LoadedModel(defaults, source.name, source.source, "", warnings=warnings)
    job = job_from_parts(loaded, num_gpus, values, habits=False, single_microbatch=True)
    return dataclasses.replace(job, assumptions=(*assumptions, *job.assumptions))


def _left_at_default(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Settings of one kind of layer that have the parser's default, about which there is nothing to warn."""
    by_dest = arguments()[1]
    owned = [name for name in values if name in OWNERS and name in by_dest]
    return [name for name in owned if given.get(name, by_dest[name].default) == by_dest[name].default]
