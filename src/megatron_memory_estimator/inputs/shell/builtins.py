"""Builtins of bash that change what later commands see; those that are not read are refused by name.

Source: the Bash Reference Manual 5.2, 4 (Shell Builtin Commands).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...wording import plain, whole
from .arithmetic import settled
from .commands import (
    Break,
    Return,
    Stop,
    Unprintable,
    assign,
    call,
    elements,
    run,
)
from .conditions import WRONG, tested
from .doubts import MARK, bare, in_doubt, marks, readable, unquoted, vanishes
from .expand import braces, text_of, uncounted
from .grammar import Assignment, Simple, Text
from .parser import parsed
from .state import Array, Shell

Builtin = Callable[[Shell, list[str], Simple], None]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _prints(shell: Shell, text: str | None) -> None:
    """Output, which matters inside a substitution only; None is output that cannot be known."""
    if shell.output is not None:
        if text is None:
            raise Unprintable
        shell.spend(len(text))
        shell.output.append(text)


def _prints_unless_redirected(shell: Shell, found: Simple, text: str | None) -> None:
    if any(">" in one.operator for one in found.redirects):
        if shell.output is not None and any("&" in one.operator for one in found.redirects):
            raise Unprintable
        return
    _prints(shell, text)


def _true(shell: Shell, words: list[str], found: Simple) -> None:
    shell.state.status = 0


def _false(shell: Shell, words: list[str], found: Simple) -> None:
    shell.state.status = 1


def _unknown(shell: Shell, words: list[str], found: Simple) -> None:
    """A builtin that changes nothing here, with a status that is not known."""
    _prints(shell, None)
    shell.state.status = None


def _echo(shell: Shell, words: list[str], found: Simple) -> None:
    words = [word for word in words if not vanishes(word)]
    newline = "\n"
    while words and re.fullmatch(r"-[neE]+", words[0]):
        option = words.pop(0)
        newline = "" if "n" in option else newline
        if "e" in option and any("\\" in word for word in words):
            _prints_unless_redirected(shell, found, None)
    _prints_unless_redirected(shell, found, unquoted(" ".join(words)) + newline)
    shell.state.status = 0


def _printf(shell: Shell, words: list[str], found: Simple) -> None:
    words = [word for word in words if not vanishes(word)]
    name = ""
    if words[:1] == ["-v"] and len(words) > 2:
        name, words = words[1], words[2:]
    elif words[:1] == ["--"]:
        words = words[1:]
    if not name and shell.output is None:
        shell.state.status = 0
        return
    text = _formatted(words)
    if not name:
        _prints_unless_redirected(shell, found, text)
    elif _NAME.fullmatch(name):
        shown = plain(readable(found.source), 60)
        shell.assign(name, text if text is not None else shell.doubt(f"`{shown}` is not worked out", name))
    else:
        raise shell.refuse(f"printf -v {plain(readable(name), 40)} is not read")
    shell.state.status = 0


def _formatted(words: list[str]) -> str | None:
    """What printf makes of %s, %d and plain text; None for anything else."""
    if not words or in_doubt(words[0]):
        return None
    form, values = bare(words[0]), [unquoted(word) for word in words[1:]]
    parts = re.findall(r"%%|%[sd]|\\[nt]|[^%\\]+|.", form, re.DOTALL)
    if any(part[0] in "%\\" and part not in ("%%", "%s", "%d", "\\n", "\\t") for part in parts):
        return None
    takes = sum(part in ("%s", "%d") for part in parts)
    out, rounds = "", 0
    while rounds == 0 or (values and takes):
        rounds += 1
        if rounds > 5000 or len(out) > 2**18:
            return None
        for part in parts:
            if part in ("%s", "%d"):
                value = values.pop(0) if values else ("" if part == "%s" else "0")
                if part == "%d" and not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value):
                    return None
                out += value
            else:
                out += {"%%": "%", "\\n": "\n", "\\t": "\t"}.get(part, part)
    return out


def _test(shell: Shell, words: list[str], found: Simple) -> None:
    shell.state.status = tested(shell, words)


def _bracket(shell: Shell, words: list[str], found: Simple) -> None:
    shell.state.status = tested(shell, words[:-1]) if words[-1:] == ["]"] else WRONG


def _let(shell: Shell, words: list[str], found: Simple) -> None:
    value: int | str = 0
    for word in words:
        value = settled(shell, word)
    shell.state.status = None if isinstance(value, str) else int(value == 0)


def _unset(shell: Shell, words: list[str], found: Simple) -> None:
    functions, variables = "-f" in words, "-v" in words
    for word in words:
        if word in ("-f", "-v") or vanishes(word):
            continue
        element = re.fullmatch(r"([A-Za-z_]\w*)\[(.*)\]", word)
        if element is not None and not in_doubt(word):
            _unset_element(shell, element.group(1), bare(element.group(2)))
        elif not _NAME.fullmatch(word):
            raise shell.refuse(f"unset {plain(readable(word), 40)} is not read")
        elif not functions and (variables or word in shell.state.variables or word not in shell.state.functions):
            shell.forget(word)
        else:
            shell.state.functions.pop(word, None)
    shell.state.status = 0


def _unset_element(shell: Shell, name: str, index: str) -> None:
    before = shell.state.variables.get(name)
    if isinstance(before, Array) and not before.keyed and uncounted(before):
        raise shell.refuse(f"unset of an element of {name}, whose elements are not known, is not read")
    if isinstance(before, Array) and not before.keyed and index.isascii() and whole(index) is not None:
        shell.assign(name, Array({key: value for key, value in before.items.items() if key != int(index)}))
    elif isinstance(before, Array) and before.keyed and index:
        shell.assign(name, Array({key: value for key, value in before.items.items() if key != index}, True))
    elif before is not None:
        raise shell.refuse(f"unset of an element of {name} is not read")


def _read(shell: Shell, words: list[str], found: Simple) -> None:
    """`read` from a here-string or a here-document; from anywhere else the values are in doubt."""
    names: list[str] = []
    array, raw = "", False
    rest = [word for word in words if not vanishes(word)]
    while rest:
        word = rest.pop(0)
        if word in ("-r", "-s"):
            raw = raw or word == "-r"
        elif word in ("-a", "-ra"):
            array, raw = (rest.pop(0) if rest else ""), raw or word == "-ra"
        elif _NAME.fullmatch(word):
            names.append(word)
        elif word in ("-p", "-t", "-d", "-n", "-N", "-u", "-rp", "-i"):
            if word in ("-d", "-n", "-N", "-u", "-i"):
                raise shell.refuse(f"read {word} is not read")
            raw = raw or word == "-rp"
            del rest[:1]
        else:
            raise shell.refuse(f"read {plain(readable(word), 40)} is not read")
    source = next((one for one in reversed(found.redirects) if one.operator in ("<<<", "<<", "<")), None)
    text = (
        text_of(shell, source.target)
        if source is not None and source.operator != "<" and not shell_file(found)
        else None
    )
    targets = [array] if array else names or ["REPLY"]
    if text is None or MARK in text or (not raw and "\\" in text):
        why = f"`{plain(readable(found.source), 60)}` reads what is not known"
        source_name = next((name for kind, name in marks(text or "") if kind != "?"), "")
        for name in targets:
            mark = shell.doubt(why, source_name or name)
            shell.assign(name, Array({0: mark}) if array else mark)
        shell.state.status = None
        return
    line = text.split("\n")[0]
    pieces = _cut(shell, line, 0 if array else len(targets))
    if array:
        shell.assign(array, Array(dict(enumerate(pieces))))
    elif not names:
        shell.assign("REPLY", line)
    else:
        for at, name in enumerate(names):
            shell.assign(name, pieces[at] if at < len(pieces) else "")
    shell.state.status = 0 if source is not None and (source.operator == "<<<" or "\n" in text) else 1


def shell_file(found: Simple) -> bool:
    """Whether more than one source is given, of which bash takes the last."""
    return sum(one.operator in ("<", "<<", "<<<") for one in found.redirects) > 1


def _cut(shell: Shell, line: str, most: int) -> list[str]:
    """A line in fields at IFS; with `most` the last holds the rest. Blanks and one other separator are what is read."""
    value = shell.state.variables.get("IFS", " \t\n")
    if not isinstance(value, str) or MARK in value:
        raise shell.refuse("IFS is not known, so words cannot be split")
    blanks = "".join(c for c in value if c in " \t\n")
    others = "".join(c for c in value if c not in " \t\n")
    if others and blanks:
        raise shell.refuse("read with an IFS of blanks and other characters is not read")
    if not value:
        return [line]
    if blanks and most == 1:
        return [line.strip(blanks)]
    if blanks:
        parts = re.split(f"[{re.escape(blanks)}]+", line.strip(blanks), maxsplit=most - 1 if most else 0)
        return [part for part in parts if part] if not most else parts
    parts = [line] if most == 1 else re.split(f"[{re.escape(others)}]", line, maxsplit=most - 1 if most else 0)
    if most and len(parts) == most and any(c in parts[-1] for c in others):
        if parts[-1].count(parts[-1][-1]) == 1 and parts[-1][-1] in others:
            parts[-1] = parts[-1][:-1]  # one separator behind the last field drops out
    elif parts and parts[-1] == "":
        parts.pop()
    return parts


def _shift(shell: Shell, words: list[str], found: Simple) -> None:
    count = whole(words[0]) if words else 1
    if count is None:
        raise shell.refuse(f"shift {plain(readable(words[0]), 40)} is not read")
    if any(in_doubt(word) and not bare(word) and _loose(shell, word) for word in shell.state.positionals[:count]):
        raise shell.refuse("shift over words that depend on a condition that cannot be decided")
    shell.state.status = int(count > len(shell.state.positionals))
    if not shell.state.status:
        shell.state.positionals = shell.state.positionals[count:]


def _loose(shell: Shell, word: str) -> bool:
    return any(kind == "?" and any(len(c) != 1 for c in shell.doubts[key].choices) for kind, key in marks(word))


OPTIONS = {
    "e": "errexit",
    "u": "nounset",
    "x": "xtrace",
    "v": "verbose",
    "h": "hashall",
    "b": "notify",
    "m": "monitor",
    "C": "noclobber",
    "f": "noglob",
}
HARMLESS = frozenset(
    {"errexit", "nounset", "pipefail", "xtrace", "verbose", "hashall", "notify", "monitor", "noclobber", "noglob", "errtrace", "functrace",
     "history", "emacs", "vi", "interactive-comments"}
)  # fmt: skip


def _set(shell: Shell, words: list[str], found: Simple) -> None:
    shell.state.status = 0
    words = [word for word in words if not vanishes(word)]
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            shell.state.positionals = tuple(words[at:])
            return
        if not re.fullmatch(r"[-+][A-Za-z]+", word):
            shell.state.positionals = tuple(words[at - 1 :])
            return
        names = []
        for letter in word[1:]:
            if letter == "o":
                names.append(words[at] if at < len(words) else "")
                at += 1
            elif letter in "ET":
                names.append({"E": "errtrace", "T": "functrace"}[letter])
            else:
                names.append(OPTIONS.get(letter, letter))
        for name in names:
            if name and name not in HARMLESS:
                raise shell.refuse(f"set {word} {plain(readable(name), 40)} is not read")
        changed = frozenset(names)
        shell.state.options = shell.state.options | changed if word[0] == "-" else shell.state.options - changed


def _shopt(shell: Shell, words: list[str], found: Simple) -> None:
    for word in words:
        if word in (
            "lastpipe",
            "nocasematch",
            "expand_aliases",
            "extglob",
            "failglob",
            "inherit_errexit",
            "patsub_replacement",
        ):
            raise shell.refuse(f"shopt {word} is not read")
    shell.state.status = None


def _eval(shell: Shell, words: list[str], found: Simple) -> None:
    text = unquoted(" ".join(word for word in words if not vanishes(word)))
    again(shell, text, found)


def again(shell: Shell, text: str, found: Simple) -> None:
    """Reads a text as commands, here and now."""
    if not bare(text).strip():
        if in_doubt(text):
            shell.note(f"{plain(readable(found.source), 80)} is not followed")
        shell.state.status = None if in_doubt(text) else 0
        return
    shell.depth += 1
    shell.spend(10 * len(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("eval is nested too deeply")
        run(shell, parsed(text, shell.line))
    finally:
        shell.depth -= 1


def _exit(shell: Shell, words: list[str], found: Simple) -> None:
    if words:
        shell.state.status = whole(words[0])
    if shell.output is None and not shell.piped:
        shell.note("the script ends here (exit)")
    raise Stop


def _return(shell: Shell, words: list[str], found: Simple) -> None:
    if words:
        shell.state.status = whole(words[0])
    if not shell.locals:
        shell.note("the script ends here (return)")
        raise Stop
    raise Return


def _break(shell: Shell, words: list[str], found: Simple) -> None:
    levels = whole(words[0]) if words else 1
    if not levels:
        raise shell.refuse("break or continue out of a number of loops that is not known")
    shell.state.status = 0
    raise Break(levels, goes_on=False)


def _continue(shell: Shell, words: list[str], found: Simple) -> None:
    levels = whole(words[0]) if words else 1
    if not levels:
        raise shell.refuse("break or continue out of a number of loops that is not known")
    shell.state.status = 0
    raise Break(levels, goes_on=True)


def _exec(shell: Shell, words: list[str], found: Simple) -> None:
    from .programs import program

    if words[:1] and words[0].startswith("-"):
        raise shell.refuse(f"exec {plain(readable(words[0]), 40)} is not read")
    if words:
        program(
            shell, words, {one.name: str(shell.state.variables.get(one.name, "")) for one in found.assignments}, found
        )
        raise Stop
    shell.state.status = 0


def _command(shell: Shell, words: list[str], found: Simple) -> None:
    from .programs import program

    if words and words[0].startswith("-"):
        if words[0] not in ("-v", "-V"):
            raise shell.refuse(f"command {plain(readable(words[0]), 40)} is not read")
        _unknown(shell, words, found)
    elif words and words[0] in BUILTINS:
        BUILTINS[words[0]](shell, words[1:], found)
    elif words and words[0] in ("export", "declare", "local", "readonly", "typeset"):
        raise shell.refuse(f"command {words[0]} is not read")
    elif words:
        program(shell, words, {}, found)


def _source(shell: Shell, words: list[str], found: Simple) -> None:
    path = words[0] if words else ""
    if path in shell.state.files:
        again(shell, shell.state.files[path], found)
        return
    shell.note(f"{plain(readable(found.source), 80)} is not followed; what it sets is not known")
    _prints(shell, None)
    shell.state.status = None


def _getopts(shell: Shell, words: list[str], found: Simple) -> None:
    arguments = words[2:] or list(shell.state.positionals)
    if len(words) < 2 or not _NAME.fullmatch(words[1]) or [word for word in arguments if not vanishes(word)]:
        raise shell.refuse("getopts with words is not read")
    shell.assign(words[1], "?")
    shell.state.status = 1


def _mapfile(shell: Shell, words: list[str], found: Simple) -> None:
    name = next((word for word in reversed(words) if _NAME.fullmatch(word)), "MAPFILE")
    shell.assign(name, Array({0: shell.doubt(f"`{plain(readable(found.source), 60)}` reads what is not known", name)}))
    shell.state.status = None


def _trap(shell: Shell, words: list[str], found: Simple) -> None:
    for word in words[1:]:
        if word in ("DEBUG", "ERR", "RETURN") and bare(words[0]).strip(" -") and "=" in words[0]:
            raise shell.refuse(f"a trap on {word} that sets variables is not read")
    shell.state.status = 0


def _refused(shell: Shell, words: list[str], found: Simple) -> None:
    raise shell.refuse(f"{plain(readable(found.source), 60)} is not read")


BUILTINS: dict[str, Builtin] = {
    ":": _true, "true": _true, "false": _false, "echo": _echo, "printf": _printf, "test": _test, "[": _bracket, "let": _let,
    "unset": _unset, "read": _read, "shift": _shift, "set": _set, "shopt": _shopt, "eval": _eval, "exit": _exit,
    "return": _return, "break": _break, "continue": _continue, "exec": _exec, "command": _command, "builtin": _command,
    "source": _source, ".": _source, "getopts": _getopts, "mapfile": _mapfile, "readarray": _mapfile, "trap": _trap,
    "enable": _refused, "coproc": _refused, "select": _refused, "caller": _unknown, "alias": _true, "unalias": _true,
    **dict.fromkeys(
        ("cd", "pushd", "popd", "dirs", "wait", "ulimit", "umask", "kill", "jobs", "disown", "hash", "type", "times", "history",
         "bg", "fg", "suspend", "logout", "pwd", "complete", "compgen", "bind", "help"),
        _unknown,
    ),
}  # fmt: skip
"""What each builtin does with its words."""


def declare(shell: Shell, name: str, words: list[str], declared: list[Assignment]) -> None:
    """`export`, `declare`, `local`, `readonly`, `typeset`: options, names, and assignments."""
    options, plain_names = "", []
    removes = ""
    for word in words:
        if re.fullmatch(r"-[A-Za-z]+", word):
            options += word[1:]
        elif re.fullmatch(r"\+[A-Za-z]+", word):
            removes += word[1:]
        elif _NAME.fullmatch(word):
            plain_names.append(word)
        elif (match := re.match(r"([A-Za-z_]\w*)=", word)) is not None:  # made by an expansion
            plain_names.append(match.group(1))
            _localised(shell, name, options, match.group(1))
            shell.assign(match.group(1), unquoted(word[match.end() :]))
        elif not vanishes(word):
            raise shell.refuse(f"{name} {plain(readable(word), 40)} is not read")
    if name == "export" and "f" in options:
        shell.state.status = 0
        return
    if set(options) & set("nilucfFpItT") or removes.strip("x"):
        if set(options) <= set("pfF"):
            _prints(shell, None)
            shell.state.status = None
            return
        raise shell.refuse(f"{name} -{options}{'+' + removes if removes else ''} is not read")
    if name == "export" and "n" in options:
        raise shell.refuse("export -n is not read")
    for one in declared:
        if one.appends and shell.locals and name != "export" and one.name not in shell.locals[-1]:
            raise shell.refuse(f"{name} {one.name}+= is not read")
        keyed = "A" in options or (one.elements is not None and _is_keyed(shell, one.name))
        value: str | Array | None = None  # expanded before the name becomes one of the function
        if one.elements is not None:
            value = elements(shell, one, keyed=keyed)
        elif one.index is None and not one.appends:
            assert one.value is not None
            several = braces(shell, one.value)  # braces assign several times here; the last one stays
            if len(several) > 1 and not all(isinstance(piece, Text) for piece in one.value.pieces):
                raise shell.refuse(f"{name} with braces beside an expansion is not read")
            value = text_of(shell, several[-1])
            value = Array({0: value}) if "a" in options else value
        _localised(shell, name, options, one.name)
        if value is None:
            assign(shell, one)
        else:
            shell.assign(one.name, value)
        plain_names.append(one.name)
    for word in plain_names:
        if word not in {one.name for one in declared}:
            _localised(shell, name, options, word)
            if set(options) & set("aA") and not isinstance(shell.state.variables.get(word), Array):
                old = shell.state.variables.get(word)
                first: dict[int | str, str] = (
                    {} if old is None or "A" in options else {0: old} if isinstance(old, str) else {}
                )
                shell.assign(word, Array(first, "A" in options))
        if name == "export" or "x" in options:
            shell.state.exported.add(word)
        if "x" in removes:
            shell.state.exported.discard(word)
        if name == "readonly" or "r" in options:
            shell.state.readonly.add(word)
    shell.state.status = 0


def _is_keyed(shell: Shell, name: str) -> bool:
    before = shell.state.variables.get(name)
    return isinstance(before, Array) and before.keyed


def _localised(shell: Shell, command: str, options: str, name: str) -> None:
    """Inside a function `local` and `declare` make a variable of the function."""
    if not shell.locals:
        if command == "local":
            raise shell.refuse("local outside a function is not read")
        return
    if command not in ("local", "declare", "typeset") or "g" in options or name in shell.locals[-1]:
        return
    if name in shell.given:
        return
    shell.locals[-1][name] = (shell.state.variables.get(name), name in shell.state.exported)
    if command in ("local", "declare", "typeset"):
        shell.state.variables.pop(name, None)
        shell.state.exported.discard(name)


__all__ = ["BUILTINS", "again", "call", "declare"]
