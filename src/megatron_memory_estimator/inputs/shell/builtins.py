"""Builtins of bash that change what later commands see; those that are not read are refused by name.

Source: the Bash Reference Manual 5.2, 4 (Shell Builtin Commands).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial

from ...wording import plain, whole
from .arithmetic import settled
from .conditions import WRONG, test
from .grammar import DECLARING, Simple
from .input_output import echo, getopts, mapfile, named, printf, prints, read, text_of_file
from .parser import parsed
from .paths import End, through
from .programs import program
from .state import Break, Return, Shell, Stop
from .values import (
    Array,
    Unknown,
    Value,
    as_array,
    bare,
    head,
    in_doubt,
    joined,
    loose,
    present,
    readable,
    size,
    unquoted,
    with_blanks,
)
from .words import NAME

Builtin = Callable[[Shell, list[Value], Simple], None]


def builtin(shell: Shell, name: str, words: list[Value], node: Simple) -> None:
    """Runs a builtin: words that vanish are none, but for those that a test compares; most succeed."""
    if name not in KEEPING:
        shell.state.status = 0
    BUILTINS[name](shell, words if name in VANISHING else present(words), node)


def _nothing(shell: Shell, words: list[Value], node: Simple) -> None:
    """A builtin that does nothing."""


def _false(shell: Shell, words: list[Value], node: Simple) -> None:
    shell.state.status = 1


def _unknown(shell: Shell, words: list[Value], node: Simple) -> None:
    """A builtin that changes nothing here, with a status that is not known."""
    prints(shell, None)
    shell.undecided()


def _test(shell: Shell, words: list[Value], node: Simple) -> None:
    test(shell, words)


def _bracket(shell: Shell, words: list[Value], node: Simple) -> None:
    if words[-1:] == ["]"]:
        test(shell, words[:-1])
    else:
        shell.state.status = WRONG


def _let(shell: Shell, words: list[Value], node: Simple) -> None:
    value: int | Value = 0
    for word in words:
        value = settled(shell, word)
    shell.state.status = int(value == 0)
    if not isinstance(value, int):
        shell.undecided(value)


def _unset(shell: Shell, words: list[Value], node: Simple) -> None:
    functions, variables = "-f" in words, "-v" in words
    for word in words:
        if word in ("-f", "-v"):
            continue
        element = re.fullmatch(r"([A-Za-z_]\w*)\[(.*)\]", bare(word))
        if element is not None and not in_doubt(word):
            _unset_element(shell, element.group(1), element.group(2))
        elif not isinstance(word, str) or not NAME.fullmatch(word):
            raise shell.refuse(f"unset {plain(readable(word), 40)} is not read")
        elif not functions and (variables or word in shell.state.variables or word not in shell.state.functions):
            shell.forget(word)
        else:
            shell.state.functions.pop(word, None)


def _unset_element(shell: Shell, name: str, index: str) -> None:
    before = shell.state.variables.get(name)
    if before is None:
        return
    if isinstance(before, Array) and before.uncertain:
        raise shell.refuse(f"unset of an element of {name}, whose elements are not known, is not read")
    gone = (index or None) if isinstance(before, Array) and before.keyed else whole(index)
    if not isinstance(before, Array) or gone is None:
        raise shell.refuse(f"unset of an element of {name} is not read")
    shell.assign(name, Array({key: value for key, value in before.items.items() if key != gone}, before.keyed))


def _moved(shell: Shell, words: list[Value], node: Simple) -> None:
    """`pushd` and `popd`: the working folder is not followed."""
    prints(shell, None)
    shell.state.folder = ""
    shell.undecided()


def _shift(shell: Shell, words: list[Value], node: Simple) -> None:
    shell.takes_words = shell.takes_words or not shell.state.frames
    count = whole(words[0]) if words else 1
    if count is None:
        raise shell.refuse(f"shift {plain(readable(words[0]), 40)} is not read")
    if any(map(loose, shell.state.positionals[:count])):
        raise shell.refuse("shift over words that depend on a condition that cannot be decided")
    if count > len(shell.state.positionals):
        shell.state.status = 1
    else:
        shell.state.positionals = shell.state.positionals[count:]


def _eval(shell: Shell, words: list[Value], node: Simple) -> None:
    again(shell, unquoted(with_blanks(words)), node)


def _said_status(shell: Shell, words: list[Value]) -> None:
    """The status that `exit` and `return` are given."""
    if words:
        status = whole(words[0])
        shell.state.status = 0 if status is None else status % 256
        if status is None:
            shell.undecided(words[0])


def _exit(shell: Shell, words: list[Value], node: Simple) -> None:
    _said_status(shell, words)
    if shell.state.output is None and not shell.piped:
        shell.note("the script ends here (exit)")
        if not shell.branch:
            shell.stopped = (shell.where, shell.said)
    raise Stop


def _return(shell: Shell, words: list[Value], node: Simple) -> None:
    _said_status(shell, words)
    if not any(not frame.temporary for frame in shell.state.frames) and not shell.sourced:
        raise shell.refuse("return outside a function is not read")
    raise Return


def _leaves(shell: Shell, words: list[Value], node: Simple, *, goes_on: bool) -> None:
    """`break` and `continue`: out of as many loops as there are; outside a loop they do nothing."""
    levels = whole(words[0]) if words else 1
    if not levels:
        raise shell.refuse("break or continue out of a number of loops that is not known")
    if shell.loops:
        raise Break(min(levels, shell.loops), goes_on=goes_on)


def _exec(shell: Shell, words: list[Value], node: Simple) -> None:
    if words and head(words[0]).startswith("-"):
        raise shell.refuse(f"exec {plain(readable(words[0]), 40)} is not read")
    if words:
        before: dict[str, Value] = {}
        for one in node.assignments:
            before[one.name] = as_array(shell.state.variables.get(one.name)).first() or ""
        program(shell, words, before, node)
        raise Stop
    shell.state.status = 0


def _command(shell: Shell, words: list[Value], node: Simple) -> None:
    name = words[0] if words else ""
    if head(name).startswith("-"):
        if name not in ("-v", "-V"):
            raise shell.refuse(f"command {plain(readable(name), 40)} is not read")
        _unknown(shell, words, node)
    elif isinstance(name, str) and name in BUILTINS:
        builtin(shell, name, words[1:], node)
    elif name in DECLARING:
        raise shell.refuse(f"command {readable(name)} is not read")
    elif words:
        program(shell, words, {}, node)


def _trap(shell: Shell, words: list[Value], node: Simple) -> None:
    text = bare(words[0]) if words else ""
    if re.search(r"\w\.py\b", text):
        raise shell.refuse("a trap that starts a program is not read")
    for word in words[1:]:
        if word in ("DEBUG", "ERR", "RETURN") and text.strip(" -") and "=" in text:
            raise shell.refuse(f"a trap on {readable(word)} that sets variables is not read")


def _refused(shell: Shell, words: list[Value], node: Simple) -> None:
    raise shell.unread(node.source)


# -- files and texts that are read as commands ---------------------------------------------------------------------------
OF_THE_MACHINE = re.compile(
    r"(?:.*/)?\.?(?:activate|bashrc|bash_profile|profile|zshrc|conda\.sh|mamba\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|vars\.sh|bash)"
    r"|/(?:etc|usr|opt)/.*"
)
"""Files that prepare a machine: environments of Python, compilers, modules. They hold no arguments of a training."""


def source(shell: Shell, words: list[Value], node: Simple) -> None:
    """`source FILE`: a file that the script wrote, or one beside it; any other is passed over, and said."""
    words = words[1:] if words[:1] == ["--"] else words
    path = _from_here(shell, words[0]) if words else ""
    text, place = text_of_file(shell, path) if path else (None, "")
    if text is None:
        _missing(shell, path, node)
        return
    outer, places = shell.state.positionals, (place, *shell.places) if place else shell.places
    commands = text

    def inside() -> None:
        if len(words) > 1:
            shell.state.positionals = tuple(words[1:])
        with shell.during(sourced=shell.sourced + 1, places=places, line=shell.line), named(shell, place):
            again(shell, commands, node, 1 if place else 0)

    def behind(end: End) -> None:
        end.returned()
        if len(words) > 1:
            end.state.positionals = outer

    through(shell, inside, behind)


HERE = re.compile(r"(?:`pwd`|\$\(pwd\)) is a command|\$PWD is known on the machine only")


def _from_here(shell: Shell, path: Value) -> Value:
    """A path behind `pwd` or $PWD as a relative one, where the working folder is not known: files are looked for beside the
    script either way."""
    if isinstance(path, str) or len(path) < 2 or shell.state.folder is not None:
        return path
    first, rest = path[0], path[1:]
    is_here = isinstance(first, Unknown) and not first.is_unset and HERE.match(first.why) is not None
    return joined((".", rest)) if is_here and head(rest).startswith("/") else path


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
    words = [word for word in words if word not in ("-P", "-L", "-e", "--")]
    path = bare(words[0]) if len(words) == 1 and not in_doubt(words[0]) else None
    if path in ("", "."):
        return
    shell.undecided()
    base, beside = shell.state.folder, shell.beside
    shell.state.folder = ""
    if beside is None or path is None or path == "-":
        return
    place = os.path.normpath(os.path.join(base or ("" if os.path.isabs(path) else beside.folder), path))
    is_there = beside.exists(place, None, is_folder=True)
    if os.path.isabs(path) or base or (base is None and not path.startswith("..") and is_there):
        shell.state.folder = place
        if is_there or f"{beside.folder}/".startswith(place.rstrip("/") + "/"):
            shell.state.status = 0


def pwd(shell: Shell, words: list[Value], node: Simple) -> None:
    """`pwd`."""
    folder = shell.state.folder
    prints(shell, f"{folder}\n" if folder else None, node)


def again(shell: Shell, text: Value, node: Simple, line: int = 0) -> None:
    """Reads a text as commands, here and now; its first line has the number of this one, or `line`."""
    if not bare(text).strip():
        shell.state.status = 0
        if in_doubt(text):
            shell.note(f"{plain(node.source, 80)} is not followed")
            shell.undecided(text)
        return
    shell.spend(10 * size(text))
    with shell.during(depth=shell.depth + 1):
        if shell.depth > 20:
            raise shell.refuse("eval is nested too deeply")
        shell.run(shell, parsed(text, line or shell.line))


# -- options ------------------------------------------------------------------------------------------------------------
OPTIONS = {
    "e": "errexit", "u": "nounset", "x": "xtrace", "v": "verbose", "h": "hashall", "b": "notify", "m": "monitor", "C": "noclobber",
    "f": "noglob", "a": "allexport", "E": "errtrace", "T": "functrace",
}  # fmt: skip
"""Options by their letters."""
HARMLESS = frozenset({*OPTIONS.values(), "pipefail", "history", "emacs", "vi", "interactive-comments"})
"""Options that may be set; the state keeps them, some of which decide what commands do."""
UNREAD = frozenset({"lastpipe", "nocasematch", "expand_aliases", "failglob", "inherit_errexit", "patsub_replacement"})


def set_options(shell: Shell, words: list[Value], node: Simple) -> None:
    """`set`: options, and the positional parameters behind them."""
    while words:
        word, *rest = words
        if word == "-":
            raise shell.refuse("set - is not read")
        if not isinstance(word, str) or not re.fullmatch(r"[-+][A-Za-z]+", word):
            shell.state.positionals = tuple(rest if word == "--" else words)
            return
        names = set[str]()
        for letter in word[1:]:
            if letter == "o":
                name, rest = bare(rest[0]) if rest else "", rest[1:]
            else:
                name = OPTIONS.get(letter, letter)
            if name and name not in HARMLESS:
                raise shell.refuse(f"set {word} {plain(name, 40)} is not read")
            names.add(name)
        words = rest
        shell.state.options = shell.state.options | names if word[0] == "-" else shell.state.options - names


def shopt(shell: Shell, words: list[Value], node: Simple) -> None:
    """`shopt`: what changes how commands are read is refused."""
    for word in words:
        if word in UNREAD:
            raise shell.refuse(f"shopt {readable(word)} is not read")
    shell.undecided()


BUILTINS: dict[str, Builtin] = {
    "false": _false, "echo": echo, "printf": printf, "test": _test, "[": _bracket, "let": _let, "unset": _unset, "read": read,
    "shift": _shift, "set": set_options, "shopt": shopt, "eval": _eval, "exit": _exit, "return": _return,
    "break": partial(_leaves, goes_on=False), "continue": partial(_leaves, goes_on=True), "exec": _exec, "command": _command,
    "builtin": _command,
    "source": source, ".": source, "getopts": getopts, "cd": cd, "pwd": pwd, "mapfile": mapfile, "readarray": mapfile, "trap": _trap,
    "pushd": _moved, "popd": _moved, "enable": _refused,
    **dict.fromkeys((":", "true", "alias", "unalias"), _nothing),
    **dict.fromkeys(
        ("caller", "dirs", "wait", "ulimit", "umask", "kill", "jobs", "disown", "hash", "type", "times", "history",
         "bg", "fg", "suspend", "logout", "complete", "compgen", "bind", "help"),
        _unknown,
    ),
}  # fmt: skip
"""What each builtin does with its words."""
KEEPING = frozenset({"eval", "exit", "return", "source", ".", "command", "builtin", "exec"})
"""Builtins that see the status of the command before them."""
VANISHING = frozenset({"test", "[", "eval", "command", "builtin", "exec", "shift", "echo"})
"""Builtins that see words of unset variables, which are none for others."""
