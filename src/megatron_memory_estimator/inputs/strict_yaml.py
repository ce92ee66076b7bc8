"""YAML read in two steps: the graph of its nodes, whose size is known before anything is made of it, then plain values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from ..errors import ConfigError
from ..wording import LONGEST_SHOWN, MOST_DIGITS, plain, shown

LARGEST_YAML = 2**20
"""Bytes of a YAML file."""
MOST_VALUES = 100_000
"""Values of a document with every alias and merge written out."""
_PREFIX = "tag:yaml.org,2002:"
TAGS = ("str", "int", "float", "bool", "null", "map", "seq")


def parse_yaml(text: str, where: str, repeated: list[str] | None = None) -> Any:
    """The document in a text as plain values. Keys that stand twice go into `repeated`, and the last of them counts; without
    such a list they are refused. Raises ConfigError with the file (`where`) and, where one is known, the line."""
    with _told(where):
        loader = _Strict(text, where, repeated)
        node = loader.get_single_node()
        return None if node is None else _made(loader, node, where)


def parse_documents(text: str, where: str, repeated: list[str] | None = None) -> list[Any]:
    """The documents in a text, between lines of ---, as `parse_yaml` reads one."""
    with _told(where):
        loader = _Strict(text, where, repeated)
        found = []
        while (node := loader.get_node() if loader.check_node() else None) is not None:
            found.append(_made(loader, node, where))
        return found


def _made(loader: _Strict, node: yaml.Node, where: str) -> Any:
    """The plain values of a node."""
    if _size(node) > MOST_VALUES:
        raise _too_many(where)
    return loader.construct_document(node)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Raises ConfigError for whatever goes wrong in a file."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"{where} is not valid YAML: {problem}{at}") from None
    except ConfigError:
        raise
    except (RecursionError, TypeError, ValueError):
        raise ConfigError(f"{where} is not a usable YAML document") from None


def _too_many(where: str) -> ConfigError:
    return ConfigError(f"{where} holds more than {MOST_VALUES} values; a run description does not")


class _Strict(yaml.SafeLoader):
    """Safe; nodes are counted as they are read, tags are few, no key stands twice unseen, and numbers have an end."""

    def __init__(self, text: str, where: str, repeated: list[str] | None = None) -> None:
        super().__init__(text)
        self.where, self.nodes, self.repeated = where, 0, repeated

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.nodes += 1
        if self.nodes > MOST_VALUES:
            raise _too_many(self.where)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!") and tag.removeprefix(_PREFIX) not in TAGS:
            name = tag.replace(_PREFIX, "!!")
            line = event.start_mark.line + 1
            raise ConfigError(f"{self.where}, line {line}: the tag {shown(name)} is not one of !!{', !!'.join(TAGS)}")
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep=deep)
        kind, line = node.tag.removeprefix(_PREFIX), node.start_mark.line + 1
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, KeyError, IndexError, AttributeError, OverflowError):
            raise ConfigError(f"{self.where}, line {line}: {shown(node.value)} is not a value of !!{kind}") from None
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{self.where}, line {line}: {shown(value)} holds a null byte, which no setting does")
        if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise ConfigError(
                f"{self.where}, line {line}: {shown(node.value)} is {shown(value)}, which nothing here has"
            )
        return value

    def once(self, node: yaml.MappingNode) -> dict[Any, Any]:
        """A mapping of which no key stands twice, with what it merges."""
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag.endswith(":merge") or not isinstance(key_node, yaml.ScalarNode):
                continue  # only plain keys can be equal; others are refused when the mapping is made
            key = self.construct_object(key_node)
            if key in keys and self.repeated is None:
                raise ConfigError(f'{self.where}: the key "{plain(str(key))}" appears twice in one mapping')
            if key in keys and self.repeated is not None:
                self.repeated.append(plain(str(key), LONGEST_SHOWN))
            keys.add(key)
        self.flatten_mapping(node)
        return self.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _Strict.once)


def _size(root: yaml.Node) -> int:
    """Nodes below and with a node, every alias and merge written out; more than the limit for a node that holds itself.

    Each node is looked at once, on a stack of its own: first its parts are put on top of it, then they are added up.
    """
    sizes: dict[int, int] = {}
    begun: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        parts = _parts(node)
        if id(node) in sizes:
            stack.pop()
        elif id(node) in begun:
            sizes[id(node)] = min(1 + sum(sizes.get(id(part), MOST_VALUES) for part in parts), MOST_VALUES + 1)
            stack.pop()
        else:
            begun.add(id(node))
            stack.extend(part for part in parts if id(part) not in begun)
    return sizes[id(root)]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
