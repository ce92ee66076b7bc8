"""Text and YAML files, read strictly."""

from __future__ import annotations

import codecs
import os
import stat
from typing import Any

from ..errors import ConfigError
from ..wording import LONGEST_SHOWN, plain

LARGEST_FILE = 16 * 2**20
"""Bytes of the largest file that is read."""


def shortened(name: str) -> str:
    """The name of a file or a model, for a message."""
    return plain(name, LONGEST_SHOWN)


def is_within(folder: str, place: str) -> bool:
    """Whether a place, links followed, is a folder or below it; what cannot be a path is not."""
    try:
        root = os.path.realpath(folder)
        return os.path.commonpath([root, os.path.realpath(place)]) == root
    except (OSError, ValueError):
        return False


def read_text(path: str, most: int = LARGEST_FILE, *, script: bool = False) -> str:
    """A UTF-8 text file of at most so many bytes. In a script, which its shell reads byte by byte, other bytes are letters that nobody
    knows. Raises ConfigError for a file that cannot be read, and for a pipe or a device, which might never end."""
    full = os.path.expanduser(path)
    try:
        if not stat.S_ISREG(os.stat(full).st_mode):
            raise ConfigError(f"{shortened(path)} is not a regular file")
        with open(full, "rb") as file:
            text = file.read(most + 1)
    except FileNotFoundError:
        raise ConfigError(f"no such file: {shortened(path)}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {shortened(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > most:
        raise ConfigError(f"{shortened(path)} is larger than {most} bytes")
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{shortened(path)} is UTF-16 text; save it as UTF-8")
    try:
        return text.decode("utf-8-sig", errors="replace" if script else "strict")
    except UnicodeDecodeError:
        raise ConfigError(f"{shortened(path)} is not UTF-8 text") from None


def read_yaml(path: str) -> dict[str, Any]:
    """The mapping in a YAML file; no key may stand twice, no object is made but plain ones."""
    return _mapping(path, None)


def read_run_yaml(path: str) -> tuple[dict[str, Any], list[str]]:
    """The mapping in a YAML file as runners read it, where the last of equal keys counts, and the keys that stand twice."""
    repeated: list[str] = []
    return _mapping(path, repeated), repeated


def _mapping(path: str, repeated: list[str] | None) -> dict[str, Any]:
    from .strict_yaml import LARGEST_YAML, parse_yaml

    found = parse_yaml(read_text(path, LARGEST_YAML), shortened(path), repeated)
    if not isinstance(found, dict):
        raise ConfigError(f"{shortened(path)} must hold a mapping")
    return found
