"""Words of hydra and interpolations of OmegaConf: a tree of settings from `key=value` words and files, and what stands in it.

Sources: facebookresearch/hydra `hydra/grammar/OverrideParser.g4`; omry/omegaconf `omegaconf/grammar/OmegaConfGrammarParser.g4`,
`omegaconf/resolvers/oc/__init__.py`; NVIDIA-NeMo/RL `nemo_rl/utils/config.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..field_names import misspelled as named
from .interpolation import Interpolations, split_at_commas
from .words import scalar

KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w@/-]*(\.[\w@/-]+)*")
UNSET = re.compile(r"\$\{(?:oc\.)?env:\s*([A-Za-z_]\w*)\s*\}|\$([A-Za-z_]\w*)")
"""A variable of the environment, or of the script, that has no value."""
COUNTED = re.compile(r".*(?:size|nodes|gpus|per_gpu|per_node|length|_len|num_layers|per_prompt)|n")
"""Keys whose values are counts."""
LARGEST = 10**12
"""Count of anything."""
NEAR = 0.88
"""How alike a key is to one that was looked for, where the fields of a section are not known: a letter in eight."""
SURE = 0.92
"""The same where the one that is looked for is given too."""
DEEPEST = 40
"""Parts of a key, and lists within lists of a value."""


def parted(
    words: Sequence[str], short: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Options of the program (`--config-name x`, `-cn x`), and overrides as keys, with what stands before them, and texts.

    Words that are neither are passed over. `short` are short names of options where they are not hydra's.
    """
    names = OPTIONS if short is None else short
    options: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    waiting = ""
    for word in words:
        key, equals, text = word.partition("=")
        if word.startswith("-") and len(word) > 1:
            waiting = names.get(key.lstrip("-"), key.lstrip("-").replace("_", "-"))
            options[waiting] = text
            waiting = "" if equals else waiting
        elif (equals or key.startswith("~")) and KEY.fullmatch(key):
            found.append((key, text))
            waiting = ""
        elif waiting:
            options[waiting], waiting = word, ""
    return options, found


OPTIONS = {"cn": "config-name", "cp": "config-path", "cd": "config-dir"}
"""Short names of hydra's options."""


def value(text: str, depth: int = 0) -> Any:
    """The value that a text means: quoted text, a list, a mapping, null, a number, true, false, or itself."""
    text = text.strip()
    if depth > DEEPEST:
        raise ConfigError(f"{shown(text)} is nested more than {DEEPEST} deep")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]:
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [value(part, depth + 1) for part in split_at_commas(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        pairs = [part.partition(":") for part in split_at_commas(text[1:-1])]
        return {key.strip().strip("'\""): value(rest, depth + 1) for key, colon, rest in pairs if colon}
    return text if text.lower() in ("none", "~", "") else scalar(text)


def overridden(tree: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The tree with `key=value`, `+key=value`, `++key=value` and `~key` applied in their order."""
    out = copy.deepcopy(dict(tree))
    for key, text in overrides:
        path = key.lstrip("+~").split(".")
        if len(path) > DEEPEST:
            raise ConfigError(f"{shown(key)} has more than {DEEPEST} parts")
        if key.startswith("~"):
            _remove(out, path)
        else:
            _put(out, path, value(text))
    return out


def _put(tree: dict[str, Any], path: Sequence[str], given: Any) -> None:
    """Sets a value; a mapping is merged into the mapping that is there."""
    *above, last = path
    for part in above:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    there = tree.get(last)
    tree[last] = merged(there, given) if isinstance(there, dict) and isinstance(given, dict) else given


def _remove(tree: dict[str, Any], path: Sequence[str]) -> None:
    *above, last = path
    for part in above:
        below = tree.get(part)
        if not isinstance(below, dict):
            return
        tree = below
    tree.pop(last, None)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` above `base`, key by key; a mapping with `_override_: true` takes the place of the one below."""
    out = dict(base)
    for key, given in over.items():
        if key == "_override_":
            continue
        below = out.get(key)
        if isinstance(given, Mapping):
            keeps = isinstance(below, Mapping) and given.get("_override_") is not True
            out[key] = merged(below if keeps and isinstance(below, Mapping) else {}, given)
        else:
            out[key] = given
    return out


def _unset(found: Any) -> str:
    """The variable without a value in a text, or none."""
    match = UNSET.search(found[:1000]) if isinstance(found, str) else None
    return match[1] or match[2] if match else ""


def _waiting(node: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """The variables without a value that are counts of a tree."""
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from _waiting(value, depth + 1)
        elif isinstance(value, str) and UNSET.fullmatch(value) and COUNTED.fullmatch(str(key)):
            yield _unset(value)


def misspelled(root: Mapping[str, Any], asked: Collection[str], fields: Mapping[str, Collection[str]]) -> list[str]:
    """Keys of a tree that are near a field of their section, or near one that was looked for there: any at the top, below it one that is
    not given. `fields` are those of the sections whose fields are known."""
    wanted: dict[str, dict[str, None]] = {section: {} for section in fields}
    for path in asked:
        parts = path.split(".")
        for at in range(len(parts)):
            wanted.setdefault(".".join(parts[:at]), {})[parts[at]] = None
    found: list[str] = []
    for above, names in wanted.items():
        node: Any = root
        for part in above.split(".") if above else ():
            node = node.get(part) if isinstance(node, Mapping) else None
        keys = [key for key in node if isinstance(key, str)] if isinstance(node, Mapping) else []
        strange = [key for key in keys if key not in names]
        if above in fields:
            found += named(above, strange, {*names, *fields[above]})
        else:
            found += named(above, strange, [name for name in names if not above or name not in keys], NEAR)
            found += named(above, strange, [name for name in names if above and name in keys], SURE)
    return found


class Tree:
    """A tree of settings, read by dotted paths; interpolations are evaluated where they are looked at."""

    def __init__(self, root: Mapping[str, Any], env: Mapping[str, str], own: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.own = root if own is None else own
        self.interpolations = Interpolations(root, env)
        self.asked: dict[str, None] = {}

    def misspelled(self, fields: Mapping[str, Collection[str]] | None = None) -> list[str]:
        """Paths of the run's own that are near a field of their section, or near one that was looked for, with what is meant."""
        return misspelled(self.own, self.asked, fields or {})

    def at(self, path: str, default: Any = None) -> Any:
        """What stands at a path; the default where nothing does, or ???, which is for the user to fill in."""
        self.asked[path] = None
        found = self.interpolations.at(path.split("."))
        return default if found is None or found == "???" else found

    def section(self, path: str) -> dict[str, Any]:
        """The mapping at a path, or an empty one."""
        found = self.at(path, {})
        return {str(key): each for key, each in found.items()} if isinstance(found, Mapping) else {}

    def has(self, path: str) -> bool:
        """Whether something stands at a path, a null too."""
        node: Any = self.root
        for part in path.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return False
            node = node[part]
        return True

    def on(self, path: str, default: bool = False) -> bool:
        """A switch. Raises ConfigError for what is none."""
        found = self.at(path, default)
        found = scalar(found) if isinstance(found, str) else found
        if found is None or found in (0, 1):
            return bool(found)
        raise ConfigError(f"{path}={shown(found)} must be true or false")

    def number(self, path: str, default: float = 0.0) -> float:
        """A number. Raises ConfigError for what is none."""
        found = self.at(path, default)
        found = scalar(found) if isinstance(found, str) else found
        if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= LARGEST:
            raise ConfigError(f"{path}={shown(found)} must be a number")
        return found

    def count(self, path: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, or the default. Raises ConfigError for what is none."""
        found = self.at(path, default)
        found = scalar(found) if isinstance(found, str) else found
        if found is None:
            return None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= LARGEST:
            if name := _unset(found):
                names = dict.fromkeys((name, *_waiting(self.root)))
                options = " ".join(f"--set {one}=N" for one in names)
                raise ConfigError(f"{path} is the variable {name}, which is not set; give {options}")
            raise ConfigError(f"{path}={shown(found)} must be a whole number of at least 1")
        return found
