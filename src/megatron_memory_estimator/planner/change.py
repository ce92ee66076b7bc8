"""One change of a run, as advice proposes it."""

from __future__ import annotations

from typing import Any, Literal

from ..dataclass import dataclass

Settings = dict[str, Any]
Asks = Literal["numerics", "GPUs", "host memory"]
"""What a change asks for beside time."""


@dataclass(frozen=True)
class Change:
    """One change of a run in words, and the settings of the layout, the training and the environment that it sets."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    note: str = ""
    asks: Asks | None = None

    def values(self) -> Settings:
        """The settings as a mapping."""
        return dict(self.settings)


def change(name: str, note: str = "", asks: Asks | None = None, **settings: Any) -> Change:
    """A change with its settings."""
    return Change(name, tuple(settings.items()), note, asks)
