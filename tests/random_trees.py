"""Random settings as trees and as words, for the readers of frameworks that compose them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

ODD = ("${..}", "${a:b}", "???", "full", "[1,2", "{a:b}", "${", "${mul:${n},${n}}")
"""Texts that a composer of settings reads in its own way."""


def leaves(*texts: str) -> st.SearchStrategy[Any]:
    """Values of a setting: of any type, odd texts, and these."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from([*ODD, *texts]),
    )


def nested(values: st.SearchStrategy[Any], max_leaves: int = 5) -> st.SearchStrategy[Any]:
    """Values, small lists and small mappings of them under any names."""
    return st.recursive(
        values,
        lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(st.text(max_size=5), one, max_size=3)),
        max_leaves=max_leaves,
    )


def trees(parts: st.SearchStrategy[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings of settings within each other, and lists of them."""
    inner = st.recursive(
        values,
        lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(parts, one, max_size=6)),
        max_leaves=25,
    )
    return st.dictionaries(parts, inner, max_size=8)


def paths_with_values(
    parts: st.SearchStrategy[str], values: st.SearchStrategy[Any]
) -> st.SearchStrategy[list[tuple[list[str], Any]]]:
    """Paths of settings with values, as words of a command."""
    return st.lists(st.tuples(st.lists(parts, min_size=1, max_size=5), values), max_size=8)
