"""Files that a script writes itself and starts later: known as long as only `cat`, `tee`, `echo` and `printf` write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import ConfigError
from .expand import text_of
from .grammar import Command, Redirect
from .state import Shell
from .values import Value, bare, in_doubt, joined, size, unquoted

LARGEST = 2**18
MOST = 100
MOST_OPENED = 200
"""Files beside the script that are read."""
_KEPT = re.compile(r".*\.(?:sh|bash|sbatch|slurm|job|cmd|run|ya?ml|json)")


def plain_path(value: Value) -> str:
    """A path without a leading ./ ."""
    path = bare(value)
    while path.startswith("./"):
        path = path[2:]
    return path


def known(shell: Shell, path: Value) -> Value | None:
    """The text of a file that the script wrote, or None. Raises ConfigError where it has been changed in an unknown way."""
    text = shell.state.files.get(plain_path(path))
    if text is not None and in_doubt(text) and not bare(text):
        raise shell.refuse(f"{plain_path(path)[:80]} is started, but what stands in it is not known")
    return text


def written(shell: Shell, redirects: Sequence[Redirect], text: Value | None = None) -> None:
    """Standard output of a command goes to files: `text`, or what cannot be known."""
    for one in redirects:
        if not one.takes or one.operator == ">&":
            continue
        path = plain_path(shell.targets.get(id(one), ""))
        appends = one.operator in (">>", "&>>")
        if id(one) in shell.stored:
            shell.stored.discard(id(one))
        elif text is not None and (path in shell.state.files or _KEPT.fullmatch(path)):
            shell.stored.add(id(one))
            store(shell, path, text, appends=appends)
        elif path in shell.state.files or _KEPT.fullmatch(path):
            shell.state.files[path] = shell.doubt("the file is written by a command")


def store(shell: Shell, path: Value, text: Value, *, appends: bool) -> None:
    """A file with this text, or with this text behind what it holds."""
    name, text = plain_path(path), unquoted(text)
    text = joined((shell.state.files.get(name, ""), text)) if appends else text
    if size(text) > LARGEST or len(shell.state.files) > MOST:
        raise shell.refuse("the files that it writes grow too large")
    shell.spend(size(text))
    shell.state.files[name] = text


def document(shell: Shell, node: Command) -> Value | None:
    """The text that a command reads from a here-document, a here-string or a pipe, or None."""
    feeds = [one for one in node.redirects if one.feeds]
    if not feeds:
        return shell.state.fed
    if feeds[-1].operator not in ("<<", "<<<"):
        return None
    text = shell.targets[id(feeds[-1])]
    return joined((text, "\n")) if feeds[-1].operator == "<<<" else text


HARMLESS = re.compile(r"chmod|cat|bash|sh|zsh|dash|sbatch|ls|echo|source|\.|rm|mkdir|scp|grep|head|tail")
"""Programs that change no file that they are given."""


def changed(shell: Shell, name: str, words: Sequence[Value]) -> None:
    """Files among the words of a program that may change them are not known any more."""
    if HARMLESS.fullmatch(name):
        return
    for word in words:
        path = plain_path(word)
        if path in shell.state.files:
            shell.state.files[path] = shell.doubt(f"{name[:40]} may change the file")


def opened(shell: Shell, path: str) -> tuple[str, str] | None:
    """The place and the text of a file that a script sources or starts. Raises ConfigError where there are too many."""
    found = shell.beside.read(path, shell.state.folder) if shell.beside is not None else None
    if found is not None:
        shell.opened += 1
        shell.spend(len(found[1]))
        if shell.opened > MOST_OPENED:
            raise shell.refuse(f"more than {MOST} files are opened")
        if "\0" in found[1]:
            raise shell.refuse(f"{path[:80]} has a null byte")
    return found


@contextmanager
def named(shell: Shell, place: str) -> Iterator[None]:
    """Errors of the commands of a file name it."""
    try:
        yield
    except ConfigError as error:
        name, said = shell.beside.shown(place) if place and shell.beside is not None else plain_path(place), str(error)
        raise ConfigError(f"{name}: {said}" if name and not said.startswith(name) else said) from None


def targets(shell: Shell, redirects: Sequence[Redirect]) -> None:
    """Expands what redirections name, once, in their order."""
    for one in redirects:
        shell.targets[id(one)] = text_of(shell, one.target)


@contextmanager
def redirected(shell: Shell, redirects: Sequence[Redirect]) -> Iterator[None]:
    """Inside a substitution, what a command prints elsewhere is not its output; files that it writes are not known any more."""
    outer, takes = shell.state.output, any(one.takes for one in redirects)
    if takes:
        shell.state.output = None
    try:
        yield
    finally:
        if takes:
            shell.state.output = outer
        written(shell, redirects)
