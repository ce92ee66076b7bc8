"""The bundled models, those with a word in their names, or one model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...errors import ConfigError, EstimatorError
from ...inputs.catalog import entries
from ...inputs.loaded_model import LoadedModel
from ...wording import shown
from ..jobs import refuse_standard_input
from ..request import Request


@cache
def _every(by_name: Callable[[str], LoadedModel]) -> Any:
    """The facts of all bundled models, which never change."""
    from ...report.catalogue import model_facts

    return [model_facts(name, by_name) for name in entries()]


def answer(request: Request) -> Any:
    """The facts of models, or short rows of them."""
    from ...report.catalogue import matching, model_facts
    from ...report.summary import MOST_MODELS, models_summary

    word, files = request.get("model"), request.files
    if word is not None:
        refuse_standard_input(word)
        if files.path(word) is not None:
            try:
                return model_facts(word, files.named)
            except EstimatorError:
                raise ConfigError(
                    f"{shown(word)} cannot be read as a model; pass its content to estimate as text"
                ) from None
    names = list(entries()) if word is None else matching(word)
    if not names:
        return model_facts(str(word), files.by_name)
    if request.full and word is None:
        return _every(files.by_name)
    if request.full:
        return [model_facts(name, files.by_name) for name in names]
    return models_summary([model_facts(name, files.by_name) for name in names[:MOST_MODELS]], len(names[MOST_MODELS:]))
