"""Recipes of Megatron-Bridge by name, from the table that scripts/bridge_recipes.py makes.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/recipes/`, `src/megatron/bridge/perf_recipes/`, `scripts/training/run_recipe.py`,
`scripts/performance/setup_experiment.py`.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import shown

TABLE = os.path.join(os.path.dirname(__file__), "bridge_recipes.json.gz")
GZIP = 31
"""zlib's word for a stream with gzip's header."""
MOST_NAMED = 4
"""Names that a refusal proposes."""
NAME = re.compile(
    r"(?P<stem>.+)_(?P<task>pretrain|sft|peft)_(?P<gpus>\d+)gpu_(?P<gpu>[a-z]+\d+)_(?P<precision>[a-z0-9]+)(?P<variant>_.+)?_config"
)


GPUS = {
    "h100": "H100-80GB", "b200": "B200-180GB", "b300": "B300-288GB", "gb200": "GB200-186GB", "gb300": "GB300-288GB",
}  # fmt: skip
"""GPUs that names of recipes have, by our names."""
UNKNOWN_GPU = "GB300-288GB"
"""Stands for GPUs that are not published yet (r100, vr200), with as much memory."""


class Recipe(NamedTuple):
    """A recipe: the model by its Hub id, the GPUs that it is for, and the sections of its ConfigContainer.

    own_model    the recipe states the architecture itself, and the Hub id only names it
    performance  of perf_recipes, which scale their global batch with the number of GPUs
    partial      its settings are of more than one version of Bridge
    """

    name: str
    aliases: tuple[str, ...]
    hub: str
    own_model: bool
    gpus: int | None
    gpu: str
    precision: str
    performance: bool
    partial: bool
    env: Mapping[str, str]
    sections: Mapping[str, Any]

    @property
    def task(self) -> str:
        """What the recipe does: pretrain, sft or peft."""
        return next((task for task in ("pretrain", "peft", "sft") if f"_{task}_" in self.name), "pretrain")


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    with open(TABLE, "rb") as file:
        found: Mapping[str, Any] = json.loads(zlib.decompress(file.read(), GZIP))
    return found


@lru_cache(maxsize=1)
def _names() -> Mapping[str, str]:
    """Exact names and aliases, and the exact name of each."""
    rows = _table()["recipes"]
    aliases = {alias: name for name, row in rows.items() for alias in row[0]}
    return {**aliases, **{name: name for name in rows}}


def names() -> tuple[str, ...]:
    """Exact names of all recipes."""
    return tuple(_table()["recipes"])


def named_by_parts() -> list[re.Match[str]]:
    """The names that say a model, a task, GPUs and a precision, in these groups."""
    return [match for name in names() if (match := NAME.fullmatch(name))]


def is_recipe(name: str) -> bool:
    """Whether a word is a recipe's exact name or an alias; the table is not read for words that cannot be."""
    return name.endswith("_config") and name in _names()


def recipe(name: str) -> Recipe:
    """The recipe of a name. Raises ConfigError with the nearest names for one that is none."""
    exact = _names().get(name)
    if exact is None:
        raise ConfigError(f"{shown(name)} is no recipe of Megatron-Bridge that is known" + _instead(_nearest(name)))
    table = _table()
    *facts, parts = table["recipes"][exact]
    aliases, hub, own, gpus, gpu, precision, performance, partial, env = facts
    sections: dict[str, Any] = {}
    for number in parts:
        for section, values in table["parts"][number].items():
            if isinstance(values, str):
                sections[section] = values
            else:
                sections[section] = {**sections.get(section, {}), **values}
    return Recipe(
        exact, tuple(aliases), hub or "", own, gpus, gpu or "", precision or "", performance, partial, env or {}, sections
    )  # fmt: skip


def _nearest(name: str) -> list[str]:
    """Recipes that begin like the name, else those that are spelled like it."""
    begin = name.removesuffix("_config")
    if begin and (longer := [one for one in names() if one.startswith(f"{begin}_")]):
        return longer
    from difflib import get_close_matches

    return get_close_matches(name[:200], _names(), n=MOST_NAMED, cutoff=0.6)


def of_model(stem: str, task: str) -> str:
    """The recipe of a model's short name and a task. Raises ConfigError where there is none, or which there are."""
    for name in (f"{stem}_{task}_config", stem if stem.endswith("_config") else ""):
        if name in _names():
            return name
    found = [name for name in names() if name.startswith(f"{stem}_{task}_")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"several recipes of Megatron-Bridge are {shown(stem)} {task}: {_listed(found)}; give one with --recipe"
        )
    from difflib import get_close_matches

    stems = {match["stem"] for match in named_by_parts() if match["task"] == task}
    near = get_close_matches(stem[:100], sorted(stems), n=MOST_NAMED, cutoff=0.5)
    raise ConfigError(f"no recipe of Megatron-Bridge is {shown(stem)} {task}" + _instead(near))


def of_performance(stem: str, task: str, gpu: str, precision: str, gpus: int | None, variant: str = "") -> str:
    """The performance recipe of a launcher's words, the one nearest in GPUs. Raises ConfigError with what there is."""
    found = []
    for match in named_by_parts():
        if match["stem"] == stem and match["task"] == task and (match["variant"] or "_")[1:] == variant:
            found.append((match["gpu"], match["precision"], int(match["gpus"]), match[0]))
    fitting = [one for one in found if one[:2] == (gpu, precision)]
    if not fitting:
        near = sorted({name for *_, name in found}) or [name for name in names() if name.startswith(stem)]
        raise ConfigError(
            f"no recipe of Megatron-Bridge is {shown(' '.join((stem, task, gpu, precision, variant)).rstrip())}"
            + _instead(near[:MOST_NAMED])
        )
    wanted = gpus or fitting[0][2]
    return min(fitting, key=lambda one: (abs(one[2] - wanted), not recipe(one[3]).performance))[3]


def _instead(near: Sequence[str]) -> str:
    return f"; the nearest are {_listed(near)}" if near else ""


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def all_recipes() -> Iterator[Recipe]:
    """Every recipe."""
    return map(recipe, names())
