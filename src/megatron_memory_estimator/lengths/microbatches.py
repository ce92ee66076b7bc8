"""Microbatches of samples of different lengths, as each framework makes them under its bound of tokens.

A framework takes the samples of a step and a bound, and says which samples share a microbatch. Memory follows the tokens of the largest.
`RULES` has a row for each framework's rule. Some keep the bound, some do not: `worst` says how far a rule can go above it.

Sources, by row: verl 0.9.0 and 0.9.1 `verl/utils/seqlen_balancing.py`; slime `slime/utils/dp_schedule.py` (20 May 2026) and miles the same
(4 August 2026); their earlier `get_data_iterator` (miles-rl 0.0.2 `miles/backends/training_utils/data.py`); NeMo-RL
`nemo_rl/data/packing/algorithms.py`; AReaL 1.0.4 `areal/utils/seqpack.py`; SkyRL 0.4.0 `skyrl/train/dataset/bin_packing.py`; Megatron-LM
`megatron/core/datasets/data_schedule.py`; ms-swift 4.6.0 `swift/dataset/packing.py` with binpacking 2.0.1.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt, lcm
from typing import Literal, NamedTuple

from ..errors import ConfigError
from ..wording import any_of, counted

Lengths = list[int]
Bins = list[Lengths]
Part = tuple[int, int, tuple[tuple[int, int], ...]]
"""A part of a partition: cost, number and (index, cost) of its samples, all negated, so that the largest part sorts first."""
LINEAR_COST = 24576
"""verl's cost of a sample of L tokens is LINEAR_COST x L + L^2: `calculate_workload`, calibrated for a hidden size of 4096."""
SLIME_PAD = 128
"""Default of slime's and miles' --data-pad-size-multiplier."""
MANY = 1024
"""Microbatches of a rank's step where their number is not known: more change nothing."""
AREAL_PAGE = 256
"""AReaL's N_TOKENS_PER_PAGE."""


@dataclass(frozen=True)
class Limits:
    """What a run sets about its microbatches.

    `tokens`: bound of a whole microbatch, which is the bound per GPU x cp where the framework's key is per GPU.
    `dp`: ranks that must have equally many microbatches.
    `group`: microbatch_group_size_per_vp_stage where there are virtual stages, else 1.
    `pp`: pipeline stages.
    `round_to`: multiple to which each sample is padded before it is packed (NeMo-RL, ROLL; SkyRL with fp8).
    `at_least`: microbatches that another data-parallel rank has.
    """

    tokens: int
    dp: int = 1
    group: int = 1
    pp: int = 1
    round_to: int = 1
    at_least: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"{name} of a bound of microbatches must be a whole number of at least 1, not {value!r}"
                )


@dataclass(frozen=True)
class Shards:
    """What padding depends on; `fp8` is the recipe, if there is one."""

    tp: int = 1
    cp: int = 1
    fp8: Literal["", "tensorwise", "blockwise", "mxfp8"] = ""

    @property
    def split(self) -> int:
        """Multiple of a sample that sequence parallelism and the two pieces of each context-parallel rank need."""
        return 2 * self.tp * self.cp if self.cp > 1 else self.tp


class Padding(NamedTuple):
    """Multiples to which each sample, then the whole microbatch, are padded."""

    sample: int = 1
    whole: int = 1


class Worst(NamedTuple):
    """Tokens of the largest microbatch that samples within the bound can make: `attained` by known lengths, and never above `ceiling`."""

    attained: int
    ceiling: int


# Ways to pack. Each takes lengths and limits and gives microbatches.


def first_fit(lengths: Sequence[int], limits: Limits) -> Bins:
    """Each sample into the first microbatch that has room."""
    bins: Bins = []
    loads: Lengths = []
    for length in lengths:
        for i, load in enumerate(loads):
            if load + length <= limits.tokens:
                bins[i].append(length)
                loads[i] += length
                break
        else:
            bins.append([length])
            loads.append(length)
    return bins


def emptiest_fit(lengths: Sequence[int], limits: Limits) -> Bins:
    """The longest first, each into the emptiest microbatch if it has room."""
    bins: Bins = []
    loads: list[tuple[int, int]] = []
    for length in sorted(lengths, reverse=True):
        if loads and loads[0][0] + length <= limits.tokens:
            load, i = loads[0]
            bins[i].append(length)
            heapq.heapreplace(loads, (load + length, i))
        else:
            heapq.heappush(loads, (length, len(bins)))
            bins.append([length])
    return bins


def next_fit(lengths: Sequence[int], limits: Limits) -> Bins:
    """In order: a sample that does not fit opens the next microbatch."""
    bins: Bins = []
    load = 0
    for length in lengths:
        if not bins or load + length > limits.tokens:
            bins.append([])
            load = 0
        bins[-1].append(length)
        load += length
    return bins


def differenced(costs: Sequence[int], count: int) -> list[Lengths]:
    """Indices of `count` parts of like cost: Karmarkar and Karp's differencing.

    The two partitions with the widest spread are joined, the largest part of one to the smallest of the other, until one is left.
    Its spread is never wider than the cost of one sample.
    """
    empty: Part = (0, 0, ())
    heap: list[tuple[int, tuple[Part, ...]]] = [
        (-cost if count > 1 else 0, ((-cost, -1, ((-i, -cost),)), *(empty,) * (count - 1)))
        for i, cost in enumerate(costs)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
        parts = sorted((a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(one, reversed(other), strict=True))
        heapq.heappush(heap, (parts[0][0] - parts[-1][0], tuple(parts)))
    return [[-i for i, _ in part[2]] for part in heap[0][1]]


def balanced(lengths: Sequence[int], count: int, linear: int = 0) -> Bins:
    """`count` microbatches of like tokens; with `linear`, of like cost linear x L + L^2."""
    costs = [linear * length + length**2 for length in lengths] if linear else lengths
    return [[lengths[i] for i in sorted(part)] for part in differenced(costs, count)]


# What brings the number of microbatches to a multiple.


def split_largest(bins: Bins, multiple: int) -> Bins:
    """The largest microbatch is split in two until the number divides: its samples, longest first, go to the half that has less."""
    bins = list(bins)
    while len(bins) % multiple:
        i = max((i for i in range(len(bins)) if len(bins[i]) > 1), key=lambda i: sum(bins[i]), default=None)
        if i is None:
            raise _too_few(multiple, len(bins))
        halves: tuple[Lengths, Lengths] = ([], [])
        for length in sorted(bins[i], reverse=True):
            min(halves, key=sum).append(length)
        bins[i] = halves[0]
        bins.append(halves[1])
    return bins


def moved_from_fullest(bins: Bins, multiple: int) -> Bins:
    """Microbatches of one sample each, taken from those with the most samples, until the number divides."""
    sources = sorted(((len(samples), i) for i, samples in enumerate(bins)), reverse=True)
    return _moved([list(samples) for samples in bins], [i for _, i in sources], multiple)


def moved_from_last(bins: Bins, multiple: int) -> Bins:
    """Microbatches of one sample each, taken from the last that have several, until the number divides."""
    return _moved([list(samples) for samples in bins], [*reversed(range(len(bins)))], multiple)


def _moved(bins: Bins, sources: list[int], multiple: int) -> Bins:
    missing = -len(bins) % multiple
    spare = [i for i in sources for _ in bins[i][1:]]
    if len(spare) < missing:
        raise _too_few(multiple, sum(map(len, bins)))
    return bins + [[bins[i].pop()] for i in spare[:missing]]


def _too_few(multiple: int, samples: int) -> ConfigError:
    return ConfigError(
        f"{counted(samples, 'sample')} cannot make a multiple of {multiple} microbatches; "
        "give a step more samples, or use fewer data-parallel ranks"
    )


# The rules of frameworks.


def _verl(lengths: Lengths, limits: Limits) -> Bins:
    return balanced(lengths, _verl_count(lengths, limits), LINEAR_COST)


def _verl_within(lengths: Lengths, limits: Limits) -> Bins:
    """More microbatches until none is above the bound (0.9.1)."""
    count = _verl_count(lengths, limits)
    while True:
        bins = balanced(lengths, count, LINEAR_COST)
        if max(map(sum, bins)) <= limits.tokens:
            return bins
        count += limits.group
        if count > len(lengths):
            raise _too_few(limits.group, len(lengths))


def _verl_count(lengths: Lengths, limits: Limits) -> int:
    """As many as the tokens need, or another rank has, rounded up to the group; each needs a sample."""
    count = _up(max(min(len(lengths), -(-sum(lengths) // limits.tokens)), limits.at_least), limits.group)
    if count > len(lengths):
        raise _too_few(count, len(lengths))
    return count


def _slime(lengths: Lengths, limits: Limits) -> Bins:
    return split_largest(first_fit(lengths, limits), limits.dp * limits.group)


def _miles(lengths: Lengths, limits: Limits) -> Bins:
    return _slime(sorted(lengths, reverse=True), limits)


def _legacy(lengths: Lengths, limits: Limits) -> Bins:
    count = max(len(first_fit(lengths, limits)), limits.at_least)
    count = max(1, count // limits.group * limits.group)
    if count > len(lengths):
        raise _too_few(count, len(lengths))
    return balanced(lengths, count)


def _nemo_rl(lengths: Lengths, limits: Limits) -> Bins:
    """The largest is the framework's; into which of the smaller ones a short sample goes can differ."""
    return moved_from_fullest(modified_first_fit(lengths, limits), limits.dp)


def modified_first_fit(lengths: Sequence[int], limits: Limits) -> Bins:
    """Modified first fit decreasing: a microbatch for each sample above half the bound; into each, in order, the longest above a third
    that fits; into those without one, from the last, two above a sixth; then all that still fits; the rest by first fit, decreasing."""
    most = limits.tokens
    order = sorted(lengths, reverse=True)
    bins = [[length] for length in order if 2 * length > most]
    middle = [length for length in order if most < 3 * length and 2 * length <= most]
    small = [length for length in order if most < 6 * length and 3 * length <= most]
    rest = [length for length in order if 6 * length <= most]
    for samples in bins:
        _take_longest(samples, middle, most)
    for samples in reversed(bins):
        if len(samples) > 1 or len(small) < 2 or sum(small[-2:]) > most - samples[0]:
            continue
        samples.append(small.pop())
        _take_longest(samples, small, most)
    left = sorted(middle + small + rest, reverse=True)
    for samples in bins:
        while _take_longest(samples, left, most):
            pass
    return bins + first_fit(left, limits)


def _take_longest(samples: Lengths, offered: Lengths, most: int) -> bool:
    """Moves the longest of the offered, which stand in falling order, that fits; whether one does."""
    room = most - sum(samples)
    i = next((i for i, length in enumerate(offered) if length <= room), None)
    if i is None:
        return False
    samples.append(offered.pop(i))
    return True


def _dynamic(lengths: Lengths, limits: Limits) -> Bins:
    """Sorted and dealt to ranks; a microbatch grows while its rows x its longest row, of any rank, keep the bound."""
    if len(lengths) % limits.dp:
        raise ConfigError(
            f"{counted(len(lengths), 'sample')} cannot be dealt equally to {limits.dp} data-parallel ranks"
        )
    order = sorted(lengths)
    bins: Bins = []
    rows = 0
    width = 0
    for i in range(limits.dp - 1, len(order), limits.dp):
        if rows and (rows + 1) * order[i] > limits.tokens:
            bins += [[width] * rows for _ in range(limits.dp)]
            rows = 0
        rows += 1
        width = order[i]
    return bins + [[width] * rows for _ in range(limits.dp if rows else 0)]


def _areal(lengths: Lengths, limits: Limits) -> Bins:
    least = max(2 * limits.pp if limits.pp > 1 else 1, limits.at_least)
    while True:
        if len(lengths) < least:
            raise _too_few(least, len(lengths))
        bins = _fewest_samples_first(lengths, limits.tokens, least)
        if len(bins) % limits.pp == 0:
            return bins
        least += limits.pp - least % limits.pp


def _fewest_samples_first(lengths: Lengths, most: int, least: int) -> Bins:
    """The longest first, each into the microbatch with the fewest samples among those with room; the first `least` open one each."""
    bins: Bins = []
    loads: list[tuple[int, int]] = []
    for length in sorted(lengths, reverse=True):
        if len(bins) < least or loads[0][0] + length > most:
            insort(loads, (length, len(bins)))
            bins.append([length])
        else:
            room = bisect_right(loads, (most - length, len(lengths)))
            j = min(range(room), key=lambda j: len(bins[loads[j][1]]))
            load, i = loads.pop(j)
            insort(loads, (load + length, i))
            bins[i].append(length)
    return bins


def _areal_kk(lengths: Lengths, limits: Limits) -> Bins:
    least = max(2 * limits.pp if limits.pp > 1 else 1, limits.at_least)
    if len(lengths) < least:
        raise _too_few(least, len(lengths))
    count = min(_up(max(least, -(-sum(lengths) // limits.tokens)), limits.pp), len(lengths))
    bins = balanced(lengths, count)
    return bins if max(map(sum, bins)) <= limits.tokens else _areal(lengths, limits)


def _skyrl(lengths: Lengths, limits: Limits) -> Bins:
    return emptiest_fit(lengths, limits)


def _skyrl_sft(lengths: Lengths, limits: Limits) -> Bins:
    return moved_from_fullest(first_fit(sorted(lengths, reverse=True), limits), limits.dp)


def _megatron_core(lengths: Lengths, limits: Limits) -> Bins:
    return moved_from_last(next_fit(lengths, limits), limits.dp * limits.group)


def _rows(lengths: Lengths, limits: Limits) -> Bins:
    """Every sample a row of its own, as wide as the bound; a microbatch of several rows has so many times the tokens."""
    return [[limits.tokens] for _ in lengths]


# How far above its bound a rule can go, with samples that keep it.


def _kept(limits: Limits, count: int) -> Worst:
    return Worst(limits.tokens, limits.tokens)


def _verl_worst(limits: Limits, count: int) -> Worst:
    """Of `count` microbatches.

    Attained: count + 1 equal samples, two of which share one: 2 count / (count + 1) of the bound. Or, where the square in verl's cost
    weighs (bounds above 24,576): count - 1 equal samples of u tokens and short ones, all of which share the microbatch that is left because
    together they cost no more than one sample of u: a (count B - (count - 1) u) = a u + u^2.
    The ceiling: no part costs more than another and one sample, so a T <= C, C - m (a + m) <= the mean of the others' costs, at most
    (a + m) (count B - T) / (count - 1), with m = B.
    """
    bound, a = limits.tokens, LINEAR_COST
    equal = 2 * (count * bound // (count + 1))
    u = (isqrt((a * count) ** 2 + 4 * a * count * bound) - a * count) // 2
    ceiling = (a + bound) * (2 * count - 1) * bound // (a * count + bound)
    attained = max(bound, equal, count * bound - (count - 1) * min(u + 1, bound))
    return Worst(attained, min(ceiling, count * bound))


def _legacy_worst(limits: Limits, count: int) -> Worst:
    """Of `count` microbatches, or of a number that first fit finds and a group divides.

    First fit finds microbatches within the bound. Without virtual stages as many are made, of like tokens: at most a third larger than the
    best partition (Michiels, Korst, Aarts, van Leeuwen, "Performance ratios for the Karmarkar-Karp differencing method"). Two samples each
    of m + 1, ..., 2m - 1, three of m and one of the bound 3m come near it.
    With a group g up to g - 1 fewer are made. Of 2g - 1 full ones two share one; no part is above another by more than one sample,
    so none above (3g - 2) / g of the bound. Where first fit finds g - 1, all samples are in one.
    """
    bound, group = limits.tokens, limits.group
    if group > 1:
        return Worst(max(2, group - 1) * bound, max((3 * group - 2) * bound // group, (group - 1) * bound))
    if count == 1:
        return _kept(limits, count)
    if count == 2:
        return Worst(7 * bound // 6, 7 * bound // 6)
    return Worst((4 * count - 5) * bound // (3 * count - 3), 4 * bound // 3)


# What a microbatch is padded to.


def _unpadded(shards: Shards) -> Padding:
    return Padding()


def _verl_padding(shards: Shards) -> Padding:
    return Padding(lcm(16, shards.split), 128 * shards.split) if shards.fp8 else Padding(shards.split)


def _slime_padding(shards: Shards) -> Padding:
    return Padding(2 * shards.cp if shards.cp > 1 else 1, shards.cp * shards.tp * SLIME_PAD)


def _areal_padding(shards: Shards) -> Padding:
    sample = lcm(shards.split, 16) if shards.fp8 else shards.split
    return Padding(sample, lcm(sample, AREAL_PAGE))


def _skyrl_padding(shards: Shards) -> Padding:
    ranks = shards.tp * shards.cp
    block = 0 if not shards.fp8 else 32 * ranks if shards.fp8 == "mxfp8" else (128 if shards.tp > 1 else 16) * ranks
    return Padding(lcm(shards.split, block or 1))


def _ms_swift_padding(shards: Shards) -> Padding:
    tile = {"": 1, "tensorwise": 16, "mxfp8": 32, "blockwise": 128}[shards.fp8]
    return Padding(1, shards.tp * shards.cp * tile)


@dataclass(frozen=True)
class Rule:
    """How one framework makes microbatches.

    `longer`: a sample above the bound is a microbatch alone, is cut to the bound, is left out, or ends the run.
    `of`: the samples of a rank, or of all data-parallel ranks, are packed together.
    `even`: with pipeline stages every microbatch is padded to the largest.
    """

    name: str
    make: Callable[[Lengths, Limits], Bins]
    longer: Literal["alone", "cut", "dropped", "refused"]
    of: Literal["rank", "batch"]
    worst: Callable[[Limits, int], Worst] = _kept
    padding: Callable[[Shards], Padding] = _unpadded
    even: bool = False


RULES: dict[str, Rule] = {
    "verl": Rule("verl to 0.9.0", _verl, "refused", "rank", _verl_worst, _verl_padding),
    "verl_0_9_1": Rule("verl from 0.9.1", _verl_within, "refused", "rank", padding=_verl_padding),
    "slime": Rule("slime", _slime, "alone", "batch", padding=_slime_padding),
    "miles": Rule("miles", _miles, "alone", "batch", padding=_slime_padding),
    "slime_legacy": Rule("slime and miles before dp_schedule.py", _legacy, "alone", "rank", _legacy_worst, _slime_padding),
    "nemo_rl": Rule("NeMo-RL sequence packing", _nemo_rl, "refused", "batch", even=True),
    "nemo_rl_dynamic": Rule("NeMo-RL dynamic batching", _dynamic, "refused", "batch"),
    "roll": Rule("ROLL dynamic batching", _dynamic, "refused", "batch"),
    "areal": Rule("AReaL", _areal, "refused", "rank", padding=_areal_padding),
    "areal_kk": Rule("AReaL with packing_algorithm kk", _areal_kk, "refused", "rank", padding=_areal_padding),
    "skyrl": Rule("SkyRL", _skyrl, "alone", "rank", padding=_skyrl_padding),
    "skyrl_sft": Rule("SkyRL SFT", _skyrl_sft, "refused", "batch", padding=_skyrl_padding),
    "megatron_core": Rule("Megatron-Core dp_balanced", _megatron_core, "alone", "batch"),
    "megatron_lm_sft": Rule("Megatron-LM SFT dataset", _rows, "cut", "batch"),
    "ms_swift": Rule("ms-swift packing", emptiest_fit, "dropped", "batch", padding=_ms_swift_padding),
    "ms_swift_sequential": Rule("ms-swift packing in order", next_fit, "dropped", "batch", padding=_ms_swift_padding),
}  # fmt: skip
"""Who does not know the release of verl takes `verl`, which can be the larger. ms-swift packs 1,000 samples at a time."""


def rule_of(name: str) -> Rule:
    """The row of a rule's name."""
    if name not in RULES:
        raise ConfigError(f"no rule of microbatches is called {name!r}; use {any_of(RULES)}")
    return RULES[name]


def microbatches(rule: str, lengths: Sequence[int], limits: Limits) -> tuple[tuple[int, ...], ...]:
    """The lengths in each microbatch, as the framework counts them: rounded where it rounds, cut where it cuts, as wide as their row.

    `lengths` are the samples of a rank or of a step's whole batch, as the rule's `of` says. Raises ConfigError where the framework stops.
    """
    row = rule_of(rule)
    for length in lengths:
        if type(length) is not int or length < 1:
            raise ConfigError(f"a sample's length must be a whole number of at least 1, not {length!r}")
    counted_lengths = _admitted(row, [_up(length, limits.round_to) for length in lengths], limits.tokens)
    return tuple(map(tuple, row.make(counted_lengths, limits))) if counted_lengths else ()


def _admitted(row: Rule, lengths: Lengths, bound: int) -> Lengths:
    """The lengths that are packed: what becomes of samples above the bound."""
    if row.longer == "refused" and max(lengths, default=0) > bound:
        raise ConfigError(
            f"{row.name} stops at a sample of {max(lengths)} tokens: its bound is {bound}; raise the bound or cut samples"
        )
    if row.longer == "cut":
        return [min(length, bound) for length in lengths]
    return [length for length in lengths if length <= bound] if row.longer == "dropped" else lengths


def of_ranks(rule: str, ranks: Sequence[Sequence[int]], limits: Limits) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The microbatches of every data-parallel rank, for a rule that packs a rank's samples: all make as many as the one that needs most."""
    while True:
        made = tuple(microbatches(rule, lengths, limits) for lengths in ranks)
        most = max(map(len, made), default=0)
        if most == limits.at_least or all(len(bins) == most for bins in made):
            return made
        limits = replace(limits, at_least=most)


def tokens(rule: str, lengths: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """Tokens of every microbatch, before padding."""
    sums = tuple(map(sum, microbatches(rule, lengths, limits)))
    return (max(sums),) * len(sums) if sums and rule_of(rule).even and limits.pp > 1 else sums


def longest(rule: str, lengths: Sequence[int], limits: Limits) -> int:
    """Tokens of the largest microbatch, before padding."""
    return max(tokens(rule, lengths, limits), default=0)


def padded(rule: str, microbatch: Sequence[int], shards: Shards) -> int:
    """Tokens of a microbatch with the padding of its samples and of the whole; a context-parallel rank has 1 / cp of them."""
    sample, whole = rule_of(rule).padding(shards)
    return _up(sum(_up(length, sample) for length in microbatch), whole)


def worst(rule: str, limits: Limits, count: int = MANY) -> Worst:
    """Tokens that the largest of `count` microbatches of a rank can reach with samples within the bound, before padding."""
    return rule_of(rule).worst(limits, count)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
