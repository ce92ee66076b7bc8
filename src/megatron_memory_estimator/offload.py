"""Activation offloading: what leaves the GPU between a layer's forward and its backward.

Layer-level (`cpu_offloading`): everything that the first `cpu_offloading_num_layers` layers keep. Fine-grained: what the ops of
`offload_modules` keep, tensors of at least `min_offloaded_tensor_size` elements; a tensor that an op outside them keeps too
stays. The last group of each module on a rank stays for one microbatch, because there is no time to bring it back. Layer-level, one layer's
tensors are on their way while another runs, in both directions (two with double buffering); fine-grained, those of one module.

Source: Megatron-LM `megatron/core/pipeline_parallel/fine_grained_activation_offload.py`; TransformerEngine
`pytorch/cpu_offload.py`.
"""

from __future__ import annotations

from typing import NamedTuple

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


def modules_of(training: Training, kind: str) -> dict[str, tuple[str, ...]]:
    """Beginnings of the ops of each offload module in a layer of a kind.

    A norm that TransformerEngine fuses into a linear belongs to the linear: to qkv_linear, and to no module before a dense MLP.
    Source: Megatron-LM `megatron/core/transformer/transformer_layer.py` (offload of attn_norm and mlp_norm).
    """
    found = {module: MODULES[module] for module in training.offload_modules}
    if not training.te_spec:
        return found
    if kind.startswith("gqa"):
        found.pop("attn_norm", None)
        if "qkv_linear" in found:
            found["qkv_linear"] = (*found["qkv_linear"], "input_layernorm")
    if kind.endswith("dense"):
        found.pop("mlp_norm", None)
    return found


def offloaded_layers(training: Training, count: int) -> tuple[bool, ...]:
    """Which layers of a model chunk offload what they keep."""
    t = training
    if t.cpu_offloading_num_layers:
        return tuple(index < t.cpu_offloading_num_layers for index in range(count))
    return tuple(index < round(count * t.activation_offload_fraction) for index in range(count))


class Offload(NamedTuple):
    """What a layer has in host memory by module ("" for layer-level), and the trace of what it keeps on the GPU."""

    trace: Trace
    groups: tuple[tuple[str, tuple[Tensor, ...]], ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is offloaded."""
        return tuple(t for _, group in self.groups for t in group)

    @property
    def on_their_way(self) -> tuple[Tensor, ...]:
        """What is copied while another layer (or another module) runs: all that the layer offloads, or its largest module."""
        return max((group for _, group in self.groups), key=lambda group: sum(t.nbytes for t in group), default=())


def offloaded(training: Training, kind: str, found: Trace) -> Offload:
    """What a layer of a kind has in host memory between its forward and its backward."""
    if training.cpu_offloading_num_layers:
        groups = {"": [live.tensor for live in found.saved]}
        stay: tuple[Live, ...] = ()
    else:
        modules = modules_of(training, kind)
        groups, stay = {}, ()
        for live in found.saved:
            module = _module(training, modules, live)
            if module:
                groups.setdefault(module, []).append(live.tensor)
            else:
                stay = (*stay, live)
    total = sum(live.tensor.nbytes for live in stay)
    return Offload(
        found._replace(saved=stay, saved_bytes=total), tuple((name, tuple(group)) for name, group in groups.items())
    )


def _module(training: Training, modules: dict[str, tuple[str, ...]], live: Live) -> str:
    """The module that takes a kept tensor, "" for none: all its savers are in modules, and it is large enough."""
    savers = live.why.removeprefix(SAVED).split(", ")
    starts = tuple(start for names in modules.values() for start in names)
    if (
        not all(s.startswith(starts) for s in savers)
        or numel_of(live.tensor.shape) < training.min_offloaded_tensor_size
    ):
        return ""
    return next(name for name, begin in modules.items() if savers[0].startswith(begin))
