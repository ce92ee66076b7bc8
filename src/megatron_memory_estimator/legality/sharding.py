"""Rules of sharded dims: heads, groups, widths, sequences, GPUs, experts."""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Layout
from ..model import Model
from ..training import Training
from .divisors import divisors


def world(model: Model, layout: Layout) -> Iterator[str]:
    """The GPUs divide over both grids, and the optimizer instances over both data-parallel groups."""
    w, tp, pp, cp, ep, etp = layout.world_size, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp
    dense = tp * pp * cp
    if w % dense:
        yield (
            f"num_gpus={w} does not divide by tensor_model_parallel_size*pipeline_model_parallel_size*"
            f"context_parallel_size={tp}*{pp}*{cp}={dense}; use a multiple of {dense}"
        )
        return
    if model.num_moe_experts and w % (etp * ep * pp):
        grid = etp * ep * pp
        yield (
            f"num_gpus={w} does not divide by expert_tensor_parallel_size*expert_model_parallel_size*"
            f"pipeline_model_parallel_size={etp}*{ep}*{pp}={grid}; use a multiple of {grid}, or a smaller "
            "expert_model_parallel_size"
        )
        return
    n = layout.num_distributed_optimizer_instances
    if layout.dp * cp % n:
        yield f"num_distributed_optimizer_instances={n} does not divide data parallel size times cp={layout.dp * cp}; use a divisor"
    if model.num_moe_experts and layout.expert_dp % n:
        yield f"num_distributed_optimizer_instances={n} does not divide the expert data parallel size {layout.expert_dp}; use a divisor"


def attention(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Heads, groups, state-space heads and widths divide over tp (and cp where heads are redistributed)."""
    m, tp, cp = model, layout.tp, layout.cp
    mixers = {kind.split("+")[0] for kind in m.kinds}
    if mixers & {"gqa", "mla", "dsa"} and m.num_attention_heads % tp:
        yield (
            f"num_attention_heads={m.num_attention_heads} does not divide by tensor_model_parallel_size={tp} in "
            f"linear_qkv.weight; use {divisors(m.num_attention_heads)}"
        )
    if "gqa" in mixers:
        if m.num_attention_heads % m.groups:
            yield (
                f"num_attention_heads={m.num_attention_heads} does not divide by num_query_groups={m.groups}; "
                f"use {divisors(m.num_attention_heads)}"
            )
        if m.groups % tp and tp % m.groups:
            yield (
                f"num_query_groups={m.groups} and tensor_model_parallel_size={tp} must divide one another; "
                f"use {divisors(m.groups)} or a multiple of {m.groups}"
            )
    if "mamba" in mixers:
        nh, groups = m.mamba_heads, m.mamba_num_groups
        if nh % (tp * cp):
            yield f"mamba_num_heads={nh} does not divide by tensor_model_parallel_size*context_parallel_size={tp * cp}; use {divisors(nh)}"
        if groups % tp:
            yield f"mamba_num_groups={groups} does not divide by tensor_model_parallel_size={tp}; use {divisors(groups)}"
        if nh % groups:
            yield f"mamba_num_heads={nh} does not divide by mamba_num_groups={groups}; use {divisors(nh)}"
        if groups % (tp * cp) and (tp * cp) % groups:
            yield f"mamba_num_groups={groups} and tensor_model_parallel_size*context_parallel_size={tp * cp} must divide one another"
    if mixers & {"gdn", "gdn2"}:
        nk, nv = m.linear_num_key_heads, m.linear_num_value_heads
        for name, heads in (("linear_num_key_heads", nk), ("linear_num_value_heads", nv)):
            if heads % (tp * cp):
                yield f"{name}={heads} does not divide by tensor_model_parallel_size*context_parallel_size={tp * cp}; use {divisors(heads)}"
        if nv % nk:
            yield f"linear_num_value_heads={nv} does not divide by linear_num_key_heads={nk}; use a multiple"
    yield from _context_parallel(model, layout, training)
    yield from _widths(model, layout, training)


def _context_parallel(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    cp, tp = layout.cp, layout.tp
    if cp > 1 and training.seq_length % (2 * cp):
        yield (
            f"seq_length={training.seq_length} does not divide by 2*context_parallel_size={2 * cp}; "
            f"use a multiple of {2 * cp}"
        )
    if len(layout.cp_comm_type) not in (1, model.num_layers):
        yield f"cp_comm_type has {len(layout.cp_comm_type)} entries; give one, or one per layer ({model.num_layers})"
    sizes = layout.hierarchical_context_parallel_sizes
    for kind in dict.fromkeys(layout.cp_comm_type) if cp > 1 else ():
        if kind == "a2a+p2p" and (sizes is None or len(sizes) != 2 or sizes[0] * sizes[1] != cp):
            yield (
                "cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes with two sizes whose product is "
                f"context_parallel_size={cp}"
            )
            continue
        across = sizes[0] if kind == "a2a+p2p" and sizes else cp
        mixers = {k.split("+")[0] for k in model.kinds}
        if kind.startswith("a2a") and mixers & {"gqa", "mla"}:
            counted = [("num_attention_heads", model.num_attention_heads)]
            if "gqa" in mixers:
                counted.append(("num_query_groups", model.groups))
            for name, heads in counted:
                if heads % (tp * across):
                    yield (
                        f"cp_comm_type {kind} needs {name}={heads} to divide by tensor_model_parallel_size*cp={tp * across}; "
                        "use p2p or all_gather"
                    )


def _widths(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Every other sharded dim, and the sequence under sequence parallelism."""
    m, tp, etp = model, layout.tp, layout.etp
    vocab = m.padded_vocab(tp)
    if vocab % tp:
        yield f"padded_vocab_size={vocab} does not divide by tensor_model_parallel_size={tp}; use a multiple of {tp}"
    kinds = set(m.kinds)
    if any(kind.endswith("dense") for kind in kinds) and m.ffn % tp:
        yield f"ffn_hidden_size={m.ffn} does not divide by tensor_model_parallel_size={tp} in linear_fc1.weight; use {divisors(m.ffn)}"
    shared = m.moe_shared_expert_intermediate_size
    if m.has_moe and shared and shared % tp:
        yield f"moe_shared_expert_intermediate_size={shared} does not divide by tensor_model_parallel_size={tp}; use {divisors(shared)}"
    if m.has_moe and m.moe_ffn % etp:
        yield f"moe_ffn_hidden_size={m.moe_ffn} does not divide by expert_tensor_parallel_size={etp}; use {divisors(m.moe_ffn)}"
    if m.mtp and m.hidden_size % tp:
        yield (
            f"hidden_size={m.hidden_size} does not divide by tensor_model_parallel_size={tp} in mtp eh_proj.weight; "
            f"use {divisors(m.hidden_size)}"
        )
    if "gqa" in {kind.split("+")[0] for kind in kinds}:
        gate = 2 if m.attention_output_gate else 1
        qkv = (gate * m.num_attention_heads + 2 * m.groups) * m.head_dim
        if qkv % tp:
            yield f"the {qkv} rows of linear_qkv.weight do not divide by tensor_model_parallel_size={tp}"
    if layout.sequence_parallel and training.seq_length % (tp * layout.cp):
        yield (
            f"seq_length={training.seq_length} does not divide by tensor_model_parallel_size*context_parallel_size="
            f"{tp * layout.cp}, which sequence_parallel needs; use a multiple of {tp * layout.cp}"
        )


def experts(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Expert parallelism, routing, and what MoE layers require of the rest."""
    m, ep = model, layout.ep
    if not m.num_moe_experts:
        if ep > 1:
            yield f"expert_model_parallel_size={ep} needs a MoE model; num_moe_experts is not set; use 1"
        return
    if m.num_moe_experts % ep:
        yield f"num_moe_experts={m.num_moe_experts} does not divide by expert_model_parallel_size={ep}; use {divisors(m.num_moe_experts)}"
    if m.has_moe and layout.tp > 1 and not layout.sequence_parallel:
        yield (
            f"MoE training with tensor_model_parallel_size={layout.tp} needs sequence_parallel; turn it on or use "
            "tensor_model_parallel_size=1"
        )
    if m.add_bias_linear and layout.etp > 1:
        yield f"expert biases (add_bias_linear) need expert_tensor_parallel_size=1, not {layout.etp}"
    if m.add_bias_linear and m.moe_shared_expert_intermediate_size:
        yield "shared experts have no biases; turn add_bias_linear off"
    groups, topk = m.moe_router_num_groups, m.moe_router_group_topk
    if groups and m.num_moe_experts % groups:
        yield f"num_moe_experts={m.num_moe_experts} does not divide by moe_router_num_groups={groups}; use {divisors(m.num_moe_experts)}"
    if groups and topk and topk > groups:
        yield f"moe_router_group_topk={topk} is more than moe_router_num_groups={groups}"
    if training.moe_pad_expert_input_to_capacity and training.moe_expert_capacity_factor is None:
        yield "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor"
    if training.moe_shared_expert_overlap and training.moe_token_dispatcher_type == "allgather":
        yield "moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall or flex"
    if training.moe_token_dispatcher_type == "flex" and layout.tp * ep == 1:
        yield "moe_token_dispatcher_type flex needs tensor_model_parallel_size*expert_model_parallel_size above 1"
    if training.moe_token_dispatcher_type == "allgather" and training.moe_expert_capacity_factor is not None:
        yield "moe_expert_capacity_factor needs moe_token_dispatcher_type alltoall or flex"
