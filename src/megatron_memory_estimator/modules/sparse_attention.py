"""DeepSeek sparse attention (DeepSeek-V3.2, GLM-5): absorbed MLA over the keys that an indexer picks.

Source: Megatron-LM `megatron/core/transformer/experimental_attention_variant/` (`dsa.py`, `absorbed_mla.py`).

The query is projected into the latent space, so attention is MQA with head dim kr + dr and value dim kr; values are
up-projected after the core. Norms are unfused and RoPE is never fused. Indexer weights are replicated over tp.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import Attention, Gemm, Streamed, Work
from .attention import cos_sin
from .context import Context
from .context_parallel import NAME as CORE
from .linear import column_linear, gemm, linear_params, row_linear
from .mla import NAME, down_linear
from .module import Module, in_part, recomputed
from .norm import norm, norm_params
from .sends import over_tp


def shared_sparse_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The same without an indexer: the keys that an earlier layer of the stage picked (dsa_indexer_topk_freq)."""
    return (yield from sparse_attention(c, hidden, layer, indexer=False))


def sparse_attention(c: Context, hidden: Tensor, layer: int = 0, *, indexer: bool = True) -> Module[Tensor]:
    """Output on the residual stream; includes the separate input norm."""
    m = c.model
    if m.dsa_indexer_n_heads is None or m.dsa_indexer_head_dim is None or m.dsa_indexer_topk is None:
        raise UnsupportedError("sparse attention needs dsa_indexer_n_heads, dsa_indexer_head_dim and dsa_indexer_topk")
    heads = c.dim("num_attention_heads", m.num_attention_heads, "tp")
    q_rank = m.q_lora_rank
    qr = Dim("q_lora_rank", q_rank) if q_rank is not None else c.hidden
    kr = Dim("kv_lora_rank", m.kv_lora_rank)
    kv_dim = Dim("kv_lora_rank+qk_pos_emb_head_dim", m.kv_lora_rank + m.qk_pos_emb_head_dim)
    qk = Dim("qk_head_dim+qk_pos_emb_head_dim", m.qk_head_dim + m.qk_pos_emb_head_dim)
    rot = Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim)
    dv = Dim("v_head_dim", m.v_head_dim)
    up_q = c.dim("heads*qk", m.num_attention_heads * qk.size, "tp")
    up_kv = c.dim("heads*(qk_head_dim+v_head_dim)", m.num_attention_heads * (m.qk_head_dim + m.v_head_dim), "tp")
    width = c.dim("heads*v_head_dim", m.num_attention_heads * m.v_head_dim, "tp")

    yield from norm_params(c, "input_layernorm.", c.hidden)
    if indexer:
        yield from _indexer_params(c, qr)
    proj = yield from linear_params(c, f"{NAME}.linear_proj", c.hidden, width, "tp", m.add_bias_linear)
    q_down: Param | None = None
    if q_rank is not None:
        q_down = yield from linear_params(c, f"{NAME}.linear_q_down_proj", qr, c.hidden, "replicated", False)
    q_up = yield from linear_params(c, f"{NAME}.linear_q_up_proj", up_q, qr, "tp", False)
    kv_down = yield from linear_params(c, f"{NAME}.linear_kv_down_proj", kv_dim, c.hidden, "replicated", False)
    kv_up = yield from linear_params(c, f"{NAME}.linear_kv_up_proj", up_kv, kr, "tp", False)
    if m.qk_layernorm:
        if q_rank is not None:
            yield from norm_params(c, f"{NAME}.q_layernorm.", qr)
        yield from norm_params(c, f"{NAME}.kv_layernorm.", kr)

    before = norm(c, "input_layernorm", hidden)
    layernorm = c.training.recomputes("layernorm")
    before = recomputed(layernorm, "input_layernorm.checkpoint", before, hook=f"{NAME}.linear_proj")
    normed = yield from in_part("attn_norm", before)
    query = normed
    if q_down is not None:
        query = yield from down_linear(c, f"{NAME}.linear_q_down_proj", normed, q_down, qr)
        if m.qk_layernorm:
            query = yield from norm(c, f"{NAME}.q_layernorm", query)
    kv = yield from down_linear(c, f"{NAME}.linear_kv_down_proj", normed, kv_down, kv_dim)
    compressed, k_pos = yield from _latents(c, kv, kr, rot)
    # the halves of linear_kv_up_proj: keys into the query, values out of the core's output
    whole = gemm(c, kv_up, c.seq.local * c.batch.size)
    keys, values = (
        whole._replace(n=c.dim("up", m.num_attention_heads * each, "tp").local, recipe="")
        for each in (m.qk_head_dim, m.v_head_dim)
    )

    def up() -> Module[tuple[Tensor, Tensor]]:
        q_flat = yield from column_linear(c, f"{NAME}.linear_q_up_proj", query, q_up)
        q_absorbed = c.region(f"{NAME}.q absorbed", heads, kv_dim)
        latent = c.region(f"{NAME}.latent kv", kv_dim)
        yield Op(
            f"{NAME}.absorb", (q_flat, compressed, k_pos), (q_absorbed, latent), (q_flat, *cos_sin(c, NAME, rot)),
            work=(keys, Streamed()),
        )  # fmt: skip
        return q_absorbed, latent

    q_absorbed, latent = yield from recomputed(
        c.training.recomputes("mla_up_proj"), f"{NAME}.up_proj.checkpoint", up(), hook=CORE
    )

    def core() -> Module[Tensor]:
        """The core with its up projection of the values (`dsa.py`, DSAttention.forward)."""
        loss: Tensor | None = None
        chosen_by: tuple[Tensor, ...] = ()
        weight: tuple[Tensor, ...] = ()
        if not c.one_head:  # of one head it is a view
            weight = (c.new(f"{CORE}.value up projection.weight copy", heads, kr, dv),)
            yield Op(f"{CORE}.value_up_proj.weight", (), weight)
        if indexer:
            loss, chosen_by = yield from _indexer(c, normed, query, (q_absorbed, latent), rot)
        variables = (*chosen_by, normed, query)
        out = yield from _core(c, q_absorbed, latent, heads, kr, variables, indexer=indexer)
        if loss is not None:  # the output carries the loss into the backward
            carrier = out.view(f"{CORE}.output with loss", out.shape)
            yield Op(f"{CORE}.attach_loss", (out, loss), (carrier,), (loss,), passes=(out, loss))
            out = carrier
        context = c.region(f"{CORE}.value up projection.output", heads, dv)
        yield Op(f"{CORE}.value_up_proj", (out, *weight), (context,), (out, *weight), stops=weight, work=(values,))
        return context

    context = yield from in_part(
        "core_attn", recomputed(c.training.recomputes("core_attn"), f"{CORE}.checkpoint", core())
    )
    return (yield from in_part("attn_proj", row_linear(c, f"{NAME}.linear_proj", context, proj)))


def _latents(c: Context, kv: Tensor, kr: Dim, rot: Dim) -> Module[tuple[Tensor, Tensor]]:
    """The compressed keys and values, normed, and the positions of keys: both of all tokens of a tensor-parallel region, for nothing
    projects them up (`absorbed_mla.py`, get_query_key_value_tensors)."""
    k_pos = kv.view(f"{NAME}.k_pos_emb", (*kv.shape[:-1], rot))
    if c.model.qk_layernorm:  # of a copy that is contiguous
        compressed = c.stream(f"{NAME}.kv_compressed", kr)
    else:
        compressed = kv.view(f"{NAME}.kv_compressed", (*kv.shape[:-1], kr))
    yield Op(f"{NAME}.split_kv", (kv,), (compressed, k_pos))
    if c.model.qk_layernorm:
        compressed = yield from norm(c, f"{NAME}.kv_layernorm", compressed)
    if not c.sp_many:
        return compressed, k_pos
    whole = tuple(c.region(f"{NAME}.{what} gathered", dim) for what, dim in (("kv_compressed", kr), ("k_pos_emb", rot)))
    for part, full in zip((compressed, k_pos), whole, strict=True):
        yield Op(
            f"{full.name}",
            (part,),
            (full,),
            sends=over_tp(c, "all_gather", full),
            returns=over_tp(c, "reduce_scatter", full),
        )
    return whole[0], whole[1]


def _indexer_params(c: Context, qr: Dim) -> Module[None]:
    m = c.model
    assert m.dsa_indexer_n_heads is not None and m.dsa_indexer_head_dim is not None
    head = Dim("dsa_indexer_head_dim", m.dsa_indexer_head_dim)
    both = Dim("dsa_indexer_n_heads*head_dim", m.dsa_indexer_n_heads * m.dsa_indexer_head_dim)
    name = f"{CORE}.indexer"
    yield Param(f"{name}.linear_wq_b.weight", (both, qr))
    yield Param(f"{name}.linear_wk.weight", (head, c.hidden))
    yield Param(f"{name}.k_norm.weight", (head,), matrix=False)  # always a LayerNorm
    yield Param(f"{name}.k_norm.bias", (head,), matrix=False)
    yield Param(f"{name}.linear_weights_proj.weight", (Dim("dsa_indexer_n_heads", m.dsa_indexer_n_heads), c.hidden))


def _indexer(
    c: Context, normed: Tensor, query: Tensor, attended: tuple[Tensor, Tensor], rot: Dim
) -> Module[tuple[Tensor | None, tuple[Tensor, ...]]]:
    """The indexer's loss, if it has one, and its variables, which live until the attention without kernels is done. It runs on every
    tensor-parallel rank in full, with detached inputs.

    Without a loss it keeps nothing but its top-k (kept by the core). With a loss it keeps its projections, the input of
    its key norm and RoPE tables, with sequence parallelism its gathered inputs, and what the back end needs for the loss:
    without kernels the query and latent keys of the attention (`attended`) that it learns from.
    """
    m, backend = c.model, c.training.dsa_kernel_backend
    assert m.dsa_indexer_n_heads is not None and m.dsa_indexer_head_dim is not None and m.dsa_indexer_topk is not None
    name = f"{CORE}.indexer"
    index_heads, head = (
        Dim("dsa_indexer_n_heads", m.dsa_indexer_n_heads),
        Dim("dsa_indexer_head_dim", m.dsa_indexer_head_dim),
    )
    rows, width = c.seq.local * c.batch.size, index_heads.size * head.size
    whole = 2 if backend == "none" else 0
    work: tuple[Work, ...] = (
        Gemm(rows, index_heads.size * head.size, query.shape[-1].size, counted=False),
        Gemm(rows, head.size + index_heads.size, c.hidden.size, counted=False),
        # scores of half the square; PyTorch takes all of it, in fp32
        Streamed(rows * c.full_seq.size * width, counted=False, wide=whole * rows * c.full_seq.size * width),
    )
    scores = c.new(f"{name}.scores", c.seq, c.batch, c.full_seq, dtype="fp32")
    per_head = c.new(f"{name}.scores per head", c.seq, c.batch, index_heads, c.full_seq, dtype="fp32")
    scratch: tuple[Tensor, ...] = (scores,)
    if backend == "none":
        scratch = (per_head, per_head.like(f"{name}.scores weighted"), scores)
    q_index = c.region(f"{name}.q", index_heads, head)
    k_index = _of_all_ranks(c, c.region(f"{name}.k", head))
    weights = c.region(f"{name}.weights", index_heads)
    picked = c.new(f"{name}.topk_indices", c.seq, c.batch, _topk(c), dtype="int64")
    variables = (q_index, k_index, weights, picked)
    if not m.dsa_indexer_loss_coeff:
        made = variables if backend == "none" else ()
        yield Op(name, (normed, query), made, forward=scratch, stops=(normed, query), work=work)
        return None, made
    norm_in = c.region(f"{name}.k_norm.input", head)
    statistics = (
        c.new(f"{name}.k_norm.rsigma", c.seq, c.batch, dtype="fp32"),
        c.new(f"{name}.k_norm.mu", c.seq, c.batch, dtype="fp32"),
    )
    kept: tuple[Tensor, ...] = (q_index, k_index, weights, norm_in, *statistics, *cos_sin(c, name, rot))
    if c.sp_many:
        kept = (
            *kept,
            c.region(f"{name}.hidden gathered", c.hidden),
            c.region(f"{name}.query gathered", query.shape[-1]),
        )
    backward: tuple[Tensor, ...] = (q_index.like(f"{name}.q grad"), k_index.like(f"{name}.k grad"))
    loss = c.new(f"{name}.loss", Dim("one", 1), dtype="fp32")
    if backend == "none":
        bounds = c.new(f"{name}.varlen_starts and varlen_ends", c.full_seq, Dim("two", 2), dtype="int64")
        query_key = (attended[0], _of_all_ranks(c, attended[1]))
        kept = (*kept, *query_key, picked, bounds)
        again = (
            *(per_head.like(f"{name}.{part}") for part in ("scores grad", "scores grad weighted", "relu mask fp32")),
            per_head.like(f"{name}.relu mask", "bool"),
        )
        yield Op(
            name,
            (normed, query),
            (scores, *variables),
            kept,
            scratch[:2],
            (*backward, *again),
            stops=(normed, query),
            work=work,
        )
        yield _learns(c, name, scores, loss, query_key)
        return loss, variables
    if backend == "cudnn":
        kept = (
            *kept,
            q_index.like(f"{name}.q grad ahead"),
            weights.like(f"{name}.weights grad ahead"),
            k_index.like(f"{name}.k grad ahead"),
        )
    yield Op(name, (normed, query), (loss,), kept, scratch, backward, stops=(normed, query), work=work)
    return loss, ()


def _learns(c: Context, name: str, scores: Tensor, loss: Tensor, attended: tuple[Tensor, Tensor]) -> Op:
    """The loss of the scores against all probabilities of the attention, which forward and backward make alike.

    The masked softmax has what it reads, the masked scores, and two states of the probabilities beside a mask. With several sequences
    the forward refers to copies of query and keys for the product of three dimensions. Source: `dsa.py` (compute_dsa_indexer_loss,
    bwd_fused_indexer_loss_naive), `dsa_masking.py` (masked_softmax).
    """
    query, key = attended
    heads = query.shape[-2]
    wide = c.new(f"{name}.attention fp32", c.batch, heads, c.seq, c.full_seq, dtype="fp32")
    made = (
        wide,
        *(wide.like(f"{name}.attention {part}") for part in ("masked", "probs", "probs masked")),
        wide.like(f"{name}.attention mask", "bool"),
        scores.like(f"{name}.mask of chosen keys"),
    )
    copies: tuple[Tensor, ...] = ()
    if c.several_sequences and not c.one_head:
        of_heads = c.new(f"{name}.key of every head", c.batch, heads, key.shape[0], key.shape[-1])
        copies = (query.like(f"{name}.query by head"), of_heads)
    return Op(f"{name}.loss", (scores,), (loss,), forward=(*made, *copies), backward=made)


def _core(
    c: Context, q: Tensor, kv: Tensor, heads: Dim, kr: Dim, variables: tuple[Tensor, ...], *, indexer: bool
) -> Module[Tensor]:
    """The core by back end (`dsa_kernel_backend`); the indexer runs without gradient and keeps its top-k only.

    A layer without an indexer reads the storage that the layer with it keeps.
    """
    m, backend = c.model, c.training.dsa_kernel_backend
    assert m.dsa_indexer_n_heads is not None and m.dsa_indexer_topk is not None
    out = c.region(f"{CORE}.output", heads, kr)
    # every query of a head meets the latent keys that are picked, at the rate of dense kernels (docs/explanation/throughput.md)
    tokens = c.seq.local * c.batch.size
    picked = Attention(tokens, heads.local, _picked(c), m.kv_lora_rank + m.qk_pos_emb_head_dim, m.kv_lora_rank)
    gathered = _of_all_ranks(c, kv)
    if gathered is not kv:
        yield Op(gathered.name, (kv,), (gathered,), (c.new(f"{CORE}.order of the keys", c.full_seq, dtype="int64"),))
        kv = gathered
    if backend == "none":
        square = 2 * tokens * heads.local * c.full_seq.size * picked.qk  # of all keys, in fp32
        yield from _unfused(c, (q, kv), out, heads, Streamed(picked.flops, wide=square), variables)
        return out
    kept_fused: tuple[Tensor, ...] = (q, kv)
    if indexer:
        kept_fused = (*kept_fused, topk_indices(c))
    backward: tuple[Tensor, ...] = ()
    if backend == "cudnn":
        kept_fused = (*kept_fused, out, c.new(f"{CORE}.softmax_lse", c.batch, heads, c.seq, dtype="fp32"))
    else:  # TileLang recomputes output and LSE in backward
        kept_fused = (*kept_fused, c.new(f"{CORE}.head mask", c.batch, heads, c.seq, dtype="bool"))
        backward = (out.like(f"{CORE}.output recomputed"), kv.like(f"{CORE}.dkv fp32", "fp32"))
    yield Op(CORE, (q, kv), (out,), kept_fused, backward=backward, work=(picked,))
    return out


def _unfused(
    c: Context, read: tuple[Tensor, Tensor], out: Tensor, heads: Dim, work: Streamed, variables: tuple[Tensor, ...]
) -> Module[None]:
    """All scores in fp32, PyTorch's masked softmax, and the values, which are the first part of the absorbed keys.

    With several sequences a product of four dimensions copies what all heads share: keys in fp32 and values stay once for every head;
    with one, and with one head a rank, the values are a view, which keeps the absorbed keys. Keys of fp32 are read as they are.
    Source: `dsa.py` (_unfused_absorbed_dsa_fn), `dsa_masking.py` (masked_softmax); PyTorch `torch.matmul` (expand and reshape).
    """
    q, kv = read
    shape = (c.batch, heads, c.seq, c.full_seq)
    scores = c.new(f"{CORE}.scores fp32", *shape, dtype="fp32")
    wide_kv = kv if kv.dtype == "fp32" else kv.like(f"{CORE}.kv fp32", "fp32")
    value = kv
    if c.several_sequences and not c.one_head:
        wide_kv = c.new(wide_kv.name, c.batch, heads, kv.shape[0], kv.shape[-1], dtype="fp32")
        value = c.new(f"{CORE}.value of every head", c.batch, heads, kv.shape[0], out.shape[-1])
    exp, probs, masked = (scores.like(f"{CORE}.{name}") for name in ("exp", "probs fp32", "masked scores"))
    done, final = scores.like(f"{CORE}.probs of a row's sum"), c.new(f"{CORE}.probs", *shape)
    masks = [c.new(f"{CORE}.mask {i}", *shape, dtype="bool") for i in range(3)]
    yield Op(
        f"{CORE}.scores", (q, kv), (scores,), (q.like(f"{CORE}.q fp32", "fp32"), wide_kv), (scores.like(f"{CORE}.scores unscaled"),),
        (scores.like(f"{CORE}.scores unscaled grad"), q.like(f"{CORE}.q fp32 grad", "fp32")), work=(work,),
    )  # fmt: skip
    # masks of the chosen keys that hold for all heads are variables of the function to its end
    held: tuple[Tensor, ...] = (
        c.new(f"{CORE}.mask of chosen keys", c.batch, c.seq, c.full_seq, dtype="fp32"),
        c.new(f"{CORE}.chosen keys", c.batch, c.seq, c.full_seq, dtype="bool"),
    )
    yield Op(f"{CORE}.choose", (), held)
    held = (*held, *variables, q, kv)
    steps = tuple(scores.like(f"{CORE}.sum's gradient {i}") for i in range(3))
    yield Op(
        f"{CORE}.softmax", (scores,), (done, masked), (exp, probs, *masks[:2], *_of_rows(c, heads)),
        (scores.like(f"{CORE}.exp masked"),), steps, compiled=True,
    )  # fmt: skip
    last = scores.like(f"{CORE}.probs masked")
    yield Op(f"{CORE}.mask", (done,), (last,), (masks[2],), holds=(scores, masked, *held))
    if c.dtype != "fp32":
        yield Op(f"{CORE}.cast", (last,), (final,))
    else:
        final = last
    yield Op(CORE, (final, kv), (out,), (final, value), (out.like(f"{CORE}.output by head"),), holds=held)


def _of_all_ranks(c: Context, keys: Tensor) -> Tensor:
    """Keys of the whole sequence, gathered from the ranks of context parallelism and put in order (`dsa.py`, DSAttention.forward:
    index_select)."""
    if not c.cp_many:
        return keys
    name = f"{keys.name} of the whole sequence"
    return c.new(name, c.full_seq, *keys.shape[1:], dtype=keys.dtype)


def _picked(c: Context) -> int:
    """Twice the keys that a query meets on average: all before it, at most those that the indexer picks."""
    assert c.model.dsa_indexer_topk is not None
    length, topk = c.training.seq_length, c.model.dsa_indexer_topk
    return length if topk >= length else 2 * topk - topk * topk // length


def _of_rows(c: Context, heads: Dim) -> tuple[Tensor, ...]:
    """What the masked softmax of PyTorch keeps of a row of scores: where its largest is, whether it has one, and two sums."""
    row = (c.batch, heads, c.seq)
    return (
        c.new(f"{CORE}.largest of a row", *row, dtype="int64"),
        c.new(f"{CORE}.row without keys", *row, dtype="bool"),
        *(c.new(f"{CORE}.sum of a row {i}", *row, dtype="fp32") for i in range(2)),
    )


def topk_indices(c: Context) -> Tensor:
    """The keys that each query attends to."""
    assert c.model.dsa_indexer_topk is not None
    return c.new(f"{CORE}.topk_indices", c.seq, c.batch, _topk(c), dtype="int32")


def _topk(c: Context) -> Dim:
    """Keys that each query attends to: at most those of the sequence."""
    assert c.model.dsa_indexer_topk is not None
    return Dim("min(dsa_indexer_topk, seq_length)", min(c.model.dsa_indexer_topk, c.training.seq_length))


def shared_indices(c: Context, indexers: int) -> list[Tensor]:
    """The newest keys of so many indexers of a rank, which the model's config refers to until the next ones.

    While a microbatch keeps them for its backward they are the same storage; they are apart between two steps, and under
    full recomputation, where nothing else keeps them.
    """
    if c.model.dsa_indexer_topk_freq == 1:
        return []
    one = topk_indices(c)
    return [c.new("shared topk_indices", Dim("indexers", indexers), *one.shape, dtype=one.dtype)]
