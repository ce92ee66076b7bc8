"""Commands of a shell script, from its text. What is not read is refused by name.

Sources: POSIX.1-2017 XCU 2.9 and 2.10 (Shell Commands, Shell Grammar); the Bash Reference Manual 5.2, 3.2.
"""

from __future__ import annotations

import re

from ...errors import ConfigError
from .grammar import (
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
)
from .scanner import META, NAME, Scanner, joined_pieces

LARGEST_SCRIPT = 2**20
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
RESERVED = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "in", "}"})
UNREAD = frozenset({"select", "coproc"})
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_REDIRECT = re.compile(r"([0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")
_UNARY = re.compile(r"-[abcdefghknoprstuvwxzGLNORS]")
_BINARY = frozenset({"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
_REGEX_STOPS = frozenset(" \t\n")


def parsed(text: str, line: int = 1, depth: int = 0) -> List:
    """The commands of a script. Raises ConfigError with the line of what cannot be read."""
    if len(text) > LARGEST_SCRIPT:
        raise ConfigError(f"the script is longer than {LARGEST_SCRIPT} characters")
    return Parser(text.replace("\r\n", "\n"), line, depth).whole()


class Parser(Scanner):
    """A recursive-descent parser; each method begins at its construct's first character."""

    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        super().__init__(text, line, depth)
        self.document_at: int | None = None  # where the line ends behind which here-documents stand
        self.document_end = 0
        self.document_lines = 0

    def inside(self, text: str, line: int, depth: int) -> List:
        """The commands of a substitution."""
        return parsed(text, line, depth)

    def whole(self) -> List:
        """All commands up to the end of the text."""
        found = self.commands(())
        if self.at < len(self.text):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        return found

    # -- lists -----------------------------------------------------------------------------------------------------
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

    def document(self, mark: str, *, quoted: bool, tabs: bool) -> Word:
        """The text of the here-document that begins behind this line, or behind the one before it; a double quote is a
        character there."""
        if self.document_at is None:
            end = self.text.find("\n", self.at)
            self.document_at = len(self.text) if end < 0 else end
            self.document_end, self.document_lines = self.document_at + 1, 1
            if self.text[self.document_at - 1] == "\\":
                raise self.error("a here-document on a line that goes on")
        begin, found = self.line + self.document_lines, list[str]()
        while True:
            if self.document_end >= len(self.text):
                raise self.error(f"a here-document that {mark} does not end")
            end = self.text.find("\n", self.document_end)
            end = len(self.text) if end < 0 else end
            one = self.text[self.document_end : end]
            self.document_end = min(end + 1, len(self.text))
            self.document_lines += 1
            one = one.lstrip("\t") if tabs else one
            if one == mark:
                break
            found.append(one + "\n")
        text = "".join(found)
        if quoted:
            return Word((Text(text, True),), begin, text)
        inner = Parser(text, begin, self.deeper())
        return Word(joined_pieces(inner.quoted_until("", escaped="\\`$")), begin, text)

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

    def keyword(self) -> str:
        """The plain word that comes next, which may be a reserved one."""
        match = re.compile(r"[^\s;&|<>()'\"$`\\]+").match(self.text, self.at)
        if match is None:
            return ""
        following = self.text[match.end() : match.end() + 1]
        return match.group() if not following or following in META else ""

    # -- commands --------------------------------------------------------------------------------------------------
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
            self.text[start : self.at],
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
                return Group(line, self.text[start : self.at], (), body, True)
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

    def until(self, ends: tuple[str, ...], begun: ConfigError) -> List:
        """Commands up to one of `ends`, which is passed over. Raises `begun` where none of them comes."""
        found = self.commands(ends)
        for end in ends:
            if self.is_end((end,)):
                self.at += len(end)
                return found
        if self.at < len(self.text) and self.peek(2) in (";;", ";&"):
            raise self.error(f"{self.peek(2)} outside case")
        if self.at < len(self.text):
            raise self.error(f"{self.peek(20)!r} where a command should begin")
        raise begun

    def group(self, start: int, line: int, begun: ConfigError) -> Command:
        """`{ ...; }`."""
        body = self.until(("}",), begun)
        return Group(line, self.text[start : self.at], (), body, False)

    def if_(self, start: int, line: int, begun: ConfigError) -> Command:
        """`if ...; then ...; elif ...; else ...; fi`."""
        branches, otherwise = [], None
        while True:
            condition = self.until(("then",), begun)
            body = self.commands(("elif", "else", "fi"))
            branches.append((condition, body))
            word = self.keyword()
            if word == "elif":
                self.at += 4
                continue
            if word == "else":
                self.at += 4
                otherwise = self.commands(("fi",))
            self.until(("fi",), begun)
            return If(line, self.text[start : self.at], (), tuple(branches), otherwise)

    def while_(self, start: int, line: int, begun: ConfigError) -> Command:
        """`while ...; do ...; done`, or `until`."""
        is_until = self.text.startswith("until", start)
        condition = self.until(("do",), begun)
        body = self.until(("done",), begun)
        return While(line, self.text[start : self.at], (), condition, body, is_until)

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
            return ArithmeticFor(line, self.text[start : self.at], (), first, test, following, body)
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
        return For(line, self.text[start : self.at], (), match.group(), None if words is None else tuple(words), body)

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
                return Case(line, self.text[start : self.at], (), subject, tuple(clauses))
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
        return Function(line, self.text[start : self.at], (), name, body)

    def arithmetic_command(self) -> Command | None:
        """`((...))`, or None where it is a subshell in a subshell."""
        start, line = self.at, self.line
        self.at += 1
        body = self.enclosed("(", ")")
        if self.peek() != ")":
            self.at, self.line = start, line
            return None
        self.at += 1
        return ArithmeticCommand(line, self.text[start : self.at], (), self.nested(body, line))

    # -- [[ ]] -----------------------------------------------------------------------------------------------------
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

    # -- simple commands -------------------------------------------------------------------------------------------
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
            if self.peek() in "(;&|<>" and self.peek(2) not in ("<(", ">("):
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
        if match is None or self.peek(2) in ("<(", ">("):
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
