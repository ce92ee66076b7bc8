"""`source`, `eval`, `cd` and `pwd`: files beside the script, texts read as commands, and where the script stands.

Source: the Bash Reference Manual 5.2, 4.1.
"""

from __future__ import annotations

import os
import re

from ...errors import ConfigError
from ...wording import plain
from .control import Return
from .files import known, opened
from .grammar import Simple
from .input_output import prints
from .parser import parsed
from .paths import ends, known_ends, last_fork, settle
from .state import Shell
from .values import Unknown, Value, bare, head, in_doubt, joined, present, readable, size

OF_THE_MACHINE = re.compile(
    r"(?:.*/)?\.?(?:activate|bashrc|bash_profile|profile|zshrc|conda\.sh|mamba\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|vars\.sh|bash)"
    r"|/(?:etc|usr|opt)/.*"
)
"""Files that prepare a machine: environments of Python, compilers, modules. They hold no arguments of a training."""


def source(shell: Shell, words: list[Value], node: Simple) -> None:
    """`source FILE`: a file that the script wrote, or one beside it; any other is passed over, and said."""
    words = present(words)
    words = words[1:] if words[:1] == ["--"] else words
    path = _from_here(shell, words[0]) if words else ""
    text, place = (known(shell, path), "") if path else (None, "")
    if text is None and path and not in_doubt(path):
        beside = opened(shell, bare(path))
        place, text = beside if beside is not None else ("", None)
    if text is None:
        _missing(shell, path, node)
        return
    outer, places = shell.state.positionals, shell.places
    if len(words) > 1:
        shell.state.positionals = tuple(words[1:])
    shell.sourced += 1
    shell.places = (place, *places) if place else places
    try:
        found = known_ends(shell, lambda: ends(shell, lambda: _read(shell, text, place, node)))
    finally:
        shell.sourced -= 1
        shell.places = places
    for end in found:
        end.control = None if isinstance(end.control, Return) else end.control
        if len(words) > 1:
            end.state.positionals = outer
    settle(shell, found, last_fork(found))


HERE = re.compile(r"(?:`pwd`|\$\(pwd\)) is a command|\$PWD is known on the machine only")


def _from_here(shell: Shell, path: Value) -> Value:
    """A path behind `pwd` or $PWD as a relative one, where the working folder is not known: files are looked for beside the
    script either way."""
    if isinstance(path, str) or len(path) < 2 or shell.state.folder is not None:
        return path
    first, rest = path[0], path[1:]
    is_here = isinstance(first, Unknown) and not first.is_unset and HERE.match(first.why) is not None
    return joined((".", rest)) if is_here and head(rest).startswith("/") else path


def _read(shell: Shell, text: Value, place: str, node: Simple) -> None:
    """The commands of a sourced file, which errors name."""
    if not place or shell.beside is None:
        again(shell, text, node)
        return
    line, name = shell.line, shell.beside.shown(place)
    try:
        again(shell, text, node, 1)
    except ConfigError as error:
        said = str(error)
        raise ConfigError(said if said.startswith(name) else f"{name}: {said}") from None
    shell.line = line


def _missing(shell: Shell, path: Value, node: Simple) -> None:
    """A file that cannot be opened: bash goes on."""
    if OF_THE_MACHINE.fullmatch(bare(path)) is None:
        is_tested = any("[ -" in one.why or "[[ -" in one.why for one in shell.branch)
        if not is_tested:
            shell.lost.setdefault(readable(path), shell.where)
        shell.note(f"{plain(node.source, 80)} is not followed; what it sets is not known")
    prints(shell, None)
    shell.undecided()


def cd(shell: Shell, words: list[Value], node: Simple) -> None:
    """`cd`: the working folder, where it follows from the script's own place."""
    words = [word for word in present(words) if word not in ("-P", "-L", "-e", "--")]
    shell.undecided()
    path = bare(words[0]) if len(words) == 1 and not in_doubt(words[0]) else ""
    beside = shell.beside
    if path == "." or (not path and len(words) == 1 and not in_doubt(words[0])):
        shell.state.status = 0
        return
    if beside is None or not path or path == "-":
        shell.state.folder = ""
        return
    base = shell.state.folder
    if os.path.isabs(path) or base:
        place = os.path.normpath(os.path.join(base or "", path))
    else:
        inner = os.path.normpath(os.path.join(beside.folder, path))
        is_below = base is None and not path.startswith("..") and beside.exists(inner, None, is_folder=True)
        place = inner if is_below else ""
    shell.state.folder = place
    is_above = bool(place) and f"{beside.folder}/".startswith(place.rstrip("/") + "/")
    if is_above or (place and beside.exists(place, None, is_folder=True)):
        shell.state.status = 0


def pwd(shell: Shell, words: list[Value], node: Simple) -> None:
    """`pwd`."""
    folder = shell.state.folder
    prints(shell, f"{folder}\n" if folder else None, node)
    shell.state.status = 0


def again(shell: Shell, text: Value, node: Simple, line: int = 0) -> None:
    """Reads a text as commands, here and now; its first line has the number of this one, or `line`."""
    if not bare(text).strip():
        if in_doubt(text):
            shell.note(f"{plain(node.source, 80)} is not followed")
        shell.state.status = 0
        if in_doubt(text):
            shell.undecided(text)
        return
    shell.depth += 1
    shell.spend(10 * size(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("eval is nested too deeply")
        shell.run(shell, parsed(text, line or shell.line))
    finally:
        shell.depth -= 1
