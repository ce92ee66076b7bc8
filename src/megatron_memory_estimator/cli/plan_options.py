"""The options of `megatron-memory plan`: axes, the search itself, and every setting that is no axis."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from ..inputs.searched import AXES, FIXED
from .memory_limit import limit_options
from .options import SECTIONS, format_option, json_option, option_names, setting_fields

TOP = 5
FORMS = ["megatron-lm", "yaml", "bridge", "none"]


def axis_options() -> list[click.Option]:
    """The options of the axes."""
    found = []
    fields = {f.name: f for _, part in SECTIONS for f in dataclasses.fields(part)}
    for name in AXES:
        field = fields[name]
        found.append(
            click.Option([*option_names(field), name], default=None, metavar="VALUES", help=field.metadata["help"])
        )
    return [
        *found,
        click.Option(
            ["--split"], metavar="VALUES", help="layers over stages: even, uneven (first and last), layout (generated)"
        ),
        click.Option(["--recompute"], metavar="VALUES", help="none, full, block:N, uniform:N, core_attn+mlp"),
        click.Option(["--precision"], metavar="VALUES", help="bf16, or a recipe: delayed, mxfp8, nvfp4, ..."),
        click.Option(["--complete"], is_flag=True, help="search every axis whole, precisions and optimizers too"),
    ]


def plan_options() -> list[click.Option]:
    """The options of the search itself."""
    return [
        click.Option(
            ["--objective"], default="throughput", metavar="NAME", help="throughput (default), memory, or head-room"
        ),
        click.Option(["--top"], type=click.IntRange(1, 1000), default=TOP, help=f"ideas to show (default {TOP})"),
        click.Option(
            ["--every"], is_flag=True, help="every plan of its own, also where it differs from another in details"
        ),
        *limit_options(),
        click.Option(["--tight"], is_flag=True, help="also take layouts that fit unless memory is fragmented"),
        click.Option(["--min-num-gpus"], is_flag=True, help="the smallest number of GPUs that holds it"),
        click.Option(
            ["--show"],
            type=click.IntRange(1),
            default=1,
            metavar="N",
            help="launch arguments of plan N (default 1)",
        ),
        click.Option(["--launch"], type=click.Choice(FORMS), default=FORMS[0], help=f"their form (default {FORMS[0]})"),
        click.Option(
            ["--calibrate"],
            metavar="FILE",
            help="measured steps, one JSON object per line, that the efficiencies are fitted to",
        ),
        json_option(),
        format_option("plan"),
        click.Option(["--verbose", "-v"], is_flag=True, help="name every rule that ruled layouts out"),
    ]


def other_settings() -> list[dataclasses.Field[Any]]:
    """Every setting that is not an axis."""
    return setting_fields(without=(*AXES, *FIXED))
