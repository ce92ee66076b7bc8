"""Runs of dialects from what files hold: a launch of a shell script, or a YAML document."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...dataclass import dataclass
from ...errors import ConfigError
from ..shell.doubts import MARK, Doubt, bare, doubts_in, in_doubt, marks, readable, unset, vanishes
from ..shell.launches import Launch
from ..text_files import read_text
from .run import Run

LARGEST = 2**20
READ = (".yaml", ".yml", ".json", ".sh", ".conf")
"""Endings of the files that a run file names and that are opened."""
PARENTS = 6
"""Folders above a run file in which a file that it names is looked for: those of the framework's own tree."""
UNKNOWN = re.compile(r"\$\{?([A-Za-z_0-9@*]+)\}?")
"""How a variable without a value stands in a word."""

COUNT = re.compile(
    r"--[\w-]*[-_](?:size|nodes?|gpus?|len|length|layers|heads|groups|experts|topk|rank|tokens|prompt|rollout)"
)
"""Options whose value is a count in every framework."""


@dataclass(frozen=True)
class Place:
    """Where a run's file stands, and the texts that it wrote itself, by the words that name them.

    Files are opened in its folder and in `PARENTS` above it, as the tree of its framework has them; absolute paths only with `follow`.
    """

    path: str
    written: Mapping[str, str]
    follow: bool = False

    def text_of(self, path: str) -> str | None:
        """The text of a file by a path in the run's file; None where it is not there or may not be opened."""
        if path in self.written:
            return self.written[path]
        if not path.lower().endswith(READ) or "\0" in path or (os.path.isabs(path) and not self.follow):
            return None
        folder = os.path.dirname(os.path.abspath(os.path.expanduser(self.path)))
        for _ in range(PARENTS + 1):
            place = os.path.normpath(os.path.join(folder, path))
            if os.path.isfile(place):
                try:
                    return read_text(place, LARGEST)
                except ConfigError:
                    return None
            folder = os.path.dirname(folder)
        return None


def of_launch(launch: Launch, path: str, given: Mapping[str, Any]) -> Run:
    """The run of a launch. What is not known stands in the words as $NAME."""
    words = tuple(_word(word, launch.doubts) for word in _present(launch.words))
    env = {name: bare(value) for name, value in launch.env.items() if not in_doubt(value)}
    place = Place(path, launch.files, bool(given.get("follow")))
    return Run(
        path, launch.entry, words, None, env, launch.num_gpus, given.get("set_variables") or {}, given.get("run_model") or "",
        bool(given.get("ignore_unknown")), place.text_of, launch.gpus_unknown, tuple(launch.notes),
        lost=launch.lost,
    )  # fmt: skip


def _present(words: Sequence[str]) -> Iterator[str]:
    """The words without those that vanish, but for the value of a count: the run could not start without it."""
    before = ""
    for word in words:
        if not vanishes(word) or (COUNT.fullmatch(before) and "[" not in word):
            yield word
        before = word


def _word(word: str, doubts: Mapping[str, Doubt]) -> str:
    """A word with what is not known in it as $NAME, where it has a name."""
    if not marks(word):
        return word
    for key in doubts_in(word):
        if key in doubts and doubts[key].name:
            for kind in "?!":
                word = word.replace(f"{MARK}{kind}{key}{MARK}", unset(doubts[key].name))
    return readable(word)


def of_document(document: Mapping[str, Any], path: str, given: Mapping[str, Any]) -> Run:
    """The run that a YAML document is."""
    place = Place(path, {}, bool(given.get("follow")))
    return Run(
        path,
        document=document,
        variables=given.get("set_variables") or {},
        model=given.get("run_model") or "",
        ignore_unknown=bool(given.get("ignore_unknown")),
        text_of=place.text_of,
    )
