"""What the towers of huggingface/transformers compute and keep of the images of a microbatch: eager modules, whole on every
tensor-parallel and context-parallel rank, which no recomputation of Megatron's reaches.

Attention is SDPA, image by image. Norms that are eager (RMSNorm) keep a fp32 copy of their input beside the product. Sources:
huggingface/transformers 5.8 to 5.12 `models/` (qwen2_5_vl, glm4v_moe, siglip, pixtral, mistral3) as Megatron-Bridge calls them
(`qwen_vl/modeling_qwen25_vl.py`, `glm_vl/modeling_glm_45v.py`, `gemma_vl/modeling_gemma3_vl.py`, `ministral3/modeling_ministral3.py`).
Since transformers 5.23 one rotary table serves all layers of Qwen2.5-VL and GLM-4.5V: 8 bytes of a head's width less per patch and layer.
"""

from __future__ import annotations

from typing import NamedTuple

from ..job.model import Model
from ..job.tower import HfTower
from ..job.training import Training
from ..tape.ops import Op, renaming
from ..tape.tensor import Dim, Tensor
from ..tape.work import Gemm, Streamed
from .context import Context
from .module import Module, changed
from .vision_tower import seen


class Kind(NamedTuple):
    """How the layers of a class differ: LayerNorm, RMSNorm that is eager, or one in fp32 to its end ("wide"); a gated MLP; one fused matrix
    of queries, keys and values with a copy of the attention's output; rotary tables of each layer, of all layers, or none; norms behind
    attention and MLP too, and of queries, keys and values."""

    norm: str
    gated: bool
    fused: bool
    rotary: str
    more_norms: bool = False


KINDS = {
    "qwen2_5_vl": Kind(norm="eager", gated=True, fused=True, rotary="layer"),
    "glm4v": Kind(norm="eager", gated=True, fused=True, rotary="layer"),
    "siglip": Kind(norm="LayerNorm", gated=False, fused=False, rotary=""),
    "pixtral": Kind(norm="eager", gated=True, fused=False, rotary="tower"),
    "gemma4": Kind(norm="wide", gated=True, fused=False, rotary="tower", more_norms=True),
}


def images(c: Context, tower: HfTower) -> Module[None]:
    """From pixels to rows of the embedding."""
    v, t = seen(c, tower), c.training
    x = v.residual("hidden_states")
    if not (t.freeze_vision_model or t.peft != "none"):
        yield from _embedded(v, tower, x)
        for at in range(tower.depth):
            yield from _layer(v, tower, x, at)
            x = v.residual(f"layers.{at}.output")
    else:
        wide = tuple(v.new(f"mlp.{name}", v.seq, v.batch, _width(tower)) for name in ("up", "activation"))
        each = 4 * tower.hidden * tower.hidden + (3 if KINDS[tower.kind].gated else 2) * tower.hidden * tower.ffn
        flops = 2 * v.seq.local * v.batch.size * each * tower.depth
        x = v.residual(f"layers.{tower.depth - 1}.output")
        yield Op("layers", (), (x,), forward=wide, work=(Streamed(flops, counted=False),))
    if not (t.freeze_vision_projection or t.peft != "none"):
        for op in PROJECTIONS[tower.kind](v, tower, x):
            bare = t.freeze_vision_model and isinstance(op, Op) and op.name in WEIGHTLESS
            yield op._replace(saves=(), backward=()) if bare and isinstance(op, Op) else op


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


def _width(tower: HfTower) -> Dim:
    return Dim("intermediate_size", tower.ffn)


def _embedded(v: Context, tower: HfTower, out: Tensor) -> Module[None]:
    """Patches through the convolution, and what stands between it and the first layer."""
    features = Dim("channels*frames*height*width", tower.patch)
    pixels, x = v.new("patches", v.seq, v.batch, features), v.residual("patch_embed.output")
    wgrad = v.new("patch_embed.proj.weight.wgrad", v.hidden, features)
    work = (Gemm(v.seq.local * v.batch.size, tower.hidden, tower.patch, counted=False),)
    yield Op("patch_embed.proj", (), (pixels, x), (pixels,), backward=(wgrad,), work=work)
    if tower.kind in ("glm4v", "pixtral"):
        x = yield from _norm(v, tower, "patch_embed.norm", x)
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
    elif tower.kind == "qwen2_5_vl":
        groups = Dim("windows of merged patches", v.seq.local // tower.merge)
        kept = (
            v.new("window_index", groups, v.batch, dtype="int64"),
            v.new("window_index.reverse", groups, v.batch, dtype="int64"),
        )
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


def _norm(v: Context, tower: HfTower, name: str, x: Tensor) -> Module[Tensor]:
    """A norm; its output is kept by what reads it."""
    out = x.like(f"{name}.output")
    if KINDS[tower.kind].norm == "wide":
        yield from _wide_norm(v, name, x, out)
        return out
    if KINDS[tower.kind].norm == "eager":
        rows = x.shape[:-1]
        wide, scale = x.like(f"{name}.input (fp32)", "fp32"), v.new(f"{name}.rsqrt", *rows, dtype="fp32")
        normed = x.like(f"{name}.normalized")
        yield Op(name, (x,), (wide, scale, normed, out), (wide, scale, normed), calls=5)
        return out
    yield from _layer_norm(v, name, x, out)
    return out


def _wide_norm(v: Context, name: str, x: Tensor, out: Tensor, *, scaled: bool = True) -> Module[None]:
    """RMSNorm in fp32 to its end (Gemma4RMSNorm): the input, its mean square and the power of it, and before the weight the product."""
    rows = x.shape[:-1]
    wide = x.like(f"{name}.input (fp32)", "fp32")
    stats = tuple(v.new(f"{name}.{stat}", *rows, dtype="fp32") for stat in ("mean_squared", "power"))
    weighted = (
        (x.like(f"{name}.normalized (fp32)", "fp32"), v.new(f"{name}.weight (fp32)", x.shape[-1], dtype="fp32"))
        if scaled
        else ()
    )
    kept = (wide, *stats, *weighted)
    yield Op(name, (x,), (*kept, out), kept, (x.like(f"{name}.product (fp32)", "fp32"),), calls=7)


def _layer_norm(v: Context, name: str, x: Tensor, out: Tensor) -> Module[None]:
    rows = x.shape[:-1]
    mean, rstd = (v.new(f"{name}.{stat}", *rows, dtype="fp32") for stat in ("mean", "rstd"))
    yield Op(name, (x,), (out, mean, rstd), (x, mean, rstd))


def _clipped(tower: HfTower, name: str, x: Tensor) -> Module[Tensor]:
    """A clamp, which keeps what goes in; nothing where linears have none."""
    if not tower.clipped:
        return x
    out = x.like(name)
    yield Op(name, (x,), (out,), (x,))
    return out


def _clippable(v: Context, tower: HfTower, name: str, x: Tensor, width: Dim) -> Module[Tensor]:
    """A linear between two clamps, where the tower has them (Gemma4ClippableLinear)."""
    x = yield from _clipped(tower, f"{name}.input clamped", x)
    out = yield from _linear(v, name, x, width)
    return (yield from _clipped(tower, f"{name}.output clamped", out))


def _linear(v: Context, name: str, x: Tensor, width: Dim) -> Module[Tensor]:
    """A linear, which keeps its input."""
    out = v.new(f"{name}.output", *x.shape[:-1], width)
    rows = 1
    for dim in x.shape[:-1]:
        rows *= dim.local
    work = (Gemm(rows, width.local, x.shape[-1].local, counted=False),)
    yield Op(name, (x,), (out,), (x,), backward=(v.new(f"{name}.weight.wgrad", width, x.shape[-1]),), work=work)
    return out


def _layer(v: Context, tower: HfTower, entry: Tensor, at: int) -> Module[None]:
    """A layer with names of its own."""
    rename, more = renaming(f"layers.{at}.", {entry.name: entry.name}), KINDS[tower.kind].more_norms

    def module() -> Module[None]:
        out = yield from _attention(v, tower, entry)
        if more:
            out = yield from _norm(v, tower, "post_attention_layernorm", out)
        x = v.residual("residual")
        yield Op("self_attention.add", (out, entry), (x,), passes=(out, entry))
        out = yield from _mlp(v, tower, x)
        if more:
            out = yield from _norm(v, tower, "post_feedforward_layernorm", out)
        yield Op("mlp.add", (out, x), (v.residual("output"),), passes=(out, x))

    yield from changed(module(), rename)


def _attention(v: Context, tower: HfTower, entry: Tensor) -> Module[Tensor]:
    kind, name = KINDS[tower.kind], "self_attention"
    heads, d = Dim("num_heads", tower.heads), Dim("head_dim", tower.hidden // tower.heads)
    x = yield from _norm(v, tower, "norm1", entry)
    if kind.fused:
        qkv = yield from _linear(v, f"{name}.qkv", x, Dim("qkv", 3 * tower.hidden))
        q = k = value = qkv
    else:
        parts = []
        for which in "qkv":
            part = yield from _clippable(v, tower, f"{name}.{which}_proj", x, v.hidden)
            if kind.more_norms:
                normed = v.new(f"{name}.{which}_norm.output", v.seq, v.batch, heads, d)
                by_head = part.view(f"{name}.{which}_proj by head", normed.shape)
                yield from _wide_norm(v, f"{name}.{which}_norm", by_head, normed, scaled=which != "v")
                part = normed
            parts.append(part)
        q, k, value = parts
    if kind.rotary:
        tables = tuple(v.new(f"{name}.rotary.{part}", v.seq, v.batch, d, dtype="fp32") for part in ("cos", "sin"))
        own = tables if kind.rotary == "layer" else ()
        turned = (
            v.new(f"{name}.q rotated", v.seq, v.batch, heads, d),
            v.new(f"{name}.k rotated", v.seq, v.batch, heads, d),
        )
        wide = tuple(one.like(f"{one.name} (fp32)", "fp32") for one in turned) if kind.rotary == "layer" else ()
        yield Op(f"{name}.rotary", (q,) if kind.fused else (q, k), (*turned, *own), own, wide, wide, calls=8)
        q, k = turned
    out = v.new("core_attention.output", v.seq, v.batch, heads, d)
    lse = v.new("core_attention.softmax_lse", v.batch, heads, v.seq, dtype="fp32")
    reads = tuple(dict.fromkeys((q, k, value)))
    attended = min(v.seq.local, tower.image * tower.merge or v.seq.local)
    flops = 4 * v.seq.local * attended * v.batch.size * tower.hidden
    yield Op("core_attention", reads, (out, lse), (*reads, out, lse), work=(Streamed(flops, counted=False),))
    if kind.fused:  # the images' parts are put together
        whole = out.like("core_attention.all images")
        yield Op("core_attention.cat", (out,), (whole,))
        out = whole
    rows = out.view(f"{name}.context", (v.seq, v.batch, v.hidden))
    return (yield from _clippable(v, tower, f"{name}.proj", rows, v.hidden))


def _mlp(v: Context, tower: HfTower, hidden: Tensor) -> Module[Tensor]:
    x = yield from _norm(v, tower, "norm2", hidden)
    width = _width(tower)
    up = yield from _clippable(v, tower, "mlp.up_proj", x, width)
    if not KINDS[tower.kind].gated:
        act = up.like("mlp.activation.output")
        yield Op("mlp.activation", (up,), (act,), (up,))
        return (yield from _linear(v, "mlp.down_proj", act, v.hidden))
    return (yield from _gated(v, tower, "mlp", x, up, width, v.hidden))


def _gated(v: Context, tower: HfTower, name: str, x: Tensor, up: Tensor, width: Dim, out: Dim) -> Module[Tensor]:
    """A gate, its activation, the product with what goes up, and down again."""
    gate = yield from _clippable(v, tower, f"{name}.gate_proj", x, width)
    act, product = gate.like(f"{name}.activation.output"), gate.like(f"{name}.product")
    yield Op(f"{name}.activation", (gate,), (act,), (gate,))
    yield Op(f"{name}.times", (act, up), (product,), (act, up))
    return (yield from _clippable(v, tower, f"{name}.down_proj", product, out))


# -- what leads into the language model ------------------------------------------------------------------------------------


def _tokens(v: Context, tower: HfTower) -> Dim:
    return Dim("image_tokens", v.seq.local // tower.merge)


def _merged_qwen(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    x = yield from _norm(v, tower, "merger.ln_q", x)
    merged = Dim("merged width", tower.hidden * tower.merge)
    rows = x.view("merger.rows", (_tokens(v, tower), v.batch, merged))
    wide = yield from _linear(v, "merger.mlp.0", rows, merged)
    act = wide.like("merger.mlp.1.output")
    yield Op("merger.mlp.1", (wide,), (act,), (wide,))
    yield from _linear(v, "merger.mlp.2", act, Dim("out_hidden_size", tower.out))


def _merged_glm(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The norm and the convolution that makes one row of several patches, and the merger behind it."""
    x = yield from _norm(v, tower, "post_layernorm", x)
    out, merged = Dim("out_hidden_size", tower.out), Dim("merged width", tower.hidden * tower.merge)
    rows = x.view("downsample.rows", (_tokens(v, tower), v.batch, merged))
    x = yield from _linear(v, "downsample", rows, out)
    x = yield from _linear(v, "merger.proj", x, out)
    normed = x.like("merger.post_projection_norm.output")
    yield from _layer_norm(v, "merger.post_projection_norm", x, normed)
    act = normed.like("merger.act1.output")
    yield Op("merger.act1", (normed,), (act,), (normed,))
    width = Dim("merger width", tower.merger)
    up = yield from _linear(v, "merger.up_proj", act, width)
    yield from _gated(v, tower, "merger", act, up, width, out)


def _merged_siglip(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The last norm, the mean of patches, and a norm and a linear of Megatron's own."""
    normed = x.like("post_layernorm.output")
    yield from _layer_norm(v, "post_layernorm", x, normed)
    pooled = v.new("avg_pool.output", _tokens(v, tower), v.batch, v.hidden)
    yield Op("avg_pool", (normed,), (pooled,))
    ready, scale = (
        pooled.like("mm_soft_embed_norm.output"),
        v.new("mm_soft_embed_norm.rsigma", *pooled.shape[:-1], dtype="fp32"),
    )
    yield Op("mm_soft_embed_norm", (pooled,), (ready, scale), (pooled, scale))
    yield from _linear(v, "proj", ready, v.dim("out_hidden_size", tower.out, "tp"))


def _merged_pixtral(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """The norm, patches put side by side, and two linears."""
    x = yield from _norm(v, tower, "multi_modal_projector.norm", x)
    side = v.new("patch_merger.unfolded", _tokens(v, tower), v.batch, Dim("merged width", tower.hidden * tower.merge))
    yield Op("patch_merger.unfold", (x,), (side,))
    x = yield from _linear(v, "patch_merger.merging_layer", side, v.hidden)
    out = Dim("out_hidden_size", tower.out)
    x = yield from _linear(v, "linear_1", x, out)
    act = x.like("act.output")
    yield Op("act", (x,), (act,), (x,))
    yield from _linear(v, "linear_2", act, out)


def _merged_gemma4(v: Context, tower: HfTower, x: Tensor) -> Module[None]:
    """Patches pooled by their positions in fp32, a norm without a weight, and a linear."""
    tokens, image = _tokens(v, tower), Dim("tokens of an image", tower.image)
    weights, wide = v.new("pooler.weights", v.seq, v.batch, image, dtype="fp32"), x.like("pooler.input (fp32)", "fp32")
    scaled = v.new("pooler.output (fp32)", tokens, v.batch, v.hidden, dtype="fp32")
    pooled = v.new("pooler.output", tokens, v.batch, v.hidden)
    yield Op("pooler", (x,), (weights, scaled, pooled), (weights,), (wide,), (wide,), calls=12)
    ready = pooled.like("embedding_pre_projection_norm.output")
    yield from _wide_norm(v, "embedding_pre_projection_norm", pooled, ready, scaled=False)
    yield from _linear(v, "embedding_projection", ready, Dim("out_hidden_size", tower.out))


WEIGHTLESS = ("pooler", "embedding_pre_projection_norm")
"""What of a projection comes before its first weight: behind a frozen tower it keeps nothing."""
PROJECTIONS = {
    "qwen2_5_vl": _merged_qwen, "glm4v": _merged_glm, "siglip": _merged_siglip, "pixtral": _merged_pixtral,
    "gemma4": _merged_gemma4,
}  # fmt: skip
