"""What each argument sets: destinations with their values, from flags, older names and parsed namespaces.

Source: Megatron-LM `megatron/training/arguments.py` (parser).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import plain, shown
from .forks import Others, fork_arguments
from .table import arguments
from .words import Parsed

OLD_NAMES = {
    "num_moe_experts": "num_experts",
    "use_mcore_models": "",
    "use_dist_ckpt": "",
    "cross_entropy_fusion_implementation": "cross_entropy_fusion_impl",
}
"""Arguments of older versions: the new destination, or nothing where they no longer do anything."""


def normalised(args: Mapping[str, Any], *, ignore_unknown: bool = False) -> Parsed:
    """Argument destinations with the values given. Raises ConfigError for a key that is no word, or given twice."""
    found = Parsed(others=Others(ignore_unknown))
    parsed = _destinations_only(args)
    for key, value in args.items():
        if not isinstance(key, str):
            raise ConfigError(f"the Megatron argument {shown(key)} must be a word")
        name = key.lstrip("-").replace("-", "_")
        name = OLD_NAMES.get(name, name)
        if not name:
            continue
        if name not in arguments()[0] and name not in arguments()[1]:
            _other(found, key, name, value)
            continue
        dest, meant = (name, value) if name in parsed else destination(key, name, value)
        if dest in found.values and found.values[dest] != meant:
            raise ConfigError(f"Megatron argument {key} is given twice with different values; give one")
        found.values[dest] = meant
    return found


def _other(found: Parsed, key: str, name: str, value: Any) -> None:
    """An argument that Megatron-LM does not have, unless it is off."""
    if value in (None, False) and name in fork_arguments():
        return
    values = value if isinstance(value, list | tuple) else [] if value is True else [value]
    found.others.take(key, tuple(plain(str(one)) for one in values))


def _destinations_only(args: Mapping[str, Any]) -> set[str]:
    """Names that are a flag of another destination, which is given too: then `args` is a parsed namespace."""
    by_flag, by_dest = arguments()
    other = {name: by_flag[name].dest for name in by_flag.keys() & by_dest.keys() & args.keys()}
    return {name for name, dest in other.items() if dest != name and dest in args}


def destination(key: str, name: str, value: Any) -> tuple[str, Any]:
    """What one argument sets, and to what; a flag that turns something off sets it to the opposite of its value."""
    by_flag, _ = arguments()
    argument = by_flag.get(name)
    if argument is None:
        return name, value
    if argument.kind not in ("StoreTrue", "StoreFalse"):
        return argument.dest, value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r} must be true or false")
    return argument.dest, value if argument.kind == "StoreTrue" or argument.flag == argument.dest else not value
