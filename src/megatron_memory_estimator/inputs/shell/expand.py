"""Expansion of variables and arithmetic in words of a shell script; nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConfigError
from ..argument_words import UNSET
from .lexer import Part, Token, expansions

Value = str | list[str]
Variables = dict[str, Value]
_ARITHMETIC: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Mod: lambda a, b: a - b * int(a / b),
}
_NAME = r"[A-Za-z_]\w*|\d+|[@*#?$!-]"
LARGEST = 10**18


def unset(name: str) -> str:
    """What stands for a variable or command without a known value."""
    plain = re.sub(r"\W+", "_", name).strip("_")
    return f"{UNSET}{plain or 'command'}{UNSET}"


def fields(token: Token, variables: Variables) -> list[str]:
    """The words that one word of the script becomes: quoted stretches stay together, others split at blanks."""
    found: list[str] = []
    current: str | None = None
    for part in token.parts:
        for text, splits in _pieces(part, variables):
            if not splits:
                current = (current or "") + text
                continue
            words = text.split()
            if text[:1].isspace() and current is not None:
                found.append(current)
                current = None
            for index, word in enumerate(words):
                if index:
                    found.append(current or "")
                    current = ""
                current = (current or "") + word
            if words and text[-1:].isspace():
                found.append(current or "")
                current = None
    if current is not None:
        found.append(current)
    return found


def joined(token: Token, variables: Variables, skip: int = 0) -> str:
    """A word as one string, without its first characters: what an assignment stores."""
    text = "".join(text for part in token.parts for text, _ in _pieces(part, variables, whole=True))
    return text[skip:]


def _pieces(part: Part, variables: Variables, *, whole: bool = False) -> list[tuple[str, bool]]:
    """(text, whether blanks split it). An array in double quotes gives its elements as words of their own."""
    if part.literal:
        return [(part.text, False)]
    array = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[([@*])\]\}", part.text)
    if array is not None and part.quoted and not whole and isinstance(variables.get(array.group(1)), list):
        elements = variables[array.group(1)]
        pieces: list[tuple[str, bool]] = []
        for index, element in enumerate(elements):
            if index:
                pieces.append((" ", True))
            pieces.append((element, False))
        return pieces
    pieces = [
        (expanded(text, variables), not part.quoted) if is_expansion else (text, False)
        for text, is_expansion in expansions(part.text)
    ]
    return [piece for piece in pieces if piece[0]] or ([("", False)] if part.quoted else [])


def text_of(text: str, variables: Variables) -> str:
    """A text with its expansions."""
    return "".join(expanded(piece, variables) if is_expansion else piece for piece, is_expansion in expansions(text))


def expanded(text: str, variables: Variables) -> str:
    """The value of one expansion; what cannot be known becomes `unset`."""
    if text.startswith("$((") and text.endswith("))"):
        return arithmetic(text[3:-2], variables)
    if text.startswith(("$(", "`")):
        return unset(text)
    if not text.startswith("${"):
        return _plain(text[1:], variables)
    match = re.fullmatch(rf"({_NAME})(\[[@*]\])?(:?[-=+?])?(.*)", text[2:-1], re.DOTALL)
    if match is None:
        return unset(text)
    name, _, mark, other = match.groups()
    if mark is None:
        return unset(text) if other else _plain(name, variables)
    value = variables.get(name)
    is_set = value is not None and (not mark.startswith(":") or bool(value))
    if mark.endswith("+"):
        return text_of(_unquoted(other), variables) if is_set else ""
    if is_set:
        return _plain(name, variables)
    fallback = text_of(_unquoted(other), variables)
    if mark.endswith("?"):
        return unset(name)
    if mark.endswith("="):
        variables[name] = fallback
    return fallback


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _plain(name: str, variables: Variables) -> str:
    value = variables.get(name)
    if value is None:
        return unset(name)
    return " ".join(value) if isinstance(value, list) else value


def arithmetic(text: str, variables: Mapping[str, Value]) -> str:
    """$((...)): whole numbers with + - * / % and brackets."""
    known = dict(variables)
    source = text_of(text, known)
    source = re.sub(r"[A-Za-z_]\w*", lambda match: _plain(match.group(0), known), source)
    if UNSET in source:
        name = re.findall(rf"{UNSET}(.*?){UNSET}", source)[0]
        return unset(name)
    try:
        return str(_number(ast.parse(source.strip(), mode="eval").body))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        raise ConfigError(
            f"$(({text.strip()})) cannot be worked out: whole numbers, + - * / % and brackets are read"
        ) from None


def _number(node: Any) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp):
        value = _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
        if abs(value) > LARGEST:
            raise ValueError
        return value
    raise ValueError
