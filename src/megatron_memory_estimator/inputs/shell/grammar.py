"""What a shell script is made of: words in pieces, and commands.

Sources: POSIX.1-2017 XCU 2 (Shell Command Language); the Bash Reference Manual 5.2, 3.2 and 3.5.
"""

from __future__ import annotations

from dataclasses import field
from itertools import groupby

from ...dataclass import dataclass
from .values import Unknown

DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
COMPARISONS = frozenset({"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
"""Operators of `[ ]` and `[[ ]]` with a word on either side."""
UNARY = frozenset(f"-{c}" for c in "abcdefghknoprstuvwxzGLNORS")
"""Operators of `[ ]` and `[[ ]]` in front of one word."""


@dataclass(frozen=True)
class Text:
    """Literal text; quoted text is neither split nor a pattern."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Param:
    """`$name` or `${...}`. `operator` is what follows the name (`:-`, `##`, `//`, ...), with its words; `#` in front is "length"
    and `!` "indirect", "keys" or "names" (of variables that begin so), or `indirect` where another operator follows. `source` is the
    text itself."""

    name: str
    source: str
    quoted: bool
    index: Word | None = None
    operator: str = ""
    words: tuple[Word, ...] = ()
    indirect: bool = False


@dataclass(frozen=True)
class Substitution:
    """`$(...)` or backquotes, with the commands inside."""

    body: List
    source: str
    quoted: bool


@dataclass(frozen=True)
class Arithmetic:
    """`$((...))` or `$[...]`."""

    expression: Word
    source: str
    quoted: bool


@dataclass(frozen=True)
class Opaque:
    """A piece whose value no reader can know: `~`, `<(...)`."""

    source: str
    quoted: bool = False


@dataclass(frozen=True)
class Hole:
    """What is not known in a text that is read as commands (`eval`, `bash -c`)."""

    unknown: Unknown
    quoted: bool = False


Piece = Text | Param | Substitution | Arithmetic | Opaque | Hole


def joined_pieces(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbouring literal characters as one piece."""
    found: list[Piece] = []
    for quoted, group in groupby(pieces, lambda piece: piece.quoted if isinstance(piece, Text) else None):
        if quoted is None:
            found += group
        else:
            found.append(Text("".join(piece.text for piece in group if isinstance(piece, Text)), quoted))
    return tuple(found)


@dataclass(frozen=True)
class Word:
    """One word of the script; `source` as it stands there."""

    pieces: tuple[Piece, ...]
    line: int = 0
    source: str = ""

    def literal(self) -> str | None:
        """Its text if nothing in it is quoted or expands, else None."""
        if all(isinstance(piece, Text) and not piece.quoted for piece in self.pieces):
            return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))
        return None


@dataclass(frozen=True)
class Assignment:
    """`name=value`, `name[index]+=value`, or `name=(words)`, whose elements may be `[key]=value`."""

    name: str
    appends: bool
    line: int
    value: Word = Word(())
    elements: tuple[Word | Assignment, ...] | None = None
    index: Word | None = None


@dataclass(frozen=True)
class Redirect:
    """`< file`, `> file`, `<<< word`, or a here-document (`<<`), whose text is `target`; in front perhaps a descriptor."""

    operator: str
    target: Word
    descriptor: str = ""

    @property
    def feeds(self) -> bool:
        """Whether it is standard input."""
        return self.operator in ("<", "<<", "<<<", "<>") and self.descriptor in ("", "0")

    @property
    def takes(self) -> bool:
        """Whether standard output goes elsewhere."""
        if self.operator in ("&>", "&>>"):
            return True
        if self.operator == ">&":
            return self.descriptor in ("", "1") and self.target.source != "1"
        return self.operator in (">", ">>", ">|") and self.descriptor in ("", "1")


@dataclass(frozen=True)
class Command:
    """Where a command stands."""

    line: int
    source: str = field(compare=False)
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True)
class Simple(Command):
    """Assignments in front, words; a declaring command (`export`, `declare`, ...) also has assignments among its words."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]


@dataclass(frozen=True)
class Group(Command):
    """`{ ...; }`, or `( ... )` in a subshell."""

    body: List
    is_subshell: bool


@dataclass(frozen=True)
class If(Command):
    """Conditions with their bodies, and the body of `else`."""

    branches: tuple[tuple[List, List], ...]
    otherwise: List | None


@dataclass(frozen=True)
class While(Command):
    """`while`, or `until`."""

    condition: List
    body: List
    until: bool


@dataclass(frozen=True)
class For(Command):
    """`for name in words`; without `in`, over the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: List


@dataclass(frozen=True)
class ArithmeticFor(Command):
    """`for ((first; test; next))`."""

    first: Word
    test: Word
    next: Word
    body: List


@dataclass(frozen=True)
class Clause:
    """Patterns of a `case`, their commands, and how it ends: `;;`, `;&` (on into the next) or `;;&` (on testing)."""

    patterns: tuple[Word, ...]
    body: List
    ending: str


@dataclass(frozen=True)
class Case(Command):
    """`case word in ...`."""

    word: Word
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Function(Command):
    """A definition."""

    name: str
    body: Command


@dataclass(frozen=True)
class ArithmeticCommand(Command):
    """`((...))`."""

    expression: Word


@dataclass(frozen=True)
class Condition:
    """Inside `[[ ]]`: an operator (`&&`, `||`, `!`, a unary or a binary one) and what it is applied to."""

    operator: str
    parts: tuple[Condition | Word, ...]


@dataclass(frozen=True)
class Test(Command):
    """`[[ ... ]]`; one word holds where it is not empty."""

    condition: Condition | Word


@dataclass(frozen=True)
class Pipeline:
    """Commands joined by `|`; `!` in front turns the status round."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True)
class AndOr:
    """Pipelines, each but the first behind `&&` or `||`; `&` at the end puts all of it in the background."""

    first: Pipeline
    rest: tuple[tuple[str, Pipeline], ...]
    background: bool
    line: int


@dataclass(frozen=True)
class List:
    """Commands one after the other."""

    items: tuple[AndOr, ...]
    source: str = field(default="", compare=False)
