"""Towers from their configs: every parameter, in the shapes of the classes that Megatron-Bridge makes of them.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/` (`qwen_vl/modelling_qwen3_vl/vision_model.py`,
`qwen_vl/modeling_qwen25_vl.py`, `ministral3/modeling_ministral3.py`, `gemma_vl/modeling_gemma3_vl.py`,
`gemma_vl/modeling_gemma4_vl.py`, `glm_vl/modeling_glm_45v.py`, `kimi_vl/modeling_kimi_k25_vl.py`, `qwen_omni/`, `qwen3_asr/`,
`nemotron_vl/`, `nemotron_omni/`); Megatron-LM `megatron/core/models/vision/radio.py`;
huggingface/transformers `src/transformers/models/` (`qwen2_5_vl`, `pixtral`, `mistral3`, `siglip`, `gemma4`, `glm4v_moe`, `kimi_k25`,
`qwen2_5_omni`, `qwen3_omni_moe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isqrt, prod
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...job.tower import SEEN, UNNAMED, Block, Eye, HfTower, Radio, Sound, Tower, Vit, Weight, half
from .fields import Fields
from .unread import Nested, irrelevant, named

MOST_LAYERS = 1000
"""Layers of a tower."""
Reader = Callable[[Fields, Fields, int], Tower]
"""A tower from its fields, those beside it, and the width of the language model."""


def linear(name: str, out: int, inp: int, *, bias: bool = True, split: int | None = None) -> Iterator[Weight]:
    """A matrix and its bias; `split` is its dimension that tensor-parallel ranks share, of which the bias is the first."""
    yield Weight(f"{name}.weight", (out, inp), split)
    if bias:
        yield Weight(f"{name}.bias", (out,), 0 if split == 0 else None)


def norm(name: str, width: int, *, bias: bool = True) -> Iterator[Weight]:
    """The weight of a norm, and its bias where it has one."""
    yield Weight(f"{name}.weight", (width,))
    if bias:
        yield Weight(f"{name}.bias", (width,))


def convolution(name: str, out: int, *shape: int, bias: bool = True) -> Iterator[Weight]:
    """A convolution."""
    yield Weight(f"{name}.weight", (out, *shape))
    if bias:
        yield Weight(f"{name}.bias", (out,))


def _block(name: str, copies: int, *parts: Iterator[Weight], projection: bool = False) -> Block:
    return Block(name, copies, tuple(weight for part in parts for weight in part), projection)


def _tower(*blocks: Block, vit: Vit | None = None, hf: HfTower | None = None, eye: Eye | None = None) -> Tower:
    return Tower(SEEN, tuple(block for block in blocks if block.copies), vit, hf, eye)


def _eye(v: Fields, merge: int, *, up: bool = False) -> Eye:
    """Square patches, of which merge become one token."""
    return Eye(v.count("patch_size") * isqrt(merge), up)


def _heads(v: Fields, hidden: int, name: str) -> int:
    """Attention heads, which divide the width."""
    heads = v.count(name)
    if hidden % heads:
        raise ConfigError(f"hidden_size={hidden} of the tower in config.json is not divisible by {name}={heads}")
    return heads


def _patches(v: Fields) -> tuple[int, ...]:
    """Channels, frames, height and width of a patch of images and videos."""
    patch = v.count("patch_size")
    return v.count("in_channels", "in_chans", default=3), v.count("temporal_patch_size", default=2), patch, patch


def _same_width(v: Fields, hidden: int) -> int:
    out = v.count("out_hidden_size")
    if out != hidden:
        raise ConfigError(f"out_hidden_size={out} in config.json is not the language model's hidden_size={hidden}")
    return out


def _layers(h: int, f: int, depth: int) -> Block:
    """Megatron's own layers of a width and an MLP's, split over tensor-parallel ranks."""
    return _block(
        "decoder.layers",
        depth,
        linear("self_attention.linear_proj", h, h, split=1),
        norm("self_attention.linear_qkv.layer_norm", h),
        linear("self_attention.linear_qkv", 3 * h, h, split=0),
        norm("mlp.linear_fc1.layer_norm", h),
        linear("mlp.linear_fc1", f, h, split=0),
        linear("mlp.linear_fc2", h, f, split=1),
    )


def qwen3_vl(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen3-VL and Qwen3.5: Megatron's own layers, split over tensor-parallel ranks; without sequence parallelism."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth", most=MOST_LAYERS)
    heads, merge, out = _heads(v, h, "num_heads"), v.count("spatial_merge_size", default=2) ** 2, _same_width(v, hidden)
    deep = v.wholes("deepstack_visual_indexes")
    return _tower(
        _block("patch_embed", 1, convolution("proj", h, *_patches(v))),
        _block("pos_embed", 1, iter([Weight("weight", (v.count("num_position_embeddings"), h))])),
        _layers(h, f, depth),
        _block("decoder.deepstack_merger_list", len(deep), *_merger(merge * h, merge * h, out), projection=True),
        _block("merger", 1, *_merger(h, merge * h, out), projection=True),
        vit=Vit(h, f, heads, depth, prod(_patches(v)), merge, out, tuple(sorted(deep))),
        eye=_eye(v, merge),
    )  # fmt: skip


RADIO = Vit(hidden=1280, ffn=5120, heads=16, depth=32, patch=3 * 16 * 16, merge=4, out=0)
"""RADIO ViT-H as Megatron-Bridge builds it whatever config.json says (`nemotron_vl/nemotron_vl_provider.py`, provide)."""
TILE, POSITIONS = 32 * 32, 128 * 128
"""Patches of a tile of 512 x 512 pixels, and of the largest image (Megatron-LM `models/multimodal/llava_model.py`)."""


def nemotron_vl(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Nemotron Nano VL: tiles with 16 class tokens (use_vision_backbone_fp8_arch), positions sampled anew in training."""
    return _radio(v, Radio(classes=16, tile=TILE, positions=POSITIONS, ffn=20480, sampled=True), hidden)


def nemotron_omni(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Nemotron Omni: 10 class tokens, positions scaled to the image; a separate embedder of pairs of video frames where it has one
    (`nemotron_omni/nemotron_omni_bridge.py`, provider_bridge)."""
    ffn = outer.count("projector_hidden_size", default=20480)
    frames = (
        v.count("video_temporal_patch_size", default=2) if v.switch("separate_video_embedder", default=False) else 1
    )
    return _radio(v, Radio(classes=10, tile=TILE, positions=POSITIONS, ffn=ffn, sampled=False), hidden, frames)


def _radio(v: Fields, radio: Radio, hidden: int, frames: int = 1) -> Tower:
    """RADIO and its projector: Megatron's own layers, split over tensor-parallel ranks; without sequence parallelism."""
    v.raw(*v.values)
    h, f, patch, wide = RADIO.hidden, RADIO.ffn, RADIO.patch, RADIO.hidden * RADIO.merge
    return _tower(
        _block(
            "radio", 1, iter([Weight("class_token", (radio.classes, h)), Weight("position_embeddings", (1, radio.positions, h))]),
            linear("embedder", h, patch, bias=False, split=0),
            linear("video_embedder", h, frames * patch, bias=False, split=0) if frames > 1 else iter(()),
        ),
        _layers(h, f, RADIO.depth),
        _block(
            "vision_projection.encoder", 1, norm("linear_fc1.layer_norm", wide, bias=False),
            linear("linear_fc1", radio.ffn, wide, bias=False, split=0), linear("linear_fc2", hidden, radio.ffn, bias=False, split=1),
            projection=True,
        ),
        vit=RADIO._replace(out=hidden, radio=radio),
    )  # fmt: skip


def _merger(normed: int, width: int, out: int) -> tuple[Iterator[Weight], ...]:
    return (
        norm("patch_norm", normed),
        linear("linear_fc1", width, width, split=0),
        linear("linear_fc2", out, width, split=1),
    )


def qwen25_vl(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen2.5-VL: the class of huggingface/transformers, whole on every tensor-parallel rank."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth", most=MOST_LAYERS)
    merge, out = v.count("spatial_merge_size", default=2) ** 2, _same_width(v, hidden)
    merged, heads = merge * h, _heads(v, h, "num_heads")
    v.raw("window_size", "fullatt_block_indexes", "spatial_patch_size")
    return _tower(
        _block("patch_embed", 1, convolution("proj", h, *_patches(v), bias=False)),
        _block(
            "blocks", depth, norm("norm1", h, bias=False), norm("norm2", h, bias=False), linear("attn.qkv", 3 * h, h),
            linear("attn.proj", h, h), linear("mlp.gate_proj", f, h), linear("mlp.up_proj", f, h), linear("mlp.down_proj", h, f),
        ),
        _block(
            "merger", 1, norm("ln_q", h, bias=False), linear("mlp.0", merged, merged), linear("mlp.2", out, merged),
            projection=True,
        ),
        hf=HfTower("qwen2_5_vl", h, f, heads, depth, prod(_patches(v)), merge, out),
        eye=_eye(v, merge),
    )  # fmt: skip


def pixtral(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Mistral 3, Ministral 3: Pixtral's tower and a projector that merges patches, whole on every tensor-parallel rank."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers", most=MOST_LAYERS)
    merge, patch = outer.count("spatial_merge_size", default=2) ** 2, v.count("patch_size")
    bias = outer.switch("multimodal_projector_bias", default=False)
    layers = outer.raw("vision_feature_layer")
    taken = len(layers) if isinstance(layers, list) else 1
    heads = _heads(v, h, "num_attention_heads")
    v.raw("head_dim", "image_size", "vocab_size")
    channels = v.count("num_channels", default=3)
    attention = (linear(f"attention.{name}_proj", h, h, bias=False) for name in "kvqo")
    return _tower(
        _block(
            "vision_tower", 1, convolution("patch_conv", h, channels, patch, patch, bias=False),
            norm("ln_pre", h, bias=False),
        ),
        _block(
            "vision_tower.transformer.layers", depth, norm("attention_norm", h, bias=False),
            linear("feed_forward.gate_proj", f, h, bias=False), linear("feed_forward.up_proj", f, h, bias=False),
            linear("feed_forward.down_proj", h, f, bias=False), *attention, norm("ffn_norm", h, bias=False),
        ),
        _block(
            "multi_modal_projector", 1, norm("norm", h, bias=False),
            linear("patch_merger.merging_layer", h, merge * h, bias=False), linear("linear_1", hidden, taken * h, bias=bias),
            linear("linear_2", hidden, hidden, bias=bias), projection=True,
        ),
        hf=HfTower("pixtral", h, f, heads, depth, channels * patch * patch, merge, hidden) if taken == 1 else None,
        eye=_eye(v, merge, up=True),
    )  # fmt: skip


def gemma3(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Gemma 3: SigLIP, whole on every tensor-parallel rank, and a projection that is split over them."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers", most=MOST_LAYERS)
    patch, channels = v.count("patch_size"), v.count("num_channels", default=3)
    side = v.count("image_size") // patch
    heads, tokens = _heads(v, h, "num_attention_heads"), outer.count("mm_tokens_per_image", default=256)
    v.raw("vision_use_head")
    attention = (linear(f"self_attn.{name}_proj", h, h) for name in ("k", "v", "q", "out"))
    return _tower(
        _block(
            "vision_tower.embeddings", 1, convolution("patch_embedding", h, channels, patch, patch),
            iter([Weight("position_embedding.weight", (side * side, h))]),
        ),
        _block(
            "vision_tower.encoder.layers", depth, norm("layer_norm1", h), *attention, norm("layer_norm2", h),
            linear("mlp.fc1", f, h), linear("mlp.fc2", h, f),
        ),
        _block("vision_tower", 1, norm("post_layernorm", h)),
        _block(
            "multi_modal_projector", 1, norm("mm_soft_embed_norm", h, bias=False),
            linear("proj", hidden, h, bias=False, split=0), projection=True,
        ),
        hf=HfTower("siglip", h, f, heads, depth, channels * patch * patch, side * side // tokens, hidden, image=tokens),
        eye=Eye(each=tokens),
    )  # fmt: skip


def gemma4(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Gemma 4: the class of huggingface/transformers and its embedder, whole on every tensor-parallel rank."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers", most=MOST_LAYERS)
    heads, d, patch = v.count("num_attention_heads"), v.count("head_dim"), v.count("patch_size")
    if v.count("num_key_value_heads") != heads or heads * d != h:
        raise ConfigError(f"{heads} heads of {d}, each with keys and values, are not hidden_size={h}")
    pool, positions = v.count("pooling_kernel_size", default=3), v.count("position_embedding_size", default=10240)
    clipped, image = (
        v.switch("use_clipped_linears", default=False),
        outer.count("vision_soft_tokens_per_image", default=280),
    )
    v.raw("standardize")
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return _tower(
        _block(
            "vision_tower.patch_embedder", 1, linear("input_proj", h, 3 * patch * patch, bias=False),
            iter([Weight("position_embedding_table", (2, positions, h))]),
        ),
        _block(
            "vision_tower.encoder.layers", depth, *(linear(f"self_attn.{name}_proj", h, h, bias=False) for name in "qkvo"),
            *(norm(f"self_attn.{name}_norm", d, bias=False) for name in "qk"), linear("mlp.gate_proj", f, h, bias=False),
            linear("mlp.up_proj", f, h, bias=False), linear("mlp.down_proj", h, f, bias=False),
            *(norm(name, h, bias=False) for name in norms),
        ),
        _block("embed_vision", 1, linear("embedding_projection", hidden, h, bias=False), projection=True),
        hf=HfTower("gemma4", h, f, heads, depth, 3 * patch * patch, pool * pool, hidden, positions, image=image, clipped=clipped),
        eye=Eye(each=image),
    )  # fmt: skip


def glm4v(v: Fields, outer: Fields, hidden: int) -> Tower:
    """GLM-4.5V: the class of huggingface/transformers, whole on every tensor-parallel rank."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth", most=MOST_LAYERS)
    merge, out, bias = (
        v.count("spatial_merge_size", default=2),
        _same_width(v, hidden),
        v.switch("attention_bias", default=False),
    )
    side, heads = v.count("image_size") // v.count("patch_size"), _heads(v, h, "num_heads")
    return _tower(
        _block("embeddings", 1, iter([Weight("position_embedding.weight", (side * side, h))])),
        _block("patch_embed", 1, convolution("proj", h, *_patches(v))),
        _block(
            "blocks", depth, norm("norm1", h, bias=False), norm("norm2", h, bias=False),
            linear("attn.qkv", 3 * h, h, bias=bias), linear("attn.proj", h, h, bias=False),
            linear("mlp.gate_proj", out, h, bias=False), linear("mlp.up_proj", out, h, bias=False),
            linear("mlp.down_proj", h, out, bias=False),
        ),
        _block(
            "merger", 1, linear("proj", out, out, bias=False), norm("post_projection_norm", out),
            linear("gate_proj", f, out, bias=False), linear("up_proj", f, out, bias=False),
            linear("down_proj", out, f, bias=False), projection=True,
        ),
        _block(
            "post", 1, norm("conv_layernorm", h, bias=False), convolution("downsample", out, h, merge, merge),
            norm("layernorm", h, bias=False),
        ),
        hf=HfTower("glm4v", h, out, heads, depth, prod(_patches(v)), merge * merge, out, side * side, f),
        eye=_eye(v, merge * merge),
    )  # fmt: skip


def moonvit(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Kimi-K2.5: MoonViT and its projector, the code of the checkpoint, whole on every tensor-parallel rank. Keys may begin with vt_."""
    h, f = v.count("vt_hidden_size", "hidden_size"), v.count("vt_intermediate_size", "intermediate_size")
    depth = v.count("vt_num_hidden_layers", "num_hidden_layers", most=MOST_LAYERS)
    heads = _heads(v, h, v.named("vt_num_attention_heads", "num_attention_heads"))
    patch, merge = v.count("patch_size"), prod(v.wholes_of("merge_kernel_size", default=(2, 2)))
    rows, columns = (v.count(f"init_pos_emb_{side}", default=64) for side in ("height", "width"))
    v.raw("init_pos_emb_time", "mm_hidden_size", "text_hidden_size", "projector_ln_eps")
    v.implied(
        merge_type="sd2_tpool", mm_projector_type="patchmerger", pos_emb_type="divided_fixed", projector_hidden_act="gelu",
        video_attn_type="spatial_temporal",
    )  # fmt: skip
    return _tower(
        _block(
            "vision_tower.patch_embed", 1, convolution("proj", h, 3, patch, patch),
            iter([Weight("pos_emb.weight", (rows, columns, h))]),
        ),
        _block(
            "vision_tower.encoder.blocks", depth, norm("norm0", h), norm("norm1", h), linear("mlp.fc0", f, h),
            linear("mlp.fc1", h, f), linear("wqkv", 3 * h, h), linear("wo", h, h),
        ),
        _block("vision_tower.encoder", 1, norm("final_layernorm", h)),
        _block("mm_projector", 1, norm("pre_norm", h), linear("proj.0", merge * h, merge * h), linear("proj.2", hidden, merge * h),
               projection=True),
        hf=HfTower("moonvit", h, f, heads, depth, 3 * patch * patch, merge, hidden),
        eye=_eye(v, merge, up=True),
    )  # fmt: skip


def omni25_vision(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen2.5-Omni: Qwen2.5-VL's tower with queries, keys and values apart."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth", most=MOST_LAYERS)
    merge, out = v.count("spatial_merge_size", default=2) ** 2, _same_width(v, hidden)
    merged, heads = merge * h, _heads(v, h, "num_heads")
    v.raw("window_size", "fullatt_block_indexes", "spatial_patch_size", "tokens_per_second", "embed_dim")
    attention = (linear(f"attn.{name}", h, h) for name in ("q", "k", "v", "proj"))
    return _tower(
        _block("patch_embed", 1, convolution("proj", h, *_patches(v), bias=False)),
        _block(
            "blocks", depth, norm("norm1", h, bias=False), norm("norm2", h, bias=False), *attention,
            linear("mlp.gate_proj", f, h), linear("mlp.up_proj", f, h), linear("mlp.down_proj", h, f),
        ),
        _block("merger", 1, norm("ln_q", h, bias=False), linear("mlp.0", merged, merged), linear("mlp.2", out, merged)),
        hf=HfTower("qwen2_5_omni", h, f, heads, depth, prod(_patches(v)), merge, out),
        eye=_eye(v, merge),
    )  # fmt: skip


def omni3_vision(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen3-Omni: the class of huggingface/transformers, not the tower that Megatron-Bridge gives to Qwen3-VL."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth", most=MOST_LAYERS)
    heads, merge, out = _heads(v, h, "num_heads"), v.count("spatial_merge_size", default=2) ** 2, _same_width(v, hidden)
    deep, merged = v.wholes("deepstack_visual_indexes"), merge * h
    v.raw("image_size")
    v.implied(apply_vit_abs_pos_embed=True)

    def merger(normed: int) -> tuple[Iterator[Weight], ...]:
        return norm("ln_q", normed), linear("mlp.0", merged, merged), linear("mlp.2", out, merged)

    return _tower(
        _block("merger_list", len(deep), *merger(merged)),
        _block("patch_embed", 1, convolution("proj", h, *_patches(v))),
        _block("pos_embed", 1, iter([Weight("weight", (v.count("num_position_embeddings"), h))])),
        _block(
            "blocks", depth, norm("norm1", h), norm("norm2", h), linear("attn.qkv", 3 * h, h), linear("attn.proj", h, h),
            linear("mlp.linear_fc1", f, h), linear("mlp.linear_fc2", h, f),
        ),
        _block("merger", 1, *merger(h)),
        hf=HfTower("qwen3_omni", h, f, heads, depth, prod(_patches(v)), merge, out, deepstack=tuple(sorted(deep))),
        eye=_eye(v, merge),
    )  # fmt: skip


STRIDE = 2
"""Of the convolutions that shorten sound."""


class Ear(NamedTuple):
    """Sizes that both classes of audio towers have: width, of the MLP, layers, heads, bins of a spectrum, frames of a stretch, output."""

    h: int
    f: int
    depth: int
    heads: int
    bins: int
    frames: int
    out: int


def _ear(v: Fields, hidden: int) -> Ear:
    h = v.count("d_model")
    dropped = [
        name for name in ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop") if v.raw(name)
    ]
    if dropped:
        raise ConfigError(f"{dropped[0]} of the audio tower in config.json must be 0")
    v.raw("encoder_layers", "num_hidden_layers", "max_source_positions", "activation_function")
    v.implied(scale_embedding=False)
    out = v.count("output_dim")
    if out != hidden:
        raise ConfigError(f"output_dim={out} in config.json is not the language model's hidden_size={hidden}")
    depth, heads = v.count("encoder_layers", most=MOST_LAYERS), _heads(v, h, "encoder_attention_heads")
    bins = v.count("num_mel_bins", default=128)
    return Ear(h, v.count("encoder_ffn_dim"), depth, heads, bins, 2 * v.count("n_window"), out)


def _whisper(a: Ear) -> Block:
    """Layers as Whisper has them, with a bias in each linear."""
    h, f = a.h, a.f
    return _block(
        "layers", a.depth, *(linear(f"self_attn.{name}_proj", h, h) for name in ("k", "v", "q", "out")),
        norm("self_attn_layer_norm", h), linear("fc1", f, h), linear("fc2", h, f), norm("final_layer_norm", h),
    )  # fmt: skip


def omni25_audio(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen2.5-Omni: two convolutions in time, layers whose keys have no bias, and a token of two of their rows."""
    a = _ear(v, hidden)
    layers = _whisper(a)
    layers = layers._replace(weights=tuple(one for one in layers.weights if one.name != "self_attn.k_proj.bias"))
    return _tower(
        _block("conv1", 1, convolution("conv1", a.h, a.bins, 3), convolution("conv2", a.h, a.h, 3)),
        _block("audio_bos_eos_token", 1, iter([Weight("weight", (2, a.out))])),
        layers,
        _block("ends", 1, norm("ln_post", a.h), linear("proj", a.out, a.h)),
        hf=HfTower(
            "qwen2_5_omni_audio", a.h, a.f, a.heads, a.depth, 0, STRIDE, a.out, image=half(a.frames) // STRIDE,
            sound=Sound(a.bins, a.frames, half(a.frames) // STRIDE, a.h),
        ),
    )  # fmt: skip


def omni3_audio(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen3-Omni, Qwen3-ASR: three convolutions in time and frequency before the layers, and two linears behind them."""
    a, channels = _ear(v, hidden), v.count("downsample_hidden_size")
    tokens, bins = half(half(half(a.frames))), half(half(half(a.bins)))
    window = v.count("n_window_infer") // a.frames * tokens
    v.raw("conv_chunksize")
    return _tower(
        _whisper(a),
        _block(
            "convolutions", 1, convolution("conv2d1", channels, 1, 3, 3), convolution("conv2d2", channels, channels, 3, 3),
            convolution("conv2d3", channels, channels, 3, 3), linear("conv_out", a.h, channels * bins, bias=False),
        ),
        _block("ends", 1, norm("ln_post", a.h), linear("proj1", a.h, a.h), linear("proj2", a.out, a.h)),
        hf=HfTower(
            "qwen3_omni_audio", a.h, a.f, a.heads, a.depth, 0, 1, a.out, image=window,
            sound=Sound(a.bins, a.frames, tokens, channels),
        ),
    )  # fmt: skip


def asr_audio(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Qwen3-ASR: Megatron-Bridge's own copy of that class, whose attention sees all of the sound at once
    (`qwen3_asr/hf_qwen3_asr/modeling_qwen3_asr.py`)."""
    tower = omni3_audio(v, outer, hidden)
    assert tower.hf is not None
    return tower._replace(hf=tower.hf._replace(kind="qwen3_asr_audio", image=0))


TAPS = 3 * 3
"""Of the convolutions that shorten Parakeet's sound."""


def parakeet(v: Fields, outer: Fields, hidden: int) -> Tower:
    """Nemotron Omni: Parakeet, a class of huggingface/transformers, and a projector split over tensor-parallel ranks. What it computes is
    not counted: Megatron-Bridge's recipes freeze it (`nemotron_omni/nemotron_omni_sound.py`, `nemotron_omni_provider.py`)."""
    h, f, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers", most=MOST_LAYERS)
    heads, bins, factor = _heads(v, h, "num_attention_heads"), v.count("num_mel_bins"), v.count("subsampling_factor")
    taps, ffn = v.count("conv_kernel_size", default=9), v.count("projection_hidden_size")
    bias, channels = v.switch("convolution_bias", default=False), 256
    halvings = factor.bit_length() - 1
    v.raw(*v.values)

    def once(name: str, out: int, *shape: int) -> Iterator[Weight]:
        return convolution(name, out, *shape, bias=bias)

    shortened = [
        one
        for at in range(1, halvings)
        for one in (
            *convolution(f"layers.{3 * at - 1}", channels, 1, TAPS),
            *convolution(f"layers.{3 * at}", channels, channels, 1),
        )
    ]
    attention = (linear(f"self_attn.{which}_proj", h, h, bias=bias) for which in "qkvo")
    forward = [
        one
        for name in ("feed_forward1", "feed_forward2")
        for one in (*linear(f"{name}.linear1", f, h, bias=bias), *linear(f"{name}.linear2", h, f, bias=bias))
    ]
    norms = ("feed_forward1", "self_att", "conv", "feed_forward2", "out")
    return _tower(
        _block(
            "subsampling", 1, convolution("layers.0", channels, 1, TAPS), iter(shortened),
            linear("linear", h, channels * (bins // factor)),
        ),
        _block(
            "layers", depth, iter(forward), *attention, linear("self_attn.relative_k_proj", h, h, bias=False),
            iter([Weight(f"self_attn.{name}", (heads, h // heads)) for name in ("bias_u", "bias_v")]),
            once("conv.pointwise_conv1", 2 * h, h, 1), once("conv.depthwise_conv", h, 1, taps), norm("conv.norm", h),
            once("conv.pointwise_conv2", h, h, 1), *(norm(f"norm_{name}", h) for name in norms),
        ),
        _block(
            "sound_projection.encoder", 1, norm("linear_fc1.layer_norm", h, bias=False),
            linear("linear_fc1", ffn, h, bias=False, split=0), linear("linear_fc2", hidden, ffn, bias=False, split=1), projection=True,
        ),
    )  # fmt: skip


VISION, AUDIO, SOUND = "vision_config", "audio_config", "sound_config"
READERS: dict[str, dict[str, Reader]] = {
    "qwen3_vl": {VISION: qwen3_vl},
    "qwen3_vl_moe": {VISION: qwen3_vl},
    "qwen3_5": {VISION: qwen3_vl},
    "qwen3_5_moe": {VISION: qwen3_vl},
    "qwen2_5_vl": {VISION: qwen25_vl},
    "mistral3": {VISION: pixtral},
    "gemma3": {VISION: gemma3},
    "gemma4": {VISION: gemma4},
    "glm4v_moe": {VISION: glm4v},
    "kimi_k25": {VISION: moonvit},
    "qwen2_5_omni": {VISION: omni25_vision, AUDIO: omni25_audio},
    "qwen3_omni_moe": {VISION: omni3_vision, AUDIO: omni3_audio},
    "qwen3_asr": {AUDIO: asr_audio},
    "NemotronH_Nano_VL_V2": {VISION: nemotron_vl},
    "NemotronH_Nano_Omni_Reasoning_V3": {VISION: nemotron_omni, SOUND: parakeet},
}
"""Towers that are counted, by the model_type of the whole model and the key of the tower."""


ACTIVATIONS = {"hidden_act", "hidden_activation"}
"""Keys of functions without parameters."""


UNEXAMINED = frozenset({"exaone4_5", "step3p7", "minimax_m3_vl", "qwen2_audio"})
"""Models that Megatron-Bridge trains with towers whose classes were not examined."""


def towers_of(nested: Nested, config: Mapping[str, Any], text: Fields) -> tuple[tuple[Tower, ...], list[str]]:
    """The towers of a config, counted where their class is known, and a sentence for each key of one that is not."""
    said_kind = config.get("model_type")
    kind = said_kind if isinstance(said_kind, str) else ""
    readers = READERS.get(kind, {})
    towers: list[Tower] = []
    said: list[str] = []
    for key, name in nested.towers.items():
        above, _, last = key.rpartition(".")
        outer = config[above] if above else config
        reader = readers.get(last)
        if reader is None:
            towers.append(Tower(name, unexamined=kind if kind in UNEXAMINED else ""))
            said.append(f"{key} is not counted" + ("" if readers else ": only the language model is"))
            continue
        try:
            towers.append(_read(reader, last, outer, text)._replace(name=name))
        except ConfigError as error:
            towers.append(Tower(name))
            said.append(f"{key} is not counted, only the language model is: in it {error}")
    if not towers and nested.apart:
        towers.append(Tower(UNNAMED))
    return tuple(dict.fromkeys(towers)), said


def _read(reader: Reader, key: str, outer: Mapping[str, Any], text: Fields) -> Tower:
    """A tower that is counted. Raises ConfigError where a key is missing, of another type, or read by nothing."""
    own = outer[key]
    if not isinstance(own, Mapping) or not all(isinstance(name, str) for name in own):
        raise ConfigError("the keys must be words of an object")
    v = Fields(dict(own))
    found = reader(v, Fields(dict(outer)), text.count("hidden_size"))
    known = v.read | ACTIVATIONS
    left = [
        name
        for name, value in v.values.items()
        if name not in known and (name in v.contradicted or not irrelevant(name, value))
    ]
    if left:
        raise ConfigError(f"stand keys that nothing here reads: {named(left, v)}")
    return found
