"""Kimi K3's sub-layers: each reads a sum of the bank of prefixes and adds its output to the prefix.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py`.

Attention residuals (Kimi K3): what a sub-layer reads is a weighted sum of the bank of prefixes and the prefix.

    rows and prefix [s, b, r + 1, h] -> fp32 -> norm -> score of each -> softmax -> weighted sum [s, b, h]

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_ops.py` (attn_res_aggregate), `kimi_k3_layers.py`: PyTorch's
operations, uncompiled. The prefix joins the bank behind the first sum of a block's first layer, where the bank has rows.

Multi-latent attention without RoPE, whose output is gated by the input (Kimi K3).

    normed [s, b, h] -> q_a [qr] -> norm -> q_b [n, d]         latents of all tokens on every tensor-parallel rank
                     -> kv_a [kr + dr] -> norm -> kv_b [n, dn + dv]
                     -> g [n, dv]: core attention * sigmoid(g) -> o_proj

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py` (_forward_mla).

Kimi Delta Attention: a delta rule with a decay per channel (Kimi K3).

    normed [s, b, h] -> q, k, v [P] -> convolution each -> delta rule, with a gate (f_a, f_b) and a beta -> norm, gated by g -> o_proj

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py` (_forward_kda), `kimi_k3_ops.py`;
flash-linear-attention `fla/ops/kda/`, `fla/modules/convolution.py`, `fla/modules/fused_norm_gate.py`.

The gathered input is kept once for all projections. Decay, time step and convolutions have fp32 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import UnsupportedError
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import interleaved
from ..job.training import Training
from ..rules import Violation, broken, broken_if
from ..tape.ops import Op, Unit
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import Streamed
from ..wording import all_of
from .context import Context
from .core_attention import core_attention
from .gated_delta_net import CHUNK, RULE_FLOPS, RULE_KERNELS
from .kind import Kind
from .linear import linear_params, row_linear
from .mlp import mlp
from .module import Module, in_part
from .moe import kept as moe_kept
from .moe import moe
from .norm import bias_dropout_add, norm, norm_params
from .shared_experts import gathered_input, projected, split_norm

NAME = "self_attention"
Attend = Callable[[Tensor, dict[str, Param]], Module[Tensor]]


def kda_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind Kimi Delta Attention."""
    return (yield from _attended(c, hidden, kda_params(c), lambda x, weights: kimi_delta_attention(c, x, weights)))


def mla_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind gated latent attention."""
    attend = lambda x, weights: gated_latent_attention(c, x, weights, layer)  # noqa: E731
    return (yield from _attended(c, hidden, latent_params(c), attend))


def check_recompute(c: Context) -> None:
    """Raise UnsupportedError for modules of selective recomputation that are not known to be recomputed in these layers."""
    others = sorted(set(c.training.recomputed_modules) - {"moe_act"})
    if others:
        rule = (
            f"recompute_modules {all_of(others)} in layers with attention residuals (Kimi K3): only moe_act is modelled"
        )
        raise UnsupportedError(rule)


def _attended(c: Context, hidden: Tensor, params: Module[dict[str, Param]], attend: Attend) -> Module[Tensor]:
    check_recompute(c)
    rows = c.model.bank_rows
    yield from norm_params(c, "input_layernorm.", c.hidden)
    weights = yield from params
    x = hidden
    if rows:
        x = yield from in_part("attn_norm", aggregated(c, NAME, hidden, rows))
    if c.model.bank_joined:
        joined = bank(c, f"{NAME}_res.bank with the prefix", rows + 1)
        yield Op(f"{NAME}_res.join", (hidden,), (), forward=(joined,), passes=(hidden,), part="attn_norm")
    normed = yield from in_part("attn_norm", norm(c, "input_layernorm", x))
    whole = yield from in_part("qkv_linear", gathered_input(c, NAME, normed))
    out = yield from attend(whole, weights)
    return (yield from in_part("attn_residual", bias_dropout_add(c, "self_attn_bda", out, hidden)))


def dense_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind a dense MLP."""
    check_recompute(c)
    x = yield from in_part("mlp_norm", aggregated(c, "mlp", hidden, rows_behind(c.model)))
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    normed = yield from in_part("mlp_norm", norm(c, "pre_mlp_layernorm", x))
    out = yield from mlp(c, hidden, layer, normed=normed)
    return (yield from in_part("mlp_residual", _ended(c, out, hidden)))


def moe_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The prefix behind experts in a narrower width."""
    check_recompute(c)
    x = yield from in_part("router_norm", aggregated(c, "mlp", hidden, rows_behind(c.model)))
    out = yield from moe(c, x, layer)
    return (yield from in_part("moe_residual", _ended(c, out, hidden)))


def _ended(c: Context, out: Tensor, hidden: Tensor) -> Module[Tensor]:
    """The prefix with the MLP's output; behind the last layer the sum of the bank and it."""
    yield from residual_params(c, NAME, "mlp", *(("output_attn",) if c.model.bank_last else ()))
    prefix = yield from bias_dropout_add(c, "mlp_bda", out, hidden)
    if not c.model.bank_last:
        return prefix
    return (yield from aggregated(c, "output_attn", prefix, rows_behind(c.model)))


CALLS = 14
"""Functions of PyTorch: concatenation, casts, square, mean, sum, root, products, score, softmax, weighted sum."""


def bank(c: Context, name: str, rows: int) -> Tensor:
    """A bank of so many rows."""
    return c.new(name, c.seq_sp, c.batch, Dim("bank rows", rows), c.hidden)


def rows_behind(model: Model) -> int:
    """Rows of the bank behind a layer."""
    return model.bank_rows + model.bank_joined


def residual_params(c: Context, *names: str) -> Module[None]:
    """Norm and score of each sum; replicated, and of one row."""
    for name in names:
        yield Param(f"{name}_res_norm.weight", (c.hidden,), matrix=False)
        yield Param(f"{name}_res_proj.weight", (c.hidden,))


def aggregated(c: Context, name: str, prefix: Tensor, rows: int) -> Module[Tensor]:
    """The weighted sum of so many rows of the bank and the prefix."""
    out = prefix.like(f"{name}_res.output", c.dtype)
    shape = (*prefix.shape[:-1], Dim("bank rows+1", rows + 1))
    values = c.new(f"{name}_res.values", *shape, c.hidden, dtype="fp32")
    trained = not c.training.base_frozen  # only gradients of norm and score need the normed rows and either weight
    weights = Dim("norm, score and their product", 3) if trained else Dim("product of norm and score", 1)
    kept = (
        values,
        *((values.like(f"{name}_res.normed"),) if trained else ()),
        c.new(f"{name}_res.rsigma", *shape, dtype="fp32"),
        c.new(f"{name}_res.probs", *shape, dtype="fp32"),
        c.new(f"{name}_res.weights fp32", weights, c.hidden, dtype="fp32"),
    )
    joined = c.new(f"{name}_res.bank and prefix", *shape, c.hidden)
    scratch = (joined, values.like(f"{name}_res.product"))
    grads = (joined.like(f"{name}_res.bank and prefix grad"), *(values.like(f"{name}_res.grad {i}") for i in range(3)))
    yield Op(f"{name}_res", (prefix,), (out,), kept, scratch, grads, calls=CALLS)
    return out


def beside_layer(c: Context) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The bank while a layer runs forward, and its gradient while it runs backward."""
    rows = rows_behind(c.model)
    if not rows:
        return (), ()
    return (bank(c, "attention residual bank", rows),), (bank(c, "attention residual bank grad", rows),)


def keeping_bank(c: Context, unit: Unit, rows: int, *, received: bool) -> Unit:
    """A unit that keeps the bank in front of it for its backward; `received` from the stage before, with the prefix in one tensor.

    A checkpoint keeps what its layers read, a bank once for all checkpoints that read the same one; a pipeline stage keeps what it got.
    """
    assert unit.entry is not None
    kept = (bank(c, "attention residual bank kept", rows),)
    reads = (unit.entry,) if received else ()
    op = Op("bank", reads, (), (*reads, *kept), stops=reads, part="attn_norm")
    return unit._replace(items=(op, *unit.items))


def latent_params(c: Context) -> Module[dict[str, Param]]:
    """All parameters; those of the linears by name."""
    m = c.model
    assert m.q_lora_rank is not None
    n, qk = m.num_attention_heads, m.qk_head_dim + m.qk_pos_emb_head_dim
    qr, kr = Dim("q_lora_rank", m.q_lora_rank), Dim("kv_lora_rank", m.kv_lora_rank)
    width = c.dim("heads*v_head_dim", n * m.v_head_dim, "tp")
    up_q, up_kv = (
        c.dim("heads*qk", n * qk, "tp"),
        c.dim("heads*(qk_head_dim+v_head_dim)", n * (m.qk_head_dim + m.v_head_dim), "tp"),
    )
    found = {"q_a_proj": (yield from linear_params(c, f"{NAME}.q_a_proj", qr, c.hidden, "replicated", False))}
    yield from norm_params(c, f"{NAME}.q_a_layernorm.", qr)
    found["q_b_proj"] = yield from linear_params(c, f"{NAME}.q_b_proj", up_q, qr, "tp", False)
    both = Dim("kv_lora_rank+qk_pos_emb_head_dim", m.kv_lora_rank + m.qk_pos_emb_head_dim)
    found["kv_a"] = yield from linear_params(c, f"{NAME}.kv_a_proj_with_mqa", both, c.hidden, "replicated", False)
    yield from norm_params(c, f"{NAME}.kv_a_layernorm.", kr)
    found["kv_b_proj"] = yield from linear_params(c, f"{NAME}.kv_b_proj", up_kv, kr, "tp", False)
    found["g_proj"] = yield from linear_params(c, f"{NAME}.g_proj", width, c.hidden, "tp", False)
    found["o_proj"] = yield from linear_params(c, f"{NAME}.o_proj", c.hidden, width, "tp", False)
    return found


def gated_latent_attention(c: Context, x: Tensor, weights: dict[str, Param], layer: int) -> Module[Tensor]:
    """Output on the residual stream, of the gathered input."""
    m = c.model
    heads = c.dim("num_attention_heads", m.num_attention_heads, "tp")
    qk, dv = (
        Dim("qk_head_dim+qk_pos_emb_head_dim", m.qk_head_dim + m.qk_pos_emb_head_dim),
        Dim("v_head_dim", m.v_head_dim),
    )
    kr, rot = Dim("kv_lora_rank", m.kv_lora_rank), Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim)
    low = yield from projected(c, f"{NAME}.q_a_proj", x, weights["q_a_proj"])
    low = yield from split_norm(c, f"{NAME}.q_a_layernorm", low)
    flat = yield from projected(c, f"{NAME}.q_b_proj", low, weights["q_b_proj"])
    query = flat.view(f"{NAME}.q", (c.seq, c.batch, heads, qk))
    yield Op(f"{NAME}.view_q", (flat,), (query,), passes=(flat,))
    both = yield from projected(c, f"{NAME}.kv_a_proj_with_mqa", x, weights["kv_a"])
    latent, shared = (
        both.view(f"{NAME}.kv_compressed", (*both.shape[:-1], kr)),
        both.view(f"{NAME}.k_shared", (*both.shape[:-1], rot)),
    )
    yield Op(f"{NAME}.split_kv", (both,), (latent, shared))
    latent = yield from split_norm(c, f"{NAME}.kv_a_layernorm", latent)
    pair = yield from projected(c, f"{NAME}.kv_b_proj", latent, weights["kv_b_proj"])
    key, value = c.region(f"{NAME}.k", heads, qk), c.region(f"{NAME}.v", heads, dv)
    yield Op(f"{NAME}.join_k", (pair, shared), (key, value), work=(Streamed(),), calls=3)
    context = yield from in_part("core_attn", core_attention(c, query, key, value, heads, layer))
    gate = yield from projected(c, f"{NAME}.g_proj", x, weights["g_proj"])
    opened, out = gate.like(f"{NAME}.gate opened"), gate.like(f"{NAME}.gated output")
    yield Op(f"{NAME}.sigmoid", (gate,), (opened,), (opened,))
    yield Op(f"{NAME}.output_gate", (context, opened), (out,), (context, opened))
    return (yield from in_part("attn_proj", row_linear(c, f"{NAME}.o_proj", out, weights["o_proj"])))


def kda_params(c: Context) -> Module[dict[str, Param]]:
    """All parameters; those of the linears by name."""
    m = c.model
    heads, d = (
        c.dim("linear_num_key_heads", m.linear_num_key_heads, "tp"),
        Dim("linear_key_head_dim", m.linear_key_head_dim),
    )
    width = c.dim("heads*head_dim", m.linear_num_key_heads * d.size, "tp")
    yield Param(f"{NAME}.A_log", (heads,), "tp", matrix=False, dtype="fp32")
    yield Param(f"{NAME}.dt_bias", (width,), "tp", matrix=False, dtype="fp32")
    found = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        found[name] = yield from linear_params(c, f"{NAME}.{name}", width, c.hidden, "tp", False)
    taps = Dim("linear_conv_kernel_dim", m.linear_conv_kernel_dim)
    for name in "qkv":
        yield Param(f"{NAME}.{name}_conv1d.weight", (width, Dim("one", 1), taps), "tp", matrix=False, dtype="fp32")
    found["f_a_proj"] = yield from linear_params(c, f"{NAME}.f_a_proj", d, c.hidden, "replicated", False)
    found["f_b_proj"] = yield from linear_params(c, f"{NAME}.f_b_proj", width, d, "tp", False)
    found["b_proj"] = yield from linear_params(c, f"{NAME}.b_proj", heads, c.hidden, "tp", False)
    found["g_proj"] = yield from linear_params(c, f"{NAME}.g_proj", width, c.hidden, "tp", False)
    yield from norm_params(c, f"{NAME}.o_norm.", d)
    found["o_proj"] = yield from linear_params(c, f"{NAME}.o_proj", c.hidden, width, "tp", False)
    return found


def kimi_delta_attention(c: Context, x: Tensor, weights: dict[str, Param]) -> Module[Tensor]:
    """Output on the residual stream, of the gathered input."""
    m = c.model
    heads, d = weights["b_proj"].shape[0], Dim("linear_key_head_dim", m.linear_key_head_dim)
    mixed = {}
    for name in "qkv":
        raw = yield from projected(c, f"{NAME}.{name}_proj", x, weights[f"{name}_proj"])
        mixed[name] = c.region(f"{NAME}.{name}", heads, d)
        yield Op(f"{NAME}.{name}_conv1d", (raw,), (mixed[name],), (raw,))
    low = yield from projected(c, f"{NAME}.f_a_proj", x, weights["f_a_proj"])
    decay = yield from projected(c, f"{NAME}.f_b_proj", low, weights["f_b_proj"])
    score = yield from projected(c, f"{NAME}.b_proj", x, weights["b_proj"])
    beta = score.like(f"{NAME}.beta", "fp32")
    yield Op(f"{NAME}.sigmoid", (score,), (beta,), (beta,), calls=2)
    gate = yield from projected(c, f"{NAME}.g_proj", x, weights["g_proj"])
    out = yield from _delta_rule(c, mixed, decay, beta)
    gated = c.region(f"{NAME}.o_norm.output", gate.shape[-1])
    rstd = c.new(f"{NAME}.o_norm.rsigma", c.seq, c.batch, heads, dtype="fp32")
    yield Op(f"{NAME}.o_norm", (out, gate), (gated,), (out, gate, rstd))
    return (yield from row_linear(c, f"{NAME}.o_proj", gated, weights["o_proj"]))


def _delta_rule(c: Context, mixed: dict[str, Tensor], decay: Tensor, beta: Tensor) -> Module[Tensor]:
    """Normed query and key, value, gate and two matrices of a chunk stay; states and w, u come back in the backward."""
    q, k, v = (mixed[name] for name in "qkv")
    out = q.like(f"{NAME}.delta rule output")
    heads, d = q.shape[-2], q.shape[-1]
    normed = tuple(t.like(f"{t.name} normed") for t in (q, k))
    rstd = tuple(c.new(f"{t.name} rsigma", c.seq, c.batch, heads, dtype="fp32") for t in (q, k))
    block = c.new(f"{NAME}.chunk matrix", c.seq, c.batch, heads, Dim("chunk", CHUNK))
    blocks = (block, block.like(f"{NAME}.second chunk matrix"))
    states = c.new(
        f"{NAME}.chunk states",
        c.seq._replace(name="seq/chunk"),
        c.batch,
        heads,
        Dim("d*d/chunk", d.size * d.size // CHUNK),
    )
    cumsum = q.like(f"{NAME}.decay cumsum", "fp32")
    scratch = (states, cumsum, *(q.like(f"{NAME}.{name}") for name in ("w", "u", "v_new")))
    back = (*scratch, states.like(f"{NAME}.chunk states grad"), cumsum.like(f"{NAME}.decay grad"),
            *(q.like(f"{NAME}.{name} grad") for name in ("w", "u", "v_new")))  # fmt: skip
    flops = RULE_FLOPS * heads.local * d.size * d.size * c.seq.local * c.batch.size
    work = (Streamed(flops, 3 * k.nbytes + 2 * block.nbytes, 2 * q.nbytes + 5 * k.nbytes + 2 * out.nbytes),)
    yield Op(
        f"{NAME}.delta_rule", (q, k, v, decay, beta), (out,), (*normed, *rstd, v, decay, beta, *blocks), scratch, back, work=work,
        calls=RULE_KERNELS,
    )  # fmt: skip
    return out


def kimi_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What layers that carry a bank of prefixes do not have (`src/megatron/bridge/models/kimi/`)."""
    t = training
    if interleaved(model, layout):
        yield broken("attention-residuals-with-virtual-stages")
    yield from broken_if(
        (
            (t.bias_activation_fusion, "attention-residuals-with-activation-fusion"),
            (t.overlap_moe_expert_parallel_comm, "attention-residuals-with-a2a-overlap"),
            (t.moe_shared_expert_overlap, "attention-residuals-with-shared-expert-overlap"),
            (t.distribute_saved_activations, "attention-residuals-with-distributed-activations"),
            (t.freeze_language_model, "attention-residuals-with-frozen-model"),
            (t.cpu_offloading_num_layers, "attention-residuals-with-offloading"),
        )
    )


_KIMI = Kind(
    name="k3_dense",
    role="layer",
    declare=dense_layer,
    part="mlp",
    residual="mlp_residual",
    owners=frozenset(("kimi",)),
    dense=True,
    rules=(kimi_rules,),
    setting="attn_res_block_size",
    ruled=frozenset(("deterministic kernels",)),
)
KIMI = (
    _KIMI,
    _KIMI._replace(
        name="k3_moe",
        declare=moe_layer,
        part="moe",
        residual="moe_residual",
        dense=False,
        routed=True,
        owners=frozenset(("kimi", "moe")),
        recomputes=frozenset(("moe_act",)),
        kept=moe_kept,
    ),
    _KIMI._replace(
        name="k3_kda",
        declare=kda_layer,
        part="attn",
        residual="attn_residual",
        dense=False,
        owners=frozenset(("kimi", "gdn")),
        state_heads="delta",
        ruled=frozenset(),
    ),
    _KIMI._replace(
        name="k3_mla",
        declare=mla_layer,
        part="attn",
        residual="attn_residual",
        dense=False,
        owners=frozenset(("kimi", "mla")),
        heads=True,
        latent=True,
    ),
)
