"""From the sections of a ConfigContainer of Megatron-Bridge to settings, as its setup finishes them.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/training/setup.py` (_validate_and_set_vocab_size), `training/comm_overlap.py`
(CommOverlapConfig.setup), `training/mixed_precision.py`, `recipes/common.py`, `models/transformer_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..bridge_config import (
    FP8_RECIPE,
    container_values,
    named_precision,
    namespace,
)
from ..megatron.vocabulary import known_size
from ..questions import Question
from ..setting_names import canonical, full_name
from ..spellings import respelled

COMMON: dict[str, dict[str, Any]] = {
    "train": {"global_batch_size": 32, "micro_batch_size": 2},
    "dataset": {"seq_length": 4096},
    "optimizer": {"optimizer": "adam", "use_distributed_optimizer": True},
    "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    "mixed_precision": {"bf16": True, "grad_reduce_in_fp32": True, "fp8_recipe": FP8_RECIPE},
}
"""What recipes of the library build on (`recipes/common.py`, _pretrain_common)."""
TUNED: dict[str, dict[str, Any]] = {
    "train": {"global_batch_size": 128, "micro_batch_size": 1},
    "dataset": {"seq_length": 2048, "enable_offline_packing": True},
}
"""What supervised and parameter-efficient recipes have instead (_sft_common, _peft_common)."""
LORA = {"type": "lora", "dim": 32, "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
NULL_VOCABULARY = 32000
"""Ids of NullTokenizer where a recipe says nothing (`recipes/utils/tokenizer_utils.py`)."""
BUCKET = 128 * 1024 * 1024
"""Elements of a bucket, with the section comm_overlap and more than one data-parallel rank."""
NEMOTRON = 131072
"""Length of the tokenizer of Nemotron-H, Nemotron Nano 2 and Nemotron 3 (nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, tokenizer.json)."""
QWEN3 = 151669
SECTIONS = frozenset(
    ("model", "train", "dataset", "optimizer", "ddp", "mixed_precision", "tokenizer", "peft", "comm_overlap", "dist", "checkpoint")
)  # fmt: skip
"""Sections that memory depends on."""


def common(task: str) -> dict[str, Any]:
    """The sections that a recipe of the library builds on; task is pretrain, sft or peft."""
    found: dict[str, Any] = {**COMMON, **({} if task == "pretrain" else TUNED), "model": {}, "tokenizer": {}}
    return found | ({"peft": LORA} if task == "peft" else {})


def spelled_out(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with a precision and adapters that are a name as what the names mean, so that keys can be laid over them."""
    out = {str(key): value for key, value in sections.items()}
    if isinstance(out.get("mixed_precision"), str):
        out["mixed_precision"] = named_precision(out["mixed_precision"])
    peft = out.get("peft")
    if isinstance(peft, str):
        out["peft"] = None if peft.lower() in ("none", "null", "") else {**LORA, "type": peft}
    for name in SECTIONS & out.keys():
        if out[name] is not None and not isinstance(out[name], Mapping):
            raise ConfigError(f"the section {name} of Megatron-Bridge must hold keys, not {shown(out[name])}")
    return out


def settings_of(sections: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """Every setting that the sections say, by our names and in our spelling. The vocabulary is left to `vocabulary`."""
    values = container_values(namespace({**sections, "model": sections.get("model") or {}}))
    for name in ("vocab_size", "padded_vocab_size", "share_embeddings_and_output_weights"):
        values.pop(name, None)
    tied = (sections.get("model") or {}).get("share_embeddings_and_output_weights")
    if tied is not None:
        values["share_embeddings_and_output_weights"] = tied  # else the model's config says
    values.pop("seq_length")
    length = _length(sections)
    if length is not None:
        values["seq_length"] = length
    if not values.get("use_megatron_fsdp"):
        values.pop("data_parallel_sharding_strategy", None)
        values.pop("outer_dp_sharding_strategy", None)
    if _degree(values, "tensor_model") == 1:
        values["sequence_parallel"] = False
    if values.get("expert_tensor_parallel_size") is None:
        values["expert_tensor_parallel_size"] = 1
    if values.get("recompute_granularity") is None:
        for name in ("recompute_method", "recompute_num_layers", "recompute_modules"):
            values.pop(name, None)  # Megatron-Core does not look at them then
    values.update(_overlap(sections, values, gpus))
    return respelled(canonical(values, full_name))


def _length(sections: Mapping[str, Any]) -> Any:
    """Tokens of a row: the data set's own word, else the model's; a packed row may be longer than a sample."""
    dataset = sections.get("dataset") or {}
    specs = dataset.get("offline_packing_specs") or dataset.get("packed_sequence_specs") or {}
    own = specs if isinstance(specs, Mapping) else {}
    for section, key in (
        (own, "packed_sequence_size"),
        (dataset, "packed_sequence_size"),
        (dataset, "seq_length"),
        (dataset, "sequence_length"),
        (sections.get("model") or {}, "seq_length"),
    ):
        value = section.get(key)
        if value not in (None, 0, -1):
            return value
    return None


def _degree(values: Mapping[str, Any], kind: str) -> int:
    degree = values.get(f"{kind}_parallel_size")
    return degree if isinstance(degree, int) and degree > 0 else 1


def _overlap(sections: Mapping[str, Any], values: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """What the section comm_overlap decides: its own words, else what the layout makes of them."""
    section = sections.get("comm_overlap")
    if section is None:
        return {}
    pipeline = _degree(values, "pipeline_model")
    chunks = values.get("virtual_pipeline_model_parallel_size") or 1
    found: dict[str, Any] = {"overlap_p2p_comm": pipeline > 1 and chunks != 1}
    ranks = (gpus or 1) // (pipeline * _degree(values, "tensor_model") * _degree(values, "context"))
    if ranks > 1 and values.get("use_distributed_optimizer"):
        found |= {"ddp_bucket_size": BUCKET, "overlap_grad_reduce": True, "overlap_param_gather": True}
    names = {"bucket_size": "ddp_bucket_size"}
    for key in ("overlap_p2p_comm", "overlap_grad_reduce", "overlap_param_gather", "bucket_size"):
        if section.get(key) is not None:
            found[names.get(key, key)] = section[key]
    if section.get("defer_embedding_wgrad_compute"):
        found["defer_embedding_wgrad_compute"] = True
        found["wgrad_deferral_limit"] = max(section.get("wgrad_deferral_limit") or 0, 0)
    return found


def vocabulary(sections: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[Question]]:
    """Rows of the embedding, what is said about them, and the question where a tokenizer's length is not known.

    A tokenizer that decides is padded, as is a config's vocabulary where the recipe says so.
    """
    model, tokenizer = sections.get("model") or {}, sections.get("tokenizer") or {}
    given = model.get("padded_vocab_size")
    size = model.get("vocab_size")
    if given is not None:
        return {"vocab_size": size or given, "padded_vocab_size": given}, [], []
    if size is not None and not tokenizer.get("use_tokenizer_vocab_size"):
        return {"vocab_size": size} | ({} if model.get("should_pad_vocab") else {"padded_vocab_size": size}), [], []
    if tokenizer.get("tokenizer_type") == "NullTokenizer" or not tokenizer.get("tokenizer_model"):
        if not tokenizer:
            return {}, [], []  # the model's config decides
        length = tokenizer.get("vocab_size") or NULL_VOCABULARY
        return {"vocab_size": length}, [f"vocabulary: the {length} ids of NullTokenizer, padded"], []
    name = str(tokenizer["tokenizer_model"])
    last = name.lower().rsplit("/", 1)[-1]
    known = (
        NEMOTRON if "nemotron" in last else QWEN3 if last.startswith(("qwen3-next", "qwen3-vl")) else known_size(name)
    )
    if known is None:
        return {}, [], [Question(f"the vocabulary is the length of the tokenizer {shown(name)}", "--vocab-size N")]
    return {"vocab_size": known}, [f"vocabulary: the {known} ids of the tokenizer {name}, padded"], []
