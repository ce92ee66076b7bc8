"""The conditions of `[[ ]]`. Source: the Bash Reference Manual 5.2, 3.2.5.2 and 6.4."""

from __future__ import annotations

import re

from ...errors import ConfigError
from .grammar import Command, Condition, Test, Word
from .simple import SimpleCommands

_UNARY = re.compile(r"-[abcdefghknoprstuvwxzGLNORS]")
_BINARY = frozenset({"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
_REGEX_STOPS = frozenset(" \t\n")


class Conditions(SimpleCommands):
    """Reads conditions, and what simple commands are made of."""

    def test(self, start: int, line: int, begun: ConfigError) -> Command:
        """`[[ ... ]]`."""
        condition = self.any_of(begun)
        self.lines()
        if self.keyword() != "]]":
            raise begun if self.at >= len(self.text) else self.error(f"{self.peek(20)!r} in [[ ]], which is not read")
        self.at += 2
        return Test(line, self.text[start : self.at], (), condition)

    def any_of(self, begun: ConfigError) -> Condition:
        """Conditions joined by ||."""
        found = self.all_of(begun)
        self.lines()
        while self.peek(2) == "||":
            self.at += 2
            found = Condition("||", (found, self.all_of(begun)))
            self.lines()
        return found

    def all_of(self, begun: ConfigError) -> Condition:
        """Conditions joined by &&."""
        found = self.one(begun)
        self.lines()
        while self.peek(2) == "&&":
            self.at += 2
            found = Condition("&&", (found, self.one(begun)))
            self.lines()
        return found

    def one(self, begun: ConfigError) -> Condition:
        """One condition."""
        self.lines()
        if self.keyword() == "!":
            self.at += 1
            self.depth = self.deeper()
            found = Condition("!", (self.one(begun),))
            self.depth -= 1
            return found
        if self.peek() == "(":
            self.at += 1
            self.depth = self.deeper()
            found = self.any_of(begun)
            self.depth -= 1
            self.lines()
            if self.peek() != ")":
                raise begun
            self.at += 1
            return found
        left = self.operand_word(begun)
        if _UNARY.fullmatch(left.source):
            self.blanks()
            if self.keyword() != "]]" and self.peek(2) not in ("&&", "||") and self.peek() != ")":
                return Condition(left.source, (self.operand_word(begun),))
        self.blanks()
        operator = self.peek() if self.peek() in ("<", ">") else self.keyword()
        if operator not in _BINARY:
            return Condition("", (left,))
        self.at += len(operator)
        self.blanks()
        if operator == "=~":
            return Condition(operator, (left, self.regex(begun)))
        return Condition(operator, (left, self.operand_word(begun)))

    def operand_word(self, begun: ConfigError) -> Word:
        """A word in [[ ]]."""
        self.blanks()
        if self.keyword() == "]]":
            raise begun
        word = self.word()
        if word is None:
            raise begun if self.at >= len(self.text) else self.error(f"{self.peek(20)!r} in [[ ]], which is not read")
        return word

    def regex(self, begun: ConfigError) -> Word:
        """The regular expression behind =~, in which brackets and bars are characters."""
        start, line, level = self.at, self.line, 0
        while self.at < len(self.text):
            c = self.peek()
            if c in " \t\n" and not level:
                return Word((), line, self.text[start : self.at])
            level += (c == "(") - (c == ")")
            self.piece(_REGEX_STOPS)
        raise begun
