"""Bundled facts of public models: architecture fields of their Hugging Face configs, with sources."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def entries() -> dict[str, dict[str, Any]]:
    """`{model id: {"source", "confidence", "config"}}`, sorted by id."""
    with open(os.path.join(os.path.dirname(__file__), "models.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, Any]] = json.load(file)
    return found
