"""Lists of commands: one after the other, joined by `&&`, `||` and `|`, and up to the word that ends a construct.

Sources: POSIX.1-2017 XCU 2.9.2 and 2.9.3; the Bash Reference Manual 5.2, 3.2.3 and 3.2.4.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ConfigError
from .brackets import Conditions
from .grammar import AndOr, Command, List, Pipeline
from .scanner import META


class Lists(Conditions):
    """Reads lists of commands; one command is read by `command`, which the parser has."""

    command: Callable[[], Command]

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
        return List(tuple(items), self.text[start : self.at].strip().rstrip(";").rstrip())

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
