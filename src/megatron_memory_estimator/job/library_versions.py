"""Which library versions a run may have where nothing gives them."""

from __future__ import annotations

from typing import NamedTuple

from .choices import INSTALLED, version

Version = tuple[int, int]
TE, CORE = "transformer_engine_version", "megatron_core_version"
LIBRARIES = {TE: "TransformerEngine", CORE: "Megatron-Core"}
"""Settings of versions, and the library of each."""


class OpenVersion(NamedTuple):
    """A version that nothing gives: the setting, the lowest one that the run may have, and the highest, which is taken."""

    setting: str
    low: Version
    high: Version


OLDEST = {TE: (2, 0), CORE: (0, 13)}
"""The oldest versions that a run is thought to have where nothing says otherwise: those of a year and a half before the newest."""


def before(since: Version) -> Version:
    """The last version before one."""
    major, minor = since
    return (major, minor - 1) if minor else (major - 1, 99)


def any_version(setting: str) -> OpenVersion:
    """A version of which nothing is known."""
    return OpenVersion(setting, OLDEST[setting], version(setting, INSTALLED[setting]))


def text_of(found: Version) -> str:
    """A version in words."""
    return f"{found[0]}.{found[1]}"
