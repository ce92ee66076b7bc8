"""CUDA graphs of layers: what their capture allocates, and what stays.

The first `cuda_graph_warmup_steps` run without graphs. Then every captured layer is run once per microbatch in flight, in the
order of the schedule; its saved tensors are allocated in a private pool. After the capture they are free again for torch's
counters but reserved for good: replays use that memory. Static inputs and outputs of every graph stay allocated.

Source: Megatron-LM `megatron/core/transformer/cuda_graphs.py`, `transformer_layer.py` (cuda_graph_scope); TransformerEngine
`pytorch/graph.py` (make_graphed_callables).
"""

from __future__ import annotations

from .context import Context
from .simulate import trace
from .tape import Op, Unit, flattened, inputs, mapped
from .tensor import Tensor
from .training import Training

MODULES: dict[str, tuple[str, ...]] = {
    "attn": ("self_attention", "input_layernorm"),
    "mamba": ("mixer", "input_layernorm", "norm"),
    "mlp": ("mlp.linear_fc", "mlp.activation"),
    "moe": ("mlp.",),
    "moe_router": ("mlp.router", "mlp.shared_experts"),
    "moe_preprocess": ("mlp.permute",),
}
"""Beginnings of the ops that a captured module runs. A router's graph begins at the norm before it."""


def captures(training: Training) -> bool:
    """Whether layers are captured one by one."""
    return training.cuda_graph_impl in ("transformer_engine", "local")


def in_graph(c: Context, unit: Unit, name: str) -> bool:
    """Whether an op of a layer is captured."""
    modules = c.training.cuda_graph_modules
    if not modules:
        return True
    moe = unit.name.endswith("moe")
    if name.startswith("pre_mlp_layernorm"):
        return ("moe_router" in modules or "moe" in modules) if moe else "mlp" in modules
    if name.startswith("self_attn_bda"):
        return "attn" in modules
    if name.startswith("mlp_bda"):
        return "mlp" in modules and not moe
    own = [module for module in modules if not (module == "moe" and not moe)]
    if c.training.moe_shared_expert_overlap and name.startswith("mlp.shared_experts"):
        own = [module for module in own if module != "moe_router"]
    return any(name.startswith(MODULES[module]) for module in own)


def captured(c: Context, unit: Unit) -> tuple[Tensor, ...]:
    """What the graphs of one layer keep for its backward, per microbatch in flight."""
    kept = {live.tensor.storage: live.tensor for live in trace(unit).saved}
    storages: dict[str, Tensor] = {}
    for op in flattened(unit.items):
        if in_graph(c, unit, op.name):
            storages.update({t.storage: kept[t.storage] for t in op.saves if t.storage in kept})
    for item in unit.items:
        if not isinstance(item, Op) and in_graph(c, unit, item.name):
            storages.update({t.storage: kept[t.storage] for t in inputs(item) if t.storage in kept})
    return tuple(storages.values())


def replayed(unit: Unit, graphed: tuple[Tensor, ...]) -> Unit:
    """The unit as its graphs replay it: what they keep is in their pool and is not allocated."""
    storages = {t.storage for t in graphed}

    def change(t: Tensor) -> Tensor:
        return t._replace(nbytes=0) if t.storage in storages else t

    entry = change(unit.entry) if unit.entry else None
    exit_ = change(unit.exit) if unit.exit else None
    return unit._replace(items=tuple(mapped(unit.items, change)), entry=entry, exit=exit_)
