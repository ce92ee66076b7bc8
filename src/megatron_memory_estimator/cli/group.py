"""The group of verbs; a verb's file is imported when it is used.

What is said of an option that a command has not: why, or which are near.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from .. import __version__
from ..wording import all_of, any_of
from .examples import START
from .verb import PROGRAM, write_examples

VERBS = {
    "estimate": "what every pipeline stage holds and when it peaks",
    "check": "whether a run may start: an exit code and one line",
    "plan": "the best legal layouts that fit, with launch arguments",
    "advise": "what makes a run fit, or faster",
    "explain": "the named tensors behind a stage's peak or resting memory",
    "timeline": "the memory of a stage along one training step",
    "compare": "several models, files and layouts side by side",
    "models": "the bundled models, or the parameters of one model",
    "validate": "measured runs beside their estimates",
    "record": "a measured run as lines for others, from its log or snapshot",
    "why": "which quantity a measured figure is, and what would make it so",
    "snapshot": "what a memory snapshot of torch says: who made what was alive",
    "serve": "the page in a browser, and its API, on this machine",
    "site": "the page as a folder for any file host, the library inside",
    "mcp": "estimate, plan, advise and the others as an MCP server",
    "gpus": "the GPUs that estimates are judged against",
    "help": "what a command does, on one screen",
}


class ReaderGone(Exception):  # noqa: N818
    """The reader of standard output stopped reading, which is no error; click would exit with 1."""


class Verbs(click.Group):
    """Lists every verb, loads one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f".{cmd_name}", __package__)
        found: click.Command = module.command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else f" The commands are {', '.join(VERBS)}."
            raise click.UsageError(f'No such command "{args[0]}".{hint}')
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:  # --help and --version print before anything is invoked
            raise ReaderGone from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))
        write_examples(START, formatter, "Where to start")
        formatter.write_paragraph()
        formatter.write(f"{PROGRAM} COMMAND --help has examples, COMMAND --help-all every option.\n")


command = Verbs(
    name=PROGRAM,
    help="GPU memory of Megatron training runs, for every pipeline stage, traceable to named tensors.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
click.version_option(__version__, "--version", prog_name=PROGRAM)(command)


MOST = 4
"""Options that are offered instead."""


MEANT = {
    **dict.fromkeys(("gpus", "num_gpu", "n_gpus", "world_size"), "--num-gpus N"),
    **dict.fromkeys(("nodes", "nnodes", "num_nodes"), "--num-gpus N, the GPUs of all nodes"),
    "batch_size": "--micro-batch-size N, the sequences of a microbatch, or --global-batch-size N, those of a step",
}
"""What is meant by options that other tools have."""


def missing_model(verb: str) -> str:
    """One sentence for a command line whose model stands behind --model alone."""
    return f"the model is the first word: {PROGRAM} {verb} MODEL --num-gpus N; --model is for a launch script that does not name its model"


def explanation(option: str) -> str:
    """One sentence for an option that Megatron-LM or another tool knows, or nothing."""
    from ..inputs.megatron.classes import no_setting

    name = option.lstrip("-").replace("-", "_")
    if name in MEANT:
        return f'No such option "{option}". Use {MEANT[name]}'
    return no_setting(name, option)


def elsewhere(option: str, ctx: click.Context) -> str:
    """One sentence for an option of other commands, or nothing."""
    own = ctx.info_name
    verbs = [verb for verb in VERBS if verb != own and option in spelled(command.get_command(ctx, verb), ctx)]
    if not verbs:
        return ""
    named = all_of(verbs if len(verbs) < MOST else (*verbs[: MOST - 1], "others"))
    return f'No such option "{option}" of {own}; {named} {"has" if len(verbs) == 1 else "have"} it'


def spelled(verb: click.Command | None, ctx: click.Context) -> list[str]:
    """Every spelling of a command's options."""
    params = verb.get_params(ctx) if verb else ()
    return [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]


def unknown(option: str, known: Iterable[str]) -> str:
    """One sentence for an option that a command has not, with those that it may stand for."""
    names = list(known)
    longer = [name for name in names if name.startswith(option)]
    shorter = sorted(
        (name for name in names if len(name) > len("--") and option.startswith(name)), key=len, reverse=True
    )
    near = list(dict.fromkeys([*longer, *shorter])) or _alike(option, names)
    return f'No such option "{option}".' + (f" Did you mean {any_of(near[:MOST])}?" if near else "")


def _alike(option: str, names: list[str]) -> list[str]:
    """Names that are written alike, the nearest first."""
    from difflib import get_close_matches

    return get_close_matches(option, names, n=MOST)
