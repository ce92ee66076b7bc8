"""How to launch a planned run: Megatron-LM arguments, a YAML file of them, Megatron-Bridge sections and overrides.

Each form is read back by the readers of `inputs` and compared: settings that a form has no word for stand beside it.

The settings of a job by name, and those that another job has not.

How to launch a planned run with Megatron-Bridge: sections of its configuration, and overrides of a recipe.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from math import gcd
from typing import Any, NamedTuple

from ..inputs.bridge_config import DDP, FIELDS, OVERLAP
from ..inputs.effects import OWNERS
from ..inputs.megatron.derive import RENAMED, Job, said
from ..inputs.megatron.job import job_from_args
from ..inputs.megatron.refused import SHORT_NAMES, VARIANTS, since
from ..inputs.megatron.table import Argument, arguments
from ..job.model import Model
from ..job.packing import BALANCED
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..legality.asserted_environment import asserted, refuses_loss
from ..modules.kinds import has_compressed, owners_of
from ..tape.tensor import ceil_div
from ..wording import all_of
from .space.features import FEATURES

RUN = (
    "world_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "cp_comm_type",
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "fp8",
    "fp8_recipe",
    "fp4",
    "use_distributed_optimizer",
    "use_precision_aware_optimizer",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
)
"""Settings that a plan decides, or takes from published recipes."""
RESET = (
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
)
"""Settings that a recipe may have and a plan may leave off."""


ELSEWHERE = (
    "world_size",
    "params_dtype",
    "grad_reduce_in_bf16",
    "accumulate_allreduce_grads_in_fp32",
    "checkpoint_loader",
)
"""Settings that are said in another way."""
NEMO = ("parallel_attention", "num_ln_in_parallel_attn")
"""Settings of a layer of NeMo's, which Megatron-Bridge's models do not have."""
OWN = frozenset(
    {
        "variants", "layer_variants", "mtp_layer_variant", "mtp_layer_variant_behind", "norm_placement", "attention_block", "mlp_block",
        "core_attention", "qk_layernorm_scope", "value_channels", "local_rotary_table", "sliding_window", "attn_logit_softcapping",
        "final_logit_softcapping", "activation_func_clamp_value_shared_expert",
    }
)  # fmt: skip
"""What the class of a provider says by itself; it stands there only where a model has it."""


def bridge_sections(job: TrainingJob) -> dict[str, dict[str, Any]]:
    """The run as sections of a Megatron-Bridge ConfigContainer (Megatron-Bridge `training/config.py`)."""
    t = job.training
    settings = settings_of(job)
    places = {ours: (section, theirs) for section, fields in FIELDS.items() for theirs, ours in fields.items()}
    sections: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "optimizer": {}, "ddp": {}, "mixed_precision": {}}
    sections["mixed_precision"][t.params_dtype] = True
    sections["mixed_precision"]["grad_reduce_in_fp32"] = t.grad_dtype == "fp32"
    for name, value in settings.items():
        if value is None or name in ELSEWHERE or (name in NEMO and not job.model.parallel_attention):
            continue
        if name in OWN and value == getattr(Model, name):
            continue
        if name in places:
            section, theirs = places[name]
            sections.setdefault(section, {})[theirs] = value
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
    """What a plan decides, as overrides of a recipe: section.name=value. All else (fusions, dtypes, vocabulary) stays the recipe's own, so
    that its bytes may be others than the plan's: `estimate` of the recipe with these words says them."""
    sections = bridge_sections(job)
    settings, on = settings_of(job), list(_featured(job))
    featured = {name for one in on for name in FEATURES[one].settings(job)}
    found = [f"model.{name}=null" for name in RESET if settings[name] is None]  # whatever the recipe has
    if not job.training.low_precision:
        found += ["mixed_precision.fp8=null", "mixed_precision.fp4=null"]
    # Bridge asserts that model and data set have the same
    found.append(f"dataset.seq_length={job.training.seq_length}")
    if job.model.has_borders:
        found.append(f"model.hybrid_layer_pattern='{job.model.hybrid_layer_pattern}'")
    for section, values in sections.items():
        for name, value in values.items():
            ours = DDP.get(name, name) if section == "ddp" else name
            if (ours in RUN and not _idle(job, name)) or ours in featured:
                place = "comm_overlap" if ours in (*OVERLAP, "tp_comm_overlap") else section
                found.append(f"{place}.{name}={_hydra(value)}")
    if "bf16-gradients" in on:
        found += [f"{section}.grad_reduce_in_fp32=false" for section in ("mixed_precision", "ddp")]
    if job.training.cuda_graph_impl != "none":
        found += ["rng.te_rng_tracker=true", "model.use_te_rng_tracker=true"]
    if job.training.cuda_graph_impl == "full_iteration":
        found += ["rerun_state_machine.check_for_nan_in_loss=false", "ddp.check_for_nan_in_grad=false"]
    return found


def _featured(job: TrainingJob) -> Iterator[str]:
    """The features that are on in a job."""
    settings = settings_of(job) | {f.name: getattr(job.env, f.name) for f in dataclasses.fields(job.env)}
    for name, feature in FEATURES.items():
        own = feature.settings(job)
        if own and all(settings[key] == value for key, value in own.items()):
            yield name


def _idle(job: TrainingJob, name: str) -> bool:
    """Whether an override would say what holds anyway."""
    t = job.training
    return (
        (name in ("fp8", "fp4", "fp8_recipe") and not t.low_precision)
        or (name == "recompute_modules" and t.recompute_modules is None)
        or (name == "optimizer_offload_fraction" and not t.optimizer_cpu_offload)
        or (name.startswith(("expert_", "moe_")) and not job.model.num_moe_experts)
        or (name == "moe_flex_dispatcher_backend" and t.moe_token_dispatcher_type != "flex")
        or (name == "cp_comm_type" and job.layout.cp == 1)
    )


def _hydra(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return shlex.quote("[" + ",".join(map(str, value)) + "]")
    return shlex.quote(str(value))


ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


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


def environment(job: TrainingJob) -> dict[str, str]:
    """Variables of the environment that the run has, those that Megatron-LM asserts, and those that recipes set with its features
    (Megatron-Bridge `perf_recipes`, env_vars)."""
    t, found = job.training, dict[str, str]()
    whole = t.cuda_graph_impl == "full_iteration"
    if job.env.expandable_segments:
        found[ALLOCATOR[0]] = ALLOCATOR[1] + (",graph_capture_record_stream_reuse:True" if whole else "")
    if t.cuda_graph_impl != "none":
        found |= {"NCCL_GRAPH_REGISTER": "0", "TORCH_NCCL_AVOID_RECORD_STREAMS": "0" if whole else "1"}
    if t.use_transformer_engine_op_fuser:
        found["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"
    if job.model.has_moe and t.hybridep:
        found["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] = str(gcd(job.layout.ep * job.layout.etp, _ranks_joined(job)))
    return {**found, **asserted(job.layout, t, job.gpu)}


def _ranks_joined(job: TrainingJob) -> int:
    """The largest power of two of ranks within one NVLink domain."""
    return 1 << (job.gpu.nvlink_domain.bit_length() - 1)


def megatron_lm(job: TrainingJob) -> Launch:
    """The run as arguments of its Megatron-LM (`megatron/training/arguments.py`)."""
    values = {dest: value for dest, value in _megatron_values(job) if _is_there(dest, job.training)}
    found = {flag: value for dest, value in values.items() for flag, value in _flags(dest, value)}
    if job.training.cuda_graph_impl == "full_iteration":  # validate_args: the host may not look at a loss in a graph
        found["no-check-for-nan-in-loss-and-grad"] = True
    read = job_from_args(Launch(found, {}).words(), job.layout.world_size, {"gpu": job.gpu.name}, rules=False)
    return Launch(found, {name: value for name, value in differing(job, read).items() if name != "world_size"})


def _is_there(dest: str, t: Training) -> bool:
    """Whether the version of the run has the argument."""
    argument = arguments()[1][dest]
    return not argument.since or since(argument) <= t.mcore


def _megatron_values(job: TrainingJob) -> Iterator[tuple[str, Any]]:
    """Destinations of Megatron's parser with their values."""
    model, t = job.model, job.training
    settings = settings_of(job)
    if job.layout.cp > 1 and has_compressed(model):
        # what context parallelism of compressed attention needs (Megatron-LM `dev` `deepseek_v4_hybrid_attention.py`)
        settings["sequence_packing_scheduler"] = t.sequence_packing_scheduler or BALANCED
        row = ceil_div(
            t.seq_length * t.micro_batch_size, job.layout.cp
        )  # of which the scheduler's own default has one sequence
        settings["max_seqlen_per_dp_cp_rank"] = row if t.micro_batch_size > 1 else t.max_seqlen_per_dp_cp_rank
    settings["max_position_embeddings"] = max(model.max_position_embeddings or 0, t.seq_length)
    if settings["experimental_attention_variant"] == "gdn" and t.mcore < SHORT_NAMES:
        settings["experimental_attention_variant"] = "gated_delta_net"
    refused = tuple(_unspoken(job))
    if "mtp_num_layers" in refused and settings["pipeline_model_parallel_layout"]:
        settings["pipeline_model_parallel_layout"] = settings["pipeline_model_parallel_layout"].replace("m", "")
    unspoken = {"world_size", *refused, *(LOSS_FUSION if refuses_loss(t) else ())}
    spoken = {name: value for name, value in settings.items() if name not in unspoken and concerns(model, name)}
    if t.recomputes("moe_act"):  # which Megatron-Core takes beside it alone, without experts too
        spoken["moe_grouped_gemm"] = t.moe_grouped_gemm
    return said(Job(model, job.layout, t), spoken)


def _unspoken(job: TrainingJob) -> Iterator[str]:
    """Settings that Megatron-LM's own checks refuse, which Megatron-Bridge's classes take."""
    model = job.model
    if model.experimental_attention_variant in ("gdn", *VARIANTS) and not model.hybrid:
        yield "mtp_num_layers"
    if model.moe_router_score_function == "softmax":
        yield "moe_router_enable_expert_bias"
    if model.attn_res_block_size or (model.experimental_attention_variant or "").startswith("gdn_whole"):
        yield "experimental_attention_variant"  # of a class of Megatron-Bridge, or of a plug-in of slime's


LOSS_FUSION = ("cross_entropy_loss_fusion", "cross_entropy_fusion_impl")


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


def off_flag(name: str) -> str | None:
    """The flag of Megatron-LM that turns a setting off, such as --no-create-attention-mask-in-dataloader; None where it has none."""
    dest = RENAMED.get(name, name)
    found = (one for one in arguments()[0].values() if one.dest == dest and one.kind == "StoreFalse")
    return next((f"--{_spelled(one)}" for one in found), None)


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


def command_text(launch: Launch) -> str:
    """Arguments as lines of a command."""
    return " \\\n".join(map(shlex.join, launch.flags()))


def unsaid(job: TrainingJob, launch: Launch) -> Iterator[str]:
    """What of a run Megatron-LM's arguments do not say, a line each."""
    if towers := [tower.name for tower in job.model.towers]:
        yield f"these words build the language model alone; {all_of(towers)}: with Megatron-Bridge (--launch bridge)"
    if launch.beside:
        words = ", ".join(f"{name}={value}" for name, value in launch.beside.items())
        yield f"without an argument in Megatron-LM: {words}"


def script_text(job: TrainingJob) -> str:
    """A launch script: GPUs, environment and arguments. What memory and speed do not depend on, such as data, is given to it."""
    layout, launch = job.layout, megatron_lm(job)
    each = min(job.env.gpus_per_node or job.gpu.gpus_per_node, layout.world_size)
    nodes = -(-layout.world_size // each)
    several = f' --nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"' if nodes > 1 else ""
    program = "pretrain_hybrid.py" if job.model.hybrid else "pretrain_gpt.py"
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            f"# {layout.world_size} {job.gpu.name}. Data, tokenizer and what memory does not depend on: the script's own arguments.",
            *(f"# {line}" for line in unsaid(job, launch)),
            "set -euo pipefail",
            *(f"export {name}={shlex.quote(value)}" for name, value in environment(job).items()),
            f"torchrun --nproc-per-node {each}{several} {program} \\",
            *(f"{shlex.join(words)} \\" for words in launch.flags()),
            '"$@"',
        )
    )


def launch_document(job: TrainingJob) -> dict[str, Any]:
    """Every form of a run's arguments, and the settings that Megatron-LM has no argument for."""
    launch = megatron_lm(job)
    return {
        "megatron_lm": command_text(launch),
        "yaml": yaml_text(launch),
        "bridge": "\n".join(bridge_overrides(job)),
        "without_argument": {name: plain_value(value) for name, value in launch.beside.items()},
    }


def plain_value(value: Any) -> Any:
    """A setting's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


FORMS: dict[str, Callable[[TrainingJob], str]] = {
    "megatron-lm": lambda job: command_text(megatron_lm(job)),
    "yaml": lambda job: yaml_text(megatron_lm(job)).rstrip(),
    "bridge": lambda job: "\n".join(bridge_overrides(job)),
    "script": script_text,
}
"""How launch arguments are printed."""


PARTS = ("model", "layout", "training")


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
    if name in ("moe_layer_freq", "hybrid_layer_pattern", "linear_attention_freq", "csa_compress_ratios"):
        alike = model.mtp_kinds == theirs.mtp_kinds and model.mtp_kinds_behind == theirs.mtp_kinds_behind
        return model.kinds == theirs.kinds and alike
    if name in ("transformer_engine_version", "megatron_core_version"):
        return False
    if name in OWNERS:
        return not concerns(model, name)
    if name == "max_position_embeddings":
        return model.position_embedding_type != "learned_absolute"
    if name == "apply_rope_fusion":
        return model.position_embedding_type in ("learned_absolute", "none")
    if name == "max_seqlen_per_dp_cp_rank":
        return True  # rows are as long as sequences, which are compared
    if name == "mtp_num_layers":
        return model.mtp == theirs.mtp
    if name == "accumulate_allreduce_grads_in_fp32":
        return job.training.grad_dtype == other.training.grad_dtype
    return False


def concerns(model: Model, name: str) -> bool:
    """Whether a model has what a setting is about."""
    return name not in OWNERS or OWNERS[name] in owners_of(model)
