"""Adapters of miles: `--lora-rank`, `--lora-type`, `--target-modules`, `--exclude-modules`.

Source: radixark/miles `miles/utils/arguments.py`, `miles/backends/megatron_utils/lora_utils.py`.
"""

from __future__ import annotations

from typing import Any

from ...wording import shown, whole
from .megatron_words import Found, text

NAMES = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "o_proj": "linear_proj",
    "gate_proj": "linear_fc1", "up_proj": "linear_fc1", "down_proj": "linear_fc2",
}  # fmt: skip
"""Megatron's linear of a name in Hugging Face's models."""
CANONICAL = {
    "q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v", "gate_proj": "linear_fc1_gate", "up_proj": "linear_fc1_up",
}  # fmt: skip
"""Where each of the merged linears has an adapter of its own."""
ALL = ("all-linear", "all_linear", "all")


def adapters(found: Found) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of LoRA, what is assumed, and what is refused; nothing where the rank is 0."""
    rank = text(found, "lora_rank") or "0"
    if rank == "0":
        given = [f"--lora-adapter-path {shown(path)}" for path in found.get("lora_adapter_path", ())]
        return {}, [], [f"{one} without --lora-rank: the adapter's rank is not known" for one in given]
    size = whole(rank)
    if size is None:
        return {}, [], [f"--lora-rank {shown(rank)} must be a whole number"]
    canonical = text(found, "lora_type") in ("canonical_lora", "canonical")
    names = {**NAMES, **(CANONICAL if canonical else {})}
    wanted, excluded = _modules(found, "target_modules", names), _modules(found, "exclude_modules", names)
    everything = tuple(dict.fromkeys(names.values()))
    if not wanted or any(one in ALL for one in wanted):
        wanted = everything
    modules = tuple(one for one in dict.fromkeys(wanted) if one not in excluded)
    settings = {"peft": "canonical_lora" if canonical else "lora", "peft_dim": size, "peft_target_modules": modules}
    return settings, [f"LoRA of rank {size} on {', '.join(modules)}, as miles has it"], []


def _modules(found: Found, key: str, names: dict[str, str]) -> tuple[str, ...]:
    words = [part for word in found.get(key, ()) for part in word.replace(",", " ").split()]
    return tuple(names.get(word, word) for word in words)
