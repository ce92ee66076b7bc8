"""From Megatron-LM arguments to a job, with Megatron's own defaults and derivations.

Sources: Megatron-LM `megatron/training/arguments.py` (parser and validate_args), `megatron/training/argument_utils.py`;
`arguments.csv` beside this file lists every argument of August 2026 with its default and class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job import TrainingJob
from ...settings import nearest
from ..effects import OWNERS
from ..loaded_model import LoadedModel
from ..resolve import job_from_parts
from ..setting_names import known_settings
from .derive import DERIVED, derive
from .files import given_arguments, passed_over
from .harmless import HARMLESS
from .table import arguments
from .vocabulary import vocabulary
from .words import parse_words

OLD_NAMES = {
    "num_moe_experts": "num_experts",
    "use_mcore_models": "",
    "moe_router_fusion": "",
    "use_dist_ckpt": "",
    "legacy_tokenizer": "",
    "cross_entropy_fusion_implementation": "cross_entropy_fusion_impl",
}
"""Arguments of older versions: the new destination, or nothing where they no longer do anything."""


def normalised(args: Mapping[str, Any]) -> dict[str, Any]:
    """Argument destinations with the values given; unknown arguments are refused with the nearest match."""
    found: dict[str, Any] = {}
    parsed = _destinations_only(args)
    for key, value in args.items():
        if not isinstance(key, str):
            raise ConfigError(f"the Megatron argument {key!r} must be a word")
        name = key.lstrip("-").replace("-", "_")
        name = OLD_NAMES.get(name, name)
        if not name:
            continue
        dest, meant = (name, value) if name in parsed else destination(key, name, value)
        if dest in found and found[dest] != meant:
            raise ConfigError(f"Megatron argument {key} is given twice with different values; give one")
        found[dest] = meant
    return found


def _destinations_only(args: Mapping[str, Any]) -> set[str]:
    """Names that are a flag of another destination, which is given too: then `args` is a parsed namespace."""
    by_flag, by_dest = arguments()
    other = {name: by_flag[name].dest for name in by_flag.keys() & by_dest.keys() & args.keys()}
    return {name for name, dest in other.items() if dest != name and dest in args}


def destination(key: str, name: str, value: Any) -> tuple[str, Any]:
    """What one argument sets, and to what; a flag that turns something off sets it to the opposite of its value."""
    by_flag, by_dest = arguments()
    argument = by_flag.get(name)
    if argument is None:
        if name not in by_dest:
            raise ConfigError(f'unknown Megatron argument "{key}".{nearest(name, by_flag)}')
        return name, value
    if argument.kind not in ("StoreTrue", "StoreFalse"):
        return argument.dest, value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r} must be true or false")
    return argument.dest, value if argument.kind == "StoreTrue" or argument.flag == argument.dest else not value


def job_from_args(args: Any, num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_megatron_args`."""
    settings = dict(settings)
    ignoring = bool(settings.pop("ignore_unknown", False))
    more = parse_words(settings.pop("more_arguments", ()), ignore_unknown=ignoring)
    found = given_arguments(
        args, set_variables=settings.pop("set_variables", None), ignore_unknown=ignoring, overridden=more.values.keys()
    )
    given = {**normalised(found.args), **more.values}
    vocab = vocabulary(given, settings)
    warnings = (*found.warnings, *passed_over(more.unknown), *_refuse(given), *vocab.notes)
    values = derive(given, settings)
    if vocab.size is not None:
        values["vocab_size"] = vocab.size
    by_dest = arguments()[1]
    quiet = [
        name
        for name in values
        if name in OWNERS and name in by_dest and given.get(name, by_dest[name].default) == by_dest[name].default
    ]
    defaults = {name: values.pop(name) for name in quiet}
    values.update(settings)
    if found.env:
        values["env"] = {**found.env, **(settings.get("env") or {})}
    said = []
    if num_gpus is None and found.num_gpus is not None:
        num_gpus = found.num_gpus
        said.append(f"num_gpus as in {found.source}: {num_gpus}")
    loaded = LoadedModel(defaults, found.name, found.source, "", warnings=warnings)
    job = job_from_parts(loaded, num_gpus, values, habits=False, single_microbatch=True)
    return dataclasses.replace(job, assumptions=(*said, *job.assumptions))


REFUSED_BY_MEGATRON = {
    "checkpoint_activations": "say which recomputation is meant: --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1 is what it once was",
    "batch_size": "--micro-batch-size is meant",
    "model_parallel_size": "--tensor-model-parallel-size is meant",
    "warmup": "--lr-warmup-fraction is meant",
}
"""Old arguments that stop the program. Source: Megatron-LM `megatron/training/arguments.py` (validate_args)."""

IGNORED = "not modelled, ignored with a warning"


def _refuse(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse arguments that are not modelled; name those that belong to other programs."""
    by_dest = arguments()[1]
    ignored = []
    for dest, value in given.items():
        if value == by_dest[dest].default or value in (None, False):
            continue
        kind = argument_class(dest)
        if kind in ("modelled", "irrelevant"):
            continue
        if dest in REFUSED_BY_MEGATRON:
            raise ConfigError(f"Megatron refuses --{dest.replace('_', '-')}; {REFUSED_BY_MEGATRON[dest]}")
        if dest == "spec" and known_spec(value):
            continue
        if dest in _OTHER_PROGRAMS:
            raise UnsupportedError(f"Megatron argument {dest}={value!r} belongs to a program that is not modelled")
        if kind == IGNORED:
            ignored.append(dest)
            continue
        raise UnsupportedError(f"Megatron argument {dest}={value!r} is not modelled")
    return (f"not modelled and ignored: {', '.join(sorted(ignored))}",) if ignored else ()


def argument_class(dest: str) -> str:
    """ "modelled", "irrelevant" to memory, or "not modelled": refused by name, or ignored with a warning.

    An argument that is not modelled is accepted where its value is Megatron's default.
    """
    if dest in REFUSED_BY_MEGATRON:
        return "not modelled, refused"
    if dest in known_settings() or dest in DERIVED or dest == "tokenizer_type":
        return "modelled"
    if dest in HARMLESS or arguments()[1][dest].category == "irrelevant":
        return "irrelevant"
    other_program = arguments()[1][dest].category == "out_of_scope" and dest not in _OTHER_PROGRAMS
    return IGNORED if other_program else "not modelled, refused"


def known_spec(value: Any) -> bool:
    """Whether a layer spec is the one of hybrid models, which their patterns describe; other specs are Python code."""
    words = value if isinstance(value, list | tuple) else str(value).strip("[]").replace(",", " ").split()
    return tuple(words) in HYBRID_SPECS


HYBRID_SPECS = frozenset(
    {
        ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"),
        ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
    }
)
"""Source: Megatron-LM `megatron/core/models/hybrid/hybrid_layer_specs.py` and its older name."""

_OTHER_PROGRAMS = frozenset({"perform_rl_step", "vision_pretraining", "bert_binary_head"})
