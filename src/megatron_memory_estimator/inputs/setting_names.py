"""Names of settings: which there are, who owns them, and Megatron's current name of an older one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..job.hardware import Environment
from ..job.layout import SHORT, Layout
from ..job.model import Model
from ..job.rollout import Rollout
from ..job.settings import nearest
from ..job.training import Training
from .searched import OTHER_AXES
from .transformer_config import IRRELEVANT, KNOWN, RENAMED, UNCOUNTED, UNSUPPORTED, known_of

PARTS: tuple[type[Any], ...] = (Model, Layout, Training, Rollout, Environment)


@functools.cache
def known_settings() -> dict[str, type[Any]]:
    """Every setting's name and the dataclass that owns it."""
    return {f.name: part for part in PARTS for f in dataclasses.fields(part) if not f.metadata.get("internal")}


def sorted_settings(values: Mapping[str, Any]) -> dict[type[Any], dict[str, Any]]:
    """The values by owning dataclass; unknown names are refused with the nearest match."""
    known = known_settings()
    by_owner: dict[type[Any], dict[str, Any]] = {part: {} for part in PARTS}
    for given, value in values.items():
        name = current_name(given)
        if name in IRRELEVANT or name in UNCOUNTED:
            continue
        if name in UNSUPPORTED:
            if value not in UNSUPPORTED[name]:
                raise ConfigError(f"{name}={value!r} is not modelled; only {UNSUPPORTED[name][0]!r} is")
            continue
        if name in KNOWN:
            raise ConfigError(f"{name} is not modelled{known_of(name)}")
        if name in OTHER_AXES:
            raise ConfigError(
                f'{name} is no setting but an axis of plan: give it there, as {{"{name}": "{value}"}} in axes'
            )
        if name not in known:
            near = nearest(name, ["num_gpus", *known, *IRRELEVANT, *UNCOUNTED])
            raise ConfigError(f'unknown setting "{name}".{near}')
        by_owner[known[name]][name] = value
    return by_owner


def current_name(name: str) -> str:
    """Megatron's current name of a setting, underscored."""
    word = name.replace("-", "_")
    return RENAMED.get(word, word)


def full_name(name: str) -> str:
    """Megatron's current name of a setting that may be short, dashed or old."""
    return current_name(SHORT.get(name, name))


def canonical(values: Mapping[str, Any], name_of: Callable[[str], str] = current_name) -> dict[str, Any]:
    """The values by Megatron's current names; two spellings with different values are refused."""
    renamed: dict[str, Any] = {}
    for given, value in values.items():
        name = name_of(given)
        if name in renamed and not _same(renamed[name], value):
            raise ConfigError(f"{name} is given twice, under two names, with different values; give one")
        renamed[name] = value
    return renamed


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
