"""The import graph of the package in words: rooms by floors, circles of files, arrows back up.

python scripts/imports.py [CHECKOUT]

A room is a folder of the package; a file beside the folders is a room of its own. A room stands above all it imports, except along
the fewest arrows back up. Imports inside functions are marked (late), those under TYPE_CHECKING (type): they tie files
as others do, only Python does not stumble over them. That a file imports the `__init__.py` of its own folders is not counted.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = "src/megatron_memory_estimator"
MARKS = {"top": "", "late": " (late)", "type": " (type)"}


class Arrow(NamedTuple):
    """One file imports another: at its top, late (inside a function), or for types only."""

    start: str
    end: str
    when: str


def sources(package: Path) -> dict[str, ast.Module]:
    """The syntax of every file by its path without ending."""
    return {
        str(file.relative_to(package).with_suffix("")): ast.parse(file.read_text())
        for file in sorted(package.rglob("*.py"))
    }


def imports(node: ast.AST, when: str = "top") -> Iterator[tuple[ast.ImportFrom, str]]:
    """Every relative import below a node."""
    if isinstance(node, ast.ImportFrom) and node.level:
        yield node, when
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        when = "late"
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        when = "type"
    for child in ast.iter_child_nodes(node):
        yield from imports(child, when)


def bound(tree: ast.Module) -> set[str]:
    """Names that a file defines or imports, which win over files of the same name in its folder."""
    found = {alias.asname or alias.name for node, _ in imports(tree) for alias in node.names}
    return found | {getattr(node, "name", "") for node in tree.body}


def arrows(files: Mapping[str, ast.Module]) -> set[Arrow]:
    """Every import of one file of the package by another."""
    found = set()
    for file, tree in files.items():
        for node, when in imports(tree):
            base = [*Path(file).parts[: -node.level], *(node.module or "").split(".")]
            path = "/".join(part for part in base if part)
            init = f"{path}/__init__".lstrip("/")
            for name in (alias.name for alias in node.names):
                inner = f"{path}/{name}".lstrip("/")
                if path in files:
                    end = path
                elif inner in files and name not in bound(files[init]):
                    end = inner
                else:
                    end = f"{inner}/__init__" if f"{inner}/__init__" in files else init
                if end != file:
                    found.add(Arrow(file, end, when))
    tops = {(arrow.start, arrow.end) for arrow in found if arrow.when == "top"}
    return {arrow for arrow in found if arrow.when == "top" or arrow[:2] not in tops}


def room(file: str) -> str:
    """The room of a file."""
    folder = str(Path(file).parent)
    return file if folder == "." else f"{folder}/"


def circles(nodes: Collection[str], ends: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Sets of nodes that all lead to each other, the lowest first (Tarjan); a node in no circle stands alone."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for end in sorted(ends.get(node, ())):
            if end not in order:
                visit(end)
            if end in stack:
                lowest[node] = min(lowest[node], lowest[end])
        if lowest[node] == order[node]:
            found.append(sorted(stack[stack.index(node) :]))
            del stack[stack.index(node) :]

    for node in sorted(nodes):
        if node not in order:
            visit(node)
    return found


def lowest_first(members: Collection[str], weights: Mapping[tuple[str, str], int]) -> list[str]:
    """The members in an order with few imports upwards: always the one next that needs least of those left over what those need of it."""
    left, order = sorted(members), list[str]()
    while left:

        def surplus(node: str) -> int:
            return sum(weights.get((node, other), 0) - weights.get((other, node), 0) for other in left if other != node)

        order.append(
            min(left, key=lambda node: (any(weights.get((node, o)) for o in left if o != node), surplus(node)))
        )
        left.remove(order[-1])
    return order


def floors(rooms: Collection[str], weights: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """The floor of every room: one above the highest that it imports, arrows back up aside."""
    ends = defaultdict(set)
    for start, end in weights:
        ends[start].add(end)
    order = [member for circle in circles(rooms, ends) for member in lowest_first(circle, weights)]
    found: dict[str, int] = {}
    for node in order:
        found[node] = 1 + max((found[end] for end in ends[node] if end in found), default=-1)
    return found


def described(package: Path) -> str:
    """The whole drawing."""
    files = sources(package)
    found = sorted(arrows(files))
    weights = Counter((room(a.start), room(a.end)) for a in found if room(a.start) != room(a.end))
    level = floors({room(file) for file in files}, weights)
    back = [pair for pair in sorted(weights) if level[pair[0]] <= level[pair[1]]]
    ends = defaultdict(set)
    for arrow in found:
        ends[arrow.start].add(arrow.end)
    tied = sorted((one for one in circles(files, ends) if len(one) > 1), key=lambda one: (-len(one), one))
    lines = [
        f"{len(files)} files in {len(level)} rooms on {max(level.values()) + 1} floors; {len(weights)} arrows between rooms, "
        f"{len(back)} back up; {len(tied)} circles of files ({', '.join(str(len(one)) for one in tied)})",
        "",
    ]
    for floor in range(max(level.values()), -1, -1):
        lines.append(f"floor {floor}: {', '.join(sorted(name for name, at in level.items() if at == floor))}")
    lines += ["", "back up:"]
    for pair in back:
        lines.append(f"  {pair[0]} -> {pair[1]}")
        lines += [f"    {a.start} -> {a.end}{MARKS[a.when]}" for a in found if (room(a.start), room(a.end)) == pair]
    for circle in tied:
        inside = [a for a in found if a.start in circle and a.end in circle]
        kinds = Counter(a.when for a in inside)
        lines += ["", f"a circle of {len(circle)} files: {', '.join(circle)}"]
        lines.append(f"  {kinds['top']} imports at the top, and what ties them:")
        lines += [f"    {a.start} -> {a.end}{MARKS[a.when]}" for a in inside if a.when != "top"]
    return "\n".join(lines)


if __name__ == "__main__":
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    print(described(checkout / PACKAGE))
