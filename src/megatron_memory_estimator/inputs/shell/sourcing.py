"""`source`, `cd` and `pwd`: files beside the script, and where it stands. Source: the Bash Reference Manual 5.2, 4.1."""

from __future__ import annotations

import os
import re

from ...errors import ConfigError
from ...wording import plain
from .doubts import bare, in_doubt, present, readable
from .files import known, opened
from .grammar import Simple
from .leaving import until_return
from .printing import prints
from .state import Shell

OF_THE_MACHINE = re.compile(
    r"(?:.*/)?\.?(?:activate|bashrc|bash_profile|profile|zshrc|conda\.sh|mamba\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|vars\.sh|bash)"
    r"|/(?:etc|usr|opt)/.*"
)
"""Files that prepare a machine: environments of Python, compilers, modules. They hold no arguments of a training."""


def source(shell: Shell, words: list[str], node: Simple) -> None:
    """`source FILE`: a file that the script wrote, or one beside it; any other is passed over, and said."""
    words = present(words)
    words = words[1:] if words[:1] == ["--"] else words
    path = _from_here(shell, words[0]) if words else ""
    text, place = (known(shell, path), "") if path else (None, "")
    if text is None and path and not in_doubt(path):
        place, text = opened(shell, bare(path)) or ("", None)
    if text is None:
        _missing(shell, path, node)
        return
    outer, places = shell.state.positionals, shell.places
    if len(words) > 1:
        shell.state.positionals = tuple(words[1:])
    shell.sourced += 1
    shell.places = (place, *places) if place else places
    try:
        until_return(shell, lambda: _read(shell, text, place, node))
    finally:
        shell.sourced -= 1
        shell.places = places
        if len(words) > 1:
            shell.state.positionals = outer


HERE = re.compile(r"(?:`pwd`|\$\(pwd\)) is a command|\$PWD is known on the machine only")


def _from_here(shell: Shell, path: str) -> str:
    """A path behind `pwd` or $PWD as a relative one, where the working folder is not known: files are looked for beside the
    script either way."""
    found = re.match("\0(.)([^\0]*)\0/(.+)", path)
    if found is None or shell.state.folder is not None:
        return path
    kind, name, rest = found.groups()
    return f"./{rest}" if kind in "?!" and HERE.match(shell.doubts[name].why) else path


def _read(shell: Shell, text: str, place: str, node: Simple) -> None:
    """The commands of a sourced file, which errors name."""
    from .builtins import again

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


def _missing(shell: Shell, path: str, node: Simple) -> None:
    """A file that cannot be opened: bash goes on."""
    if OF_THE_MACHINE.fullmatch(bare(path)) is None:
        is_tested = any("[ -" in one.why or "[[ -" in one.why for one in shell.branch)
        if not is_tested:
            shell.lost.setdefault(readable(path), shell.where)
        shell.note(f"{plain(readable(node.source), 80)} is not followed; what it sets is not known")
    prints(shell, None)
    shell.state.status = None


def cd(shell: Shell, words: list[str], node: Simple) -> None:
    """`cd`: the working folder, where it follows from the script's own place."""
    words = [word for word in present(words) if word not in ("-P", "-L", "-e", "--")]
    shell.state.status = None
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


def pwd(shell: Shell, words: list[str], node: Simple) -> None:
    """`pwd`."""
    folder = shell.state.folder
    prints(shell, f"{folder}\n" if folder else None, node)
    shell.state.status = 0
