"""Time of one layer for one microbatch on one GPU: kernels, exposed communication, launches; forward, backward, recomputation.

GEMMs are the layer's declared parameters: a linear of weight [out, in] on the rows that reach it. So shapes, sharding and precision
are those of the memory model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..context import Context
from ..tensor import Param
from .kernels import attention, attention_rate, grouped, linear, moved
from .links import collective, dispatch, highest
from .machine import Machine

HOST = {
    "gqa": 1.0e-3,
    "mla": 1.5e-3,
    "dsa": 1.5e-3,
    "gdn": 3.0e-3,
    "gdn2": 3.0e-3,
    "mamba": 2.0e-3,
    "dense": 0.6e-3,
    "moe": 4.5e-3,
}
"""Seconds that a CPU needs to launch the forward of a module, from host-bound published runs (set after looking at them)."""
HOST_BACKWARD, HOST_CHECKPOINT, GRACE = 1.3, 0.7e-3, 1.25
GRAPHED = 0.15
"""What is left of the launch time of a module in a CUDA graph."""
TP_HIDDEN, WGRAD_GATHER_EXPOSED, EP_HIDDEN, CP_EXPOSED = 0.7, 0.5, 0.75, 0.1
SCAN_FLOPS = 0.25
"""Rate of a Mamba scan relative to bf16 matrix products."""


class Layer(NamedTuple):
    """Seconds of one layer and microbatch. `recompute` is what its backward runs again; host times cover eager launches."""

    forward: Any = 0.0
    backward: Any = 0.0
    tp: Any = 0.0
    cp: Any = 0.0
    ep: Any = 0.0
    tp_backward: Any = 0.0
    cp_backward: Any = 0.0
    ep_backward: Any = 0.0
    recompute: Any = 0.0
    host: Any = 0.0
    host_backward: Any = 0.0

    def plus(self, other: Layer) -> Layer:
        """Both together."""
        return Layer(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: Any) -> Layer:
        """So many of them."""
        return Layer(*(a * count for a in self))


class Rows(NamedTuple):
    """Rows that reach a layer's linears: all tokens of a tensor-parallel group, and those of the residual stream of one rank."""

    region: Any
    stream: Any


def rows(c: Context) -> Rows:
    """Tokens of a microbatch."""
    t = c.training
    region = t.seq_length // c.layout.cp * t.micro_batch_size
    return Rows(region, region // c.layout.tp if c.sp_many else region)


def expert_rows(c: Context) -> Any:
    """Rows that the experts of a rank compute: those of the routing, also where a capacity makes their tensors larger."""
    t = c.training
    if t.moe_expert_rank_capacity_factor is None:
        return c.padded_expert_rows.size
    return c.sent_rows.size * (c.layout.etp if c.etp_many else 1) * t.router_imbalance


def recipe_of(c: Context, param: Param) -> str:
    """The low-precision recipe of a linear, "" for 16 bits."""
    return c.training.low_precision if param.quantized and not c.high_precision else ""


def linears(m: Machine, c: Context, params: Iterable[Param], only: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Seconds of the forward and backward of declared linears (those whose names hold one of `only`, if given)."""
    at = rows(c)
    forward: Any = 0.0
    backward: Any = 0.0
    for param in params:
        if not param.gemm or len(param.shape) != 2 or (only and not any(word in param.name for word in only)):
            continue
        n, k = param.shape[0].local, param.shape[1].local
        if param.split == "expert":
            size = 4 if c.training.grad_dtype == "fp32" else 2
            one, two = grouped(m, expert_rows(c), param.copies, n, k, recipe_of(c, param), grad_bytes=size)
        else:
            count = at.stream if param.split == "replicated" else at.region
            one, two = linear(m, count, n, k, recipe_of(c, param))
        forward, backward = forward + one, backward + two
    return forward, backward


def core(m: Machine, c: Context, kind: str) -> tuple[Any, Any]:
    """Core attention, causal: 2 s n d FLOPs per token; each context-parallel rank has an even share of the square."""
    mod, t = c.model, c.training
    heads = mod.num_attention_heads / c.layout.tp
    if kind in ("mla", "dsa", "dsa_shared"):
        qk, v = mod.qk_head_dim + mod.qk_pos_emb_head_dim, mod.v_head_dim
    else:
        qk = v = mod.head_dim
    tokens = t.seq_length / c.layout.cp * t.micro_batch_size
    flops = t.seq_length * heads * (qk + v) * tokens
    rate = attention_rate(m, t.seq_length, qk, v, fp8=t.fp8_dot_product_attention)
    return attention(flops, rate, heads * tokens / 4096)


def mixer(m: Machine, c: Context, kind: str, params: list[Param]) -> Layer:
    """Attention, Mamba or Gated DeltaNet with its norm, residual and communication."""
    mod, at = c.model, rows(c)
    h = mod.hidden_size
    forward, backward = linears(m, c, [p for p in params if p.name.startswith(("self_attention.", "mixer."))])
    memory = moved(m, at.stream * h, 4 + 6, 8 + 4)  # norm, residual
    forward, backward = forward + memory[0], backward + memory[1]
    cp_f: Any = 0.0
    cp_b: Any = 0.0
    if kind in ("gqa", "mla", "dsa", "dsa_shared"):
        one, two = core(m, c, kind)
        width = mod.num_attention_heads * (mod.head_dim if kind == "gqa" else mod.qk_head_dim + mod.qk_pos_emb_head_dim)
        rope = moved(m, at.region * width / c.layout.tp * (1.3 if kind == "gqa" else 2), 4 if kind == "gqa" else 6, 4)
        forward, backward = forward + one + rope[0], backward + two + rope[1]
        cp_f, cp_b = context_parallel(m, c, kind, one, two)
    elif kind == "mamba":
        inner = mod.mamba_heads * mod.mamba_head_dim
        wide = at.region * (inner + 2 * mod.mamba_num_groups * mod.mamba_state_dim) / c.layout.tp
        memory = moved(m, wide, 28, 68)
        scan = 7 * inner * mod.mamba_state_dim * at.region / c.layout.tp / (m.speed.bf16 * 1e12 * SCAN_FLOPS)
        forward, backward = forward + memory[0] + scan, backward + memory[1] + 2 * scan
    else:
        wide = at.region * (mod.linear_num_value_heads * mod.linear_value_head_dim) / c.layout.tp
        memory = moved(m, 2 * wide, 28, 68)
        forward, backward = forward + memory[0], backward + memory[1]
    tp_f, tp_b = tensor_parallel(m, c)
    return Layer(forward, backward, tp_f, cp_f, 0.0, tp_b, cp_b)


def context_parallel(m: Machine, c: Context, kind: str, forward: Any, backward: Any) -> tuple[Any, Any]:
    """Exposed exchange of keys and values: p2p beside the attention steps, a2a of all heads, or an all-gather."""
    if not c.cp_many:
        return 0.0, 0.0
    mod, layout, at = c.model, c.layout, rows(c)
    cp = layout.cp
    way = layout.cp_comm_type[0]
    if kind == "gqa":
        kv = 2 * mod.groups * mod.head_dim
        q = 2 * mod.num_attention_heads * mod.head_dim
    else:
        kv = mod.num_attention_heads * (mod.qk_head_dim + mod.qk_pos_emb_head_dim + mod.v_head_dim)
        q = mod.num_attention_heads * (mod.qk_head_dim + mod.qk_pos_emb_head_dim + mod.v_head_dim)
    each = at.region * 2 / layout.tp
    if way == "p2p":
        one = collective(m, "all_gather", each * kv * cp, cp, layout.tp)
        return (
            highest(one - forward * (cp - 1) / cp, CP_EXPOSED * one),
            highest(2 * one - backward * (cp - 1) / cp, CP_EXPOSED * 2 * one),
        )
    if way == "a2a":
        one = collective(m, "alltoall", each * (kv + q), cp, layout.tp)
        return one, one
    one = collective(m, "all_gather", each * kv * cp, cp, layout.tp)
    return one, one


def tensor_parallel(m: Machine, c: Context) -> tuple[Any, Any]:
    """One pair of collectives around two linears: all-gather and reduce-scatter, or an all-reduce without sequence parallelism."""
    if not c.tp_many:
        return 0.0, 0.0
    size = rows(c).region * c.model.hidden_size * 2
    tp = c.layout.tp
    if not c.sp_many:
        one = collective(m, "all_reduce", size, tp, 1)
        return one, one
    gather, scatter = (collective(m, op, size, tp, 1) for op in ("all_gather", "reduce_scatter"))
    shown = 1 - TP_HIDDEN if c.training.tp_comm_overlap else 1.0
    return (gather + scatter) * shown, (gather + scatter) * shown + WGRAD_GATHER_EXPOSED * gather * shown


def dense(m: Machine, c: Context, params: list[Param]) -> Layer:
    """A dense MLP with its norm and residual."""
    at, mod = rows(c), c.model
    forward, backward = linears(m, c, [p for p in params if p.name.startswith("mlp.")])
    for one, two in (
        moved(m, at.stream * mod.hidden_size, 4 + 6, 8 + 4),
        moved(
            m, at.region * mod.ffn / c.layout.tp, 6 if mod.gated_linear_unit else 4, 10 if mod.gated_linear_unit else 6
        ),
    ):
        forward, backward = forward + one, backward + two
    tp_f, tp_b = tensor_parallel(m, c)
    return Layer(forward, backward, tp_f, 0.0, 0.0, tp_b)


def moe(m: Machine, c: Context, params: list[Param]) -> Layer:
    """Routed and shared experts, permutation, dispatch and combine."""
    mod, t, at, layout = c.model, c.training, rows(c), c.layout
    forward, backward = linears(m, c, [p for p in params if p.name.startswith("mlp.")])
    width = mod.expert_width
    fused = t.use_transformer_engine_op_fuser and t.low_precision in ("mxfp8", "nvfp4")
    share = 0.25 if fused else 1.0
    received = expert_rows(c)
    passes = 8 if t.moe_token_dispatcher_type == "flex" else 16
    gate = 10 if mod.gated_linear_unit else 6
    for one, two in (
        moved(m, at.stream * mod.hidden_size, 4 + 6, 8 + 4),
        moved(m, received * width * share, passes, passes),
        moved(m, received * mod.moe_ffn / layout.etp * share, 6, gate),
    ):
        forward, backward = forward + one, backward + two
    kind = t.moe_token_dispatcher_type
    ep_f: Any = 0.0
    if c.ep_many:
        stride = layout.etp if c.etp_many else 1
        ep_f = 2 * dispatch(m, kind, at.stream, width, mod.moe_router_topk, layout.ep, stride, 2.0)
    shown = 1 - EP_HIDDEN if t.overlap_moe_expert_parallel_comm else 1.0
    tp_f: Any = 0.0
    tp_b: Any = 0.0
    if mod.moe_shared_expert_intermediate_size:
        tp_f, tp_b = tensor_parallel(m, c)
    if c.etp_many:
        size = received * width * 2
        pair = collective(m, "all_gather", size, layout.etp, 1) + collective(m, "reduce_scatter", size, layout.etp, 1)
        tp_f, tp_b = tp_f + pair, tp_b + pair
    return Layer(forward, backward, tp_f, 0.0, ep_f * shown, tp_b, 0.0, ep_f * shown)


def host(m: Machine, c: Context, part: str) -> tuple[float, float]:
    """Seconds of launching a module's forward and backward from Python."""
    t = c.training
    if t.cuda_graph_impl == "full_iteration":
        return 0.0, 0.0
    seconds = HOST.get(part.removesuffix("_shared"), 1e-3)
    graphs = t.cuda_graph_modules if t.cuda_graph_impl != "none" else ()
    whole = t.cuda_graph_impl != "none" and not graphs
    named = {"gqa": "attn", "mla": "attn", "dsa": "attn", "mamba": "mamba", "dense": "mlp", "moe": "moe"}.get(part)
    if whole or named in graphs:
        seconds *= GRAPHED
    elif part == "moe":
        seconds -= 0.8e-3 * ("moe_router" in graphs) + 0.4e-3 * ("moe_preprocess" in graphs)
    seconds *= (GRACE if m.gpu.host == "grace" else 1.0) * m.efficiency.host
    return seconds, seconds * HOST_BACKWARD


def plain_layer(m: Machine, c: Context, kind: str, params: list[Param]) -> Layer:
    """One layer of a kind `mixer+mlp`, or one sub-layer of a hybrid, without recomputation."""
    total = Layer()
    for part in kind.split("+"):
        if part == "dense":
            found = dense(m, c, params)
        elif part == "moe":
            found = moe(m, c, params)
        else:
            found = mixer(m, c, part, params)
        launch = host(m, c, part)
        total = total.plus(found._replace(host=launch[0], host_backward=launch[1]))
    return total


def recomputed(m: Machine, c: Context, kind: str, params: list[Param], whole: Layer) -> dict[str, Any]:
    """What selective recomputation runs again, kernels and communication; full recomputation is a matter of the stage."""
    t = c.training
    parts = kind.split("+")
    again: Any = 0.0
    launches = 0
    if parts[0] in ("gqa", "mla") and t.recomputes("core_attn"):
        again, launches = again + core(m, c, parts[0])[0], launches + 1
    if parts[0] == "mla" and t.recomputes("mla_up_proj"):
        again, launches = again + linears(m, c, params, ("up_proj",))[0], launches + 1
    if "dense" in parts and t.recomputes("mlp"):
        found = dense(m, c, params)
        again, launches = again + found.forward + found.tp, launches + 1
    if "moe" in parts:
        if t.recomputes("moe"):
            found = moe(m, c, params)
            again, launches = again + found.forward + found.ep + found.tp, launches + 1
        elif t.recomputes("moe_act"):
            act = expert_rows(c) * c.model.moe_ffn / c.layout.etp
            again, launches = again + moved(m, act, 6, 0)[0], launches + 1
        if t.recomputes("shared_experts") and not t.recomputes("moe"):
            again, launches = again + linears(m, c, params, ("shared_experts",))[0], launches + 1
    if t.recomputes("layernorm"):
        again, launches = again + moved(m, rows(c).stream * c.model.hidden_size, 4, 0)[0], launches + 1
    eager = t.cuda_graph_impl != "full_iteration"
    return {
        "recompute": again,
        "host_backward": whole.host_backward + launches * HOST_CHECKPOINT * eager * m.efficiency.host,
    }
