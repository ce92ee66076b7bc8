"""Whether a dialect is as old as it looks: the keys and arguments of a framework's tree that its reader does not know.

python scripts/dialect_age.py TREE                    which dialect the tree's files are of is found by them
python scripts/dialect_age.py TREE --dialect verl

Keys are those of YAML and JSON files, words `key=value` and `--key` of shell scripts, and what `add_argument` names in Python, read from
their syntax. A reader knows a key that stands in its module's tables, and every setting, argument and field of Megatron's classes.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from megatron_memory_estimator.inputs.dialects import table
from megatron_memory_estimator.inputs.dialects.keys import patterns
from megatron_memory_estimator.inputs.dialects.launched import Place, of_document
from megatron_memory_estimator.inputs.dialects.run import Around, Dialect
from megatron_memory_estimator.inputs.megatron.classes import is_harmless
from megatron_memory_estimator.inputs.megatron.forks import fork_arguments
from megatron_memory_estimator.inputs.megatron.table import arguments
from megatron_memory_estimator.inputs.setting_names import full_name, known_settings
from megatron_memory_estimator.inputs.transformer_config import IRRELEVANT, RENAMED, UNCOUNTED, UNSUPPORTED

LARGEST = 2**20
"""Bytes of a file that is read."""
OVERRIDE = re.compile(r"(?:^|\s)[+~]{0,2}((?:[A-Za-z_][\w-]*\.)+[A-Za-z_][\w-]*)=")
OPTION = re.compile(r"(?:^|\s)--([A-Za-z][\w-]*)")
WORD = re.compile(r"[A-Za-z_][\w.]*\*?")
MOST = 60
"""Keys that are printed."""


def main() -> int:
    """Print the keys that the reader of a tree does not know, those of most files first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="the framework's repository, or a folder of its configs")
    parser.add_argument("--dialect", choices=table.MODULES, help="its reader; found by the tree's files without it")
    given = parser.parse_args()
    if not given.tree.is_dir():
        parser.error(f"{given.tree} is no folder")
    name = given.dialect or found_in(given.tree)
    if name is None:
        parser.error("no file of the tree is of a known dialect; name one with --dialect")
    unknown, files = unknown_keys(given.tree, name)
    print(
        f"{import_module(f'{table.__package__}.{name}').DIALECT.name}: {len(unknown)} keys of {files} files are not known"
    )
    for key, number in unknown.most_common(MOST):
        print(f"{number:6}  {key}")
    return 0


def found_in(tree: Path) -> str | None:
    """The dialect that knows most of the YAML files of a tree."""
    found: Counter[str] = Counter()
    for path in files_of(tree, ".yaml", ".yml"):
        for document in documents(path):
            run = of_document(document, str(path), {}, Around(Place(str(path)).text_of))
            found.update(name for name in table.MODULES if dialect(name).knows(run))
    return found.most_common(1)[0][0] if found else None


def dialect(name: str) -> Dialect:
    """The dialect of a module."""
    found: Dialect = import_module(f"{table.__package__}.{name}").DIALECT
    return found


def unknown_keys(tree: Path, name: str) -> tuple[Counter[str], int]:
    """Keys that a reader does not know, with the number of files that have them, and the number of files."""
    known = knows(name)
    found: Counter[str] = Counter()
    files = 0
    for _, keys in keys_of(tree):
        files += 1
        found.update({key for key in keys if not known(key)})
    return found, files


def knows(name: str) -> Any:
    """Whether a reader knows a key: by its tables, or as one of Megatron's."""
    own = {word.rpartition(".")[2] for word in WORD.findall(" ".join(strings(name)))}
    exact, starts = patterns(" ".join(own))
    by_flag, by_dest = arguments()
    megatrons = {
        *known_settings(), *by_flag, *by_dest, *UNSUPPORTED, *UNCOUNTED, *IRRELEVANT, *RENAMED, *fork_arguments()
    }  # fmt: skip

    def known(key: str) -> bool:
        word = key.rpartition(".")[2].replace("-", "_")
        ours = full_name(word)
        return word in exact or word.startswith(starts or ("\0",)) or ours in megatrons or is_harmless(ours)

    return known


@cache
def strings(name: str) -> tuple[str, ...]:
    """The literal texts of a dialect's module and of those of the package that it imports."""
    package = Path(table.__file__).parent
    found: list[str] = []
    waiting, seen = [name], {"table"}
    while waiting:
        module = waiting.pop()
        path = package / f"{module}.py"
        if module in seen or not path.is_file():
            continue
        seen.add(module)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.ImportFrom) and node.level == 1:
                waiting += [node.module] if node.module else [one.name for one in node.names]
    return tuple(found)


def keys_of(tree: Path) -> Iterator[tuple[Path, set[str]]]:
    """The files of a tree with their keys."""
    for path in files_of(tree, ".yaml", ".yml", ".json"):
        yield path, {key for document in documents(path) for key in flat(document)}
    for path in files_of(tree, ".sh"):
        text = path.read_text(errors="replace")
        yield path, {*OVERRIDE.findall(text), *OPTION.findall(text)}
    for path in files_of(tree, ".py"):
        if found := set(arguments_of(path)):
            yield path, found


def files_of(tree: Path, *endings: str) -> list[Path]:
    """The files of a tree with these endings, but those of hidden folders."""
    return sorted(
        path
        for path in tree.rglob("*")
        if path.suffix in endings
        and path.is_file()
        and path.stat().st_size < LARGEST
        and not any(part.startswith(".") for part in path.relative_to(tree).parts)
    )


def documents(path: Path) -> list[Mapping[str, Any]]:
    """The mappings that a file holds; none of one that is no YAML or JSON."""
    try:
        text = path.read_text()
        found = [json.loads(text)] if path.suffix == ".json" else [*yaml.safe_load_all(text)]
    except (ValueError, yaml.YAMLError, RecursionError):
        return []
    return [one for one in found if isinstance(one, Mapping)]


def flat(tree: Mapping[Any, Any], before: str = "", depth: int = 0) -> Iterator[str]:
    """The dotted keys of values at any depth."""
    for key, value in tree.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value and depth < 20:
            yield from flat(value, f"{name}.", depth + 1)
        else:
            yield name


def arguments_of(path: Path) -> Iterator[str]:
    """What `add_argument` names in a Python file."""
    try:
        tree = ast.parse(path.read_text(errors="replace"))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for one in node.args:
                if isinstance(one, ast.Constant) and str(one.value).startswith("--"):
                    yield str(one.value)[2:]


if __name__ == "__main__":
    sys.exit(main())
