"""A timeline along an axis: what is allocated at most in each of its stretches, also while a stage waits for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from .moments import Moment
from .passes import LeftOut

Axis = Literal["seconds", "events"]
STATE = ("weights", "gradients", "optimizer", "workspace")
"""Parts that stay through the step."""


class Stretch(NamedTuple):
    """Bytes allocated from one place of an axis to another; the state among them is that of `moment`."""

    start: float
    end: float
    nbytes: int
    moment: Moment


def state_bytes(moment: Moment) -> dict[str, int]:
    """Bytes of the parts that stay."""
    return {name: moment.parts[name] for name in STATE}


def stretches(listed: Sequence[Moment], left_out: LeftOut | None, axis: Axis) -> Iterator[Stretch]:
    """The step from its start to its end without a hole. What is left out is as high as what it repeats; among events it takes no room."""
    for place, moment in enumerate(listed):
        if axis == "events":
            yield Stretch(place, place + 1, moment.highest_bytes, moment)
            continue
        yield Stretch(*seconds_of(moment), moment.highest_bytes, moment)
        if place + 1 == len(listed):
            return
        after = listed[place + 1]
        here, there = seconds_of(moment)[1], seconds_of(after)[0]
        if there > here:
            repeated = (
                listed[place + 1 - left_out.repeats : place + 1] if left_out and place + 1 == left_out.behind else ()
            )
            yield Stretch(here, there, max((one.highest_bytes for one in repeated), default=moment.end_bytes), after)


def seconds_of(moment: Moment) -> tuple[float, float]:
    """When a moment of the step starts and ends."""
    assert moment.start_s is not None and moment.end_s is not None
    return moment.start_s, moment.end_s
