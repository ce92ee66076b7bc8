"""Mamba-2 mixer. Sources: Megatron-LM `megatron/core/ssm/mamba_mixer.py`; mamba-ssm
`mamba_ssm/ops/triton/ssd_combined.py`; causal-conv1d `causal_conv1d/causal_conv1d_interface.py`.

    in_proj (norm fused) -> [z | x | B | C | dt] -> conv1d + SiLU -> chunked scan, gated by z -> grouped norm -> out_proj

The scan keeps the raw in_proj output and its own output before the gate; conv outputs and chunk states are recomputed in
its backward. Context parallelism redistributes heads, so the bytes per local token stay, with the groups replicated where
there are fewer than tp * cp.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, largest
from ..tape.work import Streamed
from .context import Context
from .linear import column_linear, linear_params, row_linear
from .module import Module
from .norm import norm, norm_params
from .sends import over_cp

NAME = "mixer"
CONV = 4
"""Width of the convolution (mamba_mixer.py, d_conv)."""
SCAN_FLOPS = 7
"""Forward FLOPs of the scan per token, channel and state (Megatron-LM `megatron/training/training.py`, mamba_layer_flops)."""
SCAN_KERNELS = 6
"""Kernels of its forward: convolution, cumsum, chunk states, their passing on, C B products, chunk scan (ssd_combined.py)."""


def kept(c: Context, layers: int) -> Iterator[tuple[Tensor, str]]:
    """The fp32 cache of -exp(A_log) of every layer."""
    nh = c.dim("mamba_num_heads", c.model.mamba_heads, "tp")
    source = "megatron/core/ssm/mamba_mixer.py: fp32 cache"
    yield c.new("mixer.-exp(A_log)", Dim("layers", layers), nh, dtype="fp32"), source


def mamba_mixer(
    c: Context, hidden: Tensor, layer: int = 0, *, normed: Tensor | None = None, scaled: bool = False
) -> Module[Tensor]:
    """Output on the residual stream; includes the norm that is fused into in_proj, unless the input is `normed` already.

    `scaled`: what the scan reads is in_proj's output times a vector (Falcon-H1).
    """
    m = c.model
    heads = m.mamba_heads
    inner = heads * m.mamba_head_dim
    groups = m.mamba_num_groups
    state = m.mamba_state_dim
    di = c.dim("mamba_inner", inner, "tp")
    nh = c.dim("mamba_num_heads", heads, "tp")
    in_width = c.dim("in_proj", 2 * inner + 2 * groups * state + heads, "tp")
    conv = c.dim("conv", inner + 2 * groups * state, "tp")

    for name in ("dt_bias", "A_log", "D"):
        yield Param(f"{NAME}.{name}", (nh,), "tp", matrix=False)
    if normed is None:
        yield from norm_params(c, f"{NAME}.in_proj.layer_norm_", c.hidden)
    in_proj = yield from linear_params(c, f"{NAME}.in_proj", in_width, c.hidden, "tp", m.add_bias_linear)
    yield Param(f"{NAME}.conv1d.weight", (conv, Dim("one", 1), Dim("d_conv", CONV)), "tp", matrix=False)
    yield Param(f"{NAME}.conv1d.bias", (conv,), "tp", matrix=False)
    if m.mamba_rmsnorm:
        yield Param(f"{NAME}.norm.weight", (di,), "tp", matrix=False)
    out_proj = yield from linear_params(c, f"{NAME}.out_proj", c.hidden, di, "tp", m.add_bias_linear)

    # groups after context parallelism: replicated to at least one per rank
    spread = largest(groups, c.layout.tp * c.layout.cp)
    wide = c.dim("in_proj", 2 * inner + 2 * spread * state + heads, "tp")
    conv_wide = c.dim("conv", inner + 2 * spread * state, "tp")
    rows = Dim("mamba_num_groups", groups, ("tp",), c.layout.tp)

    own_norm = normed is None
    if normed is None:
        normed = yield from norm(c, f"{NAME}.norm_in", hidden)
    packed = yield from column_linear(c, f"{NAME}.in_proj", normed, in_proj, normed=own_norm)
    if c.cp_many:
        moved = c.region(f"{NAME}.zxBCdt after all-to-all", wide)
        both = (
            *over_cp(c, "alltoall", moved),
            *over_cp(c, "alltoall", c.region("y", di)),
        )  # there, and the output back
        yield Op(
            f"{NAME}.all_to_all", (packed,), (moved,), forward=(moved.like("cat"), moved.like("reordered")), sends=both,
            returns=both, work=(Streamed(),),
        )  # fmt: skip
        packed = moved
    if scaled:
        scales = c.new(f"{NAME}.scales", packed.shape[-1])
        product = packed.like(f"{NAME}.zxBCdt scaled")
        yield Op(f"{NAME}.scale", (packed,), (product,), (scales,))
        packed = product
    head_params = c.new(f"{NAME}.A, dt_bias, D", Dim("three", 3), nh, dtype="fp32")
    y = c.region(f"{NAME}.scan output", di)
    work = (
        _scanned(
            c, y, c.region(f"{NAME}.conv output", conv_wide), _gram(c, spread), SCAN_FLOPS * y.shape[-1].local * state
        ),
    )
    if c.training.mamba_mem_eff_path:
        scan_out = c.region(f"{NAME}.scan output before gate", di)
        yield Op(
            f"{NAME}.scan", (packed,), (y,), (packed, scan_out, head_params),
            forward=_forward_scratch(c, inner, state, conv_wide, di, nh, spread),
            backward=_backward_scratch(c, inner, state, conv_wide, di, nh, spread), work=work, calls=SCAN_KERNELS,
        )  # fmt: skip
        gate_kept: tuple[Tensor, ...] = ()
    else:
        conv_in = c.region(f"{NAME}.conv input", conv_wide)
        conv_out = c.region(f"{NAME}.conv output", conv_wide)
        z = c.region(f"{NAME}.z", di)
        dt = c.region(f"{NAME}.dt", nh)
        yield Op(f"{NAME}.split", (packed,), (z, conv_in, dt))
        yield Op(f"{NAME}.conv1d", (conv_in,), (conv_out,), (conv_in,))
        cumsum = c.region(f"{NAME}.dA cumsum", nh).like(f"{NAME}.dA cumsum", "fp32")
        saved: tuple[Tensor, ...] = (conv_out, dt, cumsum, head_params)
        if c.several_sequences:
            saved = (*saved, y.like(f"{NAME}.scan output [b, s]"))
        yield Op(
            f"{NAME}.scan", (conv_out, dt), (y,), saved,
            forward=_forward_scratch(c, inner, state, conv_wide, di, nh, spread),
            backward=_backward_scratch(c, inner, state, conv_wide, di, nh, spread), work=work, calls=SCAN_KERNELS,
        )  # fmt: skip
        gate_kept = (z,)
    if not m.mamba_rmsnorm:  # the scan has gated its output
        return (yield from row_linear(c, f"{NAME}.out_proj", y, out_proj))
    normed_y = c.region(f"{NAME}.norm.output", di)
    rstd = c.new(f"{NAME}.norm.rstd", c.seq, c.batch, rows, dtype="fp32")
    yield Op(f"{NAME}.norm", (y, *gate_kept), (normed_y,), (y, *gate_kept, rstd))
    return (yield from row_linear(c, f"{NAME}.out_proj", normed_y, out_proj))


def _scanned(c: Context, y: Tensor, conv: Tensor, gram: Tensor, flops: int) -> Streamed:
    """The scan's kernels, which read their operands again and again beyond the once that the op says (ssd_combined.py).

    Forward: chunk_state, bmm_chunk and chunk_scan read the convolution's output twice in all; the products C B are written and
    read. Backward: chunk_state, bwd_dz, bwd_dx, bwd_db, bwd_dcb and ddAcs read it, six times x and three times B and C (five of
    the whole); bwd_dz, dstates, dx, dC, dcb and ddAcs the gradient of the output; bwd_dz, dx and ddAcs C B; the gradient of C B
    is written and read twice.
    """
    rows = c.seq.local * c.batch.size
    return Streamed(flops * rows, conv.nbytes + 2 * gram.nbytes, 4 * conv.nbytes + 5 * y.nbytes + (2 + 3) * gram.nbytes)


def _states(c: Context, name: str, inner: int, state: int, dtype: str) -> Tensor:
    """Chunk states [tokens / chunk, heads, head dim, state]."""
    chunks = c.seq._replace(name="seq/chunk")
    return c.new(
        name,
        chunks,
        c.batch,
        c.dim("mamba_inner*state/chunk", inner * state // c.model.mamba_chunk_size, "tp"),
        dtype=dtype,
    )


def _gram(c: Context, groups: int) -> Tensor:
    return c.new(
        f"{NAME}.CB", c.seq, c.batch, c.dim("groups*chunk", groups * c.model.mamba_chunk_size, "tp"), dtype="fp32"
    )


def _forward_scratch(
    c: Context, inner: int, state: int, conv: Dim, di: Dim, nh: Dim, groups: int
) -> tuple[Tensor, ...]:
    """The state-passing moment of the scan: conv output, fp32 chunk states and their bf16 copies."""
    return (
        c.region(f"{NAME}.conv output", conv),
        _states(c, f"{NAME}.chunk states", inner, state, "fp32"),
        _states(c, f"{NAME}.chunk states passed on", inner, state, "bf16"),
    )


def _backward_scratch(
    c: Context, inner: int, state: int, conv: Dim, di: Dim, nh: Dim, groups: int
) -> tuple[Tensor, ...]:
    """The scan's backward: recomputed conv output and its gradient, chunk states and gradients, CB, dt terms."""
    return (
        c.region(f"{NAME}.conv output", conv),
        c.region(f"{NAME}.conv output grad", conv),
        c.region(f"{NAME}.scan output grad", di),
        _states(c, f"{NAME}.chunk states", inner, state, "fp32"),
        _states(c, f"{NAME}.chunk states grad", inner, state, "fp32"),
        _states(c, f"{NAME}.chunk states bf16", inner, state, "bf16"),
        _states(c, f"{NAME}.chunk states grad bf16", inner, state, "bf16"),
        _gram(c, groups),
        c.new(f"{NAME}.dt, dA cumsum and gradients", c.seq, c.batch, nh, Dim("bytes", 18), dtype="uint8"),
    )
