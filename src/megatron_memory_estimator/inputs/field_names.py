"""The fields that a framework's sections have, and the one that a key without a field is nearest to.

`field_names.json` holds names alone, with their source; a framework's other versions have more of them and fewer, so that a key that is
none is a misspelling only where it is near one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from functools import cache

NEAR = 0.8
"""How alike a key is to the field that is meant."""
SHORTEST = 4
"""Letters of a key that is compared: shorter ones are like too many."""


@cache
def fields_of(framework: str) -> dict[str, frozenset[str]]:
    """The fields of every section of a framework; the section "" is the top."""
    path = os.path.join(os.path.dirname(__file__), "field_names.json")
    with open(path, encoding="utf-8") as file:
        sections: dict[str, str] = json.load(file)[framework]["sections"]
    return {name: frozenset(words.split()) for name, words in sections.items()}


def meant(key: str, names: Collection[str], near: float = NEAR) -> str:
    """The name that a key is a misspelling of, or a part up to an underscore; none where it is a name itself, or near none.

    A misspelling begins as the name does.
    """
    from difflib import get_close_matches

    if key in names or len(key) < SHORTEST:
        return ""
    parts = sorted((name for name in names if _part(key, name)), key=lambda name: (len(name), name))
    found = get_close_matches(key, [name for name in names if name[:1] == key[:1]], 1, near) or parts
    return found[0] if found else ""


def _part(key: str, name: str) -> bool:
    """Whether a key is the beginning or the end of a name, in words or in letters of its last word."""
    return name.startswith(key) or name.endswith(f"_{key}")


def misspelled(section: str, keys: Iterable[str], names: Collection[str], near: float = NEAR) -> list[str]:
    """The keys of a section that are misspellings, with what is meant."""
    at = f"{section}." if section else ""
    return [f"{at}{key} (is it {found}?)" for key in keys if (found := meant(key, names, near))]
