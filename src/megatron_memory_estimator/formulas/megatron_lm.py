"""Megatron-LM's theoretical memory report: a drop-in for its functions.

from megatron_memory_estimator.formulas.megatron_lm import report_theoretical_memory

Source: Megatron-LM `megatron/training/theoretical_memory_usage.py` (MoE-aware version, August 2026); the activation terms
are Tables 2 of Korthikanti et al., https://arxiv.org/abs/2205.05198. It takes an argparse namespace or a mapping, before or
after Megatron-LM has validated it, and does not change it.

The values are the published formula's, also where it is known to be wrong:

- Context parallelism is in neither state nor activations: measured Llama runs with cp 8 and 4 at 32K come out 134 and
  163 % too high.
- Unequal stages are averaged: the states of DeepSeek-V3's last stage of 16 layers are 179.7 GiB for 197 (-9 %).
- An MoE layer's activations are those of a dense layer with the dense ffn_hidden_size, whatever the routing.
- The activation term is a 2022 layer: not gated, with dropout masks. On measured DeepSeek-V2 and V3 layers the part that
  is not model state is 53 to 60 % too low.
- A gated MLP that is not SwiGLU counts as two matrices of three: the EP8 states of GPT-OSS-120B come to 175.0 GiB for 255.0.
- Any recomputation but selective takes the branch without sequence parallelism also where that is on: 34.3 GiB for about
  10.7 on a Llama-3-70B stage (3.2 times).
- The interleave factor ignores the number of microbatches; MTP projections and norms, and linear biases, are not counted.

What Megatron-LM's report reads of its arguments, and the parameters that follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..job.model import Model
from .bridge import NUM_BYTES_IN_MEGABYTE, Parts, final_norm, layer_parts, plain, positive, whole

NOT_SUPPORTED = "Theoretical memory footprints not yet supported for hybrid models."


def compute_weight_and_optimizer_memory(args: Any, verbose: bool = False) -> float:
    """Bytes of weights, gradients and optimizer on the most loaded GPU.

    Raises TypeError for a `moe_layer_freq` that is neither a whole number nor a list, ValueError for one of wrong length or
    value, for missing or wrong sizes, and for multi-latent attention with group query attention.
    """
    shape = MegatronShape.of(args)
    layers = shape.layers
    block = Buckets(replicated=final_norm(shape.model))
    for moe in layers:
        block = block.plus(shape.layer(moe))
    mtp = Buckets().plus(shape.layer(layers[-1]), shape.mtp)
    dense, experts, other = shape.held(block, mtp)
    if shape.distributed:
        memory = dense * (6 + 12 / shape.dp) + experts * (6 + 12 / shape.expert_dp)
    else:
        memory = (dense + experts) * 18.0
    if verbose:
        tables = shape.embedding * (1 if shape.tied else 2)
        lines: list[tuple[str, float]] = [
            ("Number of parameters in transformer block", block.total),
            ("Number of active parameters in it", block.used),
        ]
        if shape.mtp:
            lines.append(("Number of parameters in mtp block", mtp.total))
        lines += [
            ("Number of parameters in embedding layers", tables),
            ("Total number of parameters", block.total + mtp.total + tables),
            ("Total number of active parameters", block.used + mtp.used + tables),
            ("Number of parameters in most loaded shard", dense + experts),
        ]
        if shape.pp > 1:
            lines.append(("Number of parameters in other shards", other))
        for name, count in lines:
            print(f"{name} in billions: {count / 1e9:.4f}")
    return memory


def compute_activation_memory(args: Any, num_microbatches: int | None, verbose: bool = False) -> float:
    """Bytes of activations on the first stage, with sequence parallelism and selective recomputation."""
    shape = MegatronShape.of(args)
    s, b, h = shape.seq, shape.batch, shape.model.hidden_size
    per_layer = s * b * h * (18 + 4 * shape.model.ffn / h)
    memory = _in_flight(shape, per_layer, num_microbatches, verbose, per_layer / shape.tp)
    if shape.pp == 1:
        memory += 4 * s * b * h * (1 + shape.vocab / h)
    return memory / shape.tp


def compute_activation_memory_without_sp(args: Any, num_microbatches: int | None, verbose: bool = False) -> float:
    """Bytes of activations on the first stage without sequence parallelism; the published factor 1.05 included."""
    shape = MegatronShape.of(args)
    s, b, h = shape.seq, shape.batch, shape.model.hidden_size
    per_layer = s * b * h * (10 + 24 / shape.tp)
    memory = _in_flight(shape, per_layer, num_microbatches, verbose, per_layer)
    if shape.pp == 1:
        memory += 2 * (s * b * shape.vocab / shape.tp + s * b * h)
    return memory * 1.05


def report_theoretical_memory(
    args: Any, num_microbatches: int | None = None, verbose: bool = False
) -> tuple[float, float, float] | None:
    """Print the report; returns (weights and optimizer, activations, total) in MB of 2^20 bytes, None for hybrid models."""
    read = reader(args)
    if read("is_hybrid_model") or read("hybrid_layer_pattern") or read("hybrid_override_pattern"):
        print(NOT_SUPPORTED)
        return None
    state = compute_weight_and_optimizer_memory(args, verbose=verbose) / NUM_BYTES_IN_MEGABYTE
    if takes_selective_branch(args):
        print("Activation memory with sequence parallelism and selective recomputation")
        activation = compute_activation_memory(args, num_microbatches, verbose=verbose)
    else:
        print("Activation memory without sequence parallelism")
        activation = compute_activation_memory_without_sp(args, num_microbatches, verbose=verbose)
    activation /= NUM_BYTES_IN_MEGABYTE
    total = state + activation
    print(
        f"Theoretical memory footprints: weight and optimizer={state:.2f} MB, activation={activation:.2f} MB, "
        f"total={total:.2f} MB"
    )
    return state, activation, total


def _in_flight(shape: MegatronShape, per_layer: float, microbatches: int | None, verbose: bool, shown: float) -> float:
    """The activations of all layers and the pipeline's inputs, times what the schedule keeps."""
    s, b, p = shape.seq, shape.batch, shape.pp
    memory = per_layer * len(shape.layers) + 8 * s * b * p + s * b * shape.model.hidden_size * p
    if verbose:
        print(f"Activation memory footprint per transformer layer: {shown / NUM_BYTES_IN_MEGABYTE:.1f} MB")
    if shape.vpp is not None:
        penalty = 1 + (p - 1) / (p * shape.vpp)
        if verbose:
            print(f"Memory penalty from interleaved schedule: {penalty:.2f}")
            print(f"Number of in-flight microbatches: {math.ceil(penalty * p)}")
        return memory * penalty
    if p > 1:
        if verbose:
            print(f"Number of in-flight microbatches: {min(microbatches or p, p)}")
        if microbatches is not None:
            return memory * min(1, positive("num_microbatches", microbatches) / p)
    return memory


def takes_selective_branch(args: Any) -> bool:
    """Whether the report takes the branch with sequence parallelism, which Megatron-LM switches off at tp 1."""
    read = reader(args)
    granularity = read("recompute_granularity") or ("selective" if read("recompute_activations") else None)
    many = positive("tensor_model_parallel_size", read("tensor_model_parallel_size", 1)) > 1
    return bool(read("sequence_parallel")) and many and granularity == "selective"


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
