"""The arithmetic of declarations: whole counts, shares and bytes, of one layout and of arrays of layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator.tape.tensor import (
    Dim,
    Param,
    ceil_div,
    chosen,
    divisors,
    largest,
    round_up,
    smallest,
    tensor,
    whole_above,
    whole_below,
)


def test_whole_counts() -> None:
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [round_up(n, 64) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert [whole_above(n) for n in (2.0, 2.1)] == [2, 3]
    assert [whole_below(n) for n in (2.0, 2.9, 3)] == [2, 2, 3]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((8,), "1, 2, 4 or 8"), ((12, 18), "1, 2, 3 or 6"), ((7,), "1 or 7"), ((5, 6), "1"), ((1,), "1")],
)
def test_divisors_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert divisors(*numbers) == words
    assert divisors(4 * 67) == "1, 2 or 4, or a larger divisor"
    assert divisors(64).endswith("32 or 64")


@pytest.mark.parametrize(
    ("change", "plain"),
    [(largest, [3, 5, 5]), (smallest, [2, 5, 4]), (ceil_div, [2, 1, 1]), (lambda a, b: chosen(a > b, a, b), [3, 5, 5])],
)
def test_arrays_are_each_of_their_numbers(change: Callable[[Any, Any], Any], plain: list[int]) -> None:
    a, b = (3, 5, 4), (2, 5, 5)
    assert [change(x, y) for x, y in zip(a, b, strict=True)] == plain
    assert change(np.array(a), np.array(b)).tolist() == plain


def test_floats_of_arrays() -> None:
    above: Any = whole_above
    below: Any = whole_below
    assert above(np.array([2.0, 2.1])).tolist() == [2, 3]
    assert below(np.array([2.0, 2.9])).tolist() == [2, 2]


def test_shapes_and_bytes() -> None:
    """[6/tp, 4] in bf16 on 2 ranks: 3 * 4 elements of 2 bytes; as [12] it is the same storage, in fp32 twice the bytes."""
    x = tensor("x", (Dim("rows", 6, ("tp",), 2), Dim("width", 4)))
    assert (x.nbytes, x.local_shape, x.formula, x.storage) == (24, (3, 4), "[rows/tp, width]", "x")
    flat = x.view("flat", (Dim("elements", 12),))
    assert (flat.nbytes, flat.storage, flat.local_shape) == (24, "x", (12,))
    assert x.like("wide", "fp32").nbytes == 48 and x.like("same").dtype == "bf16"
    assert [tensor("t", x.shape, dtype).nbytes // 12 for dtype in ("fp32", "fp16", "int64", "int32", "int16", "bool", "uint8", "fp8")] == [
        4, 2, 8, 4, 2, 1, 1, 1,
    ]  # fmt: skip
    assert [tensor("t", (), dtype).differentiable for dtype in ("fp32", "bf16", "fp16", "fp8", "int64", "bool")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_size_without_axes_is_whole() -> None:
    assert Dim("n", 7, (), 2).local == 7
    assert Dim("n", 8, ("tp", "cp"), 4).local == 2
    assert Dim("n", 7, ("tp",), 2).uneven and not Dim("n", 8, ("tp",), 2).uneven


def test_copies_of_a_parameter() -> None:
    param = Param("experts", (Dim("out", 6, ("tp",), 2), Dim("in", 5)), copies=4)
    assert (param.numel_each, param.numel) == (15, 60)
