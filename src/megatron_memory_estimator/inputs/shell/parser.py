"""Commands of a shell script, from its text. What is not read is refused by name.

Sources: POSIX.1-2017 XCU 2.7, 2.9 and 2.10 (Redirection, Shell Commands, Shell Grammar); the Bash Reference Manual 5.2, 3.2, 3.4, 3.6
and 6.4.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ...errors import ConfigError
from .grammar import (
    COMPARISONS,
    DECLARING,
    UNARY,
    AndOr,
    ArithmeticCommand,
    ArithmeticFor,
    Assignment,
    Case,
    Clause,
    Command,
    Condition,
    For,
    Function,
    Group,
    If,
    List,
    Pipeline,
    Redirect,
    Simple,
    Test,
    Text,
    While,
    Word,
    joined_pieces,
)
from .values import Unknown, Value, bare, pieces
from .words import META, NAME, Words

Part = TypeVar("Part")

LARGEST_SCRIPT = 2**20
RESERVED = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
UNREAD = frozenset({"select", "coproc"})
_REDIRECT = re.compile(r"([0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")
_PLAIN_WORD = re.compile(r"[^\s;&|<>()'\"$`\\]+")
_NO_WORDS = re.compile(r"[ \t]*\([ \t]*\)")
_DEFINITION = re.compile(rf"([^\s;&|<>()'\"$`\\=]+){_NO_WORDS.pattern}")

HOLES = 0xF0000
"""The first of the characters that stand for what is not known, in a text that is read as commands; nobody writes in them."""
MOST_HOLES = 2000


def parsed(value: Value, line: int = 1) -> List:
    """The commands of a script, or of a value. Raises ConfigError with the line of what cannot be read."""
    holes: dict[str, Unknown] = {}
    parts: list[str] = []
    for piece in pieces(value):
        if isinstance(piece, str):
            parts.append(piece)
            continue
        hole = chr(HOLES + len(holes))
        holes[hole] = dataclasses.replace(piece, apart=False)
        parts.append(f" {hole}" if piece.apart else hole)
    if len(holes) > MOST_HOLES or (holes and any(c >= chr(HOLES) for c in bare(value))):
        raise ConfigError(
            f"line {line} of the script: a text that is read as commands holds too much that is not known"
        )
    text = "".join(parts)
    if len(text) > LARGEST_SCRIPT:
        raise ConfigError(f"the script is longer than {LARGEST_SCRIPT} characters")
    return Parser(text.replace("\r\n", "\n"), line, 0, holes).whole()


class Parser(Words):
    """A recursive-descent parser; each method begins at its construct's first character."""

    def __init__(self, text: str, line: int = 1, depth: int = 0, holes: Mapping[str, Unknown] | None = None) -> None:
        super().__init__(text, line, depth, holes)
        self.document_at: int | None = None  # where the line ends behind which here-documents stand
        self.document_end = 0
        self.document_lines = 0
        self.open: list[tuple[int, int, str]] = []  # compound commands that have begun: place, line, first word

    def inside(self, text: str, line: int) -> List:
        """The commands of a substitution."""
        return self.within(text, line).whole()

    def whole(self) -> List:
        """All commands up to the end of the text."""
        found = self.commands(())
        if self.at < len(self.text):
            raise self.unexpected()
        return found

    # -- errors ----------------------------------------------------------------------------------------------------
    def unexpected(self, where: str = "begin") -> ConfigError:
        """The error of what comes next, where a command should begin or end."""
        return self.error(f"{self.peek(20)!r} where a command should {where}")

    @property
    def begun(self) -> ConfigError:
        """The error of the innermost compound command where it does not end."""
        _, line, word = self.open[-1]
        return self.error(f"a {word or '('} that does not end", line)

    def begun_at(self) -> tuple[int, str, tuple[Redirect, ...]]:
        """The line, the source and the redirections (none yet) of the innermost compound command, which ends here."""
        start, line, _ = self.open[-1]
        return line, self.source(start), ()

    # -- lists of commands -----------------------------------------------------------------------------------------
    def commands(self, ends: tuple[str, ...]) -> List:
        """Commands up to one of the words or operators `ends`, which stays."""
        start = self.at
        items: list[AndOr] = []
        while True:
            self.lines()
            if self.at >= len(self.text) or self.end_of(ends) or self.peek(2) in (";;", ";&"):
                break
            items.append(self.and_or())
            self.blanks()
            if self.peek(2) in (";;", ";&"):
                break
            ended = self.eat(";") or self.peek() in ("", "\n") or self.end_of(ends) or items[-1].background
            if not ended:
                raise self.unexpected("end")
        return List(tuple(items), self.source(start).strip().rstrip(";").rstrip())

    def end_of(self, ends: tuple[str, ...]) -> str:
        """The one of `ends` that comes next."""
        found = self.peek() if self.peek() == ")" else self.keyword()
        return found if found in ends else ""

    def and_or(self) -> AndOr:
        """Pipelines joined by && and ||."""
        line = self.line
        first, rest = self.pipeline(), list[tuple[str, Pipeline]]()
        while joint := self.eat_behind_blanks("&&", "||"):
            self.lines()
            rest.append((joint, self.pipeline()))
        background = self.peek() == "&" and self.peek(2) != "&>"
        self.at += background
        return AndOr(first, tuple(rest), background, line)

    def eat_behind_blanks(self, *texts: str) -> str:
        """Passes over blanks and the first of `texts` that comes behind them, which it returns."""
        self.blanks()
        return self.eat(*texts)

    def pipeline(self) -> Pipeline:
        """Commands joined by |."""
        negated = False
        self.blanks()
        while word := self.eat_word("!", "time"):
            negated = negated != (word == "!")
            self.blanks()
            if word == "time" and self.eat_word("-p"):
                self.blanks()
        commands = [self.command()]
        while True:
            self.blanks()
            if self.peek(2) == "||" or not self.eat("|&", "|"):
                return Pipeline(tuple(commands), negated)
            self.lines()
            commands.append(self.command())

    def until(self, *ends: str) -> List:
        """Commands, at least one, up to one of `ends`, which is passed over."""
        found = self.filled(*ends)
        if not self.eat(self.end_of(ends)):
            if self.at >= len(self.text):
                raise self.begun
            raise self.error(f"{self.peek(2)} outside case") if self.peek(2) in (";;", ";&") else self.unexpected()
        return found

    def filled(self, *ends: str) -> List:
        """Commands up to one of `ends`. Raises ConfigError where there is none, which bash refuses."""
        found = self.commands(ends)
        if not found.items and (self.at >= len(self.text) or self.end_of(ends)):
            raise self.begun if self.at >= len(self.text) else self.error(f"no command in front of {self.end_of(ends)}")
        return found

    # -- one command -----------------------------------------------------------------------------------------------
    def command(self) -> Command:
        """One command of any kind, with its redirections."""
        start, line = self.at, self.line
        found = self.compound()
        if found is None:
            return self.simple()
        redirects = self.redirects()
        if not redirects:
            return found
        return Group(line, self.source(start), redirects, List((AndOr(Pipeline((found,)), (), False, line),)), False)

    def compound(self) -> Command | None:
        """A compound command or a definition, or None where a simple command stands."""
        word = self.keyword()
        if word in UNREAD:
            raise self.error(f"{word}, which is not read")
        if word in RESERVED:
            raise self.error(f"{word} where a command should begin")
        readers: dict[str, Callable[[], Command]] = {
            "{": self.group, "if": self.if_, "while": self.while_, "until": self.while_, "for": self.for_, "case": self.case,
            "function": self.function, "[[": self.test,
        }  # fmt: skip
        self.open.append((self.at, self.line, word))
        try:
            with self.deeper():
                if (expression := self.double_brackets()) is not None:
                    inner = self.expression(expression, self.open[-1][1])
                    return ArithmeticCommand(*self.begun_at(), inner)
                if self.eat("("):
                    body = self.until(")")
                    return Group(*self.begun_at(), body, True)
                if word in readers:
                    self.eat(word)
                    return readers[word]()
                match = _DEFINITION.match(self.text, self.at)
                if match is None:
                    return None
                self.at = match.end()
                return self.defined(match.group(1))
        finally:
            self.open.pop()

    def group(self) -> Command:
        """`{ ...; }`."""
        body = self.until("}")
        return Group(*self.begun_at(), body, False)

    def test(self) -> Command:
        """`[[ ... ]]`."""
        condition = self.conditions(self.begun)
        self.lines()
        if not self.eat_word("]]"):
            raise self.unread_condition(self.begun)
        return Test(*self.begun_at(), condition)

    def if_(self) -> Command:
        """`if ...; then ...; elif ...; else ...; fi`."""
        branches: list[tuple[List, List]] = []
        while True:
            condition = self.until("then")
            branches.append((condition, self.filled("elif", "else", "fi")))
            if not self.eat_word("elif"):
                break
        otherwise = self.filled("fi") if self.eat_word("else") else None
        if not self.eat(self.end_of(("fi",))):
            raise self.begun
        return If(*self.begun_at(), tuple(branches), otherwise)

    def while_(self) -> Command:
        """`while ...; do ...; done`, or `until`."""
        condition, body = self.until("do"), self.until("done")
        return While(*self.begun_at(), condition, body, self.open[-1][2] == "until")

    def for_(self) -> Command:
        """`for name in words; do ...; done`, or with three expressions."""
        self.blanks()
        line = self.line
        if self.peek(2) == "((":
            parts = (self.double_brackets() or "").split(";")
            if len(parts) != 3:
                raise self.error("a for whose (( )) does not hold three expressions")
            first, test, following = (self.expression(part, line) for part in parts)
            body = self.body()
            return ArithmeticFor(*self.begun_at(), first, test, following, body)
        match = NAME.match(self.text, self.at)
        if match is None:
            raise self.error("a for without the name of a variable")
        self.at = match.end()
        self.lines()
        words = self.listed() if self.eat_word("in") else None
        body = self.body()
        return For(*self.begun_at(), match.group(), words, body)

    def listed(self) -> tuple[Word, ...]:
        """The words up to the end of the command."""
        return self.several(self.word)

    def several(self, read: Callable[[], Part | None]) -> tuple[Part, ...]:
        """What is read here between blanks until nothing more is there."""
        found: list[Part] = []
        self.blanks()
        while (part := read()) is not None:
            found.append(part)
            self.blanks()
        return tuple(found)

    def body(self) -> List:
        """`; do ...; done`, or `{ ... }`."""
        self.eat_behind_blanks(";")
        self.lines()
        word = self.eat_word("do", "{")
        if not word:
            raise self.begun
        return self.until("done" if word == "do" else "}")

    def case(self) -> Command:
        """`case word in pattern) ...;; esac`."""
        self.blanks()
        subject = self.word()
        self.lines()
        if subject is None or not self.eat_word("in"):
            raise self.begun
        clauses: list[Clause] = []
        while True:
            self.lines()
            if self.eat_word("esac"):
                return Case(*self.begun_at(), subject, tuple(clauses))
            if self.at >= len(self.text):
                raise self.begun
            clauses.append(self.clause())

    def clause(self) -> Clause:
        """One clause of a `case`."""
        self.eat("(")
        patterns: list[Word] = []
        while not patterns or self.eat_behind_blanks("|"):
            self.blanks()
            pattern = self.word()
            if pattern is None:
                raise self.error("a pattern of case that is not read")
            patterns.append(pattern)
        if not self.eat(")"):
            raise self.error("a pattern of case that is not read")
        body = self.commands(("esac",))
        ending = self.eat(";;&", ";;", ";&")
        if not ending and self.keyword() != "esac":
            raise self.begun
        return Clause(tuple(patterns), body, ending or ";;")

    def function(self) -> Command:
        """`function name { ...; }`."""
        self.blanks()
        name = self.eat(self.keyword())
        if not name:
            raise self.error("a function without a name")
        match = _NO_WORDS.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.defined(name)

    def defined(self, name: str) -> Command:
        """A function of this name, whose body comes next."""
        self.lines()
        if self.peek() != "(" and self.keyword() not in ("{", "if", "for", "while", "until", "case", "[["):
            raise self.error(f"a function {name} without a body")
        body = self.command()
        return Function(*self.begun_at(), name, body)

    # -- simple commands -------------------------------------------------------------------------------------------
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
        return self.several(self.redirect)

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
    def conditions(self, begun: ConfigError, joint: str = "||") -> Condition | Word:
        """Conditions joined by ||, or more closely by &&."""
        found = self.conditions(begun, "&&") if joint == "||" else self.condition(begun)
        self.lines()
        while self.eat(joint):
            found = Condition(joint, (found, self.conditions(begun, "&&") if joint == "||" else self.condition(begun)))
            self.lines()
        return found

    def condition(self, begun: ConfigError) -> Condition | Word:
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
            return left
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
