"""Megatron-Bridge's theoretical memory estimate: a drop-in for its API.

from megatron_memory_estimator.formulas.bridge import estimate_training_memory

Source: Megatron-Bridge `src/megatron/bridge/training/utils/theoretical_memory_utils.py` and
`docs/training/theoretical-memory-estimator.md`; the activation term is Table 2 of Korthikanti et al.,
https://arxiv.org/abs/2205.05198. It takes any object with the attributes of a `ConfigContainer`.

The values are the published formula's, also where it is known to be wrong:

- A gated MLP whose activation is not SiLU counts as two matrices of three: GPT-OSS-120B comes to 78.56 B parameters for
  116.8 B, and its EP8 states to 174.95 GiB for 255.04 (-31 %); Gemma-3-27B to 19.85 B for 27.01 B (-27 %).
- There is no multi-latent attention: a DeepSeek-V3 layer has 205.5 M attention parameters for 187.1 M with kv_channels 56,
  469.8 M with kv_channels 128.
- Equal stages are averaged, MTP layers too: DeepSeek-V3's dense first layers and its MTP layer are spread over all stages
  (the total of a measured DeepSeek-V3 with PP2 comes out 23 % too low).
- The activation term is a 2022 layer: not gated, with dropout masks, core attention recomputed, heads * kv_channels = h.
  On measured DeepSeek-V2 and V3 layers the part that is not model state is 53 to 60 % too low.
- Other recomputation than selective, and runs without sequence parallelism, get the same activation figure from the API
  and none from the report; the interleave factor ignores the number of microbatches (PP4 VPP5 with 4: 1.15 for a
  pipeline that never fills).
- Norms count 2h each (LayerNorm) and everything dense is divided by tp; there is no router.

What Megatron-Bridge's formula reads of a ConfigContainer, and the parameters that follow from it.

Parameters of the parts that the published formulas distinguish, from the engine's own declarations at degree 1.

Whole numbers of foreign configs, checked in the words of the published functions.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from ..modules.counts import PUBLISHED_SHAPES
from ..modules.layers import final_norm_unit, layer_unit

NUM_BYTES_IN_MEGABYTE = 1024 * 1024
NUM_BYTES_IN_GIGABYTE = 1024 * 1024 * 1024
ASSUMPTIONS = (
    "the most loaded GPU: with equal stages one average stage with the embedding, else the fullest stage, for dense and for routed "
    "parameters by itself",
    "bf16 weights, fp32 gradients and main parameters, two fp32 moments: 18 bytes, or 6 + 12 / shard with the distributed "
    "optimizer",
    "activations of sequence parallelism with selective recomputation of core attention",
    "no allocator fragmentation, kernel workspaces, NCCL buffers, CUDA graphs, routing imbalance, dispatcher buffers, "
    "offloading or full recomputation",
)


@dataclass(frozen=True)
class MemoryComponentEstimate:
    """One part of the estimate; `memory_bytes` are bytes of one GPU."""

    name: str
    parameter_count: float = 0.0
    parameter_count_per_gpu: float = 0.0
    bytes_per_parameter: float = 0.0
    memory_bytes: float = 0.0

    @property
    def memory_mb(self) -> float:
        """MiB."""
        return self.memory_bytes / NUM_BYTES_IN_MEGABYTE

    @property
    def memory_gb(self) -> float:
        """GiB."""
        return self.memory_bytes / NUM_BYTES_IN_GIGABYTE


@dataclass(frozen=True)
class TrainingMemoryEstimate:
    """Model state by component, activations (None if not asked for), and what the formula assumes."""

    model_state_components: tuple[MemoryComponentEstimate, ...]
    activation: MemoryComponentEstimate | None
    total_parameters: float
    assumptions: tuple[str, ...]

    @property
    def weight_and_optimizer_bytes(self) -> float:
        """Bytes of weights, gradients and optimizer."""
        return sum(component.memory_bytes for component in self.model_state_components)

    @property
    def total_memory_bytes(self) -> float:
        """Bytes of state and activations."""
        return self.weight_and_optimizer_bytes + (self.activation.memory_bytes if self.activation else 0.0)

    @property
    def total_memory_mb(self) -> float:
        """MiB."""
        return self.total_memory_bytes / NUM_BYTES_IN_MEGABYTE

    @property
    def total_memory_gb(self) -> float:
        """GiB."""
        return self.total_memory_bytes / NUM_BYTES_IN_GIGABYTE


def estimate_training_memory(
    config: Any, num_microbatches: int | None = None, *, include_activation: bool = True
) -> TrainingMemoryEstimate:
    """Weights, gradients, optimizer and activations of the most loaded GPU.

    `config` has `model`, `train`, `optimizer` and `data_parallel_size`. Raises ValueError for values out of range, a
    wrong `moe_layer_freq`, and pipeline stages that do not cover the layers.
    """
    shape = BridgeShape.of(config)
    stages = _stages(shape)
    stage = Held(max(held.dense for held in stages), max(held.routed for held in stages))  # perhaps of two stages
    total_dense, total_routed = _totals(shape)
    sharded = bool(config.optimizer.use_distributed_optimizer)
    dp = positive("data_parallel_size", config.data_parallel_size)
    expert_shard = max(1, dp * shape.tp * shape.cp // (shape.ep * shape.etp))
    components = [_component("dense parameters and optimizer", total_dense, stage.dense, sharded, dp * shape.cp)]
    if total_routed > 0:
        components.append(
            _component("routed expert parameters and optimizer", total_routed, stage.routed, sharded, expert_shard)
        )
    activation = None
    if include_activation:
        memory = compute_activation_memory(config, num_microbatches)
        activation = MemoryComponentEstimate(name="activation", memory_bytes=memory)
    return TrainingMemoryEstimate(tuple(components), activation, total_dense + total_routed, ASSUMPTIONS)


def format_training_memory_estimate(estimate: TrainingMemoryEstimate, *, unit: str = "MB") -> str:
    """One line with every component and the total. Raises ValueError for a unit other than MB and GB."""
    divisors = {"MB": NUM_BYTES_IN_MEGABYTE, "GB": NUM_BYTES_IN_GIGABYTE}
    word = unit.upper()
    if word not in divisors:
        raise ValueError(f"Unsupported memory unit: {unit}")
    parts = [*estimate.model_state_components, *([estimate.activation] if estimate.activation else [])]
    shown = [f"{part.name}={part.memory_bytes / divisors[word]:.2f} {word}" for part in parts]
    total = f"total={estimate.total_memory_bytes / divisors[word]:.2f} {word}"
    return "Theoretical memory footprints: " + ", ".join([*shown, total])


def compute_weight_and_optimizer_memory(config: Any, verbose: bool = False) -> float:
    """Bytes of weights, gradients and optimizer on the most loaded GPU."""
    estimate = estimate_training_memory(config, include_activation=False)
    if verbose:
        print(f"Total number of parameters in billions: {estimate.total_parameters / 1e9:.2f}")
        for part in estimate.model_state_components:
            print(
                f"{part.name}: {part.parameter_count / 1e9:.2f} billion in all, {part.parameter_count_per_gpu / 1e9:.4f} "
                f"billion on the most loaded GPU, {part.bytes_per_parameter:.2f} bytes each"
            )
    return estimate.weight_and_optimizer_bytes


def compute_activation_memory(config: Any, num_microbatches: int | None, verbose: bool = False) -> float:
    """Bytes of activations on the first pipeline stage, with sequence parallelism and selective recomputation."""
    shape = BridgeShape.of(config)
    s = positive("seq_length", config.model.seq_length)
    b = positive("micro_batch_size", config.train.micro_batch_size)
    h = shape.model.hidden_size
    kinds = shape.moe_layers + shape.mtp_layers
    layers = len(kinds)
    widths = [shape.active_width if moe else shape.model.ffn for moe in kinds]
    ratio = sum(widths) / layers / h
    per_layer = s * b * h * (18 + 4 * ratio)
    memory = per_layer * layers + 8 * s * b * shape.pp + s * b * h * shape.pp
    if verbose:
        ways = shape.tp * shape.cp
        print(f"Activation memory footprint per transformer layer: {per_layer / NUM_BYTES_IN_MEGABYTE / ways:.1f} MB")
    if shape.vpp is not None:
        penalty = 1 + (shape.pp - 1) / (shape.pp * shape.vpp)
        memory *= penalty
        if verbose:
            print(f"Memory penalty from interleaved schedule: {penalty:.2f}")
            print(f"Number of in-flight microbatches: {math.ceil(penalty * shape.pp)}")
    elif shape.pp > 1 and num_microbatches is not None:
        memory *= min(1, positive("num_microbatches", num_microbatches) / shape.pp)
        if verbose:
            print(f"Number of in-flight microbatches: {min(num_microbatches, shape.pp)}")
    if shape.pp == 1:
        memory += 4 * s * b * (h + shape.vocab)
    return float(memory / (shape.tp * shape.cp))


def report_theoretical_memory(config: Any, num_microbatches: int | None = None, verbose: bool = False) -> None:
    """Print the estimate in MB; activations only with sequence parallelism and selective recomputation."""
    if any(owner.__name__ == "MegatronMIMOProvider" for owner in type(config.model).__mro__):
        return
    state = compute_weight_and_optimizer_memory(config, verbose=verbose) / NUM_BYTES_IN_MEGABYTE
    line = f"Theoretical memory footprints: weight and optimizer={state:.2f} MB"
    if config.model.sequence_parallel and config.model.recompute_granularity == "selective":
        activation = compute_activation_memory(config, num_microbatches, verbose=verbose) / NUM_BYTES_IN_MEGABYTE
        line += f", activation={activation:.2f} MB, total={state + activation:.2f} MB"
    print(line)


def _totals(shape: BridgeShape) -> Held:
    """Parameters of the whole model: tied tables once."""
    block = shape.block(shape.moe_layers + shape.mtp_layers)
    tables = 1 if shape.tied else 2
    return Held(block.dense + final_norm(shape.model) + tables * shape.embedding, block.routed)


def _stages(shape: BridgeShape) -> list[Held]:
    """Parameters on one GPU of each pipeline stage; equal stages are one average stage with the embedding."""
    counts = _layers_of_stages(shape)
    if counts is None:
        block = shape.block(shape.moe_layers + shape.mtp_layers)
        tables = 2 if shape.pp == 1 and not shape.tied else 1
        dense = (block.dense + final_norm(shape.model)) / shape.pp + tables * shape.embedding
        return [Held(dense / shape.tp, block.routed / shape.pp / (shape.ep * shape.etp))]
    stages = []
    for index, layers in enumerate(_kinds_of_stages(shape, counts)):
        is_last = index == len(counts) - 1
        block = shape.block(layers + (shape.mtp_layers if is_last else ()))
        dense = block.dense + (shape.embedding if index == 0 or is_last else 0)
        dense += final_norm(shape.model) if is_last else 0
        stages.append(Held(dense / shape.tp, block.routed / (shape.ep * shape.etp)))
    return stages


def _kinds_of_stages(shape: BridgeShape, counts: list[int]) -> list[tuple[bool, ...]]:
    """The kinds of the layers of each stage, chunk by chunk through the virtual stages."""
    chunks, start = shape.vpp or 1, 0
    found: list[tuple[bool, ...]] = [()] * len(counts)
    for _ in range(chunks):
        for index, count in enumerate(counts):
            found[index] += shape.moe_layers[start : start + count // chunks]
            start += count // chunks
    return found


def _layers_of_stages(shape: BridgeShape) -> list[int] | None:
    """Layers of each stage when the first or last differs, else None."""
    if shape.first is None and shape.last is None:
        return None
    if shape.pp == 1:
        raise ValueError("Uneven pipeline stages require pipeline_model_parallel_size greater than 1")
    ends = [count for count in (shape.first, shape.last) if count is not None]
    left, stages = len(shape.moe_layers) - sum(ends), shape.pp - len(ends)
    if left < 0 or (stages == 0 and left) or (stages and not left):
        raise ValueError("Uneven pipeline stage layer counts do not cover all model layers")
    if stages and left % stages:
        raise ValueError("Model layers must divide evenly over the remaining pipeline stages")
    middle = [left // stages] * stages if stages else []
    counts = [*([shape.first] if shape.first else []), *middle, *([shape.last] if shape.last else [])]
    if shape.vpp is not None and any(count % shape.vpp for count in counts):
        raise ValueError("Each uneven pipeline stage layer count must divide over virtual pipeline stages")
    return counts


def _component(name: str, total: float, held: float, sharded: bool, shards: int) -> MemoryComponentEstimate:
    each = 6 + 12 / shards if sharded else 18.0
    return MemoryComponentEstimate(name, total, held, each, held * each)


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


_PARTS = (
    ("experts", r"mlp\.experts\.linear_\w+\.weight"),
    ("gate", r"mlp\.shared_experts\.gate_weight"),
    ("shared", r"mlp\.shared_experts\.linear_\w+\.weight"),
    ("latent", r"mlp\.fc[12]_latent_proj\.weight"),
    ("router", r"mlp\.router\.\w+"),
    (
        "norms",
        r"input_layernorm\.\w+|pre_mlp_layernorm\.\w+|(self_attention\.linear_qkv|mlp\.linear_fc1)\.layer_norm_\w+",
    ),
    ("mlp", r"mlp\.linear_fc[12]\.weight"),
    ("bias", r".*(linear_\w+|latent_proj)\.bias"),
    ("attention", r"self_attention\..+"),
)


@dataclass(frozen=True)
class Parts:
    """Parameters of one layer by part; biases of linears are in none of the published formulas."""

    attention: int = 0
    norms: int = 0
    mlp: int = 0
    experts: int = 0
    shared: int = 0
    gate: int = 0
    latent: int = 0
    router: int = 0
    bias: int = 0


def layer_parts(model: Model, *, moe: bool) -> Parts:
    """Parameters of one dense or MoE layer of `model`."""
    kind = f"{'mla' if model.multi_latent_attention else 'gqa'}+{'moe' if moe else 'dense'}"
    found: dict[str, int] = {}
    for param in layer_unit(_context(model), kind).params:
        part = next(name for name, pattern in _PARTS if re.fullmatch(pattern, param.name))
        found[part] = found.get(part, 0) + param.numel
    return Parts(**found)


def final_norm(model: Model) -> int:
    """Parameters of the norm behind the last layer."""
    return sum(param.numel for param in final_norm_unit(_context(model)).params)


def _context(model: Model) -> Context:
    return Context(model, Layout(), Training(seq_length=1, megatron_core_version=PUBLISHED_SHAPES), "cudnn")


def whole(name: str, value: Any) -> int:
    """A whole number of at least 0, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 0:
        raise ValueError(f"{name} must be non-negative")
    return found


def positive(name: str, value: Any) -> int:
    """A whole number of at least 1, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 1:
        raise ValueError(f"{name} must be positive")
    return found


def plain(value: Any) -> Any:
    """A NumPy number or array as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _integer(value: Any) -> int | None:
    value = plain(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None
