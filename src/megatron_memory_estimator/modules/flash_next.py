"""Qwen3.8-Flash-Next's sub-layers: each reads a gated mix of the residual streams and is added to all of them.

    streams [s, b, n, h] -> norm -> down [r] -> silu -> up [n h] -> sigmoid: gate; mean over the streams of gate * normed -> sub-layer
    streams + sub-layer's output * inject [n]

Sources: huggingface/transformers 5.24 `models/qwen4_exp` (GatedResidual, QSAIndexer, PLELayer); NVIDIA/Megatron-LM pull request 7553. What
the compiled functions keep are records of their arithmetic: 10 n h + 4 h + 4 r + 10 n bytes of a token and sub-layer, with the input of the
linear behind, and 338,286 of a token for the n-grams. Short-lived tensors, what the indexer keeps, and how MTP reads the streams are
derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import interleaved
from ..job.training import Training
from ..rules import ETP, TP, Violation, broken, broken_by
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, numel_of
from ..tape.work import Gemm, Streamed
from .attention import self_attention
from .context import Context
from .gated_delta_net import gated_delta_net
from .kind import Kind
from .linear import duplicated_linear, linear_params, rows_of
from .module import GROUP, Module, in_part, recomputed
from .moe import kept as moe_kept
from .moe import moe
from .norm import norm, norm_params

KEPT = "fp32"
"""Dtype of the mixers' norms and injections."""
NGRAM_TABLE = "ple.ngram_embedding.weight"
"""The name of the tables, whose rows expert-parallel ranks share."""
MIXER, NORMED = "_hyper_connection", "normed in fp32"
"""Names of a sub-layer's mixer, behind what it is of, and of the streams that it has normed."""
SubLayer = Callable[[Tensor], Module[Tensor]]


def gdn_layer(c: Context, streams: Tensor, layer: int = 0) -> Module[Tensor]:
    """The streams behind a gated delta net, and behind the tables of n-grams where the layer has them."""
    return (yield from _attention(c, streams, lambda x: gated_delta_net(c, x, layer, normed=x)))


def qsa_layer(c: Context, streams: Tensor, layer: int = 0) -> Module[Tensor]:
    """The streams behind attention to the tokens that the indexer picks: a mask of all pairs, which no fused kernel takes."""

    def attend(x: Tensor) -> Module[Tensor]:
        yield from in_part("core_attn", indexer(c, x))
        return (yield from self_attention(c, x, layer, normed=x))

    return (yield from _attention(c, streams, attend))


def moe_layer(c: Context, streams: Tensor, layer: int = 0) -> Module[Tensor]:
    """The streams behind experts."""
    return (yield from _around(c, f"mlp{MIXER}", streams, lambda x: moe(c, x, layer, normed=x)))


def _widths(c: Context) -> tuple[Dim, Dim]:
    """The streams side by side, and the rank of the gates."""
    assert c.model.hc_lowrank is not None
    return Dim("streams*hidden_size", c.streams.size * c.model.hidden_size), Dim("hc_lowrank", c.model.hc_lowrank)


def mixer_params(c: Context, name: str, *, injects: bool) -> Module[None]:
    """Parameters of a mixer, whole on every tensor-parallel rank."""
    wide, low = _widths(c)
    yield Param(f"{name}.hc_norm.weight", (wide,), matrix=False, dtype=KEPT)
    yield Param(f"{name}.input_mix_weight_down.weight", (low, wide))
    yield Param(f"{name}.input_mix_weight_up.weight", (wide, low))
    if injects:
        yield Param(f"{name}.block_inject_weight.weight", (c.streams, wide), dtype=KEPT)


def _attention(c: Context, streams: Tensor, sublayer: SubLayer) -> Module[Tensor]:
    if c.model.has_ngrams:
        streams = yield from in_part("streams", ngrams(c, streams))
    return (yield from _around(c, f"attn{MIXER}", streams, sublayer))


def _around(c: Context, name: str, before: Tensor, sublayer: SubLayer) -> Module[Tensor]:
    yield from mixer_params(c, name, injects=True)
    inject = c.stream(f"{name}.inject", c.streams)
    mix = recomputed(c.training.recomputes("mhc"), f"{name}.mix.checkpoint", mixed(c, name, before, inject), GROUP)
    x = yield from in_part("streams", mix)
    y = yield from sublayer(x)
    after = c.residual(f"{name}.streams")
    yield Op(f"{name}.add", (before, y, inject), (after,), (y, inject), passes=(before,), part="streams")
    return after


def mixed(c: Context, name: str, before: Tensor, inject: Tensor | None = None) -> Module[Tensor]:
    """The gated mean of the normed streams; with the weights by which a sub-layer's output is added to each."""
    wide, low = _widths(c)
    out = c.stream(f"{name}.mixed", c.hidden)
    normed = before.like(f"{name}.{NORMED}", KEPT)
    gate = before.like(f"{name}.gate", c.dtype)
    kept = [
        before,
        normed,
        before.like(f"{name}.normed", c.dtype),
        gate,
        c.stream(f"{name}.low", low),
        c.stream(f"{name}.silu(low)", low),
        c.new(f"{name}.rsigma", *before.shape[:2], c.streams, dtype=KEPT),
    ]
    rows, work = numel_of(before.shape[:2]), []
    if inject is not None:
        kept.append(c.new(f"{name}.inject score", *before.shape[:2], c.streams, dtype=KEPT))
        work.append(Gemm(rows, c.streams.size, wide.size, counted=False))
    grads = (normed.like(f"{name}.normed grad in fp32"), gate.like(f"{name}.gate grad"))
    work += [Gemm(rows, low.size, wide.size, counted=False), Gemm(rows, wide.size, low.size, counted=False)]
    writes = (out,) if inject is None else (out, inject)
    yield Op(f"{name}.mix", (before,), writes, tuple(kept), backward=grads, work=(*work, Streamed()))
    return out


def indexer(c: Context, x: Tensor) -> Module[None]:
    """Which tokens a query attends to; its input is detached, and its loss reaches its own weights alone.

    Scores of each head, their softmax and the attention that they shall follow stay in fp32 for every query and group of keys (derived).
    """
    m, name = c.model, "self_attention.indexer"
    heads, d = Dim("indexer_n_heads", m.indexer_n_heads), Dim("indexer_head_dim", m.indexer_head_dim)
    rows = Dim("(heads+1)*indexer_head_dim", (m.indexer_n_heads + 1) * m.indexer_head_dim)
    weight = yield from linear_params(c, f"{name}.index_qk_proj", rows, c.hidden, "replicated", False)
    yield from norm_params(c, f"{name}.q_layernorm.", d)
    yield from norm_params(c, f"{name}.k_layernorm.", d)
    both = yield from duplicated_linear(c, f"{name}.index_qk_proj", x, weight)
    query, key = c.new(f"{name}.q", *both.shape[:2], heads, d), c.new(f"{name}.k", *both.shape[:2], d)
    groups = c.full_seq._replace(name="seq/compress_ratio", size=max(c.full_seq.size // m.indexer_compress_ratio, 1))
    scores = c.new(f"{name}.scores", c.batch, heads, c.seq, groups, dtype=KEPT)
    share = c.new(f"{name}.softmax", c.batch, c.seq, groups, dtype=KEPT)
    mask = c.new(f"{name}.mask", c.batch, c.seq, c.full_seq, dtype="bool")
    kept = (both, query, key, scores, share, share.like(f"{name}.attention to follow"))
    flops = 2 * numel_of(query.shape) * groups.size
    yield Op(
        f"{name}.pick", (both,), (mask,), kept, backward=(scores.like(f"{name}.scores grad"),), work=(Streamed(flops),)
    )


NUMBERS = 95
"""16-bit numbers of a token that its gates keep: what is left of the recorded 338,286 bytes."""


def rows_of_rank(rows: Sequence[int], expert_parallel: int, rank: int = 0) -> int:
    """Rows of all tables that an expert-parallel rank has."""
    return sum(one // expert_parallel + (rank < one % expert_parallel) for one in rows)


def ngrams(c: Context, streams: Tensor) -> Module[Tensor]:
    """The streams with what tables say of the n-grams that end in a token. Expert-parallel ranks share the rows of each table; all else is
    whole on every rank. The gradient of a table is dense over its rows."""
    m, name = c.model, "ple"
    memory, taps = Dim("ple_embed_dim", m.ple_embed_dim), Dim("ple_conv_kernel_size", m.ple_conv_kernel_size)
    wide, _ = _widths(c)
    tables = Dim("tables", len(m.ngram_table_rows))
    here = rows_of_rank(m.ngram_table_rows, c.layout.ep)
    width = Dim("ple_embed_dim/tables", m.ple_embed_dim // tables.size)
    table = Param(
        NGRAM_TABLE,
        (Dim("rows of this rank", here), width),
        "expert",
        1,
        c.expert_buffers,
        matrix=False,
    )
    yield table
    key = yield from linear_params(c, f"{name}.key_proj", wide, memory, "replicated", False)
    value = yield from linear_params(c, f"{name}.value_proj", c.hidden, memory, "replicated", False)
    for part in ("key", "query", "conv"):
        yield from norm_params(c, f"{name}.norm_{part}.", wide)
    yield Param(f"{name}.conv1d.weight", (wide, Dim("one", 1), taps), matrix=False)

    tokens = streams.shape[:2]
    found = c.new(f"{name}.embedding", *tokens, memory)
    ids = c.new(f"{name}.ids", *tokens, tables, dtype="int64")
    kept: tuple[Tensor, ...] = (ids,)
    if c.ep_many:
        kept = (*kept, ids.like(f"{name}.received ids"))
    asked = found.like(f"{name}.rows for other ranks")
    yield Op(
        f"{name}.lookup",
        (),
        (found,),
        kept,
        (asked,),
        (c.new(f"{table.name}.wgrad", *table.shape), asked.like(f"{name}.rows' grad")),
    )
    keys = yield from duplicated_linear(c, f"{name}.key_proj", found, key)
    values = yield from duplicated_linear(c, f"{name}.value_proj", found, value)
    after = c.residual(f"{name}.streams")
    saved = [values, c.new(f"{name}.numbers of the gates", *tokens, Dim("numbers", NUMBERS))]
    for part in ("key", "query", "conv"):
        saved += [
            c.new(f"{name}.norm_{part}.{what}", *tokens, wide, dtype=KEPT)
            for what in ("input in fp32", "normed in fp32")
        ]
        saved.append(c.new(f"{name}.norm_{part}.rsigma", *tokens, c.streams, dtype=KEPT))
    saved += [
        c.new(f"{name}.{what}", *tokens, wide)
        for what in ("key normed", "query normed", "conv1d.input", "conv1d.output")
    ]
    grads = tuple(c.new(f"{name}.{what} grad", *tokens, wide, dtype=KEPT) for what in ("gated value", "key", "query"))
    work = (Streamed(2 * rows_of(found) * wide.size * taps.size),)
    yield Op(
        f"{name}.add", (keys, values, streams), (after,), tuple(saved), backward=grads, passes=(streams,), work=work
    )
    return after


def last_mixer(c: Context, name: str, streams: Tensor) -> Module[Tensor]:
    """The streams as one behind the last layer, where other models have a norm."""
    yield from mixer_params(c, name, injects=False)
    return (yield from mixed(c, name, streams))


def mtp_input(c: Context, prefix: str, embedded: Tensor, streams: Tensor) -> Module[Tensor]:
    """The streams that a layer of MTP reads: norms of the next token's embedding and of the streams, and a projection of both.

    Its width is derived from parameters of published small models, of which one number is not known: at most [n h, h + n h], as here.
    """
    wide, _ = _widths(c)
    both = Dim("hidden_size+streams*hidden_size", c.model.hidden_size + wide.size)
    yield from norm_params(c, f"{prefix}.enorm.", c.hidden)
    yield from norm_params(c, f"{prefix}.hnorm.", wide)
    weight = yield from linear_params(c, f"{prefix}.eh_proj", wide, both, "replicated", False)
    e = yield from norm(c, f"{prefix}.enorm", embedded)
    h = yield from norm(c, f"{prefix}.hnorm", streams)
    joined = c.stream(f"{prefix}.joined", both)
    yield Op(f"{prefix}.concatenate", (e, h), (joined,))
    flat = yield from duplicated_linear(c, f"{prefix}.eh_proj", joined, weight)
    out = flat.view(f"{prefix}.layer input", c.residual("").shape)
    yield Op(f"{prefix}.view", (flat,), (out,), passes=(flat,))
    return out


def flash_next_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What is not modelled beside gated streams."""
    t = training
    unknown = {
        "fully sharded data parallelism": t.use_megatron_fsdp or t.use_torch_fsdp2,
        "adapters and frozen language models": t.base_frozen,
        "virtual pipeline stages": interleaved(model, layout),
        "overlap_moe_expert_parallel_comm": t.overlap_moe_expert_parallel_comm,
        "activation offloading": t.fine_grained_activation_offloading or bool(t.cpu_offloading_num_layers),
        "distribute_saved_activations": t.distribute_saved_activations,
        "transformer_impl=local": not t.te_spec,
        "CUDA graphs of the whole iteration": t.cuda_graph_impl == "full_iteration",
        "sequence_packing_scheduler": bool(t.sequence_packing_scheduler),
    }
    yield from broken_by("gated-streams-not-modelled", unknown)
    if model.ngram_table_rows and layout.etp != layout.tp:
        yield broken("ngram-tables-etp", {TP: layout.tp, ETP: layout.etp})


_GATED = Kind(
    name="gated_gdn",
    role="layer",
    declare=gdn_layer,
    part="attn",
    residual="streams",
    owners=frozenset(("gated", "gdn")),
    state_heads="delta",
    recomputes=frozenset(("gdn_norm_out", "mhc")),
    rules=(flash_next_rules,),
    setting="hc_lowrank",
)
FLASH_NEXT = (
    _GATED,
    _GATED._replace(
        name="gated_qsa",
        declare=qsa_layer,
        owners=frozenset(("gated",)),
        state_heads="none",
        rotary="chunk",
        heads=True,
        groups=True,
        recomputes=frozenset(("core_attn", "mhc")),
    ),
    _GATED._replace(
        name="gated_moe",
        declare=moe_layer,
        part="moe",
        owners=frozenset(("gated", "moe")),
        state_heads="none",
        routed=True,
        recomputes=frozenset(("moe", "moe_act", "shared_experts", "mhc")),
        kept=moe_kept,
    ),
)
