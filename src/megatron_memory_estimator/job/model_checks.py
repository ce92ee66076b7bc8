"""What a model's settings must keep among themselves, and the models that layers of other shapes are made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..wording import shown
from .kimi import of_bank
from .layer_kinds import MOST_EXPERTS, MOST_LAYERS, MOST_MTP_LAYERS, has_heads
from .settings import checked, nearest
from .variants import BASE, as_object

if TYPE_CHECKING:
    from .model import Model


def check(model: Model) -> None:
    """Raise ConfigError for numbers that no model has, and for settings that exclude each other."""
    for name in ("num_layers", "hidden_size"):
        if getattr(model, name) < 1:
            raise ConfigError(f"{name}={getattr(model, name)} must be at least 1")
    for name, most in (
        ("num_layers", MOST_LAYERS),
        ("mtp_num_layers", MOST_MTP_LAYERS),
        ("num_moe_experts", MOST_EXPERTS),
    ):
        if (getattr(model, name) or 0) > most:
            raise ConfigError(f"{name}={getattr(model, name)} is more than {most}, the most that is accepted")
    for name in ("attention_dropout", "hidden_dropout"):
        if not 0 <= getattr(model, name) < 1:
            raise ConfigError(f"{name}={getattr(model, name)} must be at least 0 and less than 1")
    if not 0 < model.rotary_percent <= 1:
        raise ConfigError(f"rotary_percent={model.rotary_percent} must be more than 0 and at most 1")
    softmax = model.hybrid_layer_pattern is None or "*" in model.hybrid_layer_pattern
    if has_heads(model.hybrid_layer_pattern) and model.num_attention_heads < 1:
        raise ConfigError(f"num_attention_heads={model.num_attention_heads} must be at least 1")
    if (
        softmax
        and model.kv_channels is None
        and not model.multi_latent_attention
        and model.hidden_size % model.num_attention_heads
    ):
        raise ConfigError(
            f"hidden_size={model.hidden_size} is not divisible by num_attention_heads={model.num_attention_heads}; "
            "set kv_channels"
        )
    for name in _AT_LEAST_ONE:
        value = getattr(model, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if model.mtp_num_layers is not None and model.mtp_num_layers < 0:
        raise ConfigError(f"mtp_num_layers={model.mtp_num_layers} must not be negative")
    if model.num_moe_experts and model.moe_router_topk > model.num_moe_experts:
        raise ConfigError(
            f"moe_router_topk={model.moe_router_topk} is more than num_moe_experts={model.num_moe_experts}"
        )
    if model.moe_n_hash_layers > model.num_layers:
        raise ConfigError(f"moe_n_hash_layers={model.moe_n_hash_layers} is more than num_layers={model.num_layers}")
    if model.experimental_attention_variant == "dsv4_hybrid" and model.qk_pos_emb_head_dim >= model.v_head_dim:
        raise ConfigError(
            f"qk_pos_emb_head_dim={model.qk_pos_emb_head_dim} is a part of each head: it must be less than v_head_dim={model.v_head_dim}"
        )
    if model.parallel_attention:
        _check_parallel(model)
    if model.falcon_h1:
        _excludes(
            model,
            "falcon_h1",
            *_OTHER_LAYERS,
            "parallel_attention",
            "mtp_num_layers",
            "enable_mhc_connections",
            "layer_variants",
        )
    if model.vocab_size is None and model.padded_vocab_size is None:
        raise ConfigError("vocab_size is missing; give it or padded_vocab_size")
    if model.gemma4_moe:
        _check_gemma4(model)
    if model.gemma4_dense:
        others = (
            "parallel_attention",
            "falcon_h1",
            "mtp_num_layers",
            "enable_mhc_connections",
            "add_bias_linear",
            "attn_res_block_size",
        )
        _excludes(model, "gemma4_dense", *_OTHER_LAYERS, *others, "fp32_residual_connection", "attention_output_gate")
    if (model.per_layer_embed_dim is None) != (model.per_layer_embed_vocab_size is None):
        raise ConfigError("per_layer_embed_dim and per_layer_embed_vocab_size belong together; give both")
    if model.attn_res_block_size:
        _check_kimi(model)
    elif model.experimental_attention_variant == "kda":
        raise ConfigError("experimental_attention_variant=kda needs attn_res_block_size (Kimi K3)")
    if model.qk_layernorm_scope != "head":
        _check_query_norms(model)
    if model.norm_placement != "pre":
        _check_norms(model)
    for name, usual in (("attention_block", "attention"), ("mlp_block", "mlp")):
        if getattr(model, name) != usual:
            _excludes(model, f"{name}={getattr(model, name)}", *_OTHER_LAYERS, "parallel_attention", "falcon_h1")
    _check_variants(model)
    model.kinds, model.mtp_kinds, model.mtp_kinds_behind  # noqa: B018  (a wrong layer pattern is refused here)


def _check_parallel(model: Model) -> None:
    _excludes(model, "parallel_attention", *_OTHER_LAYERS, "mtp_num_layers", "enable_mhc_connections")
    if model.num_ln_in_parallel_attn not in (1, 2):
        raise ConfigError(f"num_ln_in_parallel_attn={model.num_ln_in_parallel_attn} must be 1 or 2")


_AT_LEAST_ONE = (
    "num_query_groups", "kv_channels", "ffn_hidden_size", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by",
    "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
    "moe_router_num_groups", "moe_router_group_topk", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk",
    "dsa_indexer_topk_freq", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "mamba_chunk_size",
    "mhc_num_residual_streams", "original_max_position_embeddings", "sliding_window", "csa_window_size", "o_groups",
    "o_lora_rank", "value_channels", "attn_res_block_size", "per_layer_embed_dim", "per_layer_embed_vocab_size",
)  # fmt: skip
_OTHER_LAYERS = (
    "multi_latent_attention", "num_moe_experts", "experimental_attention_variant", "hybrid_layer_pattern",
)  # fmt: skip
"""Settings of layers that are not attention with query groups and a dense MLP."""


def _check_gemma4(model: Model) -> None:
    others = ("moe_latent_size", "moe_shared_expert_gate", "moe_n_hash_layers", "mtp_num_layers", "add_bias_linear")
    _excludes(model, "gemma4_moe", *others, "multi_latent_attention", "enable_mhc_connections", "hybrid_layer_pattern")
    if not model.moe_shared_expert_intermediate_size:
        raise ConfigError("gemma4_moe needs moe_shared_expert_intermediate_size, the width of the dense MLP")


def _check_kimi(model: Model) -> None:
    others = (
        "hybrid_layer_pattern",
        "parallel_attention",
        "falcon_h1",
        "gemma4_moe",
        "enable_mhc_connections",
        "mtp_num_layers",
    )
    more = ("layer_variants", "fp32_residual_connection", "add_bias_linear", "hidden_dropout", "moe_n_hash_layers")
    _excludes(model, "attn_res_block_size", *others, *more)
    needs = {
        "experimental_attention_variant kda": model.experimental_attention_variant == "kda",
        "multi_latent_attention": model.multi_latent_attention,
        "q_lora_rank": model.q_lora_rank is not None,
        "position_embedding_type none": model.position_embedding_type == "none",
        "moe_latent_size": model.moe_latent_size is not None or not model.num_moe_experts,
    }
    lacks = [name for name, there in needs.items() if not there]
    if lacks:
        raise ConfigError(f"attn_res_block_size (Kimi K3) needs {' and '.join(lacks)}")


def _check_norms(model: Model) -> None:
    """Norms behind a layer's linears exist beside attention with query groups and a dense MLP, without biases."""
    others = (
        "parallel_attention",
        "falcon_h1",
        "enable_mhc_connections",
        "fp32_residual_connection",
        "add_bias_linear",
    )
    layers = tuple(name for name in _OTHER_LAYERS if name != "num_moe_experts" or not model.gemma4_moe)
    _excludes(model, f"norm_placement={model.norm_placement}", *layers, *others)


def _check_query_norms(model: Model) -> None:
    """Norms over whole projections are RMSNorms of attention with query groups; OLMoE's is as wide for keys as for queries."""
    scope = f"qk_layernorm_scope={model.qk_layernorm_scope}"
    _excludes(model, scope, "multi_latent_attention", "experimental_attention_variant", "hybrid_layer_pattern")
    if model.normalization != "RMSNorm":
        raise ConfigError(f"{scope} needs normalization RMSNorm, not {model.normalization}")
    if model.qk_layernorm_scope == "projection" and model.groups != model.num_attention_heads:
        raise ConfigError(
            f"{scope} needs num_query_groups={model.groups} to be num_attention_heads={model.num_attention_heads}"
        )


def _excludes(model: Model, what: str, *others: str) -> None:
    given = [name for name in others if getattr(model, name)]
    if given:
        raise ConfigError(f"{what} excludes {' and '.join(given)}; turn one off")


def variant(model: Model, name: str) -> Model:
    """The model as the layers of a variant have it. Raises ConfigError for a name or a setting that there is not."""
    plain: dict[str, Any] = {
        "variants": (),
        "layer_variants": None,
        "mtp_layer_variant": None,
        "mtp_layer_variant_behind": None,
    }
    if name in ("", BASE):
        return model if model.layer_variants is None else dataclasses.replace(model, **plain)
    if model.attn_res_block_size and (of_layer := of_bank(name)) is not None:
        return dataclasses.replace(model, **plain, **of_layer)
    known = as_object(model.variants)
    if name not in known:
        raise ConfigError(f"variants has no {shown(name)}.{nearest(name, known)}")
    fields = {field.name: field for field in dataclasses.fields(model)}
    for key, value in known[name].items():
        if key not in fields:
            raise ConfigError(f'variants {name} has an unknown setting "{key}".{nearest(key, fields)}')
        if key in FIXED or (key == "num_moe_experts" and value not in (None, model.num_moe_experts)):
            raise ConfigError(f"variants {name} changes {key}, which all layers share; leave it out")
    own = {key: checked(fields[key], value) for key, value in known[name].items()}
    return dataclasses.replace(model, **plain, **own)


def _check_variants(model: Model) -> None:
    """Raise ConfigError for names of layers that are no variants, and where layers have no variants."""
    names = model.layer_variants
    of_mtp = [name for name in (model.mtp_layer_variant, model.mtp_layer_variant_behind) if name is not None]
    if names is None and not of_mtp:
        return
    if model.hybrid_layer_pattern is not None:
        raise ConfigError("hybrid_layer_pattern excludes layer_variants and mtp_layer_variant; leave them out")
    if names is not None and len(names) != model.num_layers:
        raise ConfigError(
            f"layer_variants has {len(names)} entries for num_layers={model.num_layers}; give one per layer"
        )
    for name in dict.fromkeys((*(names or ()), *(of_mtp or (BASE,)))):
        model.variant(name)


FIXED = frozenset(
    {
        "num_layers", "hidden_size", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by", "max_position_embeddings",
        "share_embeddings_and_output_weights", "fp32_residual_connection", "parallel_attention", "num_ln_in_parallel_attn",
        "falcon_h1",
        "moe_layer_freq", "linear_attention_freq", "moe_router_topk", "mtp_num_layers", "mtp_use_repeated_layer",
        "hybrid_layer_pattern", "enable_mhc_connections", "mhc_num_residual_streams", "variants", "layer_variants",
        "mtp_layer_variant", "mtp_layer_variant_behind", "foreign_layers", "attn_res_block_size", "gemma4_dense",
        "per_layer_embed_dim", "per_layer_embed_vocab_size",
    }
)  # fmt: skip
"""Settings of the whole model, which no layer changes."""
