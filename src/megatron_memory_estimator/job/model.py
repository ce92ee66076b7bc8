"""The architecture: what a rank-independent description of the model says, in TransformerConfig's names.

Source of names and defaults: Megatron-LM `megatron/core/transformer/transformer_config.py` (TransformerConfig,
MLATransformerConfig), `megatron/core/models/gpt/gpt_model.py` (GPTModel) for the vocabulary and the embeddings.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

from ..dataclass import dataclass
from ..tape.tensor import round_up
from .compressed import CompressedModel
from .gemma4 import Gemma4Model
from .kimi import KimiModel
from .layer_kinds import has_experts, layer_pattern, mtp_pattern
from .model_checks import check, variant
from .settings import setting
from .tower import Tower
from .variants import Variants

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
ACTIVATIONS = ("gelu", "silu", "squared_relu", "quick_gelu", "relu", "fast_gelu", "situ")


@dataclass(frozen=True)
class Model(CompressedModel, KimiModel, Gemma4Model):
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
        "what a norm on query and key is over: a head, the whole projection (OLMoE), or its parts on all ranks (MiniMax-M2)",
        choices=("head", "projection", "sharded_projection"),
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
    gemma4_moe: bool = setting(False, "Gemma 4's experts beside a dense MLP, with norms of their own", of="moe")
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
        choices=("gdn", "gdn2", "dsa", "dsv4_hybrid", "kda"),
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
    falcon_h1: bool = setting(
        False, "Falcon-H1's layer: Mamba-2 and attention side by side behind one norm, then the MLP"
    )

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
    """Parameters of parts that Megatron-Core does not have: counted, never estimated."""
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

    @property
    def aux_loss(self) -> bool:
        """Whether routers compute a balancing loss from their scores (TopKRouter.is_aux_loss_enabled)."""
        kinds = {"aux_loss", "seq_aux_loss", "global_aux_loss"} & set(self.moe_router_load_balancing_type)
        return bool(kinds) and self.moe_aux_loss_coeff > 0

    @property
    def hybrid(self) -> bool:
        """Whether the layers are the sub-layers of a hybrid pattern."""
        return self.hybrid_layer_pattern is not None

    @cached_property
    def has_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return has_experts(self)
