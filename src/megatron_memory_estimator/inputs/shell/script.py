"""The launch command of a shell script: Megatron-LM's arguments, GPUs and environment, without executing anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import ConfigError
from ..argument_words import UNSET
from .conditions import decide
from .expand import Variables, fields, joined, text_of
from .launcher import gpus_of, sbatch_gpus
from .lexer import Lexer, Token

ENTRY = re.compile(r"(?:.*/)?(?:pretrain|train|finetune|run)\w*\.py|(?:.*/)?\w*(?:pretrain|train)\w*\.py")
SHELLS = ("bash", "sh", "zsh")
OPENING = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "{": "}"}
DEEPEST = 8


@dataclass
class Launch:
    """What a script starts: the words after its entry script, GPUs (None if not said), environment, notes."""

    entry: str = ""
    words: list[str] = field(default_factory=list)
    num_gpus: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_script(text: str, given: Mapping[str, str] | None = None) -> Launch:
    """The last launch of a training script in `text`. `given` are variables set by the caller; they win.

    Raises ConfigError for a script that starts no training script or cannot be read.
    """
    launch = Launch()
    reader = _Reader(launch, dict(given or {}))
    reader.run(Lexer(text).tokens(), 0)
    if not launch.entry:
        raise ConfigError("the script starts no training script such as pretrain_gpt.py")
    if launch.num_gpus is None:
        launch.num_gpus = sbatch_gpus(text)
    world = reader.variables.get("WORLD_SIZE")
    if launch.num_gpus is None and isinstance(world, str) and world.isdigit():
        launch.num_gpus = int(world)
    return launch


class _Reader:
    def __init__(self, launch: Launch, given: dict[str, str]) -> None:
        self.launch = launch
        self.given = given
        self.variables: Variables = dict(given)
        self.exported: set[str] = set()

    def run(self, tokens: list[Token], depth: int) -> None:
        """Commands one after the other."""
        if depth > DEEPEST:
            raise ConfigError("the script is nested too deeply")
        at = 0
        while at < len(tokens):
            if tokens[at].kind == "operator":
                at += 1
                continue
            end = at
            while end < len(tokens) and tokens[end].kind != "operator":
                end += 1
            head = tokens[at].text if tokens[at].kind == "word" else ""
            is_function = head == "function" or [t.text for t in tokens[end : end + 2]] == ["(", ")"]
            if head in OPENING or is_function:
                at = self._compound(tokens, at, head, depth, is_function=is_function)
                continue
            self._command(tokens[at:end], depth)
            at = end

    # -- compound commands ---------------------------------------------------------------------------------------
    def _compound(self, tokens: list[Token], at: int, head: str, depth: int, *, is_function: bool) -> int:
        """Runs or passes over a compound command; the place behind it."""
        if is_function:
            while at < len(tokens) and tokens[at].text != "{":
                at += 1
            return self._end(tokens, at, "{")
        end = self._end(tokens, at, head)
        inside = tokens[at + 1 : end - 1]
        if head == "{":
            self.run(inside, depth + 1)
        elif head == "if":
            self._if(inside, depth, tokens[at].line)
        elif head == "case":
            self._case(inside, depth, tokens[at].line)
        else:
            self.launch.notes.append(f"line {tokens[at].line}: the loop is not followed")
        return end

    def _end(self, tokens: list[Token], at: int, head: str) -> int:
        """The place behind the word that ends a compound command."""
        stack: list[str] = []
        is_start = True
        for index in range(at, len(tokens)):
            token = tokens[index]
            if token.kind == "operator":
                is_start = True
                continue
            if token.kind == "word" and is_start:
                if token.text in OPENING:
                    stack.append(OPENING[token.text])
                elif stack and token.text == stack[-1]:
                    stack.pop()
                    if not stack:
                        return index + 1
                is_start = token.text in ("then", "else", "elif", "do", "{", "if", "while")
            else:
                is_start = False
        raise ConfigError(f"line {tokens[at].line} of the script has a {head} that does not end")

    def _if(self, inside: list[Token], depth: int, line: int) -> None:
        for condition, body in _branches(inside):
            found = True if condition is None else decide(condition, self.variables)
            if found is None:
                words = " ".join(token.text for token in condition or [])
                if any(_matters(token) for token in inside):
                    self.launch.notes.append(
                        f"line {line}: the condition {words} cannot be decided; its branches are passed over"
                    )
                return
            if found:
                self.run(body, depth + 1)
                return

    def _case(self, inside: list[Token], depth: int, line: int) -> None:
        value = joined(inside[0], self.variables) if inside else ""
        if UNSET in value:
            self.launch.notes.append(
                f"line {line}: case {inside[0].text} cannot be decided; its branches are passed over"
            )
            return
        rest = inside[2:]
        while rest:
            close = next((i for i, token in enumerate(rest) if token.text == ")"), None)
            if close is None:
                return
            end = next((i for i, token in enumerate(rest) if token.text == ";;"), len(rest))
            patterns = [joined(token, self.variables) for token in rest[:close] if token.kind == "word"]
            if any(_matches(pattern, value) for pattern in patterns):
                self.run(rest[close + 1 : end], depth + 1)
                return
            rest = rest[end + 1 :]

    # -- simple commands -----------------------------------------------------------------------------------------
    def _command(self, tokens: list[Token], depth: int) -> None:
        assigned: dict[str, str] = {}
        at = 0
        exporting = False
        while at < len(tokens):
            token = tokens[at]
            if token.kind == "array":
                self._array(token)
            elif token.text in ("export", "declare", "local", "readonly", "typeset") and not assigned:
                exporting = token.text == "export"
            elif (match := re.match(r"([A-Za-z_]\w*)(\+?)=", token.text)) is not None:
                name, plus = match.groups()
                value = joined(token, self.variables, match.end())
                before = self.variables.get(name, "")
                assigned[name] = (before if isinstance(before, str) else " ".join(before)) + value if plus else value
            elif exporting:
                self.exported.add(token.text)
            else:
                break
            at += 1
        words = [word for token in tokens[at:] for word in fields(token, self.variables)]
        for name, value in assigned.items():
            if name not in self.given and (not words or name.isupper()):
                self.variables[name] = value
            if exporting or words or name in self.exported:
                self.launch.env[name] = value
        if words:
            self._launched(words, depth)

    def _array(self, token: Token) -> None:
        name, sign = re.fullmatch(r"(\w+?)(\+?=)", token.text).groups()  # type: ignore[union-attr]
        items = [word for item in token.items for word in fields(item, self.variables)]
        before = self.variables.get(name, [])
        old = before if isinstance(before, list) else [before]
        self.variables[name] = [*old, *items] if sign == "+=" else items

    def _launched(self, words: list[str], depth: int) -> None:
        """A command: the training script itself, or a shell that is given one."""
        if words[0] in ("source", "."):
            self.launch.notes.append(f"{' '.join(words[:2])} is not followed")
        entry = next((i for i, word in enumerate(words) if ENTRY.fullmatch(word) and not word.startswith("-")), None)
        if entry is not None and words[0] not in ("echo", "printf", "cp", "mv", "ls", "cat", "vim"):
            arguments = [piece for word in words[entry + 1 :] for piece in _two_words(word)]
            self.launch.entry, self.launch.words = words[entry], arguments
            self.launch.num_gpus = gpus_of(words[:entry]) or self.launch.num_gpus
            return
        for index, word in enumerate(words):
            is_text = words[0] == "eval" or (
                index and words[index - 1] == "-c" and words[index - 2].split("/")[-1] in SHELLS
            )
            if (is_text or "\n" in word or "pretrain" in word) and ".py" in word and word != words[0]:
                self.run(Lexer(text_of(word, self.variables)).tokens(), depth + 1)
                if self.launch.num_gpus is None or words[0] in ("srun", "mpirun"):
                    self.launch.num_gpus = gpus_of(words[:index], inner=self.launch.num_gpus) or self.launch.num_gpus
                return


def _branches(inside: list[Token]) -> list[tuple[list[Token] | None, list[Token]]]:
    """(condition, body) of if, elif and else; the condition of else is None."""
    found: list[tuple[list[Token] | None, list[Token]]] = []
    condition: list[Token] | None = []
    body: list[Token] = []
    is_body, nested, is_start = False, 0, True
    for token in inside:
        word = token.text if token.kind == "word" and is_start else ""
        if word == "if":
            nested += 1
        if word == "fi":
            nested -= 1
        if not nested and word in ("then", "elif", "else"):
            if word == "then":
                is_body = True
            else:
                found.append((condition, body))
                condition, body, is_body = ([] if word == "elif" else None), [], word == "else"
            is_start = True
            continue
        (body if is_body or condition is None else condition).append(token)
        is_start = token.kind == "operator" or word in ("then", "else", "do")
    found.append((condition, body))
    return found


def _matters(token: Token) -> bool:
    """Whether a passed-over token could have changed arguments."""
    return token.kind == "array" or "--" in token.text or "=" in token.text


def _matches(pattern: str, value: str) -> bool:
    import fnmatch

    return fnmatch.fnmatchcase(value, pattern)


def _two_words(word: str) -> list[str]:
    """An element such as "--fp8-format hybrid" holds two words: the scripts that write it expand it without quotes."""
    return word.split() if re.match(r"--\S+\s", word) else [word]
