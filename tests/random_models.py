"""Random models: those of the catalogue with few layers, and TransformerConfigs of drawn sizes."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from megatron_memory_estimator import TrainingJob, UnsupportedError
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.job.model import Model

Settings = dict[str, Any]


class Choice:
    """Draws of one job."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def of(self, *options: Any) -> Any:
        """One of the options."""
        return self._random.choice(options)

    def rarely(self, twentieths: int) -> bool:
        """True in so many of twenty draws."""
        return self._random.randrange(20) < twentieths

    def some(self, *options: str) -> tuple[str, ...]:
        """At least one of the options, in their order."""
        chosen = {self.of(*options) for _ in range(self.of(1, 2, 3))}
        return tuple(option for option in options if option in chosen)


class Drawn(NamedTuple):
    """A model and what it is trained with; `layers` of each of `stages` groups (pipeline ranks times chunks)."""

    name: str
    """A Hub id, or "" for a TransformerConfig in `settings`."""
    settings: Settings
    model: Model
    """The architecture as it is known before the layout; layers and patterns are those of `settings`."""


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Model]:
    """The models of the catalogue that can be estimated."""
    found = {}
    for name in entries():
        try:
            job = TrainingJob.from_hf(name, 1)
        except UnsupportedError:
            continue
        if not job.refusal:
            found[name] = job.model
    return found


def models(choice: Choice, layers: int, borders: tuple[int, ...]) -> Drawn:
    """A model of so many layers; `borders` are the layers behind which a hybrid pattern is cut."""
    if choice.rarely(8):
        settings = config(choice, layers)
        return Drawn("", settings, TrainingJob.from_config(settings, 1).model)
    name = choice.of(*catalogue())
    model = catalogue()[name]
    settings = {"num_layers": layers}
    if model.hybrid:
        settings["hybrid_layer_pattern"] = hybrid_pattern(choice, model, layers, borders)
    if isinstance(model.moe_layer_freq, tuple):
        settings["moe_layer_freq"] = experts_of(choice, layers)
    if model.layer_variants is not None:
        settings["layer_variants"] = tuple(choice.of("base", *dict(model.variants)) for _ in range(layers))
    if model.linear_attention_freq is not None:
        settings["linear_attention_freq"] = choice.of(2, 3, 4)
    if not model.hybrid and model.position_embedding_type == "rope":
        settings["mtp_num_layers"] = choice.of(0, 0, 1, 2) if model.mtp else choice.of(0, 0, 0, 0, 0, 1)
    return Drawn(name, settings, model)


def experts_of(choice: Choice, layers: int) -> tuple[int, ...]:
    """0/1 for each layer: dense ones first, or in turn with MoE."""
    if choice.rarely(5):
        return tuple(i % 2 for i in range(layers)) if layers > 1 else (1,)
    dense: int = min(choice.of(0, 1, 3), layers - 1)
    return (0,) * dense + (1,) * (layers - dense)


def hybrid_pattern(choice: Choice, model: Model, layers: int, borders: tuple[int, ...]) -> str:
    """Sub-layers that the model has, cut at the borders, with MTP parts where the model has them."""
    pattern = model.hybrid_layer_pattern or ""
    symbols = sorted(set(pattern) - set("|/"))
    chosen = [choice.of(*symbols) for _ in range(layers)]
    ends = [0, *borders, layers]
    main = "|".join("".join(chosen[a:b]) for a, b in pairwise(ends))
    return main + ("/*E" if "/" in pattern and "E" in pattern and choice.rarely(10) else "")


def config(choice: Choice, layers: int) -> Settings:
    """A TransformerConfig whose sizes divide by every tensor parallel size that is drawn."""
    heads = choice.of(8, 16, 24)
    width = choice.of(32, 64, 80, 128)
    gated = choice.of(True, False)
    found: Settings = {
        "num_layers": layers,
        "hidden_size": heads * width if choice.rarely(15) else choice.of(512, 768, 1408),
        "num_attention_heads": heads,
        "kv_channels": width,
        "num_query_groups": choice.of(heads, 8, 4, 2, 1) if heads != 24 else choice.of(24, 8),
        "ffn_hidden_size": choice.of(1024, 2816, 5632),
        "vocab_size": choice.of(32000, 50257, 1003),
        "make_vocab_size_divisible_by": choice.of(128, 8, 1),
        "gated_linear_unit": gated,
        "activation_func": choice.of("silu", "gelu") if gated else choice.of("gelu", "squared_relu", "relu"),
        "normalization": choice.of("RMSNorm", "LayerNorm"),
        "add_bias_linear": False,
        "attention_dropout": choice.of(0.0, 0.1),
        "hidden_dropout": choice.of(0.0, 0.1),
        "share_embeddings_and_output_weights": choice.of(False, True),
        "position_embedding_type": choice.of("rope", "learned_absolute", "none"),
        "max_position_embeddings": 16384,
        "bias_activation_fusion": choice.of(True, False),
        "apply_rope_fusion": choice.of(True, False),
        "masked_softmax_fusion": choice.of(True, False),
        "gradient_accumulation_fusion": choice.of(True, False),
        "qk_layernorm": choice.of(False, True),
        "fp32_residual_connection": choice.rarely(1),
    }
    if found["position_embedding_type"] != "learned_absolute":
        found["mtp_num_layers"] = choice.of(0, 0, 0, 1)
    if choice.rarely(4):
        found.update(
            multi_latent_attention=True, q_lora_rank=choice.of(None, 256), kv_lora_rank=128, qk_head_dim=64,
            qk_pos_emb_head_dim=32, v_head_dim=64, num_query_groups=None, position_embedding_type="rope",
            rope_type=choice.of("rope", "yarn"),
        )  # fmt: skip
    if choice.rarely(10):
        found.update(
            num_moe_experts=choice.of(8, 16, 64), moe_router_topk=choice.of(2, 1, 4), moe_layer_freq=experts_of(choice, layers),
            moe_ffn_hidden_size=choice.of(256, 768), moe_shared_expert_intermediate_size=choice.of(None, 512),
            moe_aux_loss_coeff=choice.of(0.0, 1e-2), moe_router_enable_expert_bias=choice.of(False, True),
            moe_router_score_function=choice.of("softmax", "sigmoid"),
        )  # fmt: skip
        if found["activation_func"] == "gelu":  # which experts have no fused form of
            found["bias_activation_fusion"] = False
    else:
        found["add_bias_linear"] = choice.rarely(6)
    if "num_moe_experts" not in found and "multi_latent_attention" not in found and choice.rarely(2):
        found.update(experimental_attention_variant="gdn", linear_attention_freq=choice.of(2, 3))
    return found
