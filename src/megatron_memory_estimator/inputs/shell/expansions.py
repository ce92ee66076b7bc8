"""Words of a shell script: quotes, `$name`, `${...}`, `$(...)`, `$((...))`.

Sources: POSIX.1-2017 XCU 2.2 (Quoting), 2.6 (Word Expansions); the Bash Reference Manual 5.2, 3.1.2 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...errors import ConfigError
from .grammar import Arithmetic, List, Opaque, Param, Piece, Substitution, Text, Word, joined_pieces
from .scanner import META, NAME, Scanner

_PLAIN = re.compile(r"[A-Za-z0-9_./,:=+%@-]+")
_SPECIAL = frozenset("@*#?$!-0123456789")
_OPERATORS = (
    ":-", ":=", ":?", ":+", "-", "=", "?", "+", "##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ",", ":", "@",
)  # fmt: skip


class Words(Scanner):
    """Reads words; commands inside `$(...)` are read by `inside`, which the parser has."""

    inside: Callable[[str, int], List]

    def word(self, stops: frozenset[str] = META) -> Word | None:
        """The word that begins here, or None if none does; it ends before an unquoted character of `stops`."""
        start, line = self.at, self.line
        pieces: list[Piece] = []
        while self.at < len(self.text):
            if self.text[self.at] in stops:
                place = self.placeholder(start) if stops is META else None
                if place is None:
                    break
                pieces.append(place)
                continue
            pieces += self.piece(stops, is_start=self.at == start)
        if self.at == start:
            if self.peek(2) in ("<(", ">(") and stops is META:
                pieces = [self.process()]
            else:
                return None
        return Word(joined_pieces(pieces), line, self.source(start))

    def piece(self, stops: frozenset[str], *, is_start: bool = False) -> list[Piece]:
        """The next piece of an unquoted word."""
        c = self.text[self.at]
        if c == "'":
            return [Text(self.single(), True)]
        if c == '"':
            return self.double()
        if c == "\\":
            if self.peek(2) == "\\\n":
                self.at += 2
                self.line += 1
                return []
            found = self.text[self.at + 1 : self.at + 2]
            if found in self.holes:
                raise self.error("a backslash in front of what is not known")
            self.at += 2
            return [Text(found or "\\", True)]
        if c in "$`":
            return self.dollar(quoted=False)
        if c in self.holes:
            return [self.hole(quoted=False)]
        if c == "~" and is_start:
            match = re.compile(r"~[A-Za-z0-9_+-]*(?=$|[/\s;&|<>():])").match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                return [Opaque(match.group())]
        return [Text(self.run(c))]

    def run(self, c: str) -> str:
        """The literal characters from `c` on, as many as mean nothing to anybody, at least itself."""
        match = _PLAIN.match(self.text, self.at)
        found = c if match is None else match.group()
        self.line += found == "\n"
        self.at += len(found)
        return found

    def double(self) -> list[Piece]:
        """The pieces in double quotes."""
        opened = self.error("a double quote that does not end")
        self.at += 1
        found = self.quoted_until('"', opened)
        self.at += 1
        return found or [Text("", True)]

    def quoted_until(self, end: str, opened: ConfigError | None = None, escaped: str = '"\\`$') -> list[Piece]:
        """Pieces as in double quotes, up to the character `end`, or without `opened` up to the end of the text. A backslash
        quotes the characters `escaped`."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == end:
                return pieces
            following = self.text[self.at + 1 : self.at + 2]
            if c == "\\" and following == "\n":
                self.at += 2
                self.line += 1
            elif c == "\\" and following in self.holes:
                raise self.error("a backslash in front of what is not known")
            elif c == "\\" and following and following in escaped:
                pieces.append(Text(following, True))
                self.at += 2
            elif c in "$`":
                pieces += self.dollar(quoted=True)
            elif c in self.holes:
                pieces.append(self.hole(quoted=True))
            else:
                pieces.append(Text(self.run(c), True))
        if opened is not None:
            raise opened
        return pieces

    def dollar(self, *, quoted: bool) -> list[Piece]:
        """What begins with $ or a backquote."""
        start, line = self.at, self.line
        if self.peek() == "`":
            return [self.backquoted(quoted=quoted)]
        if self.peek(3) == "$((":
            found = self.arithmetic(quoted=quoted)
            if found is not None:
                return [found]
            self.at, self.line = start, line
        if self.peek(2) == "$(":
            self.at += 1
            body = self.enclosed("(", ")")
            return [Substitution(self.inside(body, line), self.source(start), quoted)]
        if self.peek(2) == "$[":
            self.at += 1
            body = self.enclosed("[", "]")
            return [Arithmetic(self.nested(body, line), self.source(start), quoted)]
        if self.peek(2) == "${":
            return [self.braced(quoted=quoted)]
        if not quoted and self.peek(2) == "$'":
            return [Text(self.ansi(), True)]
        if not quoted and self.peek(2) == '$"':
            self.at += 1
            return self.double()
        self.at += 1
        match = NAME.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return [Param(match.group(), self.source(start), quoted)]
        if self.peek() in _SPECIAL and self.peek():
            self.at += 1
            return [Param(self.text[self.at - 1], self.source(start), quoted)]
        return [Text("$", quoted)]

    def nested(self, text: str, line: int) -> Word:
        """An expression: expansions as in double quotes; double quotes themselves drop out."""
        inner = self.within(text, line)
        pieces = [
            Text(one.text.replace('"', ""), True) if isinstance(one, Text) else one for one in inner.quoted_until("")
        ]
        return Word(joined_pieces(pieces), line, text)

    def arithmetic(self, *, quoted: bool) -> Arithmetic | None:
        """`$((...))`, or None where the two brackets are those of a subshell in a substitution."""
        start, line = self.at, self.line
        self.at += 2
        body = self.enclosed("(", ")")
        if self.peek() != ")":
            return None
        self.at += 1
        return Arithmetic(self.nested(body, line), self.source(start), quoted)

    def backquoted(self, *, quoted: bool) -> Substitution:
        """A substitution in backquotes."""
        start, line, opened = self.at, self.line, self.error("a backquote that does not end")
        self.at += 1
        body = ""
        while self.peek() != "`":
            if self.at >= len(self.text):
                raise opened
            if self.peek() == "\\" and self.peek(2)[1:] in ("`", "\\", "$") + (('"',) if quoted else ()):
                self.at += 1
            self.line += self.peek() == "\n"
            body += self.peek()
            self.at += 1
        self.at += 1
        return Substitution(self.inside(body, line), self.source(start), quoted)

    def process(self) -> Opaque:
        """`<(...)`."""
        start = self.at
        self.at += 1
        self.enclosed("(", ")")
        return Opaque(self.source(start))

    def braced(self, *, quoted: bool) -> Param:
        """`${...}`."""
        start, opened = self.at, self.error("an expansion that does not end")
        self.at += 2
        prefix = ""
        if self.peek() in ("#", "!") and self.peek(2)[1:] not in ("}", ":", "-", "=", "?", "+", "%", "/", ""):
            prefix = {"#": "length", "!": "indirect"}[self.peek()]
            self.at += 1
        match = NAME.match(self.text, self.at) or re.compile(r"[0-9]+|[@*#?$!-]").match(self.text, self.at)
        if match is None:
            raise self.error(f"an expansion that is not read: {self.text[start : start + 40]}")
        name = match.group()
        self.at = match.end()
        index = self.index()
        operator, words = prefix, tuple[Word, ...]()
        if prefix == "indirect" and index is not None and index.source in ("@", "*"):
            operator = "keys"
        if prefix == "indirect" and index is None and self.peek(2) in ("*}", "@}"):
            index, operator = Word((), self.line, self.peek()), "names"
            self.at += 1
        elif self.peek() != "}":
            if prefix == "length":
                raise self.error(f"an expansion that is not read: {self.text[start : start + 40]}")
            operator = next((one for one in _OPERATORS if self.text.startswith(one, self.at)), "")
            if not operator:
                raise self.error(f"an expansion that is not read: {self.text[start : start + 40]}")
            self.at += len(operator)
            words = self.operands(operator, quoted=quoted, opened=opened)
        if self.peek() != "}":
            raise opened
        self.at += 1
        is_indirect = prefix == "indirect" and bool(words)
        return Param(name, self.source(start), quoted, index, operator, words, is_indirect)

    def index(self) -> Word | None:
        """`[...]` behind a name."""
        if self.peek() != "[":
            return None
        line = self.line
        body = self.enclosed("[", "]")
        return self.parsed(body, line)

    def parsed(self, text: str, line: int) -> Word:
        """A text as an unquoted word, quotes and expansions read, blanks kept."""
        inner = self.within(text, line)
        return inner.word(frozenset()) or Word((), line, "")

    def operands(self, operator: str, *, quoted: bool, opened: ConfigError) -> tuple[Word, ...]:
        """The words behind an operator: one, or pattern and replacement, or offset and length."""
        separator = "/" if operator[0] == "/" else ":" if operator == ":" else ""
        found: list[Word] = []
        while True:
            start, line = self.at, self.line
            stops = "}" + (separator if not found else "")
            self.operand(stops, opened=opened)
            text = self.text[start : self.at]
            is_text = quoted and operator in (":-", ":=", ":?", ":+", "-", "=", "?", "+")
            inner = self.within(text, line)
            if is_text:
                found.append(Word(joined_pieces(inner.unquotable()), line, text))
            else:
                found.append(inner.word(frozenset()) or Word((), line, ""))
            if not separator or self.peek() != separator:
                return tuple(found)
            self.at += 1

    def unquotable(self) -> list[Piece]:
        """An operand inside double quotes: quoted throughout; further double quotes drop out, single ones are characters."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            pieces += self.quoted_until('"', escaped='"\\`$}')
            self.at += 1
        return pieces

    def operand(self, stops: str, *, opened: ConfigError) -> None:
        """Passes over an operand, up to an unquoted character of `stops`."""
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in stops:
                return
            if c == "\\":
                self.at += 2
            elif c == "'":
                self.single()
            elif c in '"`':
                self._skip_quoted(c)
            elif self.peek(2) in ("$(", "${"):
                self.at += 1
                self.enclosed(self.peek(), ")" if self.peek() == "(" else "}")
            else:
                self.line += c == "\n"
                self.at += 1
        raise opened
