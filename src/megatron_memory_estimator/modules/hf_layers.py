"""Layers of the towers of huggingface/transformers, module by module: eager, and whole on every tensor-parallel rank.

Attention is SDPA, image by image. Norms that are eager (RMSNorm) keep a fp32 copy of their input beside the product. Sources:
huggingface/transformers 5.8 to 5.12 `models/` (qwen2_5_vl, glm4v_moe, siglip, pixtral, gemma4, qwen2_5_omni, qwen3_omni_moe); of Kimi-K2.5
the code of its checkpoint (modeling_kimi_k25.py: MoonViT3dEncoder, flash attention of all images at once). Since transformers 5.23 one
rotary table serves all layers: 8 bytes of a head's width less for each pair of tables, patch and layer.
"""

from __future__ import annotations

from typing import NamedTuple

from ..job.tower import HfKind, HfTower
from ..tape.ops import Op, renaming
from ..tape.tensor import Dim, Tensor
from ..tape.work import Streamed
from .context import Context
from .module import Module, changed
from .vision_tower import linear as linear_to


class Kind(NamedTuple):
    """How the layers of a class differ.

    norm        LayerNorm, RMSNorm that is eager, or one in fp32 to its end ("wide")
    gated       the MLP
    fused       queries, keys and values are one matrix, and what is kept of the values is its output
    looped      attention goes image by image, and its outputs are put together
    tables      fp32 tables of the rotary embedding that each layer makes: one pair, or one for queries and one for keys
    rotary      queries and keys are turned
    more_norms  norms behind attention and MLP too, and of queries, keys and values
    mlp         the linears of the MLP by name: adapters find those of Megatron's names
    """

    norm: str
    gated: bool
    fused: bool
    looped: bool
    tables: tuple[str, ...] = ()
    rotary: bool = False
    more_norms: bool = False
    mlp: tuple[str, str] = ("up_proj", "down_proj")


PAIR, TWO_PAIRS = ("cos", "sin"), ("cos (q)", "sin (q)", "cos (k)", "sin (k)")
WHISPER = Kind(norm="LayerNorm", gated=False, fused=False, looped=True)
KINDS: dict[HfKind, Kind] = {
    "qwen2_5_vl": Kind(norm="eager", gated=True, fused=True, looped=True, tables=PAIR, rotary=True),
    "qwen2_5_omni": Kind(norm="eager", gated=True, fused=False, looped=True, tables=TWO_PAIRS, rotary=True),
    "qwen3_omni": Kind(
        norm="LayerNorm",
        gated=False,
        fused=True,
        looped=True,
        tables=PAIR,
        rotary=True,
        mlp=("linear_fc1", "linear_fc2"),
    ),
    "glm4v": Kind(norm="eager", gated=True, fused=True, looped=True, tables=PAIR, rotary=True),
    "siglip": Kind(norm="LayerNorm", gated=False, fused=False, looped=False),
    "pixtral": Kind(norm="eager", gated=True, fused=False, looped=False, rotary=True),
    "gemma4": Kind(norm="wide", gated=True, fused=False, looped=False, rotary=True, more_norms=True),
    "moonvit": Kind(norm="LayerNorm", gated=False, fused=True, looped=False, rotary=True),
    "qwen2_5_omni_audio": WHISPER,
    "qwen3_omni_audio": WHISPER,
    "qwen3_asr_audio": WHISPER._replace(looped=False),
}


def width_of(tower: HfTower) -> Dim:
    return Dim("intermediate_size", tower.ffn)


def norm(v: Context, tower: HfTower, name: str, x: Tensor) -> Module[Tensor]:
    """A norm; its output is kept by what reads it."""
    out = x.like(f"{name}.output")
    if KINDS[tower.kind].norm == "wide":
        yield from wide_norm(v, name, x, out)
        return out
    if KINDS[tower.kind].norm == "eager":
        rows = x.shape[:-1]
        wide, scale = x.like(f"{name}.input (fp32)", "fp32"), v.new(f"{name}.rsqrt", *rows, dtype="fp32")
        normed = x.like(f"{name}.normalized")
        yield Op(name, (x,), (wide, scale, normed, out), (wide, scale, normed), calls=5)
        return out
    yield from layer_norm(v, name, x, out)
    return out


def wide_norm(v: Context, name: str, x: Tensor, out: Tensor, *, scaled: bool = True) -> Module[None]:
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


def layer_norm(v: Context, name: str, x: Tensor, out: Tensor) -> Module[None]:
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
    out = yield from linear(v, name, x, width)
    return (yield from _clipped(tower, f"{name}.output clamped", out))


def linear(v: Context, name: str, x: Tensor, width: Dim) -> Module[Tensor]:
    """A linear of a width."""
    return (yield from linear_to(v, name, x, v.new(f"{name}.output", *x.shape[:-1], width), (width, x.shape[-1])))


def layer(v: Context, tower: HfTower, entry: Tensor, at: int) -> Module[None]:
    """A layer with names of its own."""
    rename, more = renaming(f"layers.{at}.", {entry.name: entry.name}), KINDS[tower.kind].more_norms

    def module() -> Module[None]:
        out = yield from _attention(v, tower, entry)
        if more:
            out = yield from norm(v, tower, "post_attention_layernorm", out)
        x = v.residual("residual")
        yield Op("self_attention.add", (out, entry), (x,), passes=(out, entry))
        out = yield from _mlp(v, tower, x)
        if more:
            out = yield from norm(v, tower, "post_feedforward_layernorm", out)
        yield Op("mlp.add", (out, x), (v.residual("output"),), passes=(out, x))

    yield from changed(module(), rename)


def _attention(v: Context, tower: HfTower, entry: Tensor) -> Module[Tensor]:
    kind, name = KINDS[tower.kind], "self_attention"
    heads, d = Dim("num_heads", tower.heads), Dim("head_dim", tower.hidden // tower.heads)
    x = yield from norm(v, tower, "norm1", entry)
    if kind.fused:
        qkv = yield from linear(v, f"{name}.qkv", x, Dim("qkv", 3 * tower.hidden))
        q = k = value = qkv
    else:
        parts = []
        for which in "qkv":
            part = yield from _clippable(v, tower, f"{name}.{which}_proj", x, v.hidden)
            if kind.more_norms:
                normed = v.new(f"{name}.{which}_norm.output", v.seq, v.batch, heads, d)
                by_head = part.view(f"{name}.{which}_proj by head", normed.shape)
                yield from wide_norm(v, f"{name}.{which}_norm", by_head, normed, scaled=which != "v")
                part = normed
            parts.append(part)
        q, k, value = parts
    if kind.rotary:
        own = tuple(v.new(f"{name}.rotary.{part}", v.seq, v.batch, d, dtype="fp32") for part in kind.tables)
        turned = (
            v.new(f"{name}.q rotated", v.seq, v.batch, heads, d),
            v.new(f"{name}.k rotated", v.seq, v.batch, heads, d),
        )
        wide = tuple(one.like(f"{one.name} (fp32)", "fp32") for one in turned) if kind.tables or kind.fused else ()
        yield Op(f"{name}.rotary", (q,) if kind.fused else (q, k), (*turned, *own), own, wide, wide, calls=8)
        q, k = turned
    out = v.new("core_attention.output", v.seq, v.batch, heads, d)
    lse = v.new("core_attention.softmax_lse", v.batch, heads, v.seq, dtype="fp32")
    reads = tuple({one.name: one for one in (q, k, value)}.values())
    attended = min(v.seq.local, tower.image * tower.merge or v.seq.local)
    flops = 4 * v.seq.local * attended * v.batch.size * tower.hidden
    yield Op("core_attention", reads, (out, lse), (*reads, out, lse), work=(Streamed(flops, counted=False),))
    if kind.looped:  # the images' parts are put together
        whole = out.like("core_attention.all images")
        yield Op("core_attention.cat", (out,), (whole,))
        out = whole
    rows = out.view(f"{name}.context", (v.seq, v.batch, v.hidden))
    return (yield from _clippable(v, tower, f"{name}.proj", rows, v.hidden))


def _mlp(v: Context, tower: HfTower, hidden: Tensor) -> Module[Tensor]:
    x = yield from norm(v, tower, "norm2", hidden)
    width = width_of(tower)
    first, second = KINDS[tower.kind].mlp
    up = yield from _clippable(v, tower, f"mlp.{first}", x, width)
    if not KINDS[tower.kind].gated:
        act = up.like("mlp.activation.output")
        yield Op("mlp.activation", (up,), (act,), (up,))
        return (yield from linear(v, f"mlp.{second}", act, v.hidden))
    return (yield from gated(v, tower, "mlp", x, up, width, v.hidden))


def gated(v: Context, tower: HfTower, name: str, x: Tensor, up: Tensor, width: Dim, out: Dim) -> Module[Tensor]:
    """A gate, its activation, the product with what goes up, and down again."""
    gate = yield from _clippable(v, tower, f"{name}.gate_proj", x, width)
    act, product = gate.like(f"{name}.activation.output"), gate.like(f"{name}.product")
    yield Op(f"{name}.activation", (gate,), (act,), (gate,))
    yield Op(f"{name}.times", (act, up), (product,), (act, up))
    return (yield from _clippable(v, tower, f"{name}.down_proj", product, out))
