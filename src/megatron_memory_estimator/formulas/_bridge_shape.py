"""What Megatron-Bridge's formula reads of a ConfigContainer, and the parameters that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..job.model import Model
from ._ledger import Parts, layer_parts
from ._numbers import plain, positive, whole


class Held(NamedTuple):
    """Parameters on one GPU of a stage."""

    dense: float
    routed: float


@dataclass(frozen=True)
class BridgeShape:
    """What the formula reads of a config."""

    model: Model
    moe_layers: tuple[bool, ...]
    mtp: int
    vocab: int
    tied: bool
    active_width: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    vpp: int | None
    first: int | None
    last: int | None

    @classmethod
    def of(cls, config: Any) -> BridgeShape:
        """What the formula reads. Raises ValueError for a value that is out of range."""
        m = config.model
        tp = positive("tensor_model_parallel_size", m.tensor_model_parallel_size)
        layers = positive("num_layers", m.num_layers)
        model = _layer_model(m)
        experts = model.num_moe_experts is not None
        routed_to = _or(getattr(m, "moe_router_topk", None), _or(getattr(m, "num_experts_routed_to", None), 1))
        topk = positive("moe_router_topk", routed_to) if experts else 0
        shared = model.moe_shared_expert_intermediate_size or 0
        vpp = getattr(m, "virtual_pipeline_model_parallel_size", None)
        return cls(
            model=model,
            moe_layers=_moe_layers(getattr(m, "moe_layer_freq", 1), layers) if experts else (False,) * layers,
            mtp=whole("mtp_num_layers", getattr(m, "mtp_num_layers", None) or 0),
            vocab=_padded_vocabulary(m, tp),
            tied=bool(m.share_embeddings_and_output_weights),
            active_width=topk * (model.moe_ffn_hidden_size or 0) + shared,
            tp=tp,
            pp=positive("pipeline_model_parallel_size", m.pipeline_model_parallel_size),
            cp=positive("context_parallel_size", _or(getattr(m, "context_parallel_size", None), 1)),
            ep=positive("expert_model_parallel_size", _or(getattr(m, "expert_model_parallel_size", None), 1)),
            etp=positive("expert_tensor_parallel_size", _or(getattr(m, "expert_tensor_parallel_size", None), 1)),
            vpp=positive("virtual_pipeline_model_parallel_size", vpp) if vpp is not None else None,
            first=_stage_layers(m, "num_layers_in_first_pipeline_stage"),
            last=_stage_layers(m, "num_layers_in_last_pipeline_stage"),
        )

    def layer(self, moe: bool) -> Held:
        """Parameters of one layer, not sharded."""
        parts: Parts = layer_parts(self.model, moe=moe)
        dense = parts.attention + parts.norms + parts.mlp + parts.shared + parts.latent
        return Held(dense, parts.experts)

    def block(self, moe_layers: Sequence[bool]) -> Held:
        """Parameters of several layers, not sharded."""
        kinds = {moe: self.layer(moe) for moe in set(moe_layers)}
        return Held(sum(kinds[moe].dense for moe in moe_layers), sum(kinds[moe].routed for moe in moe_layers))

    @property
    def mtp_layers(self) -> tuple[bool, ...]:
        """MTP layers are of the last layer's kind."""
        return self.moe_layers[-1:] * self.mtp

    @property
    def embedding(self) -> int:
        """Parameters of one embedding table."""
        return self.model.hidden_size * self.vocab


def _layer_model(m: Any) -> Model:
    """A model of one layer, with the sizes that its parameters depend on."""
    h = positive("hidden_size", m.hidden_size)
    heads = positive("num_attention_heads", m.num_attention_heads)
    ffn = positive("ffn_hidden_size", _or(m.ffn_hidden_size, 4 * h))
    latent = getattr(m, "moe_latent_size", None)
    shared = getattr(m, "moe_shared_expert_intermediate_size", None)
    return Model(
        num_layers=1,
        hidden_size=h,
        num_attention_heads=heads,
        num_query_groups=positive("num_query_groups", _or(m.num_query_groups, heads)),
        kv_channels=positive("kv_channels", _or(m.kv_channels, h // heads)),
        ffn_hidden_size=ffn,
        vocab_size=1,
        normalization="LayerNorm",
        gated_linear_unit=bool(m.gated_linear_unit) and _is_silu(m.activation_func),
        add_bias_linear=False,
        num_moe_experts=whole("num_moe_experts", getattr(m, "num_moe_experts", None) or 0) or None,
        moe_router_topk=1,
        moe_ffn_hidden_size=positive("moe_ffn_hidden_size", _or(getattr(m, "moe_ffn_hidden_size", None), ffn)),
        moe_shared_expert_intermediate_size=whole("moe_shared_expert_intermediate_size", shared or 0) or None,
        moe_latent_size=positive("moe_latent_size", latent) if latent else None,
    )


def _moe_layers(freq: Any, layers: int) -> tuple[bool, ...]:
    """Which layers have routed experts."""
    freq = plain(freq)
    if isinstance(freq, int) and not isinstance(freq, bool):
        if freq < 1:
            raise ValueError("moe_layer_freq must be positive")
        return tuple(i % freq == 0 for i in range(layers))
    if isinstance(freq, Sequence) and not isinstance(freq, str):
        if len(freq) != layers:
            raise ValueError(f"Invalid moe_layer_freq length: {len(freq)} for {layers} layers")
        if any(flag not in (0, 1) for flag in freq):
            raise ValueError(f"Unsupported moe_layer_freq value: {list(freq)}")
        return tuple(bool(flag) for flag in freq)
    raise ValueError(f"Unsupported moe_layer_freq value: {freq!r}")


def _padded_vocabulary(m: Any, tp: int) -> int:
    vocab = positive("vocab_size", m.vocab_size)
    if not getattr(m, "should_pad_vocab", False):
        return vocab
    multiple = positive("make_vocab_size_divisible_by", _or(getattr(m, "make_vocab_size_divisible_by", None), 128)) * tp
    return -(-vocab // multiple) * multiple


def _is_silu(function: Any) -> bool:
    """`torch.nn.functional.silu`, or its name."""
    return (function if isinstance(function, str) else getattr(function, "__name__", "")) == "silu"


def _stage_layers(m: Any, name: str) -> int | None:
    value = getattr(m, name, None)
    return None if value is None else positive(name, value)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
