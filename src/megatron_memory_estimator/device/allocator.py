"""The rules of PyTorch's CUDA caching allocator, without a GPU: which segments a sequence of requests takes from the device.

Source: pytorch 2.9 `c10/cuda/CUDACachingAllocator.cpp` (get_pool, get_allocation_size, get_free_block, should_split,
try_merge_blocks, find_expandable_block, try_allocate_expandable_block) and `c10/core/AllocatorConfig.h`.

- Requests are rounded up to 512 bytes; those up to 1 MiB share segments of 2 MiB, those below 10 MiB segments of 20 MiB, larger
  ones have a segment of their own size, rounded up to 2 MiB.
- A request takes the smallest free block of its pool and stream that is large enough, of equal ones that with the lowest address.
  What is left of the block stays free: in the small pool from 512 bytes on, in the large pool above 1 MiB; else it is handed out too.
- A freed block joins its free neighbours. Segments go back to the device only when it has no more memory.
- `expandable_segments`: one segment for each pool and stream, which grows at its end by pages of 2 MiB (small pool) or 20 MiB. The
  block at the end is the last choice, because it counts with all that it could grow to.

Not modelled, all off by default: max_split_size_mb, roundup_power2_divisions, garbage_collection_threshold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from ..job.hardware import MIB
from ..tape.tensor import round_up

MIN_BLOCK = 512
"""kMinBlockSize."""
SMALL_SIZE = MIB
"""kSmallSize: the largest request of the small pool, and what a block of the large pool must leave to be split."""
SMALL_BUFFER = 2 * MIB
"""kSmallBuffer: a segment, or a page, of the small pool."""
LARGE_BUFFER = 20 * MIB
"""kLargeBuffer: a segment for requests below `MIN_LARGE_ALLOC`, and a page of the large pool."""
MIN_LARGE_ALLOC = 10 * MIB
"""kMinLargeAlloc: from here on a request has a segment of its own size."""
ROUND_LARGE = 2 * MIB
"""kRoundLarge: what such a segment is rounded up to."""


class Pool(NamedTuple):
    """Blocks that may stand in for each other: those of small or of large requests on one stream."""

    small: bool
    stream: str


class Block:
    """A stretch of a segment, free or handed out, and its neighbours there."""

    __slots__ = ("after", "before", "free", "offset", "pool", "segment", "size")

    def __init__(self, pool: Pool, segment: int, offset: int, size: int) -> None:
        self.pool, self.segment, self.offset, self.size = pool, segment, offset, size
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """What free blocks are ordered by: size, then address."""
        return self.size, self.segment, self.offset


class Allocator:
    """Hands out blocks, and counts what is allocated (blocks in use) and reserved (segments)."""

    def __init__(self, *, expandable: bool = False) -> None:
        self.expandable = expandable
        self.allocated = self.most_allocated = 0
        self.reserved = 0
        self._segments = 0
        self._free: dict[Pool, list[tuple[int, int, int]]] = {}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._ends: dict[Pool, Block] = {}

    def allocate(self, nbytes: int, stream: str = "") -> Block:
        """A block for a request on a stream."""
        size = max(round_up(nbytes, MIN_BLOCK), MIN_BLOCK)
        pool = Pool(size <= SMALL_SIZE, stream)
        block = self._fitting(pool, size) or (self._grown(pool, size) if self.expandable else self._segment(pool, size))
        left = block.size - size
        if left >= MIN_BLOCK if pool.small or self.expandable else left > SMALL_SIZE:
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Give a block back; it joins its free neighbours."""
        assert not block.free
        self.allocated -= block.size
        before, after = block.before, block.after
        if after is not None and after.free:
            self._take(after)
            self._join(block, after)
        if before is not None and before.free:
            self._take(before)
            self._join(before, block)
            block = before
        self._put(block)

    def empty_cache(self) -> None:
        """Give whole free segments back to the device (torch.cuda.empty_cache); not of expandable segments."""
        assert not self.expandable
        for block in [block for block in self._blocks.values() if block.before is block.after is None]:
            self._take(block)
            self.reserved -= block.size

    # -- blocks ---------------------------------------------------------------------------------------------------
    def _fitting(self, pool: Pool, size: int) -> Block | None:
        """The free block that a request takes, out of the free ones."""
        known = self._free.setdefault(pool, [])
        at = bisect_left(known, (size, -1, -1))
        if at == len(known):
            return None
        block = self._blocks[known[at][1:]]
        if self.expandable and block is self._ends[pool] and at + 1 < len(known):
            block = self._blocks[known[at + 1][1:]]
        self._take(block)
        return block

    def _segment(self, pool: Pool, size: int) -> Block:
        """A new segment."""
        if pool.small:
            total = SMALL_BUFFER
        else:
            total = LARGE_BUFFER if size < MIN_LARGE_ALLOC else round_up(size, ROUND_LARGE)
        self.reserved += total
        self._segments += 1
        return Block(pool, self._segments, 0, total)

    def _grown(self, pool: Pool, size: int) -> Block:
        """The end of the pool's segment, grown by whole pages."""
        end = self._ends.get(pool)
        if end is not None and end.free:
            block = end
            self._take(block)
        else:
            self._segments += end is None
            segment, offset = (self._segments, 0) if end is None else (end.segment, end.offset + end.size)
            block = Block(pool, segment, offset, 0)
            block.before = end
            if end is not None:
                end.after = block
            self._ends[pool] = block
        more = round_up(size - block.size, SMALL_BUFFER if pool.small else LARGE_BUFFER)
        block.size += more
        self.reserved += more
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.pool, block.segment, block.offset + size, block.size - size)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        elif self.expandable:
            self._ends[block.pool] = rest
        block.after, block.size = rest, size
        self._put(rest)

    def _join(self, block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        elif self.expandable:
            self._ends[block.pool] = block

    def _put(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.pool], block.place)
        self._blocks[block.segment, block.offset] = block

    def _take(self, block: Block) -> None:
        known = self._free[block.pool]
        del known[bisect_left(known, block.place)]
        del self._blocks[block.segment, block.offset]
