"""A verb of the command line: its help is one screen with examples, `--help-all` lists every option by topic.

Options that most people use, and those that the help of a command leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.formatting import join_options

from ..inputs.topics import TOPICS, topic
from ..wording import any_of
from .examples import EXAMPLES

PROGRAM = "megatron-memory"


def write_examples(commands: Iterable[str], formatter: click.HelpFormatter, title: str = "Examples") -> None:
    """A section of commands, each on a line of its own, whole."""
    with formatter.section(title):
        for words in commands:
            formatter.write(f"{'':{formatter.current_indent}}{PROGRAM} {words}\n")


class Verb(click.Command):
    """A verb with few options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.name in EXAMPLES:
            write_examples(EXAMPLES[self.name], formatter)
        super().format_options(ctx, formatter)


class LongVerb(Verb):
    """A verb with more options than fit a screen."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.name in EXAMPLES:
            write_examples(EXAMPLES[self.name], formatter)
        with formatter.section("Options"):
            formatter.write_dl([short_record(option, ctx) for option in self.often(ctx)])
        formatter.write_paragraph()
        formatter.write(f"{PROGRAM} {self.name} --help-all lists all {len(self.options(ctx))} options by topic.\n")

    def help_all(self, ctx: click.Context) -> str:
        """The help with every option by topic, those of the command itself first."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        if self.name in EXAMPLES:
            write_examples(EXAMPLES[self.name], formatter)
        for title in (None, *TOPICS):
            records = [option.get_help_record(ctx) for option in self.options(ctx) if topic(option.name or "") == title]
            if shown := [record for record in records if record is not None]:
                with formatter.section(title[0].upper() + title[1:] if title else f"Options of {self.name}"):
                    formatter.write_dl(shown)
        return formatter.getvalue().rstrip("\n")

    def options(self, ctx: click.Context) -> list[click.Option]:
        """Every option."""
        return [param for param in self.get_params(ctx) if isinstance(param, click.Option)]

    def often(self, ctx: click.Context) -> list[click.Option]:
        """The options that most people use: those of a model and a layout, then the command's own."""
        options = {option.name or "": option for option in self.options(ctx)}
        own = [name for name, option in options.items() if topic(name) is None and option.expose_value]
        rare = RARE.get(self.name or "", ())
        return [options[name] for name in (*OFTEN, *own) if name in options and name not in rare]


def short_record(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """An option by its first spelling, and what it does in few words; `--help-all` has all spellings."""
    record = option.get_help_record(ctx)
    assert record is not None and option.help is not None
    if isinstance(option.type, click.Choice):
        default = f" (default {option.default})" if option.default else ""
        return f"{option.opts[0]} WORD", any_of(option.type.choices) + default
    spellings, _ = join_options(option.opts)
    value = "" if option.is_flag else record[0].removeprefix(spellings).replace("INTEGER RANGE", "INT")
    return option.opts[0] + value, OFTEN.get(option.name or "", option.help)


def show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the help with every option, and end."""
    if value and not ctx.resilient_parsing:
        assert isinstance(ctx.command, LongVerb)
        click.echo(ctx.command.help_all(ctx), color=ctx.color)
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_all,
    help="Show every option, by topic.",
)


OFTEN = {
    "world_size": "GPUs of the run",
    "gpu": "GPU that is judged (default H100-80GB)",
    "tensor_model_parallel_size": "tensor parallel size",
    "pipeline_model_parallel_size": "pipeline parallel size",
    "virtual_pipeline_model_parallel_size": "model chunks of a pipeline rank",
    "context_parallel_size": "context parallel size",
    "expert_model_parallel_size": "expert parallel size",
    "expert_tensor_parallel_size": "expert tensor parallel size",
    "seq_length": "tokens of a sequence, such as 8192 or 8k",
    "micro_batch_size": "sequences of a microbatch",
    "global_batch_size": "sequences of a step",
    "recompute_granularity": "full, or selective with --recompute-modules",
    "recompute_modules": "such as core_attn,mlp",
    "fp8": "hybrid or e4m3; --fp8-recipe says which recipe",
    "optimizer_cpu_offload": "optimizer state in host memory",
    "phases": "phases to judge; training: its steps, without loading a checkpoint",
    "door": "who builds a model by name: bridge, verl, ...",
    "set_variables": "the value of a variable of a launch script",
}
"""Options of a model and a layout that most people use, and what `--help` says of them."""

RARE = {
    "plan": (
        "recompute_granularity", "recompute_modules", "fp8", "optimizer_cpu_offload", "calibrate", "tight", "complete", "split",
    ),
    "advise": ("calibrate",),
    "estimate": ("formulas", "optimizer_cpu_offload", "recompute_modules", "expert_tensor_parallel_size"),
}  # fmt: skip
"""Options that `--help` of a command leaves to `--help-all`."""
