"""What differs between estimates: the settings, the parts of the fullest stages, and the named tensors of their peaks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..estimator import Estimate
from ..rank.rank import PARTS
from .document import config_section, layout_section, settings_of, training_section

MOST_TENSORS = 100
"""Tensors of a document; the bytes of all others stand beside them."""
WHERE = re.compile(r" ?chunk \d+[. ]?|(?<=layers\.)\d+(?:-\d+)?\.")
"""Of a tensor's name the chunk and the layers that it is in, which a layout moves."""
Cases = Sequence[Estimate | None]
"""Estimates side by side, None for one that is refused."""


def differences(cases: Cases) -> dict[str, Any]:
    """`settings` whose values differ, `parts` and `tensors` at the peaks of the fullest stages: a value for each case, null where it is
    refused."""
    return {"settings": _settings(cases), "parts": _parts(cases), **_tensors(cases)}


def _each(cases: Cases, value: Callable[[Estimate], Any]) -> list[Any]:
    return [None if one is None else value(one) for one in cases]


def _settings(cases: Cases) -> list[dict[str, Any]]:
    """Settings by name, as they are resolved, with a value for each case."""
    found = _each(cases, _all_settings)
    answered = [one for one in found if one is not None]
    names = dict.fromkeys(name for one in answered for name in one)
    return [
        {"name": name, "values": [None if one is None else one.get(name) for one in found]}
        for name in names
        if any(one.get(name) != answered[0].get(name) for one in answered)
    ]


def _all_settings(one: Estimate) -> dict[str, Any]:
    """Every setting of a run, and what follows from the degrees."""
    training = training_section(one.job)
    env = training.pop("env")
    rollout = settings_of(one.job.rollout)
    return {"name": one.job.name, **layout_section(one), **training, **rollout, **env, **config_section(one.job.model)}


def _parts(cases: Cases) -> list[dict[str, Any]]:
    """The parts of a peak, in the order of a breakdown."""
    found = _each(cases, lambda one: one.peak_stage.breakdown_bytes)
    return [{"part": part, "bytes": [one and one[part] for one in found]} for part in PARTS]


def _tensors(cases: Cases) -> dict[str, Any]:
    """Tensors by part and name, whatever chunk and layers they are in: the largest differences first."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(cases))
    for place, one in enumerate(cases):
        for row in one.peak_stage.rows if one is not None else ():
            found[row.part, WHERE.sub("", row.name)][place] += row.nbytes
    answered = [place for place, one in enumerate(cases) if one is not None]

    def spread(sizes: list[int]) -> int:
        return max(sizes[place] for place in answered) - min(sizes[place] for place in answered)

    order = sorted(found, key=lambda key: (-spread(found[key]), -max(found[key]), key))
    shown, others = order[:MOST_TENSORS], order[MOST_TENSORS:]
    totals = [sum(found[key][place] for key in others) for place in range(len(cases))]
    return {
        "tensors": [
            {"part": key[0], "name": key[1], "bytes": _known(cases, found[key]), "difference": spread(found[key])}
            for key in shown
        ],
        "other_tensors": {"count": len(others), "bytes": _known(cases, totals)},
    }


def _known(cases: Cases, sizes: Sequence[int]) -> list[int | None]:
    """A size for each case, None where it is refused."""
    return [None if one is None else size for one, size in zip(cases, sizes, strict=True)]
