"""Dense decoders: Llama and its relatives, Qwen, Nemotron, GPT-2, Falcon.

OLMoE and MiniMax-M2: norms over whole query and key projections.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/olmoe/`, `minimax_m2/`.

Llama-Nemotron (DeciLM): layers of their own width, without attention or MLP, or with one linear in their place.

Sources: Megatron-LM `megatron/core/transformer/heterogeneous/heterogeneous_config.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/llama_nemotron/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .fields import Converted, Fields, Provider
from .moe import DENSE_WIDTH, routed


def llama(f: Fields) -> Converted:
    """Llama, Mistral, Ministral, Phi-3, Granite, SmolLM3, ERNIE-4.5: GQA and a gated MLP."""
    f.implied(use_rmsnorm=True)
    bias = f.switch("attention_bias", "use_bias", default=False)
    return Converted({"add_qkv_bias": bias}, warnings=_output_bias(f, bias=bias))


def _output_bias(f: Fields, *, bias: bool) -> tuple[str, ...]:
    """What is said of a bias of the attention output, which Megatron-Core has with those of the MLP alone."""
    counted = f.switch("mlp_bias", default=False)
    said = "the bias of the attention output, which attention_bias means too, is not counted"
    return (said,) if bias and not counted else ()


def plain_llama(f: Fields) -> Converted:
    """An unknown family that looks like Llama."""
    return llama(f)


def gemma(f: Fields) -> Converted:
    """Gemma: Llama's block with a gated GELU; a head dim of its own."""
    note = "Megatron-Core never fuses Gemma's fast_gelu with the bias: bias_activation_fusion false is what runs"
    return Converted(llama(f).settings, warnings=(note,))


def nemotron(f: Fields) -> Converted:
    """Nemotron-4, Minitron: LayerNorm with weight (zero-centred) and bias, an ungated squared ReLU, no other biases.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/nemotron/nemotron_bridge.py`.
    """
    return Converted(
        {
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "add_qkv_bias": f.switch("attention_bias", default=False),
            "rotary_percent": f.number("partial_rotary_factor", default=0.5) or 0.5,
        }
    )


def qwen2(f: Fields) -> Converted:
    """Qwen2, Qwen2.5 and their VL models' text, MiMo: bias on query, key and value is implied by the type."""
    f.implied(attention_bias=True, qkv_bias=True)
    return Converted({"add_qkv_bias": True})


def qwen3(f: Fields) -> Converted:
    """Qwen3 and Qwen3-VL's text: norms per head on query and key are implied by the type."""
    f.implied(use_qk_norm=True)
    bias = f.switch("attention_bias", default=False)
    return Converted({"qk_layernorm": True, "add_qkv_bias": bias}, warnings=_output_bias(f, bias=bias))


def gpt2(f: Fields) -> Converted:
    """GPT-2: learned positions, LayerNorm, biases everywhere, ungated MLP of 4 times the width."""
    hidden = f.whole("n_embd", "hidden_size")
    return Converted(
        {
            "num_query_groups": f.whole("n_head", "num_attention_heads"),
            "ffn_hidden_size": f.optional_whole("n_inner") or 4 * hidden,
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "add_bias_linear": True,
            "add_qkv_bias": True,
            "position_embedding_type": "learned_absolute",
            "max_position_embeddings": f.whole("n_positions", "n_ctx", default=1024),
        }
    )


NEMO_LAYER = (
    "attention and MLP side by side are modelled as NeMo's Falcon layer, which is built from Megatron-Core's modules"
)


def cohere(f: Fields) -> Converted:
    """Command-R: attention and MLP side by side behind one LayerNorm, which has no bias as Megatron-Core's has."""
    hidden, layers = f.count("hidden_size"), f.count("num_hidden_layers")
    heads = f.count("num_attention_heads")
    groups, d = f.whole("num_key_value_heads", default=heads), f.whole("head_dim", default=hidden // heads)
    f.implied(use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True)
    extra, refusal = [("biases that LayerNorm has in Megatron-Core", -hidden * (layers + 1))], ""
    if f.switch("use_qk_norm", default=False):
        extra.append(("query and key norms of every head", (heads + groups) * d * layers))
        refusal = "norms of query and key with weights of every head (Command-R+) are not in Megatron-Core's attention"
    settings = {
        "add_qkv_bias": f.switch("attention_bias", default=False),
        "normalization": "LayerNorm",
        "parallel_attention": True,
    }
    said = "the scale of the logits (logit_scale) is not modelled: multiplied out of place they are there twice for a moment"
    return Converted(settings, tuple(extra), refusal, (NEMO_LAYER, said))


def falcon(f: Fields) -> Converted:
    """Falcon: attention and MLP side by side, behind one norm or a norm each."""
    hidden = f.whole("hidden_size")
    f.always(parallel_attn=True)
    f.implied(activation="gelu")
    new = f.switch("new_decoder_architecture", default=False)
    groups = (
        f.whole("num_kv_heads")
        if new
        else 1
        if f.switch("multi_query", default=True)
        else f.whole("num_attention_heads")
    )
    return Converted(
        {
            "num_query_groups": groups,
            "ffn_hidden_size": f.whole("ffn_hidden_size", default=4 * hidden),
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "activation_func": "gelu",
            "parallel_attention": True,
            "num_ln_in_parallel_attn": f.whole("num_ln_in_parallel_attn", default=2 if new else 1),
        },
        warnings=(NEMO_LAYER,),
    )


WHAT = "norms over whole query and key projections"


def olmoe(f: Fields) -> Converted:
    """OLMoE: a norm as wide as all query heads, for the key too, which no tensor-parallel rank could hold a part of."""
    settings = {
        **routed(f, DENSE_WIDTH, aux="seq_aux_loss"),
        "qk_layernorm": True,
        "qk_layernorm_scope": "projection",
        "moe_router_pre_softmax": True,
        "moe_router_dtype": "fp32",
    }
    return Converted(settings, provider=Provider("OlMoEModelProvider", WHAT))


def minimax_m2(f: Fields) -> Converted:
    """MiniMax-M2: eager norms in fp32, each rank with its part. Megatron-Bridge builds no MTP layers of it."""
    f.always(use_qk_norm=True, qk_norm_type="per_layer")
    f.implied(**{name: f.values.get(name) and 1 for name in ("use_mtp", "mtp_transformer_layers")})  # one or none
    f.implied(attn_type_list=[1] * f.whole("num_hidden_layers"))
    width, d = f.optional_whole("rotary_dim"), f.count("head_dim", default=128)
    settings = {
        **routed(f, DENSE_WIDTH),
        "qk_layernorm": True,
        "qk_layernorm_scope": "sharded_projection",
        "mtp_num_layers": None,
        **({"rotary_percent": min(width / d, 1.0)} if width else {}),
    }
    dropped = f.whole("num_mtp_modules", default=0)
    note = ("MTP modules of MiniMax-M2 are not built by Megatron-Bridge, nor counted",) if dropped else ()
    return Converted(settings, provider=Provider("minimax_m2_layer_spec", WHAT), warnings=note)


MULTIPLE = 256
"""Widths of MLPs are multiples of this."""


def nemotron_nas(f: Fields) -> Converted:
    """A variant for every different block of `block_configs`; Megatron-LM reads them too (heterogeneous-layers-config-path)."""
    hidden, layers, heads = f.count("hidden_size"), f.count("num_hidden_layers"), f.count("num_attention_heads")
    blocks = f.items("block_configs")
    if len(blocks) != layers or not all(isinstance(block, Mapping) for block in blocks):
        raise ConfigError("block_configs in config.json must be a list with an object for each layer")
    known: dict[str, dict[str, Any]] = {}
    names = []
    for block in blocks:
        one = Fields(block)
        parts = one.section("attention"), one.section("ffn" if one.has("ffn") else "mlp")
        mlp, width = _mlp(parts[1], hidden)
        attention, groups = _attention(parts[0], heads)
        names.append(f"{attention}_{mlp}")
        known[names[-1]] = {**groups, **width}
    return Converted(
        {
            "num_query_groups": f.optional_whole("num_key_value_heads") or _first(known, "num_query_groups") or heads,
            "ffn_hidden_size": f.optional_whole("intermediate_size") or _first(known, "ffn_hidden_size") or 4 * hidden,
            "variants": tuple((name, tuple(own.items())) for name, own in known.items()),
            "layer_variants": tuple(names),
            "bias_activation_fusion": True,
            "apply_rope_fusion": True,
        }
    )


def _first(known: dict[str, dict[str, Any]], name: str) -> int | None:
    """The first value that a block has of a setting."""
    return next((own[name] for own in known.values() if name in own), None)


def _block(part: Fields, where: str, usual: str, setting: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the setting of what stands in a part's place, or None for the part itself."""
    nothing, linear = part.switch("no_op", default=False), part.switch("replace_with_linear", default=False)
    if nothing and linear:
        raise ConfigError(f"{where} in block_configs of config.json has both no_op and replace_with_linear")
    if nothing:
        return f"no_{usual}", {setting: "no_op"}
    return (f"linear_{usual}", {setting: "linear"}) if linear else None


def _attention(part: Fields, heads: int) -> tuple[str, dict[str, Any]]:
    if found := _block(part, "attention", "attention", "attention_block"):
        return found
    groups = part.optional_whole("num_query_groups")
    if groups is None:
        each = part.count("n_heads_in_group", most=heads)
        if heads % each:
            raise ConfigError(f"num_attention_heads={heads} in config.json is not divisible by n_heads_in_group={each}")
        groups = heads // each
    return f"groups_{groups}", {"num_query_groups": groups}


def _mlp(part: Fields, hidden: int) -> tuple[str, dict[str, Any]]:
    if found := _block(part, "ffn", "mlp", "mlp_block"):
        return found
    width = part.optional_whole("ffn_hidden_size", "intermediate_size")
    if width is None:
        times = part.number("ffn_mult", default=0)
        width = -(-int(2 * times * hidden / 3) // MULTIPLE) * MULTIPLE
    if width < 1:
        raise ConfigError(
            "ffn in block_configs of config.json has no width: give ffn_mult, no_op or replace_with_linear"
        )
    return f"ffn_{width}", {"ffn_hidden_size": width}
