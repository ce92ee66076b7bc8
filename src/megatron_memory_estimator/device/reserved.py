"""From torch's allocated peak to what its caching allocator reserves.

The allocator's rules (`allocator.py`), played over a rank's whole run (`replay.py`), give reserved memory request by request. That is
too long for every estimate and every layout of a search, so these take the largest share of the allocated peak that the rules left
unused in such replays: tests/facts/played_shares.jsonl, made by scripts/played_shares.py from published recipes and catalogue models.
No measured run is among them; the measured ones check the replay, and the shares (docs/explanation/device_memory.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..job.training import Training
from ..job.training_job import TrainingJob
from ..modules.flash_next import MIXER, NORMED
from ..rank.captures import capture_scratch, graph_ends, outputs_in_pool, pool
from ..rank.peak import Peak
from ..rank.rank import Rank, state_bytes
from ..tape.tensor import chosen, largest, whole_below
from .phases import build, built_apart, own_storage
from .terms import Range, Term, together


class Played(NamedTuple):
    """The most that the allocator's rules leave unused: as a share of the allocated peak, and of what is freed at some time: all that is
    not model state at the peak, and the parameters' own storage. Neither was exceeded, so the smaller one holds."""

    of_peak: float
    of_freed: float


EVEN_SIZES = Played(0.1, 0.29)
"""Sizes that repeat in every microbatch."""
VARYING_SIZES = Played(0.16, 0.6)
"""Sizes that do not, of dropless experts; or what is left of recomputed MoE layers between steps, which lies among the others."""
EXPANDABLE = Played(0.03, 0.07)
"""Expandable segments, with either."""
BUILT, BUILT_EXPANDABLE = 0.1, 0.005
"""Largest share of what building the model allocates in all that its segments take more: parameters below 10 MiB share segments of 20,
larger ones are rounded up to 2 MiB; expandable segments know pages only."""
ROOMY, ROOMY_PADDED = 0.11, 0.21
"""Judgement: what runs with expandable segments reserved beyond the allocated peak where there was room; with experts padded to a fixed
capacity. The rules explain `EXPANDABLE` of it; the rest is other streams, loading and first-time autotuning, which torch gives back
before it runs out of memory. Most of 12 public pairs and two ratios (tests/facts/reserved_pairs.json), so nothing checks it but leaving
families out. Effect: 9 to 19 % of the peak at the high end of the reserved and device ranges; none on a verdict."""
PLAYED_SOURCE = "the allocator's rules played over whole runs (docs/explanation/device_memory.md)"
ROOMY_SOURCE = "judgement: 12 public runs with room to spare (docs/explanation/device_memory.md)"


def slack(job: TrainingJob, rank: Rank, peak: Peak) -> Term:
    """Reserved minus allocated at the peak, where the device has room for it."""
    if job.env.fragmentation is not None:
        given = slack_bytes(peak.nbytes, job.env.fragmentation)
        return Term("fragmentation", given, given, "set by the user")
    if job.env.expandable_segments:
        padded = job.training.moe_pad_expert_input_to_capacity and job.model.has_moe
        return Term("fragmentation", 0, slack_bytes(peak.nbytes, ROOMY_PADDED if padded else ROOMY), ROOMY_SOURCE)
    return Term("fragmentation", 0, unused_bytes(job, peak.nbytes, freed_bytes(rank, peak)), PLAYED_SOURCE)


def slack_bytes(peak: Any, share: float) -> Any:
    """So large a share of the allocated peak."""
    return whole_below(peak * share)


def freed_bytes(rank: Rank, peak: Peak) -> int:
    """What is freed at some time: all that is not model state at the peak, and the parameters' own storage."""
    return largest(peak.nbytes - state_bytes(rank, "setup", "first step"), 0) + own_storage(rank)


def recomputes_routers(training: Training) -> bool:
    """Whether MoE layers are recomputed with their routers, which leave a tensor between steps (rank/boundary.py)."""
    return training.recomputes_whole_layers() or training.recomputes("moe")


def unused_bytes(job: TrainingJob, peak: Any, freed: Any) -> Any:
    """The most that the allocator's rules leave unused, or what the user sets."""
    if job.env.fragmentation is not None:
        return slack_bytes(peak, job.env.fragmentation)
    t = job.training
    varying = job.model.has_moe and (not t.fixed_expert_rows or recomputes_routers(t))
    played = EXPANDABLE if job.env.expandable_segments else VARYING_SIZES if varying else EVEN_SIZES
    first, second = peak * played.of_peak, freed * played.of_freed
    return whole_below(chosen(first <= second, first, second))


def graph_slack(job: TrainingJob, rank: Rank, peak: Peak) -> Term:
    """Reserved for CUDA graphs beyond torch's allocated peak.

    Layers: their private pool is never given back, and holds what the eager steps before held as activations; without eager
    steps before it comes on top. At most also static buffers, outputs, and the temporaries of a capture, which stay in the pool.
    The whole iteration: the pool holds the passes for good, and the optimizer step, which runs outside the graph, cannot take its
    temporaries from it. That is read from source and measured by nobody; a run that ran (DeepSeek-V4-Pro on 256 GB300, Megatron-Bridge
    PR 4808) had no room for all of it, so that it is the high end alone. What the eager warm-up steps left is given back before the
    capture, but for idle parts of split segments, which the allocator's share of the peak covers (`unused_bytes`).
    Source: Megatron-LM `megatron/core/full_cuda_graph.py`, `megatron/core/transformer/cuda_graphs.py`; pytorch `torch/cuda/graphs.py`
    (graph.__enter__ calls empty_cache).
    """
    kind, warm = job.training.cuda_graph_impl, job.training.cuda_graph_warmup_steps
    if kind == "full_iteration":
        both = peak.beside_the_passes
        return Term("optimizer step beside the CUDA graph's pool", 0, both, "torch/cuda/graphs.py: a pool of its own")
    pooled, step = pool(rank)
    if step is None:
        return Term("CUDA graph pool", 0, 0, "")
    low = 0 if warm else pooled
    beside = (*graph_ends(rank), *outputs_in_pool(rank))
    high = low + sum(t.nbytes for t in beside) + capture_scratch(rank)
    source = "Megatron-LM megatron/core/transformer/cuda_graphs.py: private pool and static buffers of captured layers"
    return Term("CUDA graph pool", low, high, source)


def wide_streams(rank: Rank) -> Term:
    """Copies of the streams in fp32, as many bytes as the normed ones: kept where the norms of Qwen3.8-Flash-Next's mixers run op by op.
    The record of what they keep compiles them; published peaks are up to 8 % above it, and within 1 % with the copies."""
    normed, high = f"{MIXER}.{NORMED}", 0
    for plan, most in zip(rank.plans, rank.schedule.per_chunk, strict=True):
        kept = sum(
            run.copies * one.tensor.nbytes for run in plan.runs for one in run.trace.saved if normed in one.tensor.name
        )
        high += most * kept
    return Term("streams in fp32, if norms run op by op", 0, high, "Megatron-LM pull request 7553 is not merged")


def beyond_peak(job: TrainingJob, rank: Rank, peak: Peak) -> list[Term]:
    """What training may take beyond its allocated peak, the allocator's own apart."""
    streams = [wide_streams(rank)] if rank.context.model.stream == "gated" else []
    return [term for term in (graph_slack(job, rank, peak), *streams) if term.high]


def reserved_bytes(job: TrainingJob, rank: Rank, peak: Peak) -> Range:
    """Bytes that torch's caching allocator takes from the device where there is room."""
    more = together([slack(job, rank, peak), *beyond_peak(job, rank, peak)])
    return Range(
        largest(peak.nbytes + more.low, build(rank)), most_reserved(job, peak.nbytes, more.high, built_apart(rank))
    )


def loaded_high(job: TrainingJob, loaded: Any) -> Any:
    """Reserved bytes of loading a checkpoint at most: what it allocates are tensors of the sizes that building makes."""
    return built_high(job, loaded)


def most_reserved(job: TrainingJob, peak: Any, more: Any, apart: Any) -> Any:
    """The most reserved bytes: of the allocated peak with so much slack, or of building the model, whichever is more."""
    return largest(peak + more, built_high(job, apart))


def built_high(job: TrainingJob, apart: Any) -> Any:
    """Reserved bytes of building the model at most."""
    return whole_below(apart * (1 + (BUILT_EXPANDABLE if job.env.expandable_segments else BUILT)))
