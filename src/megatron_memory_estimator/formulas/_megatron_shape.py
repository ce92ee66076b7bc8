"""What Megatron-LM's report reads of its arguments, and the parameters that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..job.model import Model
from ._ledger import Parts, layer_parts
from ._numbers import plain, positive, whole

Reader = Callable[..., Any]
"""Gives the value of an argument by its name, and perhaps a default."""


class Buckets(NamedTuple):
    """Parameters by how they are sharded: over tp, not at all, over expert tp and ep; `active` experts of one token."""

    sharded: int = 0
    replicated: int = 0
    experts: int = 0
    active: int = 0

    def plus(self, other: Buckets, times: int = 1) -> Buckets:
        """The sum with `times` of the other."""
        return Buckets(*(mine + theirs * times for mine, theirs in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        """All parameters."""
        return self.sharded + self.replicated + self.experts

    @property
    def used(self) -> int:
        """Parameters that one token uses."""
        return self.sharded + self.replicated + self.active


@dataclass(frozen=True)
class MegatronShape:
    """What the formula reads of the arguments, with Megatron-LM's derivations for what validation has not filled in."""

    model: Model
    layers: tuple[bool, ...]
    topk: int
    mtp: int
    vocab: int
    tied: bool
    tp: int
    pp: int
    vpp: int | None
    experts_ways: int
    dp: int
    expert_dp: int
    distributed: bool
    seq: int
    batch: int

    @classmethod
    def of(cls, args: Any) -> MegatronShape:
        """What the formula reads. Raises ValueError for a value that is missing or out of range."""
        read = reader(args)
        model, layers = _layer_model(read), positive("num_layers", read("num_layers"))
        tp, pp = _degree(read, "tensor_model_parallel_size"), _degree(read, "pipeline_model_parallel_size")
        cp = _degree(read, "context_parallel_size")
        ways = positive("expert_tensor_parallel_size", read("expert_tensor_parallel_size") or tp)
        ways *= _degree(read, "expert_model_parallel_size")
        dp, world = _optional(read, "data_parallel_size"), _optional(read, "world_size")
        if dp is None and world is None:
            raise ValueError("give world_size or data_parallel_size: optimizer shards depend on it")
        world = world if world is not None else (dp or 1) * tp * pp * cp
        has_experts = model.num_moe_experts is not None
        return cls(
            model=model,
            layers=_moe_layers(read("moe_layer_freq", 1), layers) if has_experts else (False,) * layers,
            topk=positive("moe_router_topk", read("moe_router_topk", 2)),
            mtp=whole("mtp_num_layers", read("mtp_num_layers") or 0),
            vocab=_vocabulary(read, tp),
            tied=not read("untie_embeddings_and_output_weights"),
            tp=tp,
            pp=pp,
            vpp=_chunks(read, layers, pp),
            experts_ways=ways,
            dp=dp if dp is not None else max(1, world // (tp * pp * cp)),
            expert_dp=max(1, world // (ways * pp)),
            distributed=bool(read("use_distributed_optimizer")),
            seq=positive("seq_length", read("seq_length")),
            batch=positive("micro_batch_size", read("micro_batch_size", 1)),
        )

    def layer(self, moe: bool) -> Buckets:
        """Parameters of one layer."""
        parts: Parts = layer_parts(self.model, moe=moe)
        active = parts.experts // (self.model.num_moe_experts or 1) * self.topk
        return Buckets(
            sharded=parts.attention + parts.mlp + parts.shared,
            replicated=parts.norms + parts.router + parts.latent + parts.gate,
            experts=parts.experts,
            active=active,
        )

    def held(self, block: Buckets, mtp: Buckets) -> tuple[float, float, float]:
        """(dense, experts) on the most loaded GPU, and all parameters of another stage's GPU."""
        sharded, replicated, experts = (part / self.pp for part in block[:3])
        other = sharded / self.tp + replicated + experts / self.experts_ways
        tables = 2 if not self.tied and self.pp == 1 else 1
        dense = (sharded + mtp.sharded + tables * self.embedding) / self.tp + replicated + mtp.replicated
        return dense, (experts + mtp.experts) / self.experts_ways, other

    @property
    def embedding(self) -> int:
        """Parameters of one embedding table."""
        return self.model.hidden_size * self.vocab


def reader(args: Any) -> Reader:
    """Reads one argument of a namespace or mapping; not there or None gives the default."""

    def read(name: str, default: Any = None) -> Any:
        if isinstance(args, Mapping):
            value = args.get(name, args.get(name.replace("_", "-")))
        else:
            value = getattr(args, name, None)
        return default if value is None else value

    return read


def _optional(read: Reader, name: str) -> int | None:
    """A whole number, None for 0 or where nothing is given."""
    return whole(name, read(name) or 0) or None


def _degree(read: Reader, name: str) -> int:
    return positive(name, read(name, 1))


def _layer_model(read: Reader) -> Model:
    """A model of one layer, with the sizes that its parameters depend on."""
    h = positive("hidden_size", read("hidden_size"))
    heads = positive("num_attention_heads", read("num_attention_heads"))
    gated = bool(read("swiglu"))
    ffn = positive("ffn_hidden_size", read("ffn_hidden_size") or (int(4 * h * 2 / 3 / 64) * 64 if gated else 4 * h))
    mla, grouped = bool(read("multi_latent_attention")), bool(read("group_query_attention"))
    if mla and grouped:
        raise ValueError("group_query_attention does not go with multi_latent_attention")
    experts = whole("num_experts", read("num_experts") or read("num_moe_experts") or 0)
    normalization = read("normalization", "LayerNorm")
    if normalization not in ("LayerNorm", "RMSNorm"):
        raise ValueError(f"normalization must be LayerNorm or RMSNorm, not {normalization!r}")
    return Model(
        num_layers=1,
        hidden_size=h,
        num_attention_heads=heads,
        num_query_groups=_degree(read, "num_query_groups") if grouped else heads,
        kv_channels=positive("kv_channels", read("kv_channels") or h // heads),
        ffn_hidden_size=ffn,
        vocab_size=1,
        normalization=normalization,
        gated_linear_unit=gated,
        add_bias_linear=bool(read("add_bias_linear", not read("disable_bias_linear", False))),
        qk_layernorm=mla,
        multi_latent_attention=mla,
        q_lora_rank=_optional(read, "q_lora_rank"),
        kv_lora_rank=positive("kv_lora_rank", read("kv_lora_rank", 32)),
        qk_head_dim=positive("qk_head_dim", read("qk_head_dim", 128)),
        qk_pos_emb_head_dim=positive("qk_pos_emb_head_dim", read("qk_pos_emb_head_dim", 64)),
        v_head_dim=positive("v_head_dim", read("v_head_dim", 128)),
        num_moe_experts=experts or None,
        moe_router_topk=1,
        moe_ffn_hidden_size=positive("moe_ffn_hidden_size", read("moe_ffn_hidden_size") or ffn),
        moe_shared_expert_intermediate_size=_optional(read, "moe_shared_expert_intermediate_size"),
        moe_shared_expert_gate=bool(read("moe_shared_expert_gate")),
        moe_latent_size=_optional(read, "moe_latent_size"),
    )


def _chunks(read: Reader, layers: int, pp: int) -> int | None:
    """Model chunks per rank, from whichever spelling is there; 1 is no interleaving, as after validation."""
    per = _optional(read, "num_layers_per_virtual_pipeline_stage")
    chunks = _optional(read, "virtual_pipeline_model_parallel_size")
    chunks = chunks or _optional(read, "num_virtual_stages_per_pipeline_rank")
    if chunks is None and per is not None:
        if layers % (pp * per):
            raise ValueError(
                f"num_layers_per_virtual_pipeline_stage={per} does not divide {layers} layers over {pp} stages"
            )
        chunks = layers // pp // per
    return chunks if chunks is not None and chunks > 1 else None


def _vocabulary(read: Reader, tp: int) -> int:
    """The padded vocabulary: as given, or padded as Megatron-LM does (`tokenizer.py`)."""
    padded = read("padded_vocab_size")
    if padded is not None:
        return positive("padded_vocab_size", padded)
    multiple = positive("make_vocab_size_divisible_by", read("make_vocab_size_divisible_by", 128)) * tp
    return -(-positive("vocab_size", read("vocab_size")) // multiple) * multiple


def _moe_layers(freq: Any, layers: int) -> tuple[bool, ...]:
    """Which layers have routed experts: every freq-th, or as the list says."""
    freq = plain(freq)
    if isinstance(freq, int) and not isinstance(freq, bool):
        if freq < 1:
            raise ValueError(f"moe_layer_freq must be positive, not {freq}")
        return tuple(i % freq == 0 for i in range(layers))
    if isinstance(freq, str) or not isinstance(freq, Sequence):
        raise TypeError(f"moe_layer_freq must be a whole number or a list, not {type(freq).__name__}")
    if len(freq) != layers:
        raise ValueError(f"moe_layer_freq has {len(freq)} entries for num_layers={layers}")
    if any(flag not in (0, 1) for flag in freq):
        raise ValueError(f"moe_layer_freq may hold 0 and 1 only: {list(freq)}")
    return tuple(bool(flag) for flag in freq)
