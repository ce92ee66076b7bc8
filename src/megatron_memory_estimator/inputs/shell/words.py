"""Words of a shell script: quotes, `$name`, `${...}`, `$(...)`, `$((...))`.

Sources: POSIX.1-2017 XCU 2.2 (Quoting), 2.6 (Word Expansions); the Bash Reference Manual 5.2, 3.1.2 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...errors import ConfigError
from .grammar import Arithmetic, List, Opaque, Param, Piece, Substitution, Text, Word, joined_pieces
from .scanner import META, Scanner

_PLAIN = re.compile(r"[A-Za-z0-9_./,:=+%@-]+")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_HOME = re.compile(r"~[A-Za-z0-9_+-]*(?=$|[/\s;&|<>():])")
OF_EMPTINESS = (":-", ":=", ":?", ":+", "-", "=", "?", "+")
"""Operators that ask whether a parameter is set."""
_OPERATORS = (*OF_EMPTINESS, "##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ",", ":", "@")


class Words(Scanner):
    """Reads words; commands inside `$(...)` are read by `inside`, which the parser has."""

    inside: Callable[[str, int], List]

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
