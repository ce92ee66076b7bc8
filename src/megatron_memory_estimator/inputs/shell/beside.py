"""Files beside a script and in its repository: what `source` and `bash FILE` may open, and nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...errors import ConfigError
from .. import SCRIPTS
from ..text_files import GivenFiles, is_within, read_text

LARGEST = 2**20
NAMES = (*SCRIPTS, ".env", ".rc", ".conf", ".cfg", ".inc", ".config")
"""Endings of files that scripts source; whether one of them is there can be known."""

PARENTS = 6
"""Folders above a script in which its repository's root is looked for and, with `follow`, the end of a path of another machine."""


@dataclass(frozen=True)
class Beside:
    """Where a script stands. Files in its folder or repository and below are opened, others only where the caller says `follow`; the
    `given` ones alone where there are such, of which the script is one."""

    path: str
    follow: bool = False
    given: GivenFiles | None = None

    @property
    def script(self) -> str:
        """The script's own path, whole."""
        if self.given is not None:
            return os.path.join("/", self.path)
        return os.path.abspath(os.path.expanduser(self.path))

    @property
    def folder(self) -> str:
        """The folder of the script."""
        return os.path.dirname(self.script)

    @property
    def root(self) -> str:
        """The repository's root, which holds `.git`; the script's folder where there is none above it."""
        folder = self.folder
        for _ in range(PARENTS + 1):
            if os.path.exists(os.path.join(folder, ".git")):
                return folder
            folder = os.path.dirname(folder)
        return self.folder

    def resolved(self, path: str, folder: str | None) -> str | None:
        """The place that a path means in the working folder, or beside the script where that is not known; None where no file of
        the script's folder can be meant."""
        if not path or "\n" in path or len(path) > 4096:
            return None
        if folder == "" and not os.path.isabs(path):
            return None  # the script has gone where nobody knows
        place = os.path.normpath(os.path.join(folder or self.folder, path))
        if self.given is not None:
            return os.path.join("/", self.given.meant(place) or place)
        if os.path.isabs(path) and not os.path.isfile(place):
            place = self._moved(place) or place
        if self.follow:
            here = os.path.abspath(path)
            return here if folder is None and not os.path.exists(place) and os.path.isfile(here) else place
        return place if self._inside(place) else None

    def _moved(self, path: str) -> str | None:
        """The file that the end of a path of another machine means (scripts/models/a.sh where the path ends so): in the script's
        folder, and with `follow` in those above it; a folder and a name at least."""
        folders = [self.folder]
        while self.follow and len(folders) <= PARENTS:
            folders.append(os.path.dirname(folders[-1]))
        parts = path.strip("/").split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts) - 1))
        found = (os.path.join(folder, end) for end in ends for folder in folders)
        return next((place for place in found if os.path.isfile(place)), None)

    def _inside(self, place: str) -> bool:
        """Whether a place, links followed, is in the script's folder or repository, or below."""
        folders = (self.folder, self.root)
        return any(is_within(one, place) and os.path.realpath(one) != os.path.sep for one in folders)

    def shown(self, place: str) -> str:
        """A place as the caller would name it: from the script's folder."""
        return os.path.relpath(place, self.folder) if is_within(self.folder, place) else place

    def exists(self, path: str, folder: str | None, *, is_folder: bool = False) -> bool | None:
        """Whether a file that a script may source, or a folder, is there; None where that is not known."""
        place = self.resolved(path, folder)
        if place is None or (not is_folder and not path.endswith(NAMES)):
            return None
        if self.given is not None:
            return (self.given.is_folder(place) if is_folder else self.given.meant(place) is not None) or None
        found = os.path.isdir(place) if is_folder else os.path.isfile(place)
        return found or (None if folder is None and not os.path.isabs(path) else False)

    def read(self, path: str, folder: str | None) -> tuple[str, str] | None:
        """The place and the text of a file, or None where it is not there, may not be opened or is no text."""
        place = self.resolved(path, folder)
        if place is not None and self.given is not None:
            text = self.given.text(place)
            return None if text is None else (place, text)
        if place is None or not os.path.isfile(place):
            return None
        try:
            return place, read_text(place, LARGEST, script=True)
        except ConfigError:
            return None
