"""Our settings from Megatron-LM arguments: parser defaults, then the derivations of validate_args.

Source: Megatron-LM `megatron/training/arguments.py` (validate_args, core_transformer_config_from_args).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown, signed, whole
from ..setting_names import known_settings
from ..spellings import kernel_of
from .table import arguments

WINDOW = re.compile(r"\(*\s*-?\d+\s*(,\s*-?\d+\s*)*\)*")
"""What `tuple_type` of the parser takes."""
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
        "apply_query_key_layer_scaling",
        "recompute_activations",
        "moe_layer_recompute",
        "untie_embeddings_and_output_weights",
        "use_rotary_position_embeddings",
        "attention_backend",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "num_virtual_stages_per_pipeline_rank",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "hybrid_override_pattern",
        "is_hybrid_model",
        "moe_enable_deepep",
        "enable_cuda_graph",
        "external_cuda_graph",
        "cuda_graph_scope_deprecated",
        "moe_router_padding_for_fp8",
        "use_mamba_mem_eff_path",
        "glu_linear_offset",
        "disable_bias_linear",
        "yarn_original_max_position_embeddings",
        "add_position_embedding",
        "apply_dsa_kernel_fusion",
        "moe_router_force_load_balancing",
        "nccl_ub",
        "no_load_optim",
        "finetune",
    ]
)
"""Arguments that `derive` reads."""


Arg = Callable[[str], Any]
"""Gives the value of an argument by its destination: what was given, or the parser's default."""


def derive(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings from arguments: parser defaults, then the derivations of validate_args."""
    by_dest = arguments()[1]
    ours = known_settings()

    def arg(name: str) -> Any:
        return given[name] if name in given else by_dest[name].default

    if arg("optimizer_cpu_offload") and not arg("use_precision_aware_optimizer"):
        raise ConfigError("optimizer_cpu_offload needs use_precision_aware_optimizer (Megatron-LM arguments.py)")
    held = {name: arg(name) for name in by_dest if name in ours}
    values = {name: _typed(ours[name], name, value) for name, value in held.items() if value is not None}
    _ignored(values, arg)
    _mlp(values, arg)
    _attention(values, arg)
    if "attention_kernel" not in settings:
        values |= kernel_of(arg("attention_backend"))
    _experts(values, arg)
    _training(values, arg)
    _stages(values, arg)
    _graphs(values, arg)
    _hybrid(values, arg)
    return values


def _ignored(values: dict[str, Any], arg: Arg) -> None:
    """Arguments that Megatron-LM passes over: without their switch, below zero, and positions of which it makes no table."""
    if not arg("fine_grained_activation_offloading"):
        values.pop("offload_modules", None)
    if float(arg("moe_expert_capacity_factor") or 0) < 0:
        values.pop("moe_expert_capacity_factor")
    if arg("position_embedding_type") == "relative" and not arg("mtp_num_layers"):
        values["position_embedding_type"] = "none"
    if not arg("ddp_bucket_size"):
        values.pop("ddp_bucket_size", None)
    values["optimizer_offload_fraction"] = min(arg("optimizer_offload_fraction"), 1.0)


def _mlp(values: dict[str, Any], arg: Arg) -> None:
    """The activation, whether it is gated, the width, and the fusion of its bias."""
    hidden = whole_or("hidden_size", arg("hidden_size"), 0)
    gated = bool(arg("swiglu") or arg("quick_geglu"))
    activations = {"swiglu": "silu", "quick_geglu": "quick_gelu", "squared_relu": "squared_relu"}
    values["gated_linear_unit"] = gated
    values["activation_func"] = next((name for flag, name in activations.items() if arg(flag)), "gelu")
    if arg("ffn_hidden_size") is None and hidden:
        values["ffn_hidden_size"] = int(hidden * 8 / 3 / 64) * 64 if arg("swiglu") else 4 * hidden
    fused = arg("bias_swiglu_fusion") if arg("swiglu") else arg("bias_gelu_fusion") and arg("add_bias_linear")
    values["bias_activation_fusion"] = bool(fused)


def _attention(values: dict[str, Any], arg: Arg) -> None:
    """Biases, groups and ranks of the projections, positions, and the precision of the softmax."""
    if arg("add_bias_linear"):
        values["add_qkv_bias"] = True
    values.pop("num_query_groups", None)
    if arg("group_query_attention"):
        values["num_query_groups"] = whole_or("num_query_groups", arg("num_query_groups"), 1)
    values["q_lora_rank"] = arg("q_lora_rank")
    values["share_embeddings_and_output_weights"] = not arg("untie_embeddings_and_output_weights")
    if arg("use_rotary_position_embeddings"):
        values["position_embedding_type"] = "rope"
    if values.get("position_embedding_type") not in ("rope", None):
        values["apply_rope_fusion"] = False
    if arg("apply_query_key_layer_scaling"):
        values["attention_softmax_in_fp32"] = True
    if arg("apply_dsa_kernel_fusion"):  # the older spelling of dsa_kernel_backend
        values["dsa_kernel_backend"] = "cudnn"
    values["mamba_mem_eff_path"] = bool(arg("use_mamba_mem_eff_path"))


def _experts(values: dict[str, Any], arg: Arg) -> None:
    """Experts, their dispatcher and the balancing loss."""
    values.pop("num_moe_experts", None)
    if arg("num_experts"):
        values["num_moe_experts"] = whole_or("num_experts", arg("num_experts"), 1)
    if arg("moe_router_padding_for_fp8"):
        values["moe_router_padding_for_quantization"] = True
    if arg("moe_enable_deepep"):
        values["moe_flex_dispatcher_backend"] = "deepep"
    if arg("moe_router_force_load_balancing"):
        values["moe_router_force_load_balancing"] = True
    coefficients = values.get("moe_aux_loss_coeff")
    if isinstance(coefficients, list | tuple):  # one per kind of balancing loss
        values["moe_aux_loss_coeff"] = max(
            (number_of("moe_aux_loss_coeff", each) for each in coefficients), default=0.0
        )


def _training(values: dict[str, Any], arg: Arg) -> None:
    """Precision, recomputation, sequence parallelism, and what is loaded (`checkpointing.py`, load_checkpoint)."""
    if arg("no_load_optim") or arg("finetune"):
        values["load_optim"] = False
    if not arg("accumulate_allreduce_grads_in_fp32"):
        values.pop("accumulate_allreduce_grads_in_fp32", None)  # left out, bf16 turns it on
    if arg("bf16") and arg("fp16"):
        raise ConfigError("--fp16 and --bf16 exclude each other; take one out")
    values["params_dtype"] = "bf16" if arg("bf16") else "fp16" if arg("fp16") else "fp32"
    if arg("nccl_ub"):
        values["nccl_ub"] = True
    window = arg("window_size")
    if isinstance(window, str) and not WINDOW.fullmatch(window):
        raise ConfigError(f"--window-size {shown(window)} must be two whole numbers, such as 128,0")
    if arg("recompute_activations") and arg("recompute_granularity") is None:
        values["recompute_granularity"], values["recompute_modules"] = "selective", ("core_attn",)
    if arg("moe_layer_recompute"):
        _recomputed_experts(values)
    if values.get("tensor_model_parallel_size", 1) == 1:
        values["sequence_parallel"] = False


def _recomputed_experts(values: dict[str, Any]) -> None:
    """--moe-layer-recompute: selective recomputation of MoE layers beside what else is recomputed."""
    if values.get("recompute_granularity") == "full":
        raise ConfigError(
            "--moe-layer-recompute goes with selective recomputation, not with --recompute-granularity full"
        )
    modules = values.get("recompute_modules") or ("core_attn",)
    modules = tuple(modules.split()) if isinstance(modules, str) else tuple(modules)
    values["recompute_granularity"], values["recompute_modules"] = "selective", tuple(dict.fromkeys((*modules, "moe")))


def _stages(values: dict[str, Any], arg: Arg) -> None:
    """The split over pipeline stages, which the class names otherwise."""
    for ours, theirs in (
        ("num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"),
        ("num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"),
        ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    ):
        if arg(theirs) is not None:
            values[ours] = arg(theirs)


def _graphs(values: dict[str, Any], arg: Arg) -> None:
    """CUDA graphs in the words of several versions, which `spellings.py` understands."""
    for name in ("enable_cuda_graph", "external_cuda_graph"):
        if arg(name):
            values[name] = True
    if arg("cuda_graph_scope_deprecated") is not None:
        values["cuda_graph_modules"] = arg("cuda_graph_scope_deprecated")


def _hybrid(values: dict[str, Any], arg: Arg) -> None:
    """The layers that a hybrid pattern says."""
    pattern = arg("hybrid_layer_pattern") or arg("hybrid_override_pattern")
    if not pattern:
        return
    parts = str(pattern).split("/")
    values["hybrid_layer_pattern"] = pattern
    values["num_layers"] = len(parts[0].replace("|", ""))
    if len(parts) > 1:
        values["mtp_num_layers"] = len(parts) - 1


def whole_or(name: str, value: Any, default: int) -> int:
    """The whole number that a value of an argument says, or `default` where it says none."""
    if value is None:
        return default
    number = signed(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigError(f"{name}={shown(value)} must be a whole number")
    return number


def number_of(name: str, value: Any) -> float:
    """The finite number that a value of an argument says."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} has {shown(value)}, which must be a number")
    return number


def _typed(owner: type[Any], name: str, value: Any) -> Any:
    """A value of an argument file in our type: numbers may be written as words, lists as one word."""
    declared = owner.__dataclass_fields__[name]
    kind = str(declared.type)
    if isinstance(value, str) and "int" in kind and (number := signed(value)) is not None:
        return number
    if isinstance(value, str) and "float" in kind:
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, str) and declared.metadata.get("kind") == "ints":
        words = value.strip("[]() ").replace(",", " ").split()
        return tuple(word if whole(word) is None else int(word) for word in words)
    if isinstance(value, str) and declared.metadata.get("kind") == "list":
        return tuple(value.strip("[]() ").replace(",", " ").split())
    return value
