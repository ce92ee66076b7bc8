"""Keys that name other files of settings. One of them is never passed over, in no framework: what the other file says would be missing,
and the answer would be that of another run.

Source: the loaders of the frameworks (Primus `core/config/yaml_loader.py`, hydra's defaults list, NeMo-RL `utils/config.py`, mmengine's
`_base_`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from ..wording import says_nothing, shown

NAMES = re.compile(
    r"extends?|_?bases?_?|base_configs?|includes?|defaults|inherits?(_from)?|parents?|presets?|config_names?|additional_configs?|extra_configs?"
)
"""Keys that name files whatever their value looks like."""
MAY_NAME = re.compile(r"base|extend|includ|inherit|default|parent|preset|config")
OTHERWISE = re.compile(
    r"data|token|log|wandb|deepspeed|profil|infer|reward|tool|eval|template|agent|interaction|cuda|tp_comm|quant"
)
"""In names of keys: the file is of something else than the training's settings, or has a rule of its own."""
ENDINGS = (".yaml", ".yml", ".json", ".conf", ".toml")


def names_files(key: str, value: Any) -> bool:
    """Whether a key of a run names other files of settings."""
    last = key.rpartition(".")[2].lower()
    if says_nothing(value):
        return False
    values = value if isinstance(value, list) else [value]
    files = any(isinstance(one, str) and one.strip().lower().endswith(ENDINGS) for one in values)
    may = files and MAY_NAME.search(last) is not None and OTHERWISE.search(key.lower()) is None
    return may or NAMES.fullmatch(last) is not None


def not_followed(key: str, value: Any) -> str:
    """What is said of such a key where nothing reads the files."""
    named = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return (
        f"{key} names {shown(named)}, which is not read here: what it says would be missing; put its keys into the file"
    )


def follow_all(document: Mapping[Any, Any], path: str, read: Iterable[str] = ()) -> None:
    """Raises ConfigError for the first key of a document that names other files, but for those that the caller reads."""
    known = frozenset(read)
    for key, value in document.items():
        if str(key) not in known and names_files(str(key), value):
            raise ConfigError(f"{path}: {not_followed(str(key), value)}")
