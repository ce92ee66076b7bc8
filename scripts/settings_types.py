"""The typed settings of `TrainingJob.from_hf` and its likes, made from the settings themselves: job/settings_types.py.

Run it (or `make pages`) after a change of a setting; a test holds the file to what is made here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from docs_markdown import ROOT

TARGET = ROOT / "src" / "megatron_memory_estimator" / "job" / "settings_types.py"
WIDEST = 140
HEAD = '''"""Settings as keywords, typed, so that an editor completes them and a type checker refuses what is none. Generated.

Made by scripts/settings_types.py from the fields of Layout, Training, Rollout, Model and Environment; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from .hardware import Environment

# fmt: off
'''
CLASS = '''

class Settings(TypedDict, total=False):
    """Every setting by Megatron's name, the degrees by their short names too. What is not given is decided and said.

    `megatron-memory estimate --help-all` and docs/reference/settings.md have them by topic, with their defaults.
    """
'''
MORE = {
    "gpu": ("str", "GPU that is judged, and that kernels are chosen for"),
    "strict": ("bool", "refuse to decide the number of GPUs and the split of layers"),
    "env": ("Environment | Mapping[str, object]", "settings of the environment, or variables by their own names"),
    "bf16": ("bool", "params_dtype bf16"),
    "fp16": ("bool", "params_dtype fp16"),
    "attention_backend": ('Literal["auto", "flash", "fused", "unfused", "local"]', "Megatron-LM's attention_kernel"),
}
"""Keywords that are no settings of a part."""
ARGUMENTS = '''

class ArgumentSettings(Settings, total=False):
    """Settings beside Megatron-LM arguments."""

    set_variables: Mapping[str, str]  # values of variables of a launch script
    words: Sequence[str]  # what stands behind a launch script on its command line
    follow: bool  # open files that a launch script sources from elsewhere than its own folder
    run_model: str  # the model, or recipe of Megatron-Bridge, of a run file that names none
    ignore_unknown: bool  # pass over unknown arguments, with a warning
    without_unmodelled: bool  # leave arguments of forks that are not modelled out: the figures are a bound
    more_arguments: Sequence[str]  # words of a command line, which win over a file's
'''


def text() -> str:
    """The file."""
    from megatron_memory_estimator.cli.options import SECTIONS
    from megatron_memory_estimator.job.layout import SHORT

    parts = [
        (title, [f for f in dataclasses.fields(part) if not f.metadata.get("internal")]) for title, part in SECTIONS
    ]
    fields = {field.name: field for _, several in parts for field in several}
    aliases = [alias(field) for field in fields.values() if named(field)]
    lines = [HEAD, *aliases, CLASS]
    for title, several in parts:
        lines.append(f"\n    # {title}\n")
        lines += [key(field.name, kind(field), field.metadata["help"]) for field in several]
    lines.append("\n    # short names, and those of Megatron-LM's command line where they differ\n")
    lines += [key(short, kind(fields[name]), name) for short, name in SHORT.items()]
    lines += [key(name, kind(field), field.name) for name, field in flags(fields.values())]
    lines.append("\n    # the rest\n")
    lines += [key(name, *kind_and_help) for name, kind_and_help in MORE.items()]
    return "".join([*lines, ARGUMENTS])


ROOM = 20
"""Characters that say something of a key."""


def key(name: str, kind: str, help: str) -> str:
    """The line of a key, with what it means where there is room for it."""
    line = f"    {name}: {kind}"
    left = WIDEST - len(line) - 4
    if left < ROOM:
        return f"{line}\n"
    return f"{line}  # {textwrap.shorten(help, left, placeholder=' ...')}\n"


def flags(fields: Any) -> Iterator[tuple[str, Any]]:
    """Settings by Megatron-LM's name where it differs; num_gpus is a parameter of its own."""
    for field in fields:
        name = str(field.metadata.get("flag") or "").replace("-", "_")
        if name not in ("", field.name, "num_gpus"):
            yield name, field


def listed(field: Any) -> bool:
    """Whether a setting is a list of words out of some."""
    return field.metadata.get("kind") == "list"


MOST = 8
"""Choices of a setting that stand in its own line; a type has its name where there are more."""


def named(field: Any) -> bool:
    """Whether the words of a setting are a type of their own."""
    return listed(field) or len(field.metadata.get("choices") or ()) > MOST


def alias_name(field: Any) -> str:
    """`RecomputeModules` of `recompute_modules`."""
    return "".join(word.capitalize() for word in field.name.split("_"))


def alias(field: Any) -> str:
    """The name of a literal type."""
    line = f"{alias_name(field)} = {literal(field.metadata['choices'])}\n"
    if len(line) <= WIDEST:
        return line
    words = textwrap.wrap(", ".join(f'"{word}"' for word in field.metadata["choices"]), WIDEST - 6)
    return f"{alias_name(field)} = Literal[\n" + "".join(f"    {line}\n" for line in words) + "]\n"


def kind(field: Any) -> str:
    """The type that a setting takes."""
    choices, declared = field.metadata.get("choices") or (), str(field.type)
    none = " | None" if "None" in declared else ""
    if listed(field):
        return f"{alias_name(field)} | Sequence[{alias_name(field)}]{none}"
    if choices:
        return (alias_name(field) if named(field) else literal(choices)) + none
    if field.metadata.get("words"):
        return f"{declared.removesuffix(' | None')} | {literal(field.metadata['words'])}{none}"
    if declared == "Variants":
        return "Mapping[str, Mapping[str, object]]"
    return declared.replace("tuple[int, ...]", "Sequence[int]").replace("tuple[str, ...]", "Sequence[str]")


def literal(words: Any) -> str:
    """A literal type."""
    return "Literal[" + ", ".join(f'"{word}"' for word in words) + "]"


STUB_HEAD = '''"""The constructors of TrainingJob with every keyword by name, for completion in notebooks. Generated: `make pages`."""

# fmt: off
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import Self

from .hardware import Environment
from .settings_types import {aliases}

class Constructors:
'''


class Stub:
    """job/constructors.pyi, made of the same text."""

    TARGET = TARGET.with_name("constructors.pyi")

    @staticmethod
    def text() -> str:
        """The file."""
        from megatron_memory_estimator.job.constructors import Constructors

        typed = text()
        keys = re.compile(r"^    (\w+): (.+?)(?:  # .*)?$", re.MULTILINE)
        common, _, more = typed.partition("class ArgumentSettings")
        settings = [key.groups() for key in keys.finditer(common[common.index("class Settings") :])]
        arguments = [key.groups() for key in keys.finditer(more)]
        aliases = "".join(f"    {name},\n" for name in sorted(re.findall(r"^(\w+) = Literal", typed, re.MULTILINE)))
        lines = [STUB_HEAD.format(aliases=f"(\n{aliases})")]
        for name in (name for name in vars(Constructors) if name.startswith("from_")):
            first, *_, more = inspect.signature(getattr(Constructors, name)).parameters.values()
            taken = [*settings, *(arguments if "ArgumentSettings" in str(more.annotation) else ())]
            lines += [
                "    @classmethod\n",
                f"    def {name}(\n",
                f"        cls, {first.name}: {first.annotation}, num_gpus: int | None = None, *,\n",
            ]
            lines += [f"        {key}: {kind} = ...,\n" for key, kind in taken]
            lines.append("    ) -> Self: ...\n")
        return "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(text())
    Stub.TARGET.write_text(Stub.text())
