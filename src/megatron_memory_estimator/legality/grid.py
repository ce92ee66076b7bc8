"""Rules of GPUs and of sharded dims: heads, groups, widths, sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from math import lcm

from ..job.layout import Layout
from ..job.model import Model
from ..job.settings import field_kind
from ..job.training import Training
from ..modules.kind import Kind, StateHeads
from ..modules.kinds import shapes_of
from ..rules import CP, EP, ETP, EXPERT_SHARDS, PP, SHARDS, TP, Violation, broken
from ..tape.tensor import divisors

MOST: dict[str, int] = {"pipeline_model_parallel_size": 4096, "microbatch_group_size_per_vp_stage": 65536}
"""The most that is accepted: what is made of them grows with them."""
DEGREES = tuple(field.name for field in fields(Layout) if field_kind(field) == "int")
"""Numbers of a layout that are at least 1."""


def degrees(layout: Layout) -> Iterator[Violation]:
    """Every degree is at least 1, and none too large."""
    for name in DEGREES:
        value = getattr(layout, name)
        if value is not None and value < 1:
            yield broken("below-1", setting=("num_gpus" if name == "world_size" else name, value))
    for name, most in MOST.items():
        if (getattr(layout, name) or 1) > most:
            yield broken("too-many", setting=(name, getattr(layout, name)), most=most)


def world(model: Model, layout: Layout) -> Iterator[Violation]:
    """The GPUs divide over both grids, and the optimizer instances over both data-parallel groups."""
    w, tp, pp, cp, ep, etp = layout.world_size, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp
    g, eg = layout.gtp, layout.egtp
    dense, grid = tp * g * pp * cp, etp * eg * ep * pp
    if g > 1 and w % dense:
        yield broken("gpus-over-weight-shards", {"num_gpus": w, SHARDS: tp * g, PP: pp, CP: cp, "ways": dense})
        return
    if w % dense:
        product = f"{tp}*{pp}*{cp}={dense}"
        yield broken("gpus-over-tp-pp-cp", {"num_gpus": w, f"{TP}*{PP}*{CP}": product, "ways": dense})
        return
    if eg > 1 and w % grid:
        yield broken(
            "gpus-over-expert-weight-shards", {"num_gpus": w, EXPERT_SHARDS: etp * eg, EP: ep, PP: pp, "ways": grid}
        )
        return
    if model.num_moe_experts and w % grid:
        smaller = EP if w % (etp * pp) == 0 else ETP if w % (ep * pp) == 0 else f"{EP} and {ETP}"
        product = f"{etp}*{ep}*{pp}={grid}"
        ways = {"ways": lcm(dense, grid), "smaller": smaller}
        yield broken("gpus-over-etp-ep-pp", {"num_gpus": w, f"{ETP}*{EP}*{PP}": product, **ways})
        return
    n = {"num_distributed_optimizer_instances": layout.num_distributed_optimizer_instances}
    for code, ranks in (
        ("instances-over-dp", layout.dp * cp),
        ("instances-over-expert-dp", layout.expert_dp if model.num_moe_experts else 0),
    ):
        if ranks % layout.num_distributed_optimizer_instances:
            yield broken(code, n, ranks=ranks, use=divisors(ranks))


def attention(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Heads, groups, state-space heads and widths divide over tp (and cp where heads are redistributed)."""
    for shape, kinds in shapes_of(model):
        yield from _heads(shape, kinds, layout.tp)
        for way in sorted({kind.state_heads for kind in kinds}, reverse=True):
            yield from STATE_HEADS[way](shape, layout)
    yield from _context_parallel(model, layout, training)
    yield from _widths(model, layout, training)


def over(code: str, name: str, number: int, by: str, ways: int, use: object = None) -> Iterator[Violation]:
    """The violation of a rule that one number divides by another."""
    if number % ways:
        yield broken(code, {name: number, by: ways, "use": divisors(number) if use is None else use})


def _heads(m: Model, kinds: frozenset[Kind], tp: int) -> Iterator[Violation]:
    heads, groups = m.num_attention_heads, m.groups
    if any(kind.heads for kind in kinds):
        yield from over("heads-over-tp", "num_attention_heads", heads, TP, tp)
    if any(kind.groups for kind in kinds):
        yield from over("heads-over-groups", "num_attention_heads", heads, "num_query_groups", groups)
        if groups % tp and tp % groups:
            yield broken("groups-and-tp", {"num_query_groups": groups, TP: tp, "use": divisors(groups), "each": groups})


def _none(model: Model, layout: Layout) -> Iterator[Violation]:
    return iter(())


def _mamba(model: Model, layout: Layout) -> Iterator[Violation]:
    nh, groups, tp, ways = model.mamba_heads, model.mamba_num_groups, layout.tp, layout.tp * layout.cp
    yield from over("mamba-heads-over-tp-cp", "mamba_num_heads", nh, f"{TP}*{CP}", ways)
    yield from over("mamba-groups-over-tp", "mamba_num_groups", groups, TP, tp)
    yield from over("mamba-heads-over-groups", "mamba_num_heads", nh, "mamba_num_groups", groups)
    if groups % ways and ways % groups:
        numbers = {"mamba_num_groups": groups, f"{TP}*{CP}": ways}
        yield broken("mamba-groups-and-tp-cp", numbers, use=divisors(groups), each=groups)


def _whole_delta_net(model: Model, layout: Layout) -> Iterator[Violation]:
    nk, nv = model.linear_num_key_heads, model.linear_num_value_heads
    yield from over("linear-value-heads-over-key-heads", "linear_num_value_heads", nv, "linear_num_key_heads", nk, nk)


def _gated_delta_net(model: Model, layout: Layout) -> Iterator[Violation]:
    nk, ways = model.linear_num_key_heads, layout.tp * layout.cp
    yield from over("linear-key-heads-over-tp-cp", "linear_num_key_heads", nk, f"{TP}*{CP}", ways)
    yield from _whole_delta_net(model, layout)


STATE_HEADS: dict[StateHeads, Callable[[Model, Layout], Iterator[Violation]]] = {
    "none": _none,
    "mamba": _mamba,
    "delta": _gated_delta_net,
    "whole": _whole_delta_net,
}
"""Rules of the heads of a recurrent state, which context parallelism hands out beside tensor parallelism."""


def _context_parallel(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    cp, entries = layout.cp, len(layout.cp_comm_type)
    if cp > 1:
        yield from over("sequence-over-cp", "seq_length", training.seq_length, f"2*{CP}", 2 * cp, 2 * cp)
    if entries not in (1, model.num_layers):
        yield broken("cp-comm-type-entries", entries=entries, layers=model.num_layers)
    for kind in dict.fromkeys(layout.cp_comm_type) if cp > 1 else ():
        yield from _heads_over_cp(model, layout, kind)


def _heads_over_cp(model: Model, layout: Layout, kind: str) -> Iterator[Violation]:
    """Where all-to-alls hand out heads, the heads divide over tp and over the ranks of an all-to-all."""
    cp, sizes = layout.cp, layout.hierarchical_context_parallel_sizes
    if kind == "a2a+p2p" and (sizes is None or len(sizes) != 2 or sizes[0] * sizes[1] != cp):
        yield broken("hierarchical-cp-sizes", {CP: cp})
        return
    within = sizes[0] if kind == "a2a+p2p" and sizes else cp
    ways = layout.tp * within
    for shape, kinds in shapes_of(model) if kind.startswith("a2a") else ():
        exchanging = [row for row in kinds if row.exchanges]
        counted = [("num_attention_heads", shape.num_attention_heads)] if exchanging else []
        if any(row.groups for row in exchanging):
            counted.append(("num_query_groups", shape.groups))
        for name, heads in counted:
            if heads % ways:
                product = f"{layout.tp}*{within}={ways}"
                yield broken(
                    f"cp-{'a2a' if kind == 'a2a' else 'hierarchical'}-heads", heads=(name, heads), product=product
                )


def _widths(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Every other sharded dim, and the sequence under sequence parallelism."""
    m, tp, etp = model, layout.tp, layout.etp
    vocab, shared, sequence = m.padded_vocab(tp), m.moe_shared_expert_intermediate_size, training.seq_length
    yield from over("vocabulary-over-tp", "padded_vocab_size", vocab, TP, tp, tp)
    for shape, kinds in shapes_of(model):
        if any(kind.dense for kind in kinds):
            yield from over("ffn-over-tp", "ffn_hidden_size", shape.ffn, TP, tp)
    if m.has_moe:
        yield from over("shared-experts-over-tp", "moe_shared_expert_intermediate_size", shared or 0, TP, tp)
        yield from over("experts-width-over-etp", "moe_ffn_hidden_size", m.moe_ffn, ETP, etp)
    if m.mtp:
        yield from over("mtp-width-over-tp", "hidden_size", m.hidden_size, TP, tp)
    for shape, kinds in shapes_of(model):
        if any(kind.groups for kind in kinds):
            yield from over("qkv-rows-over-tp", "rows", shape.qkv_rows, TP, tp)
    if layout.sequence_parallel:
        yield from over("sequence-over-tp-cp", "seq_length", sequence, f"{TP}*{CP}", tp * layout.cp, tp * layout.cp)
