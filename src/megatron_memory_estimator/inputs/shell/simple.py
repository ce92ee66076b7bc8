"""Simple commands (assignments, words, redirections, here-documents) and the conditions of `[[ ]]`, from their text.

Sources: POSIX.1-2017 XCU 2.7 and 2.9.1; the Bash Reference Manual 5.2, 3.2.2, 3.2.5.2, 3.4, 3.6 and 6.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import ConfigError
from .grammar import Assignment, Condition, Redirect, Simple, Text, Word, joined_pieces
from .values import Unknown
from .words import META, NAME, Words

DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
COMPARISONS = frozenset({"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
"""Operators of `[ ]` and `[[ ]]` with a word on either side."""
UNARY = frozenset(f"-{c}" for c in "abcdefghknoprstuvwxzGLNORS")
"""Operators of `[ ]` and `[[ ]]` in front of one word."""
_REDIRECT = re.compile(r"([0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")
_PLAIN_WORD = re.compile(r"[^\s;&|<>()'\"$`\\]+")


class SimpleCommands(Words):
    """Reads simple commands; each method begins at its construct's first character."""

    def __init__(self, text: str, line: int = 1, depth: int = 0, holes: Mapping[str, Unknown] | None = None) -> None:
        super().__init__(text, line, depth, holes)
        self.document_at: int | None = None  # where the line ends behind which here-documents stand
        self.document_end = 0
        self.document_lines = 0

    def lines(self) -> None:
        """Passes over line ends, with the here-documents that stand behind them."""
        self.blanks()
        while self.peek() == "\n":
            if self.document_at is None:
                self.eat("\n")
            elif self.at != self.document_at:
                raise self.error("a here-document on a line that goes on")
            else:
                self.at, self.document_at = self.document_end, None
                self.line += self.document_lines
            self.blanks()

    def keyword(self) -> str:
        """The plain word that comes next, which may be a reserved one."""
        match = _PLAIN_WORD.match(self.text, self.at)
        return match.group() if match is not None and self.text[match.end() : match.end() + 1] in ("", *META) else ""

    def eat_word(self, *words: str) -> str:
        """Passes over the plain word that comes next, if it is one of `words`, and returns it."""
        return self.eat(self.keyword()) if self.keyword() in words else ""

    def document(self, mark: str, *, quoted: bool, tabs: bool) -> Word:
        """The text of the here-document that begins behind this line, or behind the one before it; a double quote is a
        character there."""
        if self.document_at is None:
            self.document_at = self.line_end(self.at)
            self.document_end, self.document_lines = self.document_at + 1, 1
            if self.text[self.document_at - 1] == "\\":
                raise self.error("a here-document on a line that goes on")
        begin, lines = self.line + self.document_lines, list[str]()
        while True:
            if self.document_end >= len(self.text):
                raise self.error(f"a here-document that {mark} does not end")
            end = self.line_end(self.document_end)
            line, self.document_end = self.text[self.document_end : end], min(end + 1, len(self.text))
            self.document_lines += 1
            line = line.lstrip("\t") if tabs else line
            if line == mark:
                break
            lines.append(line + "\n")
        text = "".join(lines)
        if quoted:
            return Word((Text(text, True),), begin, text)
        return Word(joined_pieces(self.within(text, begin).quoted_until(escaped="\\`$")), begin, text)

    def simple(self) -> Simple:
        """Assignments, words and redirections."""
        start, line = self.at, self.line
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        declares = False
        while True:
            self.blanks()
            if (redirect := self.redirect()) is not None:
                redirects.append(redirect)
            elif (not words or declares) and (assignment := self.assignment()) is not None:
                (words if words else assignments).append(assignment)
            elif (word := self.word()) is not None:
                declares = declares or (not words and word.literal() in DECLARING)
                words.append(word)
            else:
                break
        if self.peek() == "(":
            raise self.error(f"( without quotes behind {self.text[start : self.at].strip()[-40:]}")
        if not (assignments or words or redirects):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        return Simple(line, self.source(start).strip(), tuple(redirects), tuple(assignments), tuple(words))

    def assignment(self) -> Assignment | None:
        """The assignment that begins here, or None."""
        match = NAME.match(self.text, self.at)
        start, line = self.at, self.line
        if match is None or self.text[match.end() : match.end() + 1] not in ("=", "+", "["):
            return None
        self.at = match.end()
        return self.assigned(match.group(), self.index(), start, line)

    def assigned(self, name: str, index: Word | None, start: int, line: int) -> Assignment | None:
        """The sign and the value behind a name or an index; None, and back to `start`, where there is no sign."""
        sign = self.eat("+=", "=")
        if not sign:
            self.at, self.line = start, line
            return None
        if self.peek() == "(" and index is None:
            return Assignment(name, sign == "+=", line, elements=self.elements(name))
        return Assignment(name, sign == "+=", line, value=self.word() or Word((), line, ""), index=index)

    def elements(self, name: str) -> tuple[Word | Assignment, ...]:
        """The words of an array."""
        begun = self.error(f"an array {name} that does not end")
        self.at += 1
        found: list[Word | Assignment] = []
        while True:
            self.lines()
            if self.at >= len(self.text):
                raise begun
            if self.eat(")"):
                return tuple(found)
            if self.peek() in "(;&|<>" and self.peek(2) not in ("<(", ">(") and not self.placeholder(self.at):
                raise self.error(f"{self.peek()} without quotes in the array {name}")
            found.append(self.keyed(name) or self.word() or Word(()))

    def keyed(self, name: str) -> Assignment | None:
        """`[key]=value` in an array."""
        start, line = self.at, self.line
        try:
            index = self.index()
        except ConfigError:  # no bracket ends it: a word
            self.at, self.line = start, line
            return None
        return None if index is None else self.assigned(name, index, start, line)

    def redirects(self) -> tuple[Redirect, ...]:
        """Redirections behind a compound command."""
        found: list[Redirect] = []
        self.blanks()
        while (redirect := self.redirect()) is not None:
            found.append(redirect)
            self.blanks()
        return tuple(found)

    def redirect(self) -> Redirect | None:
        """The redirection that begins here, or None."""
        match = _REDIRECT.match(self.text, self.at)
        if match is None or self.peek(2) in ("<(", ">(") or self.placeholder(self.at):
            return None
        descriptor, operator = match.group(1) or "", match.group(2)
        self.at = match.end()
        self.blanks()
        line = self.line
        target = self.word()
        if target is None:
            raise self.error(f"{operator} without a word behind it")
        if operator not in ("<<", "<<-"):
            return Redirect(operator, target, descriptor)
        quoted = any(mark in target.source for mark in "'\"\\")
        mark = "".join(piece.text for piece in target.pieces if isinstance(piece, Text))
        if line != self.line:
            raise self.error("a here-document whose end is not one word")
        return Redirect("<<", self.document(mark, quoted=quoted, tabs=operator == "<<-"), descriptor)

    # -- [[ ]] -----------------------------------------------------------------------------------------------------
    def conditions(self, begun: ConfigError, joint: str = "||") -> Condition:
        """Conditions joined by ||, or more closely by &&."""
        found = self.conditions(begun, "&&") if joint == "||" else self.condition(begun)
        self.lines()
        while self.eat(joint):
            found = Condition(joint, (found, self.conditions(begun, "&&") if joint == "||" else self.condition(begun)))
            self.lines()
        return found

    def condition(self, begun: ConfigError) -> Condition:
        """One condition."""
        self.lines()
        if self.eat_word("!"):
            with self.deeper():
                return Condition("!", (self.condition(begun),))
        if self.eat("("):
            with self.deeper():
                found = self.conditions(begun)
            self.lines()
            if not self.eat(")"):
                raise begun
            return found
        left = self.operand(begun)
        self.blanks()
        ends = self.keyword() == "]]" or self.peek(2) in ("&&", "||") or self.peek() == ")"
        if left.source in UNARY and not ends:
            return Condition(left.source, (self.operand(begun),))
        operator = self.eat("<", ">") or self.eat_word("=~", *COMPARISONS)
        if not operator:
            return Condition("", (left,))
        self.blanks()
        return Condition(operator, (left, self.regex(begun) if operator == "=~" else self.operand(begun)))

    def operand(self, begun: ConfigError) -> Word:
        """A word in [[ ]]."""
        self.blanks()
        word = self.word() if self.keyword() != "]]" else None
        if word is None:
            raise self.unread_condition(begun)
        return word

    def unread_condition(self, begun: ConfigError) -> ConfigError:
        """The error of what cannot stand in [[ ]], or of [[ ]] that does not end."""
        if self.at >= len(self.text) or self.keyword() == "]]":
            return begun
        return self.error(f"{self.peek(20)!r} in [[ ]], which is not read")

    def regex(self, begun: ConfigError) -> Word:
        """The regular expression behind =~, in which brackets and bars are characters."""
        start, line, level = self.at, self.line, 0
        while self.at < len(self.text):
            c = self.peek()
            if c in " \t\n" and not level:
                return Word((), line, self.source(start))
            level += (c == "(") - (c == ")")
            self.piece()
        raise begun
