"""What commands print and read: `echo`, `printf`, `read`, `mapfile`, `getopts`.

Source: the Bash Reference Manual 5.2, 4.1 and 4.2; POSIX.1-2017 XCU getopts.
"""

from __future__ import annotations

import re

from ...wording import plain, whole
from .files import written
from .grammar import Simple
from .state import Shell
from .values import (
    Array,
    Value,
    bare,
    head,
    in_doubt,
    joined,
    loose,
    partition,
    present,
    readable,
    size,
    unquoted,
    unset_in,
    with_blanks,
)
from .words import NAME


# -- printing ------------------------------------------------------------------------------------------------------------
def prints(shell: Shell, text: Value | None, node: Simple | None = None) -> None:
    """Output, which matters inside a substitution and in files that are started later; None is output that cannot be known."""
    if node is not None and text is not None:
        written(shell, node.redirects, text)
        if not any(one.takes and one.operator != ">&" for one in node.redirects):
            shell.said = text
    if shell.state.output is not None:
        if text is None:
            shell.state.opaque = True
            return
        shell.spend(size(text))
        shell.state.output.append(text)


def echo(shell: Shell, words: list[Value], node: Simple) -> None:
    """`echo`; with -e and a backslash the text is not known."""
    words = present(words)
    newline = "\n"
    while words and isinstance(words[0], str) and re.fullmatch(r"-[neE]+", words[0]):
        option, words = words[0], words[1:]
        newline = "" if "n" in option else newline
        if "e" in option and any("\\" in bare(word) for word in words):
            prints(shell, None)
            shell.state.status = 0
            return
    prints(shell, joined((unquoted(with_blanks(words)), newline)), node)
    shell.state.status = 0


def printf(shell: Shell, words: list[Value], node: Simple) -> None:
    """`printf`, also into a variable."""
    words = present(words)
    name: Value = ""
    if words[:1] == ["-v"] and len(words) > 2:
        name, words = words[1], words[2:]
    is_option = bool(words) and head(words[0]).startswith("-") and words[0] != "--"
    if words[:1] == ["--"]:
        words = words[1:]
    text = None if is_option else formatted(words)  # bash refuses what looks like an option
    if not name:
        prints(shell, text, node)
    elif isinstance(name, str) and NAME.fullmatch(name):
        shown = plain(node.source, 60)
        shell.assign(name, text if text is not None else shell.doubt(f"`{shown}` is not worked out", name))
    else:
        raise shell.refuse(f"printf -v {plain(readable(name), 40)} is not read")
    shell.state.status = 0


def formatted(words: list[Value]) -> Value | None:
    """What printf makes of %s, %d and plain text; None for anything else."""
    if not words or in_doubt(words[0]):
        return None
    form, values = bare(words[0]), [unquoted(word) for word in words[1:]]
    parts = re.findall(r"%%|%0?[1-9]?[0-9]?d|%s|\\[nt]|[^%\\]+|.", form, re.DOTALL)
    if any(part[0] in "%\\" and part not in ("%%", "%s", "\\n", "\\t") and not _is_number(part) for part in parts):
        return None
    takes = sum(part == "%s" or _is_number(part) for part in parts)
    out: list[Value] = []
    rounds, printed = 0, 0
    while rounds == 0 or (values and takes):
        rounds += 1
        printed += sum(map(size, out[-len(parts) :]))
        if rounds > 5000 or printed > 2**18:
            return None
        for part in parts:
            if part == "%s" or _is_number(part):
                value = values.pop(0) if values else ("" if part == "%s" else "0")
                if part != "%s" and not (isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value)):
                    return None
                out.append(value if part in ("%s", "%d") else format(int(bare(value)), part[1:]))
            else:
                out.append({"%%": "%", "\\n": "\n", "\\t": "\t"}.get(part, part))
    return joined(out)


def _is_number(part: str) -> bool:
    return part[0] == "%" and part[-1] == "d"


# -- reading -------------------------------------------------------------------------------------------------------------
def read(shell: Shell, words: list[Value], node: Simple) -> None:
    """`read` from a here-string, a here-document or what the commands around it are fed; otherwise the values are in doubt."""
    names, array, raw = _asked(shell, present(words))
    feeds = [redirect for redirect in node.redirects if redirect.feeds]
    source = feeds[-1] if feeds else None
    text = shell.targets[id(source)] if source is not None and source.operator in ("<<", "<<<") else None
    if source is None and shell.state.fed is not None:
        text = _next_line(shell, raw=raw)
    targets = [array] if array else names or ["REPLY"]
    if not isinstance(text, str) or (not raw and "\\" in text):
        why = f"`{plain(node.source, 60)}` reads what is not known"
        source_name = next(iter(unset_in(text or "")), "")
        for name in targets:
            value = shell.doubt(why, source_name or name)
            shell.assign(name, Array({0: value}) if array else value)
        shell.undecided()
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
    is_here = source is not None and source.operator == "<<<"
    shell.state.status = 0 if is_here or "\n" in text else 1


def _next_line(shell: Shell, *, raw: bool) -> Value | None:
    """The next line of what the commands around this one are fed; None where its end is not known."""
    line, end, rest = partition(shell.state.fed or "", "\n")
    if not isinstance(line, str) or (not raw and "\\" in line):
        shell.state.fed = None
        return None
    shell.state.fed = rest
    return line + end


def _asked(shell: Shell, words: list[Value]) -> tuple[list[str], str, bool]:
    """The variables of `read`, the array instead of them, and whether backslashes are characters."""
    names: list[str] = []
    array, raw = "", False
    while words:
        word, *words = words
        if word in ("-r", "-s"):
            raw = raw or word == "-r"
        elif word in ("-a", "-ra"):
            array, raw = (bare(words[0]) if words else ""), raw or word == "-ra"
            words = words[1:]
        elif isinstance(word, str) and NAME.fullmatch(word):
            names.append(word)
        elif word in ("-p", "-t", "-rp"):
            raw = raw or word == "-rp"
            words = words[1:]
        else:
            raise shell.refuse(f"read {plain(readable(word), 40)} is not read")
    return names, array, raw


def _cut(shell: Shell, line: str, most: int) -> list[str]:
    """A line in fields at IFS; with `most` the last holds the rest. Blanks and one other separator are what is read."""
    value = shell.separators("split")
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
        if sum(c in others for c in parts[-1]) == 1 and parts[-1][-1] in others:
            parts[-1] = parts[-1][:-1]  # one separator behind the last field drops out
    elif parts and parts[-1] == "":
        parts.pop()
    return parts


def mapfile(shell: Shell, words: list[Value], node: Simple) -> None:
    """`mapfile`, whose lines are not known."""
    name = next((word for word in reversed(words) if isinstance(word, str) and NAME.fullmatch(word)), "MAPFILE")
    shell.assign(name, Array({0: shell.doubt(f"`{plain(node.source, 60)}` reads what is not known", name)}))
    shell.undecided()


# -- options ------------------------------------------------------------------------------------------------------------
def getopts(shell: Shell, words: list[Value], node: Simple) -> None:
    """The next option into the variable, its value into OPTARG; status 1 where there is none left."""
    words = present(words)
    name = words[1] if len(words) > 1 else ""
    if not isinstance(name, str) or not NAME.fullmatch(name) or in_doubt(words[0]):
        raise shell.refuse("getopts without the letters of options and a name is not read")
    letters = bare(words[0])
    if len(words) == 2:
        shell.takes_words = True
    arguments = words[2:] or present(shell.state.positionals)
    held = shell.state.variables.get("OPTIND", "1")
    number = whole(held)
    if not number or any(map(loose, arguments[: number + 1])):
        raise shell.refuse("getopts over words that are not known is not read")
    before, at, inside = shell.state.options_at
    at = at if before == number else 0
    if at and arguments[number - 1 : number] != [inside]:
        raise shell.refuse("getopts that goes on inside a word that is another now is not read")
    if at == 0:
        word = arguments[number - 1] if number <= len(arguments) else ""
        if in_doubt(word):
            raise shell.refuse("getopts over words that are not known is not read")
        if not head(word).startswith("-") or word in ("-", "--"):
            _ends(shell, name, min(number, len(arguments) + 1) + (word == "--"))
            return
        at = 1
    _option(shell, letters, name, arguments, number, at)


def _ends(shell: Shell, name: str, number: int) -> None:
    shell.assign(name, "?")
    shell.forget("OPTARG")
    shell.assign("OPTIND", str(number))
    shell.state.options_at = (number, 0, "")
    shell.state.status = 1


def _option(shell: Shell, letters: str, name: str, arguments: list[Value], number: int, at: int) -> None:
    """The option at a place inside a word."""
    word = bare(arguments[number - 1])
    letter, is_last = word[at], at + 1 >= len(word)
    silent = letters.startswith(":")
    place = letters.find(letter, 1 if silent else 0) if letter != ":" else -1
    following, rest = (number + 1, 0) if is_last else (number, at + 1)
    found: str = letter
    value: Value | None = None
    if place < 0:
        found, value = "?", letter if silent else None
    elif letters[place + 1 : place + 2] == ":":
        following, rest = number + 1, 0
        if not is_last:
            value = word[at + 1 :]
        elif number < len(arguments):
            value, following = arguments[number], number + 2
        else:
            found, value = (":", letter) if silent else ("?", None)
    shell.assign(name, found)
    if value is None:
        shell.forget("OPTARG")
    else:
        shell.assign("OPTARG", value)
    shell.assign("OPTIND", str(following))
    shell.state.options_at = (following, rest, arguments[number - 1])
    shell.state.status = 0
