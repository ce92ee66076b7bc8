"""From a model and the settings that a user gave to a complete TrainingJob; everything decided here is said.

Two sets of defaults: with a model name, the habits of published recipes; with Megatron's own settings, the class defaults
of TransformerConfig, DistributedDataParallelConfig and OptimizerConfig.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from ..errors import ConfigError
from ..hardware import Environment, find_gpu
from ..job import DEFAULT_GPU, TrainingJob
from ..layout import Layout
from ..legality import balanced_split
from ..model import Model
from ..pipeline import split_layers, virtual_stages
from ..schedule import saturating_microbatches
from ..settings import build, checked, nearest
from ..training import Training
from .transformer_config import IRRELEVANT, RENAMED, UNSUPPORTED

DEFAULT_SEQ_LENGTH = 4096

HABITS: dict[str, Any] = {
    "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": True,
    "gradient_accumulation_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}
"""With a model name: settings that published recipes share and Megatron-LM leaves off by default."""

CLASS_DEFAULTS: dict[str, Any] = {
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "attention_softmax_in_fp32": True,
    "gradient_accumulation_fusion": False,
    "overlap_p2p_comm": False,
}
"""Defaults of the TransformerConfig class, where they differ from Megatron-LM's command line."""


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a config: its settings in our names, where it comes from, what cannot be estimated."""

    config: Mapping[str, Any]
    name: str
    source: str
    model_type: str
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    foreign: tuple[tuple[str, int], ...] = ()


PARTS: tuple[type[Any], ...] = (Model, Layout, Training, Environment)


def known_settings() -> dict[str, type[Any]]:
    """Every setting's name and the dataclass that owns it."""
    return {f.name: part for part in PARTS for f in dataclasses.fields(part) if not f.metadata.get("internal")}


def sorted_settings(values: Mapping[str, Any]) -> dict[type[Any], dict[str, Any]]:
    """The values by owning dataclass; unknown names are refused with the nearest match."""
    known = known_settings()
    found: dict[type[Any], dict[str, Any]] = {part: {} for part in PARTS}
    for name, value in values.items():
        name = name.replace("-", "_")
        if name in RENAMED:
            name = RENAMED[name]
        if name in IRRELEVANT:
            continue
        if name in UNSUPPORTED:
            if value not in UNSUPPORTED[name]:
                raise ConfigError(f"{name}={value!r} is not modelled; only {UNSUPPORTED[name][0]!r} is")
            continue
        if name not in known:
            raise ConfigError(f'unknown setting "{name}".{nearest(name, [*known, *IRRELEVANT])}')
        found[known[name]][name] = value
    return found


def precision(values: dict[str, Any]) -> dict[str, Any]:
    """`bf16=True` and `fp16=True` as the params_dtype that they mean; "torch.bfloat16" and "bfloat16" likewise."""
    out = dict(values)
    bf16, fp16 = out.pop("bf16", None), out.pop("fp16", None)
    for flag, value in (("bf16", bf16), ("fp16", fp16)):
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{flag}={value!r} must be true or false")
    if bf16 and fp16:
        raise ConfigError("bf16 and fp16 exclude each other; give one")
    if bf16:
        out["params_dtype"] = "bf16"
    elif fp16:
        out["params_dtype"] = "fp16"
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    for name in ("params_dtype", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        value = out.get(name)
        if isinstance(value, str):
            value = value.removeprefix("torch.")
            out[name] = words.get(value, value)
    return out


def whole_number(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value > 2**40:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
    return value


def job_from_config(config: Mapping[str, Any], num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_config`."""
    merged = {**config, **settings}
    mla = bool(merged.get("multi_latent_attention"))
    defaults = {**CLASS_DEFAULTS, **({"normalization": "RMSNorm"} if mla else {})}
    loaded = LoadedModel({}, str(merged.pop("name", "") or ""), "settings", "")
    return job_from_parts(loaded, num_gpus, merged, habits=False, defaults=defaults)


def model_of(loaded: LoadedModel) -> Model:
    """The architecture of a loaded model, without a layout."""
    model: Model = build(Model, {**sorted_settings(loaded.config)[Model], "foreign_layers": loaded.foreign})
    return model


def job_from_parts(
    loaded: LoadedModel,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    *,
    habits: bool,
    defaults: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> TrainingJob:
    """A complete job: defaults, then what the model's config says, then what the user gave, then what is left to decide."""
    given = precision({k.replace("-", "_"): v for k, v in settings.items() if v is not None or k in _NULLABLE})
    gpu = find_gpu(_word("gpu", given.pop("gpu", DEFAULT_GPU)))
    env_given = given.pop("env", None)
    strict = bool(given.pop("strict", strict))
    if "num_microbatches" in given:
        raise ConfigError("num_microbatches follows from global_batch_size; give that")
    values = {**(HABITS if habits else {}), **(defaults or {}), **loaded.config, **given}
    parts = sorted_settings(values)
    if isinstance(env_given, Environment):
        env = env_given
    else:
        env = build(Environment, {**parts[Environment], **_environment(env_given)})
    said: list[str] = []
    if habits:
        said.append(
            "published recipes' habits where not given: distributed optimizer, gradient accumulation fusion, "
            "expert_tensor_parallel_size 1, grouped experts, alltoall dispatcher, fused permutation"
        )
    model: Model = build(Model, {**parts[Model], "foreign_layers": loaded.foreign})
    if "seq_length" not in parts[Training]:
        length = min(DEFAULT_SEQ_LENGTH, model.max_position_embeddings or DEFAULT_SEQ_LENGTH)
        parts[Training]["seq_length"] = length
        said.append(f"seq_length not given: {length}")
    training: Training = build(Training, parts[Training])
    training, notes = _recompute_defaults(training)
    said += notes
    layout_values = {name: checked(_field(Layout, name), value) for name, value in parts[Layout].items()}
    layout, notes, microbatches, training = _layout(model, layout_values, training, num_gpus, given, habits, strict)
    said += notes
    warned = list(loaded.warnings)
    if training.optimizer == "muon" and training.use_distributed_optimizer:
        warned.append("Muon's layer-wise packing of parameters onto ranks is modelled as largest first")
    if training.router_imbalance == 1 and model.has_moe and training.moe_expert_capacity_factor is None:
        said.append("balanced routing (router_imbalance 1): every expert-parallel rank gets the same number of rows")
    return TrainingJob(
        model=model,
        layout=layout,
        training=training,
        gpu=gpu,
        env=env,
        name=loaded.name,
        source=loaded.source,
        model_type=loaded.model_type,
        num_microbatches=microbatches,
        refusal=loaded.refusal,
        assumptions=tuple(said),
        warnings=tuple(warned),
    )


_NULLABLE = {"q_lora_rank", "moe_shared_expert_intermediate_size", "mtp_num_layers", "num_moe_experts"}


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r} must be a name")
    return value


def _environment(value: Any) -> dict[str, Any]:
    """Environment settings, or environment variables by their own names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError("env must be a mapping of environment settings or variables")
    found: dict[str, Any] = {}
    for name, setting in value.items():
        if name == "CUBLAS_WORKSPACE_CONFIG":
            found["cublas_workspace_config"] = setting
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            found["expandable_segments"] = "expandable_segments:true" in str(setting).lower()
        elif name == "NCCL_NVLS_ENABLE":
            found["nccl_nvls"] = str(setting) not in ("0", "")
        elif name.isupper():
            continue
        else:
            found[name] = setting
    return found


def _field(part: type[Any], name: str) -> Any:
    return next(f for f in dataclasses.fields(part) if f.name == name)


def _recompute_defaults(training: Training) -> tuple[Training, list[str]]:
    """Full recomputation without a method means uniform with one layer per checkpoint."""
    if training.recompute_granularity != "full":
        return training, []
    changes: dict[str, Any] = {}
    said = []
    if training.recompute_method is None:
        changes["recompute_method"] = "uniform"
        said.append("recompute_method not given: uniform")
    if training.recompute_num_layers is None:
        changes["recompute_num_layers"] = 1
        said.append("recompute_num_layers not given: 1")
    return dataclasses.replace(training, **changes), said


def _layout(
    model: Model,
    values: dict[str, Any],
    training: Training,
    num_gpus: int | None,
    given: Mapping[str, Any],
    habits: bool,
    strict: bool,
) -> tuple[Layout, list[str], int, Training]:
    said: list[str] = []
    world = num_gpus if num_gpus is not None else values.pop("world_size", None)
    values.pop("world_size", None)
    draft = Layout(**values)
    for name in ("tp", "pp", "cp", "ep", "etp"):
        whole_number(_LONG[name], getattr(draft, name))
    moe_needs = model.has_moe and draft.tp > 1
    if habits and "sequence_parallel" not in given:
        on = draft.tp > 1 and (draft.etp == 1 or moe_needs)
        values["sequence_parallel"] = on
        if on:
            said.append("sequence_parallel on (tensor_model_parallel_size above 1)")
    if world is None:
        expert = draft.etp * draft.ep if model.num_moe_experts else 1
        dense = draft.tp * draft.cp
        world = dense * expert // gcd(dense, expert) * draft.pp
        if habits and strict:
            raise ConfigError(f"num_gpus is not given; the smallest legal count is {world}")
        said.append(f"num_gpus not given: {world}, the smallest legal count")
    whole_number("num_gpus", world)
    draft = Layout(world_size=world, **values)
    draft, notes = _split(model, draft, strict=strict, habits=habits)
    said += notes
    microbatches, notes, training = _microbatches(model, draft, training)
    return draft, said + notes, microbatches, training


_LONG = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}


def _split(model: Model, layout: Layout, *, strict: bool, habits: bool) -> tuple[Layout, list[str]]:
    """The most balanced legal split where layers do not divide over pipeline stages and none was given."""
    pp = layout.pp
    chosen = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    if not habits or pp == 1 or any(n is not None for n in chosen) or layout.pipeline_model_parallel_layout:
        return layout, []
    if layout.num_layers_per_virtual_pipeline_stage is not None or (
        model.hybrid and "|" in (model.hybrid_layer_pattern or "")
    ):
        return layout, []
    vp = layout.virtual_pipeline_model_parallel_size or 1
    total = split_layers(model, layout)
    if vp < 1 or (total % pp == 0 and total // pp % vp == 0) or total != model.num_layers:
        return layout, []
    split = balanced_split(model.num_layers, pp, vp)
    if split is None:
        return layout, []
    first, last = split
    shown = ", ".join(
        f"{name}={n}"
        for name, n in zip(
            ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"), split, strict=True
        )
        if n is not None
    )
    if strict:
        raise ConfigError(
            f"num_layers={total} does not divide by pipeline_model_parallel_size={pp}; the most balanced split is {shown}"
        )
    changed = dataclasses.replace(
        layout, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last
    )
    return changed, [f"{total} layers do not divide over {pp} stages: {shown}, the most balanced legal split"]


def _microbatches(model: Model, layout: Layout, training: Training) -> tuple[int, list[str], Training]:
    """Microbatches of a step from the global batch, or so many that more would change nothing."""
    if layout.world_size % (layout.tp * layout.pp * layout.cp) or layout.dp < 1:
        return 1, [], training  # legality says why
    per_step = training.micro_batch_size * layout.dp
    if training.global_batch_size is not None:
        if training.global_batch_size % per_step:
            raise ConfigError(
                f"global_batch_size={training.global_batch_size} does not divide by micro_batch_size*data_parallel_size="
                f"{training.micro_batch_size}*{layout.dp}={per_step}; use a multiple of {per_step}"
            )
        return training.global_batch_size // per_step, [], training
    try:
        vp = virtual_stages(model, layout)
    except ConfigError:
        vp = 1
    except ValueError:
        return 1, [], training
    if model.hybrid_layer_pattern and "|" in model.hybrid_layer_pattern:
        vp = max(len(model.hybrid_layer_pattern.split("/")[0].split("|")) // layout.pp, 1)
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    count = saturating_microbatches(layout.pp, max(vp, 1), max(group, 1))
    note = f"global_batch_size not given: {count * per_step} ({count} microbatches, more would not change the peak)"
    return count, [note], dataclasses.replace(training, global_batch_size=count * per_step)
