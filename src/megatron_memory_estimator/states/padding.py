"""Elements of a DDP buffer as the distributed optimizer lays it out.

Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/training/training.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
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
    """A parameter as a buffer sees it: its elements, how often in a row, whether it has a bucket of its own, and whether each copy
    is registered together with one of the next piece."""

    numel: int
    copies: int
    alone: bool
    in_turn: bool = False


def piece(param: Param) -> Piece:
    """A parameter of one layer."""
    return Piece(param.numel_each, param.copies, param.shared_embedding, param.in_turn)


class Laid(NamedTuple):
    """Elements of a buffer, and without the padding of bucket ends: the starts of parameters are aligned in both, as in Megatron's
    `numel_unpadded`."""

    numel: int
    unpadded: int


def laid_out(pieces: list[Piece], multiple: int, bucket_size: int | None) -> Laid:
    """Elements of a buffer laid out by the distributed optimizer."""
    if bucket_size is None:
        return _whole(pieces, multiple)
    numel = unpadded = 0
    for bucket in buckets(pieces, multiple, bucket_size):
        numel, unpadded = bucket.end, unpadded + bucket.filled - bucket.start
    return Laid(numel, unpadded)


def _whole(pieces: list[Piece], multiple: int) -> Laid:
    """The same of a buffer without a bucket size, whose buckets end beside shared embeddings alone: copies are counted, not walked."""
    start = end = unpadded = 0
    for together, copies in _groups(pieces):
        if not any(piece.alone for piece in together):
            step = sum(round_up(piece.numel, ALIGNMENT) for piece in together)
            last = together[-1].numel
            end = round_up(end, ALIGNMENT) + step * copies - round_up(last, ALIGNMENT) + last
            continue
        for piece in (piece for _ in range(copies) for piece in together):
            first = round_up(end, ALIGNMENT)
            if piece.alone and end > start:
                unpadded += first - start
                start = first = end = round_up(first, multiple)
            end = first + piece.numel
            if piece.alone:
                unpadded += end - start
                start = end = round_up(end, multiple)
    return Laid(round_up(end, multiple), unpadded + end - start)


class Bucket(NamedTuple):
    """Where each parameter of a bucket begins and ends, where the bucket does, and up to where it is filled."""

    spans: list[tuple[int, int]]
    start: int
    end: int
    filled: int


def buckets(pieces: list[Piece], multiple: int, bucket_size: int | None) -> Iterator[Bucket]:
    """The buckets of a buffer.

    Parameters are walked in reverse registration order; each start is aligned to 64 elements; a bucket ends when it has
    `bucket_size` elements, and its end is padded. A shared embedding forms a bucket of its own.
    """
    spans: list[tuple[int, int]] = []
    start = end = 0
    for numel, alone in _backwards(pieces):
        first = round_up(end, ALIGNMENT)
        if alone and spans:
            end = round_up(first, multiple)
            yield Bucket(spans, start, end, first)
            spans, start, first = [], end, end
        end = first + numel
        spans.append((first, end))
        if alone or (bucket_size is not None and end - start >= bucket_size):
            filled, end = end, round_up(end, multiple)
            yield Bucket(spans, start, end, filled)
            spans, start = [], end
    if spans:
        yield Bucket(spans, start, round_up(end, multiple), end)


def registered(params: Sequence[Param]) -> Iterator[Param]:
    """Every parameter of a layer in registration order, each copy by itself."""
    together: list[Param] = []
    for param in params:
        together.append(param)
        if not param.in_turn:
            for _ in range(param.copies):
                yield from together
            together = []


def _groups(pieces: list[Piece]) -> Iterator[tuple[list[Piece], int]]:
    """Parameters that take turns, from the last registered to the first, and how often they do."""
    together: list[Piece] = []
    for index in range(len(pieces) - 1, -1, -1):
        together.append(pieces[index])
        if not (index and pieces[index - 1].in_turn):
            yield together, together[0].copies
            together = []


def _backwards(pieces: list[Piece]) -> Iterator[tuple[int, bool]]:
    """Elements of every parameter from the last registered to the first, and whether it has a bucket of its own."""
    for together, copies in _groups(pieces):
        one = [(piece.numel, piece.alone) for piece in together]
        for _ in range(copies):
            yield from one


def padded_buffer(runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool) -> Laid:
    """`laid_out` of consecutive layers; of arrays of layouts, whose buckets nobody asks for, the elements unpadded are the parameters'.

    Without a bucket size and shared embeddings, the aligned sizes add up whatever their order. Buckets end where all sizes are
    multiples of what they are padded to anyway: then only the sum counts. Elsewhere each layout is walked by itself.
    """
    multiple = bucket_multiple(shards, busbw=busbw)
    if bucket_size is None and not any(p.shared_embedding for members, _ in runs for p in members):
        aligned = sum(round_up(p.numel_each, ALIGNMENT) * (p.copies * n) for members, n in runs for p in members)
        first = next((p.numel_each for members, _ in runs for p in members), 0)  # the end of the buffer
        return Laid(round_up(aligned, multiple), aligned - round_up(first, ALIGNMENT) + first)
    pieces = [piece(p) for members, _ in runs for p in members]
    layers = [n for members, n in runs for _ in members]
    lengths = [len(members) for members, _ in runs]
    ends = -1 if bucket_size is None else bucket_size
    numbers = (shards, ends, *(one.numel for one in pieces), *(one.copies for one in pieces), *layers)
    if all(isinstance(value, int) for value in numbers):
        return laid_out(_registered(pieces, layers, lengths), multiple, bucket_size)
    import numpy as np

    ragged: Any = reduce(operator.or_, (one.numel % multiple != 0 for one in pieces))
    total: Any = sum(one.numel * (one.copies * n) for one, n in zip(pieces, layers, strict=True))
    if not np.any(ragged):
        return Laid(total, total)
    shape = np.broadcast_shapes(np.shape(total), np.shape(ragged), np.shape(multiple), np.shape(ends))
    places = np.nonzero(np.broadcast_to(ragged, shape).ravel())[0]
    table = np.stack([np.broadcast_to(number, shape).ravel()[places] for number in numbers], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    padded = np.broadcast_to(total, shape).copy().ravel()
    walked = [_padded_row(row, pieces, lengths, busbw=busbw) for row in alike.tolist()]
    padded[places] = np.array(walked, dtype=np.int64)[which.ravel()]
    return Laid(padded.reshape(shape), total)


def _padded_row(row: list[int], pieces: list[Piece], lengths: list[int], *, busbw: bool) -> int:
    """The elements of one layout of an array: shards, bucket size, elements, copies and layers, as `padded_buffer` stacks them."""
    shards, ends, *numbers = row
    if shards < 1:
        return 0
    count = len(pieces)
    sizes, copies, layers = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    plain = [one._replace(numel=size, copies=many) for size, many, one in zip(sizes, copies, pieces, strict=True)]
    multiple = bucket_multiple(shards, busbw=busbw)
    return laid_out(_registered(plain, layers, lengths), multiple, None if ends < 0 else ends).numel


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
    if not t.overlap_grad_reduce or not first_chunk or t.overlap_param_gather_with_optimizer_step:
        return None
    if t.ddp_bucket_size is not None:
        return t.ddp_bucket_size
    if t.ddp_num_buckets is not None:
        return ceil_div(numel, t.ddp_num_buckets)
    return largest(40_000_000, 1_000_000 * c.layout.dp * c.layout.cp)
