"""Dense decoders: Llama and its relatives, Qwen, Nemotron, GPT-2, Falcon."""

from __future__ import annotations

from .converted import Converted
from .fields import Fields


def llama(f: Fields) -> Converted:
    """Llama, Mistral, Ministral, Phi-3, Granite, SmolLM3, ERNIE-4.5: GQA and a gated MLP."""
    f.implied(use_rmsnorm=True)
    bias = f.switch("attention_bias", "use_bias", default=False)
    return Converted({"add_qkv_bias": bias}, warnings=OUTPUT_BIAS if bias else ())


OUTPUT_BIAS = ("the bias of the attention output, which attention_bias means too, is not counted",)


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
    return Converted({"qk_layernorm": True, "add_qkv_bias": bias}, warnings=OUTPUT_BIAS if bias else ())


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
    f.implied(parallel_attn=True, activation="gelu")
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
