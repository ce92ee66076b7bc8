"""Activation offloading: what leaves the GPU between a layer's forward and its backward.

Layer-level (`cpu_offloading`): everything that the first `cpu_offloading_num_layers` layers keep. Fine-grained: what the ops of
`offload_modules` keep, tensors of at least `min_offloaded_tensor_size` elements; a tensor that an op outside them keeps too
stays. The last layer of each kind on a rank keeps its own, because there is no time to bring it back. Layer-level, one layer's
tensors are on their way while another runs, in both directions (two with double buffering); fine-grained, those of one module.

Source: Megatron-LM `megatron/core/pipeline_parallel/fine_grained_activation_offload.py`; TransformerEngine
`pytorch/cpu_offload.py`.
"""

from __future__ import annotations

from .simulate import Live, Trace
from .tensor import Tensor, numel_of
from .training import Training

SAVED = "saved for the backward of "
MODULES: dict[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm",),
    "qkv_linear": (
        "self_attention.linear_qkv", "self_attention.linear_q_proj", "self_attention.linear_q_down_proj",
        "self_attention.linear_kv_down_proj",
    ),
    "core_attn": ("self_attention.core_attention",),
    "attn_proj": ("self_attention.linear_proj",),
    "mlp_norm": ("pre_mlp_layernorm",),
    "expert_fc1": ("mlp.experts.linear_fc1",),
    "moe_act": ("mlp.experts.activation",),
}  # fmt: skip
"""Beginnings of the ops whose saved tensors an offload module takes."""


def offloads(training: Training) -> bool:
    """Whether activations are offloaded."""
    return training.cpu_offloading_num_layers > 0 or training.fine_grained_activation_offloading


def offloaded_layers(training: Training, kinds: list[str], *, last: bool, mtp: bool) -> tuple[bool, ...]:
    """Which layers of a model chunk offload what they keep; `last` is the rank's last chunk, `mtp` ends it with MTP."""
    t = training
    if t.cpu_offloading_num_layers:
        return tuple(index < t.cpu_offloading_num_layers for index in range(len(kinds)))
    end = {kind: index for index, kind in enumerate(kinds)} if last and not mtp else {}
    eligible = [index for index, kind in enumerate(kinds) if end.get(kind) != index]
    eligible = eligible[: round(len(eligible) * t.activation_offload_fraction)]
    return tuple(index in eligible for index in range(len(kinds)))


def offloaded(training: Training, found: Trace) -> tuple[Trace, tuple[Tensor, ...]]:
    """What a unit still keeps on the GPU, and what it has in host memory."""
    gone = [live for live in found.saved if _leaves(training, live)]
    if not gone:
        return found, ()
    stay = tuple(live for live in found.saved if live not in gone)
    total = found.saved_bytes - sum(live.tensor.nbytes for live in gone)
    return found._replace(saved=stay, saved_bytes=total), tuple(live.tensor for live in gone)


def on_their_way(training: Training, found: Trace) -> tuple[Tensor, ...]:
    """What is copied while another layer (or another module) runs: all that one layer offloads, or its largest module."""
    gone = [live for live in found.saved if _leaves(training, live)]
    if training.cpu_offloading_num_layers:
        return tuple(live.tensor for live in gone)
    groups: dict[str, list[Tensor]] = {}
    for live in gone:
        saver = live.why.removeprefix(SAVED).split(", ")[0]
        module = next(m for m in training.offload_modules if saver.startswith(MODULES[m]))
        groups.setdefault(module, []).append(live.tensor)
    return tuple(max(groups.values(), key=lambda group: sum(t.nbytes for t in group), default=()))


def _leaves(training: Training, live: Live) -> bool:
    if training.cpu_offloading_num_layers:
        return True
    savers = live.why.removeprefix(SAVED).split(", ")
    starts = tuple(start for module in training.offload_modules for start in MODULES[module])
    return (
        all(s.startswith(starts) for s in savers) and numel_of(live.tensor.shape) >= training.min_offloaded_tensor_size
    )
