"""Characters of a shell script: blanks, comments, quotes, brackets, read without knowing what they mean.

Sources: POSIX.1-2017 XCU 2.2 (Quoting), 2.3 (Token Recognition); the Bash Reference Manual 5.2, 3.1.2 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from ...errors import ConfigError
from ...wording import plain
from .grammar import Hole
from .values import Unknown, readable

S = TypeVar("S", bound="Scanner")
META = frozenset(" \t\n;&|<>()")
DEEPEST = 40
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n|(?<![^ \t\r\n;&|<>()])#[^\n]*)+")
_PLACEHOLDER = re.compile(r"<(?:[A-Za-z](?:[^<>\n|;&()`\"'$\\]*[^\s<>|;&()`\"'$\\])?)>(?=[\s/)]|$)")
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\",
    "'": "'", '"': '"', "?": "?",
}  # fmt: skip


class Scanner:
    """A place in a text."""

    def __init__(self, text: str, line: int = 1, depth: int = 0, holes: Mapping[str, Unknown] | None = None) -> None:
        """`holes` are characters of the text that stand for what is not known."""
        self.text = text
        self.at = 0
        self.line = line
        self.depth = depth
        self.holes = holes or {}

    def within(self: S, text: str, line: int) -> S:
        """A reader of the same kind for a text inside this one."""
        with self.deeper():
            return type(self)(text, line, self.depth, self.holes)

    def source(self, start: int) -> str:
        """The text from `start` up to here, as it may be shown."""
        found = self.text[start : self.at]
        for hole in self.holes:
            found = found.replace(hole, readable((self.holes[hole],)))
        return found

    def error(self, what: str, line: int = 0) -> ConfigError:
        """The error that says what the script has, and where."""
        return ConfigError(f"line {line or self.line} of the script has {plain(what, 200)}")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level further in. Raises ConfigError for a script that is nested too deeply."""
        if self.depth >= DEEPEST:
            raise ConfigError(f"the script is nested too deeply at line {self.line}: more than {DEEPEST} levels")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    # -- characters ------------------------------------------------------------------------------------------------
    def peek(self, length: int = 1) -> str:
        """The next characters."""
        return self.text[self.at : self.at + length]

    def eat(self, *texts: str) -> str:
        """Passes over the first of `texts` that comes next, which it returns; nothing where none of them comes."""
        found = next((one for one in texts if self.text.startswith(one, self.at)), "")
        self.at += len(found)
        self.line += found.count("\n")
        return found

    def line_end(self, at: int) -> int:
        """Where the line of a place ends."""
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def blanks(self) -> None:
        """Passes over blanks, comments and continued lines."""
        match = _BLANKS.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            self.line += match.group().count("\n")

    def character(self) -> None:
        """Passes over one character, a backslash with the one behind it."""
        self.eat(self.peek(2 if self.peek() == "\\" else 1))

    def pass_over(self) -> None:
        """Passes over one character, or over quotes as a whole."""
        c = self.peek()
        if c == "'":
            self.single()
        elif c in '"`':
            self._quotes(c)
        else:
            self.character()

    def bracketed(self) -> bool:
        """Passes over `$(...)` or `${...}`, if one of them comes next."""
        if self.peek(2) not in ("$(", "${"):
            return False
        self.at += 1
        with self.deeper():
            self.enclosed()
        return True

    def _quotes(self, mark: str) -> None:
        line = self.line
        self.at += 1
        while self.at < len(self.text):
            if self.eat(mark):
                return
            if mark == "`" or not self.bracketed():
                self.character()
        raise self.error(f"a {'backquote' if mark == '`' else 'double quote'} that does not end", line)

    def enclosed(self) -> str:
        """The text between brackets that begin here; quotes, comments and expansions inside are passed over whole, single quotes
        too where double quotes stand around them."""
        opening = self.peek()
        closing = {"(": ")", "[": "]", "{": "}"}[opening]
        level, begin, line = 0, self.at + 1, self.line
        while self.at < len(self.text):
            c = self.peek()
            if c == "#" and opening == "(" and self.text[self.at - 1] in " \t\n;(":
                self.at = self.line_end(self.at)
                continue
            level += (c == opening) - (c == closing)
            self.pass_over()
            if level == 0:
                return self.text[begin : self.at - 1]
        raise self.error(f"{opening} that does not end", line)

    # -- pieces of words -------------------------------------------------------------------------------------------
    def hole(self, *, quoted: bool) -> Hole:
        """What is not known in a text that is read again (`eval`, `bash -c`)."""
        self.at += 1
        return Hole(self.holes[self.text[self.at - 1]], quoted)

    def placeholder(self, start: int) -> str:
        """`<path to model>`, if it comes next in the word that begins at `start`: what stands for a value that nobody has written
        yet; to bash it is redirections."""
        match = _PLACEHOLDER.match(self.text, self.at)
        if match is None or (self.at == start and self.text[match.end() : match.end() + 1] == "/"):
            return ""
        return match.group()

    def single(self) -> str:
        """The text in single quotes."""
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.error("a single quote that does not end")
        found = self.text[self.at + 1 : end]
        self.line += found.count("\n")
        self.at = end + 1
        return found

    def ansi(self) -> str:
        """The text of $'...'."""
        match = _ANSI.match(self.text, self.at)
        if match is None:
            raise self.error("a single quote that does not end")
        found = _ESCAPE.sub(self._escaped, match.group(1))
        self.at = match.end()
        self.line += match.group().count("\n")
        return found

    def _escaped(self, code: re.Match[str]) -> str:
        """The character of a backslash and what stands behind it."""
        hexadecimal, octal, other = code.group(1) or code.group(2), code.group(3), code.group(4)
        if other:
            return _ESCAPES.get(other, "\\" + other)
        number = int(hexadecimal or octal, 16 if hexadecimal else 8)
        if not 0 < number < 128:
            raise self.error(f"{code.group()} in $'...', which is not plain text")
        return chr(number)
