"""Simple commands (assignments, words, redirections, here-documents) and the conditions of `[[ ]]`, from their text.

Sources: POSIX.1-2017 XCU 2.7 and 2.9.1; the Bash Reference Manual 5.2, 3.2.2, 3.2.5.2, 3.4, 3.6 and 6.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import ConfigError
from .expansions import Words
from .grammar import Assignment, Command, Condition, Redirect, Simple, Test, Text, Word, joined_pieces
from .scanner import META
from .values import Unknown

DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_REDIRECT = re.compile(r"([0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")


_UNARY = re.compile(r"-[abcdefghknoprstuvwxzGLNORS]")
_BINARY = frozenset({"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
_REGEX_STOPS = frozenset(" \t\n")


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
        inner = self.within(text, begin)
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
        return Simple(line, self.source(start).strip(), tuple(redirects), tuple(assignments), tuple(words))

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


class Conditions(SimpleCommands):
    """Reads the conditions of `[[ ]]`, and what simple commands are made of."""

    def test(self, start: int, line: int, begun: ConfigError) -> Command:
        """`[[ ... ]]`."""
        condition = self.any_of(begun)
        self.lines()
        if self.keyword() != "]]":
            raise begun if self.at >= len(self.text) else self.error(f"{self.peek(20)!r} in [[ ]], which is not read")
        self.at += 2
        return Test(line, self.source(start), (), condition)

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
                return Word((), line, self.source(start))
            level += (c == "(") - (c == ")")
            self.piece(_REGEX_STOPS)
        raise begun
