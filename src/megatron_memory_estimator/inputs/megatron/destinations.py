"""What each argument sets: destinations with their values, from flags, older names and parsed namespaces.

Source: Megatron-LM `megatron/training/arguments.py` (parser).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...job.settings import nearest
from .table import arguments

OLD_NAMES = {
    "num_moe_experts": "num_experts",
    "use_mcore_models": "",
    "moe_router_fusion": "",
    "use_dist_ckpt": "",
    "legacy_tokenizer": "",
    "cross_entropy_fusion_implementation": "cross_entropy_fusion_impl",
}
"""Arguments of older versions: the new destination, or nothing where they no longer do anything."""


def normalised(args: Mapping[str, Any]) -> dict[str, Any]:
    """Argument destinations with the values given; unknown arguments are refused with the nearest match."""
    found: dict[str, Any] = {}
    parsed = _destinations_only(args)
    for key, value in args.items():
        if not isinstance(key, str):
            raise ConfigError(f"the Megatron argument {key!r} must be a word")
        name = key.lstrip("-").replace("-", "_")
        name = OLD_NAMES.get(name, name)
        if not name:
            continue
        dest, meant = (name, value) if name in parsed else destination(key, name, value)
        if dest in found and found[dest] != meant:
            raise ConfigError(f"Megatron argument {key} is given twice with different values; give one")
        found[dest] = meant
    return found


def _destinations_only(args: Mapping[str, Any]) -> set[str]:
    """Names that are a flag of another destination, which is given too: then `args` is a parsed namespace."""
    by_flag, by_dest = arguments()
    other = {name: by_flag[name].dest for name in by_flag.keys() & by_dest.keys() & args.keys()}
    return {name for name, dest in other.items() if dest != name and dest in args}


def destination(key: str, name: str, value: Any) -> tuple[str, Any]:
    """What one argument sets, and to what; a flag that turns something off sets it to the opposite of its value."""
    by_flag, by_dest = arguments()
    argument = by_flag.get(name)
    if argument is None:
        if name not in by_dest:
            raise ConfigError(f'unknown Megatron argument "{key}".{nearest(name, by_flag)}')
        return name, value
    if argument.kind not in ("StoreTrue", "StoreFalse"):
        return argument.dest, value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r} must be true or false")
    return argument.dest, value if argument.kind == "StoreTrue" or argument.flag == argument.dest else not value
