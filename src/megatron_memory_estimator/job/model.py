"""The architecture: what a rank-independent description of the model says, in TransformerConfig's names.

Source of names and defaults: Megatron-LM `megatron/core/transformer/transformer_config.py` (TransformerConfig,
MLATransformerConfig), `megatron/core/models/gpt/gpt_model.py` (GPTModel) for the vocabulary and the embeddings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from functools import cached_property
from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from ..tape.tensor import round_up
from ..wording import shown
from .deepseek_v4 import CompressedModel
from .falcon_h1 import FalconModel
from .flash_next import FlashNextModel
from .gemma4 import Gemma4Model
from .kimi_k3 import KimiModel
from .layer_kinds import (
    BORROWS,
    COMPRESSED,
    EXPERTS,
    HASHED,
    HYBRID_SYMBOLS,
    MIXERS,
    MLPS,
    MOST_EXPERTS,
    MOST_LAYERS,
    MOST_MTP_LAYERS,
    OWNS,
    ROUTED,
    expression,
    frequency_list,
    has_heads,
    whole_number,
)
from .settings import checked, nearest, setting
from .tower import Tower
from .variants import BASE, Variants, as_object, bare, marked
from .vendor import OTHER_LAYERS, Stream, Vendor
from .vendors import VENDORS

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
ACTIVATIONS = ("gelu", "silu", "squared_relu", "quick_gelu", "relu", "fast_gelu", "situ")


LOOKED_UP = "tables of n-grams"
"""What parts are called that a token looks up."""
STATE_BYTES = 2 + 4 + 12
"""Bytes of a parameter with its gradient and Adam's state where nothing is sharded: a bf16 weight, an fp32 gradient, master and moments."""


def known_text(parameters: int) -> str:
    """What is known of a model whose memory is not modelled."""
    return f"{parameters:,} parameters, {STATE_BYTES * parameters / 1e12:.2f} TB with gradients and Adam's state"


@dataclass(frozen=True)
class Model(CompressedModel, KimiModel, FlashNextModel, Gemma4Model, FalconModel):
    """A decoder-only GPT-like model. `None` means: derived from the other fields, or absent."""

    num_layers: int = setting(0, "decoder layers, without MTP")
    hidden_size: int = setting(0, "width of the residual stream")
    num_attention_heads: int = setting(0, "query heads")
    num_query_groups: int | None = setting(None, "key and value heads; default: num_attention_heads")
    kv_channels: int | None = setting(None, "head dim; default: hidden_size / num_attention_heads")
    value_channels: int | None = setting(None, "head dim of value; default: kv_channels")
    ffn_hidden_size: int | None = setting(None, "width of a dense MLP, per gate half; default: 4 * hidden_size")
    vocab_size: int | None = setting(None, "vocabulary before padding")
    padded_vocab_size: int | None = setting(None, "vocabulary after padding; wins over vocab_size")
    make_vocab_size_divisible_by: int = setting(128, "vocabulary is padded to a multiple of this times tp")
    max_position_embeddings: int | None = setting(None, "largest position")
    share_embeddings_and_output_weights: bool = setting(False, "output layer uses the embedding table")
    position_embedding_type: str = setting(
        "rope", "position embedding", choices=("rope", "learned_absolute", "none", "yarn", "mrope")
    )
    rotary_percent: float = setting(1.0, "part of the head dim that RoPE rotates")
    rope_type: str = setting("yarn", "MLA: RoPE", choices=("rope", "yarn"), of="mla")
    original_max_position_embeddings: int = setting(
        4096, "YaRN: positions that its tables cover from the start", of="yarn"
    )

    normalization: str = setting("LayerNorm", "norm", choices=("LayerNorm", "RMSNorm", "L2Norm"))
    gated_linear_unit: bool = setting(False, "gated MLP (SwiGLU, GEGLU)")
    activation_func: str = setting("gelu", "activation of the MLP", choices=ACTIVATIONS)
    activation_func_clamp_value: float | None = setting(None, "clamp of the gated activation (gpt-oss)")
    activation_func_clamp_value_shared_expert: float | None = setting(
        None, "clamp of shared experts; default: activation_func_clamp_value", of="moe"
    )
    add_bias_linear: bool = setting(True, "biases in all linears")
    add_qkv_bias: bool = setting(False, "bias in linear_qkv only")
    qk_layernorm: bool = setting(False, "norm on query and key (MLA: on the compressed ones)")
    qk_layernorm_scope: str = setting(
        "head",
        "what a norm on query and key is over: a head, the whole projection (OLMoE), its parts on all ranks (MiniMax-M2), or the whole of "
        "it gathered from all ranks (slime's MiniMax-M2)",
        choices=("head", "projection", "sharded_projection", "gathered_projection"),
    )
    qk_l2_norm: bool = setting(False, "norm on query and key without parameters (Llama 4)")
    value_norm: bool = setting(False, "norm on value without parameters, in fp32 (Gemma 4)")
    attention_output_gate: bool = setting(False, "gate on the attention output (Qwen3-Next)")
    softmax_type: str = setting("vanilla", "softmax", choices=("vanilla", "off-by-one", "learnable"))
    attention_dropout: float = setting(0.1, "dropout on attention probabilities")
    hidden_dropout: float = setting(0.1, "dropout on the residual stream")
    fp32_residual_connection: bool = setting(False, "residual stream in fp32")

    core_attention: str = setting(
        "transformer_engine",
        "whose core attention: TransformerEngine's, Megatron-Core's own with a matrix of all scores (EXAONE 4), or FlexAttention",
        choices=("transformer_engine", "local", "flex"),
    )
    attn_logit_softcapping: float | None = setting(None, "cap of the attention scores (Gemma 2)")
    final_logit_softcapping: float | None = setting(None, "cap of the logits (Gemma 2)")
    sliding_window: int | None = setting(None, "tokens before it that a query attends to; null: all")
    local_rotary_table: bool = setting(
        False, "a second RoPE table for layers with a sliding window, stacked with the first (Gemma 3, MiMo-V2-Flash)"
    )

    parallel_attention: bool = setting(
        False, "attention and MLP side by side on one normed input (Falcon, Command-R)", of="parallel"
    )
    num_ln_in_parallel_attn: int = setting(
        1, "norms of a layer with parallel_attention: 2 where the MLP has its own", of="parallel"
    )

    multi_latent_attention: bool = setting(False, "multi-latent attention (DeepSeek)")
    q_lora_rank: int | None = setting(512, "MLA: width of the compressed query; null: not compressed", of="mla")
    kv_lora_rank: int = setting(512, "MLA: width of the compressed key and value", of="mla")
    qk_head_dim: int = setting(128, "MLA: head dim of query and key without RoPE", of="mla")
    qk_pos_emb_head_dim: int = setting(64, "MLA: head dim with RoPE", of="mla")
    v_head_dim: int = setting(128, "MLA: head dim of value", of="mla")

    num_moe_experts: int | None = setting(None, "routed experts", flag="num-experts")
    moe_layer_freq: int | tuple[int, ...] | str = setting(
        1,
        "which layers are MoE: N (every Nth), a 0/1 list, or an expression such as ([0]*3+[1]*58)",
        kind="any",
        of="moe",
    )
    moe_router_topk: int = setting(2, "experts per token", of="moe")
    moe_ffn_hidden_size: int | None = setting(None, "width of an expert; default: ffn_hidden_size", of="moe")
    moe_shared_expert_intermediate_size: int | None = setting(None, "total width of the shared experts", of="moe")
    moe_shared_expert_gate: bool = setting(False, "gate on the shared expert", of="moe")
    moe_latent_size: int | None = setting(None, "width in which the experts work (latent MoE)", of="moe")
    moe_router_score_function: str = setting("softmax", "score function of the router", choices=SCORES, of="moe")
    moe_router_weight_in_fp32: bool = setting(False, "routers keep their weight in fp32 (MiniMax-M3)", of="moe")
    moe_router_pre_softmax: bool = setting(False, "softmax over all experts, before the choice", of="moe")
    moe_router_enable_expert_bias: bool = setting(False, "aux-loss-free balancing by an expert bias buffer", of="moe")
    moe_router_load_balancing_type: tuple[str, ...] = setting(
        ("aux_loss",),
        "load balancing",
        choices=("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", "quantile"),
        kind="list",
        of="moe",
    )
    moe_aux_loss_coeff: float = setting(0.0, "weight of the balancing loss", of="moe")
    moe_z_loss_coeff: float | None = setting(None, "weight of the router's z-loss", of="moe")
    moe_router_num_groups: int | None = setting(None, "groups of experts for group-limited routing", of="moe")
    moe_router_group_topk: int | None = setting(None, "groups that a token may use", of="moe")

    mtp_num_layers: int | None = setting(None, "multi-token prediction depths")
    mtp_use_repeated_layer: bool = setting(False, "all MTP depths share one layer")

    experimental_attention_variant: str | None = setting(
        None,
        "attention of the layers that linear_attention_freq picks",
        choices=("gdn", "gdn2", "gdn_whole", "gdn_whole_cp", "dsa", "dsv4_hybrid", "kda"),
    )
    linear_attention_freq: int | tuple[int, ...] | None = setting(
        None, "N: every Nth layer is softmax attention; or a 0/1 list, 1 is linear attention", kind="any"
    )
    linear_conv_kernel_dim: int = setting(4, "Gated DeltaNet: width of the convolution", of="gdn")
    linear_key_head_dim: int = setting(128, "Gated DeltaNet: key head dim", of="gdn")
    linear_value_head_dim: int = setting(128, "Gated DeltaNet: value head dim", of="gdn")
    linear_num_key_heads: int = setting(16, "Gated DeltaNet: key heads", of="gdn")
    linear_num_value_heads: int = setting(32, "Gated DeltaNet: value heads", of="gdn")

    dsa_indexer_n_heads: int | None = setting(None, "sparse attention: heads of the indexer", of="dsa")
    dsa_indexer_head_dim: int | None = setting(None, "sparse attention: head dim of the indexer", of="dsa")
    dsa_indexer_topk: int | None = setting(None, "sparse attention: keys per query", of="dsa")
    dsa_indexer_topk_freq: int = setting(1, "sparse attention: layers that share the keys one indexer picks", of="dsa")
    dsa_indexer_skip_topk_offset: int = setting(
        0, "sparse attention: first layers with an indexer of their own", of="dsa"
    )
    dsa_indexer_loss_coeff: float = setting(0.0, "sparse attention: weight of the indexer's loss", of="dsa")

    hybrid_layer_pattern: str | None = setting(
        None,
        "one character per sub-layer: M Mamba-2, G Gated DeltaNet, * attention, + MLA, D sparse MLA, WCH DeepSeek-V4, - MLP, E MoE",
    )
    mamba_num_heads: int | None = setting(None, "Mamba-2: heads; default: 2 * hidden_size / mamba_head_dim", of="mamba")
    mamba_head_dim: int = setting(64, "Mamba-2: head dim", of="mamba")
    mamba_num_groups: int = setting(8, "Mamba-2: groups", of="mamba")
    mamba_state_dim: int = setting(128, "Mamba-2: state size", of="mamba")
    mamba_chunk_size: int = setting(128, "Mamba-2: chunk length of the scan", of="mamba")
    mamba_rmsnorm: bool = setting(True, "Mamba-2: norm before out_proj", of="mamba")

    norm_placement: str = setting(
        "pre",
        "norms of a layer: before attention and MLP, behind both (EXAONE 4), or before and behind (Gemma 2 and 3)",
        choices=("pre", "post", "sandwich"),
    )
    attention_block: str = setting(
        "attention", "what attention is, or stands in its place", choices=("attention", "linear", "no_op")
    )
    mlp_block: str = setting("mlp", "what the MLP is, or stands in its place", choices=("mlp", "linear", "no_op"))
    variants: Variants = setting(
        (), 'layers of other shapes, by name: {"sliding": {"num_attention_heads": 96}}', kind="variants"
    )
    layer_variants: tuple[str, ...] | None = setting(
        None, "the variant that each decoder layer is; base: the model as it is", kind="words"
    )
    mtp_layer_variant: str | None = setting(None, "the variant of an MTP layer; default: the last decoder layer's")
    mtp_layer_variant_behind: str | None = setting(
        None, "the same where stages before its own have decoder layers; default: mtp_layer_variant"
    )

    foreign_layers: tuple[tuple[str, int], ...] = field(
        default=(), metadata={"help": "", "internal": True, "kind": "list"}
    )
    """Parameters of parts that Megatron-Core does not have: counted, never estimated. Of those whose name begins with `LOOKED_UP` a token
    uses a few rows."""
    towers: tuple[Tower, ...] = field(default=(), metadata={"help": "", "internal": True, "kind": "list"})
    """Vision and audio towers in front of the language model."""

    def __post_init__(self) -> None:
        check(self)

    def variant(self, name: str) -> Model:
        """The model as the layers of a variant have it."""
        if name not in self._variants:
            self._variants[name] = variant(self, name)
        return self._variants[name]

    @cached_property
    def _variants(self) -> dict[str, Model]:
        return {}

    # -- derived -------------------------------------------------------------------------------------------------
    @property
    def groups(self) -> int:
        """Key and value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Head dim of softmax attention."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def value_dim(self) -> int:
        """Head dim of value in softmax attention."""
        return self.value_channels or self.head_dim

    @property
    def qkv_rows(self) -> int:
        """Rows of linear_qkv: query heads (and their gates), keys, values."""
        queries = self.num_attention_heads * (2 if self.attention_output_gate else 1)
        return (queries + self.groups) * self.head_dim + self.groups * self.value_dim

    @property
    def ffn(self) -> int:
        """Width of a dense MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def moe_ffn(self) -> int:
        """Width of an expert."""
        return self.moe_ffn_hidden_size or self.ffn

    @property
    def gate(self) -> int:
        """2 for a gated MLP, else 1."""
        return 2 if self.gated_linear_unit else 1

    @property
    def expert_width(self) -> int:
        """Width that the routed experts read and write."""
        return self.moe_latent_size or self.hidden_size

    @property
    def mtp(self) -> int:
        """MTP depths."""
        if self.mtp_num_layers is None:
            return (self.hybrid_layer_pattern or "").count("/")
        return self.mtp_num_layers

    @cached_property
    def mtp_kinds(self) -> tuple[str, ...]:
        """Kinds of the layers of one MTP depth."""
        return mtp_pattern(self, self.mtp_layer_variant)

    @cached_property
    def mtp_kinds_behind(self) -> tuple[str, ...]:
        """The same on a chunk without the embedding."""
        own = self.mtp_layer_variant_behind
        return self.mtp_kinds if own is None else mtp_pattern(self, own)

    @cached_property
    def every_kind(self) -> tuple[str, ...]:
        """Kinds of all layers, those of MTP too, each once."""
        return tuple(dict.fromkeys((*self.kinds, *((*self.mtp_kinds, *self.mtp_kinds_behind) if self.mtp else ()))))

    @property
    def mamba_heads(self) -> int:
        """Heads of a Mamba-2 mixer."""
        return self.mamba_num_heads or 2 * self.hidden_size // self.mamba_head_dim

    def padded_vocab(self, tp: int) -> int:
        """Vocabulary rows that Megatron allocates (Megatron-LM `megatron/training/vocab_utils.py`)."""
        if self.padded_vocab_size is not None:
            return self.padded_vocab_size
        assert self.vocab_size is not None
        return round_up(self.vocab_size, self.make_vocab_size_divisible_by * tp)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each decoder layer, `mixer` or `mixer+mlp`: such as `gqa+moe`, `mla+dense`, `gdn+moe`, `mamba`."""
        return layer_pattern(self)

    @cached_property
    def vendors(self) -> tuple[Vendor, ...]:
        """The vendors whose settings the model has."""
        return tuple(vendor for vendor in VENDORS if getattr(self, vendor.setting))

    @property
    def stream(self) -> Stream:
        """What the residual stream is."""
        return next((vendor.stream for vendor in self.vendors if vendor.stream != "plain"), "plain")

    @property
    def several_streams(self) -> bool:
        """Whether a layer hands on several residual streams."""
        return self.stream in ("several", "gated")

    @property
    def eager_norms(self) -> bool:
        """Whether norms of query, key and value run op by op, with a power in the place of the root."""
        return any(vendor.eager_norms for vendor in self.vendors)

    @property
    def alternates(self) -> bool:
        """Whether `linear_attention_freq` says which layers have the attention variant."""
        return not self.hybrid and self.experimental_attention_variant not in (None, "dsa", "dsv4_hybrid")

    @property
    def aux_loss(self) -> bool:
        """Whether routers compute a balancing loss from their scores (TopKRouter.is_aux_loss_enabled)."""
        kinds = {"aux_loss", "seq_aux_loss", "global_aux_loss"} & set(self.moe_router_load_balancing_type)
        return bool(kinds) and self.moe_aux_loss_coeff > 0

    @property
    def hybrid(self) -> bool:
        """Whether the layers are the sub-layers of a hybrid pattern."""
        return self.hybrid_layer_pattern is not None

    @property
    def has_borders(self) -> bool:
        """Whether its hybrid pattern says where the chunks of a pipeline begin."""
        return "|" in (self.hybrid_layer_pattern or "")

    @cached_property
    def has_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return has_experts(self)


# -- the kinds of its layers ----------------------------------------------------------------------------------------------


def linear_attention(model: Model) -> tuple[int, ...]:
    """1 for each layer that uses the experimental attention variant."""
    freq = model.linear_attention_freq
    if model.experimental_attention_variant is None:
        return (0,) * model.num_layers
    if model.experimental_attention_variant in ("dsa", "dsv4_hybrid"):
        return (1,) * model.num_layers
    if freq is None:
        raise ConfigError(
            f"experimental_attention_variant={model.experimental_attention_variant} needs linear_attention_freq"
        )
    if isinstance(freq, str) and "[" not in freq:
        freq = whole_number("linear_attention_freq", freq)
    if isinstance(freq, int) and not isinstance(freq, bool):
        if freq < 1:
            raise ConfigError(f"linear_attention_freq={shown(freq)} must be at least 1")
        return tuple(int((i + 1) % freq != 0) for i in range(model.num_layers))
    return frequency_list("linear_attention_freq", freq, model.num_layers)


def compress_ratios(model: Model) -> tuple[int, ...]:
    """DeepSeek-V4: the compression ratio of each decoder layer, then of MTP.

    Raises ConfigError for a list that is too short, or has other ratios than those of `COMPRESSED`.
    """
    value, needed = model.csa_compress_ratios, model.num_layers + model.mtp
    if isinstance(value, str):
        value = tuple(expression("csa_compress_ratios", value))
    if not isinstance(value, list | tuple) or any(isinstance(x, bool) or x not in COMPRESSED for x in value):
        raise ConfigError(
            "experimental_attention_variant=dsv4_hybrid needs csa_compress_ratios, a list of 0, 4 and 128"
        )
    if len(value) < needed:
        raise ConfigError(
            f"csa_compress_ratios has {len(value)} entries for {needed} layers, those of MTP too; give one per layer"
        )
    return tuple(value)


def owns_indexer(model: Model, layer: int) -> bool:
    """Whether a sparse-attention layer (from 0) picks its keys itself; others take those of the last layer that does.

    Source: Megatron-LM `megatron/core/transformer/experimental_attention_variant/dsa.py`.
    """
    first = max(model.dsa_indexer_skip_topk_offset, 1)
    return max(layer + 1 - first, 0) % model.dsa_indexer_topk_freq == 0


def layer_pattern(model: Model) -> tuple[str, ...]:
    """The kind of each decoder layer (`Model.kinds`); of a layer of another shape that of its variant, with its name."""
    if model.layer_variants is not None:
        return tuple(marked(model.variant(name).kinds[layer], name) for layer, name in enumerate(model.layer_variants))
    if model.hybrid_layer_pattern is not None:
        return _hybrid(model)
    if own := next((vendor.layers for vendor in model.vendors if vendor.layers), None):
        return own(model, linear_attention(model), routed_layers(model))
    if model.parallel_attention:
        return ("parallel",) * model.num_layers
    if model.attention_block != "attention" or model.mlp_block != "mlp":
        mixer = MIXERS.get(model.attention_block, "gqa")
        return (f"{mixer}+{MLPS.get(model.mlp_block, 'dense')}",) * model.num_layers
    softmax = "mla" if model.multi_latent_attention else "gqa"
    variant = model.experimental_attention_variant or ""
    mixers = tuple(variant if linear else softmax for linear in linear_attention(model))
    if variant == "dsv4_hybrid":
        mixers = tuple(COMPRESSED[ratio] for ratio in compress_ratios(model)[: model.num_layers])
    if variant == "dsa" and model.dsa_indexer_topk_freq > 1:
        mixers = tuple(OWNS if owns_indexer(model, layer) else BORROWS for layer in range(model.num_layers))
    routed = routed_layers(model)
    hashed = model.moe_n_hash_layers
    usual = next((vendor.experts for vendor in model.vendors if vendor.experts), ROUTED)
    experts = (HASHED if layer < hashed else usual for layer in range(model.num_layers))
    mlps = (kind if expert else "dense" for kind, expert in zip(experts, routed, strict=True))
    return tuple(f"{mixer}+{mlp}" for mixer, mlp in zip(mixers, mlps, strict=True))


def routed_layers(model: Model) -> tuple[bool, ...]:
    """Whether each decoder layer has routed experts."""
    if model.hybrid_layer_pattern is not None:
        return tuple(symbol == EXPERTS for symbol in _main_part(model))
    if not model.num_moe_experts:
        return (False,) * model.num_layers
    return tuple(map(bool, frequency_list("moe_layer_freq", model.moe_layer_freq, model.num_layers)))


def has_experts(model: Model) -> bool:
    """Whether any layer has routed experts, MTP's too."""
    return any(_WITH_EXPERTS & set(bare(kind).split("+")) for kind in model.every_kind)


_WITH_EXPERTS = {ROUTED, *(vendor.experts for vendor in VENDORS if vendor.experts)}


def mtp_pattern(model: Model, name: str | None) -> tuple[str, ...]:
    """Kinds of the layers of one MTP depth: of the variant of that name, the last decoder layer's without one, or a hybrid pattern's part
    behind `/`."""
    parts = (model.hybrid_layer_pattern or "").split("/")
    if len(parts) - 1 > MOST_MTP_LAYERS:
        raise ConfigError(
            f"hybrid_layer_pattern has {len(parts) - 1} MTP parts; at most {MOST_MTP_LAYERS} are accepted"
        )
    if len(parts) < 2:
        last = model.kinds[-1] if name is None else marked(model.variant(name).kinds[-1], name)
        last = last.replace(HASHED, ROUTED)  # never by the token's hash
        if model.experimental_attention_variant == "dsv4_hybrid":
            ratio = compress_ratios(model)[model.num_layers] if model.mtp else 0
            return (f"{COMPRESSED[ratio]}+{last.partition('+')[2]}",)
        return (last.replace(BORROWS, OWNS),)  # nothing before it to share with
    for part in parts[1:]:
        wrong = set(part) - set(HYBRID_SYMBOLS)
        if wrong or not part or part != parts[1]:
            raise ConfigError(
                f"the MTP parts of hybrid_layer_pattern must be equal and made of {' '.join(HYBRID_SYMBOLS)}"
            )
    repeated = model.mtp_use_repeated_layer and len(parts) == 2
    if model.mtp_num_layers is not None and not repeated and model.mtp_num_layers not in (0, len(parts) - 1):
        raise ConfigError(
            f"hybrid_layer_pattern has {len(parts) - 1} MTP parts for mtp_num_layers={model.mtp_num_layers}; one part serves all depths "
            "with mtp_use_repeated_layer"
        )
    return tuple(_of_symbol(model, symbol) for symbol in parts[1])


def _of_symbol(model: Model, symbol: str) -> str:
    """The kind of a symbol; which Gated DeltaNet a hybrid has is a setting of its own."""
    second = model.experimental_attention_variant == "gdn2"
    return "gdn2" if symbol == "G" and second else HYBRID_SYMBOLS[symbol]


def _main_part(model: Model) -> str:
    """Symbols of the decoder layers of a hybrid, without the borders of stages."""
    return (model.hybrid_layer_pattern or "").split("/")[0].replace("|", "")


def _hybrid(model: Model) -> tuple[str, ...]:
    pattern = model.hybrid_layer_pattern or ""
    main = _main_part(model)
    if pattern.split("/")[0].count("|") >= MOST_LAYERS:
        raise ConfigError(f"hybrid_layer_pattern has more than {MOST_LAYERS} segments, the most that is accepted")
    for symbol in main:
        if symbol not in HYBRID_SYMBOLS:
            raise ConfigError(
                f"hybrid_layer_pattern has {symbol!r}; the symbols are {' '.join(HYBRID_SYMBOLS)} | and /"
            )
    if "*" in main and ("+" in main or "D" in main):
        raise ConfigError("hybrid_layer_pattern mixes * with + or D; Megatron-Core allows one kind of attention")
    if len(main) != model.num_layers:
        raise ConfigError(
            f"hybrid_layer_pattern has {len(main)} sub-layers for num_layers={model.num_layers}; they must agree"
        )
    if EXPERTS in main and not model.num_moe_experts:
        raise ConfigError("hybrid_layer_pattern has E sub-layers but num_moe_experts is not set")
    return tuple(_of_symbol(model, symbol) for symbol in main)


# -- what its settings must keep ------------------------------------------------------------------------------------------


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
    if model.vocab_size is None and model.padded_vocab_size is None:
        raise ConfigError("vocab_size is missing; give it or padded_vocab_size")
    _check_exclusions(model)
    for vendor in VENDORS:
        if vendor.check:
            vendor.check(model)
    if model.qk_layernorm_scope != "head":
        _check_query_norms(model)
    _check_variants(model)
    model.kinds, model.mtp_kinds, model.mtp_kinds_behind  # noqa: B018  (a wrong layer pattern is refused here)


_AT_LEAST_ONE = (
    "num_query_groups", "kv_channels", "ffn_hidden_size", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by",
    "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
    "moe_router_num_groups", "moe_router_group_topk", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk",
    "dsa_indexer_topk_freq", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "mamba_chunk_size",
    "mhc_num_residual_streams", "original_max_position_embeddings", "sliding_window", "csa_window_size", "o_groups",
    "o_lora_rank", "value_channels", "attn_res_block_size", "hc_lowrank", "indexer_n_heads",
    "indexer_head_dim", "indexer_compress_ratio", "ple_embed_dim", "ple_conv_kernel_size", "per_layer_embed_dim",
    "per_layer_embed_vocab_size",
)  # fmt: skip
_EXCLUSIONS: tuple[tuple[str, object, str], ...] = (
    ("parallel_attention", False, f"{OTHER_LAYERS} mtp_num_layers enable_mhc_connections"),
    *((vendor.setting, None, vendor.excludes) for vendor in VENDORS),
    ("qk_layernorm_scope", "head", "multi_latent_attention experimental_attention_variant hybrid_layer_pattern"),
    (
        "norm_placement",
        "pre",
        f"{OTHER_LAYERS} parallel_attention enable_mhc_connections fp32_residual_connection add_bias_linear",
    ),
    ("attention_block", "attention", f"{OTHER_LAYERS} parallel_attention"),
    ("mlp_block", "mlp", f"{OTHER_LAYERS} parallel_attention"),
)
"""A setting, its usual value, and what its other values exclude. Norms behind a layer's linears exist beside attention with query groups
and a dense MLP, or Gemma 4's experts, without biases; norms over whole projections are of attention with query groups."""


def _check_query_norms(model: Model) -> None:
    """Norms over whole projections are RMSNorms of attention with query groups; OLMoE's is as wide for keys as for queries."""
    scope = f"qk_layernorm_scope={model.qk_layernorm_scope}"
    if model.normalization != "RMSNorm":
        raise ConfigError(f"{scope} needs normalization RMSNorm, not {model.normalization}")
    if model.qk_layernorm_scope == "projection" and model.groups != model.num_attention_heads:
        raise ConfigError(
            f"{scope} needs num_query_groups={model.groups} to be num_attention_heads={model.num_attention_heads}"
        )


def _check_exclusions(model: Model) -> None:
    """Raise ConfigError for settings that exclude each other."""
    usual_of = {name: usual for name, usual, _ in _EXCLUSIONS}

    def there(name: str) -> bool:
        value = getattr(model, name)
        return bool(value) and value != usual_of.get(name)

    for name, usual, others in _EXCLUSIONS:
        if not there(name):
            continue
        allowed = ("num_moe_experts",) if name == "norm_placement" and any(one.experts for one in model.vendors) else ()
        given = [other for other in others.split() if there(other) and other not in allowed]
        if given:
            what = f"{name}={getattr(model, name)}" if usual else name
            raise ConfigError(f"{what} excludes {' and '.join(given)}; turn one off")
    if model.parallel_attention and model.num_ln_in_parallel_attn not in (1, 2):
        raise ConfigError(f"num_ln_in_parallel_attn={model.num_ln_in_parallel_attn} must be 1 or 2")


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
    for vendor in model.vendors:
        if vendor.of_layer and (own := vendor.of_layer(name)) is not None:
            return dataclasses.replace(model, **plain, **own)
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
        "moe_layer_freq", "linear_attention_freq", "moe_router_topk", "mtp_num_layers", "mtp_use_repeated_layer",
        "hybrid_layer_pattern", "variants", "layer_variants",
        "mtp_layer_variant", "mtp_layer_variant_behind", "foreign_layers",
        *" ".join(vendor.fixed for vendor in VENDORS).split(),
    }
)  # fmt: skip
"""Settings of the whole model, which no layer changes."""
