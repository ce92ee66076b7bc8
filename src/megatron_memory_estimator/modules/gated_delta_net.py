"""Gated DeltaNet (Qwen3-Next, Qwen3.5). Sources: Megatron-LM `megatron/core/ssm/gated_delta_net/` (`gdn.py`, `common.py`);
flash-linear-attention `fla/ops/gated_delta_rule/chunk.py`, `fla/modules/l2norm.py`, `fla/modules/conv/triton/ops.py`.

    in_proj (norm fused) -> [q | k | v | gate | beta | alpha] -> conv1d + SiLU -> l2norm of q, k -> repeat to the value heads
    -> chunked delta rule -> norm per head x SiLU(gate) -> out_proj

With deterministic_mode PyTorch's operations take the place of the kernels of conv1d and of the delta rule (`common.py`,
torch_chunk_gated_delta_rule): they keep every matrix in fp32, those of a loop over the 64 tokens of a chunk among them.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, numel_of, round_up, tensor
from ..tape.work import Streamed
from .context import Context
from .linear import column_linear, linear_params, row_linear
from .module import Module, holding, recomputed
from .norm import norm, norm_params

NAME = "self_attention"
CHUNK = 64
"""Chunk length of the delta rule (fla/ops/gated_delta_rule/chunk.py)."""
RULE_FLOPS = 8
"""Forward FLOPs of the delta rule per token, value channel and key channel (Megatron-LM `megatron/training/training.py`)."""
SOLVED = sum(i * i + i for i in range(1, CHUNK)) // CHUNK
"""Numbers of a token and head that solving a chunk row by row keeps: of step i the row of i and the block of i x i before it."""
RULE_KERNELS = 6
"""Kernels of its forward: cumsum, K K products, triangular solve, w and u, chunk states, output (chunk.py)."""


def gated_delta_net_2(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The same with decay, beta and erase gate per channel."""
    return (yield from gated_delta_net(c, hidden, layer, second=True))


def gated_delta_net(
    c: Context, hidden: Tensor, layer: int = 0, *, second: bool = False, normed: Tensor | None = None
) -> Module[Tensor]:
    """Output on the residual stream; includes the norm that is fused into in_proj, unless the input is `normed` already."""
    m = c.model
    nk, nv = m.linear_num_key_heads, m.linear_num_value_heads
    dk, dv = Dim("linear_key_head_dim", m.linear_key_head_dim), Dim("linear_value_head_dim", m.linear_value_head_dim)
    keys, values = nk * dk.size, nv * dv.size
    key_heads = c.dim("linear_num_key_heads", nk, "tp")
    heads = c.dim("linear_num_value_heads", nv, "tp")
    # gdn: q, k, v, gate, one beta and alpha per head; gdn2: decay, beta and erase gate per channel instead
    decay_width = 2 * keys + values if second else 2 * nv
    in_width = c.dim("in_proj", 2 * keys + 2 * values + decay_width, "tp")
    conv = c.dim("conv", 2 * keys + values, "tp")
    out_width = c.dim("value_heads*value_head_dim", values, "tp")

    decays = c.dim("key_heads*key_head_dim", keys, "tp") if second else heads
    yield Param(f"{NAME}.dt_bias", (decays,), "tp", matrix=False)
    yield Param(f"{NAME}.A_log", (key_heads if second else heads,), "tp", matrix=False)
    own_norm = normed is None
    if own_norm:
        yield from norm_params(c, f"{NAME}.in_proj.layer_norm_", c.hidden)
    in_proj = yield from linear_params(c, f"{NAME}.in_proj", in_width, c.hidden, "tp", False)
    yield Param(
        f"{NAME}.conv1d.weight", (conv, Dim("one", 1), Dim("d_conv", m.linear_conv_kernel_dim)), "tp", matrix=False
    )
    yield from norm_params(c, f"{NAME}.out_norm.", dv)
    out_proj = yield from linear_params(c, f"{NAME}.out_proj", c.hidden, out_width, "tp", False)

    if normed is None:
        normed = yield from norm(c, f"{NAME}.in_norm", hidden)
    packed = yield from column_linear(c, f"{NAME}.in_proj", normed, in_proj, normed=own_norm)
    # views of one packed tensor; the convolution keeps its part, which pins all of it
    shape = (c.seq, c.batch)
    qkv = packed.view(f"{NAME}.qkv", (*shape, conv))
    gate_part = packed.view(f"{NAME}.gate", (*shape, heads, dv))
    decay = packed.view(f"{NAME}.beta and alpha", (*shape, c.dim("decay", decay_width, "tp")))
    yield Op(f"{NAME}.split", (packed,), (qkv, gate_part, decay))
    gate = gate_part.like(f"{NAME}.gate copy")
    yield Op(f"{NAME}.gate_copy", (gate_part,), (gate,), passes=(gate_part,))
    q_key = c.region(f"{NAME}.q at key heads", key_heads, dk)
    k_key = q_key.like(f"{NAME}.k at key heads")
    v = c.region(f"{NAME}.v", heads, dv)
    conv_out = c.region(f"{NAME}.conv output", conv)
    exact = c.training.deterministic_mode
    yield from (_torch_conv if exact else _conv)(c, qkv, (q_key, k_key, v), conv_out)
    repeated = []
    for x in (q_key, k_key):
        unit = x.like(f"{x.name} l2norm.output")
        rstd = c.new(f"{x.name} l2norm.rstd", c.seq, c.batch, key_heads, dtype="fp32")
        yield Op(f"{x.name} l2norm", (x,), (unit,), (unit, rstd))
        wide = c.region(f"{x.name.replace('key', 'value')}", heads, dk)
        yield Op(f"{x.name} repeat", (unit,), (wide,))
        repeated.append(wide)
    q, k = repeated
    out = c.region(f"{NAME}.delta rule output", heads, dv)
    if exact:
        yield from _torch_rule(c, (q, k, v), decay, out)
    else:
        block = c.new(f"{NAME}.WY block inverse", c.seq, c.batch, heads, Dim("chunk", CHUNK))
        gates = _channel_gates(c, q, block, keys, values) if second else _gates(c, heads)
        yield Op(
            f"{NAME}.delta_rule", (q, k, v, decay), (out,), (q, k, v, block, *gates),
            forward=forward_scratch(q, v), backward=backward_scratch(q, v),
            work=(rule_work(k, block, q, out),), calls=RULE_KERNELS,
        )  # fmt: skip

    def norm_and_gate() -> Module[Tensor]:
        normed_out = out.like(f"{NAME}.out_norm.output")
        rstd = c.new(f"{NAME}.out_norm.rstd", c.seq, c.batch, heads, dtype="fp32")
        yield Op(f"{NAME}.out_norm", (out,), (normed_out,), (out, rstd))
        gated = c.region(f"{NAME}.gated output", out_width)
        if c.training.compiled_gates:
            kept: tuple[Tensor, ...] = (gate,)
        else:
            kept = (out.like(f"{NAME}.gate fp32", "fp32"), out.like(f"{NAME}.silu(gate) fp32", "fp32"))
        yield Op(f"{NAME}.output_gate", (normed_out, gate), (gated,), (normed_out, *kept))
        return gated

    def behind() -> Module[Tensor]:
        again = c.training.recomputes("gdn_norm_out")
        gated = yield from recomputed(again, f"{NAME}.out_norm.checkpoint", norm_and_gate(), hook=f"{NAME}.out_proj")
        return (yield from row_linear(c, f"{NAME}.out_proj", gated, out_proj))

    variables = (packed, conv_out, q, k, v) if exact else ()
    return (yield from holding(behind(), *variables))


def _conv(c: Context, qkv: Tensor, parts: tuple[Tensor, ...], out: Tensor) -> Module[None]:
    """The fused convolution with SiLU, which keeps its input."""
    yield Op(f"{NAME}.conv1d", (qkv,), parts, (qkv,), forward=(out,), backward=(out.like(f"{out.name} grad"),))


def _torch_conv(c: Context, qkv: Tensor, parts: tuple[Tensor, ...], out: Tensor) -> Module[None]:
    """PyTorch's convolution keeps a copy of its input [b, d, s], and SiLU the convolution's output with the ends of its padding."""
    ends = Dim("d_conv-1", c.model.linear_conv_kernel_dim - 1)
    kept = (
        qkv.like(f"{NAME}.conv1d input by channel"),
        out.like(f"{NAME}.conv1d output"),
        c.new(f"{NAME}.conv1d output, ends", c.batch, qkv.shape[-1], ends),
    )
    yield Op(f"{NAME}.conv1d", (qkv,), (out,), kept, work=(Streamed(),))
    yield Op(f"{NAME}.conv1d.split", (out,), parts)


def rule_flops(out: Tensor) -> int:
    """Forward FLOPs of the rule whose output [s, b, heads, dv] this is."""
    return RULE_FLOPS * numel_of(out.shape) * out.shape[-1].size


def rule_work(k: Tensor, block: Tensor, q: Tensor, out: Tensor) -> Streamed:
    """The rule's kernels. Beyond one pass the forward reads k for K K, w and the states, the backward q, k and the output's gradient in
    bwd_dv, dhu, dqkwg and wy."""
    return Streamed(rule_flops(out), 3 * k.nbytes + 2 * block.nbytes, 2 * q.nbytes + 5 * k.nbytes + 2 * out.nbytes)


def _torch_rule(c: Context, given: tuple[Tensor, ...], decay: Tensor, out: Tensor) -> Module[None]:
    """The delta rule as PyTorch's operations on fp32 copies, tokens padded to whole chunks of 64.

    A chunk after the other hands on its state: the first one has none to keep a factor for, the last one hands on nothing.
    """
    heads, (dk, dv) = out.shape[2], (given[0].shape[-1], given[2].shape[-1])
    length = round_up(c.training.seq_length, CHUNK)
    padded = c.dim("seq in whole chunks", length, "cp")
    handed = Dim("seq/cp in chunks but one", (length - CHUNK) // c.layout.cp)
    rows = (c.batch, heads)

    def wide(name: str, *dims: Dim) -> Tensor:
        return c.new(f"{NAME}.{name} in fp32", *dims, dtype="fp32")

    query, key, value = (wide(x, padded, *rows, d) for x, d in (("query", dk), ("key", dk), ("value", dv)))
    yield Op(f"{NAME}.to_fp32", given, (query, key, value))
    square, one = Dim("chunk", CHUNK), Dim("ends of chunks", length // CHUNK // c.layout.cp)
    mask = c.new(f"{NAME}.masks of a chunk", Dim("two", 2), square, square, dtype="bool")
    kept = (
        *(
            query,
            key,
            value,
            mask,
            wide("solved rows and their blocks", padded, *rows, Dim("sum of i^2+i / chunk", SOLVED)),
        ),
        *(wide(name, padded, *rows, dk) for name in ("key times beta", "key times beta and decay", "k_cumdecay")),
        *(wide(name, padded, *rows, dv) for name in ("value times beta", "v_new")),
        *(wide(name, handed, *rows, dk) for name in ("query times decay", "key times what decays after it")),
        *(
            wide(name, padded, *rows, square)
            for name in ("decay", "decay_mask", "K K", "attn", "Q K", "attn of a chunk")
        ),
        wide(
            "state of a chunk", padded._replace(name="seq/chunk"), *rows, Dim("dk*dv/chunk", dk.size * dv.size // CHUNK)
        ),
        *(wide(name, padded, *rows) for name in ("beta", "exp(g) of keys", "exp(g) of queries", "exp(g) after keys")),
        wide("exp(g) at the end of a chunk", *rows, one),
        *(c.new(f"{NAME}.softplus {end}", c.seq, *rows, dtype="fp32") for end in ("input", "output")),
        c.new(f"{NAME}.beta", c.seq, *rows),
    )
    forward = tuple(wide(name, padded, *rows, dv) for name in ("u", "core_attn_out", "core_attn_out by token"))
    backward = (
        *(wide(f"{name} grad", padded, *rows, dv) for name in ("core_attn_out", "u")),
        wide("k_cumdecay grad", padded, *rows, dk),
        *(wide(f"decay_mask grad{more}", padded, *rows, square) for more in ("", ", added up")),
    )
    yield Op(
        f"{NAME}.delta_rule",
        (query, key, value, decay),
        (out,),
        kept,
        forward,
        backward,
        work=(Streamed(rule_flops(out)),),
    )


def _gates(c: Context, heads: Dim) -> tuple[Tensor, ...]:
    """Decay cumsum, beta and the intermediates of the gate function: 14 bytes per token and head, 16 for b > 1."""
    shape = (c.seq, c.batch, heads)
    kept = (
        c.new(f"{NAME}.g cumsum", *shape, dtype="fp32"),
        c.new(f"{NAME}.softplus input", *shape, dtype="fp32"),
        c.new(f"{NAME}.softplus output", *shape, dtype="fp32"),
        c.new(f"{NAME}.beta", *shape),
    )
    if c.several_sequences:
        return (*kept, c.new(f"{NAME}.sigmoid", *shape))
    return kept


def _channel_gates(c: Context, q: Tensor, block: Tensor, keys: int, values: int) -> tuple[Tensor, ...]:
    """gdn2: decay, beta and erase gate per channel; the kernel keeps the decay and its cumsum at the value heads."""
    key_channels, value_channels = c.dim("key channels", keys, "tp"), c.dim("value channels", values, "tp")
    return (
        c.new(f"{NAME}.decay", c.seq, c.batch, key_channels, dtype="fp32"),
        c.new(f"{NAME}.softplus output", c.seq, c.batch, key_channels, dtype="fp32"),
        c.region(f"{NAME}.key gate", key_channels),
        c.region(f"{NAME}.value gate", value_channels),
        q.like(f"{NAME}.g at value heads", "fp32"),
        q.like(f"{NAME}.g cumsum at value heads", "fp32"),
        q.like(f"{NAME}.b at value heads"),
        block.like(f"{NAME}.second block"),
    )


def _hidden_states(name: str, q: Tensor, v: Tensor) -> Tensor:
    """Chunk states [tokens / chunk, heads, dk, dv]."""
    seq, batch, heads, dk = q.shape
    states = Dim("dk*dv/chunk", dk.size * v.shape[-1].size // CHUNK)
    return tensor(name, (seq._replace(name="seq/chunk"), batch, heads, states), q.dtype)


def forward_scratch(q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """What the forward of the rule has beside queries, keys and values [s, b, value heads, d]."""
    return (
        q.like(f"{NAME}.w"),
        v.like(f"{NAME}.u"),
        v.like(f"{NAME}.v_new"),
        _hidden_states(f"{NAME}.h", q, v),
    )


def backward_scratch(q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """h, dh and the recomputed w, u, v_new with their gradients (dq, dk, dv are the gradients of the op's reads)."""
    return (
        _hidden_states(f"{NAME}.h", q, v),
        _hidden_states(f"{NAME}.dh", q, v),
        q.like(f"{NAME}.w"),
        q.like(f"{NAME}.dw"),
        *(v.like(f"{NAME}.{part}") for part in ("u", "v_new", "v_new grad", "du")),
    )
