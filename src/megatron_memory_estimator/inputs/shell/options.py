"""`set` and `shopt`. Source: the Bash Reference Manual 5.2, 4.3 (Modifying Shell Behavior)."""

from __future__ import annotations

import re

from ...wording import plain
from .doubts import present, readable
from .grammar import Simple
from .state import Shell

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
    "a": "allexport",
    "E": "errtrace",
    "T": "functrace",
}
"""Options by their letters."""
HARMLESS = frozenset({*OPTIONS.values(), "pipefail", "history", "emacs", "vi", "interactive-comments"})
"""Options that may be set; the state keeps them, some of which decide what commands do."""
UNREAD = frozenset({"lastpipe", "nocasematch", "expand_aliases", "failglob", "inherit_errexit", "patsub_replacement"})


def set_options(shell: Shell, words: list[str], node: Simple) -> None:
    """`set`: options, and the positional parameters behind them."""
    shell.state.status = 0
    words = present(words)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "-":
            raise shell.refuse("set - is not read")
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
            else:
                names.append(OPTIONS.get(letter, letter))
        for name in names:
            if name and name not in HARMLESS:
                raise shell.refuse(f"set {word} {plain(readable(name), 40)} is not read")
        changed = frozenset(names)
        shell.state.options = shell.state.options | changed if word[0] == "-" else shell.state.options - changed


def shopt(shell: Shell, words: list[str], node: Simple) -> None:
    """`shopt`: what changes how commands are read is refused."""
    for word in words:
        if word in UNREAD:
            raise shell.refuse(f"shopt {word} is not read")
    shell.state.status = None
