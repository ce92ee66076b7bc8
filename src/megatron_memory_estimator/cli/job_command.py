"""Verbs that take a model and every setting, and the words of a launch script behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..errors import ConfigError
from ..inputs import is_script
from .given import job_from_options
from .options import everyday_options, model_argument, setting_fields, setting_option, special_options, spellings
from .verb import LongVerb


class JobCommand(LongVerb):
    """A verb with a model and settings. An option of click is made for a setting when it is asked for: two hundred of them take
    longer than an estimate."""

    def __init__(
        self, name: str, settings: Iterable[dataclasses.Field[Any]], own: Iterable[click.Parameter] = (), **rest: Any
    ) -> None:
        super().__init__(name, **rest)
        self.own = [param for param in own if isinstance(param, click.Option)]
        self.settings = {field: frozenset(spellings(field)) for field in settings}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        words = ctx.meta.get(WORDS)
        asked = [field for field, names in self.settings.items() if words is None or not names.isdisjoint(words)]
        *own, last = super().get_params(ctx)
        there = {name for param in own for name in param.opts}
        everyday = everyday_options(words - there) if words else []
        return [*own, *map(setting_option, asked), *everyday, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = {word.partition("=")[0] for word in args if word.startswith("--")}
        if not words.isdisjoint(("--help", "--help-all")) or "-h" in args or ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        front = args[: args.index("--")] if "--" in args else args
        takes = any(param.name == "model" for param in self.params)
        script = next((word for word in front if takes and is_script(word)), "")
        ctx.ignore_unknown_options = bool(script)  # they may be words of the script
        ctx.meta[WORDS] = words
        ctx.meta[GIVEN] = list(args)
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        try:
            rest = super().parse_args(ctx, list(args))
        finally:
            del ctx.meta[WORDS]
        if script:
            separate_words(ctx, script, max(len(args) - len(front) - 1, 0))
        for option in options:
            value = ctx.params.get(option.name or "")
            if isinstance(value, str) and value.startswith("-") and self.takes(ctx, value):
                raise ConfigError(f"{option.opts[0]} takes a value, but the option {value} follows it")
        return rest

    def takes(self, ctx: click.Context, word: str) -> bool:
        """Whether a word is an option of this verb."""
        return any(word in (*param.opts, *param.secondary_opts) for param in self.get_params(ctx))


WORDS = f"{__name__}.words"
"""Where a context has the options among the words that are being parsed."""
GIVEN = f"{__name__}.given"
"""Where it has all words behind the verb."""


def same_run() -> list[str]:
    """The words of the current command without the options of its verb alone: what says the run to another verb.

    Empty where standard input was read.
    """
    ctx = click.get_current_context()
    assert isinstance(ctx.command, JobCommand)
    flags = {name for option in ctx.command.own if option.is_flag for name in option.opts}
    valued = {name for option in ctx.command.own if not option.is_flag for name in option.opts}
    found: list[str] = []
    words = iter(ctx.meta[GIVEN])
    for word in words:
        if word == "--":
            return [*found, word, *words]
        if word in valued:
            next(words, None)
        elif word not in flags and word.partition("=")[0] not in valued:
            found.append(word)
    return [] if "-" in found else found


def separate_words(ctx: click.Context, script: str, behind: int) -> None:
    """Tell the words of a script from Megatron-LM's arguments, the last `behind` ones. Raises NoSuchOption where no script is first."""
    model = ctx.params.get("model")
    if not isinstance(model, tuple):
        return
    last = len(model) - behind
    if model[:1] == (script,):
        if last > 1:
            ctx.params.update(model=(script, *model[last:]), words=model[1:last])
        return
    unknown = next((word for word in model[:last] if word.startswith("-") and word != "-"), None)
    if unknown is not None:
        raise click.NoSuchOption(unknown, ctx=ctx)


def job_command(name: str, text: str, extra: list[click.Parameter], run: Callable[..., None]) -> click.Command:
    """A verb whose callback gets the job and the verb's own options."""
    own = [param.name for param in extra]

    def callback(**values: Any) -> None:
        chosen = {key: values.pop(key) for key in own if key is not None}
        run(job_from_options(values), **chosen)

    params = [model_argument(), *extra, *special_options()]
    return JobCommand(name, setting_fields(), extra, params=params, callback=callback, help=text)
