"""CUDA graphs of layers: what their capture allocates, and what stays.

The first `cuda_graph_warmup_steps` run without graphs. Then every captured layer is run once per microbatch in flight, in the
order of the schedule; its saved tensors are allocated in a private pool. After the capture they are free again for torch's
counters but reserved for good: replays use that memory. Static inputs and outputs of every graph stay allocated.

Source: Megatron-LM `megatron/core/transformer/cuda_graphs.py`, `transformer_layer.py` (cuda_graph_scope); TransformerEngine
`pytorch/graph.py` (make_graphed_callables).
"""

from __future__ import annotations

from functools import reduce

from ..job.training import Training
from ..tape.events import Trace
from ..tape.ops import Op, Part, Unit, flattened, inputs, mapped
from ..tape.simulate import trace
from ..tape.tensor import Tensor, largest

MODULES: dict[str, frozenset[Part]] = {
    "attn": frozenset(("attn_norm", "qkv_linear", "core_attn", "heads_out", "heads_back", "attn_proj", "attn", "attn_residual")),
    "mamba": frozenset(("mamba",)),
    "mlp": frozenset(("mlp_norm", "mlp", "mlp_residual")),
    "moe": frozenset(
        ("router_norm", "router", "latent_down", "permute", "dispatch", "expert_fc1", "moe_act", "experts", "combine", "latent_up",
         "shared_experts", "shared_experts_add", "moe", "experts_wgrads")
    ),
    "moe_router": frozenset(("router_norm", "router", "shared_experts", "shared_experts_add")),
    "moe_preprocess": frozenset(("permute",)),
}  # fmt: skip
"""Parts that a captured module runs. A router's graph begins at the norm before it."""
OVERLAPPED: frozenset[Part] = frozenset(("shared_experts", "shared_experts_add"))
"""Parts that a router's graph leaves out where the shared experts run beside the dispatcher (moe_shared_expert_overlap)."""


def captures(training: Training) -> bool:
    """Whether layers are captured one by one."""
    return training.cuda_graph_impl in ("transformer_engine", "local")


def in_graph(training: Training, part: Part) -> bool:
    """Whether a part of a layer is captured."""
    modules = training.cuda_graph_modules
    if not modules:
        return True
    if training.moe_shared_expert_overlap and part in OVERLAPPED:
        modules = tuple(module for module in modules if module != "moe_router")
    return any(part in MODULES[module] for module in modules)


def captured(training: Training, unit: Unit) -> tuple[Tensor, ...]:
    """What the graphs of one layer keep for its backward, per microbatch in flight."""
    kept = {live.tensor.storage: live.tensor for live in trace(unit).saved}
    storages: dict[str, Tensor] = {}
    for op in flattened(unit.items):
        if in_graph(training, op.part):
            storages.update({t.storage: kept[t.storage] for t in op.saves if t.storage in kept})
    for item in unit.items:
        if not isinstance(item, Op) and in_graph(training, item.part):
            storages.update({t.storage: kept[t.storage] for t in inputs(item) if t.storage in kept})
    return tuple(storages.values())


def capture_scratch(training: Training, eager: Trace, graphed: tuple[Tensor, ...]) -> int:
    """The most that a captured layer has alive beside what its graphs keep: bytes. What they keep counts from where it is allocated."""
    kept = sum(t.nbytes for t in graphed)
    inside = [event.nbytes for event in (*eager.forward, *eager.backward) if in_graph(training, event.part)]
    return reduce(largest, inside, kept) - kept


def in_pool(training: Training, unit: Unit, graphed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The kept tensors in the graphs' private pool: all but the graph's input, a static tensor outside of it."""
    first = next((op for op in flattened(unit.items) if in_graph(training, op.part)), None)
    inside = {t.storage for op in flattened(unit.items) if in_graph(training, op.part) for t in op.writes}
    outside = {t.storage for t in first.reads if t.storage not in inside} if first else set()
    return tuple(t for t in graphed if t.storage not in outside)


def replayed(unit: Unit, graphed: tuple[Tensor, ...]) -> Unit:
    """The unit as its graphs replay it: what they keep is in their pool and is not allocated."""
    storages = {t.storage for t in graphed}

    def change(t: Tensor) -> Tensor:
        return t._replace(nbytes=0) if t.storage in storages else t

    entry = change(unit.entry) if unit.entry else None
    exit_ = change(unit.exit) if unit.exit else None
    return unit._replace(items=tuple(mapped(item, change) for item in unit.items), entry=entry, exit=exit_)
