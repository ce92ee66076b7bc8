"""Qwen3.8-Flash-Next: several residual streams that a gate mixes in the place of norms, attention to tokens that an indexer picks, and
tables of n-grams beside one layer.

Sources: huggingface/transformers 5.24 `models/qwen4_exp`; NVIDIA/Megatron-LM pull request 7553 (docs/models/qwen3.8_flash_next).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from .settings import setting
from .variants import marked
from .vendor import Vendor

_INTERNAL = {"help": "", "internal": True}
BESIDE = "ngrams"
"""The name of a layer that adds what its tables say of n-grams."""


@dataclass(frozen=True)
class FlashNextModel:
    """Settings of the architecture; they are the model's."""

    hc_lowrank: int | None = setting(None, "Qwen3.8-Flash-Next: rank of the gates that mix its streams", of="gated")
    indexer_n_heads: int = setting(4, "Qwen3.8-Flash-Next: query heads of the indexer", of="gated")
    indexer_head_dim: int = setting(128, "Qwen3.8-Flash-Next: head dim of the indexer", of="gated")
    indexer_compress_ratio: int = setting(4, "Qwen3.8-Flash-Next: tokens of a key of the indexer", of="gated")
    ple_layer_ids: tuple[int, ...] = setting(
        (), "Qwen3.8-Flash-Next: layers with tables of n-grams, from 1", kind="ints", of="gated"
    )
    ple_embed_dim: int = setting(2560, "Qwen3.8-Flash-Next: width of what the tables say of a token", of="gated")
    ple_conv_kernel_size: int = setting(4, "Qwen3.8-Flash-Next: taps of the convolution behind the tables", of="gated")
    ngram_table_rows: tuple[int, ...] = setting(
        (), "Qwen3.8-Flash-Next: rows of each table of n-grams", kind="ints", of="gated"
    )
    has_ngrams: bool = field(default=False, metadata=_INTERNAL)
    """Whether a layer has tables of n-grams: of a layer's own model."""


def layers(model: Any, linear: tuple[int, ...], routed: tuple[bool, ...]) -> tuple[str, ...]:
    """Gated DeltaNet or sparse attention, then experts; layers with tables of n-grams are a variant."""
    return tuple(
        marked(
            f"{'gated_gdn' if is_linear else 'gated_qsa'}+{VENDOR.experts}",
            BESIDE if at + 1 in model.ple_layer_ids else "",
        )
        for at, is_linear in enumerate(linear)
    )


def of_layer(name: str) -> dict[str, Any] | None:
    """What a layer with tables has of its own; None for another name."""
    return {"has_ngrams": True} if name == BESIDE else None


def check(model: Any) -> None:
    """Raise ConfigError for what the class cannot be built with, and for its tables in another model."""
    if not model.hc_lowrank:
        if model.ple_layer_ids or model.ngram_table_rows:
            raise ConfigError("ple_layer_ids and ngram_table_rows need hc_lowrank (Qwen3.8-Flash-Next)")
        return
    needs = {
        "experimental_attention_variant gdn": model.experimental_attention_variant == "gdn",
        "experts in every layer": bool(model.num_moe_experts)
        and model.moe_layer_freq in (1, None, (1,) * model.num_layers),
        "attention_output_gate": model.attention_output_gate,
        "qk_layernorm": model.qk_layernorm,
    }
    lacks = [name for name, there in needs.items() if not there]
    if lacks:
        raise ConfigError(f"hc_lowrank (Qwen3.8-Flash-Next) needs {' and '.join(lacks)}")
    beyond = [one for one in model.ple_layer_ids if one > model.num_layers]
    if beyond:
        raise ConfigError(f"ple_layer_ids has layer {beyond[0]} of num_layers={model.num_layers}")
    if bool(model.ple_layer_ids) != bool(model.ngram_table_rows):
        raise ConfigError("ple_layer_ids and ngram_table_rows go together: give both or none")
    if model.ngram_table_rows and model.ple_embed_dim % len(model.ngram_table_rows):
        raise ConfigError(
            f"ple_embed_dim={model.ple_embed_dim} does not divide over {len(model.ngram_table_rows)} ngram_table_rows"
        )


VENDOR = Vendor(
    "hc_lowrank",
    excludes="hybrid_layer_pattern parallel_attention falcon_h1 gemma4_moe multi_latent_attention enable_mhc_connections "
    "attn_res_block_size layer_variants fp32_residual_connection add_bias_linear hidden_dropout moe_n_hash_layers moe_latent_size",
    fixed="hc_lowrank ple_layer_ids ngram_table_rows",
    stream="gated",
    check=check,
    experts="gated_moe",
    layers=layers,
    of_layer=of_layer,
)
