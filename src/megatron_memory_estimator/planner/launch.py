"""How to launch a planned run: Megatron-LM arguments, a YAML file of them, Megatron-Bridge sections and overrides.

Each form is read back by the readers of `inputs` and compared: settings that a form has no word for stand beside it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..inputs.bridge_config import DDP, OPTIMIZER
from ..inputs.megatron.table import Argument, arguments
from ..job import TrainingJob
from ..model import Model

PARTS = ("model", "layout", "training")
RUN = (
    "world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "cp_comm_type", "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout", "seq_length",
    "micro_batch_size", "global_batch_size", "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    "fp8", "fp8_recipe", "fp4", "use_distributed_optimizer", "use_precision_aware_optimizer", "optimizer_cpu_offload",
    "optimizer_offload_fraction",
)  # fmt: skip
"""Settings that a plan decides."""
RESET = (
    "virtual_pipeline_model_parallel_size", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout", "recompute_granularity", "recompute_method", "recompute_num_layers",
)  # fmt: skip
"""Settings that a recipe may have and a plan may leave off."""
OTHER_NAMES = {
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
"""Settings with another name among Megatron-LM's arguments."""


MLA = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "rope_type",
    "original_max_position_embeddings",
)


class Launch(NamedTuple):
    """Arguments by flag (True for a flag alone), and settings that have no argument."""

    arguments: dict[str, Any]
    beside: dict[str, Any]

    def words(self) -> list[str]:
        """As words of a command line."""
        return [word for words in self.flags() for word in words]

    def flags(self) -> Iterator[list[str]]:
        """The words of each flag."""
        for flag, value in self.arguments.items():
            values = value if isinstance(value, tuple | list) else () if value is True else (value,)
            if isinstance(value, str) and value.startswith("-"):
                yield [f"--{flag}={value}"]  # else argparse takes the value for a flag
            else:
                yield [f"--{flag}", *map(str, values)]


def settings_of(job: TrainingJob) -> dict[str, Any]:
    """Every setting of the model, the layout and the training by name."""
    return {
        f.name: getattr(getattr(job, part), f.name)
        for part in PARTS
        for f in dataclasses.fields(getattr(job, part))
        if not f.metadata.get("internal")
    }


def differing(job: TrainingJob, other: TrainingJob) -> dict[str, Any]:
    """Settings of a job that another one has not."""
    mine, theirs = settings_of(job), settings_of(other)
    return {name: value for name, value in mine.items() if theirs[name] != value and not _same(job, other, name)}


def _same(job: TrainingJob, other: TrainingJob, name: str) -> bool:
    """Whether a setting says the same with another spelling: a default written out, or what nothing depends on."""
    model, theirs = job.model, other.model
    if name == "expert_tensor_parallel_size":
        return job.layout.etp == other.layout.etp or not model.num_moe_experts
    if name in ("vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"):
        return model.padded_vocab(job.layout.tp) == theirs.padded_vocab(other.layout.tp)
    if name == "num_query_groups":
        return model.groups == theirs.groups
    if name in ("kv_channels", "ffn_hidden_size", "moe_ffn_hidden_size"):
        return (model.head_dim, model.ffn, model.moe_ffn) == (
            theirs.head_dim,
            theirs.ffn,
            theirs.moe_ffn,
        ) or model.multi_latent_attention
    if name in ("moe_layer_freq", "hybrid_layer_pattern", "linear_attention_freq"):
        return model.kinds == theirs.kinds and model.mtp_kinds == theirs.mtp_kinds
    if name in ("transformer_engine_version", "megatron_core_version"):
        return False
    if name.startswith(("linear_", "moe_", "dsa_", "mamba_")) or name in MLA:
        return not _concerns(model, name)
    if name == "max_position_embeddings":
        return model.position_embedding_type != "learned_absolute"
    if name == "apply_rope_fusion":
        return model.position_embedding_type in ("learned_absolute", "none")
    if name == "mtp_num_layers":
        return model.mtp == theirs.mtp
    if name == "accumulate_allreduce_grads_in_fp32":
        return job.training.grad_dtype == other.training.grad_dtype
    return False


def _concerns(model: Model, name: str) -> bool:
    """Whether a setting of one kind of layer concerns a model."""
    kinds = " ".join((*model.kinds, *model.mtp_kinds))
    owner = {"linear_": "gdn", "dsa_": "dsa", "mamba_": "mamba", "moe_": "moe"}
    for start, kind in owner.items():
        if name.startswith(start):
            return kind in kinds
    return model.multi_latent_attention


def megatron_lm(job: TrainingJob) -> Launch:
    """The run as Megatron-LM arguments (Megatron-LM `megatron/training/arguments.py`)."""
    values = dict(_megatron_values(job))
    found = {flag: value for dest, value in values.items() for flag, value in _flags(dest, value)}
    read = TrainingJob.from_megatron_args(Launch(found, {}).words(), job.layout.world_size, gpu=job.gpu.name)
    return Launch(found, {name: value for name, value in differing(job, read).items() if name != "world_size"})


def _megatron_values(job: TrainingJob) -> Iterator[tuple[str, Any]]:
    """Destinations of Megatron's parser with their values."""
    model, t = job.model, job.training
    settings = settings_of(job)
    yield from (("bf16", True),) if t.params_dtype == "bf16" else (("fp16", True),) if t.params_dtype == "fp16" else ()
    if model.gated_linear_unit and model.activation_func in ("silu", "quick_gelu"):
        yield ("swiglu" if model.activation_func == "silu" else "quick_geglu"), True
    elif model.activation_func == "squared_relu":
        yield "squared_relu", True
    yield "untie_embeddings_and_output_weights", not model.share_embeddings_and_output_weights
    if model.groups != model.num_attention_heads and not model.multi_latent_attention:
        yield "group_query_attention", True
        yield "num_query_groups", model.groups
    gated = "bias_swiglu_fusion" if model.gated_linear_unit else "bias_gelu_fusion"
    yield gated, t.bias_activation_fusion
    if t.attention_kernel in ("flash", "unfused", "local", "cudnn"):
        yield "attention_backend", "fused" if t.attention_kernel == "cudnn" else t.attention_kernel
    yield "use_mamba_mem_eff_path", t.mamba_mem_eff_path
    by_dest = arguments()[1]
    for name, value in settings.items():
        dest = OTHER_NAMES.get(name, name)
        if dest in _DERIVED_HERE or dest not in by_dest or name in ("world_size", "num_query_groups"):
            continue
        if name == "max_position_embeddings":
            value = max(value or 0, t.seq_length)
        if name == "vocab_size" and value is None:
            continue
        if name.startswith(("linear_", "moe_", "dsa_", "mamba_")) and not _concerns(model, name):
            continue
        if name in MLA and not model.multi_latent_attention:
            continue
        if name in ("moe_layer_freq", "linear_attention_freq") and isinstance(value, tuple):
            value = "[" + ",".join(map(str, value)) + "]"
        if name == "moe_router_load_balancing_type" and len(value) == 1:
            value = value[0]
        yield dest, value


_DERIVED_HERE = frozenset(
    ["activation_func", "gated_linear_unit", "params_dtype", "bias_activation_fusion", "mamba_mem_eff_path"]
)


def _flags(dest: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The flag that sets a destination, unless the parser's default does."""
    by_flag, by_dest = arguments()
    argument = by_dest[dest]
    default = argument.default
    if (
        value == default
        or value is None
        or (isinstance(value, tuple) and (not value or list(value) == default or value == (default,)))
    ):
        return
    same = [one for one in by_flag.values() if one.dest == dest]
    if isinstance(value, bool):
        wanted = "StoreTrue" if value else "StoreFalse"
        flag = next((one for one in same if one.kind == wanted), None)
        if flag is not None:
            yield _spelled(flag), True
        return
    if isinstance(value, tuple):
        text: Any = value if argument.nargs else value[0] if len(value) == 1 else ",".join(map(str, value))
        yield _spelled(argument), text
        return
    yield _spelled(argument), value


def _spelled(argument: Argument) -> str:
    return argument.flag.replace("_", "-")


def yaml_text(launch: Launch) -> str:
    """MODEL_ARGS as Megatron-LM's test cases write them."""
    lines = ["MODEL_ARGS:"]
    for flag, value in launch.arguments.items():
        if isinstance(value, tuple | list):
            value = "[" + " ".join(map(str, value)) + "]"
        shown = "true" if value is True else _quoted(str(value))
        lines.append(f"  --{flag}: {shown}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = text.replace("_", "").replace(".", "").replace("-", "").isalnum() and not text.startswith("-")
    return text if plain else "'" + text.replace("'", "''") + "'"


# -- Megatron-Bridge ------------------------------------------------------------------------------------------------------
def bridge_sections(job: TrainingJob) -> dict[str, dict[str, Any]]:
    """The run as sections of a Megatron-Bridge ConfigContainer (Megatron-Bridge `training/config.py`)."""
    t = job.training
    settings = settings_of(job)
    inverse = {ours: theirs for theirs, ours in DDP.items()}
    sections: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "optimizer": {}, "ddp": {}, "mixed_precision": {}}
    sections["mixed_precision"][t.params_dtype] = True
    sections["mixed_precision"]["grad_reduce_in_fp32"] = t.grad_dtype == "fp32"
    for name, value in settings.items():
        if (
            name in ("world_size", "params_dtype", "grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32")
            or value is None
        ):
            continue
        if name in ("micro_batch_size", "global_batch_size"):
            sections["train"][name] = value
        elif name in OPTIMIZER:
            sections["optimizer"][name] = value
        elif name in inverse:
            sections["ddp"][inverse[name]] = value
        elif name == "use_distributed_optimizer":
            sections["ddp"][name] = sections["optimizer"][name] = value
        elif name.startswith(("fp8", "fp4", "first_last", "num_layers_at")):
            sections["mixed_precision"][name] = value
        else:
            sections["model"][name] = value
    if job.model.padded_vocab_size is None:
        sections["model"]["should_pad_vocab"] = True
    if job.model.q_lora_rank is None:
        sections["model"]["q_lora_rank"] = None
    return sections


def bridge_overrides(job: TrainingJob) -> list[str]:
    """What a plan decides, as overrides of a recipe: section.name=value."""
    sections = bridge_sections(job)
    settings = settings_of(job)
    found = [f"model.{name}=null" for name in RESET if settings[name] is None]  # whatever the recipe has
    if not job.training.low_precision:
        found += ["mixed_precision.fp8=null", "mixed_precision.fp4=null"]
    for section, values in sections.items():
        for name, value in values.items():
            ours = DDP.get(name, name) if section == "ddp" else name
            if ours in RUN and not _idle(job, name):
                found.append(f"{section}.{name}={_hydra(value)}")
    return found


def _idle(job: TrainingJob, name: str) -> bool:
    """Whether an override would say what holds anyway."""
    t = job.training
    return (
        (name in ("fp8", "fp4", "fp8_recipe") and not t.low_precision)
        or (name == "recompute_modules" and not t.recompute_modules)
        or (name == "optimizer_offload_fraction" and not t.optimizer_cpu_offload)
        or (name.startswith("expert_") and not job.model.num_moe_experts)
        or (name == "cp_comm_type" and job.layout.cp == 1)
    )


def _hydra(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return shlex.quote("[" + ",".join(map(str, value)) + "]")
    return shlex.quote(str(value))


FORMS: dict[str, Callable[[TrainingJob], str]] = {
    "megatron-lm": lambda job: " \\\n".join(map(shlex.join, megatron_lm(job).flags())),
    "yaml": lambda job: yaml_text(megatron_lm(job)).rstrip(),
    "bridge": lambda job: "\n".join(bridge_overrides(job)),
}
"""How launch arguments are printed."""


__all__ = ["FORMS", "Launch", "bridge_overrides", "bridge_sections", "megatron_lm", "yaml_text"]
