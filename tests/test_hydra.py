"""Words of hydra and interpolations of OmegaConf."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.inputs.dialects.hydra import Tree, merged, overridden, parted, value


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("3", 3), ("1.", 1.0), ("1e-6", 1e-6), ("True", True), ("null", None), ("none", "none"), ("", ""), ("a b", "a b"), ("'3'", "3"),
        ('"Et*2|(tt|)*3"', "Et*2|(tt|)*3"), ("[a,2,[b]]", ["a", 2, ["b"]]), ("[]", []), ("{a:1,b:[x,y]}", {"a": 1, "b": ["x", "y"]}),
        ("['/a,b','c']", ["/a,b", "c"]), ("Et|t*2|L", "Et|t*2|L"), ("[1,2", "[1,2"), ("${a.b}", "${a.b}"),
    ],
)  # fmt: skip
def test_values(text: str, meant: Any) -> None:
    found = value(text)
    assert (found, type(found)) == (meant, type(meant))


def test_options_and_overrides() -> None:
    options, words = parted(
        ["--config-path=x", "-cn", "y", "a.b=1", "+c=2", "~d", "--config_dir", "z", "stray", "n=a=b"]
    )
    assert options == {"config-path": "x", "config-name": "y", "config-dir": "z"}
    assert words == [("a.b", "1"), ("+c", "2"), ("~d", ""), ("n", "a=b")]


def test_overrides_are_applied_in_order() -> None:
    tree = {"a": {"b": 1, "c": 2}, "d": 3}
    words = [("a.b", "5"), ("+a.e.f", "[1]"), ("~d", ""), ("a.c.x", "1"), ("++a.e", "{g:2}"), ("~no.such", "")]
    assert overridden(tree, words) == {"a": {"b": 5, "c": {"x": 1}, "e": {"f": [1], "g": 2}}}
    assert tree == {"a": {"b": 1, "c": 2}, "d": 3}, "the tree itself stays"


def test_a_child_wins_key_by_key() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merged(base, {"a": {"c": {"f": 4}}, "e": None}) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": None}
    assert merged(base, {"a": {"_override_": True, "b": 7}})["a"] == {"b": 7}


def test_interpolations() -> None:
    tree = Tree(
        {
            "p": {"n": 4, "up": "${.n}", "q": {"over": "${..n}", "m": "${mul:${p.n}, ${mul:2, ${..n}}}"}},
            "list": [1, "${p.n}"], "text": "x-${p.n}-y", "half": "${div:${p.n},8}", "sum": "${add:1,2,3}", "most": "${max:1,${p.n}}",
            "env": "${oc.env:SIZE,7}", "given": "${oc.env:GIVEN}", "pick": "${oc.select:p.none,9}", "other": "${now:%Y}", "below": "${p}",
            "key": "${p.${which}}", "which": "n", "by_zero": "${div:1,0}", "at": "${list[1]}",
        },
        {"GIVEN": "12"},
    )  # fmt: skip
    wanted = {
        "p.up": 4, "p.q.over": 4, "p.q.m": 32, "list": [1, 4], "text": "x-4-y", "half": 0.5, "sum": 6, "most": 4, "env": 7, "given": 12,
        "pick": 9, "other": "${now:%Y}", "key": 4, "by_zero": "${div:1,0}", "at": 4, "below.q.m": 32, "p.no.such": None,
    }  # fmt: skip
    assert {path: tree.at(path) for path in wanted} == wanted


def test_bounds() -> None:
    with pytest.raises(ConfigError, match="leads back to itself"):
        Tree({"a": "${b}", "b": "${a}"}, {}).at("a")
    wide = {f"k{level}": {"x": f"${{k{level + 1}}}", "y": f"${{k{level + 1}}}"} for level in range(17)}
    with pytest.raises(ConfigError, match="more than 20000 values"):
        Tree({**wide, "k17": 1}, {}).at("k0")
    long = {f"k{level}": f"${{k{level + 1}}}${{k{level + 1}}}" for level in range(17)}
    with pytest.raises(ConfigError, match=r"longer than 10000|more than 20000"):
        Tree({**long, "k17": "word"}, {}).at("k0")
    with pytest.raises(ConfigError, match="deep"):
        value("[" * 100 + "]" * 100)
    with pytest.raises(ConfigError, match="parts"):
        overridden({}, [(".".join("a" * 50), "1")])
    assert (
        Tree({"a": "${" * 5000, "b": "${mul:999999999999,999999999999}"}, {}).at("b")
        == "${mul:999999999999,999999999999}"
    )


def test_wrong_kinds_are_named() -> None:
    tree = Tree({"a": {"n": "x", "b": "maybe", "f": float("inf"), "v": "${oc.env:V}"}}, {})
    for read, path, text in (
        (tree.count, "a.n", "a.n='x' must be a whole number"), (tree.on, "a.b", "a.b='maybe' must be true or false"),
        (tree.number, "a.f", "a.f=inf must be a number"), (tree.count, "a.v", "give --set V=N"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            read(path)
        assert text in str(error.value)
