"""LLaMA-Factory with Megatron-Core: `llamafactory-cli train FILE.yaml key=value ...`, or the flat file alone.

Two engines: USE_MCA=1 trains with ROLL's adapter of Megatron-Core, USE_MEGATRON_BRIDGE=1 with Megatron-Bridge. Every other one is refused.

Sources: hiyouga/LLaMA-Factory `ff6d4d12e` (18 August 2026) `src/llamafactory/launcher.py`, `hparams/`, `train/mca/`,
`train/megatron_bridge/`; alibaba/ROLL `mcore_adapter/src/mcore_adapter/training_args.py`, `models/model_config.py`, `trainer/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..bridge_config import precision_values
from ..door_defaults import decided
from ..hf.load import load
from ..model_names import catalogued, family_of
from ..questions import Question
from . import mcore_adapter
from .documents import needed
from .hydra import DEEPEST, Tree, overridden, parted
from .keys import SPELLED, frozen, given, model_ranks, passed_over, translated
from .launched import gpus_of_command
from .rollout import TOLD_APART
from .run import Dialect, Reading, Run
from .words import flags, value_of

PROGRAM = re.compile(r"(?:llamafactory-cli|lmf) train")
SCRIPT = re.compile(r"train|launcher")
"""Programs of Python that take the same words."""
FILES = (".yaml", ".yml", ".json")
OWN = frozenset(("stage", "cutoff_len", "finetuning_type"))
"""Keys that tell a file of LLaMA-Factory from another flat one, two of them, or one beside the model."""
MCA, BRIDGE = "USE_MCA", "USE_MEGATRON_BRIDGE"
"""Variables that choose an engine of Megatron-Core."""
OTHERS = ("USE_V1", "USE_KT", "deepspeed", "fsdp", "fsdp_config", "use_hyper_parallel", "use_kt", "use_unsloth")
"""Variables and keys of other engines."""
MEGATRON = """
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size expert_tensor_parallel_size
    virtual_pipeline_model_parallel_size sequence_parallel use_distributed_optimizer overlap_grad_reduce overlap_param_gather
    recompute_granularity moe_grouped_gemm moe_token_dispatcher_type moe_layer_recompute additional_configs
"""
BRIDGE_ONLY = (
    "mixed_precision", "use_packed_sequences", "megatron_pretrained_checkpoint", "export_hf_on_finish", "extra_config",
    "calculate_per_token_loss",
)  # fmt: skip
"""Keys of training with Megatron-Core, and those that only Megatron-Bridge's engine has."""
STAGES = {MCA: ("pt", "sft", "dpo"), BRIDGE: ("pt", "sft")}
OF_BRIDGE: dict[str, Any] = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
}
"""... and with Megatron-Bridge, beside what its provider has."""
MANY_EXPERTS = 32
"""Experts from which MCA routes in fp32 (`models/model_config.py`)."""
ROWS_OF = 64
"""MCA pads rows to a multiple of this many tokens (`train/mca/workflow.py`, pad_to_multiple_of)."""
READ = """
    model_name_or_path stage finetuning_type cutoff_len per_device_train_batch_size gradient_accumulation_steps neat_packing packing
    sequence_packing bf16 fp16 recompute_granularity moe_layer_recompute additional_configs extra_config mixed_precision
    use_packed_sequences lora_rank lora_target optim pref_loss freeze_vision_tower freeze_multi_modal_projector USE_* do_train
"""
"""Keys that are read one by one."""
TOWERS = {
    "freeze_vision_tower": ("freeze_vision_model", "freeze_audio_model"),
    "freeze_multi_modal_projector": ("freeze_vision_projection",),
}
"""What says whether a tower and what leads out of it are frozen, which they are where a run says nothing, by our names
(`hparams/finetuning_args.py`; `train/mca/workflow.py`, _freeze_model_parameters)."""
NOTHING = """
    accelerator_config adapter_folder audio_* auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16_full_eval
    block_diag_attn buffer_size cache_dir calculate_per_token_loss compute_accuracy create_new_adapter crop_to_patches data_seed
    data_shared_file_system dataset* ddp_* debug default_system delay_grad_reduce device_map disable_gradient_checkpointing
    disable_shuffling disable_tqdm do_eval do_predict do_sample dpo_label_smoothing early_stopping_* enable_thinking
    enable_torch_profiler eval_* export_* flash_attn fp16_full_eval full_determinism generation_* gradient_checkpointing* greater_is_better
    group_by_length hf_hub_token hub_* ignore_* image_* include_* infer_* interleave_probs jit_mode_eval label_names learning_rate
    length_column_name length_penalty load_best_model_at_end local_rank log_* logging_* lora_alpha lora_dropout loraplus_* low_cpu_mem_usage
    mask_history master_addr master_port max_grad_norm max_length max_new_tokens max_samples max_steps media_dir
    megatron_pretrained_checkpoint metric_for_best_model mix_strategy model_max_length model_revision ms_hub_token
    new_special_tokens_config no_cuda num_beams num_train_epochs offload_folder om_hub_token output_dir overwrite_* past_index
    per_device_eval_batch_size plot_loss predict_with_generate pref_* preprocessing_* preserve_thinking print_param_status profile_*
    profiler_* project push_to_hub* ray_* remove_unused_columns repetition_penalty report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_* seed sglang_* simpo_gamma skip_* split_special_tokens streaming swanlab_* template temperature
    tf32 tokenized_path tokenizer_name tool_format top_k top_p torch_empty_cache_steps torchdynamo trackio_* train_on_prompt
    trust_remote_code use_audio_in_video use_cache use_cpu use_fast_tokenizer use_kv_cache use_liger_kernel use_mps_device
    use_legacy_prediction_loop use_reentrant_gc use_rslora use_swanlab use_v1_kernels val_size video_* vllm_* warmup_*
    create_new_adapter timeout transformer_impl ckpt_* nccl_* finetune
"""
"""Keys without effect, and beginnings of such."""
CHANGES = (
    "adapter_name_or_path", "add_special_tokens", "add_tokens", "additional_target", "enable_liger_kernel", "fp8",
    "freeze_extra_modules", "freeze_language_model", "freeze_trainable_modules", "mixture_of_depths", "pissa_init", "pure_bf16",
    "quantization_bit", "ref_model", "ref_model_adapters", "resize_vocab", "shift_attn", "train_from_scratch", "upcast_layernorm",
    "upcast_lmhead_output", "use_adam_mini", "use_apollo", "use_badam", "use_dora", "use_galore", "use_llama_pro", "use_muon",
    "use_unsloth_gc",
)  # fmt: skip
"""Keys of LLaMA-Factory that change what trains, or how much memory it takes."""
ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
"""Words of optim that both engines' own Adam stands for."""
WITHOUT_REFERENCE = ("orpo", "simpo")
"""Losses of preferences that need no reference (`hparams/finetuning_args.py`, use_ref_model)."""
TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""What Megatron-Bridge's engine adapts, whatever lora_target says."""
DECISIVE = frozenset(("model", "train", "dataset", "optimizer", "ddp", "mixed_precision", "comm_overlap"))
"""Sections of extra_config that memory depends on."""
FOLLOWS = ("additional_configs", "extra_config", "fsdp_config")
"""Keys that look like names of files: two hold settings, and the last is another engine's."""


def knows(run: Run) -> bool:
    """The command, a program of it in an environment that chooses Megatron-Core, or a flat file with keys of LLaMA-Factory."""
    if run.document is not None:
        keys = OWN & set(map(str, run.document))
        return len(keys) > 1 or (bool(keys) and "model_name_or_path" in run.document)
    if PROGRAM.fullmatch(run.program):
        return True
    takes_file = bool(run.words) and run.words[0].lower().endswith(FILES)
    return takes_file and SCRIPT.fullmatch(run.script) is not None and not {MCA, BRIDGE}.isdisjoint(run.env)


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for another engine and for training that is not modelled, ConfigError for a file that
    is missing or broken."""
    tree = tree_of(run)
    values = tree.interpolations.everything()
    engine, notes = engine_of(run, values)
    model = str(values.get("model_name_or_path") or "")
    _refuse_stage(values, engine)
    questions: list[Question] = []
    gpus = gpus_of_command(run, {**run.env, **run.variables}, questions)
    settings, unknown, refused = translated(values, READ + NOTHING + " ".join(CHANGES))
    refused += [
        f"{key}={shown(str(values[key]))} decides memory and is not modelled" for key in CHANGES if values.get(key)
    ]
    refused += _optimizer(values)
    make = _of_mca if engine == MCA else _of_bridge
    own, more, strange, wrong = make(tree, run.wanted_gpus or gpus)
    defaults = _defaults(engine, run.model or model)
    towers = frozen(values, TOWERS)
    return Reading(
        model=model,
        settings={**settings, **own, **towers},
        bridged=engine == BRIDGE,
        defaults=defaults,
        num_gpus=gpus,
        env=run.env,
        assumptions=(*notes, *more),
        warnings=passed_over([*unknown, *strange], "LLaMA-Factory"),
        questions=tuple(questions),
        refused=(*refused, *wrong),
    )


def tree_of(run: Run) -> Tree:
    """The keys of a run: those of the file, under the words behind it. Raises ConfigError where the file is missing."""
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree({str(key): value for key, value in run.document.items()}, env)
    options, before = flags(run.words)
    if not run.words:
        raise ConfigError("; ".join((f"{run.program} is given no file with the options of the run", *run.notes)))
    root: dict[str, Any] = {}
    if before:
        missing = f"{shown(before[0])[1:-1]}, which {run.program} reads, is not beside {run.path}; put it there"
        root = needed(run, before[0], "keys of LLaMA-Factory", missing, follows=FOLLOWS)
    values = overridden(root, parted(before[1:])[1])
    return Tree({**values, **{key: value_of(each) for key, each in options.items()}}, env)


def engine_of(run: Run, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The variable of the engine that trains, and what is said of it where nothing sets it: the keys then tell.

    Raises UnsupportedError that names another engine, ConfigError where both variables are set.
    """
    env = {**run.env, **run.variables}
    for name in OTHERS:
        if values.get(name) or _is_on(env.get(name)):
            raise UnsupportedError(
                f"{name}={shown(str(values.get(name) or env[name]))}: this run of LLaMA-Factory does not train with Megatron; only {MCA} "
                f"and {BRIDGE} are modelled",
                "a run of LLaMA-Factory does not train with Megatron",
            )
    chosen = [name for name in (MCA, BRIDGE) if _is_on(env.get(name))]
    if len(chosen) > 1:
        raise ConfigError(f"{MCA} and {BRIDGE} choose two engines; set one of them")
    if chosen:
        return chosen[0], []
    own = [key for key in BRIDGE_ONLY if key in values]
    if own:
        return BRIDGE, [f"{BRIDGE}=1 is taken as set: only Megatron-Bridge's engine has {', '.join(own)}"]
    if values.keys().isdisjoint(MEGATRON.split()):
        raise UnsupportedError(
            f"neither {MCA} nor {BRIDGE} is set and {run.path} has no key of Megatron: LLaMA-Factory trains with PyTorch alone, which is "
            "not modelled",
            "a run of LLaMA-Factory does not train with Megatron",
        )
    return MCA, [
        f"{MCA}=1 is taken as set: the file has keys of Megatron, and none that only Megatron-Bridge's engine has"
    ]


def _is_on(value: object) -> bool:
    """Whether a variable is on (`extras/misc.py`, is_env_enabled)."""
    return str(value).lower() in ("true", "y", "1")


def _refuse_stage(values: Mapping[str, Any], engine: str) -> None:
    """Raises UnsupportedError for a stage or a kind of tuning that the engine does not have."""
    stage, tuning = str(given(values, "stage", "sft")), _tuning(values, engine)
    if stage not in STAGES[engine]:
        raise UnsupportedError(
            f"stage={shown(stage)} of LLaMA-Factory is not modelled with {engine}; {', '.join(STAGES[engine])} are"
        )
    if tuning != "full" and (engine == MCA or tuning != "lora"):
        kinds = "full is" if engine == MCA else "full and lora are"
        raise UnsupportedError(f"finetuning_type={shown(tuning)} is not modelled with {engine}; {kinds}")


def _tuning(values: Mapping[str, Any], engine: str) -> str:
    """What is tuned. MCA trains all weights, and Megatron-Bridge's engine what LLaMA-Factory's default says."""
    return str(given(values, "finetuning_type", "full" if engine == MCA else "lora"))


def _optimizer(values: Mapping[str, Any]) -> Iterator[str]:
    """Optimizers of transformers that are not Adam, which neither engine has."""
    name = str(values.get("optim") or "adamw_torch")
    if name not in ADAM:
        yield f"optim={shown(name)} decides memory and is not modelled"


def _defaults(engine: str, model: str) -> dict[str, Any]:
    if engine == BRIDGE:
        return {**decided("bridge", family_of(model)), **OF_BRIDGE}
    entry = catalogued(model) if model else None
    experts = load(entry).config.get("num_moe_experts") if entry else None
    many = isinstance(experts, int) and experts >= MANY_EXPERTS
    return {**decided("llama-factory"), **({"moe_router_dtype": "fp32"} if many else {})}


def _half(tree: Tree) -> str:
    return "bf16" if tree.on("bf16") else "fp16" if tree.on("fp16") else "fp32"


Found = tuple[dict[str, Any], list[str], list[str], list[str]]
"""Settings of an engine, what is assumed, keys that are unknown, and what is refused."""


def _of_mca(tree: Tree, gpus: int | None) -> Found:
    """What a run says to MCA."""
    more, unknown, refused = translated(_held(tree, "additional_configs"), "", "additional_configs.", SPELLED)
    found: dict[str, Any] = {"params_dtype": _half(tree), **mcore_adapter.recompute(tree), **more}
    if found.get("recompute_granularity") == "full":
        found = {"recompute_method": "uniform", "recompute_num_layers": 1, **found}
    apart = (tree.count("expert_model_parallel_size", 1) or 1) > 1
    if apart:
        found["sequence_parallel"] = True  # which the job turns off where tensor parallelism is
    length, micro, steps = _counts(tree)
    stage = tree.at("stage", "sft")
    pairs = 2 if stage == "dpo" else 1
    packed = stage == "pt" or any(tree.on(key) for key in ("neat_packing", "packing", "sequence_packing"))
    rows = length if packed else -(-length // ROWS_OF) * ROWS_OF
    found |= {"seq_length": rows, "micro_batch_size": pairs * micro}
    if gpus:
        found["global_batch_size"] = pairs * micro * steps * max(gpus // model_ranks(tree, ""), 1)
    if pairs == 2:
        alone = tree.at("pref_loss", "sigmoid") in WITHOUT_REFERENCE
        found["reference_model"] = "none" if alone else "device"
    return found, list(_rows_said(rows, pairs, packed=packed, padded=apart)), unknown, refused


def _rows_said(rows: int, pairs: int, *, packed: bool, padded: bool) -> Iterator[str]:
    """What is said of the rows of a microbatch of MCA."""
    if packed:
        yield f"samples are packed to rows of {rows} tokens: cutoff_len"
    elif padded:
        yield f"rows are padded to {rows} tokens, as with expert parallelism: cutoff_len"
    else:
        yield f"at most {rows} tokens a row: the longest of a microbatch has no more than cutoff_len"
    if pairs == 2:
        yield "a pair is two rows, a chosen and a rejected answer; batch sizes count rows"


def _of_bridge(tree: Tree, gpus: int | None) -> Found:
    """What a run says to Megatron-Bridge."""
    length, micro, steps = _counts(tree)
    packed = tree.on("use_packed_sequences")
    micro = 1 if packed else micro
    found: dict[str, Any] = {"seq_length": length, "micro_batch_size": micro, "params_dtype": _half(tree)}
    if tree.at("recompute_granularity"):
        found["recompute_granularity"] = tree.at("recompute_granularity")
    if gpus:
        ranks = model_ranks(tree, "") * (tree.count("expert_model_parallel_size", 1) or 1)
        found["global_batch_size"] = max(micro * steps * (gpus // ranks), micro)
    if _tuning(tree.root, BRIDGE) == "lora":
        rank = tree.count("lora_rank", 8)
        found |= {"peft": "lora", "peft_dim": rank, "peft_target_modules": TARGETS}
    found |= precision_values(_name(tree.at("mixed_precision")))
    more, unknown, refused = _extra(tree)
    said = f"samples are packed to rows of {length} tokens" if packed else f"at most {length} tokens a row"
    return found | more, [f"{said}: cutoff_len"], unknown, refused


def _name(found: object) -> str | None:
    """A precision by its name. Raises ConfigError for something else."""
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"mixed_precision={shown(str(found))} must be a name such as bf16_mixed")
    return found


def _extra(tree: Tree) -> tuple[dict[str, Any], list[str], list[str]]:
    """What extra_config lays over Megatron-Bridge's sections, by dotted paths."""
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    refused: list[str] = []
    for path, value in _leaves(_held(tree, "extra_config")):
        section, _, key = path.rpartition(".")
        top = section.partition(".")[0]
        if path == "mixed_precision":
            settings |= precision_values(_name(value))
        elif top == "peft":
            refused.append(f"extra_config.{path} chooses what trains, which is not modelled")
        elif top in DECISIVE or not top:
            found, strange, wrong = translated(
                {key: value}, "", f"extra_config.{section}." if section else "extra_config.", BRIDGED
            )
            settings |= found
            unknown += strange
            refused += wrong
    return settings, unknown, refused


BRIDGED = {**SPELLED, "bucket_size": "ddp_bucket_size"}
"""Fields of Megatron-Bridge's sections that are no settings of that name."""


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and what stands there; a mapping within is more of the path, up to `DEEPEST` parts."""
    for key, value in values.items():
        if isinstance(value, Mapping) and above.count(".") < DEEPEST:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _held(tree: Tree, key: str) -> dict[str, Any]:
    """The mapping that a key holds, or the text of one in JSON. Raises ConfigError for something else."""
    found = tree.at(key, {})
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise ConfigError(f"{key}={shown(found)} must be a mapping, or one in JSON") from None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{key}={shown(str(found))} must be a mapping, or one in JSON")
    return {str(name): value for name, value in found.items()}


def _counts(tree: Tree) -> tuple[int, int, int]:
    """Tokens of a row, rows of a microbatch, and microbatches of a step, by the defaults of LLaMA-Factory and transformers."""
    length, micro = tree.count("cutoff_len", 2048), tree.count("per_device_train_batch_size", 8)
    return length or 2048, micro or 8, tree.count("gradient_accumulation_steps", 1) or 1


WORDS = f"{TOLD_APART} pt dpo {' '.join((*WITHOUT_REFERENCE, *ADAM))} y"
DIALECT = Dialect(
    "LLaMA-Factory",
    "dialects/llama_factory.md",
    knows,
    read,
    lambda run: "",
    takes_flags=True,
    follows=FOLLOWS,
    words=WORDS,
)
