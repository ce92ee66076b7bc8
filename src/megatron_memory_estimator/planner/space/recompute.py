"""Sets of recomputation by name."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...job.choices import RECOMPUTE_MODULES
from ...job.settings import nearest
from ...job.training import Training
from ...wording import shown, whole

RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "core_attn": {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)},
    "layernorm": {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    "mla_up_proj": {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj",)},
    "mlp": {"recompute_granularity": "selective", "recompute_modules": ("mlp",)},
    "moe_act": {"recompute_granularity": "selective", "recompute_modules": ("moe_act",)},
    "moe_act+layernorm": {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
    "mla_up_proj+moe_act+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "moe_act", "layernorm"),
    },
    "mla_up_proj+mlp+moe_act+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "mlp", "moe_act", "layernorm"),
    },
    "mla_up_proj+mlp": {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "mlp")},
    "moe": {"recompute_granularity": "selective", "recompute_modules": ("moe",)},
    "core_attn+mlp": {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "mlp")},
    "moe+layernorm": {"recompute_granularity": "selective", "recompute_modules": ("moe", "layernorm")},
    "mla_up_proj+mlp+moe+layernorm": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "mlp", "moe", "layernorm"),
    },
    "mla_up_proj+mhc": {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "mhc")},
    "moe_act+mhc": {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "mhc")},
    "mla_up_proj+moe_act+mhc": {
        "recompute_granularity": "selective",
        "recompute_modules": ("mla_up_proj", "moe_act", "mhc"),
    },
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Sets of recomputation by name; those that have nothing to recompute in a model are dropped. `block:N` is full recomputation of N
layers of each model chunk, `uniform:N` of all layers with one checkpoint for N, and any modules joined by + a selective set."""


def own_recompute(training: Training) -> str:
    """The job's own recomputation as a value of the axis."""
    t = training
    if t.recompute_granularity == "full":
        return f"{t.recompute_method}:{t.recompute_num_layers}"
    if t.recompute_granularity == "selective":
        return "+".join(t.recomputed_modules) or "none"
    return "none"


def recompute_settings(word: str) -> dict[str, Any]:
    """The settings of a set of recomputation by name. Raises ConfigError for an unknown one."""
    if word in RECOMPUTE:
        return RECOMPUTE[word]
    method, colon, number = word.partition(":")
    if colon and method in ("block", "uniform") and (layers := whole(number)):
        return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": layers}
    modules = tuple(dict.fromkeys(word.split("+")))
    for module in modules:
        if module not in RECOMPUTE_MODULES:
            known = (*RECOMPUTE, *RECOMPUTE_MODULES)
            raise ConfigError(
                f"recompute: {shown(module)} is not none, full, block:N, uniform:N or modules joined by +, such as "
                f"moe_act+layernorm.{nearest(module, known)}"
            )
    return {"recompute_granularity": "selective", "recompute_modules": modules}
