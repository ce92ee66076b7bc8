"""FlagScale's files: an experiment, the training in a second file, and `${a.b}` of OmegaConf.

Source: FlagOpen/FlagScale `flagscale/runner/utils.py`, `run.py`, `examples/*/conf/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .documents import named_by, needed
from .hydra import merged
from .hydra import overridden as override
from .run import Run
from .words import scalar

FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
MOST_FILES = 20
"""Files that one experiment may be made of."""
DEEPEST = 30
"""Mappings inside mappings, and references to references."""
REFERENCE = re.compile(r"\$\{([^${}]+)\}")
PACKAGE = re.compile(r"^#\s*@package\s+(_global_|_group_)\s*$", re.MULTILINE)
Tree = dict[str, Any]


def read_file(run: Run, path: str) -> Tree:
    """The mapping in a file. Raises ConfigError with the path where it is not there."""
    return needed(run, path, "a mapping", named_by(run, path), empty=True, follows=FOLLOWS)


def composed(run: Run, document: Mapping[str, Any], folder: str) -> Tree:
    """The experiment with the files of its `defaults`, all of which must be there but hydra's own."""
    left = [MOST_FILES]

    def one(path: str, document: Mapping[str, Any], group: str) -> Tree:
        left[0] -= 1
        if left[0] < 0:
            raise ConfigError(f"{run.path}: more than {MOST_FILES} files are named under defaults")
        own = {str(key): value for key, value in document.items() if key != "defaults"}
        found: Tree = {}
        rest = own
        for entry in _entries(document, path):
            if entry == "_self_":
                found, rest = merged(found, rest), {}
                continue
            for child, name in _named(entry, group):
                inner = f"{folder}{child}/{name}.yaml" if child else f"{folder}{name}.yaml"
                if child.partition("/")[0] == "hydra" and run.text_of(inner) is None:
                    continue
                tree = one(inner, read_file(run, inner), child)
                package = PACKAGE.search(run.text_of(inner) or "")
                everywhere = not child or child == group or (package is not None and package.group(1) == "_global_")
                found = merged(found, tree if everywhere else {child: tree})
        return merged(found, rest)

    return one(run.path, document, "")


def _entries(document: Mapping[str, Any], path: str) -> list[Any]:
    entries = document.get("defaults") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{shown(path)}: defaults must be a list of files")
    return entries


def _named(entry: Any, group: str) -> list[tuple[str, str]]:
    """(group, file) of an entry of `defaults`; none where it is null."""
    if isinstance(entry, str):
        return [(group, entry.removesuffix(".yaml"))]
    if not isinstance(entry, Mapping):
        raise ConfigError(f"defaults: {shown(entry)} names no file")
    found = []
    for key, value in entry.items():
        names = value if isinstance(value, list) else [value]
        child = str(key).removeprefix("override ").lstrip("/")
        found += [(child, str(name).removesuffix(".yaml")) for name in names if name is not None]
    return found


def overridden(tree: Tree, words: tuple[str, ...]) -> Tree:
    """The tree with hydra's words: `a.b=value`, `+a.b=value`, `~a.b`; others are passed over."""
    pairs = []
    for word in words:
        path, equals, value = word.partition("=")
        keys = path.lstrip("+~").split(".")
        if not word.startswith("-") and all(keys) and len(keys) <= DEEPEST and (equals or word.startswith("~")):
            pairs.append((path, value))
    return override(tree, pairs)


def resolved(tree: Tree, env: Mapping[str, str]) -> Tree:
    """The tree with `${a.b}` and `${oc.env:NAME,default}` replaced; what stands nowhere stays as it is written."""

    def lookup(name: str) -> Any:
        if name.startswith("oc.env:"):
            variable, comma, default = name.removeprefix("oc.env:").partition(",")
            written = env.get(variable.strip(), default if comma else None)
            return None if written is None else scalar(written)
        found: Any = tree
        for key in name.strip().split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    found: Tree = _replaced(tree, lookup, 0)
    return found


def _replaced(value: Any, lookup: Callable[[str], Any], depth: int) -> Any:
    if depth > DEEPEST:
        raise ConfigError(f"references or mappings stand more than {DEEPEST} deep inside each other")
    if isinstance(value, Mapping):
        return {str(key): _replaced(each, lookup, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, lookup, depth + 1) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = REFERENCE.fullmatch(value.strip())
    if whole:
        found = lookup(whole.group(1))
        return value if found is None and not _named_null(whole.group(1)) else _replaced(found, lookup, depth + 1)
    return REFERENCE.sub(lambda match: _as_text(lookup(match.group(1)), match.group(0)), value)


def _named_null(name: str) -> bool:
    """Whether a reference that finds nothing is null: one into the experiment, whose files are all there."""
    return not name.startswith(("oc.", "hydra", "now"))


def _as_text(found: Any, written: str) -> str:
    return written if found is None or isinstance(found, Mapping | list) else str(found)
