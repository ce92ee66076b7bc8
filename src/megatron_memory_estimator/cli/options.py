"""Options of the verbs that take a model and a layout, made from the settings themselves.

How much of a GPU's memory a run may use: options of every command that judges, and the bytes that they leave.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import Any

import click

from ..errors import ConfigError
from ..inputs.spellings import COUNTS_OF_TOKENS, WHOLE, amount, thousands
from ..job.hardware import DEFAULT_GPU, Environment
from ..job.layout import SHORT, Layout
from ..job.model import Model
from ..job.rollout import Rollout
from ..job.settings import field_kind
from ..job.training import Training
from ..wording import dashed
from . import completion

OTHER_NAMES = {
    **{name: (f"--{short}",) for short, name in SHORT.items()},
    "world_size": ("--num-gpus",),
    "use_distributed_optimizer": ("--distributed-optimizer",),
}
"""Short names beside Megatron's long ones."""

SECTIONS: tuple[tuple[str, type[Any]], ...] = (
    ("layout", Layout),
    ("training", Training),
    ("reinforcement learning", Rollout),
    ("model (overrides of the config)", Model),
    ("environment", Environment),
)


def tokens(text: str) -> int:
    """A count of tokens: a whole number, or with k behind it, 1024 times that."""
    number = thousands(text)
    if number is not None:
        return number
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of tokens such as 8192 or 8k") from None


def many_tokens(text: str) -> float:
    """A count of tokens: a number, or with M, B or T behind it."""
    number = amount(text)
    if number is not None:
        return number
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of tokens such as 15T or 15e12") from None


def option_names(field: dataclasses.Field[Any]) -> list[str]:
    """Every spelling of a setting's option."""
    names = [*OTHER_NAMES.get(field.name, ())]
    names.append(dashed(field.name))
    if field.metadata.get("flag"):
        names.append("--" + str(field.metadata["flag"]))
    return list(dict.fromkeys(names))


def spellings(field: dataclasses.Field[Any]) -> list[str]:
    """The same, with those that turn it off."""
    names = option_names(field)
    return [*names, *(f"--no-{name[2:]}" for name in names)] if field_kind(field) == "bool" else names


def setting_option(field: dataclasses.Field[Any]) -> click.Option:
    """The option of one setting; not given, it is None."""
    kind, text = field_kind(field), str(field.metadata["help"])
    names = option_names(field)
    if kind == "bool":
        declared = [f"{name}/--no-{name[2:]}" for name in names]
        return click.Option([*declared, field.name], default=None, help=text)
    choices = field.metadata.get("choices") or ()
    types: dict[str, Any] = {
        "int": tokens if field.name in COUNTS_OF_TOKENS else click.INT,
        "float": many_tokens if field.name == WHOLE else click.FLOAT,
    }
    if field.metadata.get("words"):
        types = {}
    if choices and kind != "list":
        text += f" ({', '.join(choices)})"
    return click.Option(
        [*names, field.name],
        type=types.get(kind, click.STRING),
        default=None,
        help=text,
        metavar=kind.upper(),
        shell_complete=completion.words(choices, several=kind == "list") if choices else None,
    )


def everyday_options(words: Container[str]) -> list[click.Option]:
    """Options for everyday words that stand among the words of a command line; help names Megatron's."""
    from ..inputs.everyday import WORDS

    return [
        click.Option(
            [dashed(name), name],
            is_flag=word.alone,
            type=tokens if word.number else None,
            default=None,
            hidden=True,
            help=word.help,
        )
        for name, word in WORDS.items()
        if dashed(name) in words
    ]


def special_options() -> list[click.Option]:
    """Options that are not settings of their own."""
    return [
        click.Option(["--bf16"], is_flag=True, default=None, help="weights and activations in bf16 (the default)"),
        click.Option(["--fp16"], is_flag=True, default=None, help="weights and activations in fp16"),
        click.Option(
            ["--untie-embeddings-and-output-weights", "untie"], is_flag=True, default=None,
            help="output layer with a weight of its own",
        ),
        gpu_option(),
        click.Option(
            ["--strict"], is_flag=True, default=None,
            help="refuse to decide the number of GPUs and the split of layers that do not divide",
        ),
        click.Option(
            ["--set", "set_variables"], multiple=True, default=None, metavar="NAME=VALUE",
            help="the value of a variable of a launch script",
        ),
        click.Option(
            ["--follow"], is_flag=True, default=None,
            help="open files that a launch script sources from elsewhere than its own folder",
        ),
        click.Option(
            ["--model", "run_model"], default=None, metavar="NAME",
            help="the model, or recipe of Megatron-Bridge, of a run file that names none", shell_complete=completion.models,
        ),
        click.Option(
            ["--ignore-unknown"], is_flag=True, default=None, help="pass over unknown Megatron-LM arguments, with a warning"
        ),
        click.Option(
            ["--without-unmodelled"], is_flag=True, default=None,
            help="leave arguments of forks that are not modelled out of the figures, which are a bound then",
        ),
    ]  # fmt: skip


def gpu_option(
    default: str | None = None, text: str = "GPU that is judged, and that kernels are chosen for"
) -> click.Option:
    """--gpu."""
    return click.Option(
        ["--gpu"],
        default=default,
        metavar="NAME",
        help=f"{text} (default {DEFAULT_GPU}); `megatron-memory gpus` lists them",
        shell_complete=completion.gpus,
    )


def model_argument(
    name: str = "model", metavar: str = "MODEL", *, required: bool = True, nargs: int = -1
) -> click.Argument:
    """A model, or several."""
    return click.Argument([name], nargs=nargs, required=required, metavar=metavar, shell_complete=completion.models)


def setting_fields(without: Container[str] = ()) -> list[dataclasses.Field[Any]]:
    """The settings that have an option."""
    fields = (f for _, part in SECTIONS for f in dataclasses.fields(part))
    return [f for f in fields if not f.metadata.get("internal") and f.name not in without]


def json_option() -> click.Option:
    """--json."""
    return click.Option(["--json", "as_json"], is_flag=True, help="print one JSON document on standard output")


def format_option(what: str) -> click.Option:
    """--format, for commands that print a table of records."""
    return click.Option(
        ["--format", "form"],
        type=click.Choice(["table", "json", "csv", "markdown"]),
        default="table",
        help=f"csv and markdown have a row for each {what}",
    )


def one_format(form: str, *, as_json: bool) -> str:
    """The format that --format and --json together say."""
    if as_json and form not in ("table", "json"):
        raise ConfigError(f"--json and --format {form} exclude each other; give one")
    return "json" if as_json else form
