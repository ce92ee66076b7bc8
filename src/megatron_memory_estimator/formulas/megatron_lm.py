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
"""

from __future__ import annotations

import math
from typing import Any

from ._ledger import final_norm
from ._megatron_shape import Buckets, MegatronShape, reader
from ._numbers import positive
from .bridge import NUM_BYTES_IN_MEGABYTE

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
