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

from ..job.training import Training
from ..tape.ops import Part
from ..tape.simulate import Live, Trace
from ..tape.tensor import Tensor, numel_of

MODULES: dict[str, frozenset[Part]] = {
    "attn_norm": frozenset(("attn_norm",)),
    "qkv_linear": frozenset(("qkv_linear",)),
    "core_attn": frozenset(("core_attn", "heads_out", "heads_back")),
    "attn_proj": frozenset(("attn_proj",)),
    "mlp_norm": frozenset(("mlp_norm", "router_norm")),
    "expert_fc1": frozenset(("expert_fc1",)),
    "moe_act": frozenset(("moe_act",)),
    "fused_group_mlp": frozenset(("expert_fc1", "moe_act", "experts")),
}
"""Parts whose saved tensors an offload module takes. A norm that TransformerEngine fuses into a linear belongs to the linear's part;
fused_group_mlp is all of the experts between the dispatcher's two ways.

Source: Megatron-LM `megatron/core/transformer/transformer_layer.py` (offload of attn_norm and mlp_norm), `moe/experts.py`
(_fused_forward)."""


def offloads(training: Training) -> bool:
    """Whether activations are offloaded."""
    return training.cpu_offloading_num_layers > 0 or training.fine_grained_activation_offloading


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


def offloaded(training: Training, found: Trace) -> Offload:
    """What a layer has in host memory between its forward and its backward."""
    if training.cpu_offloading_num_layers:
        groups = {"": [live.tensor for live in found.saved]}
        stay: tuple[Live, ...] = ()
    else:
        groups, stay = {}, ()
        for live in found.saved:
            module = _module(training, live)
            if module:
                groups.setdefault(module, []).append(live.tensor)
            else:
                stay = (*stay, live)
    total = sum(live.tensor.nbytes for live in stay)
    return Offload(
        found._replace(saved=stay, saved_bytes=total), tuple((name, tuple(group)) for name, group in groups.items())
    )


def _module(training: Training, live: Live) -> str:
    """The module that takes a kept tensor, "" for none: all its savers are in modules, and it is large enough."""
    modules = {module: MODULES[module] for module in training.offload_modules}
    taken = frozenset[Part]().union(*modules.values())
    if not live.saved_by or numel_of(live.tensor.shape) < training.min_offloaded_tensor_size:
        return ""
    if not all(saver.part in taken for saver in live.saved_by):
        return ""
    return next(name for name, parts in modules.items() if live.saved_by[0].part in parts)
