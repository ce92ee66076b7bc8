"""Text and YAML files, read strictly."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..wording import LONGEST_SHOWN, plain, shown

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


MOST_GIVEN = 200
"""Files that may come with a request."""


class GivenFiles:
    """Files that came with a request, their texts by path: nothing else is opened for it. Those that were read are remembered.

    A path means the file that shares the most names at its end, the file's own at least; none where several share as many. So a file
    that was taken out of its folder is found, and one whose folder is on another machine.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Raises ConfigError for what are no paths below one folder, and for too many."""
        if len(texts) > MOST_GIVEN:
            raise ConfigError(f"files holds at most {MOST_GIVEN} files, not {len(texts)}")
        self.texts: dict[str, str] = {}
        for path, text in texts.items():
            place = os.path.normpath(path)
            if not path or "\0" in path or os.path.isabs(path) or place.startswith("..") or place in self.texts:
                raise ConfigError(f"files: {shown(path)} is no path below one folder, or stands there twice")
            if not isinstance(text, str):
                raise ConfigError(f"files: {shown(path)} must be the text of a file")
            self.texts[place] = text
        self.read: set[str] = set()

    def meant(self, path: str, least: int = 1) -> str | None:
        """The given file that a path means, or None; it shares so many names at least."""
        names = _names(path)
        shared = {place: _shared(names, _names(place)) for place in self.texts}
        most = max(shared.values(), default=0)
        found = [place for place, count in shared.items() if count == most]
        return found[0] if most >= least and len(found) == 1 else None

    def is_folder(self, path: str) -> bool:
        """Whether given files stand below a folder of the given ones."""
        return any(place.startswith(os.path.normpath(path).lstrip("/") + "/") for place in self.texts)

    def text(self, path: str) -> str | None:
        """The text of the file that a path means, or None."""
        place = self.meant(path)
        if place is None:
            return None
        self.read.add(place)
        return self.texts[place]


def _names(path: str) -> list[str]:
    """The names of a path, the last one first."""
    return [name for name in os.path.normpath(path).split("/") if name][::-1]


def _shared(one: list[str], other: list[str]) -> int:
    """How many names at the ends of two paths are the same; one more where the paths are."""
    same = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    return same + (same > 0 and one == other)


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
