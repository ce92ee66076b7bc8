"""Words of hydra and interpolations of OmegaConf: a tree of settings from `key=value` words and files, and what stands in it.

Sources: facebookresearch/hydra `hydra/grammar/OverrideParser.g4`; omry/omegaconf `omegaconf/grammar/OmegaConfGrammarParser.g4`,
`omegaconf/resolvers/oc/__init__.py`; NVIDIA-NeMo/RL `nemo_rl/utils/config.py`.

Interpolations of OmegaConf, `${a.b}` and `${resolver:x,y}`, evaluated where they are looked at, within bounds.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..field_names import misspelled as named
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
"""Parts of a key, lists within lists of a value, and interpolations that lead to one another."""


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


MODELS = frozenset(("model_name", "model_name_or_path", "model_path", "pretrain", "hf_checkpoint"))
"""Keys whose value is a model."""


def _models(node: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[str]:
    """The variables without a value that are models of a tree."""
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from _models(value, str(key), depth + 1)
        elif isinstance(value, str) and UNSET.fullmatch(value) and (key in MODELS or (key, above) == ("path", "model")):
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
                names = dict.fromkeys((name, *_waiting(self.root)), "N") | dict.fromkeys(_models(self.root), "MODEL")
                options = " ".join(f"--set {one}={value}" for one, value in names.items())
                raise ConfigError(f"{path} is the variable {name}, which is not set; give {options}")
            raise ConfigError(f"{path}={shown(found)} must be a whole number of at least 1")
        return found


MOST = 20_000
"""Values that are looked at for one run file."""
LONGEST = 10_000
"""Characters of a text that interpolations put together."""
RESOLVER = re.compile(r"\s*([A-Za-z_][\w.]*):(.*)", re.DOTALL)
LARGEST_RESULT = 10**18
"""Number that arithmetic gives."""
OPENING, CLOSING = "([{", ")]}"


def _divided(numbers: Sequence[float]) -> float:
    return numbers[0] / numbers[1]


ARITHMETIC: dict[str, Callable[[Sequence[float]], float]] = {
    "mul": math.prod,
    "div": _divided,
    "int_div": lambda numbers: numbers[0] // numbers[1],
    "add": sum,
    "sum": sum,
    "sub": lambda numbers: numbers[0] - numbers[1],
    "max": max,
    "min": min,
}
"""Resolvers of numbers that frameworks register."""


def split_at_commas(text: str) -> list[str]:
    """Parts between commas that stand in no bracket and no quotes; of an empty text none."""
    parts: list[str] = []
    start = depth = 0
    quote = ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts if len(parts) > 1 or parts[0].strip() else []


def pieces(text: str) -> list[tuple[bool, str]]:
    """Plain text and the insides of `${...}` in their order; one that is not closed is plain text."""
    found: list[tuple[bool, str]] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        end = _closing(text, start + 2)
        if end is None:
            break
        if start > at:
            found.append((False, text[at:start]))
        found.append((True, text[start + 2 : end]))
        at = end + 1
    if at < len(text):
        found.append((False, text[at:]))
    return found


def _closing(text: str, start: int) -> int | None:
    """The place of the brace that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return None


class Interpolations:
    """What stands in a tree. A resolver that is not known leaves its text as it is."""

    def __init__(self, root: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.root, self.env, self.looked_at = root, env, 0

    def everything(self) -> dict[str, Any]:
        """The whole tree, evaluated."""
        found: dict[str, Any] = self._value(self.root, (), 0)
        return found

    def at(self, path: Sequence[str], depth: int = 0) -> Any:
        """The value at a path, or None."""
        node: Any = self.root
        for number, part in enumerate(path):
            if isinstance(node, str):
                node = self._value(node, path[:number], depth)
            if isinstance(node, list) and part.isdecimal() and len(part) < 9:
                node = node[int(part)] if int(part) < len(node) else None
            else:
                node = node.get(part) if isinstance(node, Mapping) else None
            if node is None:
                return None
        return self._value(node, path, depth)

    def _value(self, node: Any, path: Sequence[str], depth: int) -> Any:
        """A node at a path with everything in it evaluated."""
        self.looked_at += 1
        if self.looked_at > MOST:
            raise ConfigError(f"interpolations of the file lead to more than {MOST} values")
        if depth > DEEPEST:
            raise ConfigError(f"{shown(node)} leads back to itself, or through more than {DEEPEST} others")
        if isinstance(node, Mapping):
            return {key: self._value(each, (*path, str(key)), depth + 1) for key, each in node.items()}
        if isinstance(node, list):
            return [self._value(each, (*path, str(at)), depth + 1) for at, each in enumerate(node)]
        return self._text(node, path, depth) if isinstance(node, str) and "${" in node else node

    def _text(self, text: str, path: Sequence[str], depth: int) -> Any:
        parts = [self._inside(inside, path, depth) if is_one else inside for is_one, inside in pieces(text)]
        if len(parts) == 1:
            return parts[0]
        if sum(len(str(part)) for part in parts if not isinstance(part, Mapping | list)) > LONGEST:
            raise ConfigError(f"{shown(text)} becomes longer than {LONGEST} characters")
        return "".join(part if isinstance(part, str) else shown(part) for part in parts)

    def _inside(self, inside: str, path: Sequence[str], depth: int) -> Any:
        """What an interpolation is: a resolver's value, or what stands at a path."""
        if depth > DEEPEST:
            raise ConfigError(f"${{{shown(inside)}}} leads back to itself, or through more than {DEEPEST} others")
        resolver = RESOLVER.fullmatch(inside)
        if resolver is None:
            key = self._text(inside, path, depth + 1) if "${" in inside else inside
            return self.at(_absolute(str(key).strip(), path), depth + 1)
        name = resolver.group(1)
        given = [self._argument(part, path, depth + 1) for part in split_at_commas(resolver.group(2))]
        found = self._resolved(name, given, depth)
        return "${" + inside + "}" if found is NotImplemented else found

    def _argument(self, text: str, path: Sequence[str], depth: int) -> Any:
        text = text.strip()
        if "${" in text:
            return self._text(text, path, depth)
        return scalar(text.strip("'\""))

    def _resolved(self, name: str, given: list[Any], depth: int) -> Any:
        """What a resolver gives; NotImplemented for one that is not known, or is not given what it takes."""
        fallback = given[1] if len(given) > 1 else None
        if name in ("oc.env", "env") and given:
            found = self.env.get(str(given[0]))
            if found is None and len(given) < 2:
                return NotImplemented
            return fallback if found is None else scalar(found)
        if name == "oc.select" and given:
            found = self.at(str(given[0]).split("."), depth + 1)
            return fallback if found is None else found
        if name == "oc.decode" and given:
            return scalar(given[0]) if isinstance(given[0], str) else given[0]
        numbers = [each for each in given if isinstance(each, int | float) and not isinstance(each, bool)]
        if name not in ARITHMETIC or len(numbers) != len(given) or len(given) < 2:
            return NotImplemented
        try:
            number = ARITHMETIC[name](numbers)
            if not abs(number) < LARGEST_RESULT:
                return NotImplemented
            return int(number) if isinstance(number, float) and number.is_integer() else number
        except (ZeroDivisionError, OverflowError, ValueError):
            return NotImplemented


def _absolute(key: str, path: Sequence[str]) -> list[str]:
    """The path that a key means at a path; the first dot in front of it is the mapping that it stands in, each more one above."""
    name = key.lstrip(".")
    ups = len(key) - len(name)
    parts = name.replace("[", ".").replace("]", "").split(".")
    return [*path[: max(len(path) - ups, 0)], *parts] if ups else parts
