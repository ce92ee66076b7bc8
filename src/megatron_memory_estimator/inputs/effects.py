"""Settings that were given but change nothing in this model; they are warned about, never ignored in silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..model import Model
from ..training import NEWEST, Training

OWNERS = {
    "moe_": "moe",
    "expert_model_parallel_size": "moe",
    "expert_tensor_parallel_size": "moe",
    "router_imbalance": "moe",
    "mamba_": "mamba",
    "linear_": "gdn",
    "dsa_": "dsa",
    "q_lora_rank": "mla",
    "kv_lora_rank": "mla",
    "qk_head_dim": "mla",
    "qk_pos_emb_head_dim": "mla",
    "v_head_dim": "mla",
}
"""Beginnings of settings that concern one kind of layer."""


def without_effect(model: Model, training: Training, given: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per setting that was given and has no effect, in the same order whatever order they were given in."""
    t = training
    present = {part for kind in (*model.kinds, *model.mtp_kinds) for part in kind.split("+")}
    present |= {"mla"} if "dsa" in present else set()
    present |= {"gdn"} if "gdn2" in present else set()
    defaults = {f.name: f.default for part in (Model, Training) for f in dataclasses.fields(part)}
    for name, value in sorted(given.items(), key=lambda item: item[0]):
        if name in defaults and value == defaults[name]:
            continue
        owner = next((kind for start, kind in OWNERS.items() if name.startswith(start)), None)
        if owner is not None and owner not in present and value not in (None, 1, 1.0, False, 0):
            yield f"{name} has no effect: the model has no {owner} layers"
    if t.router_imbalance != 1 and t.moe_pad_expert_input_to_capacity and "moe" in present:
        yield "router_imbalance has no effect: expert inputs are padded to their capacity"
    for name, newest in NEWEST.items():
        if tuple(map(int, getattr(t, name).split(".")[:2])) > tuple(map(int, newest.split("."))):
            yield f"{name}={getattr(t, name)} is newer than {newest}, the version that the rules were read from"
    if t.recompute_granularity == "selective":
        found = recomputable(model)
        for module in t.recompute_modules:
            if module not in found:
                yield f"recompute_modules {module} has nothing to recompute in this model"
        if t.recompute_num_layers is not None:
            yield "recompute_num_layers has no effect with recompute_granularity=selective"
    elif t.recompute_modules:
        yield "recompute_modules has no effect without recompute_granularity=selective"
    elif t.recompute_granularity is None and t.recompute_num_layers is not None:
        yield "recompute_num_layers has no effect without recompute_granularity=full"
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
