"""`read`. Source: the Bash Reference Manual 5.2, 4.2 (Bash Builtins)."""

from __future__ import annotations

import re

from ...wording import plain
from .doubts import MARK, present, readable, unset_in
from .grammar import Simple
from .scanner import NAME
from .state import Array, Shell


def read(shell: Shell, words: list[str], node: Simple) -> None:
    """`read` from a here-string or a here-document; from anywhere else the values are in doubt."""
    names, array, raw = _asked(shell, present(words))
    feeds = [redirect for redirect in node.redirects if redirect.feeds]
    source = feeds[-1] if feeds else None
    text = shell.targets[id(source)] if source is not None and source.operator in ("<<", "<<<") else None
    if source is None and shell.state.fed is not None:
        text = _next_line(shell, raw=raw)
    targets = [array] if array else names or ["REPLY"]
    if text is None or MARK in text or (not raw and "\\" in text):
        why = f"`{plain(readable(node.source), 60)}` reads what is not known"
        source_name = next((name for name in unset_in(text or "")), "")
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
    is_here = source is not None and source.operator == "<<<"
    shell.state.status = 0 if is_here or "\n" in text else 1


def _next_line(shell: Shell, *, raw: bool) -> str | None:
    """The next line of what the commands around this one are fed; None where its end is not known."""
    line, end, rest = (shell.state.fed or "").partition("\n")
    if MARK in line or (not raw and "\\" in line):
        shell.state.fed = None
        return None
    shell.state.fed = rest
    return line + end


def _asked(shell: Shell, words: list[str]) -> tuple[list[str], str, bool]:
    """The variables of `read`, the array instead of them, and whether backslashes are characters."""
    names: list[str] = []
    array, raw = "", False
    while words:
        word, *words = words
        if word in ("-r", "-s"):
            raw = raw or word == "-r"
        elif word in ("-a", "-ra"):
            array, raw = (words[0] if words else ""), raw or word == "-ra"
            words = words[1:]
        elif NAME.fullmatch(word):
            names.append(word)
        elif word in ("-p", "-t", "-rp"):
            raw = raw or word == "-rp"
            words = words[1:]
        else:
            raise shell.refuse(f"read {plain(readable(word), 40)} is not read")
    return names, array, raw


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
        if sum(c in others for c in parts[-1]) == 1 and parts[-1][-1] in others:
            parts[-1] = parts[-1][:-1]  # one separator behind the last field drops out
    elif parts and parts[-1] == "":
        parts.pop()
    return parts
