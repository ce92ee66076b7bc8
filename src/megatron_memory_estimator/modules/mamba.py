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
from ..tape.tensor import Dim, Param, Tensor, ceil_div, chosen, largest, round_up, smallest
from ..tape.work import Streamed
from .context import Context
from .linear import column_linear, linear_params, row_linear
from .module import Module, holding
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

    convolution = (
        Param(f"{NAME}.conv1d.weight", (conv, Dim("one", 1), Dim("d_conv", CONV)), "tp", matrix=False),
        Param(f"{NAME}.conv1d.bias", (conv,), "tp", matrix=False),
    )
    own = c.training.mcore >= (0, 19)  # parameters of the mixer itself, registered before those of its modules
    if own:
        yield from convolution
    for name in ("dt_bias", "A_log", "D"):
        yield Param(f"{NAME}.{name}", (nh,), "tp", matrix=False)
    if normed is None:
        yield from norm_params(c, f"{NAME}.in_proj.layer_norm_", c.hidden)
    in_proj = yield from linear_params(c, f"{NAME}.in_proj", in_width, c.hidden, "tp", False)
    if not own:
        yield from convolution
    if m.mamba_rmsnorm:
        yield Param(f"{NAME}.norm.weight", (di,), "tp", matrix=False)
    out_proj = yield from linear_params(c, f"{NAME}.out_proj", c.hidden, di, "tp", False)

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
        # there, and the output back
        both = (
            *over_cp(c, "alltoall", moved),
            *over_cp(c, "alltoall", c.region("y", di)),
        )
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
    own_heads = c.dim("mamba_num_heads", heads, "tp", "cp")
    parts = [c.new(f"{NAME}.A, dt_bias, D", Dim("three", 3), own_heads, dtype="fp32")]
    if c.cp_many:  # cut out and joined anew in every forward (mamba_context_parallel.py, _slice_conv_param)
        channels = c.dim("conv", conv_wide.size, "tp", "cp")
        parts.append(c.new(f"{NAME}.conv1d of this rank", channels, Dim("d_conv+1", CONV + 1)))
    y = c.region(f"{NAME}.scan output", di)
    held = packed  # a variable of the forward to its end
    work = (
        _scanned(
            c, y, c.region(f"{NAME}.conv output", conv_wide), _gram(c, spread), SCAN_FLOPS * y.shape[-1].local * state
        ),
    )
    if c.training.mamba_mem_eff_path:
        scan_out = c.region(f"{NAME}.scan output before gate", di)
        gated = y
        if c.several_sequences:  # the kernels read sequence after sequence
            packed, gated = packed.like(f"{NAME}.zxBCdt by sequence"), y.like(f"{NAME}.y by sequence")
            yield Op(f"{NAME}.by_sequence", (held,), (packed,))
        yield Op(
            f"{NAME}.scan", (packed,), (gated,), (packed, scan_out, *parts),
            forward=_forward_scratch(c, inner, state, conv_wide, di, nh, spread),
            backward=_backward_scratch(c, inner, state, conv_wide, di, nh, spread), work=work, calls=SCAN_KERNELS,
        )  # fmt: skip
        if c.several_sequences:
            yield Op(f"{NAME}.by_token", (gated,), (y,))
        gate_kept: tuple[Tensor, ...] = ()
    else:
        conv_in = c.region(f"{NAME}.conv input", conv_wide)
        conv_out = c.region(f"{NAME}.conv output", conv_wide)
        z = c.region(f"{NAME}.z", di)
        dt = c.region(f"{NAME}.dt", nh)
        yield Op(f"{NAME}.split", (packed,), (z, conv_in, dt))
        yield Op(f"{NAME}.conv1d", (conv_in,), (conv_out,), (conv_in,))
        cumsum = c.region(f"{NAME}.dA cumsum", nh).like(f"{NAME}.dA cumsum", "fp32")
        saved: tuple[Tensor, ...] = (conv_out, dt, cumsum, *parts)
        if c.several_sequences:
            saved = (*saved, y.like(f"{NAME}.scan output [b, s]"))
        yield Op(
            f"{NAME}.scan", (conv_out, dt), (y,), saved,
            forward=_forward_scratch(c, inner, state, conv_wide, di, nh, spread),
            backward=_backward_scratch(c, inner, state, conv_wide, di, nh, spread), work=work, calls=SCAN_KERNELS,
        )  # fmt: skip
        gate_kept = (z,)
    if not m.mamba_rmsnorm:  # the scan has gated its output
        return (yield from holding(row_linear(c, f"{NAME}.out_proj", y, out_proj), held))
    normed_y = c.region(f"{NAME}.norm.output", di)
    rstd = c.new(f"{NAME}.norm.rstd", c.seq, c.batch, rows, dtype="fp32")
    yield Op(f"{NAME}.norm", (y, *gate_kept), (normed_y,), (y, *gate_kept, rstd))
    return (yield from holding(row_linear(c, f"{NAME}.out_proj", normed_y, out_proj), held))


def _scanned(c: Context, y: Tensor, conv: Tensor, gram: Tensor, flops: int) -> Streamed:
    """The scan's kernels, which read their operands again and again beyond the once that the op says (ssd_combined.py).

    Forward: chunk_state, bmm_chunk and chunk_scan read the convolution's output twice in all; the products C B are written and
    read. Backward: chunk_state, bwd_dz, bwd_dx, bwd_db, bwd_dcb and ddAcs read it, six times x and three times B and C (five of
    the whole); bwd_dz, dstates, dx, dC, dcb and ddAcs the gradient of the output; bwd_dz, dx and ddAcs C B; the gradient of C B
    is written and read twice.
    """
    rows = c.seq.local * c.batch.size
    return Streamed(flops * rows, conv.nbytes + 2 * gram.nbytes, 4 * conv.nbytes + 5 * y.nbytes + (2 + 3) * gram.nbytes)


def _whole_chunks(c: Context) -> Dim:
    """The tokens of all chunks, the last one whole too (mamba-ssm `ops/triton/ssd_chunk_state.py`, `ssd_bmm.py`: nchunks)."""
    whole = round_up(c.full_seq.size, c.model.mamba_chunk_size)
    return Dim("seq in whole chunks/cp", ceil_div(whole, c.layout.cp))


def _states(c: Context, name: str, inner: int, state: int, dtype: str) -> Tensor:
    """Chunk states [tokens / chunk, heads, head dim, state]."""
    chunks = _whole_chunks(c)._replace(name="seq/chunk")
    return c.new(
        name,
        chunks,
        c.batch,
        c.dim("mamba_inner*state/chunk", inner * state // c.model.mamba_chunk_size, "tp"),
        dtype=dtype,
    )


def _gram(c: Context, groups: int) -> Tensor:
    return c.new(
        f"{NAME}.CB",
        _whole_chunks(c),
        c.batch,
        c.dim("groups*chunk", groups * c.model.mamba_chunk_size, "tp"),
        dtype="fp32",
    )


def _forward_scratch(
    c: Context, inner: int, state: int, conv: Dim, di: Dim, nh: Dim, groups: int
) -> tuple[Tensor, ...]:
    """The last moment of the scan: conv output, 16-bit chunk states and C B; or the one before its outputs, with fp32 states."""
    made, gram = _states(c, f"{NAME}.chunk states", inner, state, "fp32"), _gram(c, groups)
    early = chosen(made.nbytes >= gram.nbytes + 2 * c.region("output", di).nbytes, 1, 0)
    return (
        c.region(f"{NAME}.conv output", conv),
        _states(c, f"{NAME}.chunk states passed on", inner, state, c.dtype),
        _final(c, state, nh),
        *_shares((early, (made,)), (1 - early, (gram,))),
        c.new(f"{NAME}.dt, dA cumsum", c.seq, c.batch, nh, Dim("bytes", 8), dtype="uint8"),
    )


def _backward_scratch(
    c: Context, inner: int, state: int, conv: Dim, di: Dim, nh: Dim, groups: int
) -> tuple[Tensor, ...]:
    """The scan's backward: recomputed conv output and its gradient, chunk states and gradients, CB, dt terms; and what is larger, the fp32
    states while their gradients pass on or, after that, the gradients of B, C and CB."""
    states = (
        _states(c, f"{NAME}.chunk states", inner, state, "fp32"),
        _states(c, f"{NAME}.chunk states grad", inner, state, "fp32"),
    )
    sums = _sums(c, state, nh, groups)
    early = chosen(sum(t.nbytes for t in states) >= sum(t.nbytes for t in sums), 1, 0)
    return (
        c.region(f"{NAME}.conv output", conv),
        c.region(f"{NAME}.conv output grad", conv),
        c.region(f"{NAME}.scan output grad", di),
        *_shares((early, states), (1 - early, sums)),
        _states(c, f"{NAME}.chunk states cast", inner, state, c.dtype),
        _states(c, f"{NAME}.chunk states grad cast", inner, state, c.dtype),
        _gram(c, groups),
        c.new(f"{NAME}.dt, dA cumsum and gradients", c.seq, c.batch, nh, Dim("bytes", 18), dtype="uint8"),
    )


def _sums(c: Context, state: int, heads: Dim, groups: int) -> tuple[Tensor, ...]:
    """fp32 gradients of B and C, and the parts of the gradient of C or CB that programs of several heads add up, with their sum.

    Source: mamba-ssm `ops/triton/ssd_chunk_state.py`, `ssd_chunk_scan.py` (nheads_per_program, nsplits).
    """
    chunk = c.model.mamba_chunk_size
    spread = c.layout.tp * c.layout.cp
    alone = heads.size // groups  # heads of a group
    programs = c.batch.size * ceil_div(c.full_seq.size, chunk) * (heads.size // spread)
    splits = ceil_div(alone, largest(smallest(ceil_div(programs, c.num_sms), alone), 1))

    def one(name: str, width: int, tokens: Dim = c.seq) -> Tensor:
        return c.new(f"{NAME}.{name}", tokens, c.batch, c.dim("groups*width", groups * width, "tp"), dtype="fp32")

    name = "C B grad of programs"
    of_programs, of_chunks = one(name, splits * state), one(name, (splits + 1) * chunk, _whole_chunks(c))
    wide = chosen(of_programs.nbytes >= of_chunks.nbytes, 1, 0)
    parts = _shares((wide, (of_programs,)), (1 - wide, (of_chunks,)))
    return one("B grad", state), one("C grad", state), *parts, _final(c, state, heads)


def _final(c: Context, state: int, heads: Dim) -> Tensor:
    """The states behind the last chunk, which are made in any case."""
    shape = c.dim("mamba_num_heads", heads.size, "tp", "cp"), Dim("mamba_head_dim", c.model.mamba_head_dim)
    return c.new(f"{NAME}.final states", c.batch, *shape, Dim("mamba_state_dim", state), dtype="fp32")


def _shares(*groups: tuple[int, tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """The tensors of the groups whose share is 1; of arrays of layouts all, of no bytes where it is 0."""
    for share, tensors in groups:
        if not isinstance(share, int) or share:
            yield from (t._replace(nbytes=t.nbytes * share) for t in tensors)
