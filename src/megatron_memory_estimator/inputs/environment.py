"""Environment variables that memory depends on, as settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError


def _expands(value: Any) -> bool:
    return "expandable_segments:true" in str(value).lower()


def _is_on(value: Any) -> bool:
    return str(value).lower() not in ("0", "", "false")


VARIABLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "CUBLAS_WORKSPACE_CONFIG": ("cublas_workspace_config", lambda value: value),
    "PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments", _expands),
    "PYTORCH_ALLOC_CONF": ("expandable_segments", _expands),
    "NCCL_NVLS_ENABLE": ("nccl_nvls", _is_on),
}
"""Variables that are read: the setting of `Environment` that each gives, and its value there."""


def environment_settings(given: Any) -> dict[str, Any]:
    """Environment settings, from settings or from variables by their own names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError("env must be a mapping of environment settings or variables")
    from difflib import get_close_matches

    settings: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"env: {name!r} must be the name of a variable")
        if name in VARIABLES:
            setting, read = VARIABLES[name]
            settings[setting] = read(value)
        elif name.isupper():
            near = get_close_matches(name, VARIABLES, n=1, cutoff=0.93)
            if near:
                raise ConfigError(f'env: {name} is not a variable that matters here. Did you mean "{near[0]}"?')
        else:
            settings[name] = value
    return settings
