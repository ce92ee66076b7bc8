"""Multi-latent attention without RoPE, whose output is gated by the input (Kimi K3).

    normed [s, b, h] -> q_a [qr] -> norm -> q_b [n, d]         latents of all tokens on every tensor-parallel rank
                     -> kv_a [kr + dr] -> norm -> kv_b [n, dn + dv]
                     -> g [n, dv]: core attention * sigmoid(g) -> o_proj

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py` (_forward_mla).
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import Streamed
from .context import Context
from .core_attention import core_attention
from .linear import linear_params, row_linear
from .module import Module, in_part
from .norm import norm_params
from .projection import projected, split_norm

NAME = "self_attention"


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
