"""What the towers of huggingface/transformers compute and keep of the images and the sound of a microbatch: eager modules, whole on every
tensor-parallel and context-parallel rank, which no recomputation of Megatron's reaches. Here is what leads into their layers and out of
them; the layers are in hf_layers.py.

Sources: huggingface/transformers 5.8 to 5.12 `models/` (qwen2_5_vl, glm4v_moe, siglip, pixtral, mistral3, gemma4, qwen2_5_omni,
qwen3_omni_moe) as Megatron-Bridge calls them (`qwen_vl/modeling_qwen25_vl.py`, `glm_vl/modeling_glm_45v.py`,
`gemma_vl/modeling_gemma3_vl.py`, `ministral3/modeling_ministral3.py`, `qwen_omni/`, `qwen3_asr/`); of Kimi-K2.5 the code of its checkpoint,
which Megatron-Bridge loads (`kimi_vl/modeling_kimi_k25_vl.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from ..job.model import Model
from ..job.tower import HfTower, Sound, half
from ..job.training import Training
from ..tape.ops import Op, Recompute
from ..tape.tensor import Dim, Param, Tensor, numel_of
from ..tape.work import Gemm, Streamed
from .adapters import adapters_of
from .context import Context
from .hf_layers import KINDS, gated, layer, layer_norm, linear, norm, wide_norm, width_of
from .module import Module
from .vision_tower import POSITIONS, How, behind_the_first_adapter, chunks, with_frozen_linears


def images(v: Context, tower: HfTower, h: How) -> Module[None]:
    """From pixels, or spectra, to rows of the embedding."""
    if h.rerun:
        yield from _rerun(v, tower, h)
        return
    if any(adapters_of(v, name) for name in KINDS[tower.kind].mlp):
        yield from behind_the_first_adapter(_trained(v, tower))
        return
    layers, projection = h.layers or h.adapters, h.projection or h.adapters
    if not layers:
        yield from _trained(v, tower, projected=not projection)
        return
    wide = tuple(v.new(f"mlp.{name}", v.seq, v.batch, width_of(tower)) for name in ("up", "activation"))
    each = 4 * tower.hidden * tower.hidden + (3 if KINDS[tower.kind].gated else 2) * tower.hidden * tower.ffn
    flops = 2 * v.seq.local * v.batch.size * each * tower.depth
    x = _last(v, tower)
    yield Op("layers", (), (x,), forward=wide, work=(Streamed(flops, counted=False),))
    if not projection:
        for op in PROJECTIONS[tower.kind](v, tower, x):
            bare = isinstance(op, Op) and op.name in WEIGHTLESS
            yield op._replace(saves=(), backward=()) if bare and isinstance(op, Op) else op


def _trained(v: Context, tower: HfTower, *, projected: bool = True) -> Module[None]:
    """All of it, of which what is trained needs for its backward is kept. A projection that is not `projected` hands a gradient on."""
    x = v.residual("hidden_states")
    yield from _entered(v, tower, x)
    yield from _through(v, tower, x, lambda module, at: module)
    yield from PROJECTIONS[tower.kind](v if projected else with_frozen_linears(v), tower, _last(v, tower))


def _entered(v: Context, tower: HfTower, out: Tensor) -> Module[None]:
    """The rows that its first layer reads."""
    yield from (_heard if tower.sound else _embedded)(v, tower, out)


def _through(v: Context, tower: HfTower, x: Tensor, made: Callable[[Module[None], int], Module[None]]) -> Module[None]:
    """Its layers, each as `made`, and the mergers behind some of them."""
    for at in range(tower.depth):
        yield from made(layer(v, tower, x, at), at)
        x = _last(v, tower, at)
        if at in tower.deepstack:
            yield from _merged(v, tower, f"merger_list.{at}", x, over_all=True)


def _last(v: Context, tower: HfTower, at: int = -1) -> Tensor:
    """What a layer hands on, or the last one."""
    return v.residual(f"layers.{at % tower.depth}.output")


def _rerun(v: Context, tower: HfTower, h: How) -> Module[None]:
    """All of it with a checkpoint for each layer. Its first layer is given an input that needs a gradient (enable_input_require_grads), so
    that layers keep their inputs whether they are trained or not, and what leads from them into the language model what it needs."""
    frozen, x = h.layers or h.adapters, v.residual("hidden_states")
    leaf: tuple[Tensor, ...] = ()
    for op in _entered(v, tower, x):
        assert isinstance(op, Op)
        yield op._replace(saves=(), backward=()) if frozen else op
        leaf = op.writes[-1:] if op.name in LEAVES else leaf
    if frozen:
        yield Op("input_require_grads", leaf, (), leaf)
    d = Dim("head_dim", tower.hidden // tower.heads)
    tables = tuple(v.new(f"rotary_pos_emb.{name}", v.seq, v.batch, d) for name in KINDS[tower.kind].tables)
    if tables:
        yield Op("rotary_pos_emb", (), tables)

    def checkpointed(module: Module[None], at: int) -> Module[None]:
        inside = tuple(module)
        yield from (one for one in inside if isinstance(one, Param))
        given = (Op(f"layers.{at}.position_embeddings", tables, (), calls=0),) if tables else ()
        yield Recompute(f"layers.{at}", (*given, *(one for one in inside if isinstance(one, Op))))

    behind = with_frozen_linears(v) if frozen and not h.adapters else v
    yield from _through(behind, tower, x, checkpointed)
    yield from PROJECTIONS[tower.kind](behind, tower, _last(v, tower))  # frozen with its layers: one switch has both


LEAVES = ("patch_embed.proj", "conv_out")
"""What makes the tower's first rows (Megatron-Bridge `qwen_omni/modeling_qwen3_omni/thinker_model.py`, _patch_get_input_embeddings)."""


def attention_biased(model: Model, training: Training) -> bool:
    """Whether images of a sequence add to attention scores, as those of Gemma 3 do."""
    return training.image_tokens > 0 and any(one.hf is not None and one.hf.kind == "siglip" for one in model.towers)


def attention_biases(c: Context) -> tuple[Tensor, ...]:
    """What tells causal text from images that see all of themselves, [micro_batch_size, 1, seq, seq] for windowed layers and for the rest.
    Gemma 3 adds it to the scores, and every pipeline stage makes its own. Fused attention keeps it for its backward, and so do checkpoints.
    Sources: Megatron-Bridge `gemma_vl/modeling_gemma3_vl.py` (_compute_attention_biases), `training/vlm_step.py`; TransformerEngine
    `pytorch/csrc/extensions/attention.cpp` (fused_attn_fwd). No record exercises it."""
    if not attention_biased(c.model, c.training):
        return ()
    keys = c.full_seq._replace(name="seq")
    return tuple(c.new(f"batch.attention_bias.{kind}", c.batch, keys, keys) for kind in ("local", "global"))


def _embedded(v: Context, tower: HfTower, out: Tensor) -> Module[None]:
    """Patches through the convolution, and what stands between it and the first layer."""
    features = Dim("channels*frames*height*width", tower.patch)
    pixels, x = v.new("patches", v.seq, v.batch, features), v.residual("patch_embed.output")
    wgrad = v.new("patch_embed.proj.weight.wgrad", v.hidden, features)
    work = (Gemm(v.seq.local * v.batch.size, tower.hidden, tower.patch, counted=False),)
    yield Op("patch_embed.proj", (), (pixels, x), (pixels,), backward=(wgrad,), work=work)
    if tower.kind in ("glm4v", "pixtral"):
        x = yield from norm(v, tower, "patch_embed.norm", x)
    kept: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()
    if tower.kind == "glm4v":
        table = v.new(
            "pos_embed.weight (fp32)", Dim("hidden_size", tower.hidden), Dim("positions", tower.positions), dtype="fp32"
        )
        grid = v.new("pos_embed.grid", v.seq, v.batch, Dim("coordinates", 2), dtype="fp32")
        kept = (table, grid)
    elif tower.kind == "pixtral":
        d = Dim("head_dim", tower.hidden // tower.heads)
        patches = Dim("patches of all images", v.seq.local * v.batch.size)
        mask = v.new("attention_mask", patches, patches)
        kept = (v.new("rotary.cos", v.seq, v.batch, d), v.new("rotary.sin", v.seq, v.batch, d), mask)
    elif tower.kind in ("qwen2_5_vl", "qwen2_5_omni"):
        groups = Dim("windows of merged patches", v.seq.local // tower.merge)
        kept = (
            v.new("window_index", groups, v.batch, dtype="int64"),
            v.new("window_index.reverse", groups, v.batch, dtype="int64"),
        )
    elif tower.kind == "qwen3_omni":
        yield from _interpolated(v, x, out)
        return
    elif tower.kind == "moonvit":
        freqs = v.new("rotary.freqs_cis", v.seq, v.batch, Dim("head_dim", tower.hidden // tower.heads), dtype="fp32")
        kept = (freqs,)
    elif tower.kind == "gemma4":
        d, axes = Dim("head_dim", tower.hidden // tower.heads), Dim("axes", 2)
        kept = (
            v.new("pixel_position_ids.clamped", v.seq, v.batch, axes, dtype="int64"),
            v.new("padding_positions", v.seq, v.batch, dtype="bool"),
            v.new("rotary.cos", v.seq, v.batch, d),
            v.new("rotary.sin", v.seq, v.batch, d),
        )
        rows = Dim("positions", tower.positions)
        grads = tuple(v.new(f"position_embedding_table.grad of {axis}", axes, rows, v.hidden) for axis in "xy")
    yield Op("embedded", (x,), (out, *kept), kept, backward=grads, passes=(x,))


def _interpolated(v: Context, x: Tensor, out: Tensor) -> Module[None]:
    """The positions of a patch between four rows of the table, in fp32."""
    rows = Dim("positions", POSITIONS)
    ids = v.new("pos_embed.ids", rows, v.seq, v.batch, dtype="int32")
    weights = v.new("pos_embed.weights", rows, v.seq, v.batch, dtype="fp32")
    found = v.new("pos_embed.output", rows, v.seq, v.batch, v.hidden)
    wide = found.like("pos_embed.weighted (fp32)", "fp32")
    yield Op("pos_embed", (), (ids, weights, found), (ids,))
    yield Op("pos_embed.interpolate", (found, weights), (wide,), (weights,), stops=(weights,))
    yield Op("pos_embed.add", (x, wide), (out,), forward=(x.like("pos_embed.sum (fp32)", "fp32"),), passes=(x,))


# -- what hears --------------------------------------------------------------------------------------------------------


def _heard(v: Context, tower: HfTower, out: Tensor) -> Module[None]:
    """Spectra through the convolutions, stretch by stretch."""
    sound = tower.sound
    assert sound is not None
    stretches = Dim("stretches", chunks(v, tower, sound))
    convolved = _convolved_in_time if tower.kind == "qwen2_5_omni_audio" else _convolved
    yield from convolved(v, tower, sound, stretches, out)


def _convolution(name: str, x: Tensor, out: Tensor, taps: int) -> Op:
    """A convolution, which keeps its input; `taps`: products of an output."""
    flops = 2 * taps * numel_of(out.shape)
    return Op(name, (x,), (out,), (x,), work=(Streamed(flops, counted=False),))


def _convolved(v: Context, tower: HfTower, sound: Sound, stretches: Dim, out: Tensor) -> Module[None]:
    """Three convolutions in time and frequency, a linear of what they leave of the frequencies, and the rows that are no padding
    (Qwen3OmniMoeAudioEncoder)."""
    channels, bins, frames = Dim("channels", sound.channels), sound.bins, sound.frames
    x = v.new("input_features", stretches, v.batch, Dim("num_mel_bins", bins), Dim("frames", frames))
    yield Op("input_features", (), (x,))
    taps = 9
    for name in ("conv2d1", "conv2d2", "conv2d3"):
        bins, frames = half(bins), half(frames)
        found = v.new(f"{name}.output", stretches, v.batch, channels, Dim("frequencies", bins), Dim("frames", frames))
        yield _convolution(name, x, found, taps)
        x, taps = found.like(f"{name}.gelu"), 9 * sound.channels
        yield Op(f"{name}.gelu", (found,), (x,), (found,))
    rows = v.new(
        "conv_out.input", stretches, v.batch, Dim("frames", frames), Dim("channels*frequencies", sound.channels * bins)
    )
    yield Op("conv_out.contiguous", (x,), (rows,), forward=(x.like("conv2d3.all chunks"),))
    wide = yield from linear(v, "conv_out", rows, v.hidden)
    index = v.new("valid_indices", v.seq, v.batch, dtype="int64")
    yield Op("valid", (wide,), (out, index), (index,), forward=(wide.like("conv_out.with positions"),), passes=(wide,))


def _convolved_in_time(v: Context, tower: HfTower, sound: Sound, stretches: Dim, out: Tensor) -> Module[None]:
    """Two convolutions in time, of which the second halves it, and the rows that are no padding (Qwen2_5OmniAudioEncoder)."""
    frames, less = Dim("frames", sound.frames), Dim("frames/2", half(sound.frames))
    x = v.new("input_features", stretches, v.batch, Dim("num_mel_bins", sound.bins), frames)
    yield Op("input_features", (), (x,))
    first = v.new("conv1.output", stretches, v.batch, frames, v.hidden)
    yield _convolution("conv1", x, first, 3 * sound.bins)
    mask, masked = v.new("padded_mask", stretches, v.batch, frames, dtype="int64"), first.like("conv1.masked")
    yield Op("conv1.gelu", (first,), (masked, mask), (first, mask), forward=(first.like("conv1.gelu.output"),))
    second = v.new("conv2.output", stretches, v.batch, less, v.hidden)
    yield _convolution("conv2", masked, second, 3 * tower.hidden)
    act, index = second.like("conv2.gelu"), v.new("valid_indices", v.seq, v.batch, dtype="int64")
    yield Op("conv2.gelu", (second,), (act,), (second,))
    yield Op("valid", (act,), (out, index), (index,), forward=(act.like("conv2.with positions"),), passes=(act,))


def _spoken(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The last norm and two linears (Qwen3OmniMoeAudioEncoder)."""
    normed = x.like("ln_post.output")
    yield from layer_norm(v, "ln_post", x, normed)
    wide = yield from linear(v, "proj1", normed, v.hidden)
    act = wide.like("act.output")
    yield Op("act", (wide,), (act,), (wide,))
    yield from linear(v, "proj2", act, Dim("output_dim", tower.out))


def _pooled(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """Two rows become one, of which the norm and a linear make a token (Qwen2_5OmniAudioEncoder)."""
    tokens, pair = _tokens(v, tower), Dim("rows of a pair", tower.merge)
    pooled, index = (
        v.new("avg_pooler.output", tokens, v.batch, v.hidden),
        v.new("pairs", pair, tokens, v.batch, dtype="int64"),
    )
    yield Op("avg_pooler", (x,), (pooled, index), (index,), forward=(pooled.like("avg_pooler.sum"),))
    normed = pooled.like("ln_post.output")
    yield from layer_norm(v, "ln_post", pooled, normed)
    yield from linear(v, "proj", normed, Dim("output_dim", tower.out))


# -- what leads into the language model ------------------------------------------------------------------------------------


def _tokens(v: Context, tower: HfTower) -> Dim:
    return Dim("image_tokens", v.seq.local // tower.merge)


def _merged(v: Context, tower: HfTower, name: str, x: Tensor, *, over_all: bool) -> Module[None]:
    """Patches that belong together as one row of the language model's width; the norm is over a patch, or over all of them."""
    merged, tokens = Dim("merged width", tower.hidden * tower.merge), _tokens(v, tower)
    rows = x.view(f"{name}.input", (tokens, v.batch, merged)) if over_all else x
    normed = yield from norm(v, tower, f"{name}.ln_q", rows)
    wide = yield from linear(v, f"{name}.mlp.0", normed.view(f"{name}.rows", (tokens, v.batch, merged)), merged)
    act = wide.like(f"{name}.mlp.1.output")
    yield Op(f"{name}.mlp.1", (wide,), (act,), (wide,))
    yield from linear(v, f"{name}.mlp.2", act, Dim("out_hidden_size", tower.out))


def _merged_qwen(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    yield from _merged(v, tower, "merger", x, over_all=False)


def _merged_moonvit(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The last norm, the mean of an image's frames, and a norm and two linears of patches that belong together (PatchMergerMLP)."""
    normed = x.like("encoder.final_layernorm.output")
    yield from layer_norm(v, "encoder.final_layernorm", x, normed)
    pooled = normed.like("tpool_patch_merger.output")
    yield Op("tpool_patch_merger", (normed,), (pooled,))
    yield from _merged(v, tower, "mm_projector", pooled, over_all=False)


def _merged_glm(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The norm and the convolution that makes one row of several patches, and the merger behind it."""
    x = yield from norm(v, tower, "post_layernorm", x)
    out, merged = Dim("out_hidden_size", tower.out), Dim("merged width", tower.hidden * tower.merge)
    rows = x.view("downsample.rows", (_tokens(v, tower), v.batch, merged))
    x = yield from linear(v, "downsample", rows, out)
    x = yield from linear(v, "merger.proj", x, out)
    normed = x.like("merger.post_projection_norm.output")
    yield from layer_norm(v, "merger.post_projection_norm", x, normed)
    act = normed.like("merger.act1.output")
    yield Op("merger.act1", (normed,), (act,), (normed,))
    width = Dim("merger width", tower.merger)
    up = yield from linear(v, "merger.up_proj", act, width)
    yield from gated(v, tower, "merger", act, up, width, out)


def _merged_siglip(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The last norm, the mean of patches, and a norm and a linear of Megatron's own."""
    normed = x.like("post_layernorm.output")
    yield from layer_norm(v, "post_layernorm", x, normed)
    pooled = v.new("avg_pool.output", _tokens(v, tower), v.batch, v.hidden)
    yield Op("avg_pool", (normed,), (pooled,))
    ready, scale = (
        pooled.like("mm_soft_embed_norm.output"),
        v.new("mm_soft_embed_norm.rsigma", *pooled.shape[:-1], dtype="fp32"),
    )
    yield Op("mm_soft_embed_norm", (pooled,), (ready, scale), (pooled, scale))
    yield from linear(v, "proj", ready, v.dim("out_hidden_size", tower.out, "tp"))


def _merged_pixtral(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The norm, patches put side by side, and two linears."""
    x = yield from norm(v, tower, "multi_modal_projector.norm", x)
    side = v.new("patch_merger.unfolded", _tokens(v, tower), v.batch, Dim("merged width", tower.hidden * tower.merge))
    yield Op("patch_merger.unfold", (x,), (side,))
    x = yield from linear(v, "patch_merger.merging_layer", side, v.hidden)
    out = Dim("out_hidden_size", tower.out)
    x = yield from linear(v, "linear_1", x, out)
    act = x.like("act.output")
    yield Op("act", (x,), (act,), (x,))
    yield from linear(v, "linear_2", act, out)


def _merged_gemma4(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """Patches pooled by their positions in fp32, a norm without a weight, and a linear."""
    tokens, image = _tokens(v, tower), Dim("tokens of an image", tower.image)
    weights, wide = v.new("pooler.weights", v.seq, v.batch, image, dtype="fp32"), x.like("pooler.input (fp32)", "fp32")
    scaled = v.new("pooler.output (fp32)", tokens, v.batch, v.hidden, dtype="fp32")
    pooled = v.new("pooler.output", tokens, v.batch, v.hidden)
    yield Op("pooler", (x,), (weights, scaled, pooled), (weights,), (wide,), (wide,), calls=12)
    ready = pooled.like("embedding_pre_projection_norm.output")
    yield from wide_norm(v, "embedding_pre_projection_norm", pooled, ready, scaled=False)
    yield from linear(v, "embedding_projection", ready, Dim("out_hidden_size", tower.out))


WEIGHTLESS = ("pooler", "embedding_pre_projection_norm")
"""What of a projection comes before its first weight: behind a frozen tower it keeps nothing."""
PROJECTIONS = {
    "qwen2_5_vl": _merged_qwen, "qwen2_5_omni": _merged_qwen, "qwen3_omni": _merged_qwen, "glm4v": _merged_glm, "siglip": _merged_siglip,
    "pixtral": _merged_pixtral, "gemma4": _merged_gemma4, "moonvit": _merged_moonvit, "qwen2_5_omni_audio": _pooled,
    "qwen3_omni_audio": _spoken, "qwen3_asr_audio": _spoken,
}  # fmt: skip
