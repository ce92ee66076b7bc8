"""Elements of a DDP buffer as the distributed optimizer lays it out.

Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/training/training.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

from ..modules.context import Context
from ..tape.tensor import Param, ceil_div, largest, round_up

ALIGNMENT = 64
"""Elements that the start of a parameter is aligned to (param_and_grad_buffer.py)."""
BUCKET_MULTIPLE = 128
"""Elements whose least common multiple with the shard count a bucket's end is padded to."""
Runs = list[tuple[list[Param], int]]
"""Parameters of consecutive layers: those of one layer, and how many there are."""
BUSBW_MULTIPLE = 65536
"""The same with ddp_pad_buckets_for_high_nccl_busbw."""


def _lcm(a: int, b: int) -> int:
    if isinstance(a, int) and isinstance(b, int):
        return a // gcd(a, b) * b
    import numpy as np

    return np.lcm(a, b)


def bucket_multiple(shards: int, *, busbw: bool) -> int:
    """Elements that a bucket's end is padded to."""
    multiple = _lcm(shards, BUCKET_MULTIPLE)
    return _lcm(multiple, BUSBW_MULTIPLE) if busbw else multiple


class Piece(NamedTuple):
    """A parameter as a buffer sees it: its elements, how often in a row, and whether it has a bucket of its own."""

    numel: int
    copies: int
    alone: bool


def piece(param: Param) -> Piece:
    """A parameter of one layer."""
    return Piece(param.numel_each, param.copies, param.shared_embedding)


def padded_numel(pieces: list[Piece], multiple: int, bucket_size: int | None) -> int:
    """Elements of a buffer laid out by the distributed optimizer."""
    return max((end for _, _, end in buckets(pieces, multiple, bucket_size)), default=0)


Bucket = tuple[list[tuple[int, int]], int, int]
"""Where each parameter of a bucket begins and ends, and where the bucket does."""


def buckets(pieces: list[Piece], multiple: int, bucket_size: int | None) -> Iterator[Bucket]:
    """The buckets of a buffer.

    Parameters are walked in reverse registration order; each start is aligned to 64 elements; a bucket ends when it has
    `bucket_size` elements, and its end is padded. A shared embedding forms a bucket of its own.
    """
    spans: list[tuple[int, int]] = []
    start = end = 0
    for numel, copies, alone in reversed(pieces):
        for _ in range(copies):
            if alone and spans:
                end = round_up(end, multiple)
                yield spans, start, end
                spans, start = [], end
            first = round_up(end, ALIGNMENT)
            end = first + numel
            spans.append((first, end))
            if alone or (bucket_size is not None and end - start >= bucket_size):
                end = round_up(end, multiple)
                yield spans, start, end
                spans, start = [], end
    if spans:
        yield spans, start, round_up(end, multiple)


def padded_buffer(runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool) -> int:
    """`padded_numel` of consecutive layers, also of arrays of layouts.

    Without a bucket size and shared embeddings, the aligned sizes add up whatever their order. Buckets end where all sizes are
    multiples of what they are padded to anyway: then only the sum counts. Elsewhere each layout is walked by itself.
    """
    multiple = bucket_multiple(shards, busbw=busbw)
    if bucket_size is None and not any(p.shared_embedding for members, _ in runs for p in members):
        aligned = sum(round_up(p.numel_each, ALIGNMENT) * (p.copies * n) for members, n in runs for p in members)
        return round_up(aligned, multiple)
    pieces = [piece(p) for members, _ in runs for p in members]
    layers = [n for members, n in runs for _ in members]
    lengths = [len(members) for members, _ in runs]
    ends = -1 if bucket_size is None else bucket_size
    numbers = (shards, ends, *(one.numel for one in pieces), *(one.copies for one in pieces), *layers)
    if all(isinstance(value, int) for value in numbers):
        return padded_numel(_registered(pieces, layers, lengths), multiple, bucket_size)
    import numpy as np

    ragged: Any = reduce(operator.or_, (one.numel % multiple != 0 for one in pieces))
    total: Any = sum(one.numel * (one.copies * n) for one, n in zip(pieces, layers, strict=True))
    if not np.any(ragged):
        return total  # type: ignore[no-any-return]
    shape = np.broadcast_shapes(np.shape(total), np.shape(ragged), np.shape(multiple), np.shape(ends))
    places = np.nonzero(np.broadcast_to(ragged, shape).ravel())[0]
    table = np.stack([np.broadcast_to(number, shape).ravel()[places] for number in numbers], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    padded = np.broadcast_to(total, shape).copy().ravel()
    walked = [_padded_row(row, pieces, lengths, busbw=busbw) for row in alike.tolist()]
    padded[places] = np.array(walked, dtype=np.int64)[which.ravel()]
    return padded.reshape(shape)  # type: ignore[no-any-return]


def _padded_row(row: list[int], pieces: list[Piece], lengths: list[int], *, busbw: bool) -> int:
    """`padded_numel` of one layout of an array: shards, bucket size, elements, copies and layers, as `padded_buffer` stacks them."""
    shards, ends, *numbers = row
    if shards < 1:
        return 0
    count = len(pieces)
    sizes, copies, layers = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    plain = [Piece(size, many, one.alone) for size, many, one in zip(sizes, copies, pieces, strict=True)]
    multiple = bucket_multiple(shards, busbw=busbw)
    return padded_numel(_registered(plain, layers, lengths), multiple, None if ends < 0 else ends)


def _registered(pieces: list[Piece], layers: list[int], lengths: list[int]) -> list[Piece]:
    """Every parameter of every layer in registration order: `lengths` are the parameters of one layer of each run."""
    found: list[Piece] = []
    at = 0
    for length in lengths:
        if length:
            found += pieces[at : at + length] * layers[at]
        at += length
    return found


def default_bucket_size(c: Context, numel: int, *, first_chunk: bool) -> int | None:
    """Elements of a bucket, or None for a single one (Megatron-LM `megatron/training/training.py`)."""
    t = c.training
    if not t.overlap_grad_reduce or not first_chunk:
        return None
    if t.ddp_bucket_size is not None:
        return t.ddp_bucket_size
    if t.ddp_num_buckets is not None:
        return ceil_div(numel, t.ddp_num_buckets)
    return largest(40_000_000, 1_000_000 * c.layout.dp * c.layout.cp)
