"""Options of the verbs that take a model and a layout, made from the settings themselves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import click

from ..errors import ConfigError
from ..inputs import SCRIPTS, YAML
from ..job.hardware import Environment
from ..job.layout import SHORT, Layout
from ..job.model import Model
from ..job.rollout import Rollout
from ..job.settings import field_kind
from ..job.training import Training
from ..job.training_job import DEFAULT_GPU, TrainingJob
from ..wording import dashed, shown, signed, whole
from . import completion
from .verb import LongVerb

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
COUNTS_OF_TOKENS = ("seq_length", "max_position_embeddings", "original_max_position_embeddings")
NUMBER_OR_EXPRESSION = {"moe_layer_freq", "linear_attention_freq"}


def tokens(text: str) -> int:
    """A count of tokens: a whole number, or with k behind it, 1024 times that."""
    thousands = whole(text[:-1]) if text[-1:] in ("k", "K") else None
    return int(click.INT(text)) if thousands is None else 1024 * thousands


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
    types: dict[str, Any] = {"int": tokens if field.name in COUNTS_OF_TOKENS else click.INT, "float": click.FLOAT}
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


class JobCommand(LongVerb):
    """A verb with a model and settings. An option of click is made for a setting when it is asked for: two hundred of them take
    longer than an estimate."""

    def __init__(self, name: str, settings: Iterable[dataclasses.Field[Any]], **rest: Any) -> None:
        super().__init__(name, **rest)
        self.settings = {field: frozenset(spellings(field)) for field in settings}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        words = ctx.meta.get(WORDS)
        asked = [field for field, names in self.settings.items() if words is None or not names.isdisjoint(words)]
        *own, last = super().get_params(ctx)
        return [*own, *map(setting_option, asked), last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = {word.partition("=")[0] for word in args if word.startswith("--")}
        if not words.isdisjoint(("--help", "--help-all")) or "-h" in args or ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        front = args[: args.index("--")] if "--" in args else args
        takes = any(param.name == "model" for param in self.params)
        script = next((word for word in front if takes and word.lower().endswith(SCRIPTS)), "")
        ctx.ignore_unknown_options = bool(script)  # they may be words of the script
        ctx.meta[WORDS] = words
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
    return JobCommand(name, setting_fields(), params=params, callback=callback, help=text)


def job_from_options(values: dict[str, Any]) -> TrainingJob:
    """The job of a command line."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    model = given.pop("model")
    if given.pop("untie", False):
        if given.get("share_embeddings_and_output_weights"):
            raise ConfigError(
                "--untie-embeddings-and-output-weights and --share-embeddings-and-output-weights exclude each other"
            )
        given["share_embeddings_and_output_weights"] = False
    parts = {f.name: f for _, part in SECTIONS for f in dataclasses.fields(part)}
    for name in list(given):
        if name in parts and isinstance(given[name], str):
            given[name] = parsed(parts[name], given[name])
    num_gpus = given.pop("world_size", None)
    if isinstance(model, Mapping):
        return TrainingJob.from_hf(model, num_gpus=num_gpus, **given)
    words = [model] if isinstance(model, str) else list(model)
    if "set_variables" in given:
        given["set_variables"] = variables(given["set_variables"])
    if words[0].startswith("--"):
        return TrainingJob.from_megatron_args(words, num_gpus, **given)
    if words[0].lower().endswith((*YAML, *SCRIPTS)):
        from ..inputs.runs.files import job_from_file

        return job_from_file(words[0], num_gpus, given, words[1:])
    if words[0].endswith("_config") and not os.path.exists(words[0]):
        return job_of_recipe(words, num_gpus, given)
    if len(words) > 1:
        raise ConfigError(f"one model at a time: {shown(words[1])} follows {shown(words[0])}; compare takes several")
    for name, option in (
        ("set_variables", "--set"),
        ("follow", "--follow"),
        ("ignore_unknown", "--ignore-unknown"),
        ("run_model", "--model"),
    ):
        if given.pop(name, None):
            raise ConfigError(f"{option} goes with a launch script or another run file, not with a model")
    return TrainingJob.from_hf(words[0], num_gpus=num_gpus, **given)


def job_of_recipe(words: Sequence[str], num_gpus: int | None, given: dict[str, Any]) -> TrainingJob:
    """The job of a recipe of Megatron-Bridge by its name, with words of run_recipe.py behind it."""
    from ..inputs.dialects.bridge import DIALECT, run_of_recipe
    from ..inputs.dialects.job import job_of

    for name in ("set_variables", "follow", "ignore_unknown"):
        given.pop(name, None)
    return job_of(DIALECT, run_of_recipe(words, given.pop("run_model", "")), num_gpus, given)


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not (name.isidentifier() or whole(name)):
            raise ConfigError(f"--set {shown(pair)} must be NAME=VALUE, or 1=VALUE for the first positional parameter")
        found[name] = value
    return found


def parsed(field: dataclasses.Field[Any], text: str) -> Any:
    """A word of the command line in the setting's type; `none` stands for null."""
    kind = field_kind(field)
    if text.lower() in ("none", "null") and "None" in str(field.type):
        return None
    if kind == "variants":
        return _object(field.name, text)
    if kind in ("list", "words"):
        return tuple(word for word in text.replace(",", " ").split() if word)
    if kind == "ints":
        words = text.strip("[]() ").replace(",", " ").split()
        if not words or not all(whole(word) is not None for word in words):
            raise ConfigError(f"{field.name}={shown(text)} must be whole numbers such as 2,4")
        return tuple(int(word) for word in words)
    if field.metadata.get("words") and text not in field.metadata["words"]:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"{field.name}={shown(text)} must be a number, or one of {', '.join(field.metadata['words'])}"
            ) from None
    if field.name in NUMBER_OR_EXPRESSION and (number := signed(text.strip())) is not None:
        return number
    return text


def _object(name: str, text: str) -> Any:
    """A JSON object of the command line."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f"{name}={shown(text)} must be a JSON object") from None


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
