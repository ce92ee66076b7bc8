"""The words of a model that a Python file of miles holds, read from its syntax; nothing is run.

A file `scripts/models/NAME.py` has a function `model_args` whose text are words of Megatron-LM: constants, f-strings, lists that are
joined, arguments with defaults, and variables of the environment. Anything else is not read.

Source: radixark/miles `scripts/models/*.py`, `miles/utils/external_utils/model_args_utils.py` (since 9 August 2026).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

PROGRAM = "model_args_utils.py"
"""The program that prints the words of a model, given its name."""
OF_MODEL = "--words-of-model"
"""An argument of ours, which names the model whose words are not there."""
FOLDER = "scripts/models"
"""Where the framework has its models' files."""
MOST_NODES, DEEPEST, MOST_LAYERS = 20_000, 40, 10_000
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
Values = dict[str, Any]


class _NotReadError(Exception):
    """Something that is no literal, and none of the forms that are read."""


def words_of_model(
    name: str,
    text_of: Callable[[str], str | None],
    env: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    depth: int = 0,
) -> str | None:
    """The words of the model's file NAME.py with values for its arguments; None where it is not there, or holds what is not read.

    `text_of` gives the text of a file of that folder by its name.
    """
    text = text_of(f"{name}.py") if depth < DEEPEST else None
    if text is None:
        return None
    try:
        tree = ast.parse(text)
        if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
            return None
        found = _Model(tree, text_of, env, depth).called(overrides or {})
    except (_NotReadError, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None
    return " ".join(found.split()) if isinstance(found, str) else None


class _Model:
    """A file of a model: its constants, and its function."""

    def __init__(
        self, tree: ast.Module, text_of: Callable[[str], str | None], env: Mapping[str, str], depth: int
    ) -> None:
        self.text_of, self.env, self.depth = text_of, env, depth
        self.constants: Values = {}
        self.function: ast.FunctionDef | None = None
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "model_args":
                self.function = node
            elif isinstance(node, ast.Assign):
                self._assign(node, self.constants)

    def called(self, overrides: Mapping[str, Any]) -> Any:
        """What the function returns."""
        if self.function is None:
            raise _NotReadError
        taken = self.function.args
        names = [one.arg for one in (*taken.posonlyargs, *taken.args)]
        values: Values = dict(
            zip(reversed(names), map(self._in(self.constants), reversed(taken.defaults)), strict=False)
        )
        for one, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True):
            if default is not None:
                values[one.arg] = self.value(default, self.constants)
        known = {*names, *(one.arg for one in taken.kwonlyargs)}
        if taken.vararg or taken.kwarg or not known >= overrides.keys() or not known <= {*values, *overrides}:
            raise _NotReadError
        return self._returned(self.function.body, {**self.constants, **values, **overrides})

    def _in(self, values: Values) -> Callable[[ast.expr], Any]:
        return lambda node: self.value(node, values)

    def _returned(self, body: list[ast.stmt], values: Values) -> Any:
        """What statements return: assignments, `if` and `return` are read."""
        for node in body:
            if isinstance(node, ast.Assign):
                self._assign(node, values)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                values[node.target.id] = self._operation(
                    node.op, values[node.target.id], self.value(node.value, values)
                )
            elif isinstance(node, ast.If):
                found = self._returned(node.body if self.value(node.test, values) else node.orelse, values)
                if found is not None:
                    return found
            elif isinstance(node, ast.Return) and node.value is not None:
                return self.value(node.value, values)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                raise _NotReadError
        return None

    def _assign(self, node: ast.Assign, values: Values) -> None:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            raise _NotReadError
        values[node.targets[0].id] = self.value(node.value, values)

    def value(self, node: ast.expr, values: Values) -> Any:
        """The value of an expression. Raises _NotReadError for what is not read."""
        match node:
            case ast.Constant(value=found):
                return found
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.Name(id="__file__"):
                return "__file__"
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.value(one, values) for one in elements]
            case ast.JoinedStr(values=parts):
                return "".join(str(self.value(one, values)) for one in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self.value(inner, values)
            case ast.BoolOp(op=op, values=parts):
                return self._either(isinstance(op, ast.Or), parts, values)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.value(inner, values)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return not self.value(inner, values)
            case ast.IfExp(test=test, body=yes, orelse=no):
                return self.value(yes if self.value(test, values) else no, values)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return _COMPARISONS[type(op)](self.value(left, values), self.value(right, values))
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(op, self.value(left, values), self.value(right, values))
            case ast.Call():
                return self._call(node, values)
        raise _NotReadError

    def _either(self, is_or: bool, parts: list[ast.expr], values: Values) -> Any:
        """The first of several values that decides `or`, or `and`."""
        found: Any = None
        for one in parts:
            found = self.value(one, values)
            if bool(found) is is_or:
                break
        return found

    @staticmethod
    def _operation(op: ast.operator, left: Any, right: Any) -> Any:
        of_text = isinstance(left, str | list) or isinstance(right, str | list)
        if type(op) not in _OPERATIONS or (
            of_text
            and isinstance(op, ast.Mult)
            and max(one for one in (left, right) if isinstance(one, int)) > MOST_LAYERS
        ):
            raise _NotReadError
        return _OPERATIONS[type(op)](left, right)

    def _call(self, node: ast.Call, values: Values) -> Any:
        """The calls that the framework's files make."""
        name = ast.unparse(node.func)
        given = [self.value(one, values) for one in node.args] if name != "load_sibling_model_args" else []
        named = {one.arg: self.value(one.value, values) for one in node.keywords if one.arg}
        if len(named) < len(node.keywords):
            raise _NotReadError
        match name:
            case "os.environ.get" | "os.getenv":
                return self.env.get(given[0], given[1] if len(given) > 1 else None)
            case "int" | "str" | "float" if len(given) == 1 and not named:
                return {"int": int, "str": str, "float": float}[name](given[0])
            case "moe_layer_freq" | "model_args_utils.moe_layer_freq":
                return _moe_layer_freq(**dict(zip(("nlayers", "first_k_dense_replace"), given, strict=False)), **named)
            case "load_sibling_model_args" | "model_args_utils.load_sibling_model_args" if len(node.args) == 2:
                found = words_of_model(self.value(node.args[1], values), self.text_of, self.env, named, self.depth + 1)
                if found is None:
                    raise _NotReadError
                return found
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("join", "strip", "format", "replace")
            and not named
        ):
            return getattr(self._text(node.func.value, values), node.func.attr)(*given)
        raise _NotReadError

    def _text(self, node: ast.expr, values: Values) -> str:
        found = self.value(node, values)
        if not isinstance(found, str):
            raise _NotReadError
        return found


def _moe_layer_freq(nlayers: int, first_k_dense_replace: int = 0) -> str:
    """Which layers have experts, as Megatron's list: those behind the first dense ones."""
    if not 0 <= first_k_dense_replace <= nlayers <= MOST_LAYERS:
        raise _NotReadError
    return f"[{','.join(['0'] * first_k_dense_replace + ['1'] * (nlayers - first_k_dense_replace))}]"
