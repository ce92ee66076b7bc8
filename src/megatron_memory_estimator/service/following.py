"""Settings of an answer as what to change in the request that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..inputs.setting_names import full_name
from .request import Request

NUM_GPUS, WORLD = "num_gpus", "world_size"


def following(request: Request, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` to merge over those of the request, by full names, null for what it says of the same in other words; and `num_gpus`,
    the argument of that name, null where it stays."""
    named = {full_name(word): value for word, value in settings.items()}
    given = request.get("settings") or {}
    gpus = named.pop(WORLD, None)
    names = {*named, *([WORLD] if gpus is not None else [])}
    return {"settings": {**{word: None for word in given if full_name(word) in names}, **named}, NUM_GPUS: gpus}
