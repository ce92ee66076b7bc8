"""What the readers of Hugging Face configs hand on: a model in our names, before any layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dataclass import dataclass
from ..job.tower import Tower

LONGEST_NAME = 300
"""Characters of a name or a source that are kept."""


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a config: its settings in our names, where it comes from, what cannot be estimated."""

    config: Mapping[str, Any]
    name: str
    source: str
    model_type: str
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    foreign: tuple[tuple[str, int], ...] = ()
    towers: tuple[Tower, ...] = ()
    provider: str = ""
    outer_type: str = ""

    @property
    def family(self) -> str:
        """The `model_type` by which a framework knows the whole model: that of the config around a language model, where there is one."""
        return self.outer_type or self.model_type
