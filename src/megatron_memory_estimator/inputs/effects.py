"""Settings that were given but change nothing in this model; they are warned about, never ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Model
from ..training import Training


def without_effect(model: Model, training: Training) -> Iterator[str]:
    """One sentence per setting without an effect."""
    t = training
    if t.recompute_granularity == "selective":
        present = recomputable(model)
        for module in t.recompute_modules:
            if module not in present:
                yield f"recompute_modules {module} has nothing to recompute in this model"
        if t.recompute_num_layers is not None:
            yield "recompute_num_layers has no effect with recompute_granularity=selective"
    elif t.recompute_modules:
        yield "recompute_modules has no effect without recompute_granularity=selective"
    if not model.moe_shared_expert_intermediate_size:
        for name, on in (
            ("moe_shared_expert_gate", model.moe_shared_expert_gate),
            ("moe_shared_expert_overlap", t.moe_shared_expert_overlap),
        ):
            if on:
                yield f"{name} has no effect without shared experts"
    if t.optimizer == "muon":
        yield "scratch of Muon's Newton-Schulz iterations in the optimizer step is not modelled"
    if t.optimizer == "muon" and t.use_distributed_optimizer:
        yield "Muon's layer-wise packing of parameters onto ranks is modelled as largest first"


def recomputable(model: Model) -> set[str]:
    """Modules of selective recomputation that this model has."""
    mixers = {kind.split("+")[0] for kind in model.kinds}
    found = set()
    if mixers & {"gqa", "mla", "dsa"}:
        found.add("core_attn")
    if "mla" in mixers:
        found |= {"mla_up_proj", "layernorm"}
    if mixers & {"gdn", "gdn2"}:
        found.add("gdn_norm_out")
    if "dsa" in mixers:
        found.add("layernorm")
    if any(kind.endswith("dense") for kind in model.kinds):
        found.add("mlp")
    if model.has_moe:
        found |= {"moe", "moe_act", "layernorm"}
        if model.moe_shared_expert_intermediate_size:
            found.add("shared_experts")
    return found
