"""Text and YAML files, read strictly."""

from __future__ import annotations

import os
from typing import Any

from ..errors import ConfigError
from .hf.load import LARGEST_FILE, shortened

MOST_VALUES = 100_000


def _larger_than(value: Any, most: int) -> bool:
    """Whether a tree holds more than `most` values, counted with every alias written out."""
    stack, count = [value], 0
    while stack:
        count += 1
        if count > most:
            return True
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def read_text(path: str) -> str:
    """A UTF-8 text file. Raises ConfigError for one that cannot be read."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError(f"no such file: {shortened(path)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {shortened(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{shortened(path)} is larger than {LARGEST_FILE} bytes")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{shortened(path)} is not UTF-8 text") from None


def read_yaml(path: str) -> dict[str, Any]:
    """The mapping in a YAML file; no key may stand twice, no object is made but plain ones."""
    import yaml

    class Strict(yaml.SafeLoader):
        """Safe, and no key stands twice."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value if not key.tag.endswith(":merge")]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f'{shortened(path)}: the key "{key}" stands twice in one mapping')
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    text = read_text(path)
    try:
        found = yaml.load(text, Loader=Strict)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"{shortened(path)} is not valid YAML: {problem}{where}") from None
    except (RecursionError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{shortened(path)} is not a usable YAML document") from None
    if _larger_than(found, MOST_VALUES):
        raise ConfigError(f"{shortened(path)} holds more than {MOST_VALUES} values; a run description does not")
    if not isinstance(found, dict):
        raise ConfigError(f"{shortened(path)} must hold a mapping")
    return found
