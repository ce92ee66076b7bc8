"""The libraries of a container image, by its name.

Images of NVIDIA are tagged by year and month. `ANCHORS` has the versions that are known; a tag between two of them has something between
theirs, because newer images never have older libraries. Names that spell versions out (`mcore0.13.0-te2.2`) are taken at their word.

Only versions that a public record says are here: MooreThreads/SimuMax `docs/b200/b200_real_repro_guide.md` (pytorch 26.01: 2.11); PyPI
megatron-core 0.15.0 (TransformerEngine >=2.9,<2.10) and megatron-bridge 0.3.0 with megatron-core 0.16.0 (2.10 to 2.11). Which release of
megatron-core an image of NeMo came with follows from the days of PyPI's releases of megatron-core and megatron-bridge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..job.choices import INSTALLED, version
from ..job.hardware import CORE, LIBRARIES, TE, OpenVersion, Version, text_of

Tag = tuple[int, int]
Bounds = tuple[Version, Version]

PYTORCH: dict[Tag, Bounds] = {(26, 1): ((2, 11), (2, 11))}
"""TransformerEngine of nvcr.io/nvidia/pytorch."""
NEMO: dict[Tag, Bounds] = {(25, 11): ((2, 9), (2, 9)), (26, 2): ((2, 10), (2, 11))}
"""TransformerEngine of nvcr.io/nvidia/nemo."""
NEMO_CORE: dict[Tag, Bounds] = {
    tag: (found, found)
    for tag, found in {(25, 11): (0, 15), (26, 2): (0, 16), (26, 4): (0, 17), (26, 6): (0, 18)}.items()
}
"""Megatron-Core of nvcr.io/nvidia/nemo."""
ANCHORS: dict[str, dict[str, dict[Tag, Bounds]]] = {
    "pytorch": {TE: PYTORCH},
    "nemo": {TE: NEMO, CORE: NEMO_CORE},
}
ANY: Version = (0, 0)
"""Older than every version that is known."""
IMAGE = re.compile(r"(?:^|[/#=+_-])(pytorch|nemo)[:+_-](\d\d)\.(\d\d)(?!\d)")
"""A registry's name of an image, or the file that enroot or a user made of it (`nvidia+nemo+25.09.sqsh`)."""
OPTION = "--container-image"
SPELT = {TE: re.compile(r"(?<![a-z])te[-_]?v?(\d+\.\d+)"), CORE: re.compile(r"(?<![a-z])mcore[-_]?v?(\d+\.\d+)")}
"""Versions that a name spells out."""


class Contained(NamedTuple):
    """Versions by the setting that each is, what they may be besides, and the sentence that says so."""

    versions: dict[str, str]
    open: tuple[OpenVersion, ...]
    said: str


def image_in(words: Sequence[str]) -> str:
    """The image among the words of a launch whose name says something of its libraries, or nothing: behind `--container-image`, or a word
    of `docker run`."""
    found = ""
    for at, word in enumerate(words):
        named = (
            word.removeprefix(f"{OPTION}=")
            if word.startswith(f"{OPTION}=")
            else words[at + 1]
            if word == OPTION and at + 1 < len(words)
            else ""
        )
        if named and contained(named).versions:
            found = named
        elif not named and not word.startswith("-") and IMAGE.search(word.lower()) is not None:
            found = found or word
    return found


def contained(image: str) -> Contained:
    """What an image has; without a word of libraries that its name says nothing about."""
    bounds = {**_tagged(image.lower()), **_spelt(image.lower())}
    versions = {setting: text_of(high) for setting, (_, high) in bounds.items()}
    left = tuple(OpenVersion(setting, low, high) for setting, (low, high) in bounds.items() if low != high)
    if not bounds:
        return Contained({}, (), f"container {image}: its name says no library version that is known")
    named = ", ".join(_words(setting, *found) for setting, found in bounds.items())
    silent = [LIBRARIES[setting] for setting in LIBRARIES if setting not in bounds]
    rest = f"; it says nothing of {silent[0]}" if silent else ""
    return Contained(versions, left, f"container {image}: {named}{rest}")


def _words(setting: str, low: Version, high: Version) -> str:
    taken = f"{LIBRARIES[setting]} {text_of(high)}"
    if low == high:
        return taken
    return f"{taken} or older" if low == ANY else f"{taken} (it may have {text_of(low)} to {text_of(high)})"


def _spelt(image: str) -> dict[str, Bounds]:
    found = {setting: pattern.search(image) for setting, pattern in SPELT.items()}
    given = {setting: version(setting, match.group(1)) for setting, match in found.items() if match is not None}
    return {setting: (one, one) for setting, one in given.items()}


def _tagged(image: str) -> dict[str, Bounds]:
    match = IMAGE.search(image)
    if match is None:
        return {}
    name, tag = match.group(1), (int(match.group(2)), int(match.group(3)))
    found = {setting: _between(setting, anchors, tag) for setting, anchors in ANCHORS[name].items()}
    if name == "nemo":  # built from releases that exist by then, as PyTorch's image of the month
        low, high = found[TE]
        newest = _between(TE, PYTORCH, tag)[1]
        found[TE] = (min(low, newest), min(high, newest))
    return found


def _between(setting: str, anchors: Mapping[Tag, Bounds], tag: Tag) -> Bounds:
    """The lowest and the highest version of a tag, by the anchors around it."""
    older = [bounds[0] for at, bounds in anchors.items() if at <= tag]
    if not older:  # older than all that is known
        return ANY, min(anchors.values())[1]
    newer = [bounds[1] for at, bounds in anchors.items() if at >= tag]
    newest = version(setting, INSTALLED[setting])
    return max(older), min(newer, default=newest)
