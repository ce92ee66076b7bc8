"""Other spellings of values: what older versions, other classes and command lines write for the same setting.

Batch sizes that change during a run: the largest decides what is in flight.

Source: Megatron-LM `megatron/core/num_microbatches_calculator.py` (StepBatchsizeNumMicroBatchesCalculator: THRESHOLD:BATCH_SIZE
pairs, numbers with K, M, B or T behind them); `megatron/training/arguments.py` (validate_args: excludes global_batch_size).
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..job.choices import KERNELS
from ..job.packing import BALANCED
from ..wording import any_of, shown, whole

FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
"""The fp8 format of a recipe (NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/training/mixed_precision.py`)."""
WHOLE = "train_tokens"
COUNTS_OF_TOKENS = ("seq_length", "max_position_embeddings", "original_max_position_embeddings")
SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
DTYPES = (
    "params_dtype",
    "main_grads_dtype",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "moe_router_dtype",
)
"""Settings that hold a dtype."""
SPELLED = (
    "moe_router_force_load_balancing",
    "cpu_offloading",
    "apply_dsa_kernel_fusion",
    "enable_cuda_graph",
    "external_cuda_graph",
    "apply_query_key_layer_scaling",
    "attention_backend",
)
"""Fields of Megatron's classes that are no settings: `respelled` reads them."""
BACKENDS = ("auto", "flash", "fused", "unfused", "local")
"""Words of attention_backend."""
LAYER_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def short_dtype(value: Any) -> str:
    """The short name of a dtype: bf16 for "torch.bfloat16" and "bfloat16"; another word stays."""
    word = str(value).removeprefix("torch.")
    return SHORT_DTYPES.get(word, word)


def router_dtype(value: Any) -> dict[str, str]:
    """The dtype of the router; any word but fp32 and fp64 means its input's (Megatron-LM `moe/router.py`, gating)."""
    return {"moe_router_dtype": value} if value in ("fp32", "fp64") else {}


def precision(values: dict[str, Any]) -> dict[str, Any]:
    """`bf16=True` and `fp16=True` as the params_dtype that they mean; "torch.bfloat16" and "bfloat16" likewise."""
    out = dict(values)
    bf16, fp16 = out.pop("bf16", None), out.pop("fp16", None)
    for flag, value in (("bf16", bf16), ("fp16", fp16)):
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{flag}={value!r} must be true or false")
    if bf16 and fp16:
        raise ConfigError("bf16 and fp16 exclude each other; give one")
    named = short_dtype(out.get("params_dtype", ""))
    if (bf16 and named not in ("", "bf16")) or (fp16 and named not in ("", "fp16")):
        raise ConfigError(f"params_dtype={out['params_dtype']!r} contradicts {'bf16' if bf16 else 'fp16'}; give one")
    if bf16 is False and not fp16 and not named:
        out["params_dtype"] = "fp32"
    if bf16:
        out["params_dtype"] = "bf16"
    elif fp16:
        out["params_dtype"] = "fp16"
    for name in DTYPES:
        value = out.get(name)
        if isinstance(value, str):
            out[name] = short_dtype(value)
    return out


def graphs(out: dict[str, Any]) -> None:
    """CUDA graphs in older words: enable_cuda_graph, external_cuda_graph, and the scopes full and full_iteration."""
    if out.pop("enable_cuda_graph", False):
        out["cuda_graph_impl"] = "local"
    if out.pop("external_cuda_graph", False):
        out["cuda_graph_impl"] = "transformer_engine"
    if "cuda_graph_impl" in out and out["cuda_graph_impl"] is None:
        out["cuda_graph_impl"] = "none"
    scope = out.get("cuda_graph_modules")
    if isinstance(scope, str):
        scope = _listed(scope)
    if scope is not None:
        if not isinstance(scope, list | tuple | set | frozenset):
            raise ConfigError(f"cuda_graph_modules={shown(scope)} must be a list of words")
        words = [str(getattr(word, "name", word)) for word in scope]
        if "full_iteration" in words and out.get("cuda_graph_impl") not in (None, "none"):
            out["cuda_graph_impl"] = "full_iteration"
        out["cuda_graph_modules"] = tuple(word for word in words if word not in ("full", "full_iteration"))


def respelled(values: dict[str, Any]) -> dict[str, Any]:
    """Other spellings of values: precision flags, attention back ends, aliases, one-per-kind coefficients."""
    out = precision(values)
    _attention(out)
    graphs(out)
    _lengths(out)
    _recipes(out)
    if out.pop("moe_router_force_load_balancing", False):
        out.setdefault("routing_phase", "forced_balance")
    if out.pop("hybrid_context_parallel", False):  # the older name
        out.setdefault("dynamic_context_parallel", True)
    if out.pop("offload_optimizer_states", False):  # another name
        out.setdefault("chunked_optimizer_state_offload", True)
    if out.pop("use_varlen_dataset", False):
        out.setdefault("sequence_packing_scheduler", BALANCED)
    if out.pop("moe_enable_deepep", False):
        out.setdefault("moe_flex_dispatcher_backend", "deepep")  # TransformerConfig.__post_init__
    if out.pop("cpu_offloading", None) is False:
        out["cpu_offloading_num_layers"] = 0
    layout = out.get("pipeline_model_parallel_layout")
    if layout is not None:
        out["pipeline_model_parallel_layout"] = layout_string(layout).replace("\\", "")  # escaped for a shell
    for name in ("offload_modules", "recompute_modules"):
        if isinstance(out.get(name), str):
            out[name] = tuple(_listed(out[name]))
    fused = out.pop("apply_dsa_kernel_fusion", None)
    if fused is not None:  # the older spelling
        out.setdefault("dsa_kernel_backend", "cudnn" if fused else "none")
    _fully_sharded(out)
    if out.get("optimizer") == "dist_muon":
        out.update(optimizer="muon", use_distributed_optimizer=True)
    _communication(out)
    largest_batch(out)
    _balancing(out)
    coeff = out.get("moe_aux_loss_coeff")
    if isinstance(coeff, list | tuple) and all(isinstance(x, int | float) for x in coeff):
        out["moe_aux_loss_coeff"] = max(coeff, default=0.0)
    return out


def layout_string(value: Any) -> str:
    """A layout as Megatron's string: from a string, a list of stages, or Megatron's own layout object."""
    stages = getattr(value, "input_data", value)
    if isinstance(stages, str):
        return stages
    if not isinstance(stages, list | tuple):
        raise ConfigError("pipeline_model_parallel_layout must be a string or a list of stages")
    if not all(isinstance(stage, list | tuple) for stage in stages):
        raise ConfigError("pipeline_model_parallel_layout must be a string or a list of stages, each a list of layers")
    words = [[str(getattr(layer, "name", layer)).lower() for layer in stage] for stage in stages]
    for layer in (layer for stage in words for layer in stage):
        if layer not in LAYER_LETTERS:
            raise ConfigError(
                f"pipeline_model_parallel_layout has {shown(layer)}; layers are {', '.join(LAYER_LETTERS)}"
            )
    return "|".join("".join(LAYER_LETTERS[layer] for layer in stage) for stage in words)


def thousands(text: str) -> int | None:
    """The number of a text such as 8k, which is 8,192; None for another text."""
    number = whole(text[:-1]) if text[-1:] in ("k", "K") else None
    return None if number is None else 1024 * number


POWERS = {"M": 10**6, "B": 10**9, "T": 10**12}


def amount(text: str) -> float | None:
    """The number of a text such as 15T, which is 15 * 10**12; None for another text."""
    try:
        return float(text[:-1]) * POWERS[text[-1:].upper()]
    except (KeyError, ValueError):
        return None


def _lengths(out: dict[str, Any]) -> None:
    """Lengths in thousands: 8k is 8,192 tokens; 15T tokens of a whole run."""
    value = out.get(WHOLE)
    if isinstance(value, str) and (large := amount(value)) is not None:
        out[WHOLE] = large
    for name in COUNTS_OF_TOKENS:
        value = out.get(name)
        if isinstance(value, str) and (number := thousands(value)) is not None:
            out[name] = number


def _recipes(out: dict[str, Any]) -> None:
    """A recipe's name where the format of its numbers is meant: fp8=mxfp8, fp4=nvfp4."""
    recipe = out.get("fp8")
    if isinstance(recipe, str) and recipe in FORMATS:
        if out.get("fp8_recipe", recipe) != recipe:
            raise ConfigError(f"fp8={recipe} contradicts fp8_recipe={shown(out['fp8_recipe'])}; give one")
        out.update(fp8=FORMATS[recipe], fp8_recipe=recipe)
    if out.get("fp4") == "nvfp4":
        out["fp4"] = "e2m1"


def _balancing(out: dict[str, Any]) -> None:
    """Balancing losses by name: `noaux_tc`, the word of DeepSeek's configs, is none that Megatron-Core computes (`moe/router.py`,
    routing), and Bridge's DeepSeek-V4 provider sets it (`deepseek_v4_bridge.py`)."""
    kinds = out.get("moe_router_load_balancing_type")
    words = (kinds,) if isinstance(kinds, str) else kinds
    if isinstance(words, list | tuple) and "noaux_tc" in words:
        out["moe_router_load_balancing_type"] = tuple("none" if word == "noaux_tc" else word for word in words)


def _fully_sharded(out: dict[str, Any]) -> None:
    """What Megatron-LM sets beside Megatron-FSDP (`megatron/training/arguments.py`, validate_args); its version 2 has neither."""
    if out.get("use_megatron_fsdp") and out.get("megatron_fsdp_version", 1) == 2:
        out.setdefault("use_distributed_optimizer", False)
        out.setdefault("gradient_accumulation_fusion", False)
    elif out.get("use_megatron_fsdp"):
        out["use_distributed_optimizer"] = True


def kernel_of(backend: object) -> dict[str, str]:
    """The attention kernel that a back end means, whether it is a word or a member of AttnBackend; auto and nothing leave it open."""
    word = str(getattr(backend, "name", backend)).rpartition(".")[2]
    return {} if word in ("auto", "None") else {"attention_kernel": "cudnn" if word == "fused" else word}


def known_kernel(backend: object) -> dict[str, str]:
    """`kernel_of`, for a back end that Megatron knows; raises ConfigError for another."""
    kernel = kernel_of(backend)
    if not {*kernel.values()} <= {*KERNELS}:
        raise ConfigError(f"attention_backend={shown(backend)} is not one of {any_of(BACKENDS)}")
    return kernel


def _attention(out: dict[str, Any]) -> None:
    """The attention kernel that a back end means, and older names of variants and precision."""
    if out.get("attention_kernel") in ("fused", "auto"):  # words of a back end
        out |= {"attention_kernel": None, **kernel_of(out["attention_kernel"])}
    backend = out.pop("attention_backend", None)
    if backend is not None:
        for name, value in known_kernel(backend).items():
            out.setdefault(name, value)
    if out.get("experimental_attention_variant") == "gated_delta_net":
        out["experimental_attention_variant"] = "gdn"
    if out.pop("apply_query_key_layer_scaling", False):
        out["attention_softmax_in_fp32"] = True  # TransformerConfig.__post_init__


def _communication(out: dict[str, Any]) -> None:
    """Communication of context parallelism as a list of one kind for all layers, or of one for each."""
    kinds = out.get("cp_comm_type")
    if kinds is not None:
        if not isinstance(kinds, str | list | tuple):
            raise ConfigError(f"cp_comm_type={shown(kinds)} must be a word, or a list of one for each layer")
        listed = [kinds] if isinstance(kinds, str) else list(kinds)
        out["cp_comm_type"] = ["all_gather" if kind == "allgather" else kind for kind in listed]


def _listed(text: str) -> list[str]:
    """The words of a list that is written as one text."""
    return text.strip("[]").replace(",", " ").split()


SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def largest_batch(values: dict[str, Any]) -> None:
    """Replaces step_batch_size_schedule by the global_batch_size that it ends up needing.

    Raises ConfigError for a schedule that Megatron does not read, and for one beside another global_batch_size.
    """
    text = values.pop("step_batch_size_schedule", None)
    if text is None:
        return
    if values.get("global_batch_size") is not None:
        raise ConfigError("step_batch_size_schedule and global_batch_size exclude each other; give one")
    values["global_batch_size"] = max(_batches(text))


def _batches(text: Any) -> list[int]:
    """The batch sizes of a schedule."""
    steps = text.replace(",", " ").split() if isinstance(text, str) else []
    pairs = [[_number(word) for word in step.split(":", 1)] for step in steps]
    sizes = [pair[1] for pair in pairs if len(pair) == 2 and None not in pair and pair[1]]
    if not steps or len(sizes) < len(steps) or min(pair[0] or 0 for pair in pairs):
        raise ConfigError(
            f"step_batch_size_schedule={shown(text)} must be THRESHOLD:BATCH_SIZE pairs, the first threshold 0, "
            'such as "0:768 250B:1536"'
        )
    return [size for size in sizes if size is not None]


def _number(word: str) -> int | None:
    """A whole number, with or without a suffix; None where it is none."""
    times = SUFFIXES.get(word[-1:].upper(), 1)
    try:
        number = int(float(word[:-1] if times > 1 else word) * times)
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 else None
