"""Writes the table of Megatron-Bridge's recipes from a JSON-lines file: python scripts/bridge_recipes.py [--add] FILE

With --add the recipes of the file are put beside those that the table has.

Each line is a recipe: `recipe`, `aliases`, `hub` (the model's Hub id), `own_model` (the recipe states the architecture itself), `gpus`,
`gpu`, `precision`, `performance` (of perf_recipes), `partial` (settings of more than one version), `env`, and the sections of the
ConfigContainer that its function returns: `model`, `train`, `dataset`, `optimizer`, `ddp`, `mixed_precision`, `tokenizer`, `peft`,
`comm_overlap`. Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/recipes/`, `src/megatron/bridge/perf_recipes/` of 22 August
2026, and megatron-bridge 0.6.2, whose recipe functions return them.

The table has settings that memory depends on, and only where they are not Bridge's own default. Settings that stand in the same recipes
are stored together.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_memory_estimator.inputs.bridge_config import DDP, LOW_PRECISION, OPTIMIZER, PROVIDER_DEFAULTS
from megatron_memory_estimator.inputs.door_defaults import MEGATRON_CORE, decided
from megatron_memory_estimator.inputs.setting_names import current_name, known_settings
from megatron_memory_estimator.inputs.transformer_config import RENAMED, UNSUPPORTED
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.legality import even_layout

TABLE = Path(__file__).parents[1] / "src/megatron_memory_estimator/inputs/dialects/bridge_recipes.json.gz"
SOURCE = (
    "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes, src/megatron/bridge/perf_recipes, 22 August 2026; 0.6.2"
)
OVER_MODEL = frozenset(
    (
        "vocab_size", "make_vocab_size_divisible_by", "mtp_num_layers", "mtp_use_repeated_layer", "moe_router_load_balancing_type",
        "moe_aux_loss_coeff", "attention_dropout", "hidden_dropout", "hybrid_layer_pattern", "dsa_indexer_loss_coeff",
    )
)  # fmt: skip
"""Settings of the architecture that recipes and Bridge's providers set over a model's config."""
SECTIONS = {
    "train": {"micro_batch_size", "global_batch_size"},
    "dataset": {"seq_length", "enable_offline_packing", "enable_in_batch_packing"},
    "optimizer": {*OPTIMIZER, "use_distributed_optimizer"},
    "ddp": {*DDP, "use_distributed_optimizer"},
    "mixed_precision": {*LOW_PRECISION, "fp8_recipe", "bf16", "fp16", "grad_reduce_in_fp32"},
    "tokenizer": {"tokenizer_type", "tokenizer_model", "vocab_size", "use_tokenizer_vocab_size"},
    "peft": {"type", "dim", "target_modules", "exclude_modules", "dropout", "a2a_experimental"},
    "comm_overlap": {
        "tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "bucket_size",
        "defer_embedding_wgrad_compute", "wgrad_deferral_limit", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
    },
}  # fmt: skip


SAYS_NO = ("mixed_precision", "comm_overlap")
"""Sections whose false and zero win over what other sections say."""


V4 = "deepseek_v4_"
FUSED_V4 = ("gb200_bf16", "128gpu_gb200_fp8mx", "128gpu_gb300_fp8mx", "256gpu_gb300_fp8mx")
"""DeepSeek-V4 recipes with fused sparse attention (`recipes/deepseek/*/deepseek_v4.py`, `perf_recipes/deepseek/*/deepseek_v4.py`)."""


GRAPHED_V4 = {
    "cuda_graph_impl": "full_iteration",
    "moe_paged_stash": True,
    "moe_paged_stash_buffer_size_factor_cuda": 1.2,
    "moe_expert_rank_capacity_factor": 1.5,
    "moe_router_force_load_balancing": True,
    "moe_router_padding_for_quantization": True,
    "use_transformer_engine_op_fuser": True,
}
"""What the 128 GPUs of the verification cards ran with (0.6.2 `perf_recipes/deepseek/gb200/deepseek_v4.py`)."""
V4_SETTINGS = frozenset(("dsa_kernel_backend", "dsa_indexer_use_sparse_loss", "use_fused_mhc"))
"""Settings that the mapping of the model's config gives other defaults than the classes have."""


ALONE: dict[str, Any] = {
    "virtual_pipeline_model_parallel_size": None, "recompute_granularity": None, "recompute_modules": None, "recompute_method": None,
    "recompute_num_layers": None, "moe_router_force_load_balancing": False, "moe_router_fusion": False,
}  # fmt: skip
HALF = "bf16_mixed"
LORA = {"type": "LoRA", "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], "dim": 16}
TUNED = {
    "tensor_model_parallel_size": 8, "sequence_parallel": False, "cross_entropy_fusion_impl": "native",
    "disable_parameter_transpose_cache": False,
}  # fmt: skip
LIBRARY: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3_pretrain_config": (
        "deepseek_v3_pretrain_1024gpu_h100_bf16_config",
        {
            "model": {
                "pipeline_model_parallel_size": 16, "apply_rope_fusion": False,
                "pipeline_model_parallel_layout": f"Etttt|{'tttt|' * 14}tmL",
            },
            "train": {"global_batch_size": 4096}, "ddp": {"overlap_grad_reduce": True}, "comm_overlap": {"overlap_grad_reduce": True},
        },
    ),
    "gpt_oss_120b_pretrain_config": (
        "gpt_oss_120b_pretrain_64gpu_h100_bf16_config",
        {
            "model": {
                "tensor_model_parallel_size": 2, "expert_model_parallel_size": 16, "sequence_parallel": True, "apply_rope_fusion": False,
                "cross_entropy_fusion_impl": "native",
            },
            "train": {"global_batch_size": 512}, "mixed_precision": HALF,
        },
    ),
    "llama3_70b_peft_config": (
        "llama3_70b_peft_8gpu_h100_bf16_config",
        {
            "model": {**TUNED, "pipeline_model_parallel_size": 1}, "train": {"global_batch_size": 8}, "mixed_precision": HALF,
            "ddp": {"use_distributed_optimizer": False}, "optimizer": {"use_distributed_optimizer": False}, "peft": LORA,
        },
    ),
    "llama3_70b_sft_config": (
        "llama3_70b_sft_32gpu_h100_bf16_config",
        {
            "model": TUNED, "train": {"global_batch_size": 8}, "mixed_precision": HALF,
            "comm_overlap": {"tp_comm_overlap": False, "defer_embedding_wgrad_compute": False, "wgrad_deferral_limit": 0},
        },
    ),
    "qwen3_235b_a22b_pretrain_config": (
        "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config",
        {
            "model": {
                "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 16, "context_parallel_size": 2,
                "expert_model_parallel_size": 8, "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep",
                "bias_activation_fusion": False, "apply_rope_fusion": False,
            },
            "train": {"global_batch_size": 32}, "mixed_precision": HALF,
            "comm_overlap": {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False},
        },
    ),
}  # fmt: skip
"""Short names whose recipe of the library (`recipes/*/h100/`) differs from the performance recipe (`perf_recipes/`) that has the long name
of the library's function: that one, and what differs."""


def with_library(table: dict[str, Any]) -> None:
    """Adds the recipes of `LIBRARY` as rows of their own."""
    facts = {name: number for number, name in enumerate(table["facts"])}
    for short, (long, changes) in LIBRARY.items():
        row = table["recipes"][long]
        row[facts["aliases"]] = [name for name in row[facts["aliases"]] if name != short]
        table["parts"].append({**changes, "model": {**ALONE, **changes["model"]}})
        own = [*row[:-1], [*row[-1], len(table["parts"]) - 1]]
        own[facts["aliases"]], own[facts["performance"]] = [], False
        table["recipes"][short] = own


def with_provider(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe with what its provider sets on the GPU that it is for, and a machine without one does not: kernels, MTP, stages.

    Source: NVIDIA-NeMo/Megatron-Bridge `models/deepseek/deepseek_v4_bridge.py`.
    """
    name, model = recipe["recipe"], dict(recipe["model"])
    if forces_balance(recipe):
        model["moe_router_force_load_balancing"] = True
    if not name.startswith(V4):
        return {**recipe, "model": model}
    flash = name.startswith("deepseek_v4_flash")
    depths = 0 if "no_mtp" in name else 1
    fused = any(part in name for part in FUSED_V4)
    model |= {
        "mtp_num_layers": depths,
        "dsa_kernel_backend": "cudnn" if fused else "none",
        "dsa_indexer_use_sparse_loss": fused,
        "use_fused_mhc": str(recipe.get("gpu")).startswith(("gb", "b")),
    }
    if "128gpu" in name:
        model |= GRAPHED_V4
    stages = model.get("pipeline_model_parallel_size") or 1
    if stages > 1 and not model.get("pipeline_model_parallel_layout"):
        model["pipeline_model_parallel_layout"] = even_layout(43 if flash else 61, stages, depths)
    return {**recipe, "model": model}


def forces_balance(recipe: dict[str, Any]) -> bool:
    """Whether the recipe routes evenly whatever the router says: pre-training of MoE models for speed, but for GPT-OSS 20B.

    Source: NVIDIA-NeMo/Megatron-Bridge `perf_recipes/` (moe_router_force_load_balancing).
    """
    routed = (recipe["model"].get("expert_model_parallel_size") or 1) > 1
    speed = bool(recipe["performance"]) and "_pretrain_" in recipe["recipe"]
    return routed and speed and not recipe["recipe"].startswith("gpt_oss_20b")


def kept(recipe: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Section, key and value of each setting that the table has of a recipe."""
    for key, value in recipe["model"].items():
        if of_interest(key, value, own_model=recipe["own_model"]):
            yield "model", key, value
    yield "model", "mtp_num_layers", recipe["model"].get("mtp_num_layers") or 0
    for section, keys in SECTIONS.items():
        values = recipe.get(section)
        if isinstance(values, str):
            yield section, "", values
        elif isinstance(values, dict):
            yield section, "", {}
            empty = () if section in SAYS_NO else (None, False, [], "")
            yield from ((section, key, value) for key, value in values.items() if key in keys and (value not in empty))


def of_interest(key: str, value: Any, *, own_model: bool) -> bool:
    """Whether the table has a setting of the model's section."""
    owners, name = known_settings(), current_name(key)
    if key in ("should_pad_vocab", "moe_router_force_load_balancing") or (
        key == "attention_backend" and value != "auto"
    ):
        return True
    if name in UNSUPPORTED:
        return bool(value) and value not in UNSUPPORTED[name]
    if name not in owners or name == "mtp_num_layers":
        return False
    if owners[name] is Model and not own_model and name not in OVER_MODEL:
        return False
    return not is_default(name, owners[name], value)


def is_default(name: str, owner: type[Any], value: Any) -> bool:
    """Whether the setting holds without being said."""
    if (
        name in OVER_MODEL
        or name in V4_SETTINGS
        or name in PROVIDER_DEFAULTS
        or name in decided(MEGATRON_CORE)
        or name in RENAMED
    ):
        return False
    default = owner.__dataclass_fields__[name].default
    if isinstance(value, list) and not value:
        return default in (None, ())
    return default is not dataclasses.MISSING and value == default


def table(recipes: list[dict[str, Any]]) -> dict[str, Any]:
    """The table: parts of settings, and for each recipe its facts and the numbers of its parts."""
    where: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, recipe in enumerate(recipes):
        for section, key, value in kept(recipe):
            where[section, key, json.dumps(value)].append(number)
    parts: dict[tuple[int, ...], dict[str, Any]] = {}
    for (section, key, value), numbers in where.items():
        part = parts.setdefault(tuple(numbers), {})
        if key:
            part.setdefault(section, {})[key] = json.loads(value)
        elif not isinstance(part.get(section), dict):
            part[section] = json.loads(value)
    of: dict[int, list[int]] = defaultdict(list)
    for number, members in enumerate(parts):
        for recipe in members:
            of[recipe].append(number)
    facts = ("aliases", "hub", "own_model", "gpus", "gpu", "precision", "performance", "partial", "env")
    rows = {
        recipe["recipe"]: [*(recipe.get(name) for name in facts), of[number]] for number, recipe in enumerate(recipes)
    }
    return {"source": SOURCE, "facts": facts, "parts": list(parts.values()), "recipes": rows}


def added(there: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The table with the recipes of another; a recipe of the same name is replaced."""
    assert there["facts"] == list(more["facts"])
    behind = len(there["parts"])
    rows = {name: [*row[:-1], [behind + number for number in row[-1]]] for name, row in more["recipes"].items()}
    return {**there, "parts": [*there["parts"], *more["parts"]], "recipes": {**there["recipes"], **rows}}


def main() -> None:
    recipes = [with_provider(json.loads(line)) for line in Path(sys.argv[-1]).read_text().splitlines()]
    made = table(recipes)
    if "--add" in sys.argv:
        made = added(json.loads(gzip.decompress(TABLE.read_bytes())), made)
    else:
        with_library(made)
    text = json.dumps(made, separators=(",", ":"))
    TABLE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(recipes)} recipes, {len(text)} bytes, {TABLE.stat().st_size} packed")


if __name__ == "__main__":
    main()
