"""Words as which a value that is not known is read: those that the readers compare the key with that takes the value.

A key that is a setting has the words of the setting; every key has numbers, switches, and the words that dialects tell apart. That a job
is the same with all of them is no proof for a key of which a reader knows further words: they belong into the tables that are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..setting_names import full_name, known_settings
from ..spellings import BACKENDS
from .rollout import ENGINES, GAE, PPO

KEY = re.compile(r"[-+~{\s'\"]*([A-Za-z_][\w./-]*)")
"""The key at the beginning of a word or of a line."""
NUMBERS = ("1", "2", "0.5")
SWITCHES = ("true", "false", "none")
TRAINER = "megatron"
"""The engine of a framework that trains, by its name."""
TOLD_APART = ("recompute_granularity", "params_dtype", "peft")
"""Settings that dialects have other keys for."""


def choices_of(setting: str) -> tuple[str, ...]:
    """The words that a setting, or a field that is spelled as one, may have; none where it takes any."""
    if setting == "attention_backend":
        return BACKENDS
    owner = known_settings().get(setting)
    found = owner.__dataclass_fields__[setting].metadata.get("choices") if owner else ()
    return tuple(one for one in found or () if isinstance(one, str))


def probes(keys: Iterable[str]) -> tuple[str, ...]:
    """The words for a value that stands behind these keys, each at the beginning of a word or of a line of a file."""
    names = [full_name(match[1].rpartition(".")[2]) for match in map(KEY.match, keys) if match]
    told_apart = [word for setting in TOLD_APART for word in choices_of(setting)]
    words = [word for name in names for word in choices_of(name)]
    return tuple(dict.fromkeys((*NUMBERS, *SWITCHES, *told_apart, TRAINER, *ENGINES, GAE, PPO, "auto", *words)))
