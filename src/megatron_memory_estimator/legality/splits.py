"""Splits of a pipeline that are legal: what a refused one could be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

Counts = tuple[int | None, int | None]
"""Layers of the first and of the last stage, None where they are not said."""
MOST_NAMED = 64
"""The most stages of a suggestion."""


def balanced_split(num_layers: int, pp: int, vp: int) -> Counts | None:
    """First- and last-stage layer counts of the most balanced legal uneven split, or None.

    Most balanced: the smallest largest stage, then the largest smallest one; of equals, fewer layers on the first
    stage, where most microbatches are in flight, and as few counts as possible.
    """
    splits: list[tuple[tuple[int, int, int, int, bool], Counts]] = []

    def offer(first: int | None, last: int | None, middle: int) -> None:
        a, b = middle if first is None else first, middle if last is None else last
        sizes = [a, b, *([middle] if pp > 2 else [])]
        if min(sizes) > 0:
            given = (first is not None) + (last is not None)
            splits.append(((max(sizes), -min(sizes), a, given, first is not None), (first, last)))

    for middle in range(vp, num_layers, vp):
        rest = num_layers - middle * (pp - 1)
        if rest > 0 and rest % vp == 0:
            offer(None, rest, middle)
            offer(rest, None, middle)
        both = num_layers - middle * (pp - 2)
        if pp > 2 and both > 0 and both % vp == 0:
            a = both // 2 // vp * vp
            offer(a, both - a, middle)
    return min(splits, key=lambda item: item[0])[1] if splits else None


def even_layout(num_layers: int, chunks: int, mtp: int) -> str | None:
    """A pipeline_model_parallel_layout of as many layers in each chunk, one more in the first ones, MTP and the loss in the last; None
    for more chunks than layers.

    Source: NVIDIA-NeMo/Megatron-Bridge `models/deepseek/deepseek_v4_bridge.py` (set_deepseek_v4_pipeline_model_parallel_layout).
    """
    each, more = divmod(num_layers, chunks)
    if not each:
        return None
    counts = [f"t*{each + (at < more)}" for at in range(chunks)]
    return f"E{'|'.join(counts)}{'m' * mtp}L"


def stages_of(layers: int, vp: int, least: int) -> list[int]:
    """Numbers of stages from `least` on over which layers divide, and over the chunks of each."""
    return [pp for pp in range(least, min(layers, MOST_NAMED) + 1) if layers % (pp * vp) == 0]


def nearest_counts(num_layers: int, pp: int, vp: int, counts: Counts) -> Counts | None:
    """Legal layer counts of the stages that have one, as near to theirs as there are. None where no count is legal."""
    first, last = counts
    middle = pp - (first is not None) - (last is not None)
    if num_layers % vp:
        return None
    if middle == 0 and first is not None:
        a = max(1, min(first, num_layers - 1))
        return a, num_layers - a

    def offers() -> Iterator[tuple[int, Counts]]:
        for each in range(vp, num_layers, vp):
            rest = num_layers - each * middle
            if first is not None and last is not None:
                a = max(vp, min(first // vp * vp, rest - vp))
                if rest > a:
                    yield abs(a - first) + abs(rest - a - last), (a, rest - a)
            elif rest > 0:
                yield (
                    (abs(rest - first), (rest, None)) if first is not None else (abs(rest - (last or 0)), (None, rest))
                )

    return min(offers(), key=lambda offer: offer[0], default=(0, None))[1]


def nearest_group(num_microbatches: int, pp: int, group: int) -> int:
    """The legal microbatch_group_size_per_vp_stage that is nearest to a refused one, where there are as many microbatches as stages."""
    start = min(max(group, pp), num_microbatches)
    near = (n for far in count() for n in (start - far, start + far) if pp <= n <= num_microbatches)
    return next(n for n in near if not 0 < num_microbatches % n < pp)
