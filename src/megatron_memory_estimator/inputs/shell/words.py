"""Words of a shell script from its characters: blanks, comments, quotes, `$name`, `${...}`, `$(...)`, `$((...))`.

Sources: POSIX.1-2017 XCU 2.2 (Quoting), 2.3 (Token Recognition), 2.6 (Word Expansions); the Bash Reference Manual 5.2, 3.1.2 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from ...errors import ConfigError
from ...wording import plain
from .grammar import Arithmetic, Hole, List, Opaque, Param, Piece, Substitution, Text, Word, joined_pieces
from .values import Unknown, readable

S = TypeVar("S", bound="Words")
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
_PLAIN = re.compile(r"[A-Za-z0-9_./,:=+%@-]+")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_HOME = re.compile(r"~[A-Za-z0-9_+-]*(?=$|[/\s;&|<>():])")
OF_EMPTINESS = (":-", ":=", ":?", ":+", "-", "=", "?", "+")
"""Operators that ask whether a parameter is set."""
_OPERATORS = (*OF_EMPTINESS, "##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ",", ":", "@")


class Words:
    """A place in a text, from which words are read; the commands inside `$(...)` are read by `inside`, which the parser has."""

    inside: Callable[[str, int], List]

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

    # -- words -----------------------------------------------------------------------------------------------------
    def word(self, stops: frozenset[str] = META) -> Word | None:
        """The word that begins here, or None if none does; it ends before an unquoted character of `stops`."""
        start, line = self.at, self.line
        pieces: list[Piece] = []
        while self.at < len(self.text):
            if self.text[self.at] in stops:
                place = self.placeholder(start) if stops is META else ""
                if not place:
                    break
                pieces.append(Opaque(self.eat(place)))
                continue
            pieces += self.piece(is_start=self.at == start)
        if self.at == start:
            if self.peek(2) not in ("<(", ">(") or stops is not META:
                return None
            self.at += 1
            self.enclosed()
            pieces = [Opaque(self.source(start))]
        return Word(joined_pieces(pieces), line, self.source(start))

    def piece(self, *, is_start: bool = False) -> list[Piece]:
        """The next piece of an unquoted word."""
        c = self.peek()
        if c == "'":
            return [Text(self.single(), True)]
        if c == '"':
            return self.double()
        if c in "$`":
            return self.dollar(quoted=False)
        if c in self.holes:
            return [self.hole(quoted=False)]
        if c == "\\":
            if self.eat("\\\n"):
                return []
            return [Text(self.escaped() or c, True)]
        if c == "~" and is_start and (match := _HOME.match(self.text, self.at)) is not None:
            self.at = match.end()
            return [Opaque(match.group())]
        return [Text(self.run(c))]

    def escaped(self) -> str:
        """The character behind a backslash, which both are passed over."""
        found = self.peek(2)[1:]
        if found in self.holes:
            raise self.error("a backslash in front of what is not known")
        self.at += 2
        return found

    def run(self, c: str) -> str:
        """The literal characters from `c` on, as many as mean nothing to anybody, at least itself."""
        match = _PLAIN.match(self.text, self.at)
        return self.eat(c if match is None else match.group())

    def double(self) -> list[Piece]:
        """The pieces in double quotes."""
        line = self.line
        self.at += 1
        found = self.quoted_until('"')
        if not self.eat('"'):
            raise self.error("a double quote that does not end", line)
        return found or [Text("", True)]

    def quoted_until(self, end: str = "", escaped: str = '"\\`$') -> list[Piece]:
        """Pieces as in double quotes, up to the character `end` or the end of the text. A backslash quotes the characters
        `escaped`."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            c, following = self.peek(), self.peek(2)[1:]
            if c == end:
                break
            if self.eat("\\\n"):
                continue
            if c == "\\" and following and (following in escaped or following in self.holes):
                pieces.append(Text(self.escaped(), True))
            elif c in "$`":
                pieces += self.dollar(quoted=True)
            elif c in self.holes:
                pieces.append(self.hole(quoted=True))
            else:
                pieces.append(Text(self.run(c), True))
        return pieces

    # -- expansions ------------------------------------------------------------------------------------------------
    def dollar(self, *, quoted: bool) -> list[Piece]:
        """What begins with $ or a backquote."""
        start, line, following = self.at, self.line, self.peek(2)[1:]
        if self.peek() == "`":
            return [self.backquoted(quoted=quoted)]
        if following == "'" and not quoted:
            return [Text(self.ansi(), True)]
        self.at += 1
        if following == "{":
            return [self.braced(start, quoted=quoted)]
        expression = self.enclosed() if following == "[" else self.double_brackets()
        if expression is not None:
            return [Arithmetic(self.expression(expression, line), self.source(start), quoted)]
        if following == "(":
            return [Substitution(self.inside(self.enclosed(), line), self.source(start), quoted)]
        if following == '"' and not quoted:
            return self.double()
        match = _PARAMETER.match(self.text, self.at)
        if match is None:
            return [Text("$", quoted)]
        self.at = match.end()
        return [Param(match.group(), self.source(start), quoted)]

    def double_brackets(self) -> str | None:
        """The text in `((...))` that begins here; None where the two brackets are those of a subshell in another one."""
        start, line = self.at, self.line
        if self.peek(2) != "((":
            return None
        self.at += 1
        found = self.enclosed()
        if self.eat(")"):
            return found
        self.at, self.line = start, line
        return None

    def expression(self, text: str, line: int) -> Word:
        """An expression: expansions as in double quotes; double quotes themselves drop out."""
        pieces = [
            Text(one.text.replace('"', ""), True) if isinstance(one, Text) else one
            for one in self.within(text, line).quoted_until()
        ]
        return Word(joined_pieces(pieces), line, text)

    def backquoted(self, *, quoted: bool) -> Substitution:
        """A substitution in backquotes."""
        start, line = self.at, self.line
        self.at += 1
        body: list[str] = []
        while not self.eat("`"):
            if self.at >= len(self.text):
                raise self.error("a backquote that does not end", line)
            if self.peek() == "\\" and self.peek(2)[1:] in ("`", "\\", "$", *(('"',) if quoted else ())):
                self.at += 1
            body.append(self.eat(self.peek()))
        return Substitution(self.inside("".join(body), line), self.source(start), quoted)

    def braced(self, start: int, *, quoted: bool) -> Param:
        """`${...}`, whose dollar stands at `start`."""
        unread = self.error(f"an expansion that is not read: {self.text[start : start + 40]}")
        opened = self.error("an expansion that does not end")
        self.at += 1
        prefix = ""
        if self.peek() in ("#", "!") and self.peek(2)[1:] not in ("}", ":", "-", "=", "?", "+", "%", "/", ""):
            prefix = {"#": "length", "!": "indirect"}[self.eat("#", "!")]
        match = _BRACED.match(self.text, self.at)
        if match is None:
            raise unread
        self.at = match.end()
        index = self.index()
        operator, words = prefix, tuple[Word, ...]()
        if prefix == "indirect" and index is not None and index.source in ("@", "*"):
            operator = "keys"
        if prefix == "indirect" and index is None and self.peek(2) in ("*}", "@}"):
            index, operator = Word((), self.line, self.eat("*", "@")), "names"
        elif self.peek() != "}":
            operator = "" if prefix == "length" else self.eat(*_OPERATORS)
            if not operator:
                raise unread
            words = self.operands(operator, opened, quoted=quoted)
        if not self.eat("}"):
            raise opened
        is_indirect = prefix == "indirect" and bool(words)
        return Param(match.group(), self.source(start), quoted, index, operator, words, is_indirect)

    def index(self) -> Word | None:
        """`[...]` behind a name."""
        line = self.line
        return self.parsed(self.enclosed(), line) if self.peek() == "[" else None

    def parsed(self, text: str, line: int) -> Word:
        """A text as an unquoted word, quotes and expansions read, blanks kept."""
        return self.within(text, line).word(frozenset()) or Word((), line, "")

    def operands(self, operator: str, opened: ConfigError, *, quoted: bool) -> tuple[Word, ...]:
        """The words behind an operator: one, or pattern and replacement, or offset and length."""
        separator = operator[0] if operator[0] == "/" or operator == ":" else ""
        found: list[Word] = []
        while True:
            start, line = self.at, self.line
            while self.at < len(self.text) and self.peek() not in ("}", "" if found else separator):
                if not self.bracketed():
                    self.pass_over()
            if self.at >= len(self.text):
                raise opened
            text = self.text[start : self.at]
            if quoted and operator in OF_EMPTINESS:
                found.append(Word(joined_pieces(self.within(text, line).unquotable()), line, text))
            else:
                found.append(self.parsed(text, line))
            if not separator or not self.eat(separator):
                return tuple(found)

    def unquotable(self) -> list[Piece]:
        """An operand inside double quotes: quoted throughout; further double quotes drop out, single ones are characters."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            pieces += self.quoted_until('"', escaped='"\\`$}')
            self.at += 1
        return pieces
