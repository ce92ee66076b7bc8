"""A model of the catalogue, with parameters also where its memory is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedError
from ..inputs.hf import load
from ..inputs.loaded_model import LoadedModel
from ..inputs.resolve import model_of
from ..modules.counts import count_parameters


def model_facts(name: str, read: Callable[[str], LoadedModel] = load) -> dict[str, Any]:
    """Name, source, parameters, and why its memory is refused, if it is. Raises ConfigError for an unknown model."""
    try:
        loaded = read(name)
    except UnsupportedError as error:
        return {"name": name, "source": "", "model_type": "", "num_parameters": None, "refused": str(error)}
    count = count_parameters(model_of(loaded))
    return {
        "name": loaded.name,
        "source": loaded.source,
        "model_type": loaded.model_type,
        "num_parameters": {"total": count.total, "active": count.active, "mtp": count.mtp},
        "refused": loaded.refusal or None,
    }
