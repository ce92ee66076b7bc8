"""Conditions of `if` in a shell script, decided where every value is known."""

from __future__ import annotations

import fnmatch

from ..argument_words import UNSET
from .expand import Variables, joined
from .lexer import Token

NUMBERS = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip


def decide(tokens: list[Token], variables: Variables) -> bool | None:
    """True or False, or None where a value is not known or the test is of another kind (files, commands)."""
    result: bool | None = None
    joint = ""
    group: list[Token] = []
    for token in [*tokens, Token("operator", 0, ";")]:
        if token.kind == "operator" and token.text in ("&&", "||", ";", "\n"):
            if group:
                found = _one(group, variables)
                result = found if not joint else _joined(result, joint, found)
                group = []
            joint = token.text if token.text in ("&&", "||") else joint
        elif token.kind == "word":
            group.append(token)
        else:
            return None
    return result


def _joined(left: bool | None, joint: str, right: bool | None) -> bool | None:
    if joint == "&&":
        return False if left is False or right is False else None if None in (left, right) else True
    return True if left or right else None if None in (left, right) else False


def _one(tokens: list[Token], variables: Variables) -> bool | None:
    words = [token.text for token in tokens]
    if words[0] == "!":
        found = _one(tokens[1:], variables) if len(tokens) > 1 else None
        return None if found is None else not found
    if words[0] in ("true", "false"):
        return words[0] == "true"
    if words[0] not in ("[", "[[", "test"):
        return None
    inside = tokens[1:-1] if words[0] != "test" else tokens[1:]
    values = [joined(token, variables) for token in inside]
    if values[:1] == ["!"]:
        found = _test(values[1:])
        return None if found is None else not found
    return _test(values)


def _test(values: list[str]) -> bool | None:
    if len(values) == 2 and values[0] in ("-z", "-n"):
        empty = not values[1] or (
            values[1].startswith(UNSET) and values[1].count(UNSET) == 2 and values[1].endswith(UNSET)
        )
        return empty if values[0] == "-z" else not empty
    if any(UNSET in value for value in values):
        return None
    if len(values) == 3:
        left, sign, right = values
        if sign in ("=", "=="):
            return fnmatch.fnmatchcase(left, right)
        if sign == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if sign in NUMBERS and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
            return bool(NUMBERS[sign](int(left), int(right)))
    if len(values) == 1:
        return bool(values[0])
    return None
