"""Builtins of bash that change what later commands see; those that are not read are refused by name.

Source: the Bash Reference Manual 5.2, 4 (Shell Builtin Commands).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...wording import plain, whole
from .arithmetic import settled
from .commands import run
from .conditions import WRONG, tested
from .control import Break, Return, Stop
from .doubts import bare, in_doubt, loose, present, readable, unquoted
from .getopts import getopts
from .grammar import Simple
from .options import set_options, shopt
from .parser import parsed
from .printing import echo, printf, prints
from .reading import read
from .scanner import NAME
from .simple import DECLARING
from .sourcing import cd, pwd, source
from .state import Array, Shell, uncertain

Builtin = Callable[[Shell, list[str], Simple], None]


def _true(shell: Shell, words: list[str], node: Simple) -> None:
    shell.state.status = 0


def _false(shell: Shell, words: list[str], node: Simple) -> None:
    shell.state.status = 1


def _unknown(shell: Shell, words: list[str], node: Simple) -> None:
    """A builtin that changes nothing here, with a status that is not known."""
    prints(shell, None)
    shell.state.status = None


def _test(shell: Shell, words: list[str], node: Simple) -> None:
    shell.state.status = tested(shell, words)


def _bracket(shell: Shell, words: list[str], node: Simple) -> None:
    shell.state.status = tested(shell, words[:-1]) if words[-1:] == ["]"] else WRONG


def _let(shell: Shell, words: list[str], node: Simple) -> None:
    value: int | str = 0
    for word in words:
        value = settled(shell, word)
    shell.state.status = None if isinstance(value, str) else int(value == 0)


def _unset(shell: Shell, words: list[str], node: Simple) -> None:
    functions, variables = "-f" in words, "-v" in words
    for word in present(words):
        if word in ("-f", "-v"):
            continue
        element = re.fullmatch(r"([A-Za-z_]\w*)\[(.*)\]", word)
        if element is not None and not in_doubt(word):
            _unset_element(shell, element.group(1), bare(element.group(2)))
        elif not NAME.fullmatch(word):
            raise shell.refuse(f"unset {plain(readable(word), 40)} is not read")
        elif not functions and (variables or word in shell.state.variables or word not in shell.state.functions):
            shell.forget(word)
        else:
            shell.state.functions.pop(word, None)
    shell.state.status = 0


def _unset_element(shell: Shell, name: str, index: str) -> None:
    before = shell.state.variables.get(name)
    if isinstance(before, Array) and uncertain(before):
        raise shell.refuse(f"unset of an element of {name}, whose elements are not known, is not read")
    if isinstance(before, Array) and not before.keyed and index.isascii() and whole(index) is not None:
        shell.assign(name, Array({key: value for key, value in before.items.items() if key != int(index)}))
    elif isinstance(before, Array) and before.keyed and index:
        shell.assign(name, Array({key: value for key, value in before.items.items() if key != index}, True))
    elif before is not None:
        raise shell.refuse(f"unset of an element of {name} is not read")


def _moved(shell: Shell, words: list[str], node: Simple) -> None:
    """`pushd` and `popd`: the working folder is not followed."""
    prints(shell, None)
    shell.state.folder, shell.state.status = "", None


def _shift(shell: Shell, words: list[str], node: Simple) -> None:
    shell.takes_words = shell.takes_words or not shell.state.frames
    count = whole(words[0]) if words else 1
    if count is None:
        raise shell.refuse(f"shift {plain(readable(words[0]), 40)} is not read")
    if any(map(loose, shell.state.positionals[:count])):
        raise shell.refuse("shift over words that depend on a condition that cannot be decided")
    shell.state.status = int(count > len(shell.state.positionals))
    if not shell.state.status:
        shell.state.positionals = shell.state.positionals[count:]


def _eval(shell: Shell, words: list[str], node: Simple) -> None:
    text = unquoted(" ".join(words))
    again(shell, text, node)


def again(shell: Shell, text: str, node: Simple, line: int = 0) -> None:
    """Reads a text as commands, here and now; its first line has the number of this one, or `line`."""
    if not bare(text).strip():
        if in_doubt(text):
            shell.note(f"{plain(readable(node.source), 80)} is not followed")
        shell.state.status = None if in_doubt(text) else 0
        return
    shell.depth += 1
    shell.spend(10 * len(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("eval is nested too deeply")
        run(shell, parsed(text, line or shell.line))
    finally:
        shell.depth -= 1


def _exit(shell: Shell, words: list[str], node: Simple) -> None:
    if words:
        status = whole(words[0])
        shell.state.status = None if status is None else status % 256
    if shell.output is None and not shell.piped:
        shell.note("the script ends here (exit)")
        if not shell.branch:
            shell.stopped = (shell.where, shell.said)
    raise Stop


def _return(shell: Shell, words: list[str], node: Simple) -> None:
    if words:
        status = whole(words[0])
        shell.state.status = None if status is None else status % 256
    if not any(not frame.temporary for frame in shell.state.frames) and not shell.sourced:
        raise shell.refuse("return outside a function is not read")
    raise Return


def _leaves(shell: Shell, words: list[str], *, goes_on: bool) -> None:
    """`break` and `continue`: out of as many loops as there are; outside a loop they do nothing."""
    levels = whole(words[0]) if words else 1
    if not levels:
        raise shell.refuse("break or continue out of a number of loops that is not known")
    shell.state.status = 0
    if shell.loops:
        raise Break(min(levels, shell.loops), goes_on=goes_on)


def _break(shell: Shell, words: list[str], node: Simple) -> None:
    _leaves(shell, words, goes_on=False)


def _continue(shell: Shell, words: list[str], node: Simple) -> None:
    _leaves(shell, words, goes_on=True)


def _exec(shell: Shell, words: list[str], node: Simple) -> None:
    from .programs import program

    if words[:1] and words[0].startswith("-"):
        raise shell.refuse(f"exec {plain(readable(words[0]), 40)} is not read")
    if words:
        program(
            shell, words, {one.name: str(shell.state.variables.get(one.name, "")) for one in node.assignments}, node
        )
        raise Stop
    shell.state.status = 0


def _command(shell: Shell, words: list[str], node: Simple) -> None:
    from .programs import program

    if words and words[0].startswith("-"):
        if words[0] not in ("-v", "-V"):
            raise shell.refuse(f"command {plain(readable(words[0]), 40)} is not read")
        _unknown(shell, words, node)
    elif words and words[0] in BUILTINS:
        BUILTINS[words[0]](shell, words[1:], node)
    elif words and words[0] in DECLARING:
        raise shell.refuse(f"command {words[0]} is not read")
    elif words:
        program(shell, words, {}, node)


def _mapfile(shell: Shell, words: list[str], node: Simple) -> None:
    name = next((word for word in reversed(words) if NAME.fullmatch(word)), "MAPFILE")
    shell.assign(name, Array({0: shell.doubt(f"`{plain(readable(node.source), 60)}` reads what is not known", name)}))
    shell.state.status = None


def _trap(shell: Shell, words: list[str], node: Simple) -> None:
    if words and re.search(r"\w\.py\b", words[0]):
        raise shell.refuse("a trap that starts a program is not read")
    for word in words[1:]:
        if word in ("DEBUG", "ERR", "RETURN") and bare(words[0]).strip(" -") and "=" in words[0]:
            raise shell.refuse(f"a trap on {word} that sets variables is not read")
    shell.state.status = 0


def _refused(shell: Shell, words: list[str], node: Simple) -> None:
    raise shell.refuse(f"{plain(readable(node.source), 60)} is not read")


BUILTINS: dict[str, Builtin] = {
    ":": _true, "true": _true, "false": _false, "echo": echo, "printf": printf, "test": _test, "[": _bracket, "let": _let,
    "unset": _unset, "read": read, "shift": _shift, "set": set_options, "shopt": shopt, "eval": _eval, "exit": _exit,
    "return": _return, "break": _break, "continue": _continue, "exec": _exec, "command": _command, "builtin": _command,
    "source": source, ".": source, "getopts": getopts, "cd": cd, "pwd": pwd, "mapfile": _mapfile, "readarray": _mapfile, "trap": _trap,
    "pushd": _moved, "popd": _moved, "enable": _refused, "coproc": _refused, "select": _refused, "caller": _unknown,
    "alias": _true, "unalias": _true,
    **dict.fromkeys(
        ("dirs", "wait", "ulimit", "umask", "kill", "jobs", "disown", "hash", "type", "times", "history",
         "bg", "fg", "suspend", "logout", "complete", "compgen", "bind", "help"),
        _unknown,
    ),
}  # fmt: skip
"""What each builtin does with its words."""
