"""Our frozen dataclass behaves as the standard one does: the standard one is the judge."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from megatron_memory_estimator import Training
from megatron_memory_estimator.dataclass import dataclass


@dataclass(frozen=True)
class Ours:
    """A class with every kind of field."""

    first: int
    second: str = "x"
    listed: list[int] = dataclasses.field(default_factory=list)
    silent: int = dataclasses.field(default=3, repr=False, compare=False)
    kept: dict[str, int] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("below 0")

    @cached_property
    def twice(self) -> int:
        """Twice the first."""
        return 2 * self.first


@dataclasses.dataclass(frozen=True)
class Theirs:
    """The same in the standard library."""

    first: int
    second: str = "x"
    listed: list[int] = dataclasses.field(default_factory=list)
    silent: int = dataclasses.field(default=3, repr=False, compare=False)
    kept: dict[str, int] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((1,), {}),
    ((1, "y"), {"silent": 4}),
    ((), {"first": 1, "listed": [1]}),
    ((), {}),
    ((1, "y", [], 4, {}), {}),
    ((1,), {"first": 2}),
    ((1,), {"unknown": 2}),
    ((1,), {"kept": {}}),
    ((), {"unknown": 2}),
)


def outcome(made: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return repr(made(*args, **named)).partition("(")[2], dataclasses.asdict(made(*args, **named))
    except TypeError:
        return TypeError


@pytest.mark.parametrize(("args", "named"), CALLS)
def test_calls_are_those_of_the_standard_dataclass(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert outcome(Ours, args, named) == outcome(Theirs, args, named)


def test_equality_replace_pickle_and_signature() -> None:
    one = Ours(1, listed=[2])
    assert one == Ours(1, listed=[2], silent=9) and one != Ours(2, listed=[2])
    others: object = Theirs(1, listed=[2])
    assert one != others
    assert dataclasses.replace(one, first=5).twice == 10
    assert pickle.loads(pickle.dumps(one)) == one
    assert [*inspect.signature(Ours).parameters] == [*inspect.signature(Theirs).parameters]
    assert inspect.signature(Training).parameters["seq_length"].default == 4096


def test_it_is_frozen_and_hashes_by_what_is_compared() -> None:
    one = Training(seq_length=8)
    assert {one: 1}[Training(seq_length=8)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.seq_length = 9  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.seq_length
    with pytest.raises(ValueError, match="below 0"):
        Ours(-1)
