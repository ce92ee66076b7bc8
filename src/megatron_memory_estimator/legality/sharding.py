"""Rules of sharded dims: GPUs, heads, groups, widths, sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.kind import Kind, StateHeads
from ..modules.kinds import shapes_of
from ..tape.tensor import divisors
from .violation import Violation, broken, indivisible

TP, CP, PP = "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"


def world(model: Model, layout: Layout) -> Iterator[Violation]:
    """The GPUs divide over both grids, and the optimizer instances over both data-parallel groups."""
    w, tp, pp, cp, ep, etp = layout.world_size, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp
    dense, grid = tp * pp * cp, etp * ep * pp
    if w % dense:
        yield _uneven_grid(w, (TP, PP, CP), (tp, pp, cp), fix=f"use a multiple of {dense}")
        return
    if model.num_moe_experts and w % grid:
        smaller = EP if w % (etp * pp) == 0 else ETP if w % (ep * pp) == 0 else f"{EP} and {ETP}"
        fix = f"use a multiple of {lcm(dense, grid)}, or a smaller {smaller}"
        yield _uneven_grid(w, (ETP, EP, PP), (etp, ep, pp), fix=fix)
        return
    n = layout.num_distributed_optimizer_instances
    if layout.dp * cp % n:
        yield broken(
            f"{{num_distributed_optimizer_instances}} does not divide {{data parallel size*{CP}}}",
            {"num_distributed_optimizer_instances": n, f"data parallel size*{CP}": layout.dp * cp},
            fix=f"use {divisors(layout.dp * cp)}",
        )
    if model.num_moe_experts and layout.expert_dp % n:
        rule = "num_distributed_optimizer_instances does not divide the expert data parallel size"
        said = (
            f"num_distributed_optimizer_instances={n} does not divide the expert data parallel size {layout.expert_dp}"
        )
        yield broken(rule, said=said, fix=f"use {divisors(layout.expert_dp)}")


def _uneven_grid(gpus: int, names: tuple[str, ...], degrees: tuple[int, int, int], *, fix: str) -> Violation:
    a, b, c = degrees
    product = "*".join(names)
    return broken(
        f"{{num_gpus}} is not divisible by {{{product}}}",
        {"num_gpus": gpus, product: f"{a}*{b}*{c}={a * b * c}"},
        fix=fix,
    )


def attention(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Heads, groups, state-space heads and widths divide over tp (and cp where heads are redistributed)."""
    for shape, kinds in shapes_of(model):
        own = (shape.num_attention_heads, shape.groups) != (model.num_attention_heads, model.groups)
        yield from _heads(shape, kinds, layout.tp, " in layers of `variants`" if own else "")
        for way in sorted({kind.state_heads for kind in kinds}, reverse=True):
            yield from STATE_HEADS[way](shape, layout)
    yield from _context_parallel(model, layout, training)
    yield from _widths(model, layout, training)


def _heads(m: Model, kinds: frozenset[Kind], tp: int, where: str) -> Iterator[Violation]:
    heads = m.num_attention_heads
    if any(kind.heads for kind in kinds) and heads % tp:
        yield indivisible("num_attention_heads", heads, TP, tp, fix=f"use {divisors(heads)}", where=where)
    if any(kind.groups for kind in kinds):
        if heads % m.groups:
            fix = f"use {divisors(heads)}"
            yield indivisible("num_attention_heads", heads, "num_query_groups", m.groups, fix=fix, where=where)
        if m.groups % tp and tp % m.groups:
            yield broken(
                f"{{num_query_groups}} and {{{TP}}} must divide one another{where}",
                {"num_query_groups": m.groups, TP: tp},
                fix=f"use {divisors(m.groups)}, or a multiple of {m.groups}",
            )


def _none(model: Model, layout: Layout) -> Iterator[Violation]:
    return iter(())


def _mamba(model: Model, layout: Layout) -> Iterator[Violation]:
    nh, groups, tp, ways = model.mamba_heads, model.mamba_num_groups, layout.tp, layout.tp * layout.cp
    if nh % ways:
        yield indivisible("mamba_num_heads", nh, f"{TP}*{CP}", ways, fix=f"use {divisors(nh)}")
    if groups % tp:
        yield indivisible("mamba_num_groups", groups, TP, tp, fix=f"use {divisors(groups)}")
    if nh % groups:
        yield indivisible("mamba_num_heads", nh, "mamba_num_groups", groups, fix=f"use {divisors(nh)}")
    if groups % ways and ways % groups:
        numbers = {"mamba_num_groups": groups, f"{TP}*{CP}": ways}
        fix = f"use {divisors(groups)}, or a multiple of {groups}"
        yield broken(f"{{mamba_num_groups}} and {{{TP}*{CP}}} must divide one another", numbers, fix=fix)


def _gated_delta_net(model: Model, layout: Layout) -> Iterator[Violation]:
    nk, nv, ways = model.linear_num_key_heads, model.linear_num_value_heads, layout.tp * layout.cp
    for name, heads in (("linear_num_key_heads", nk), ("linear_num_value_heads", nv)):
        if heads % ways:
            yield indivisible(name, heads, f"{TP}*{CP}", ways, fix=f"use {divisors(heads)}")
    if nv % nk:
        yield indivisible("linear_num_value_heads", nv, "linear_num_key_heads", nk, fix=f"use a multiple of {nk}")


STATE_HEADS: dict[StateHeads, Callable[[Model, Layout], Iterator[Violation]]] = {
    "none": _none,
    "mamba": _mamba,
    "delta": _gated_delta_net,
}
"""Rules of the heads of a recurrent state, which context parallelism hands out beside tensor parallelism."""


def _context_parallel(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    cp, entries = layout.cp, len(layout.cp_comm_type)
    if cp > 1 and training.seq_length % (2 * cp):
        yield broken(
            f"{{seq_length}} is not divisible by {{2*{CP}}}",
            {"seq_length": training.seq_length, f"2*{CP}": 2 * cp},
            fix=f"use a multiple of {2 * cp}",
        )
    if entries not in (1, model.num_layers):
        said = f"cp_comm_type has {entries} entries"
        rule = "cp_comm_type has neither one entry nor one per layer"
        yield broken(rule, said=said, fix=f"give one, or one per layer ({model.num_layers})")
    for kind in dict.fromkeys(layout.cp_comm_type) if cp > 1 else ():
        yield from _heads_over_cp(model, layout, kind)


def _heads_over_cp(model: Model, layout: Layout, kind: str) -> Iterator[Violation]:
    """Where all-to-alls hand out heads, the heads divide over tp and over the ranks of an all-to-all."""
    cp, sizes = layout.cp, layout.hierarchical_context_parallel_sizes
    if kind == "a2a+p2p" and (sizes is None or len(sizes) != 2 or sizes[0] * sizes[1] != cp):
        rule = (
            f"cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes with two sizes whose product is {{{CP}}}"
        )
        yield broken(rule, {CP: cp})
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
                by = f"{TP}*{CP}" if kind == "a2a" else f"{TP} times the all-to-all size"
                rule = f"cp_comm_type {kind} needs {{{name}}} to be divisible by {by}"
                said = f"cp_comm_type {kind} needs {name}={heads} to be divisible by {by}, {layout.tp}*{within}={ways}"
                yield broken(rule, {name: heads}, said=said, fix="use p2p or all_gather")


def _widths(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Every other sharded dim, and the sequence under sequence parallelism."""
    m, tp, etp = model, layout.tp, layout.etp
    vocab, shared, sequence = m.padded_vocab(tp), m.moe_shared_expert_intermediate_size, training.seq_length
    if vocab % tp:
        yield indivisible("padded_vocab_size", vocab, TP, tp, fix=f"use a multiple of {tp}")
    for shape, kinds in shapes_of(model):
        if any(kind.dense for kind in kinds) and shape.ffn % tp:
            where = " in linear_fc1.weight"
            yield indivisible("ffn_hidden_size", shape.ffn, TP, tp, where=where, fix=f"use {divisors(shape.ffn)}")
    if m.has_moe and shared and shared % tp:
        yield indivisible("moe_shared_expert_intermediate_size", shared, TP, tp, fix=f"use {divisors(shared)}")
    if m.has_moe and m.moe_ffn % etp:
        yield indivisible("moe_ffn_hidden_size", m.moe_ffn, ETP, etp, fix=f"use {divisors(m.moe_ffn)}")
    if m.mtp and m.hidden_size % tp:
        where = " in mtp eh_proj.weight"
        yield indivisible("hidden_size", m.hidden_size, TP, tp, where=where, fix=f"use {divisors(m.hidden_size)}")
    for shape, kinds in shapes_of(model):
        yield from _qkv_rows(shape, kinds, tp)
    ways = tp * layout.cp
    if layout.sequence_parallel and sequence % ways:
        yield broken(
            f"{{seq_length}} is not divisible by {{{TP}*{CP}}}, which sequence_parallel needs",
            {"seq_length": sequence, f"{TP}*{CP}": ways},
            fix=f"use a multiple of {ways}",
        )


def _qkv_rows(m: Model, kinds: frozenset[Kind], tp: int) -> Iterator[Violation]:
    rows = m.qkv_rows
    if any(kind.groups for kind in kinds) and rows % tp:
        rule = f"the rows of linear_qkv.weight are not divisible by {TP}"
        said = f"the {rows} rows of linear_qkv.weight are not divisible by {TP}={tp}"
        yield broken(rule, said=said, fix=f"use {divisors(rows)}")
