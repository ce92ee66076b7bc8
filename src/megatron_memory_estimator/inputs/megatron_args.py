"""From Megatron-LM arguments to a job, with Megatron's own defaults and derivations.

Sources: Megatron-LM `megatron/training/arguments.py` (parser and validate_args), `megatron/training/argument_utils.py`;
`megatron_arguments.csv` beside this file lists every argument of August 2026 with its default and class.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import ConfigError, UnsupportedError
from ..job import TrainingJob
from ..settings import nearest
from .resolve import LoadedModel, job_from_parts, known_settings
from .transformer_config import IRRELEVANT


class Argument(NamedTuple):
    """One command-line flag: what it sets, how, and whether memory depends on it."""

    flag: str
    dest: str
    kind: str
    default: Any
    category: str


@lru_cache(maxsize=1)
def arguments() -> tuple[dict[str, Argument], dict[str, Argument]]:
    """All arguments by flag and by destination (underscored)."""
    with open(os.path.join(os.path.dirname(__file__), "megatron_arguments.csv"), encoding="ascii") as file:
        text = file.read()
    by_flag: dict[str, Argument] = {}
    by_dest: dict[str, Argument] = {}
    for row in csv.DictReader(text.splitlines()):
        found = Argument(row["flag"], row["dest"], row["kind"], json.loads(row["default"]), row["class"])
        by_flag[found.flag] = found
        by_dest.setdefault(found.dest, found)
    return by_flag, by_dest


OLD_NAMES = {
    "num_moe_experts": "num_experts",
    "use_mcore_models": "",
    "moe_router_fusion": "",
    "use_dist_ckpt": "",
    "legacy_tokenizer": "",
    "recompute_modules": "recompute_modules",
    "cross_entropy_fusion_implementation": "cross_entropy_fusion_impl",
    "num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
}
"""Arguments of older versions: the new destination, or nothing where they no longer do anything."""

HARMLESS = IRRELEVANT | frozenset(
    [
        "accumulate_allreduce_grads_in_fp32",
        "align_grad_reduce",
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "create_all_gather_group",
        "data_parallel_sharding_strategy",
        "ddp_average_in_collective",
        "decoder_num_layers",
        "decrease_batch_size_if_needed",
        "disable_jit_fuser",
        "distributed_backend",
        "dsa_indexer_k_norm_fp32",
        "dsa_indexer_use_sparse_loss",
        "empty_unused_memory_level",
        "encoder_num_layers",
        "encoder_seq_length",
        "eval_global_batch_size",
        "eval_micro_batch_size",
        "flash_attention_version",
        "gradient_reduce_div_fusion",
        "keep_fp8_transpose_cache",
        "merge_file",
        "moe_aux_loss_coeff",
        "moe_flex_dispatcher_backend",
        "moe_mlp_glu_interleave_size",
        "moe_router_force_biased",
        "moe_router_quantile_balancing_ema",
        "moe_shared_expert_glu_interleave_size",
        "moe_single_grouped_bias",
        "moe_single_grouped_weight",
        "mtp_detach_heads",
        "mtp_hsm",
        "muon_split_qkv",
        "no_persist_layer_norm",
        "apply_query_key_layer_scaling",
        "legacy_tokenizer",
        "num_layers_at_end_in_bf16",
        "num_layers_at_start_in_bf16",
        "overlap_p2p_comm_warmup_flush",
        "pad_vocab_size",
        "reset_attention_mask",
        "reset_position_ids",
        "spec",
        "special_tokens",
        "symmetric_ar_type",
        "te_rng_tracker",
        "tiktoken_num_special_tokens",
        "tokenizer_model",
        "use_flash_attn",
        "use_te_activation_func",
        "vocab_extra_ids",
        "vocab_file",
        "openai_gelu",
        "rampup_batch_size",
        "fp8_recipe",
        "fp8_amax_compute_algo",
        "fp8_amax_history_len",
        "fp8_wgrad",
        "fp4_recipe",
        "use_sharp",
        "mtp_standalone",
        "disable_symmetric_registration",
    ]
)
"""Arguments without an effect of their own on what is modelled here."""


def normalised(args: Mapping[str, Any]) -> dict[str, Any]:
    """Argument destinations with the values given; unknown arguments are refused with the nearest match."""
    by_flag, by_dest = arguments()
    found: dict[str, Any] = {}
    for key, value in args.items():
        name = key.lstrip("-").replace("-", "_")
        name = OLD_NAMES.get(name, name)
        if not name:
            continue
        argument = by_flag.get(name)
        if argument is None:
            if name not in by_dest:
                raise ConfigError(f'unknown Megatron argument "{key}".{nearest(name, by_flag)}')
            found[name] = value
        elif argument.kind in ("StoreTrue", "StoreFalse"):
            if isinstance(value, str) and value.lower() in ("true", "false"):
                value = value.lower() == "true"
            if not isinstance(value, bool):
                raise ConfigError(f"{key}={value!r} must be true or false")
            if (
                argument.flag != argument.dest
                and argument.flag.startswith(("no_", "disable_", "untie_"))
                and argument.kind == "StoreFalse"
            ):
                found[argument.dest] = not value
            else:
                found[argument.dest] = value if argument.kind == "StoreTrue" else not value
        else:
            found[argument.dest] = value
    return found


def job_from_args(args: Mapping[str, Any], num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_megatron_args`."""
    if not isinstance(args, Mapping):
        raise ConfigError("Megatron arguments must be a mapping of names to values")
    given = normalised(args)
    warnings = _refuse(given)
    values = derive(given, settings)
    world = num_gpus if num_gpus is not None else _whole("world_size", settings.get("world_size"), 1)
    values.update({k: v for k, v in settings.items() if k != "world_size"})
    loaded = LoadedModel({}, "", "Megatron arguments", "", warnings=warnings)
    if "global_batch_size" not in values:
        tp, pp, cp = (int(values.get(name) or 1) for name in _DENSE)
        values["global_batch_size"] = int(values.get("micro_batch_size") or 1) * max(world // (tp * pp * cp), 1)
    return job_from_parts(loaded, world, values, habits=False)


_DENSE = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def _refuse(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse arguments that are not modelled; name those that belong to other programs."""
    by_dest = arguments()[1]
    ours = known_settings()
    ignored = []
    for dest, value in given.items():
        argument = by_dest[dest]
        if dest in ours or dest in HARMLESS or dest in DERIVED or argument.category == "irrelevant":
            continue
        if value == argument.default or value in (None, False):
            continue
        if argument.category == "out_of_scope":
            if dest in _OTHER_PROGRAMS:
                raise UnsupportedError(f"Megatron argument {dest}={value!r} belongs to a program that is not modelled")
            ignored.append(dest)
            continue
        raise UnsupportedError(f"Megatron argument {dest}={value!r} is not modelled")
    return (f"not modelled and ignored: {', '.join(sorted(ignored))}",) if ignored else ()


_OTHER_PROGRAMS = frozenset({"perform_rl_step", "vision_pretraining", "bert_binary_head"})

DERIVED = frozenset(
    [
        "swiglu",
        "squared_relu",
        "quick_geglu",
        "num_experts",
        "group_query_attention",
        "num_query_groups",
        "bf16",
        "fp16",
        "recompute_activations",
        "untie_embeddings_and_output_weights",
        "use_rotary_position_embeddings",
        "attention_backend",
        "tokenizer_type",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "num_virtual_stages_per_pipeline_rank",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "hybrid_override_pattern",
        "is_hybrid_model",
        "moe_enable_deepep",
        "decoder_seq_length",
        "use_mamba_mem_eff_path",
        "checkpoint_activations",
        "batch_size",
        "model_parallel_size",
        "glu_linear_offset",
        "disable_bias_linear",
        "yarn_original_max_position_embeddings",
        "add_position_embedding",
    ]
)
"""Arguments that `derive` reads."""


def derive(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings from arguments: parser defaults, then the derivations of validate_args."""
    by_dest = arguments()[1]
    ours = known_settings()

    def arg(name: str) -> Any:
        return given[name] if name in given else by_dest[name].default

    values = {name: arg(name) for name in by_dest if name in ours and arg(name) is not None}
    values = {name: _typed(ours[name], name, value) for name, value in values.items()}
    hidden = _whole("hidden_size", arg("hidden_size"), 0)
    gated = bool(arg("swiglu") or arg("quick_geglu"))
    values["gated_linear_unit"] = gated
    values["activation_func"] = (
        "silu"
        if arg("swiglu")
        else "quick_gelu"
        if arg("quick_geglu")
        else "squared_relu"
        if arg("squared_relu")
        else "gelu"
    )
    if arg("ffn_hidden_size") is None and hidden:
        values["ffn_hidden_size"] = int(hidden * 8 / 3 / 64) * 64 if arg("swiglu") else 4 * hidden
    fused = arg("bias_swiglu_fusion") if gated else arg("bias_gelu_fusion") and arg("add_bias_linear")
    values["bias_activation_fusion"] = bool(fused)
    if arg("add_bias_linear"):
        values["add_qkv_bias"] = True
    values.pop("num_query_groups", None)
    if arg("group_query_attention"):
        values["num_query_groups"] = _whole("num_query_groups", arg("num_query_groups"), 1)
    values["share_embeddings_and_output_weights"] = not arg("untie_embeddings_and_output_weights")
    if not arg("accumulate_allreduce_grads_in_fp32"):
        values.pop("accumulate_allreduce_grads_in_fp32", None)  # left out, bf16 turns it on
    if arg("use_rotary_position_embeddings"):
        values["position_embedding_type"] = "rope"
    if values.get("position_embedding_type") not in ("rope", None):
        values["apply_rope_fusion"] = False
    experts = arg("num_experts")
    values.pop("num_moe_experts", None)
    if experts:
        values["num_moe_experts"] = _whole("num_experts", experts, 1)
    values["q_lora_rank"] = arg("q_lora_rank")
    values["params_dtype"] = "bf16" if arg("bf16") else "fp16" if arg("fp16") else "fp32"
    if arg("recompute_activations") and arg("recompute_granularity") is None:
        values["recompute_granularity"], values["recompute_modules"] = "selective", ("core_attn",)
    for ours_name, theirs in (
        ("num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"),
        ("num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"),
        ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    ):
        if arg(theirs) is not None:
            values[ours_name] = arg(theirs)
    if values.get("tensor_model_parallel_size", 1) == 1:
        values["sequence_parallel"] = False
    backend = arg("attention_backend")
    backend = str(backend).removeprefix("AttnBackend.")
    if backend not in ("auto", "None") and "attention_kernel" not in settings:
        values["attention_kernel"] = "cudnn" if backend == "fused" else backend
    values["mamba_mem_eff_path"] = bool(arg("use_mamba_mem_eff_path"))
    if arg("moe_enable_deepep"):
        values["moe_flex_dispatcher_backend"] = "deepep"
    _vocabulary(values, arg, settings)
    _hybrid(values, arg)
    return values


def _vocabulary(values: dict[str, Any], arg: Any, settings: Mapping[str, Any]) -> None:
    """NullTokenizer added an end-of-document id until April 2026 (Megatron-Core 0.17)."""
    if arg("padded_vocab_size") is not None or "padded_vocab_size" in settings:
        return
    version = str(settings.get("megatron_core_version", "0.20")).split(".")
    older = len(version) > 1 and version[1].isdigit() and int(version[1]) <= 17
    if arg("tokenizer_type") == "NullTokenizer" and arg("vocab_size") is not None and older:
        values["vocab_size"] = _whole("vocab_size", arg("vocab_size"), 1) + 1


def _hybrid(values: dict[str, Any], arg: Any) -> None:
    pattern = arg("hybrid_layer_pattern") or arg("hybrid_override_pattern")
    if not pattern:
        return
    parts = str(pattern).split("/")
    values["hybrid_layer_pattern"] = pattern
    values["num_layers"] = len(parts[0].replace("|", ""))
    if len(parts) > 1:
        values["mtp_num_layers"] = len(parts) - 1


def _whole(name: str, value: Any, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).lstrip("-").isdigit():
        raise ConfigError(f"{name}={value!r} must be a whole number")
    return int(value)


def _typed(owner: type[Any], name: str, value: Any) -> Any:
    """A value of an argument file in our type: numbers may be written as words, lists as one word."""
    declared = owner.__dataclass_fields__[name]
    kind = str(declared.type)
    if isinstance(value, str) and "int" in kind and value.lstrip("-").isdigit():
        return int(value)
    if isinstance(value, str) and "float" in kind:
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, str) and declared.metadata.get("kind") == "list":
        return tuple(value.split())
    return value
