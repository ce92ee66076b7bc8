"""Kimi Delta Attention: a delta rule with a decay per channel (Kimi K3).

    normed [s, b, h] -> q, k, v [P] -> convolution each -> delta rule, with a gate (f_a, f_b) and a beta -> norm, gated by g -> o_proj

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py` (_forward_kda), `kimi_k3_ops.py`;
flash-linear-attention `fla/ops/kda/`, `fla/modules/convolution.py`, `fla/modules/fused_norm_gate.py`.

The gathered input is kept once for all projections. Decay, time step and convolutions have fp32 parameters.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import Streamed
from .context import Context
from .gated_delta_net import CHUNK, RULE_FLOPS, RULE_KERNELS
from .linear import linear_params, row_linear
from .module import Module
from .norm import norm_params
from .projection import projected

NAME = "self_attention"


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
