"""Elements of a DDP buffer: hand-worked buckets, and arrays of layouts beside each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator.states.padding import Piece, bucket_multiple, buckets, laid_out, padded_buffer
from megatron_memory_estimator.tape.tensor import Dim, Param


def test_what_buckets_end_at() -> None:
    """The least common multiple of the shards and 128, and with the padding for bus bandwidth of 65,536 as well."""
    assert [bucket_multiple(shards, busbw=False) for shards in (1, 6, 24, 100, 256)] == [128, 384, 384, 3200, 256]
    assert [bucket_multiple(shards, busbw=True) for shards in (1, 6)] == [65536, 3 * 65536]
    assert bucket_multiple(np.array([6, 256]), busbw=False).tolist() == [384, 256]  # type: ignore[arg-type, attr-defined]


def test_buckets_walk_backwards() -> None:
    """100, twice 200, and 300 elements, the last first, aligned to 64, bucket of 500: 0-300 and 320-520; 640-840 and 896-996."""
    pieces = [Piece(100, 1, False), Piece(200, 2, False), Piece(300, 1, False)]
    assert list(buckets(pieces, 128, 500)) == [
        ([(0, 300), (320, 520)], 0, 640, 520),
        ([(640, 840), (896, 996)], 640, 1024, 996),
    ]
    assert list(buckets(pieces, 128, None)) == [([(0, 300), (320, 520), (576, 776), (832, 932)], 0, 1024, 932)]
    alone = [
        Piece(100, 1, True),
        Piece(200, 2, False),
    ]  # the start of what has a bucket of its own is aligned before it
    assert list(buckets(alone, 128, None)) == [([(0, 200), (256, 456)], 0, 512, 512), ([(512, 612)], 512, 640, 612)]
    assert list(buckets([Piece(100, 1, True), Piece(64, 1, False)][::-1], 128, None)) == [
        ([(0, 100)], 0, 128, 100),
        ([(128, 192)], 128, 256, 192),
    ]


def test_weights_and_biases_of_experts_take_turns() -> None:
    """weight0, bias0, weight1, bias1: from the end a bias of 10 at 0, a weight of 100 at 64, a bias at 192, a weight at 256."""
    experts = [Piece(100, 2, False, in_turn=True), Piece(10, 2, False)]
    assert [span for one in buckets(experts, 128, None) for span in one.spans] == [
        (0, 10),
        (64, 164),
        (192, 202),
        (256, 356),
    ]
    apart = [Piece(100, 2, False), Piece(10, 2, False)]
    assert [span for one in buckets(apart, 128, None) for span in one.spans] == [
        (0, 10),
        (64, 74),
        (128, 228),
        (256, 356),
    ]
    assert laid_out(experts, 128, None) == (384, 356)  # Megatron's numel_unpadded has the aligned starts


@pytest.mark.parametrize("bucket_size", [None, 700, np.array([300, 700, 5000, 40])])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sizes", [(1000, 96, 333), (1280, 640, 256)], ids=("ragged", "whole"))
def test_arrays_of_layouts_are_each_of_them(bucket_size: Any, shared: bool, sizes: tuple[int, ...]) -> None:
    """Shards, layers, copies and sizes that differ from layout to layout; two runs of equal layers, one of them empty in one layout."""
    shards, layers, ways = np.array([2, 24, 48, 1]), np.array([3, 1, 0, 2]), np.array([1, 2, 1, 2])

    def runs(ways: Any, layers: Any) -> Any:
        wide, small, odd = sizes
        first = [Param("embedding", (Dim("n", 2 * wide, ("tp",), ways),), shared_embedding=shared)]
        layer = [Param("weight", (Dim("n", 2 * small, ("tp",), ways),), copies=2), Param("bias", (Dim("n", odd),))]
        return [(first, 1), (layer, layers)]

    whole: Any = padded_buffer(runs(ways, layers), shards, bucket_size, busbw=False).numel  # type: ignore[arg-type]
    each = [
        padded_buffer(runs(int(w), int(n)), int(s), b if b is None or isinstance(b, int) else int(b), busbw=False).numel
        for w, n, s, b in zip(
            ways, layers, shards, bucket_size if isinstance(bucket_size, np.ndarray) else [bucket_size] * 4, strict=True
        )
    ]
    assert whole.tolist() == each
