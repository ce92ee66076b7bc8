"""What Qwen3-VL's tower and RADIO compute and keep of the images of a microbatch: Megatron's own layers, without sequence parallelism.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/qwen_vl/modelling_qwen3_vl/` (vision_model.py, transformer_block.py,
transformer_config.py get_vision_model_config, attention.py, utils.py). Its configuration is made anew: of the language model's it takes the
tensor parallel size and full recomputation alone; selective recomputation is of core attention, whatever modules are named.

RADIO, of Nemotron VL and Omni: Megatron-LM `megatron/core/models/vision/radio.py`, `multimodal_projector.py`; its sizes in Megatron-Bridge
`src/megatron/bridge/models/nemotron_vl/nemotron_vl_provider.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from ..job.layout import Layout
from ..job.model import Model
from ..job.tower import HfTower, Sound, Tower, Vit
from ..job.training import Training
from ..tape.ops import Item, Op, Recompute, renaming
from ..tape.tensor import Dim, Param, Tensor, numel_of, smallest
from ..tape.work import Gemm, Streamed
from .adapters import DEFAULT_TARGETS, MARK, adapted, adapters_of
from .context import Context
from .context_parallel import NAME as CORE
from .linear import column_linear, row_linear
from .mlp import activation
from .module import Module, changed, recomputed
from .norm import bias_dropout_add, norm

POSITIONS = 4
"""Position embeddings that are interpolated for a patch."""


class _Patches(Context):
    """A context whose sequence is patches of images, on every context-parallel rank all of them."""

    of_tower = True

    @cached_property
    def seq(self) -> Dim:
        return Dim("patches", self.training.seq_length)


def seen(c: Context, vit: Vit | HfTower, tokens: int) -> Context:
    """The context of the tower's layers: its sequence is the patches that become so many tokens of a sequence, or one."""
    t = c.training
    model = Model(
        num_layers=vit.depth, hidden_size=vit.hidden, num_attention_heads=vit.heads, ffn_hidden_size=vit.ffn,
        normalization="LayerNorm", activation_func="gelu", add_bias_linear=True, hidden_dropout=0.0, attention_dropout=0.0,
        vocab_size=1,
    )  # fmt: skip
    # beside a linear of torch there is one kind of adapters
    adapters = "lora" if isinstance(vit, HfTower) and t.peft != "none" else t.peft
    training = Training(
        params_dtype=t.params_dtype, transformer_engine_version=t.transformer_engine_version, megatron_core_version=t.megatron_core_version,
        seq_length=max(tokens, 1) * vit.merge, apply_rope_fusion=False, bias_activation_fusion=False,
        recompute_granularity="selective" if t.recomputes_selectively() else None, peft=adapters, peft_dim=t.peft_dim,
        peft_target_modules=t.peft_target_modules,
    )  # fmt: skip
    training = dataclasses.replace(training, micro_batch_size=t.micro_batch_size)
    layout = Layout(world_size=c.layout.tp, tensor_model_parallel_size=c.layout.tp)
    return _Patches(model, layout, training, c.kernel, c.num_sms)


class How(NamedTuple):
    """How a tower is trained: whether its layers are frozen, and what leads from them into the language model; whether adapters are;
    layers of a checkpoint of full recomputation (0 without), and whether checkpoints wrap all of them; whether each layer of a class of
    huggingface/transformers is one (vit_gradient_checkpointing)."""

    layers: bool
    projection: bool
    adapters: bool
    together: int
    every: bool
    rerun: bool


def how(t: Training, tower: Tower) -> How:
    """How a run trains a tower."""
    layers, projection = (tower.frozen(t, projection=part) for part in (False, True))
    adapters, rerun = t.peft != "none", t.vit_gradient_checkpointing and tower.rerun
    return How(layers, projection, adapters, t.recomputed_together(), t.recomputes_layers(), rerun)


def images(v: Context, vit: Vit, h: How) -> Module[None]:
    """From pixels to rows of the embedding: patches, layers, and the mergers of some layers and of the last."""
    adapts = any(adapters_of(v, name) for name in DEFAULT_TARGETS)  # found by name, frozen or not
    v, table, h = _rows(v, vit, h)
    if adapts:
        yield from behind_the_first_adapter(_trained(v, table, vit, h))
    elif h.layers or h.adapters:
        last, sources = yield from _without_gradients(v, vit)
        if h.projection or h.adapters:
            return
        yield from _projected(v, last, vit)
        for at, x in sources.items():
            yield from _merged(v, f"deepstack.{at}", x, vit.hidden * vit.merge, vit)
    else:
        yield from _trained(v, table, vit, h)


def _rows(v: Context, vit: Vit, h: How) -> tuple[Context, Tensor | None, How]:
    """The context of the rows that the layers see, their rotary table, and how they are trained: RADIO adds class tokens to the patches,
    has no rotary positions, and recomputes nothing."""
    if vit.radio is None:
        return v, v.new("rotary_pos_emb", v.seq, v.batch, Dim("kv_channels", vit.hidden // vit.heads), dtype="fp32"), h
    patches = v.training.seq_length
    rows = patches + vit.radio.classes * -(-patches // vit.radio.tile)
    training = dataclasses.replace(v.training, seq_length=rows, recompute_granularity=None)
    return dataclasses.replace(v, training=training), None, h._replace(together=0, every=False)


def _trained(v: Context, table: Tensor | None, vit: Vit, h: How) -> Module[None]:
    """Patches, layers and mergers, of which all that is trained needs for its backward is kept."""
    behind = with_frozen_linears(v) if h.projection else v
    yield from _embedded(v, table, vit) if table is not None else _tiled(v, vit)
    for group, covered in _groups(h, vit.depth):
        inside = tuple(item for at in group for item in _layer(v, table, vit, at, behind))
        if covered:
            yield Recompute(f"layers {group[0]} to {group[-1]}", inside)
        else:
            yield from inside
    yield from _projected(behind, v.residual(_output(vit.depth - 1)), vit)


def _projected(v: Context, rows: Tensor, vit: Vit) -> Module[None]:
    """The layers' output in the width of the language model."""
    yield from _shuffled(v, rows, vit) if vit.radio else _merged(v, "merger", rows, vit.hidden, vit)


def _groups(h: How, depth: int) -> Iterator[tuple[range, bool]]:
    """Layers that are a stretch, and whether a checkpoint of full recomputation wraps them."""
    step = h.together if h.every else 1
    for at in range(0, depth, step):
        yield range(at, min(at + step, depth)), h.every or at < h.together


def _output(layer: int) -> str:
    """The name of what a layer hands on."""
    return f"layers.{layer}.mlp_bda.output" if layer >= 0 else "hidden_states"


def _without_gradients(v: Context, vit: Vit) -> Module[tuple[Tensor, dict[int, Tensor]]]:
    """The layers where they are not trained: they keep nothing, and the widest of them holds two tensors of the MLP."""
    wide = tuple(
        v.region(f"mlp.{name}", v.dim("ffn_hidden_size", vit.ffn, "tp"))
        for name in ("linear_fc1.output", "activation.output")
    )
    sources = {at: v.residual(_output(at)) for at in vit.deepstack}
    last = v.residual(_output(vit.depth - 1))
    each = 4 * vit.hidden * vit.hidden + 2 * vit.hidden * vit.ffn
    flops = 2 * v.seq.local * v.batch.size * each * vit.depth // v.layout.tp
    yield Op("layers", (), (last, *sources.values()), forward=wide, work=(Streamed(flops, counted=False),))
    return last, sources


def _embedded(v: Context, table: Tensor, vit: Vit) -> Module[None]:
    """Patches through the convolution, the interpolated position of each, and their rotary table."""
    features, rows = Dim("channels*frames*height*width", vit.patch), Dim("positions", POSITIONS)
    pixels, x = v.new("patches", v.seq, v.batch, features), v.residual("patch_embed.output")
    work = (Gemm(v.seq.local * v.batch.size, vit.hidden, vit.patch, counted=False),)
    wgrad = v.new("patch_embed.proj.weight.wgrad", v.hidden, features)
    yield Op("patch_embed.proj", (), (pixels, x), (pixels,), backward=(wgrad,), work=work)
    ids, weights = (
        v.new("pos_embed.ids", rows, v.seq, v.batch, dtype="int64"),
        v.new("pos_embed.weights", rows, v.seq, v.batch),
    )
    found = v.new("pos_embed.output", rows, v.seq, v.batch, v.hidden)
    scaled = found.like("pos_embed.scaled")
    yield Op("pos_embed", (), (ids, weights, found), (ids,))
    yield Op("pos_embed.interpolate", (found, weights), (scaled,), (weights,), stops=(weights,))
    sums = (x.like("pos_embed.sum"), x.like("pos_embed.by patch"))
    yield Op("pos_embed.add", (x, scaled), (v.residual(_output(-1)), table), forward=sums, passes=(x,))


def _image_patches(v: Context, vit: Vit) -> Dim:
    """Patches among the rows, without class tokens."""
    assert vit.radio is not None
    rows, radio = v.training.seq_length, vit.radio
    return Dim("patches", rows - radio.classes * -(-rows // (radio.tile + radio.classes)))


def _tiled(v: Context, vit: Vit) -> Module[None]:
    """RADIO: patches through a linear, positions out of the table of the largest image, and class tokens in front of each tile.

    In training a grid samples the table, whose fp32 copy is kept; the backward has a gradient of it for each tile. Otherwise it is scaled
    to the image, which keeps nothing (`vision/radio.py`, _get_pos_embeddings).
    """
    radio = vit.radio
    assert radio is not None
    patches = _image_patches(v, vit)
    features = Dim("channels*height*width", vit.patch)
    pixels, x = v.new("patches", patches, v.batch, features), v.new("embedder.output", patches, v.batch, v.hidden)
    work = (Gemm(patches.size * v.batch.size, vit.hidden // v.layout.tp, vit.patch, counted=False),)
    wgrad = v.new("embedder.weight.wgrad", v.hidden, features)
    yield Op("embedder", (), (pixels, x), (pixels,), backward=(wgrad,), work=work)
    table = v.new("position_embeddings fp32", Dim("positions", radio.positions), v.hidden, dtype="fp32")
    placed = x.like("embedder.output with positions")
    tiles = Dim("tiles", -(-patches.size // radio.tile)) if radio.sampled else Dim("image", 1)
    grad = (v.new("position_embeddings grad", tiles, v.batch, *table.shape, dtype="fp32"),)
    grid = v.new("position_embeddings.grid", patches, v.batch, Dim("xy", 2), dtype="fp32")
    kept = (table, grid) if radio.sampled else ()
    yield Op("position_embeddings", (x,), (placed,), kept, () if kept else (table,), grad, passes=(x,))
    rows = v.residual(_output(-1))
    yield Op("class_tokens", (placed,), (rows,), forward=(rows.like("rows, batch first"),))


def _shuffled(v: Context, rows: Tensor, vit: Vit) -> Module[None]:
    """RADIO's patches, four of them side by side as one row, and a projector: an MLP of the language model's kind."""
    radio = vit.radio
    assert radio is not None
    model = dataclasses.replace(v.model, normalization="RMSNorm", activation_func="squared_relu")
    p, name = dataclasses.replace(v, model=model), "vision_projection"
    tokens, width = (
        Dim("image_tokens", _image_patches(v, vit).size // vit.merge),
        Dim("merged width", vit.hidden * vit.merge),
    )
    x = v.new(f"{name}.rows", tokens, v.batch, width)
    yield Op(f"{name}.pixel_shuffle", (rows,), (x,))
    x = yield from norm(p, f"{name}.linear_fc1.layer_norm", x)
    shared, out = v.dim("ffn_hidden_size", radio.ffn, "tp"), Dim("out_hidden_size", vit.out)
    fc1, fc2 = (f"{name}.encoder.linear_{which}" for which in ("fc1", "fc2"))
    wide = yield from linear(v, fc1, x, v.new(f"{fc1}.output", tokens, v.batch, shared), (shared, width))
    act = yield from activation(p, f"{name}.activation", wide, shared)
    yield from linear(v, fc2, act, v.new(f"{name}.output", tokens, v.batch, out), (out, shared))


def with_frozen_linears(v: Context) -> Context:
    """The context in which linears hand a gradient on and have none themselves."""
    return dataclasses.replace(v, training=dataclasses.replace(v.training, freeze_language_model=True))


def _layer(v: Context, table: Tensor | None, vit: Vit, at: int, behind: Context) -> list[Item]:
    """A layer, and the merger behind it if it has one, with names of its own."""
    entry = v.residual("entry")

    def module() -> Module[None]:
        out = yield from _attention(v, entry, table, vit)
        x = yield from bias_dropout_add(v, "self_attn_bda", out, entry)
        out = yield from _mlp(v, x)
        x = yield from bias_dropout_add(v, "mlp_bda", out, x)
        if at in vit.deepstack:
            yield from _merged(behind, "deepstack", x, vit.hidden * vit.merge, vit)

    kept = {} if table is None else {table.name: table.name}
    rename = renaming(f"layers.{at}.", {entry.name: _output(at - 1), **kept})
    return [item for item in changed(module(), rename) if not isinstance(item, Param)]


def _attention(v: Context, hidden: Tensor, table: Tensor | None, vit: Vit) -> Module[Tensor]:
    name, heads = "self_attention", v.dim("num_attention_heads", vit.heads, "tp")
    d = Dim("kv_channels", vit.hidden // vit.heads)
    x = yield from norm(v, "input_layernorm", hidden)
    weight = Param(f"{name}.linear_qkv.weight", (v.dim("qkv", 3 * vit.hidden, "tp"), v.hidden), "tp")
    qkv = yield from uncounted(column_linear(v, f"{name}.linear_qkv", x, weight))
    q, k, source = (qkv.view(f"{name}.{which}", (v.seq, v.batch, heads, d)) for which in "qkv")
    yield Op(f"{name}.split_qkv", (qkv,), (q, k, source))
    turned = (q, k) if table is None else (yield from _rotated(v, q, k, table))

    def core() -> Module[Tensor]:
        value = source
        if table is not None:
            value = source.like(f"{name}.v contiguous")
            yield Op(f"{CORE}.contiguous_v", (source,), (value,), passes=(source,))
        out = v.region(f"{CORE}.output", heads, d)
        lse = v.new(f"{CORE}.softmax_lse", v.batch, heads, v.seq, dtype="fp32")
        seen_by_one = smallest(v.seq.local, vit.radio.tile + vit.radio.classes) if vit.radio else v.seq.local
        scores = Streamed(4 * v.seq.local * seen_by_one * v.batch.size * heads.local * d.size, counted=False)
        back = (turned[0].like(f"{CORE}.dq fp32 accumulator", "fp32"),)
        yield Op(CORE, (*turned, value), (out,), (*turned, value, out, lse), backward=back, work=(scores,))
        return out

    context = yield from recomputed(v.training.recomputes("core_attn"), f"{CORE}.checkpoint", core())
    proj = Param(f"{name}.linear_proj.weight", (v.hidden, v.dim("heads*kv_channels", vit.hidden, "tp")), "tp")
    return (yield from uncounted(row_linear(v, f"{name}.linear_proj", context, proj)))


def _rotated(v: Context, q: Tensor, k: Tensor, table: Tensor) -> Module[tuple[Tensor, Tensor]]:
    name = "self_attention"
    turned = (q.like(f"{name}.q rotated"), k.like(f"{name}.k rotated"))
    tables = tuple(table.like(f"{name}.rotary.{part}") for part in ("cos (q)", "sin (q)", "cos (k)", "sin (k)"))
    wide = (q.like(f"{name}.q fp32", "fp32"), q.like(f"{name}.q turned fp32", "fp32"))
    yield Op(f"{name}.rotary", (q, k, table), turned, tables, wide, wide, stops=(table,))
    return turned


def _mlp(v: Context, hidden: Tensor) -> Module[Tensor]:
    width = v.dim("ffn_hidden_size", v.model.ffn, "tp")
    x = yield from norm(v, "pre_mlp_layernorm", hidden)
    wide = yield from uncounted(
        column_linear(v, "mlp.linear_fc1", x, Param("mlp.linear_fc1.weight", (width, v.hidden), "tp"))
    )
    act = yield from activation(v, "mlp.activation", wide, width)
    return (
        yield from uncounted(
            row_linear(v, "mlp.linear_fc2", act, Param("mlp.linear_fc2.weight", (v.hidden, width), "tp"))
        )
    )


def _merged(v: Context, name: str, hidden: Tensor, normed: int, vit: Vit) -> Module[None]:
    """Patches that belong together as one row of the language model's width; the norm is over a patch, or over all of them."""
    tokens, width = Dim("image_tokens", v.seq.local // vit.merge), vit.hidden * vit.merge
    rows = v.seq if normed == vit.hidden else tokens
    x = yield from norm(v, f"{name}.patch_norm", hidden.view(f"{name}.rows", (rows, v.batch, Dim("features", normed))))
    x = x.view(f"{name}.rows merged", (tokens, v.batch, Dim("features", width)))
    shared, out = v.dim("merged width", width, "tp"), Dim("out_hidden_size", vit.out)
    wide = v.new(f"{name}.linear_fc1.output", tokens, v.batch, shared)
    wide = yield from linear(v, f"{name}.linear_fc1", x, wide, (shared, x.shape[-1]))
    act = wide.like(f"{name}.activation.output")
    yield Op(f"{name}.activation", (wide,), (act,), (wide,))
    yield from linear(v, f"{name}.linear_fc2", act, v.new(f"{name}.output", tokens, v.batch, out), (out, shared))


def linear(v: Context, name: str, x: Tensor, out: Tensor, shape: tuple[Dim, Dim]) -> Module[Tensor]:
    """A linear outside the layers, or of torch, which keeps its input, and its adapter, which keeps it where the linear is frozen."""
    n, k = (dim.local for dim in shape)
    weight, trained = Param(f"{name}.weight", shape, "tp"), not v.training.base_frozen
    work = (Gemm(numel_of(x.shape[:-1]), n, k, counted=False),)
    grads = (v.new(f"{name}.weight.wgrad", *shape),) if trained else ()
    yield Op(name, (x,), (out,), (x,) if trained else (), backward=grads, work=work)
    return (yield from uncounted(adapted(v, name, x, out, weight)))


def behind_the_first_adapter(module: Module[None]) -> Module[None]:
    """The module where nothing is trained but adapters: what comes before the first of them gets no gradient, and keeps nothing."""
    reached: set[str] = set()

    def change(item: Item) -> Item:
        if isinstance(item, Recompute):
            return item._replace(ops=tuple(map(change, item.ops)))
        trained = MARK in item.name and item.name.endswith((".linear_in", ".linear_out"))
        if trained or any(tensor.storage in reached for tensor in item.reads):
            reached.update(tensor.storage for tensor in item.writes)
            return item
        return item._replace(saves=(), backward=())

    yield from changed(module, change)


def uncounted(module: Module[Tensor]) -> Module[Tensor]:
    """The module with products that are no part of the model's FLOPs, as Megatron counts them."""

    def change(item: Item) -> Item:
        assert isinstance(item, Op)
        return item._replace(
            work=tuple(one._replace(counted=False) if isinstance(one, Gemm) else one for one in item.work)
        )

    return changed(module, change)


def inputs(c: Context, tower: Tower) -> Iterator[Tensor]:
    """What of images and sound is there while a microbatch runs forward: pixels or spectra in fp32, rows for the first decoder layers."""
    sizes = tower.vit or tower.hf
    assert sizes is not None
    v = seen(c, sizes, tower.given(c.training))
    if tower.hf is not None and (sound := tower.hf.sound) is not None:
        frames = Dim("frames", chunks(v, tower.hf, sound) * sound.frames)
        yield v.new("batch.input_features", v.batch, Dim("num_mel_bins", sound.bins), frames, dtype="fp32")
        return
    yield v.new("batch.pixel_values", v.seq, v.batch, Dim("channels*frames*height*width", sizes.patch), dtype="fp32")
    tokens, width = Dim("image_tokens", v.seq.local // sizes.merge), Dim("out_hidden_size", sizes.out)
    for at in sizes.deepstack:
        yield v.new(f"deepstack.{at}.output", tokens, v.batch, width)


def chunks(v: Context, tower: HfTower, sound: Sound) -> int:
    """Stretches of sound that the convolutions read one by one, the last one padded."""
    return -(-(v.seq.local // tower.merge) // sound.tokens)
