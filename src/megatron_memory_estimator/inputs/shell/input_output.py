"""What commands print and read: `echo`, `printf`, `read`, `mapfile`, `getopts`; and the files that a script writes itself.

These are known as long as only `cat`, `tee`, `echo` and `printf` write them.

Source: the Bash Reference Manual 5.2, 4.1 and 4.2; POSIX.1-2017 XCU getopts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import ConfigError
from ...wording import plain, whole
from .expand import text_of
from .grammar import Command, Redirect, Simple
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
    pieces,
    present,
    readable,
    size,
    unquoted,
    unset_in,
    with_blanks,
)
from .words import NAME

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


def written(shell: Shell, redirects: Sequence[Redirect], text: Value | None = None) -> None:
    """Standard output of a command goes to files: `text`, or what cannot be known."""
    for one in redirects:
        if not one.takes or one.operator == ">&":
            continue
        path = plain_path(shell.targets.get(id(one), ""))
        if id(one) in shell.stored:
            shell.stored.discard(id(one))
        elif path not in shell.state.files and not _KEPT.fullmatch(path):
            continue
        elif text is None:
            shell.state.files[path] = shell.doubt("the file is written by a command")
        else:
            shell.stored.add(id(one))
            store(shell, path, text, appends=one.operator in (">>", "&>>"))


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


UNCHANGING = re.compile(r"chmod|cat|bash|sh|zsh|dash|sbatch|ls|echo|source|\.|rm|mkdir|scp|grep|head|tail")
"""Programs that change no file that they are given."""


def changed(shell: Shell, name: str, words: Sequence[Value]) -> None:
    """Files among the words of a program that may change them are not known any more."""
    if UNCHANGING.fullmatch(name):
        return
    for word in words:
        path = plain_path(word)
        if path in shell.state.files:
            shell.state.files[path] = shell.doubt(f"{name[:40]} may change the file")


def text_of_file(shell: Shell, path: Value, *, opens: bool = True) -> tuple[Value | None, str]:
    """The text of a file that the script wrote or, if `opens`, of one beside it with its place; None where there is none. Raises
    ConfigError where it has been changed in an unknown way, and where too many are opened."""
    text, name = shell.state.files.get(plain_path(path)), bare(path)
    if text is not None and in_doubt(text) and not bare(text):
        raise shell.refuse(f"{plain_path(path)[:80]} is started, but what stands in it is not known")
    if text is not None or not opens or shell.beside is None:
        return text, ""
    if in_doubt(path):
        if shell.beside.given is None or not isinstance(end := pieces(path)[-1], str) or "/" not in end:
            return None, ""
        name = end.lstrip("/")  # files that came with the script are found by the ends of their paths
    found = shell.beside.read(name, shell.state.folder)
    if found is None:
        return None, ""
    place, text = found
    shell.opened += 1
    shell.spend(len(text))
    if shell.opened > MOST_OPENED:
        raise shell.refuse(f"more than {MOST_OPENED} files are opened")
    if "\0" in text:
        raise shell.refuse(f"{name[:80]} has a null byte")
    return text, place


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
    """`echo`; with -e and a backslash the text is not known. Where nothing sets all of it, what reads it knows that."""
    newline = "\n"
    words = present(words) or words
    while words and isinstance(words[0], str) and re.fullmatch(r"-[neE]+", words[0]):
        option, words = words[0], words[1:]
        newline = "" if "n" in option else newline
        if "e" in option and any("\\" in bare(word) for word in words):
            prints(shell, None)
            return
    prints(shell, joined((unquoted(with_blanks(words)), newline)), node)


def printf(shell: Shell, words: list[Value], node: Simple) -> None:
    """`printf`, also into a variable."""
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


_FIELD = re.compile(r"%s|%0?[1-9]?[0-9]?d")
_PRINTED = {"%%": "%", "\\n": "\n", "\\t": "\t"}


def formatted(words: list[Value]) -> Value | None:
    """What printf makes of %s, %d and plain text; None for anything else."""
    if not words or in_doubt(words[0]):
        return None
    form, values = bare(words[0]), [unquoted(word) for word in words[1:]]
    parts = re.findall(r"%%|%0?[1-9]?[0-9]?d|%s|\\[nt]|[^%\\]+|.", form, re.DOTALL)
    takes = any(map(_FIELD.fullmatch, parts))
    if any(part[0] in "%\\" and part not in _PRINTED and not _FIELD.fullmatch(part) for part in parts):
        return None
    out: list[Value] = []
    rounds, printed = 0, 0
    while rounds == 0 or (values and takes):
        rounds += 1
        printed += sum(map(size, out[-len(parts) :]))
        if rounds > 5000 or printed > 2**18:
            return None
        for part in parts:
            if _FIELD.fullmatch(part):
                value = values.pop(0) if values else ("" if part == "%s" else "0")
                if part != "%s" and not (isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value)):
                    return None
                out.append(value if part in ("%s", "%d") else format(int(bare(value)), part[1:]))
            else:
                out.append(_PRINTED.get(part, part))
    return joined(out)


# -- reading -------------------------------------------------------------------------------------------------------------
def read(shell: Shell, words: list[Value], node: Simple) -> None:
    """`read` from a here-string, a here-document or what the commands around it are fed; otherwise the values are in doubt."""
    names, array, raw, whole = _asked(shell, words)
    is_fed = any(one.feeds for one in node.redirects)
    if whole and not is_fed and shell.state.fed is not None:
        raise shell.refuse("read -d of what a loop is fed is not read")
    text = document(shell, node) if is_fed or shell.state.fed is None else _next_line(shell, raw=raw)
    targets = [array] if array else names or ["REPLY"]
    if not isinstance(text, str) or (not raw and "\\" in text):
        why = f"`{plain(node.source, 60)}` reads what is not known"
        source_name = next(iter(unset_in(text or "")), "")
        for name in targets:
            value = shell.doubt(why, source_name or name)
            shell.assign(name, Array({0: value}) if array else value)
        shell.undecided()
        return
    line = text if whole else text.split("\n")[0]
    pieces = _cut(shell, line, 0 if array else len(targets))
    if array:
        shell.assign(array, Array(dict(enumerate(pieces))))
    elif not names:
        shell.assign("REPLY", line)
    else:
        for at, name in enumerate(names):
            shell.assign(name, pieces[at] if at < len(pieces) else "")
    shell.state.status = int(whole or "\n" not in text)  # to the end of the text, which no NUL ends


def _next_line(shell: Shell, *, raw: bool) -> Value | None:
    """The next line of what the commands around this one are fed; None where its end is not known."""
    line, end, rest = partition(shell.state.fed or "", "\n")
    if not isinstance(line, str) or (not raw and "\\" in line):
        shell.state.fed = None
        return None
    shell.state.fed = rest
    return line + end


def _asked(shell: Shell, words: list[Value]) -> tuple[list[str], str, bool, bool]:
    """The variables of `read`, the array instead of them, whether backslashes are characters, and whether all lines are read (-d '')."""
    names: list[str] = []
    array, raw, whole = "", False, False
    while words:
        word, *words = words
        if word in ("-d", "-rd") and words[:1] == [""]:
            raw, whole, words = raw or "r" in word, True, words[1:]
        elif word in ("-r", "-s", "-a", "-ra", "-p", "-t", "-rp"):
            raw = raw or "r" in word
            array = bare(*words[:1]) if word[-1] == "a" and words else array
            words = words[word[-1] in "apt" :]
        elif isinstance(word, str) and NAME.fullmatch(word):
            names.append(word)
        else:
            raise shell.refuse(f"read {plain(readable(word), 40)} is not read")
    return names, array, raw, whole


def _cut(shell: Shell, line: str, most: int) -> list[str]:
    """A line in fields at IFS; with `most` the last holds the rest. Blanks and one other separator are what is read."""
    value = shell.separators("split")
    blanks = "".join(c for c in value if c in " \t\n")
    others = "".join(c for c in value if c not in " \t\n")
    if others and blanks:
        raise shell.refuse("read with an IFS of blanks and other characters is not read")
    mark = f"[{re.escape(blanks)}]+" if blanks else f"[{re.escape(others)}]"
    line = line.strip(blanks) if blanks else line
    parts = [line] if most == 1 or not value else re.split(mark, line, maxsplit=max(most - 1, 0))
    if blanks or not value:
        return [part for part in parts if part or not value]
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
            _opted(shell, name, "?", None, (min(number, len(arguments) + 1) + (word == "--"), 0, ""))
            shell.state.status = 1
            return
        at = 1
    _option(shell, letters, name, arguments, number, at)


def _opted(shell: Shell, name: str, found: str, value: Value | None, behind: tuple[int, int, Value]) -> None:
    """Sets the variables of `getopts`: the option, its value, and the place behind it."""
    shell.assign(name, found)
    if value is None:
        shell.forget("OPTARG")
    else:
        shell.assign("OPTARG", value)
    shell.assign("OPTIND", str(behind[0]))
    shell.state.options_at = behind


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
    _opted(shell, name, found, value, (following, rest, arguments[number - 1]))
