"""Characters of a shell script: blanks, comments, words with their quotes and expansions.

Sources: POSIX.1-2017 XCU 2.2 (Quoting), 2.3 (Token Recognition); the Bash Reference Manual 5.2, 3.1.2 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from ...errors import ConfigError
from ...wording import plain
from .grammar import Hole, Opaque
from .values import Unknown, readable

S = TypeVar("S", bound="Scanner")
META = frozenset(" \t\n;&|<>()")
DEEPEST = 40
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"<(?:[A-Za-z](?:[^<>\n|;&()`\"'$\\]*[^\s<>|;&()`\"'$\\])?)>(?=[\s/)]|$)")
_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\",
    "'": "'", '"': '"', "?": "?",
}  # fmt: skip


class Scanner:
    """A place in a text, and what can be read there without knowing what it means."""

    def __init__(self, text: str, line: int = 1, depth: int = 0, holes: Mapping[str, Unknown] | None = None) -> None:
        """`holes` are characters of the text that stand for what is not known."""
        self.text = text
        self.at = 0
        self.line = line
        self.depth = depth
        self.holes = holes or {}

    def within(self: S, text: str, line: int) -> S:
        """A reader of the same kind for a text inside this one."""
        return type(self)(text, line, self.deeper(), self.holes)

    def source(self, start: int) -> str:
        """The text from `start` up to here, as it may be shown."""
        found = self.text[start : self.at]
        for hole in self.holes:
            found = found.replace(hole, readable((self.holes[hole],)))
        return found

    # -- characters ------------------------------------------------------------------------------------------------
    def peek(self, length: int = 1) -> str:
        """The next characters."""
        return self.text[self.at : self.at + length]

    def error(self, what: str) -> ConfigError:
        """The error that says what the script has, and where."""
        return ConfigError(f"line {self.line} of the script has {plain(what, 200)}")

    def deeper(self) -> int:
        """One level further in. Raises ConfigError for a script that is nested too deeply."""
        if self.depth >= DEEPEST:
            raise ConfigError(f"the script is nested too deeply at line {self.line}: more than {DEEPEST} levels")
        return self.depth + 1

    def blanks(self) -> None:
        """Passes over blanks, comments and continued lines."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif self.text[self.at] == "#" and (
                self.at == 0 or self.text[self.at - 1] in META or self.text[self.at - 1] == "\r"
            ):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def hole(self, *, quoted: bool) -> Hole:
        """What is not known in a text that is read again (`eval`, `bash -c`)."""
        self.at += 1
        return Hole(self.holes[self.text[self.at - 1]], quoted)

    def stands_for(self) -> bool:
        """Whether a placeholder begins here."""
        at = self.at
        found = self.placeholder(at) is not None
        self.at = at
        return found

    def placeholder(self, start: int) -> Opaque | None:
        """`<path to model>`: what stands for a value that nobody has written yet; to bash it is redirections."""
        match = _PLACEHOLDER.match(self.text, self.at)
        if match is None or (self.at == start and self.text[match.end() : match.end() + 1] == "/"):
            return None
        self.at = match.end()
        return Opaque(match.group())

    def single(self) -> str:
        """The text in single quotes."""
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.error("a single quote that does not end")
        found = self.text[self.at + 1 : end]
        self.line += found.count("\n")
        self.at = end + 1
        return found

    def enclosed(self, opening: str, closing: str) -> str:
        """The text between brackets that begin here; quotes, comments and expansions inside are passed over whole, single quotes
        too where double quotes stand around them."""
        opened = self.error(f"{opening} that does not end")
        level, begin = 0, self.at + 1
        self.deeper()
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == "\\":
                self.line += self.peek(2) == "\\\n"
                self.at += 2
                continue
            if c == "'":
                self.single()
                continue
            if c in '"`':
                self._skip_quoted(c)
                continue
            if c == "#" and opening == "(" and self.text[self.at - 1] in " \t\n;(":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            level += c == opening
            level -= c == closing
            self.line += c == "\n"
            self.at += 1
            if level == 0:
                return self.text[begin : self.at - 1]
        raise opened

    def _skip_quoted(self, mark: str) -> None:
        opened = self.error("a double quote that does not end" if mark == '"' else "a backquote that does not end")
        self.at += 1
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == mark:
                self.at += 1
                return
            if c == "\\":
                self.at += 2
            elif mark == '"' and self.peek(2) in ("$(", "${"):
                self.at += 1
                inner = Scanner(self.text, self.line, self.deeper())
                inner.at = self.at
                inner.enclosed(self.peek(), ")" if self.peek() == "(" else "}")
                self.at, self.line = inner.at, inner.line
            else:
                self.line += c == "\n"
                self.at += 1
        raise opened

    def ansi(self) -> str:
        """The text of $'...'."""
        opened = self.error("a single quote that does not end")
        self.at += 2
        found = ""
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == "'":
                self.at += 1
                return found
            if c != "\\":
                self.line += c == "\n"
                found += c
                self.at += 1
                continue
            self.at += 1
            code = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})").match(self.text, self.at)
            if code is not None:
                number = int(code.group(1) or code.group(2) or code.group(3), 8 if code.group(3) else 16)
                if not number or number > 127:
                    raise self.error(f"\\{code.group()} in $'...', which is not plain text")
                found += chr(number)
                self.at = code.end()
            else:
                found += _ESCAPES.get(self.peek(), "\\" + self.peek())
                self.at += 1
        raise opened
