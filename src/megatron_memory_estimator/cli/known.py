"""Options that Megatron-LM has and this command has not: why."""

from __future__ import annotations


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
