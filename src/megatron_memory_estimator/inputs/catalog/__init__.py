"""Bundled facts of public models: architecture fields of their Hugging Face configs, with sources."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any, NamedTuple

from ...tables import rows_beside


@lru_cache(maxsize=1)
def entries() -> dict[str, dict[str, Any]]:
    """`{model id: {"source", "confidence", "config"}}`, sorted by id."""
    with open(os.path.join(os.path.dirname(__file__), "models.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, Any]] = json.load(file)
    return found


class Alias(NamedTuple):
    """Another model with the shape of one of the catalogue.

    `how`: "read" or "recalled", or why it cannot be taken: its "tower" is not in the catalogue, the "class only" is the same, or its class,
    which `same_as` names then, is "refused". `changes` are fields of the config that differ, `may_differ` what may.
    """

    id: str
    same_as: str
    how: str
    changes: dict[str, int]
    may_differ: str


@lru_cache(maxsize=1)
def aliases() -> dict[str, Alias]:
    """Models by the lower-case id that the Hub has for them."""
    rows = [
        Alias(row["id"], row["same_as"], row["how"], _changes(row["changes"]), row["may_differ"])
        for row in rows_beside(__file__, "aliases.csv")
    ]
    return {row.id.lower(): row for row in rows}


def alias_named(word: str) -> Alias | None:
    """The alias of an id, or of the part of it behind the owner where no other has that. An id without an owner is that of any."""
    known, name = aliases(), word.lower()
    named = known.get(name) or known.get(name.rpartition("/")[2])
    if named is not None:
        return named
    alike = [one for one in known.values() if one.id.rpartition("/")[2].lower() == name]
    return alike[0] if len(alike) == 1 else None


def _changes(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}
