"""What is said of an option that a command has not: why, or which are near."""

from __future__ import annotations

from collections.abc import Iterable

from ..wording import any_of

MOST = 4
"""Options that are offered instead."""


def explanation(option: str) -> str:
    """One sentence for an option that Megatron-LM knows, or nothing."""
    from ..inputs.megatron.table import arguments
    from ..inputs.transformer_config import IRRELEVANT, UNSUPPORTED

    name = option.lstrip("-").replace("-", "_")
    by_flag, by_dest = arguments()
    argument = by_flag.get(name) or by_dest.get(name)
    dest = argument.dest if argument else name
    if name in UNSUPPORTED or dest in UNSUPPORTED:
        return f"{option} is not modelled"
    if name in IRRELEVANT or (argument is not None and argument.category == "irrelevant"):
        return f"{option} does not change memory; leave it out"
    if argument is not None:
        return f"{option} is an argument of Megatron-LM that this command does not take"
    return ""


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
