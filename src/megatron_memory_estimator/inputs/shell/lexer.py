"""Words and operators of a shell script. Source of the grammar: POSIX.1-2017 XCU 2 (Shell Command Language), and Bash arrays."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import ConfigError

OPERATORS = ("&&", "||", ";;", ";", "&", "|", "(", ")", "\n")
CLOSING = {"${": "}", "$(": ")", "`": "`"}


class Part(NamedTuple):
    """A stretch of a word: literal text, or text with expansions, inside double quotes or not."""

    text: str
    quoted: bool
    literal: bool


class Token(NamedTuple):
    """A word (its parts), an operator, or an array assignment (`name`, `+=` or `=`, its words)."""

    kind: str
    line: int
    text: str = ""
    parts: tuple[Part, ...] = ()
    items: tuple[Token, ...] = ()


def expansion_end(text: str, at: int) -> int | None:
    """The place behind the expansion that begins at a $ or `; None if it does not end."""
    for opening, closing in CLOSING.items():
        if text.startswith(opening, at):
            if opening == "`":
                end = text.find("`", at + 1)
                return end + 1 if end >= 0 else None
            depth, place = 0, at + 1
            while place < len(text):
                depth += text[place] == opening[1]
                depth -= text[place] == closing[-1]
                place += 1
                if depth == 0:
                    return place
            return None
    match = re.match(r"\$(\w+|[@*#?$!-])?", text[at:])
    return at + match.end() if match else at + 1


def expansions(text: str) -> list[tuple[str, bool]]:
    """A text cut into (piece, whether it is an expansion); \\$ is a plain dollar sign."""
    found: list[tuple[str, bool]] = []
    start = at = 0
    while at < len(text):
        if text.startswith("\\$", at):
            found.append((text[start:at] + "$", False))
            at += 2
            start = at
        elif text[at] in "$`":
            end = expansion_end(text, at) or len(text)
            found += [(text[start:at], False), (text[at:end], end - at > 1)]
            start = at = end
        else:
            at += 1
    return [piece for piece in [*found, (text[start:], False)] if piece[0]]


class Lexer:
    """Reads tokens from the start of a script to its end."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\\\r\n", " ").replace("\\\n", "  ")
        self.at = 0
        self.line = 1

    def tokens(self) -> list[Token]:
        """All tokens."""
        found: list[Token] = []
        while True:
            token = self.next()
            if token is None:
                return found
            found.append(token)

    def next(self) -> Token | None:
        """The next token, or None at the end."""
        self._blanks()
        if self.at >= len(self.text):
            return None
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                token = Token("operator", self.line, operator)
                self.line += operator == "\n"
                return token
        if self.text[self.at] in "<>" or re.match(r"\d*[<>]", self.text[self.at :]):
            return self._redirection()
        return self._word()

    def _blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def _redirection(self) -> Token | None:
        match = re.match(r"\d*(<<<|<<-?|>>|>&|<&|&>|<|>)&?", self.text[self.at :])
        assert match is not None
        self.at += match.end()
        if match.group(1).startswith("<<") and match.group(1) != "<<<":
            return self._heredoc()
        self._blanks()
        if self.at < len(self.text) and self.text[self.at] == "(":
            self._enclosed(")")
        else:
            self._word()
        return self.next()

    def _heredoc(self) -> Token | None:
        """A here-document as one word: scripts feed the launch command to sbatch or bash in this way."""
        match = re.match(r"\s*(['\"]?)([A-Za-z_]\w*)\1", self.text[self.at :])
        if match is None:
            raise self._error("a here-document without a name")
        self.at += match.end()
        line_end = self.text.find("\n", self.at)
        end = re.search(rf"^\s*{match.group(2)}\s*$", self.text[line_end + 1 :], re.MULTILINE)
        if line_end < 0 or end is None:
            raise self._error(f"a here-document that {match.group(2)} does not end")
        body = self.text[line_end + 1 : line_end + 1 + end.start()]
        rest, tail = self.text[self.at : line_end], self.text[line_end + 1 + end.end() :]
        self.text, self.at = rest + tail, 0
        return Token("word", self.line, body, (Part(body, True, bool(match.group(1))),))

    def _word(self) -> Token:
        parts: list[Part] = []
        start, line = self.at, self.line
        plain = ""

        def flush() -> None:
            nonlocal plain
            if plain:
                parts.append(Part(plain, False, False))
                plain = ""

        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\r\n;&|<>()":
                name = re.fullmatch(r"([A-Za-z_]\w*)(\+?=)", self.text[start : self.at])
                if c == "(" and name is not None:
                    return self._array(name.group(1), name.group(2), line)
                break
            if c == "'":
                flush()
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self._error("a single quote that does not end")
                parts.append(Part(self.text[self.at + 1 : end], True, True))
                self.line += self.text.count("\n", self.at, end)
                self.at = end + 1
            elif c == '"':
                flush()
                parts.append(Part(self._double(), True, False))
            elif c == "\\":
                flush()
                parts.append(Part(self.text[self.at + 1 : self.at + 2], True, True))
                self.at += 2
            elif c == "$" or c == "`":
                plain += self._expansion()
            else:
                plain += c
                self.at += 1
        flush()
        return Token("word", line, self.text[start : self.at], tuple(parts))

    def _array(self, name: str, sign: str, line: int) -> Token:
        self.at += 1
        items: list[Token] = []
        while True:
            self._blanks()
            if self.at >= len(self.text):
                raise self._error(f"the array {name} does not end")
            if self.text[self.at] == ")":
                self.at += 1
                return Token("array", line, name + sign, (), tuple(items))
            if self.text[self.at] == "\n":
                self.at += 1
                self.line += 1
                continue
            if self.text[self.at] in "(;&|<>":
                raise self._error(f"{self.text[self.at]} without quotes in the array {name}")
            items.append(self._word())

    def _double(self) -> str:
        self.at += 1
        out = ""
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                return out
            if c == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "`", "$"):
                following = self.text[self.at + 1]
                out += "\\$" if following == "$" else following
                self.at += 2
            elif c in "$`":
                out += self._expansion()
            else:
                self.line += c == "\n"
                out += c
                self.at += 1
        raise self._error("a double quote that does not end")

    def _expansion(self) -> str:
        """An expansion as it stands, with everything inside its brackets."""
        start, end = self.at, expansion_end(self.text, self.at)
        if end is None:
            raise self._error("an expansion that does not end")
        self.at = end
        self.line += self.text.count("\n", start, end)
        return self.text[start:end]

    def _enclosed(self, closing: str) -> str:
        start, depth = self.at, 0
        opening = self.text[self.at]
        while self.at < len(self.text):
            depth += self.text[self.at] == opening
            depth -= self.text[self.at] == closing
            self.at += 1
            if depth == 0:
                return self.text[start + 1 : self.at - 1]
        raise self._error(f"{opening} that does not end")

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"line {self.line} of the script has {what}")
