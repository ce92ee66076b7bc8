"""What the shell completes: models and files, GPUs, words of settings. Nothing of an estimate is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, and bundled models by their whole or their short name. Files come first: bash forgets what stands before them."""
    from ..inputs.catalog import entries

    typed = incomplete.lower()
    names = [name for name in entries() if name.lower().startswith(typed) or _short(name).startswith(typed)]
    return [CompletionItem(incomplete, type="file"), *map(CompletionItem, names)]


def _short(name: str) -> str:
    return name.partition("/")[2].lower()


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """GPUs of the catalogue by name, and by alias of one word where no name begins so."""
    from ..job.hardware import CATALOGUE

    typed = incomplete.lower()
    found = [gpu.name for gpu in CATALOGUE if gpu.name.lower().startswith(typed)]
    aliases = [
        alias for gpu in CATALOGUE for alias in gpu.aliases if alias.lower().startswith(typed) and " " not in alias
    ]
    return [CompletionItem(name) for name in found or aliases]


def verbs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The commands beside this one."""
    assert ctx.parent is not None
    return ctx.parent.command.shell_complete(ctx.parent, incomplete)


def words(choices: Sequence[str], *, several: bool) -> Completion:
    """The choices of a setting; of several, the last behind a comma."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        given = before.split(",")
        return [
            CompletionItem(before + comma + word) for word in choices if word.startswith(last) and word not in given
        ]

    return complete
