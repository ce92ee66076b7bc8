"""Tables of n-grams (Engram; the per-layer embeddings of Qwen3.8-Flash-Next): their rows, and which of them a rank has.

Every order and head has a table of its own, as long as the next prime that no other table has. Expert-parallel ranks share the rows of each
table, the first ones one more where they do not divide; nothing else is shared.
Sources: NVIDIA/Megatron-LM pull requests 7231 and 7553 (docs/models/engram.md, docs/models/qwen3.8_flash_next).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice


def primes_from(least: int) -> Iterator[int]:
    """Primes from a number on."""
    for number in count(max(least, 2)):
        if all(number % one for one in range(2, int(number**0.5) + 1)):
            yield number


def tables(base: int, number: int, behind: int = 0) -> tuple[int, ...]:
    """Rows of so many tables from a base on, where `behind` tables of other layers come before."""
    return tuple(islice(primes_from(base), behind, behind + number))


def rows_of_rank(rows: Sequence[int], expert_parallel: int, rank: int = 0) -> int:
    """Rows of all tables that an expert-parallel rank has."""
    return sum(one // expert_parallel + (rank < one % expert_parallel) for one in rows)
