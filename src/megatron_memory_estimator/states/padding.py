"""Elements of a DDP buffer as the distributed optimizer lays it out.

Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/training/training.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from math import gcd
from typing import Any

from ..modules.context import Context
from ..tape.tensor import Dim, Param, ceil_div, largest, round_up

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


def padded_numel(params: list[tuple[Param, int]], shards: int, bucket_size: int | None, *, busbw: bool = False) -> int:
    """Elements of a buffer laid out by the distributed optimizer.

    Parameters are walked in reverse registration order; each start is aligned to 64 elements; a bucket ends when it has
    `bucket_size` elements, and its end is padded. A shared embedding forms a bucket of its own. Without a bucket size
    and shared embeddings, the aligned sizes add up whatever their order.
    """
    multiple = bucket_multiple(shards, busbw=busbw)
    if bucket_size is None and not any(param.shared_embedding for param, _ in params):
        return round_up(
            sum(round_up(param.numel_each, ALIGNMENT) * (param.copies * copies) for param, copies in params), multiple
        )
    return max((end for _, _, end in buckets(params, multiple, bucket_size)), default=0)


Bucket = tuple[list[tuple[int, int]], int, int]
"""Where each parameter of a bucket begins and ends, and where the bucket does."""


def buckets(params: list[tuple[Param, int]], multiple: int, bucket_size: int | None) -> Iterator[Bucket]:
    """The buckets of a buffer, the last parameter first."""
    spans: list[tuple[int, int]] = []
    start = end = 0
    for param, copies in reversed(params):
        each, alone = param.numel_each, param.shared_embedding
        for _ in range(param.copies * copies):
            if alone and spans:
                end = round_up(end, multiple)
                yield spans, start, end
                spans, start = [], end
            first = round_up(end, ALIGNMENT)
            end = first + each
            spans.append((first, end))
            if alone or (bucket_size is not None and end - start >= bucket_size):
                end = round_up(end, multiple)
                yield spans, start, end
                spans, start = [], end
    if spans:
        yield spans, start, round_up(end, multiple)


def padded_buffer(runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool) -> int:
    """`padded_numel` of consecutive layers, also of arrays of layouts.

    Buckets end where all sizes are multiples of what they are padded to anyway: then only the sum counts. Elsewhere each layout is
    walked by itself.
    """
    params = [(p, n) for members, n in runs for p in members]
    shared = any(p.shared_embedding for p, _ in params)
    if bucket_size is None and not shared:
        return padded_numel(params, shards, None, busbw=busbw)
    multiple = bucket_multiple(shards, busbw=busbw)
    sizes = [p.numel_each for p, _ in params]
    copies = [p.copies * n for p, n in params]
    ends = -1 if bucket_size is None else bucket_size
    if all(isinstance(value, int) for value in (multiple, ends, *sizes, *copies)):
        return padded_numel(expanded(runs), shards, bucket_size, busbw=busbw)
    import numpy as np

    ragged: Any = reduce(operator.or_, (size % multiple != 0 for size in sizes))
    total: Any = sum(size * n for size, n in zip(sizes, copies, strict=True))
    if not np.any(ragged):
        return total  # type: ignore[no-any-return]
    shape = np.broadcast_shapes(np.shape(total), np.shape(ragged), np.shape(multiple), np.shape(ends))
    numbers = (shards, ends, *sizes, *(n for _, n in runs), *(p.copies for p, _ in params))
    table = np.stack([np.broadcast_to(number, shape).ravel() for number in numbers], axis=1)
    places = np.nonzero(np.broadcast_to(ragged, shape).ravel())[0]
    _, first, alike = np.unique(table[places], axis=0, return_index=True, return_inverse=True)
    padded = np.broadcast_to(total, shape).copy().ravel()
    walked = [_padded_at(int(place), shape, runs, shards, bucket_size, busbw=busbw) for place in places[first]]
    padded[places] = np.array(walked, dtype=np.int64)[alike.ravel()]
    return padded.reshape(shape)  # type: ignore[no-any-return]


def _padded_at(
    place: int, shape: tuple[int, ...], runs: Runs, shards: int, bucket_size: int | None, *, busbw: bool
) -> int:
    """`padded_numel` of one layout of arrays of a shape."""
    import numpy as np

    def at(number: int) -> int:
        return int(np.broadcast_to(number, shape).flat[place])

    if at(shards) < 1:
        return 0
    plain: Runs = [
        ([p._replace(shape=(Dim("numel", at(p.numel_each)),), copies=at(p.copies)) for p in members], at(layers))
        for members, layers in runs
    ]
    return padded_numel(expanded(plain), at(shards), None if bucket_size is None else at(bucket_size), busbw=busbw)


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


def expanded(runs: Runs) -> list[tuple[Param, int]]:
    """Parameters of consecutive layers in registration order."""
    return [(param, 1) for params, count in runs for _ in range(count) for param in params]
