"""Megatron-LM's arguments and our settings, one table read both ways: what a run's arguments set, and which arguments say a job.

Most settings are arguments by the same name and value. A row of `ROWS` says the others: what is read for them, and how they are said.

Source: Megatron-LM `megatron/training/arguments.py` (validate_args, core_transformer_config_from_args).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...job.layout import Layout
from ...job.model import Model
from ...job.packing import BALANCED
from ...job.training import Training
from ...modules.kinds import has_compressed
from ...wording import shown, signed, whole
from ..setting_names import known_settings
from ..spellings import kernel_of
from .table import arguments

WINDOW = re.compile(r"\(*\s*-?\d+\s*(,\s*-?\d+\s*)*\)*")
"""What `tuple_type` of the parser takes."""
LISTS = ("moe_layer_freq", "linear_attention_freq", "csa_compress_ratios")
"""Settings of every layer that are one word, a list in brackets."""
ACTIVATIONS = {"swiglu": (True, "silu"), "quick_geglu": (True, "quick_gelu"), "squared_relu": (False, "squared_relu")}
"""Whether the MLP is gated and its activation, by argument; gelu without any of them."""
LEFT_OUT = object()
"""In place of a value: nothing is said of the setting, so that its default holds."""


Arg = Callable[[str], Any]
"""Gives the value of an argument by its destination: what was given, or the parser's default."""
Values = Mapping[str, Any]


class Job(NamedTuple):
    """The parts of a job that arguments say."""

    model: Model
    layout: Layout
    training: Training


class Row(NamedTuple):
    """Settings that arguments say otherwise than by their name and value.

    arguments  what is read, by destination
    read       the settings, of arguments and of the settings by the same name
    settings   what `said` says, of a job; nothing where today's Megatron-LM says it by other arguments
    """

    arguments: tuple[str, ...]
    read: Callable[[Arg, Values], Values]
    settings: tuple[str, ...] = ()
    said: Callable[[Job], Values] = lambda job: {}


def derive(given: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings from arguments: parser defaults, then the derivations of validate_args."""
    by_dest = arguments()[1]
    ours = known_settings()

    def arg(name: str) -> Any:
        return given[name] if name in given else by_dest[name].default

    held = {name: arg(name) for name in by_dest if name in ours}
    values = {name: _typed(ours[name], name, value) for name, value in held.items() if value is not None}
    values |= {setting: arg(name) for setting, name in RENAMED.items() if arg(name) is not None}
    for row in ROWS:
        values = {name: value for name, value in {**values, **row.read(arg, values)}.items() if value is not LEFT_OUT}
    return values


def said(job: Job, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments by destination with the values that say a job; `settings` are those of the job that are to be said."""
    for row in ROWS:
        yield from row.said(job).items()
    by_dest = arguments()[1]
    spelled = {name for row in ROWS for name in row.settings}
    for name, value in settings.items():
        dest = RENAMED.get(name, name)
        if name in spelled or dest not in by_dest:
            continue
        if name in LISTS and isinstance(value, list | tuple):
            value = "[" + ",".join(map(str, value)) + "]"
        if name == "moe_router_load_balancing_type" and len(value) == 1:
            value = value[0]
        yield dest, value


RENAMED = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_moe_experts": "num_experts",
}
"""Settings with another name among Megatron-LM's arguments, and the same value."""


def _passed_over(arg: Arg, values: Values) -> Values:
    """Arguments that Megatron-LM passes over: without their switch, below zero, and positions of which it makes no table."""
    found: dict[str, Any] = {}
    if not arg("fine_grained_activation_offloading"):
        found["offload_modules"] = LEFT_OUT
    if float(arg("moe_expert_capacity_factor") or 0) < 0:
        found["moe_expert_capacity_factor"] = LEFT_OUT
    if arg("position_embedding_type") == "relative" and not arg("mtp_num_layers"):
        found["position_embedding_type"] = "none"
    if (arg("save_interval") or 0) < 1:
        found["save_interval"] = LEFT_OUT
    if not arg("ddp_bucket_size"):
        found["ddp_bucket_size"] = LEFT_OUT
    share = number_of("optimizer_offload_fraction", arg("optimizer_offload_fraction") or 0)
    if arg("optimizer_cpu_offload") and not arg("use_precision_aware_optimizer"):
        raise ConfigError("optimizer_cpu_offload needs use_precision_aware_optimizer (Megatron-LM arguments.py)")
    window = arg("window_size")
    if isinstance(window, str) and not WINDOW.fullmatch(window):
        raise ConfigError(f"--window-size {shown(window)} must be two whole numbers, such as 128,0")
    if values.get("tensor_model_parallel_size", 1) == 1:
        found["sequence_parallel"] = False
    if not arg("accumulate_allreduce_grads_in_fp32"):
        found["accumulate_allreduce_grads_in_fp32"] = LEFT_OUT  # bf16 turns it on then
    return {**found, "optimizer_offload_fraction": min(share, 1.0)}


def _precision(arg: Arg, values: Values) -> Values:
    if arg("bf16") and arg("fp16"):
        raise ConfigError("--fp16 and --bf16 exclude each other; take one out")
    return {"params_dtype": "bf16" if arg("bf16") else "fp16" if arg("fp16") else "fp32"}


def _activation(arg: Arg, values: Values) -> Values:
    """The activation and whether it is gated; the width that follows where none is given."""
    gated = bool(arg("swiglu") or arg("quick_geglu"))
    name = next((name for flag, (_, name) in ACTIVATIONS.items() if arg(flag)), "gelu")
    found = {"gated_linear_unit": gated, "activation_func": name}
    hidden = whole_or("hidden_size", arg("hidden_size"), 0)
    if arg("ffn_hidden_size") is None and hidden:
        return {**found, "ffn_hidden_size": int(hidden * 8 / 3 / 64) * 64 if arg("swiglu") else 4 * hidden}
    return found


def _activation_said(job: Job) -> Values:
    kind = job.model.gated_linear_unit, job.model.activation_func
    return {
        flag: True for flag, means in ACTIVATIONS.items() if kind == means or (kind[1] == means[1] == "squared_relu")
    }


def _groups(arg: Arg, values: Values) -> Values:
    if not arg("group_query_attention"):
        return {"num_query_groups": LEFT_OUT}
    return {"num_query_groups": whole_or("num_query_groups", arg("num_query_groups"), 1)}


def _groups_said(job: Job) -> Values:
    model = job.model
    if model.groups == model.num_attention_heads or model.multi_latent_attention:
        return {}
    return {"group_query_attention": True, "num_query_groups": model.groups}


def _bias_fusion(arg: Arg, values: Values) -> Values:
    fused = arg("bias_swiglu_fusion") if arg("swiglu") else arg("bias_gelu_fusion") and arg("add_bias_linear")
    return {"bias_activation_fusion": bool(fused)}


def _bias_fusion_said(job: Job) -> Values:
    gated = "bias_swiglu_fusion" if job.model.gated_linear_unit else "bias_gelu_fusion"
    return {gated: job.training.bias_activation_fusion and job.model.activation_func != "squared_relu"}


def _kernel_said(job: Job) -> Values:
    kernel = job.training.attention_kernel
    known = kernel in ("flash", "unfused", "local", "cudnn")
    return {"attention_backend": "fused" if kernel == "cudnn" else kernel} if known else {}


def _positions(arg: Arg, values: Values) -> Values:
    kind = "rope" if arg("use_rotary_position_embeddings") else values.get("position_embedding_type")
    turned = {} if kind in ("rope", None) else {"apply_rope_fusion": False}
    return {**turned, **({} if kind is None else {"position_embedding_type": kind})}


def _balancing(arg: Arg, values: Values) -> Values:
    """One coefficient for all kinds of balancing losses."""
    coefficients = values.get("moe_aux_loss_coeff")
    if not isinstance(coefficients, list | tuple):
        return {}
    numbers = (number_of("moe_aux_loss_coeff", each) for each in coefficients)
    return {"moe_aux_loss_coeff": max(numbers, default=0.0)}


def _experts(arg: Arg, values: Values) -> Values:
    return {"num_moe_experts": whole_or("num_experts", arg("num_experts"), 1) if arg("num_experts") else LEFT_OUT}


def _recomputation(arg: Arg, values: Values) -> Values:
    """--recompute-activations, and --moe-layer-recompute: MoE layers beside what else is recomputed."""
    plain = arg("recompute_activations") and arg("recompute_granularity") is None
    found: dict[str, Any] = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)} if plain else {}
    if not arg("moe_layer_recompute"):
        return found
    held = {**values, **found}
    if held.get("recompute_granularity") == "full":
        raise ConfigError(
            "--moe-layer-recompute goes with selective recomputation, not with --recompute-granularity full"
        )
    modules = held.get("recompute_modules") or ("core_attn",)
    modules = tuple(modules.split()) if isinstance(modules, str) else tuple(modules)
    return {"recompute_granularity": "selective", "recompute_modules": tuple(dict.fromkeys((*modules, "moe")))}


def _hybrid(arg: Arg, values: Values) -> Values:
    """The layers that a hybrid pattern says."""
    pattern = arg("hybrid_layer_pattern") or arg("hybrid_override_pattern")
    if not pattern:
        return {}
    parts = str(pattern).split("/")
    mtp = {"mtp_num_layers": len(parts) - 1} if len(parts) > 1 else {}
    return {"hybrid_layer_pattern": pattern, "num_layers": len(parts[0].replace("|", "")), **mtp}


def _format(arg: Arg, values: Values) -> Values:
    """A format of checkpoints that the run would not have anyway."""
    given = arg("ckpt_format")
    # Megatron-FSDP wants its own to be given: the parser's default is left out beside it too
    usual = ("torch_dist", _usual_format(fsdp=arg("use_megatron_fsdp")))
    return {"ckpt_format": LEFT_OUT if given in usual else given}


def _format_said(job: Job) -> Values:
    return {"ckpt_format": job.training.ckpt_format or _usual_format(fsdp=job.training.use_megatron_fsdp)}


def _usual_format(*, fsdp: bool) -> str:
    return "fsdp_dtensor" if fsdp else "torch_dist"


def _switch(name: str, setting: str, value: Any = True) -> Row:
    """An argument that sets a setting where it is on, and says nothing where it is off; others say it today."""
    return Row((name,), lambda arg, values: {setting: value} if arg(name) else {})


ROWS = (
    Row((), _passed_over),
    Row(
        ("bf16", "fp16"),
        _precision,
        ("params_dtype",),
        lambda job: {job.training.params_dtype: True} if job.training.params_dtype in ("bf16", "fp16") else {},
    ),
    Row(tuple(ACTIVATIONS), _activation, ("activation_func", "gated_linear_unit"), _activation_said),
    Row(
        ("untie_embeddings_and_output_weights",),
        lambda arg, values: {"share_embeddings_and_output_weights": not arg("untie_embeddings_and_output_weights")},
        ("share_embeddings_and_output_weights",),
        lambda job: {"untie_embeddings_and_output_weights": not job.model.share_embeddings_and_output_weights},
    ),
    Row(("group_query_attention", "num_query_groups"), _groups, ("num_query_groups",), _groups_said),
    Row(("bias_gelu_fusion", "bias_swiglu_fusion"), _bias_fusion, ("bias_activation_fusion",), _bias_fusion_said),
    Row(
        ("attention_backend",),
        lambda arg, values: kernel_of(arg("attention_backend")),
        ("attention_kernel",),
        _kernel_said,
    ),
    Row(
        ("no_load_optim", "finetune"),
        lambda arg, values: {"load_optim": False} if arg("no_load_optim") or arg("finetune") else {},
        ("load_optim",),
        lambda job: {} if job.training.load_optim else {"no_load_optim": True},
    ),
    Row(
        ("async_save", "use_persistent_ckpt_worker"),  # the one is off without the other (arguments.py, validate_args)
        lambda arg, values: {"async_save": bool(arg("use_persistent_ckpt_worker"))} if arg("async_save") else {},
        ("async_save",),
        lambda job: {"async_save": True, "use_persistent_ckpt_worker": True} if job.training.async_save else {},
    ),
    Row(
        ("use_mamba_mem_eff_path",),
        lambda arg, values: {"mamba_mem_eff_path": bool(arg("use_mamba_mem_eff_path"))},
        ("mamba_mem_eff_path",),
        lambda job: {"use_mamba_mem_eff_path": job.training.mamba_mem_eff_path},
    ),
    Row(
        (),
        lambda arg, values: {"q_lora_rank": arg("q_lora_rank")},  # none is a choice
        said=lambda job: {"cp_partition_mode": "contiguous"} if job.layout.cp > 1 and has_compressed(job.model) else {},
    ),
    Row(("ckpt_format",), _format, ("ckpt_format",), _format_said),
    _switch("add_bias_linear", "add_qkv_bias"),
    Row(
        ("use_varlen_dataset",),  # validate_args
        lambda arg, values: (
            {"sequence_packing_scheduler": BALANCED}
            if arg("use_varlen_dataset") and not arg("sequence_packing_scheduler")
            else {}
        ),
    ),
    Row(("use_rotary_position_embeddings",), _positions),
    _switch("apply_query_key_layer_scaling", "attention_softmax_in_fp32"),
    _switch("apply_dsa_kernel_fusion", "dsa_kernel_backend", "cudnn"),
    Row(("num_experts",), _experts),
    _switch("moe_router_padding_for_fp8", "moe_router_padding_for_quantization"),
    _switch("moe_enable_deepep", "moe_flex_dispatcher_backend", "deepep"),
    _switch("moe_router_force_load_balancing", "moe_router_force_load_balancing"),
    Row((), _balancing),
    _switch("nccl_ub", "nccl_ub"),
    Row(("recompute_activations", "moe_layer_recompute"), _recomputation),
    _switch("enable_cuda_graph", "enable_cuda_graph"),  # `spellings.py` understands both
    _switch("external_cuda_graph", "external_cuda_graph"),
    Row(
        ("cuda_graph_scope_deprecated",),
        lambda arg, values: (
            {}
            if arg("cuda_graph_scope_deprecated") is None
            else {"cuda_graph_modules": arg("cuda_graph_scope_deprecated")}
        ),
    ),
    Row(("hybrid_override_pattern",), _hybrid),
)
FOLLOW = (
    "is_hybrid_model",
    "glu_linear_offset",
    "disable_bias_linear",
    "yarn_original_max_position_embeddings",
    "add_position_embedding",
)
"""Arguments that say again what others say."""
DERIVED = frozenset((*RENAMED.values(), *FOLLOW, *(name for row in ROWS for name in row.arguments)))
"""Arguments that are read under another name than a setting's."""


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
