"""Gated DeltaNet of plain linears (slime's and miles' Qwen3-Next and Qwen3.5): every tensor-parallel rank has all weights and all tokens.

    hidden -> gathered over tp -> of all tokens, or of a part in the sequence's order -> RMSNorm op by op
    -> in_proj_qkv -> conv1d + SiLU -> q, k repeated to the value heads, v -+
    -> in_proj_b, in_proj_a -> beta, g -------------------------------------+-> chunked delta rule
    -> in_proj_z -> norm per head x SiLU(z) -> out_proj -> the rank's own tokens

Sources: radixark/miles 0.0.2 `miles_plugins/models/hf_attention.py` (HuggingfaceAttention), `qwen3_5.py` (Qwen3_5GatedDeltaNet);
huggingface/transformers `src/transformers/models/qwen3_next/modeling_qwen3_next.py` (Qwen3NextRMSNorm); flash-linear-attention 0.6.0
`fla/modules/causal_conv1d/`, `fla/modules/norm/fused_norm_gate.py`, `fla/ops/gated_delta_rule/chunk.py`. Qwen3-Next has one projection
for q, k, v and z and one for b and a, which keep as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import Violation, broken_if
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import linear
from .context import Context
from .gated_delta_net import CHUNK, NAME, RULE_KERNELS, backward_scratch, forward_scratch, rule_work
from .linear import rows_of
from .module import Module, holding
from .sends import over_cp, over_tp

LINEAR = f"{NAME}.linear_attn"
INPUT = f"{NAME}.input"
OUTPUT = f"{LINEAR}.out_proj.output"
NORM_CALLS = 9
"""Functions of PyTorch: the casts of input, weight and output, square, mean, sum, root, two products."""


def whole_delta_net(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """Output on the residual stream; works on the tokens of all context-parallel ranks."""
    x = yield from _of_tensor_ranks(c, hidden)
    x = yield from _of_sequence_ranks(c, x)
    out = yield from holding(_gated_delta_net(c, x), x)
    if c.cp_many:
        own = c.region(f"{OUTPUT} of the rank", c.hidden)
        yield Op(f"{OUTPUT}.select", (out,), (own,))
        out = own
    return (yield from _own_tokens(c, out))


def whole_delta_net_cp(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The same with a part of the sequence on each context-parallel rank, which hand on states."""
    x = yield from _of_tensor_ranks(c, hidden)
    x = yield from _in_order(c, INPUT, x)
    out = yield from holding(_gated_delta_net(c, x), x)
    out = yield from _in_order(c, OUTPUT, out)
    return (yield from _own_tokens(c, out))


def whole_delta_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What its spec stops at, and what nobody has read up for it."""
    yield from broken_if(
        (
            (bool(layout.pipeline_model_parallel_layout), "whole-delta-net-in-a-layout"),
            (model.fp32_residual_connection, "whole-delta-net-in-fp32"),
        )
    )


def _of_tensor_ranks(c: Context, x: Tensor) -> Module[Tensor]:
    """The tokens of all tensor-parallel ranks; the backward takes the rank's own part of the gradient."""
    if not c.sp_many:
        return x
    whole = c.region(f"{INPUT} gathered", c.hidden)
    yield Op(f"{INPUT}.all_gather", (x,), (whole,), sends=over_tp(c, "all_gather", whole))
    return whole


def _of_sequence_ranks(c: Context, x: Tensor) -> Module[Tensor]:
    """The tokens of all context-parallel ranks in the sequence's order."""
    if not c.cp_many:
        return x
    whole = c.new(f"{INPUT} of the whole sequence", c.full_seq, c.batch, c.hidden)
    ranks = whole.like(f"{whole.name} rank by rank")
    yield Op(
        whole.name, (x,), (whole,), forward=(ranks,), backward=(ranks,), sends=over_cp(c, "all_gather", whole),
        returns=over_cp(c, "reduce_scatter", whole),
    )  # fmt: skip
    return whole


def _in_order(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """A part of the sequence without gaps in place of two chunks of it, or back: a view of all ranks' tokens, which are joined twice."""
    if not c.cp_many:
        return x
    whole = c.new(f"{name} of the whole sequence", c.full_seq, c.batch, c.hidden)
    part = whole.view(f"{name} in order", x.shape)
    made = tuple(whole.like(f"{whole.name} {how}") for how in ("rank by rank", "by sample"))
    grads = (*made, whole.like(f"{whole.name} grad"))
    sends = over_cp(c, "all_gather", whole)
    yield Op(part.name, (x,), (whole, part), forward=made, backward=grads, sends=sends, returns=sends)
    return part


def _own_tokens(c: Context, out: Tensor) -> Module[Tensor]:
    """The rank's own tokens of the residual stream: a view."""
    if not c.sp_many:
        return out
    own = out.view(f"{OUTPUT} of the stream", (c.seq_sp, c.batch, c.hidden))
    yield Op(f"{OUTPUT}.scatter", (out,), (own,), returns=over_tp(c, "all_gather", out))
    return own


def _gated_delta_net(c: Context, x: Tensor) -> Module[Tensor]:
    """Output of the rank's linear attention on tokens [s, b, h]."""
    m = c.model
    tokens = x.shape[:-1]
    dk, dv = Dim("linear_key_head_dim", m.linear_key_head_dim), Dim("linear_value_head_dim", m.linear_value_head_dim)
    key_heads, heads = (
        Dim("linear_num_key_heads", m.linear_num_key_heads),
        Dim("linear_num_value_heads", m.linear_num_value_heads),
    )
    values = Dim("value_heads*value_head_dim", heads.size * dv.size)
    conv = Dim("conv", 2 * key_heads.size * dk.size + values.size)
    for name in ("dt_bias", "A_log"):
        yield Param(f"{LINEAR}.{name}", (heads,), matrix=False)
    yield Param(f"{LINEAR}.conv1d.weight", (conv, Dim("one", 1), Dim("d_conv", m.linear_conv_kernel_dim)), matrix=False)
    widths = {"in_proj_qkv": conv, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    weights = {name: Param(f"{LINEAR}.{name}.weight", (width, c.hidden)) for name, width in widths.items()}
    yield from weights.values()
    yield Param(f"{LINEAR}.norm.weight", (dv,), matrix=False)
    out_proj = Param(f"{LINEAR}.out_proj.weight", (c.hidden, values))
    yield out_proj
    yield Param(f"{NAME}.input_layernorm.weight", (c.hidden,), matrix=False)

    normed = yield from _norm(c, x)
    projected = []
    for name, weight in weights.items():
        projected.append((yield from _plain_linear(c, f"{LINEAR}.{name}", normed, weight)))
    qkv, z, b, a = projected
    made = c.new(f"{LINEAR}.conv1d.output", *tokens, conv)
    yield Op(f"{LINEAR}.conv1d", (qkv,), (made,), (qkv,))
    parts = tuple(
        made.view(f"{LINEAR}.{name}", (*tokens, *shape))
        for name, shape in (
            ("q at key heads", (key_heads, dk)),
            ("k at key heads", (key_heads, dk)),
            ("v", (heads, dv)),
        )
    )
    yield Op(f"{LINEAR}.split", (made,), parts)
    wide = []
    for part in parts[:2]:
        repeated = c.new(part.name.removesuffix(" at key heads"), *tokens, heads, dk)
        yield Op(f"{repeated.name}.repeat", (part,), (repeated,))
        wide.append(repeated)
    beta, g = yield from _gates(c, b, a)
    out = yield from _delta_rule(c, (wide[0], wide[1], parts[2]), beta, g)
    gated = c.new(f"{LINEAR}.norm.output", *tokens, values)
    rsigma = c.new(f"{LINEAR}.norm.rsigma", *tokens, heads, dtype="fp32")
    yield Op(f"{LINEAR}.norm", (out, z), (gated,), (out, z, rsigma))
    last = _plain_linear(c, f"{LINEAR}.out_proj", gated, out_proj)
    return (yield from holding(last, made, *wide, g))


def _norm(c: Context, x: Tensor) -> Module[Tensor]:
    """The normed tokens: fp32 copies of the input and of the normed rows stay."""
    name = f"{NAME}.input_layernorm"
    wide, normed, scaled = (x.like(f"{name}.{part} fp32", "fp32") for part in ("input", "normed", "output"))
    row, weight = (
        c.new(f"{name}.rsigma", *x.shape[:-1], dtype="fp32"),
        c.new(f"{name}.weight fp32", c.hidden, dtype="fp32"),
    )
    grads = tuple(x.like(f"{name}.grad fp32 {i}", "fp32") for i in range(3))
    out = x.like(f"{name}.output")
    yield Op(name, (x,), (out,), (wide, row, normed, weight), (scaled,), grads, calls=NORM_CALLS)
    return out


def _plain_linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """A linear of PyTorch, whose weight's gradient is a tensor of its own in every backward."""
    trained = not c.training.base_frozen
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(
        name, (x,), (out,), (x,) if trained else (), backward=(c.new(f"{weight.name}.wgrad", *weight.shape),) if trained else (),
        work=(linear(weight, rows_of(out), trained=trained)._replace(counted=True),),
    )  # fmt: skip
    return out


def _gates(c: Context, b: Tensor, a: Tensor) -> Module[tuple[Tensor, Tensor]]:
    """beta = sigmoid(b), which is kept, and the decay from softplus(a) in fp32, whose input and output are."""
    beta, g = b.like(f"{LINEAR}.beta"), a.like(f"{LINEAR}.g", "fp32")
    yield Op(f"{LINEAR}.sigmoid", (b,), (beta,), (beta,))
    kept = tuple(a.like(f"{LINEAR}.softplus {end}", "fp32") for end in ("input", "output"))
    yield Op(f"{LINEAR}.decay", (a,), (g,), kept, calls=5)
    return beta, g


def _delta_rule(c: Context, qkv: tuple[Tensor, Tensor, Tensor], beta: Tensor, g: Tensor) -> Module[Tensor]:
    """The rule's kernels: they norm queries and keys and copy values out of the convolution's output."""
    q, k, v = qkv
    out = v.like(f"{LINEAR}.delta rule.output")
    block = c.new(f"{LINEAR}.WY block inverse", *g.shape, Dim("chunk", CHUNK))
    unit = tuple(x.like(f"{x.name} l2norm.output") for x in (q, k))
    rstd = tuple(g.like(f"{x.name} l2norm.rstd") for x in (q, k))
    values = v.like(f"{v.name} contiguous")
    yield Op(
        f"{LINEAR}.delta_rule", (q, k, v, beta, g), (out,), (*unit, *rstd, values, g.like(f"{LINEAR}.g cumsum"), beta, block),
        forward=forward_scratch(q, values), backward=backward_scratch(q, values), work=(rule_work(k, block, q, out),),
        calls=RULE_KERNELS + 3,
    )  # fmt: skip
    return out
