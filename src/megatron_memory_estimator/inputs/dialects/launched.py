"""Runs of dialects from what files hold: a launch of a shell script, or a YAML document."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...dataclass import dataclass
from ...errors import ConfigError
from ...wording import shown, whole
from ..questions import GPUS_OPTION, Question
from ..shell.gpus import kind_note
from ..shell.launches import Launch
from ..shell.values import Unknown, Value, bare, in_doubt, unset_in, vanishes
from ..text_files import is_within, read_text
from .run import Around, Run
from .words import NEGATIVE

LARGEST = 2**20
READ = (".yaml", ".yml", ".json", ".sh", ".conf")
"""Endings of the files that a run file names and that are opened."""
PARENTS = 6
"""Folders above a run file in which a file that it names is looked for: those of the framework's own tree."""
UNKNOWN = re.compile(r"\$\{?([A-Za-z_0-9@*]+)\}?")
"""How a variable without a value stands in a word."""
UNREAD = "(unknown)"
"""How something in doubt stands there that has no name."""


@dataclass(frozen=True)
class Place:
    """Where a run's file stands.

    Files are opened in its folder and in `PARENTS` above it, as the tree of its framework has them, links followed first; a whole path only
    below its folder. Below `root` alone where that is given, and anywhere with `follow`.
    """

    path: str
    follow: bool = False
    root: str = ""

    def text_of(self, path: str) -> str | None:
        """The text of a file by a path in the run's file; None where it is not there or may not be opened."""
        if not path.lower().endswith(READ) or not _is_name(path):
            return None
        if not os.path.isfile(os.path.expanduser(self.path)):  # a text that stands nowhere has nothing beside it
            return None
        folder = os.path.dirname(os.path.abspath(os.path.expanduser(self.path)))
        if os.path.isabs(path) and not self.follow and not _within(os.path.realpath(folder), os.path.realpath(path)):
            return None
        for _ in range(PARENTS + 1):
            place = os.path.normpath(os.path.join(folder, path))
            if self._may_open(place) and os.path.isfile(place):
                try:
                    return read_text(place, LARGEST)
                except ConfigError:
                    return None
            folder = os.path.dirname(folder)
        return None

    def _may_open(self, place: str) -> bool:
        """Whether a place is in the tree of the run's file. The folder of all folders is no tree."""
        if self.follow:
            return True
        real, top = os.path.realpath(place), os.path.dirname(os.path.realpath(os.path.expanduser(self.path)))
        for _ in range(PARENTS):
            above = os.path.dirname(top)
            top = above if above != os.path.sep else top
        return _within(top, real) and (not self.root or _within(os.path.realpath(self.root), real))


def _is_name(path: str) -> bool:
    """Whether a file can have this path: no null byte, no half character."""
    return "\0" not in path and not re.search("[\ud800-\udfff]", path)


def _within(folder: str, place: str) -> bool:
    if folder == os.path.sep:
        return os.path.dirname(place) == folder
    return is_within(folder, place)


def with_written(
    written: Mapping[str, str], path: str, beside: Callable[[str], str | None]
) -> Callable[[str], str | None]:
    """The texts of files that a script wrote itself, by their paths, before those beside it."""

    def text_of(name: str) -> str | None:
        own = written.get(os.path.normpath(name)) if name else None
        if own is not None and own.strip() == UNREAD:
            raise ConfigError(f"{shown(name)} is written by a command of {shown(path)}, and commands are not executed")
        return beside(name) if own is None else own

    return text_of


def of_launch(launch: Launch, path: str, given: Mapping[str, Any], around: Around | None = None) -> Run:
    """The run of a launch. What is not known stands in the words as $NAME; a word that is nothing else, and no value, is none."""
    kept = [word for at, word in enumerate(launch.words) if not vanishes(word) or _is_value(launch.words, at)]
    gone = dict.fromkeys(f"${name}" for word in launch.words if word not in kept for name in unset_in(word))
    notes = [
        *launch.notes,
        *kind_note(launch.gpu_kind, given),
        *([f"set nowhere, taken as empty: {', '.join(gone)}"] if gone else ()),
    ]
    env = {name: bare(value) for name, value in launch.env.items() if not in_doubt(value)}
    files = {os.path.normpath(name): _known(text) for name, text in launch.files.items()}
    beside = around or Around(Place(path, bool(given.get("follow"))).text_of)
    return Run(
        path, launch.entry, tuple(_known(word) for word in kept), None, env, launch.num_gpus,
        given.get("set_variables") or {}, given.get("run_model") or "", bool(given.get("ignore_unknown")),
        bool(given.get("without_unmodelled")),
        with_written(files, path, beside.text_of), launch.gpus_unknown, tuple(notes), beside.named,
        lost=launch.lost, container=launch.container,
    )  # fmt: skip


def _is_value(words: Sequence[Value], at: int) -> bool:
    """Whether a word stands where the value of an argument does."""
    before = _known(words[at - 1]) if at else ""
    return before.startswith("-") and "=" not in before and not NEGATIVE.match(before)


def _known(value: Value) -> str:
    """A text with what is not known in it as $NAME, or (unknown) where it has no name."""
    if isinstance(value, str):
        return value
    return "".join(
        piece if not isinstance(piece, Unknown) else f"${piece.name}" if piece.name else UNREAD for piece in value
    )


def of_document(document: Mapping[str, Any], path: str, given: Mapping[str, Any], around: Around | None = None) -> Run:
    """The run that a YAML document is."""
    beside = around or Around(Place(path, bool(given.get("follow"))).text_of)
    return Run(
        path,
        document=document,
        variables=given.get("set_variables") or {},
        model=given.get("run_model") or "",
        ignore_unknown=bool(given.get("ignore_unknown")),
        without_unmodelled=bool(given.get("without_unmodelled")),
        text_of=beside.text_of,
        named=beside.named,
    )


def gpus_of_command(
    run: Run, env: Mapping[str, str], questions: list[Question], *, alone: int | None = None
) -> int | None:
    """Processes that a command starts itself: NPROC_PER_NODE for each of NNODES; `alone` without the first, None where that is asked for.

    A script that another launcher starts has that one's.
    """
    if run.gpus_unknown or run.program.endswith(".py"):
        return run.num_gpus
    each = env.get("NPROC_PER_NODE") or ("" if alone is None else str(alone))
    if run.num_gpus is None and "NPROC_PER_NODE" not in env and (run.document is not None or not each):
        asked = "the file does not say the number of GPUs (NPROC_PER_NODE and NNODES of the command's environment do)"
        questions.append(Question(asked, GPUS_OPTION))
        return None
    if not each:
        return run.num_gpus
    counts = [whole(text) for text in (each, env.get("NNODES") or "1")]
    if not all(counts):
        questions.append(Question("NPROC_PER_NODE and NNODES are not both numbers of at least 1", GPUS_OPTION))
        return None
    return (counts[0] or 1) * (counts[1] or 1)
