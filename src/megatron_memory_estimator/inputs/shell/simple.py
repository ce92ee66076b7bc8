"""Simple commands: assignments, words, redirections, here-documents.

Sources: POSIX.1-2017 XCU 2.7 and 2.9.1; the Bash Reference Manual 5.2, 3.2.2, 3.4 and 3.6.
"""

from __future__ import annotations

import re

from ...errors import ConfigError
from .expansions import Words
from .grammar import Assignment, Redirect, Simple, Text, Word, joined_pieces
from .scanner import META

DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_REDIRECT = re.compile(r"([0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")


class SimpleCommands(Words):
    """Reads simple commands; each method begins at its construct's first character."""

    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        super().__init__(text, line, depth)
        self.document_at: int | None = None  # where the line ends behind which here-documents stand
        self.document_end = 0
        self.document_lines = 0

    def lines(self) -> None:
        """Passes over line ends, with the here-documents that stand behind them."""
        self.blanks()
        while self.peek() == "\n":
            if self.document_at is not None:
                if self.at != self.document_at:
                    raise self.error("a here-document on a line that goes on")
                self.at, self.document_at = self.document_end, None
                self.line += self.document_lines
            else:
                self.at += 1
                self.line += 1
            self.blanks()

    def keyword(self) -> str:
        """The plain word that comes next, which may be a reserved one."""
        match = re.compile(r"[^\s;&|<>()'\"$`\\]+").match(self.text, self.at)
        if match is None:
            return ""
        following = self.text[match.end() : match.end() + 1]
        return match.group() if not following or following in META else ""

    def document(self, mark: str, *, quoted: bool, tabs: bool) -> Word:
        """The text of the here-document that begins behind this line, or behind the one before it; a double quote is a
        character there."""
        if self.document_at is None:
            end = self.text.find("\n", self.at)
            self.document_at = len(self.text) if end < 0 else end
            self.document_end, self.document_lines = self.document_at + 1, 1
            if self.text[self.document_at - 1] == "\\":
                raise self.error("a here-document on a line that goes on")
        begin, lines = self.line + self.document_lines, list[str]()
        while True:
            if self.document_end >= len(self.text):
                raise self.error(f"a here-document that {mark} does not end")
            end = self.text.find("\n", self.document_end)
            end = len(self.text) if end < 0 else end
            line = self.text[self.document_end : end]
            self.document_end = min(end + 1, len(self.text))
            self.document_lines += 1
            line = line.lstrip("\t") if tabs else line
            if line == mark:
                break
            lines.append(line + "\n")
        text = "".join(lines)
        if quoted:
            return Word((Text(text, True),), begin, text)
        inner = self.__class__(text, begin, self.deeper())
        return Word(joined_pieces(inner.quoted_until("", escaped="\\`$")), begin, text)

    def simple(self) -> Simple:
        """Assignments, words and redirections."""
        start, line = self.at, self.line
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        declares = False
        while True:
            self.blanks()
            if self.redirect(redirects):
                continue
            if not words or declares:
                assignment = self.assignment()
                if assignment is not None:
                    if words:
                        words.append(assignment)
                    else:
                        assignments.append(assignment)
                    continue
            word = self.word()
            if word is None:
                break
            if not words:
                declares = word.literal() in DECLARING
            words.append(word)
        if self.peek() == "(":
            raise self.error(f"( without quotes behind {self.text[start : self.at].strip()[-40:]}")
        if not (assignments or words or redirects):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        return Simple(line, self.text[start : self.at].strip(), tuple(redirects), tuple(assignments), tuple(words))

    def assignment(self) -> Assignment | None:
        """The assignment that begins here, or None."""
        match = _ASSIGNED.match(self.text, self.at)
        if match is None:
            return None
        start, line, name = self.at, self.line, match.group(1)
        index = None
        if match.group(2) == "[":
            self.at = match.start(2)
            index = self.index()
            sign = "+=" if self.peek(2) == "+=" else "=" if self.peek() == "=" else ""
            if not sign:
                self.at, self.line = start, line
                return None
            self.at += len(sign)
        else:
            sign = match.group(2)
            self.at = match.end()
        if self.peek() == "(" and index is None:
            return Assignment(name, sign == "+=", line, elements=self.elements(name))
        value = self.word() or Word((), line, "")
        return Assignment(name, sign == "+=", line, value=value, index=index)

    def elements(self, name: str) -> tuple[Word | Assignment, ...]:
        """The words of an array."""
        begun = self.error(f"an array {name} that does not end")
        self.at += 1
        found: list[Word | Assignment] = []
        while True:
            self.lines()
            if self.at >= len(self.text):
                raise begun
            if self.peek() == ")":
                self.at += 1
                return tuple(found)
            if self.peek() in "(;&|<>" and self.peek(2) not in ("<(", ">(") and not self.stands_for():
                raise self.error(f"{self.peek()} without quotes in the array {name}")
            keyed = self.keyed(name)
            found.append(keyed if keyed is not None else self.word() or Word(()))

    def keyed(self, name: str) -> Assignment | None:
        """`[key]=value` in an array."""
        if self.peek() != "[":
            return None
        start, line = self.at, self.line
        try:
            index = self.index()
        except ConfigError:  # no bracket ends it: a word
            index = None
        sign = "+=" if self.peek(2) == "+=" else "=" if self.peek() == "=" else ""
        if index is None or not sign:
            self.at, self.line = start, line
            return None
        appends = sign == "+="
        self.at += len(sign)
        return Assignment(name, appends, line, value=self.word() or Word((), line, ""), index=index)

    def redirects(self) -> list[Redirect]:
        """Redirections behind a compound command."""
        found: list[Redirect] = []
        while self.redirect(found):
            self.blanks()
        return found

    def redirect(self, found: list[Redirect]) -> bool:
        """Reads a redirection if one begins here."""
        match = _REDIRECT.match(self.text, self.at)
        if match is None or self.peek(2) in ("<(", ">(") or (self.peek() == "<" and self.stands_for()):
            return False
        descriptor, operator = match.group(1) or "", match.group(2)
        self.at = match.end()
        self.blanks()
        line = self.line
        target = self.word()
        if target is None:
            raise self.error(f"{operator} without a word behind it")
        if operator in ("<<", "<<-"):
            quoted = any(mark in target.source for mark in "'\"\\")
            mark = "".join(piece.text for piece in target.pieces if isinstance(piece, Text))
            if line != self.line:
                raise self.error("a here-document whose end is not one word")
            document = self.document(mark, quoted=quoted, tabs=operator == "<<-")
            found.append(Redirect("<<", document, quoted, descriptor))
        else:
            found.append(Redirect(operator, target, descriptor=descriptor))
        return True
