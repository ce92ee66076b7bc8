"""Hybrids: Qwen3-Next and Qwen3.5 (Gated DeltaNet), Nemotron-H and Falcon-H1 (Mamba-2).

Tables of n-grams are those of Engram and of the per-layer embeddings of Qwen3.8-Flash-Next. Every order and head has a table of its
own, as long as the next prime that no other table has. Expert-parallel ranks share the rows of each table, the first ones one more where
they do not divide; nothing else is shared.
Sources: NVIDIA/Megatron-LM pull requests 7231 and 7553 (docs/models/engram.md, docs/models/qwen3.8_flash_next).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from ...errors import ConfigError, UnsupportedError
from ...job.layer_kinds import MOST_LAYERS
from ...wording import any_of, shown
from .fields import Converted, Fields, Provider
from .moe import routed, sparse_step

# -- tables of n-grams -------------------------------------------------------------------------------------------------


def primes_from(least: int) -> Iterator[int]:
    """Primes from a number on."""
    return filter(is_prime, count(max(least, 2)))


WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""They tell every number below 3.3e24 (Sorenson and Webster 2015, Strong pseudoprimes to twelve prime bases)."""


def is_prime(number: int) -> bool:
    """Whether a number is prime, by Miller and Rabin's test."""
    if number < 2 or any(number % one == 0 for one in WITNESSES):
        return number in WITNESSES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    return all(_passes(number, pow(one, odd, number), twos) for one in WITNESSES)


def _passes(number: int, power: int, twos: int) -> bool:
    """Whether the squares of a power reach 1 as they do for a prime."""
    if power == 1:
        return True
    for _ in range(twos):
        if power == number - 1:
            return True
        power = power * power % number
    return False


MOST_ORDERS, MOST_HEADS = 16, 64
"""Orders of n-grams, and tables of one."""


def tables(base: int, number: int, behind: int = 0) -> tuple[int, ...]:
    """Rows of so many tables from a base on, where `behind` tables of other layers come before."""
    return tuple(islice(primes_from(base), behind, behind + number))


def qwen_next(f: Fields) -> Converted:
    """Gated DeltaNet layers with a gated softmax layer every fourth; dense or MoE MLPs."""
    layers = range(f.whole("num_hidden_layers"))
    every = max(f.whole("full_attention_interval", default=4), 1)
    types = f.items("layer_types")
    f.always(attn_output_gate=True)
    linear = [types[i] != "full_attention" if types else (i + 1) % every != 0 for i in layers]
    settings: dict[str, object] = {
        "qk_layernorm": True,
        "attention_output_gate": True,
        "experimental_attention_variant": "gdn",
        "linear_attention_freq": tuple(int(one) for one in linear),
        "linear_conv_kernel_dim": f.whole("linear_conv_kernel_dim", default=4),
        "linear_key_head_dim": f.whole("linear_key_head_dim", default=128),
        "linear_value_head_dim": f.whole("linear_value_head_dim", default=128),
        "linear_num_key_heads": f.whole("linear_num_key_heads", default=16),
        "linear_num_value_heads": f.whole("linear_num_value_heads", default=32),
        "rotary_percent": 0.25,
    }
    if f.has("num_experts") and f.whole("num_experts"):
        settings.update(routed(f))
        settings["moe_layer_freq"] = sparse_step(f)
        settings["moe_shared_expert_intermediate_size"] = f.whole("shared_expert_intermediate_size")
        settings["moe_shared_expert_gate"] = True
    return Converted(settings)


OPEN = (
    "Qwen3.8-Flash-Next's layers are those of an open pull request of Megatron-LM (7553): what they keep follows published records, "
    "what the indexer keeps, short-lived tensors and the input of MTP are derived; its four published peaks are within 1 % of the range"
)


def qwen4_exp(f: Fields) -> Converted:
    """Qwen3.8-Flash-Next: Gated DeltaNet and sparse attention with an indexer, several residual streams that are mixed in the place of
    norms, experts in every layer, and tables of n-grams beside one of them.

    Sources: huggingface/transformers 5.23 `models/qwen4_exp`; NVIDIA/Megatron-LM pull requests 7553 and 7393.
    """
    found = qwen_next(f)
    memory, number = f.count("ple_embed_dim"), f.count("heads_per_ngram", most=MOST_HEADS)
    number *= max(f.count("ngram_size", most=MOST_ORDERS) - 1, 1)
    rows = tables(f.count("ngram_vocab_size_base"), number)
    padding = f.count("make_ngram_vocab_size_divisible_by", default=1)
    beside = tuple(f.wholes("ple_layer_ids"))
    f.implied(output_gate_type="sigmoid", mtp_use_dedicated_embeddings=False, indexer_kv_heads=1)
    for name in ("indexer_budget", "split_ngram_parts", "mtp", "mamba_ssm_dtype"):
        f.raw(name)  # no parameter has them
    own: dict[str, object] = {
        "mhc_num_residual_streams": f.whole("hc_count"),
        "hc_lowrank": f.count("hc_lowrank"),
        "indexer_n_heads": f.count("indexer_n_heads"),
        "indexer_head_dim": f.count("indexer_head_dim"),
        "indexer_compress_ratio": f.count("indexer_compress_ratio"),
    }
    if beside:
        own |= {
            "ple_layer_ids": tuple(sorted(beside)),
            "ple_embed_dim": memory,
            "ple_conv_kernel_size": f.count("ple_conv_kernel_size"),
            "ngram_table_rows": rows,
        }
    padded = len(beside) * (-sum(rows) % padding) * (memory // number)
    extra = (("rows of n-grams that the checkpoint pads", padded),) if padded else ()
    return found._replace(settings={**found.settings, **own}, extra=extra, warnings=(OPEN,))


SYMBOLS = {
    "linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E", "mamba": "M", "attention": "*",
}  # fmt: skip
"""Kinds of layers by their names and older names (huggingface/transformers `models/nemotron_h/configuration_nemotron_h.py`)."""


KINDS = ("layers_block_type", "layer_types")
"""Keys of the list of kinds."""


def _listed(f: Fields, *names: str) -> str:
    """The pattern that a list of kinds under one of some names means. Raises ConfigError for a kind that there is not."""
    kinds = f.items(*names)
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in SYMBOLS]
    if unknown:
        raise ConfigError(f"{names[0]} in config.json has the kind {shown(unknown[0])}; known are {any_of(SYMBOLS)}")
    return "".join(SYMBOLS[kind] for kind in kinds)


def nemotron_h(f: Fields) -> Converted:
    """Nemotron-H: one mixer per layer, by the symbols of its pattern."""
    pattern = f.word("hybrid_override_pattern") or _listed(f, *KINDS)
    if not pattern:
        raise ConfigError(
            "config.json has neither hybrid_override_pattern nor layers_block_type; give one kind per layer"
        )
    settings: dict[str, object] = {
        "hybrid_layer_pattern": pattern,
        "gated_linear_unit": False,
        "activation_func": "squared_relu",
        "position_embedding_type": "none",
        "mamba_num_heads": f.whole("mamba_num_heads"),
        "mamba_head_dim": f.whole("mamba_head_dim", default=64),
        "mamba_num_groups": f.whole("n_groups", default=8),
        "mamba_state_dim": f.whole("ssm_state_size", default=128),
    }
    if "E" in pattern:
        settings.update(routed(f))
        shared = f.optional_whole("moe_shared_expert_intermediate_size")
        settings["moe_shared_expert_intermediate_size"] = shared
        settings["moe_router_score_function"] = "sigmoid"
        settings["moe_router_enable_expert_bias"] = True
        if f.has("moe_latent_size"):
            settings["moe_latent_size"] = f.whole("moe_latent_size")
    f.always(conv_kernel=4, use_conv_bias=True, n_shared_experts=1)
    f.implied(
        mamba_hidden_act="silu",
        mlp_hidden_act="relu2",
        expand=2,
        chunk_size=128,
        num_query_groups=f.values.get("num_key_value_heads"),
    )
    depths = f.optional_whole("num_nextn_predict_layers") or 0
    inner = f.word("mtp_hybrid_override_pattern") or _listed(f, "mtp_layers_block_type")
    if depths and inner:
        settings["hybrid_layer_pattern"] = pattern + f"/{inner}" * depths
    if max(len(pattern), len(inner)) > 2 * MOST_LAYERS:
        raise ConfigError(
            f"the layer pattern in config.json has {len(pattern)} symbols; at most {MOST_LAYERS} are read"
        )
    return Converted(settings)


FALCON_H1 = Provider("FalconH1ModelProvider", "Mamba-2 and attention side by side in a layer")
BORDERS = "the residual stream of Falcon-H1 is in fp32: pipeline stages need pipeline_dtype fp32 between them"


def _gated_norm(f: Fields) -> bool:
    """Whether Mamba-2 has a norm; where it has none, its place means nothing."""
    present = f.switch("mamba_rms_norm", default=False)
    if not present:
        f.raw("mamba_norm_before_gate")
    return present


def falcon_h1(f: Fields) -> Converted:
    """Falcon-H1: Mamba-2 and attention side by side behind one norm, then an MLP.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/falcon_h1/falconh1_bridge.py`, `falconh1_provider.py`.
    """
    heads, d = f.count("mamba_n_heads"), f.count("mamba_d_head")
    f.always(
        mamba_d_conv=4, mamba_conv_bias=True, mamba_norm_before_gate=False, mamba_d_ssm=heads * d, mamba_use_mlp=True
    )
    f.has("mamba_expand")  # the number of heads says the width
    bias = f.switch("projectors_bias", default=False)
    if bias or f.switch("mlp_bias", default=False) or f.switch("attention_bias", default=False):
        raise UnsupportedError("falcon_h1 with biases (projectors_bias, mlp_bias, attention_bias) is not supported")
    settings: dict[str, object] = {
        "falcon_h1": True,
        "mamba_num_heads": heads,
        "mamba_head_dim": d,
        "mamba_num_groups": f.count("mamba_n_groups", default=1),
        "mamba_state_dim": f.count("mamba_d_state", default=256),
        "mamba_chunk_size": f.count("mamba_chunk_size", default=256),
        "mamba_rmsnorm": _gated_norm(f),
        "attention_kernel": "unfused",
        "cross_entropy_loss_fusion": False,
    }
    return Converted(settings, warnings=(BORDERS,), provider=FALCON_H1)
