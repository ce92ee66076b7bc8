"""Bundled facts of public models: architecture fields of their Hugging Face configs, with sources."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def entries() -> dict[str, dict[str, Any]]:
    """`{model id: {"source", "confidence", "config"}}`, sorted by id."""
    text = files(__package__).joinpath("models.json").read_text("utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found
