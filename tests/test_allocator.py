"""The rules of PyTorch's caching allocator on sequences worked by hand (c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

from megatron_memory_estimator.device.allocator import Allocator
from megatron_memory_estimator.job.hardware import MIB


def test_small_requests_are_rounded_to_512_bytes_and_share_segments_of_2_mib() -> None:
    memory = Allocator()
    blocks = [memory.allocate(1) for _ in range(4096)]
    assert (memory.allocated, memory.reserved) == (4096 * 512, 2 * MIB)
    memory.allocate(0)
    assert (memory.allocated, memory.reserved) == (4097 * 512, 4 * MIB)
    for block in blocks:
        memory.free(block)
    assert (memory.allocated, memory.reserved) == (512, 4 * MIB)


def test_segments_by_size_of_the_request() -> None:
    """1 MiB is small; above it 20 MiB are shared; from 10 MiB on a segment has the request's size, rounded up to 2 MiB."""
    memory = Allocator()
    for nbytes, reserved in ((MIB, 2), (MIB + 1, 22), (9 * MIB, 22), (9 * MIB, 22), (10 * MIB, 32), (11 * MIB, 44)):
        memory.allocate(nbytes)
        assert memory.reserved == reserved * MIB, nbytes


def test_what_is_left_of_a_large_block_stays_free_above_1_mib() -> None:
    """Of 20 MiB, 18.5 leave a block of 1.5 MiB, 19 leave 1 MiB that is handed out and counted."""
    for nbytes, allocated in ((37 * MIB // 2, 37 * MIB // 2), (19 * MIB, 20 * MIB)):
        memory = Allocator()
        memory.free(memory.allocate(20 * MIB))
        memory.allocate(nbytes)
        assert (memory.allocated, memory.reserved) == (allocated, 20 * MIB)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    memory = Allocator()
    wide, narrow, same = (memory.allocate(size * MIB) for size in (40, 24, 24))
    for block in (wide, same, narrow):
        memory.free(block)
    assert memory.allocate(22 * MIB).segment == narrow.segment, "the lower address of two equal ones"
    assert memory.allocate(23 * MIB).segment == same.segment
    assert memory.allocate(23 * MIB).segment == wide.segment
    assert memory.reserved == 88 * MIB


def test_neighbours_join_and_segments_do_not() -> None:
    """Three parts of one segment serve its whole size again; two segments of 20 MiB never serve 40 MiB, expandable ones do."""
    memory = Allocator()
    memory.free(memory.allocate(60 * MIB))
    for block in [memory.allocate(20 * MIB) for _ in range(3)]:
        memory.free(block)
    memory.free(memory.allocate(60 * MIB))
    assert memory.reserved == 60 * MIB
    for expandable, reserved in ((False, 80), (True, 40)):
        memory = Allocator(expandable=expandable)
        for block in [memory.allocate(20 * MIB) for _ in range(2)]:
            memory.free(block)
        memory.allocate(40 * MIB)
        assert memory.reserved == reserved * MIB


def test_a_block_serves_its_own_stream_only() -> None:
    memory = Allocator()
    memory.free(memory.allocate(30 * MIB))
    memory.allocate(30 * MIB, "side")
    assert memory.reserved == 60 * MIB
    memory.allocate(30 * MIB)
    assert memory.reserved == 60 * MIB


def test_expandable_segments_grow_at_their_end_by_pages() -> None:
    """Pages of 20 MiB, and of 2 MiB in the small pool; a hole that is too small is no part of what grows."""
    memory = Allocator(expandable=True)
    first = memory.allocate(15 * MIB)
    memory.allocate(8 * MIB)
    assert (memory.allocated, memory.reserved) == (23 * MIB, 40 * MIB)
    memory.free(first)
    memory.allocate(30 * MIB)
    assert memory.reserved == 60 * MIB, "17 MiB at the end and 20 more"
    memory.allocate(1)
    assert memory.reserved == 62 * MIB


def test_the_end_of_an_expandable_segment_is_the_last_choice() -> None:
    """Of a hole of 18 MiB and an end of 12, 10 MiB go to the hole: the end counts with all that it could grow to."""
    memory = Allocator(expandable=True)
    hole = memory.allocate(18 * MIB)
    memory.allocate(10 * MIB)
    memory.free(hole)
    assert memory.allocate(10 * MIB).offset == 0
    assert memory.reserved == 40 * MIB


def test_empty_cache_gives_back_whole_segments_only() -> None:
    memory = Allocator()
    whole, split = memory.allocate(30 * MIB), memory.allocate(5 * MIB)
    memory.allocate(5 * MIB)
    for block in (whole, split):
        memory.free(block)
    memory.empty_cache()
    assert (memory.allocated, memory.reserved) == (5 * MIB, 20 * MIB)
    memory.allocate(5 * MIB)
    assert memory.reserved == 20 * MIB


def test_the_most_allocated_is_kept() -> None:
    memory = Allocator()
    memory.free(memory.allocate(12 * MIB))
    memory.allocate(2 * MIB)
    assert (memory.allocated, memory.most_allocated) == (2 * MIB, 12 * MIB)
