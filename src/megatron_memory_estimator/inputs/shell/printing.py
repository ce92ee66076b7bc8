"""`echo` and `printf`: what commands print. Source: the Bash Reference Manual 5.2, 4.2 (Bash Builtins)."""

from __future__ import annotations

import re

from ...wording import plain
from .doubts import bare, in_doubt, present, readable, unquoted
from .files import written
from .grammar import Simple
from .scanner import NAME
from .state import Shell


def prints(shell: Shell, text: str | None, node: Simple | None = None) -> None:
    """Output, which matters inside a substitution and in files that are started later; None is output that cannot be known."""
    if node is not None and text is not None:
        written(shell, node.redirects, text)
        if not any(one.takes and one.operator != ">&" for one in node.redirects):
            shell.said = text.strip()[:400]
    if shell.output is not None:
        if text is None:
            shell.opaque = True
            return
        shell.spend(len(text))
        shell.output.append(text)


def echo(shell: Shell, words: list[str], node: Simple) -> None:
    """`echo`; with -e and a backslash the text is not known."""
    words = present(words)
    newline = "\n"
    while words and re.fullmatch(r"-[neE]+", words[0]):
        option = words.pop(0)
        newline = "" if "n" in option else newline
        if "e" in option and any("\\" in word for word in words):
            prints(shell, None)
            shell.state.status = 0
            return
    prints(shell, unquoted(" ".join(words)) + newline, node)
    shell.state.status = 0


def printf(shell: Shell, words: list[str], node: Simple) -> None:
    """`printf`, also into a variable."""
    words = present(words)
    name = ""
    if words[:1] == ["-v"] and len(words) > 2:
        name, words = words[1], words[2:]
    is_option = bool(words) and words[0].startswith("-") and words[0] != "--"
    if words[:1] == ["--"]:
        words = words[1:]
    text = None if is_option else formatted(words)  # bash refuses what looks like an option
    if not name:
        prints(shell, text, node)
    elif NAME.fullmatch(name):
        shown = plain(readable(node.source), 60)
        shell.assign(name, text if text is not None else shell.doubt(f"`{shown}` is not worked out", name))
    else:
        raise shell.refuse(f"printf -v {plain(readable(name), 40)} is not read")
    shell.state.status = 0


def formatted(words: list[str]) -> str | None:
    """What printf makes of %s, %d and plain text; None for anything else."""
    if not words or in_doubt(words[0]):
        return None
    form, values = bare(words[0]), [unquoted(word) for word in words[1:]]
    parts = re.findall(r"%%|%0?[1-9]?[0-9]?d|%s|\\[nt]|[^%\\]+|.", form, re.DOTALL)
    if any(part[0] in "%\\" and part not in ("%%", "%s", "\\n", "\\t") and not _is_number(part) for part in parts):
        return None
    takes = sum(part == "%s" or _is_number(part) for part in parts)
    out, rounds = "", 0
    while rounds == 0 or (values and takes):
        rounds += 1
        if rounds > 5000 or len(out) > 2**18:
            return None
        for part in parts:
            if part == "%s" or _is_number(part):
                value = values.pop(0) if values else ("" if part == "%s" else "0")
                if part != "%s" and not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value):
                    return None
                out += value if part in ("%s", "%d") else format(int(value), part[1:])
            else:
                out += {"%%": "%", "\\n": "\n", "\\t": "\t"}.get(part, part)
    return out


def _is_number(part: str) -> bool:
    return part[0] == "%" and part[-1] == "d"
