"""Commands of a shell script, from its text. What is not read is refused by name.

Sources: POSIX.1-2017 XCU 2.9 and 2.10 (Shell Commands, Shell Grammar); the Bash Reference Manual 5.2, 3.2.
"""

from __future__ import annotations

import dataclasses
import re

from ...errors import ConfigError
from .grammar import (
    AndOr,
    ArithmeticCommand,
    ArithmeticFor,
    Case,
    Clause,
    Command,
    For,
    Function,
    Group,
    If,
    List,
    Pipeline,
    While,
    Word,
)
from .scanner import META, NAME
from .simple import Conditions
from .values import Unknown, Value, bare

LARGEST_SCRIPT = 2**20
RESERVED = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "in", "}"})
UNREAD = frozenset({"select", "coproc"})


HOLES = 0xF0000
"""The first of the characters that stand for what is not known, in a text that is read as commands; nobody writes in them."""
MOST_HOLES = 2000


def parsed(value: Value, line: int = 1) -> List:
    """The commands of a script, or of a value. Raises ConfigError with the line of what cannot be read."""
    holes: dict[str, Unknown] = {}
    parts: list[str] = []
    for piece in (value,) if isinstance(value, str) else value:
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


class Parser(Conditions):
    """A recursive-descent parser; each method begins at its construct's first character."""

    def inside(self, text: str, line: int) -> List:
        """The commands of a substitution."""
        return self.within(text, line).whole()

    def whole(self) -> List:
        """All commands up to the end of the text."""
        found = self.commands(())
        if self.at < len(self.text):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        return found

    # -- lists of commands -----------------------------------------------------------------------------------------
    def commands(self, ends: tuple[str, ...]) -> List:
        """Commands up to one of the words or operators `ends`, which stays."""
        start = self.at
        items: list[AndOr] = []
        while True:
            self.lines()
            if self.at >= len(self.text) or self.is_end(ends) or self.peek(2) in (";;", ";&"):
                break
            items.append(self.and_or())
            self.blanks()
            if self.peek(2) in (";;", ";&"):
                break
            if self.peek() == ";":
                self.at += 1
            elif (
                self.at < len(self.text)
                and self.peek() not in "\n"
                and not self.is_end(ends)
                and not items[-1].background
            ):
                raise self.error(f"{self.peek(20)!r} where a command should end")
        return List(tuple(items), self.source(start).strip().rstrip(";").rstrip())

    def is_end(self, ends: tuple[str, ...]) -> bool:
        """Whether one of `ends` comes next."""
        for end in ends:
            if self.text.startswith(end, self.at):
                following = self.text[self.at + len(end) : self.at + len(end) + 1]
                if not end[0].isalpha() or not following or following in META:
                    return end != "}" or not following or following in META
        return False

    def and_or(self) -> AndOr:
        """Pipelines joined by && and ||."""
        line = self.line
        first, rest = self.pipeline(), []
        while True:
            self.blanks()
            operator = self.peek(2)
            if operator not in ("&&", "||"):
                break
            self.at += 2
            self.lines()
            rest.append((operator, self.pipeline()))
        background = self.peek() == "&" and self.peek(2) not in ("&&", "&>")
        self.at += background
        return AndOr(first, tuple(rest), background, line)

    def pipeline(self) -> Pipeline:
        """Commands joined by |."""
        negated = False
        self.blanks()
        while True:
            if self.keyword() == "!":
                negated = not negated
                self.at += 1
            elif self.keyword() == "time":
                self.at += 4
                self.blanks()
                if self.keyword() == "-p":
                    self.at += 2
            else:
                break
            self.blanks()
        commands = [self.command()]
        while True:
            self.blanks()
            if self.peek() != "|" or self.peek(2) == "||":
                return Pipeline(tuple(commands), negated)
            self.at += 2 if self.peek(2) == "|&" else 1
            self.lines()
            commands.append(self.command())

    def until(self, ends: tuple[str, ...], begun: ConfigError) -> List:
        """Commands up to one of `ends`, which is passed over. Raises `begun` where none of them comes."""
        found = self.commands(ends)
        for end in ends:
            if self.is_end((end,)):
                self.at += len(end)
                return self.filled(found, end, begun)
        if self.at < len(self.text) and self.peek(2) in (";;", ";&"):
            raise self.error(f"{self.peek(2)} outside case")
        if self.at < len(self.text):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        raise begun

    def filled(self, node: List, end: str, begun: ConfigError) -> List:
        """The commands in front of `end`. Raises ConfigError where there is none, which bash refuses."""
        if not node.items:
            raise begun if self.at >= len(self.text) else self.error(f"no command in front of {end}")
        return node

    # -- one command -----------------------------------------------------------------------------------------------
    def command(self) -> Command:
        """One command of any kind, with its redirections."""
        start, line = self.at, self.line
        found = self.compound()
        if found is None:
            return self.simple()
        self.blanks()
        redirects = self.redirects()
        if not redirects:
            return found
        return Group(
            line,
            self.source(start),
            tuple(redirects),
            List((AndOr(Pipeline((found,)), (), False, line),)),
            False,
        )

    def compound(self) -> Command | None:
        """A compound command or a definition, or None where a simple command stands."""
        word = self.keyword()
        if word in UNREAD:
            raise self.error(f"{word}, which is not read")
        if word in RESERVED and word != "in":
            raise self.error(f"{word} where a command should begin")
        start, line, begun = self.at, self.line, self.error(f"a {word or '('} that does not end")
        self.depth = self.deeper()
        try:
            if self.peek(2) == "((":
                found = self.arithmetic_command()
                if found is not None:
                    return found
            if self.peek() == "(":
                self.at += 1
                body = self.until((")",), begun)
                return Group(line, self.source(start), (), body, True)
            readers = {
                "{": self.group, "if": self.if_, "while": self.while_, "until": self.while_, "for": self.for_,
                "case": self.case, "function": self.function, "[[": self.test,
            }  # fmt: skip
            if word in readers:
                self.at += len(word)
                return readers[word](start, line, begun)
            match = re.compile(r"([^\s;&|<>()'\"$`\\=]+)[ \t]*\([ \t]*\)").match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                return self.defined(match.group(1), start, line)
            return None
        finally:
            self.depth -= 1

    def group(self, start: int, line: int, begun: ConfigError) -> Command:
        """`{ ...; }`."""
        body = self.until(("}",), begun)
        return Group(line, self.source(start), (), body, False)

    def if_(self, start: int, line: int, begun: ConfigError) -> Command:
        """`if ...; then ...; elif ...; else ...; fi`."""
        branches, otherwise = [], None
        while True:
            condition = self.until(("then",), begun)
            body = self.filled(self.commands(("elif", "else", "fi")), "fi, elif or else", begun)
            branches.append((condition, body))
            word = self.keyword()
            if word == "elif":
                self.at += 4
                continue
            if word == "else":
                self.at += 4
                otherwise = self.filled(self.commands(("fi",)), "fi", begun)
            if not self.is_end(("fi",)):
                raise begun
            self.at += 2
            return If(line, self.source(start), (), tuple(branches), otherwise)

    def while_(self, start: int, line: int, begun: ConfigError) -> Command:
        """`while ...; do ...; done`, or `until`."""
        is_until = self.text.startswith("until", start)
        condition = self.until(("do",), begun)
        body = self.until(("done",), begun)
        return While(line, self.source(start), (), condition, body, is_until)

    def for_(self, start: int, line: int, begun: ConfigError) -> Command:
        """`for name in words; do ...; done`, or with three expressions."""
        self.blanks()
        if self.peek(2) == "((":
            begin = self.line
            self.at += 1
            parts = self.enclosed("(", ")").split(";")
            if len(parts) != 3 or self.peek() != ")":
                raise self.error("a for whose (( )) does not hold three expressions")
            self.at += 1
            first, test, following = (self.nested(part, begin) for part in parts)
            body = self.body(begun)
            return ArithmeticFor(line, self.source(start), (), first, test, following, body)
        match = NAME.match(self.text, self.at)
        if match is None:
            raise self.error("a for without the name of a variable")
        self.at = match.end()
        self.lines()
        words: list[Word] | None = None
        if self.keyword() == "in":
            self.at += 2
            words = []
            self.blanks()
            while (word := self.word()) is not None:
                words.append(word)
                self.blanks()
        body = self.body(begun)
        return For(line, self.source(start), (), match.group(), None if words is None else tuple(words), body)

    def body(self, begun: ConfigError) -> List:
        """`; do ...; done`, or `{ ... }`."""
        self.blanks()
        if self.peek() == ";":
            self.at += 1
        self.lines()
        word = self.keyword()
        if word not in ("do", "{"):
            raise begun
        self.at += len(word)
        return self.until(("done" if word == "do" else "}",), begun)

    def case(self, start: int, line: int, begun: ConfigError) -> Command:
        """`case word in pattern) ...;; esac`."""
        self.blanks()
        subject = self.word()
        self.lines()
        if subject is None or self.keyword() != "in":
            raise begun
        self.at += 2
        clauses: list[Clause] = []
        while True:
            self.lines()
            if self.keyword() == "esac":
                self.at += 4
                return Case(line, self.source(start), (), subject, tuple(clauses))
            if self.at >= len(self.text):
                raise begun
            if self.peek() == "(":
                self.at += 1
            patterns = []
            while True:
                self.blanks()
                pattern = self.word()
                if pattern is None:
                    raise self.error("a pattern of case that is not read")
                patterns.append(pattern)
                self.blanks()
                if self.peek() != "|":
                    break
                self.at += 1
            if self.peek() != ")":
                raise self.error("a pattern of case that is not read")
            self.at += 1
            body = self.commands(("esac",))
            ending = next((one for one in (";;&", ";;", ";&") if self.text.startswith(one, self.at)), ";;")
            if self.text.startswith(ending, self.at):
                self.at += len(ending)
            elif self.keyword() != "esac":
                raise begun
            clauses.append(Clause(tuple(patterns), body, ending))

    def function(self, start: int, line: int, begun: ConfigError) -> Command:
        """`function name { ...; }`."""
        self.blanks()
        name = self.keyword()
        if not name:
            raise self.error("a function without a name")
        self.at += len(name)
        match = re.compile(r"[ \t]*\([ \t]*\)").match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.defined(name, start, line)

    def defined(self, name: str, start: int, line: int) -> Command:
        """A function of this name, whose body comes next."""
        self.lines()
        if self.peek() != "(" and self.keyword() not in ("{", "if", "for", "while", "until", "case", "[["):
            raise self.error(f"a function {name} without a body")
        body = self.command()
        return Function(line, self.source(start), (), name, body)

    def arithmetic_command(self) -> Command | None:
        """`((...))`, or None where it is a subshell in a subshell."""
        start, line = self.at, self.line
        self.at += 1
        body = self.enclosed("(", ")")
        if self.peek() != ")":
            self.at, self.line = start, line
            return None
        self.at += 1
        return ArithmeticCommand(line, self.source(start), (), self.nested(body, line))
