"""Tables of docs/reference: every command with its options, and every name of the library."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
from typing import Any

import click
from docs_markdown import markdown

GENERAL = ("_click_default_help", "help_all")


def commands() -> str:
    """Every command with its own options, and what all commands of a run take."""
    from megatron_memory_estimator.cli.group import VERBS, command
    from megatron_memory_estimator.cli.job_command import JobCommand
    from megatron_memory_estimator.cli.options import special_options

    parts, shared = [], special_options()
    for name, text in VERBS.items():
        verb = command.get_command(click.Context(command), name)
        assert verb is not None
        context = click.Context(verb, info_name=f"megatron-memory {name}")
        settings = {field.name for field in verb.settings} if isinstance(verb, JobCommand) else set()
        options = [param for param in verb.get_params(context) if isinstance(param, click.Option)]
        of_run = settings | {option.name for option in shared} if settings else set()
        own = [option for option in options if option.name not in of_run and option.name not in GENERAL]
        usage = " ".join(["megatron-memory", name, *verb.collect_usage_pieces(context)])
        said = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(verb.help or text).split("\n\n"))
        rest = "Takes the [options of a run](#options-of-a-run) too." if settings else ""
        table = _options(own, context).rstrip("\n") if own else ""
        parts.append("\n\n".join(filter(None, (f"## {name}", f"`{usage}`", said, rest, table))))
    some = click.Context(click.Command("a run"))
    head = "## Options of a run\n\nEvery [setting](settings.md) is an option, by Megatron's name. Beside them:\n\n"
    return "\n\n".join([*parts, head + _options(shared, some)])


def stopped(sentence: str) -> str:
    """A sentence with its full stop, behind dots that stand for a number none."""
    return sentence if sentence.endswith(".") else f"{sentence}."


def rules() -> str:
    """Every rule of legality under its code."""
    from megatron_memory_estimator.rules import NAMES, table

    lines: list[str] = []
    part = ""
    for rule in table().values():
        if rule.part != part:
            part = rule.part
            lines.append(f"## {part}")
        said = NAMES.sub(lambda name: name[1] if not name[2] else "...", rule.sentence)
        fix = NAMES.sub("...", rule.fix)
        since = f" Since Megatron-Core {rule.since}." if rule.since else ""
        example = f"```bash\n# refused\nmegatron-memory estimate {rule.breaks}\n# legal\nmegatron-memory estimate {rule.neighbour}\n```"
        lines += [
            f"### {rule.code}",
            stopped(f"{said}; {fix}" if fix else said),
            f"Source: {rule.source}.{since}",
        ]
        lines += [example] if rule.breaks else []
    return "\n\n".join(lines) + "\n"


def everyday() -> str:
    """Words that people type, and what they mean."""
    from megatron_memory_estimator.inputs.everyday import WORDS

    return markdown(("word", "meaning"), [(f"`{name}`", word.help) for name, word in WORDS.items()])


def _options(options: list[click.Option], context: click.Context) -> str:
    rows = []
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            rows.append((f"`{record[0]}`", " ".join(record[1].split())))
    return markdown(("option", "meaning"), rows)


def api() -> str:
    """Every public name: its signature, what it says of itself, and its public members."""
    import megatron_memory_estimator as package
    from megatron_memory_estimator import callback

    parts = []
    for name in package.__all__:
        parts.append(_symbol(name, getattr(package, name)))
    parts.append(_symbol("compare_at_step", callback.compare_at_step, "megatron_memory_estimator.callback"))
    return "\n\n".join(parts) + "\n"


def _symbol(name: str, found: Any, module: str = "megatron_memory_estimator") -> str:
    said = [f"## {name}", f"`from {module} import {name}`"]
    if inspect.isclass(found):
        said.append(_text(found))
        rows = [*_fields(found), *_members(found)]
        if name == "Settings":
            said.append("Its keys are the [settings](settings.md).")
        elif rows:
            said.append(markdown(("member", "meaning"), rows).rstrip("\n"))
    elif callable(found):
        said += [f"```python\n{name}{_signature(found)}\n```", _text(found)]
    else:
        said.append(
            f"A {type(found).__name__} of {len(found)} `{type(found[0]).__name__}`: {', '.join(item.name for item in found)}."
        )
    return "\n\n".join(filter(None, said))


def _text(found: Any) -> str:
    """What a docstring says, in Markdown."""
    text = inspect.getdoc(found) or ""
    return "" if text.startswith(f"{getattr(found, '__name__', '')}(") else text


def _signature(found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except ValueError:
        return "(...)"
    return re.sub(r"(?:[a-z_]+\.)+(?=[A-Z])", "", text).replace("'", "")


def _fields(found: type) -> list[tuple[str, str]]:
    """The fields of a dataclass or named tuple, but for those that are settings, which have a page of their own."""
    meanings = _field_docs(found)
    if issubclass(found, tuple):
        fields = [(name, _written(kind), "") for name, kind in found.__annotations__.items()]
    else:
        fields = [
            (field.name, str(field.type), field.metadata.get("help", ""))
            for field in (dataclasses.fields(found) if dataclasses.is_dataclass(found) else ())
            if not field.name.startswith("_") and not field.metadata.get("internal") and "help" not in field.metadata
        ]
    return [(f"`{name}`", f"`{kind}`: {help or meanings[name]}") for name, kind, help in fields]


def _written(kind: Any) -> str:
    """An annotation as it is written."""
    return getattr(kind, "__forward_arg__", None) or str(kind)


def _field_docs(found: type) -> dict[str, str]:
    """The docstrings below the fields of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(tree, ast.ClassDef)
    said = {}
    for field, below in itertools.pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            said[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return said


def _members(found: type) -> list[tuple[str, str]]:
    """Public methods and properties that the package defines."""
    rows = []
    fields = (
        {field.name for field in dataclasses.fields(found)}
        if dataclasses.is_dataclass(found)
        else set(getattr(found, "_fields", ()))
    )
    for owner in found.__mro__[:-1]:
        if not owner.__module__.startswith("megatron_memory_estimator") or issubclass(owner, enum.Enum):
            continue
        for name, member in vars(owner).items():
            if name.startswith("_") or name in fields or any(row[0].startswith(f"`{name}") for row in rows):
                continue
            plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            said = " ".join((inspect.getdoc(plain) or "").split("\n\n")[0].split())
            if inspect.isfunction(plain):
                rows.append((f"`{name}{_signature(plain).replace('(self, ', '(').replace('(self)', '()')}`", said))
            elif hasattr(member, "__get__"):
                rows.append((f"`{name}`", said))
    return rows


TABLES = {"rules": rules, "everyday": everyday, "commands": commands, "api": api}
