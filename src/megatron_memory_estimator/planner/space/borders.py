"""Generated pipeline layouts: stage borders that balance the work where layers, MTP and the loss do not divide evenly.

How many layers each chunk of a pipeline gets, so that its schedule is as short as can be.

Ranks with equal work are not enough: a rank runs one chunk after the other, and while a chunk of one rank is long all others wait for
it. Nor are equal chunks, where MTP and the loss weigh as much as several layers. So both are balanced, in several proportions, and the
schedule of each is simulated.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, product
from typing import Any, NamedTuple

from ...job.layout import Layout
from ...job.model import Model
from ...job.pipeline import parse_layout
from ...job.training import Training
from ...modules.context import Context
from ...modules.kinds import kinds_of
from ...modules.layers import layer_unit
from ...tape.tensor import total
from ...throughput.schedule import Schedule, pipeline_seconds

EVEN: dict[str, Any] = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": None,
}
"""Settings of an even split of the layers."""


class Work(NamedTuple):
    """Work of each layer, of all MTP depths, of the loss with theirs on the last chunk, and of the embedding on the first."""

    layers: Sequence[float]
    mtp: float
    loss: float
    embedding: float


def weights(model: Model) -> Work:
    """Work by the parameters that one token uses."""
    c = Context(model, Layout(), Training(), "cudnn")
    each: dict[str, float] = {}
    for kind in model.every_kind:
        routed = sum(p.numel for p in layer_unit(c, kind).params if p.split == "expert")
        rest = sum(p.numel for p in layer_unit(c, kind).params if p.split != "expert")
        each[kind] = rest + routed * model.moe_router_topk / (model.num_moe_experts or 1)
    head = float(model.hidden_size * model.padded_vocab(1))
    depth = sum(each[kind] for kind in (model.mtp_kinds if model.mtp else ())) + 2 * model.hidden_size**2
    return Work(
        [each[kind] for kind in model.kinds], model.mtp * depth, (1 + model.mtp) * head, float(model.hidden_size)
    )


def generated_layout(model: Model, pp: int, vp: int, work: Work | None = None) -> str | None:
    """A pipeline_model_parallel_layout whose schedule is as short as can be; None where it would be the even split.

    Every chunk holds a layer, but for those of the loss and of MTP. `work` is that of `weights` where it is not given.
    """
    each, mtp, loss, embedding = work or weights(model)
    sizes = together(model)
    layers = [sum(each[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    chunks = pp * vp
    if chunks < 2 or len(layers) < chunks:
        return None
    found = []
    before = tuple(accumulate(layers, initial=0.0))
    first = max(model.moe_n_hash_layers, 1)  # hash layers are beside the embedding
    streams = model.several_streams and mtp > 0  # and MTP beside the last layer
    apart = mtp and not streams and not model.hybrid
    for behind in (0, 1) if apart else (0,):  # MTP in the last chunk, or in the one before
        extra = [0.0] * chunks
        extra[-1] += loss
        extra[0] += embedding
        extra[-1 - behind] += mtp
        least = [first] + [1] * (chunks - 2) + [int(streams or model.hybrid)]
        if apart:
            least[-1 - behind] = 0
        if sum(least) > len(layers):  # hash layers, or MTP's, leave too few for the other chunks
            continue
        held = chunks - behind  # no layer may follow MTP
        seconds, counts = balanced(Chunks(before, tuple(extra), tuple(least), pp, held))
        found.append((seconds, behind, counts))
    if not found:
        return None
    _, behind, split = min(found)
    ends = [0, *accumulate(sizes)]
    layers_of = [ends[end] - ends[start] for start, end in pairwise(accumulate(split, initial=0))]
    if not mtp and len(set(layers_of)) == 1 and not (model.hybrid and vp > 1):
        return None
    texts = ["t" * count for count in layers_of]
    texts[0] = "E" + texts[0]
    texts[-1 - behind] += "m" * model.mtp
    texts[-1] += "L"
    return _written(texts)


def bordered(model: Model, text: str) -> Model:
    """A hybrid with the borders of a layout string written into its pattern."""
    main, *mtp = (model.hybrid_layer_pattern or "").split("/")
    ends = list(accumulate(chunk.count("t") for chunk in parse_layout(text)))
    segments = [main[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return dataclasses.replace(model, hybrid_layer_pattern="/".join(("|".join(segments), *mtp)))


def together(model: Model) -> list[int]:
    """How many layers in a row stand in one chunk: those that share the keys that an indexer before them picked stand with it."""
    sizes: list[int] = []
    for kind in model.kinds:
        if sizes and any(one.borrows for one in kinds_of(kind)):
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def _written(chunks: list[str]) -> str:
    """The layout string; equal chunks in a row are written once: (tt|)*29."""
    parts = []
    for text, members in groupby(chunks[:-1]):
        count = len(list(members))
        parts.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join(parts) + chunks[-1]


ROWS = (0.0, 0.5, 1.0)
"""Weights of the chunks that run at the same time, beside the ranks, in what is balanced."""
GROUPS = 12
"""Groups of microbatches of the step that is simulated."""
BACKWARD = 2.0
"""Seconds of a backward relative to its forward, without recomputation."""


class Chunks(NamedTuple):
    """What is split: the work of all layers before each one and of all, what each chunk has beside layers, the fewest layers of each,
    the ranks, and how many chunks may hold layers."""

    before: tuple[float, ...]
    extra: tuple[float, ...]
    least: tuple[int, ...]
    pp: int
    held: int

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.before) - 1

    @property
    def sizes(self) -> list[float]:
        """The work of each layer."""
        return [end - start for start, end in pairwise(self.before)]

    def loads(self, counts: Sequence[int]) -> list[float]:
        """The work of each chunk."""
        borders = [self.before[at] for at in accumulate(counts, initial=0)]
        return [end - start + more for start, end, more in zip(borders, borders[1:], self.extra, strict=False)]


@lru_cache(maxsize=4096)  # asked again for every space that a refusal tries
def balanced(chunks: Chunks) -> tuple[float, tuple[int, ...]]:
    """The seconds of the shortest schedule, and its layers of each chunk."""
    proportions = ROWS if len(chunks.extra) > chunks.pp else ROWS[:1]  # of one chunk a rank they are all the same
    starts = [(0.0, _even(chunks)), *((rows, _filled(chunks, rows)) for rows in proportions)]
    starts = [start for start in starts if all(n >= least for n, least in zip(start[1], chunks.least, strict=True))]
    found: dict[tuple[int, ...], None] = {}
    for rows, start in starts:
        climbed, tied = _climbed(chunks, rows, start, min)
        found[tuple(climbed)] = None
        if tied:
            found[tuple(_climbed(chunks, rows, max(tied), max)[0])] = None
    best: tuple[float, tuple[int, ...]] = float("inf"), ()
    for least, counts in sorted((_busiest(chunks, counts), counts) for counts in found):
        if least <= best[0]:
            best = min(best, (_seconds(chunks, counts), counts))
    return best


def _busiest(chunks: Chunks, counts: Sequence[int]) -> float:
    """The seconds of the busiest rank behind the way there and before the way back of a microbatch: no schedule is shorter."""
    loads = chunks.loads(counts)
    ranks, _ = _sums(chunks, loads)
    ways = accumulate(loads, initial=0.0)
    most = max(GROUPS * chunks.pp * rank + way for rank, way in zip(ranks, ways, strict=False))
    return (1 - 1e-9) * (1.0 + BACKWARD) * most


def _seconds(chunks: Chunks, counts: Sequence[int]) -> float:
    pp = chunks.pp
    loads = chunks.loads(counts)
    schedule = Schedule(pp, len(loads) // pp, pp)
    seconds = [way * load for rank in range(pp) for load in loads[rank::pp] for way in (1.0, BACKWARD)]
    return float(pipeline_seconds(schedule, GROUPS * pp, seconds))


DIGITS = 12
"""Loads that differ less, as shares of all work, are equal: sums of other orders."""


def _even(chunks: Chunks) -> list[int]:
    """As many layers on every chunk, or one more on the last ones."""
    layers, held = chunks.layers, chunks.held
    return [layers // held + (at >= held - layers % held) if at < held else 0 for at in range(len(chunks.extra))]


def _filled(chunks: Chunks, rows: float) -> list[int]:
    """One layer after the other on the chunk that is least loaded, or whose rank is, in a proportion."""
    pp, counts = chunks.pp, list(chunks.least)
    mean = chunks.before[-1] / chunks.layers
    loads = [count * mean + more for count, more in zip(counts, chunks.extra, strict=True)]
    ranks = [total(loads[rank::pp]) for rank in range(pp)]
    weights = [(1 - rows) * ranks[at % pp] + (rows + 0.01) * loads[at] for at in range(chunks.held)]
    for _ in range(chunks.layers - sum(counts)):
        at = weights.index(min(weights))
        counts[at] += 1
        weights[at] += (rows + 0.01) * mean
        for beside in range(at % pp, chunks.held, pp):
            weights[beside] += (1 - rows) * mean
    return counts


def _climbed(
    chunks: Chunks, rows: float, counts: list[int], of_equals: Callable[[list[list[int]]], list[int]]
) -> tuple[list[int], list[list[int]]]:
    """One layer at a time moves from a heavy chunk to a light one, as long as that helps; `of_equals` takes one of equal moves. And the
    first moves that were equal, as what they lead to."""
    unit, tied = chunks.before[-1], list[list[int]]()
    while True:
        loads = _Loads(chunks, rows, counts)
        least, best = (round(loads.worst / unit, DIGITS), 0.0), list[tuple[int, int]]()
        for move in _moves(chunks, counts, loads.loads):
            moved = loads.moved(*move)
            worst = loads.changed(moved) / unit
            if worst > least[0] + 2 * 10**-DIGITS:
                continue
            squares = total([load * load - loads.loads[at] ** 2 for at, load in moved.items()])
            load = round(worst, DIGITS), round(squares / unit**2, DIGITS)
            if load < least:
                least, best = load, [move]
            elif best and load == least:
                best.append(move)
        if not best:
            return counts, tied
        after = [[n - (at == taken) + (at == given) for at, n in enumerate(counts)] for taken, given in best]
        tied = tied or (after if len(after) > 1 else tied)
        counts = of_equals(after)


class _Loads:
    """The work of chunks that hold so many layers each, of ranks, and of the heaviest chunk of each row; and what a move changes of it."""

    def __init__(self, chunks: Chunks, rows: float, counts: Sequence[int]) -> None:
        self.pp, self.rows, self.loads = chunks.pp, rows, chunks.loads(counts)
        self.ranks, self.heaviest = _sums(chunks, self.loads)
        self.order = sorted(range(chunks.pp), key=self.ranks.__getitem__, reverse=True)
        self.worst = (1 - rows) * max(self.ranks) + rows * total(self.heaviest)
        ends, sizes = list(accumulate(counts, initial=0)), chunks.sizes
        self.last = [sizes[end - 1] for end in ends[1:]]
        """[chunk]: the work of the layer that it hands on."""
        self.first = [sizes[start] if start < len(sizes) else 0.0 for start in ends[:-1]]
        """[chunk]: the work of the layer that it hands back."""
        self.onward = [at for at in range(1, len(counts)) if self.last[at] != self.last[at - 1]]
        self.backward = [at for at in range(len(counts) - 1) if self.first[at] != self.first[at + 1]]

    def moved(self, taken: int, given: int) -> dict[int, float]:
        """The work of the chunks that changes where one gives a layer to another: those between hand one on."""
        loads = self.loads
        if taken < given:
            gone, step = self.last, 1
            between = self.onward[bisect_right(self.onward, taken) : bisect_left(self.onward, given)]
        else:
            gone, step = self.first, -1
            between = self.backward[bisect_right(self.backward, given) : bisect_left(self.backward, taken)]
        found = {taken: loads[taken] - gone[taken]}
        for at in between:
            found[at] = loads[at] + gone[at - step] - gone[at]
        found[given] = loads[given] + gone[given - step]
        return found

    def changed(self, moved: dict[int, float]) -> float:
        """The busiest rank and the heaviest chunk of each row, in a proportion, when the work of some chunks has changed."""
        found = 0.0
        if self.rows < 1:
            ranks: dict[int, float] = {}
            for at, load in moved.items():
                rank = at % self.pp
                ranks[rank] = ranks.get(rank, self.ranks[rank]) + load - self.loads[at]
            others = (self.ranks[rank] for rank in self.order if rank not in ranks)
            found += (1 - self.rows) * max(*ranks.values(), next(others, 0.0))
        if self.rows > 0:
            found += self.rows * total(self._heaviest(moved))
        return found

    def _heaviest(self, moved: dict[int, float]) -> list[float]:
        most, again = list(self.heaviest), set[int]()
        for at, load in moved.items():
            row, before = at // self.pp, self.loads[at]
            if before == self.heaviest[row] and load < before:
                again.add(row)
            elif load > most[row]:
                most[row] = load
        for row in again:  # what was heaviest is not any more
            most[row] = max([moved.get(at, self.loads[at]) for at in range(row * self.pp, row * self.pp + self.pp)])
        return most


def _sums(chunks: Chunks, loads: Sequence[float]) -> tuple[list[float], list[float]]:
    """The work of each rank, and the heaviest chunk of each row."""
    pp = chunks.pp
    return [total(loads[rank::pp]) for rank in range(pp)], [max(loads[at : at + pp]) for at in range(0, len(loads), pp)]


def _moves(chunks: Chunks, counts: Sequence[int], loads: Sequence[float]) -> Iterator[tuple[int, int]]:
    """From the heaviest chunk of each row and of the busiest rank to the lightest of each row and of each rank."""
    pp, held = chunks.pp, chunks.held
    rows = [range(start, min(start + pp, held)) for start in range(0, held, pp)]
    ranks = [range(rank, held, pp) for rank in range(pp) if rank < held]
    busiest = max(range(pp), key=lambda rank: total(loads[rank::pp]))
    taking, giving = set[int](), set[int]()
    for line in (*rows, range(busiest, held, pp)):
        spare = [at for at in line if counts[at] > chunks.least[at]]
        taking.update(sorted(spare, key=loads.__getitem__)[-1:])
    for line in (*rows, *ranks):
        giving.add(min(line, key=loads.__getitem__))
    yield from ((a, b) for a, b in product(sorted(taking), sorted(giving)) if a != b)
