"""Phases of a run beside its training steps, each with an allocated peak of its own: build, load, save.

Sources: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`; what loading and saving allocate is in `checkpoint.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from ..job.hardware import GIB
from ..rank.peak import Peak, find_peak
from ..rank.rank import Rank, state_bytes
from ..states.fsdp import active, gathered_dtype, turned
from ..states.state import State, is_second, model_state
from ..tape.tensor import DTYPE_BYTES, ceil_div, largest
from .checkpoint import adopts, by_rank, load_terms, save_terms, shards, tables_of
from .terms import Range, Term, together, widest

SOURCES = {
    "first_step": "Megatron-LM dev megatron/training/arguments.py (chunked_optimizer_state_offload)",
    "load": "checkpointing.py (load_checkpoint), distrib_optimizer.py, fused_adam.py",
    "save": "dist_checkpointing/strategies/, distrib_optimizer.py",
}
FP32_MOMENTS = "fp32 moments (--exp-avg-dtype, --exp-avg-sq-dtype) need no copies in fp32"


class Phase(NamedTuple):
    """A phase and its allocated peak, as a range in bytes.

    `terms` are what the peak is made of, at its low and at its high end; `lower` says what makes it smaller.
    """

    name: str
    low: int
    high: int
    source: str
    terms: tuple[Term, ...] = ()
    lower: str = ""


def build(rank: Rank) -> int:
    """Allocated peak of building the model: each buffer is allocated while its parameters still have their own storage.

    Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`.
    """
    if active(rank.context):
        return _built_sharded(rank)
    pending, sizes, beside = _built(rank)
    built = top = 0
    for both, weights in sizes:
        top = largest(top, built + pending + both)
        built, pending = built + both, pending - weights
    return top + beside


def built_apart(rank: Rank) -> int:
    """What building the model allocates in all: more than its peak where there are several buffers, for each of which the freed
    parameters of those before are too small."""
    if active(rank.context):
        return _built_sharded(rank)
    pending, sizes, beside = _built(rank)
    total: int = pending + sum(both for both, _ in sizes) + beside
    return total


def own_storage(rank: Rank) -> int:
    """Bytes of the parameters' own storage, which is freed when the buffers are built. Megatron-FSDP gives its segments back."""
    return 0 if active(rank.context) else _built(rank)[0]


def _built_sharded(rank: Rank) -> int:
    """Allocated peak of building a fully sharded model: all parameters whole on the GPU, unless they are on the meta device
    (torch FSDP2: or in host memory), where each group of them (a layer, or what is outside of layers) is copied into a bucket,
    sharded and freed; then the gradients.

    Read from source; no run exercises it. Source: Megatron-LM `megatron/training/training.py` (get_model: model_module.cuda),
    `megatron_fsdp/param_and_grad_buffer.py`
    (_init_each_parameter_group_buffers).
    """
    c, t = rank.context, rank.context.training
    beside = sum(s.nbytes for s in rank.states if s.frozen) + sum(t.nbytes for t, _ in tables_of(rank))
    grads = sum(s.nbytes for s in rank.states if s.part == "gradients")
    weights = sum(s.nbytes for s in rank.states if s.part == "weights" and not s.frozen)
    masters = sum(s.nbytes for s in rank.states if s.tensor == "main_param" and s.since == "setup")
    each = DTYPE_BYTES[gathered_dtype(c)] * (2 if turned(c) else 1)
    runs = [
        (run.copies, each * sum(p.numel for p in run.params if not p.frozen) * (run.copies > 0))  # of arrays, 0 in some
        for plan in rank.plans
        for run in plan.runs
    ]
    total = sum(copies * size for copies, size in runs)
    if t.init_model_with_meta_device or (t.use_torch_fsdp2 and t.use_cpu_initialization):
        # the modules of a unit, made one by one, and its bucket
        bucket = reduce(largest, (size for _, size in runs), 0)
        return largest(weights + masters + 2 * bucket, weights + masters + grads) + beside
    whole, done, top = total, 0, 0
    for copies, size in runs:
        for before in (0, copies - 1):  # in between it rises or falls evenly
            share = ceil_div((weights + masters) * (done + (before + 1) * size), largest(total, 1))
            top = largest(top, whole - before * size + size + share)
        whole, done = whole - copies * size, done + copies * size
    return largest(top, weights + masters + grads) + beside


def _built(rank: Rank) -> tuple[int, list[tuple[int, int]], int]:
    """Bytes of the parameters' own storage, of each buffer's weights and gradients together and weights alone, and of frozen weights
    and tables."""
    beside = sum(s.nbytes for s in rank.states if s.frozen) + sum(t.nbytes for t, _ in tables_of(rank))
    if not rank.buffers:
        return 0, [], beside
    own: dict[tuple[str, int], list[State]] = {}
    for state in rank.states:
        if state.part in ("weights", "gradients"):
            own.setdefault((state.group, state.chunk), []).append(state)
    sizes = []
    for buffer in rank.buffers:
        mine = own[buffer.group, buffer.chunk]
        sizes.append((sum(s.nbytes for s in mine), next(s.nbytes for s in mine if s.part == "weights")))
    return sum(weights for _, weights in sizes), sizes, beside


def resident(rank: Rank) -> Rank:
    """The rank with all of its optimizer's state on the GPU (no `chunked_optimizer_state_offload`)."""
    c, training = rank.context, dataclasses.replace(rank.context.training, chunked_optimizer_state_offload=False)
    c = dataclasses.replace(c, training=training)
    others = (s for s in rank.states if s.frozen or is_second(s))
    return dataclasses.replace(rank, context=c, states=(*model_state(c, list(rank.buffers)), *others))


def first_step_range(rank: Rank, peak: Peak) -> Range:
    """Allocated peak of a first step whose state is in host memory behind it: what later steps need at least, and the whole state on the
    GPU from the start at most. Where the step makes the state is not public."""
    return Range(peak.nbytes, largest(peak.nbytes, find_peak(resident(rank)).first_step))


def load_range(rank: Rank) -> Range:
    """Allocated bytes of loading a checkpoint where the GPU is short of memory: the model state, and what `checkpoint.load_terms` says is
    beside it. State that is in host memory between steps may be loaded there, or through the GPU."""
    if rank.context.training.chunked_optimizer_state_offload:
        return Range(loaded_state(rank), load_range(resident(rank)).high)
    state = loaded_state(rank)
    more = most(load_terms(rank, short=True))
    return Range(state + more.low, state + more.high)


def loaded_state(rank: Rank) -> int:
    """Bytes of model state at the end of a load; without optimizer state of the file, moments appear in the first step only."""
    return state_bytes(rank, "setup", "first step") if rank.context.training.load_optim else state_bytes(rank, "setup")


def save_range(rank: Rank) -> Range:
    """Bytes beside what is allocated between two steps while a checkpoint is saved; none of state that is written from host memory, at
    least."""
    if rank.context.training.chunked_optimizer_state_offload:
        return Range(0, save_range(resident(rank)).high)
    return most(save_terms(rank))


def most(moments: Sequence[Sequence[Term]]) -> Range:
    """The most of several moments, at either end."""
    return reduce(widest, map(together, moments))


def load(rank: Rank) -> Phase:
    """Loading a checkpoint: the model state that is there then, and what `checkpoint.load_terms` says is beside it."""
    if rank.context.training.chunked_optimizer_state_offload:
        return _either("load", "model state", load_range(rank), loaded_state(rank), FROM_HOST)
    whole = rank.context.training.load_optim
    name = "model state" if whole else "model state before the first step"
    return _phase("load", name, loaded_state(rank), load_terms(rank), lower_load(rank))


def save(rank: Rank, steady: int) -> Phase:
    """Saving a checkpoint between two steps: shards are copied to the host, and what `checkpoint.save_terms` says is new."""
    if rank.context.training.chunked_optimizer_state_offload:
        found = Range(*(steady + more for more in save_range(rank)))
        return _either("save", "allocated between two steps", found, steady, FROM_HOST)
    lower = FP32_MOMENTS if any(one.low for one in shards(rank)) else ""
    return _phase("save", "allocated between two steps", steady, save_terms(rank), lower)


FROM_HOST = "as without chunked_optimizer_state_offload"
"""What is beside a state in host memory, at most."""


def _either(name: str, base: str, found: Range, least: int, more: str) -> Phase:
    """A phase between what is surely there and what may be beside it."""
    terms = (
        Term(base, least, least, "the run's own state"),
        Term(more, found.low - least, found.high - least, SOURCES[name]),
    )
    return Phase(name, found.low, found.high, SOURCES[name], terms)


def _phase(name: str, base: str, size: int, moments: Sequence[Sequence[Term]], lower: str) -> Phase:
    """The phase whose peak is its largest moment.

    The terms are those of the moment with the highest end; where another one is at least larger, the difference is a term too.
    """
    lows, highs = ([sum(getattr(t, end) for t in terms) for terms in moments] for end in ("low", "high"))
    terms = moments[max(range(len(moments)), key=lambda at: (highs[at], lows[at]))]
    surest = moments[lows.index(max(lows))]
    if missing := max(lows) - sum(t.low for t in terms):
        instead = "or at least: " + ", ".join(t.name for t in surest)
        terms = [*terms, Term(instead, missing, 0, surest[0].source)]
    first = Term(base, size, size, "the run's own state")
    return Phase(name, size + max(lows), size + max(highs), SOURCES[name], (first, *terms), lower)


def lower_load(rank: Rank) -> str:
    """The flags that make a load smaller, with what each leaves out; none without optimizer state."""
    t, found = rank.context.training, shards(rank)
    if not t.load_optim:
        return ""
    moments = state_bytes(rank, "first step")
    said = [f"--no-load-optim loads none of it: {moments / GIB:.2f} GiB of optimizer state and its copies"]
    copied = any(one.held for one in found) and not (adopts(t) or by_rank(t) or t.optimizer_cpu_offload)
    if copied and adopts(dataclasses.replace(t, checkpoint_loader="megatron_bridge")):
        said.append("Megatron-Bridge from 0.6.0 keeps the loaded moments instead of copying them (checkpoint_loader)")
    several = sum(one.held > 0 for one in found) > 1 and t.use_distributed_optimizer
    if copied and several and not t.dist_ckpt_optim_fully_reshardable:
        said.append(
            "a checkpoint saved with --dist-ckpt-optim-fully-reshardable copies dense and expert state one after the other"
        )
    if any(one.low for one in found):
        said.append(FP32_MOMENTS)
    if t.optimizer == "adam" and t.use_distributed_optimizer and not t.optimizer_cpu_offload:
        said.append("--optimizer-cpu-offload keeps the state on the host")
    return "; ".join(said)


def phases(rank: Rank, peak: Peak) -> tuple[Phase, ...]:
    """Build, load and save of a rank with this peak, and its first step where that may need more than later ones."""
    built = build(rank)
    first = []
    if rank.context.training.chunked_optimizer_state_offload:
        more = "state that is still on the GPU"
        first = [_either("first_step", "peak of later steps", first_step_range(rank, peak), peak.nbytes, more)]
    return (
        *first,
        Phase("build", built, built, "megatron/core/distributed/param_and_grad_buffer.py"),
        load(rank),
        save(rank, peak.steady),
    )
