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
TOP = 1000
"""What an import at the top of a file weighs beside one that is late or for types: those go back up first."""
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
    """The members in an order with few imports upwards: next is always what the others need most and what needs least of them."""
    left, order = sorted(members), list[str]()

    def needs(node: str) -> tuple[bool, int]:
        """Whether a node imports others of those left at its top, and how much more it imports of them than they of it."""
        own = sum(weights.get((node, other), 0) for other in left)
        return own >= TOP, own - sum(weights.get((other, node), 0) for other in left)

    while left:
        order.append(min(left, key=needs))
        left.remove(order[-1])
    return order


def floors(files: Collection[str], found: Collection[Arrow]) -> dict[str, int]:
    """The floor of every room: one above the highest that it imports, arrows back up aside."""
    weights = Counter[tuple[str, str]]()
    ends = defaultdict(set)
    for arrow in found:
        start, end = room(arrow.start), room(arrow.end)
        if start != end:
            weights[start, end] += TOP if arrow.when == "top" else 1
            ends[start].add(end)
    level: dict[str, int] = {}
    for circle in circles({room(file) for file in files}, ends):
        for node in lowest_first(circle, weights):
            level[node] = 1 + max((level[end] for end in ends[node] if end in level), default=-1)
    return level


def back_up(found: Collection[Arrow], level: Mapping[str, int]) -> dict[tuple[str, str], list[Arrow]]:
    """The arrows that lead from a room to one on its own floor or above, by their rooms."""
    upwards = defaultdict(list)
    for arrow in sorted(found):
        start, end = room(arrow.start), room(arrow.end)
        if start != end and level[start] <= level[end]:
            upwards[start, end].append(arrow)
    return dict(sorted(upwards.items()))


def described(package: Path) -> str:
    """The whole drawing."""
    files = sources(package)
    found = arrows(files)
    level = floors(files, found)
    upwards = back_up(found, level)
    ends = defaultdict(set)
    for arrow in found:
        ends[arrow.start].add(arrow.end)
    tied = sorted((one for one in circles(files, ends) if len(one) > 1), key=lambda one: (-len(one), one))
    between = {(room(arrow.start), room(arrow.end)) for arrow in found if room(arrow.start) != room(arrow.end)}
    lines = [
        f"{len(files)} files in {len(level)} rooms on {max(level.values()) + 1} floors; {len(between)} arrows between rooms, "
        f"{len(upwards)} back up; {len(tied)} circles of files ({', '.join(str(len(one)) for one in tied)})",
        "",
    ]
    for floor in range(max(level.values()), -1, -1):
        lines.append(f"floor {floor}: {', '.join(sorted(name for name, at in level.items() if at == floor))}")
    lines += ["", "back up:"]
    for (start, end), several in upwards.items():
        lines.append(f"  {start} -> {end}")
        lines += [f"    {arrow.start} -> {arrow.end}{MARKS[arrow.when]}" for arrow in several]
    for circle in tied:
        inside = sorted(arrow for arrow in found if arrow.start in circle and arrow.end in circle)
        ties = [arrow for arrow in inside if arrow.when != "top"]
        lines += ["", f"a circle of {len(circle)} files: {', '.join(circle)}"]
        lines.append(f"  {len(inside) - len(ties)} imports at the top, and what ties them:")
        lines += [f"    {arrow.start} -> {arrow.end}{MARKS[arrow.when]}" for arrow in ties]
    return "\n".join(lines)


if __name__ == "__main__":
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    print(described(checkout / PACKAGE))
