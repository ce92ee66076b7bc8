"""slime and miles: `train.py` and `train_async.py` with Megatron-LM's arguments and their own.

Sources: THUDM/slime `slime/utils/arguments.py`, `slime/backends/megatron_utils/{arguments,actor,model,loss,data}.py`,
`slime/utils/ppo_utils.py`, `train.py`; radixark/miles `miles/utils/arguments.py` and the same tree.

Adapters of miles: `--lora-rank`, `--lora-type`, `--target-modules`, `--exclude-modules`.

Source: radixark/miles `miles/utils/arguments.py`, `miles/backends/megatron_utils/lora_utils.py`.

Tokens of slime's microbatches, and samples of its steps.

Source: THUDM/slime `slime/utils/arguments.py`, `slime/backends/megatron_utils/data.py`.

Layers of --spec: what the plug-ins of both build in place of Megatron-LM's layers.

Sources: THUDM/slime `slime_plugins/models/`; radixark/miles 0.0.2 (PyPI miles-rl) `miles_plugins/models/` (`hf_attention.py`,
`qwen3_5.py`, `qwen3_next.py`, `glm4.py`, `glm5/glm5.py`), `miles/backends/megatron_utils/model_provider.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...job.model import Model
from ...wording import dashed, shown, whole
from ..door_defaults import without_loss
from ..hf.load import load
from ..megatron.derive import derive
from ..megatron.words import parse_words
from ..model_names import family_of, named
from ..questions import Question
from ..setting_names import known_settings
from ..shell.model_words import OF_MODEL
from ..strict_yaml import parse_yaml
from .keys import passed_over
from .megatron_words import Found, for_megatron, number, on, positive, real, text, waiting, without
from .rollout import OF_HF, PPO, TOLD_APART, draft_of, engine, linears, moved
from .run import Dialect, Reading, Run
from .words import flags

SCRIPTS = ("train", "train_async")
SURE = frozenset(
    [
        "actor_num_nodes",
        "actor_num_gpus_per_node",
        "rollout_num_gpus",
        "rollout_batch_size",
        "num_rollout",
        "rollout_function_path",
    ]
)
"""Arguments that only these programs have."""
OWN = """
    actor_num_* advantage_estimator agent_* allgather_cp apply_chat_template* balance_* buffer_* calculate_per_token_loss
    chat_template* check_weight_update_equal ci_* clip_* colocate critic_* custom_* data_pad_size_multiplier data_source_path
    debug_* disable_compute_advantages_and_returns disable_grpo_std_normalization disable_rewards_normalization
    disable_rollout_* disable_weights_backuper dump_details dynamic_sampling_* enable_mtp_training entropy_coef eps_clip* eval_*
    exclude_modules fetch_* fp16 bf16 freeze_params_name_list gamma generate_* get_mismatch_metrics global_batch_size
    group_rm hf_checkpoint http_proxy input_key keep_old_actor kl_* label_key lambd load load_debug_* log_multi_turn
    log_passrate log_probs_* lora_* loss_mask_type loss_type lr_* mask_offpolicy_in_partial_rollout max_position_embeddings
    max_tokens_per_gpu max_weight_staleness megatron_to_hf_mode memory_snapshot_* metadata_key micro_batch_size miles_*
    model_name multimodal_* n_samples_* normalize_advantages num_critic_only_steps num_epoch num_gpus_per_node num_rollout
    num_steps_per_rollout no_offload_rollout no_offload_train offload offload_rollout* offload_train*
    only_train_params_name_list opd_* opsm_* over_sampling_* overlong_*
    partial_rollout prefill_* profile_target prompt_data qkv_format recompute_loss_function ref_* reset_optimizer_states
    reward_* rm_* rollout_* router_* save save_* seq_length sglang_* skip_eval_before_train slime_* start_rollout_id
    stream_optimizer_state_to_disk target_modules tb_* tis_* tito_* tool_key train_backend train_env_vars
    train_memory_margin_bytes true_on_policy_mode update_weight* use_dynamic_batch_size use_distributed_post
    use_fault_tolerance use_health_check use_kl_loss use_miles_* use_opd use_opsm use_rollout_* use_routing_replay
    use_session_server use_slime_* use_tensorboard use_tis use_unbiased_kl use_wandb value_clip wandb_* warn_*
"""
"""Arguments that are read here or change no tensor, and beginnings of such; the rest is Megatron-LM's."""
MORE_NORMS = ("post_self_attn_layernorm", "post_mlp_layernorm")
"""Norms behind attention and MLP, which keep their inputs too; they are there with --spec of GLM-4."""
CUSTOM = ("custom_model_provider_path", "custom_loss_function_path")
SYNC_BYTES = 512 * 2**20
"""--update-weight-buffer-size where it is not given."""


def knows(run: Run) -> bool:
    """A script of these names with arguments that Megatron-LM does not have."""
    if run.script not in SCRIPTS:
        return False
    found, _ = flags(run.words)
    engine = "hf_checkpoint" in found and any(key.startswith("sglang_") for key in found)
    return engine or not SURE.isdisjoint(found)


def read(run: Run) -> Reading:
    """The words of Megatron-LM with what these programs make of them. Raises UnsupportedError where nothing trains under Megatron."""
    found, _ = flags(run.words)
    _refuse_others(found)
    questions: list[Question] = []
    warnings: list[str] = []
    tokens = batch(found, questions)
    tuned, tuned_notes, refused = adapters(found)
    bridge = text(found, "megatron_to_hf_mode") == "bridge"
    notes = list[str]()
    layers = Layers() if bridge else _layers(found, run, questions, notes)
    args, unknown = for_megatron(without(found, " ".join((OWN, *MORE_NORMS, NAMED, *layers.read))))
    settings = {
        **layers.settings,
        **_always(found, questions),
        **tokens.settings,
        **_loss(found, questions, warnings),
        **tuned,
    }
    settings |= _around(found, questions, warnings, tokens.log_prob)
    notes += [*tokens.notes, *tuned_notes]
    entry = ""
    if bridge:
        entry = _checkpoint(found, questions, notes)
        settings = {**_of_bridge(args, text(found, NAMED), warnings), **settings}
    elif NAMED in found:
        of_file = _of_file(found, questions, notes)
        layers = of_file if of_file.settings else layers
        settings = {**of_file.settings, **settings}
    elif "vocab_size" not in found and "padded_vocab_size" not in found and "tokenizer_model" not in found:
        args += ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", text(found, "hf_checkpoint"))
    if not entry and NAMED not in found and "num_layers" not in found:
        questions.append(_without_model(run))
    asked = {one.option for one in questions}
    questions += [one for one in waiting(found, args) if one.option not in asked]
    return Reading(
        model=entry,
        args=() if entry else args,
        bridged=bridge,
        settings=settings,
        defaults=without_loss("bridge", family_of(entry)) if entry else {},
        num_gpus=_gpus(found, questions),
        env={**run.env, **_env(found)},
        assumptions=tuple(notes),
        warnings=(*tokens.warnings, *layers.warnings, *warnings, *passed_over(unknown, "slime")),
        questions=tuple(questions),
        refused=(*refused, *_refused(found, layers), *layers.refused),
    )


NAMED = OF_MODEL[2:].replace("-", "_")
"""The argument that stands for words of a model whose file is not there."""
CUT = re.compile(r"[-_](\d+)layers?$")
"""The ending of a model's name that has so many of its layers."""
FILES_SAY = {
    "moe_grouped_gemm": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32", "moe_aux_loss_coeff": 0.0,
}  # fmt: skip
"""What the files of models with experts say of the run (`scripts/models/*.py`)."""
NOT_COPIED = re.compile(r"fusion|^mtp_|virtual")
"""In names of arguments that the model of --megatron-to-hf-mode bridge is not given, besides those of the architecture."""


def _checkpoint(found: Found, questions: list[Question], notes: list[str]) -> str:
    """The catalogue's model that --hf-checkpoint, or the name of its file of words, is; asked for where it is none."""
    checkpoint, name = text(found, "hf_checkpoint"), text(found, NAMED)
    entry = named(checkpoint) or named(CUT.sub("", name.removesuffix("_lora")))
    if entry is None or entry.has_towers:
        what = f"the model of --hf-checkpoint {shown(checkpoint)} is not in the catalogue, and its words are not there"
        questions.append(Question(what, "--set MODEL_ARGS=VALUE"))
        return ""
    notes.append(f"--hf-checkpoint {checkpoint} is the catalogue model {entry.entry}")
    return entry.entry


def _of_file(found: Found, questions: list[Question], notes: list[str]) -> Layers:
    """The architecture that the framework's file of a model has, which is not there: the catalogue's, with the layers of its plug-in."""
    entry, name = _checkpoint(found, questions, notes), text(found, NAMED)
    if not entry:
        return Layers()
    usual = {one: Model.__dataclass_fields__[one].default for one, owner in known_settings().items() if owner is Model}
    settings = usual | dict(load(entry).config)
    if cut := CUT.search(name):
        settings["num_layers"] = int(cut[1])
    notes.append(f"scripts/models/{name}.py is not opened: the model's words are those of {entry}")
    settings |= FILES_SAY if settings.get("num_moe_experts") else {}
    for key, value, plugged in BY_PLUGIN:
        if settings.get(key) == value:
            layers = plugged(found, settings, f"scripts/models/{name}.py")
            return layers._replace(settings={**settings, **layers.settings})
    return Layers(settings)


def _of_bridge(args: Sequence[str], name: str, warnings: list[str]) -> dict[str, Any]:
    """The settings of words beside a model that Megatron-Bridge builds: those of the architecture, fusions, virtual stages and MTP have no
    effect."""
    given = parse_words(args).settled().values
    usual, owners = derive({}), known_settings()

    def changed(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in derive(values).items() if usual.get(name) != value}

    def of_model(name: str, value: Any) -> bool:
        try:
            return any(owners.get(one) is Model for one in changed({name: value}))
        except ConfigError:  # it needs another one, and none of the architecture does
            return False

    idle = [name for name, value in given.items() if name == "spec" or NOT_COPIED.search(name) or of_model(name, value)]
    said = [
        *(dashed(f"no_{name}" if given[name] is False else name) for name in idle),
        *([f"--num-layers and the other words of {name}"] if name else []),
    ]
    if said:
        warnings.append(
            f"--megatron-to-hf-mode bridge builds the model of --hf-checkpoint; without effect: {', '.join(said)}"
        )
    return changed({name: value for name, value in given.items() if name not in idle})


def _without_model(run: Run) -> Question:
    """The question for the model's arguments, which a file holds that the script sources."""
    missing = "the model's arguments (--num-layers, --hidden-size ...), which MODEL_ARGS holds, are not there"
    if not run.lost:
        return Question(missing)
    names = ", ".join(shown(path)[1:-1] for path in run.lost[:3])
    return Question(
        f"{missing}: {names}, which {run.path} sources, is not opened; put it below the script's folder, or open files elsewhere",
        "--follow",
    )


def _env(found: Found) -> dict[str, str]:
    """Variables that --train-env-vars sets, in JSON, for the processes that train."""
    values = parse_yaml(text(found, "train_env_vars") or "{}", "--train-env-vars")
    return {str(key): str(value) for key, value in values.items()} if isinstance(values, Mapping) else {}


def _refuse_others(found: Found) -> None:
    backend = text(found, "train_backend") or "megatron"
    if backend != "megatron":
        raise UnsupportedError(
            f"--train-backend {shown(backend)} of slime trains without Megatron, which is not modelled"
        )
    if on(found, "debug_rollout_only"):
        raise UnsupportedError("--debug-rollout-only: only samples are generated, nothing is trained")


def _refused(found: Found, layers: Layers) -> list[str]:
    """What decides memory and is not modelled."""
    refused = [
        f"{dashed(key)} {shown(text(found, key))} chooses what trains, which is not modelled"
        for key in ("only_train_params_name_list", "freeze_params_name_list")
        if text(found, key) and not _only_routers(found, key)
    ]
    if on(found, "stream_optimizer_state_to_disk"):
        refused.append("--stream-optimizer-state-to-disk keeps optimizer states on disk, which is not modelled")
    if text(found, "offload_train_target") not in ("", "cpu"):
        refused.append(
            f"--offload-train-target {shown(text(found, 'offload_train_target'))} keeps states on disk, which is not modelled"
        )
    more = [key for key in MORE_NORMS if on(found, key) and key not in layers.read]
    refused += [f"{dashed(key)} adds norms that are not modelled" for key in more]
    refused += [
        f"{dashed(key)} {shown(text(found, key))} is code, which is not read" for key in CUSTOM if found.get(key)
    ]
    return refused


def _only_routers(found: Found, key: str) -> bool:
    return key == "freeze_params_name_list" and all("router" in word for word in found[key])


def _gpus(found: Found, questions: list[Question]) -> int:
    """GPUs that train: those of the actor."""
    nodes, each = number(found, "actor_num_nodes", questions, 1), number(found, "actor_num_gpus_per_node", questions, 8)
    return (nodes or 1) * (each or 8)


def _always(found: Found, questions: list[Question]) -> dict[str, Any]:
    """What these programs set whatever the words say."""
    values: dict[str, Any] = {
        "params_dtype": "fp16" if on(found, "fp16") else "bf16",
        "create_attention_mask_in_dataloader": False,
    }
    if "muon" not in text(found, "optimizer"):
        values["use_distributed_optimizer"] = True
    for key in ("attention_dropout", "hidden_dropout"):
        if key not in found:
            values[key] = 0.0
    if "num_experts" in found and text(found, "moe_token_dispatcher_type") in ("", "allgather"):
        values["moe_token_dispatcher_type"] = "alltoall"
    rows = number(found, "vocab_size", questions)
    if rows and "padded_vocab_size" not in found:
        values["vocab_size"] = rows
    if "freeze_params_name_list" in found and _only_routers(found, "freeze_params_name_list"):
        values["freeze_moe_router"] = True
    return values


def _loss(found: Found, questions: list[Question], warnings: list[str]) -> dict[str, Any]:
    """Log-probabilities of the tokens, with their entropy where it has a coefficient."""
    kind = text(found, "loss_type") or "policy_loss"
    values: dict[str, Any] = {"loss_function": "slime"}
    if kind == "policy_loss" and real(found, "entropy_coef", 0.0) != 0:
        values["loss_entropy"] = True
    if real(found, "rollout_temperature", 1.0) != 1:
        values["loss_temperature"] = True
    chunk = text(found, "log_probs_chunk_size")
    if chunk and not chunk.startswith("-"):
        values["loss_chunk_size"] = positive(found, "log_probs_chunk_size", questions)
    if on(found, "recompute_loss_function"):
        warnings.append(
            "--recompute-loss-function is not taken into account: the loss holds what it would without, at most"
        )
    if kind not in ("policy_loss", "sft_loss"):
        warnings.append(f"--loss-type {shown(kind)} is taken as the policy loss without entropy")
    bridge = text(found, "megatron_to_hf_mode") == "bridge"  # which says of the argument that it has no effect
    if "mtp_num_layers" in found and not bridge and not on(found, "enable_mtp_training"):
        warnings.append(
            "--mtp-num-layers without --enable-mtp-training: its layers are counted as if they were trained, at most"
        )
    return values


def _around(found: Found, questions: list[Question], warnings: list[str], log_prob: int | None) -> dict[str, Any]:
    """The engine, the reference and the critic; none of them in supervised training."""
    if text(found, "loss_type") == "sft_loss":
        return {}
    values: dict[str, Any] = {} if log_prob is None else {"log_prob_micro_batch_tokens": log_prob}
    if on(found, "use_kl_loss") or real(found, "kl_coef", 0.0) != 0:
        values["reference_model"] = "host"
    critic = text(found, "advantage_estimator") == PPO
    if critic:
        values["critic_model"] = "in_turn"
        warnings.append(
            "--advantage-estimator ppo: a critic of the policy's size trains in turn with it, each offloaded meanwhile"
        )
        own = [dashed(key) for key in ("critic_num_nodes", "critic_num_gpus_per_node") if key in found]
        if own:
            warnings.append(f"{' and '.join(own)}: the critic's own GPUs are not counted")
    if on(found, "use_opd") and text(found, "opd_type") == "megatron":
        warnings.append(
            "--use-opd: the teacher's weights are held in host memory and swapped in; its logits are not counted"
        )
    if on(found, "debug_train_only"):
        return values
    colocated = on(found, "colocate")
    sync = positive(found, "update_weight_buffer_size", questions, SYNC_BYTES)
    sleeps = colocated and _switch(found, "offload_rollout", True)
    values |= engine("sglang", "", colocated=colocated, sleeps=sleeps, weight_sync_bytes=sync)[0]
    warnings += draft_of(found) if colocated else []
    if critic or _switch(found, "offload_train", colocated):
        values |= {"rollout_offload": moved(), "torch_memory_saver": True}
    if colocated:
        values["rollout_tensor_parallel_size"] = positive(found, "rollout_num_gpus_per_engine", questions, 1)
        if "sglang_mem_fraction_static" in found:
            values["rollout_memory_share"] = real(found, "sglang_mem_fraction_static", 0.0)
    return values


def _switch(found: Found, key: str, default: bool) -> bool:
    """A switch that --no-KEY turns off and --offload turns on, last of all `default`."""
    if on(found, f"no_{key}"):
        return False
    return default or on(found, key) or on(found, "offload")


WORDS = f"{TOLD_APART} 0 cpu allgather policy_loss sft_loss canonical canonical_lora router bridge"
"""Values that are told apart."""
DIALECT = Dialect("slime", "dialects/slime.md", knows, read, lambda run: "", takes_flags=True, words=WORDS)


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
    names = {**OF_HF, **(CANONICAL if canonical else {})}
    wanted, excluded = _modules(found, "target_modules", names), _modules(found, "exclude_modules", names)
    everything = tuple(dict.fromkeys(names.values()))
    if not wanted or any(one in ALL for one in wanted):
        wanted = everything
    modules = tuple(one for one in wanted if one not in excluded)
    settings = {"peft": "canonical_lora" if canonical else "lora", "peft_dim": size, "peft_target_modules": modules}
    return settings, [f"LoRA of rank {size} on {', '.join(modules)}, as miles has it"], []


def _modules(found: Found, key: str, names: dict[str, str]) -> tuple[str, ...]:
    words = [part for word in found.get(key, ()) for part in word.replace(",", " ").split()]
    return linears(words, names)


PAD = 128
"""--data-pad-size-multiplier where it is not given: rows are padded to this times the tensor-parallel size."""


class Batch(NamedTuple):
    """Settings, what is assumed, what is warned of, and tokens of a microbatch of the forward for log-probabilities."""

    settings: dict[str, Any]
    notes: list[str]
    warnings: list[str]
    log_prob: int | None = None


def batch(found: Found, questions: list[Question]) -> Batch:
    """Rows and samples of a step. --seq-length is a placeholder here."""
    read = _packed(found, questions) if on(found, "use_dynamic_batch_size") else _padded(found, questions)
    samples, note = _samples(found, questions)
    if samples is not None:
        read.settings["global_batch_size"] = samples
    return read._replace(notes=[*read.notes, *note])


def _longest(found: Found, questions: list[Question]) -> tuple[int, str]:
    """Tokens of the longest sample, as far as they are said, and by which arguments; 0 where nothing is."""
    whole = positive(found, "rollout_max_context_len", questions)
    if whole:
        return whole, "--rollout-max-context-len"
    prompt, answer = (positive(found, f"rollout_max_{part}_len", questions) for part in ("prompt", "response"))
    if prompt and answer:
        return prompt + answer, "--rollout-max-prompt-len and --rollout-max-response-len"
    return answer or 0, "--rollout-max-response-len"


def _packed(found: Found, questions: list[Question]) -> Batch:
    """Samples in one row of at most --max-tokens-per-gpu tokens on each context-parallel rank."""
    cp = positive(found, "context_parallel_size", questions, 1) or 1
    limit = positive(found, "max_tokens_per_gpu", questions)
    settings: dict[str, Any] = {"micro_batch_size": 1}
    if limit is None:
        if "max_tokens_per_gpu" not in found:
            questions.append(Question("--use-dynamic-batch-size needs --max-tokens-per-gpu", "--seq-length N"))
        return Batch(settings, [], [])
    pad = _pad(found, questions)
    settings |= {"packing": "slime", "packing_tokens": limit * cp}
    tokens = _upwards(limit, pad) * cp
    said = f"--max-tokens-per-gpu {limit}" + (f" on each of {cp} context-parallel ranks" if cp > 1 else "")
    warnings = []
    longest, by = _longest(found, questions)
    if longest > tokens:
        tokens = _upwards(longest, pad * cp)
        warnings.append(
            f"a sample of {longest} tokens ({by}) is longer than {said}: it runs alone, and its tokens are taken"
        )
        said = by
    settings["seq_length"] = tokens
    forward = positive(found, "log_probs_max_tokens_per_gpu", questions)
    log_prob = _upwards(forward, pad) * cp if forward else None
    return Batch(settings, [f"at most {tokens} tokens a microbatch, packed: {said}"], warnings, log_prob)


def _padded(found: Found, questions: list[Question]) -> Batch:
    """--micro-batch-size samples, each as long as the longest may be."""
    samples = positive(found, "micro_batch_size", questions, 1)
    longest, by = _longest(found, questions)
    settings: dict[str, Any] = {"micro_batch_size": samples}
    if not longest or by == "--rollout-max-response-len":
        what = f"the longest sample is not known: {by} gives {longest or 'no'} tokens of its answer, and nothing its prompt's"
        questions.append(Question(what, "--seq-length N"))
        return Batch(settings, [], [])
    cp = positive(found, "context_parallel_size", questions, 1) or 1
    tokens = _upwards(longest, _pad(found, questions) * cp)
    settings["seq_length"] = tokens
    return Batch(settings, [f"at most {tokens} tokens a sample: {by}"], [])


def _pad(found: Found, questions: list[Question]) -> int:
    tp = positive(found, "tensor_model_parallel_size", questions, 1) or 1
    return tp * (positive(found, "data_pad_size_multiplier", questions, PAD) or PAD)


def _samples(found: Found, questions: list[Question]) -> tuple[int | None, list[str]]:
    """Samples of an optimizer step."""
    prompts = positive(found, "rollout_batch_size", questions)
    each = positive(found, "n_samples_per_prompt", questions, 1) or 1
    steps = positive(found, "num_steps_per_rollout", questions)
    given = number(found, "global_batch_size", questions)
    if steps and prompts:
        return max(prompts * each // steps, 1), []
    if given:
        return given, []
    if prompts:
        return prompts * each, [
            f"global_batch_size {prompts * each}: all samples of a rollout, as nothing else is said"
        ]
    questions.append(Question("neither --global-batch-size nor --rollout-batch-size is given", "--global-batch-size N"))
    return None, []


def _upwards(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


class Layers(NamedTuple):
    """Settings of the layers that a plug-in builds, what is warned of and refused, and the arguments that say so."""

    settings: Mapping[str, Any] = {}
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


Plugged = Callable[[Found, Mapping[str, Any], str], Layers]
"""From the arguments, the architecture of --hf-checkpoint, and the words that chose the plug-in."""
SLIME, MILES = "slime_plugins.models.", "miles_plugins.models."
"""Folders of the plug-ins."""


def _layers(found: Found, run: Run, questions: list[Question], notes: list[str]) -> Layers:
    """The layers of a --spec of the plug-ins; any other --spec is left to Megatron-LM's reader, which refuses what it does not know."""
    words = text(found, "spec").split()
    if not words or not words[0].startswith((SLIME, MILES)):
        return Layers()
    said = f"--spec {shown(' '.join(words))[1:-1]}"
    plugin = (words[0].rsplit(".", 1)[-1], words[-1])
    plugged = SPECS.get(plugin)
    if plugged is None:
        why = OTHER_SPECS.get(plugin, "is not known")
        return Layers(refused=(f"{said} {why}",), read=("spec",))
    config = _config(found, run, questions, notes) if plugged in OF_CONFIG else {}
    if config is None:
        return Layers(read=("spec",))
    layers = plugged(found, config, said)
    return layers._replace(read=("spec", *layers.read))


def _config(found: Found, run: Run, questions: list[Question], notes: list[str]) -> Mapping[str, Any] | None:
    """The architecture of --hf-checkpoint, from which plug-ins take their sizes; asked for where it is not known."""
    checkpoint = run.model or text(found, "hf_checkpoint")
    known = named(checkpoint)
    try:
        if checkpoint == "-":
            raise ConfigError("standard input is no model of a run's file")
        loaded = load(known.entry) if known else (run.named or load)(checkpoint)
    except ConfigError:
        what = f"--spec takes sizes from the config of --hf-checkpoint {shown(checkpoint)}, which is not known"
        questions.append(Question(what, "--model NAME"))
        return None
    notes.append(
        f"--spec takes its sizes from --hf-checkpoint {checkpoint}: the model {known.entry if known else loaded.name}"
    )
    return loaded.config


LINEAR = (
    "linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads",
)  # fmt: skip
"""Settings of linear attention that the config has."""


def _linear_attention(found: Found, config: Mapping[str, Any], said: str) -> Layers:
    """Linear attention of plain linears where the config has it. slime gathers its tokens from the context-parallel ranks too; miles
    leaves each rank a part of them."""
    if config.get("experimental_attention_variant") != "gdn":
        return Layers(refused=(f"{said}: the config of --hf-checkpoint has no linear attention",))
    splits = SLIME not in said
    values = {name: config[name] for name in LINEAR}
    values["experimental_attention_variant"] = "gdn_whole_cp" if splits else "gdn_whole"
    layers = whole(text(found, "num_layers")) or config["num_layers"]
    values["linear_attention_freq"] = values["linear_attention_freq"][:layers]
    ranks = "tensor-parallel" if splits else "tensor- and context-parallel"
    warning = (
        f"{said}: linear attention of plain linears in place of Megatron-LM's: its weights are whole on each rank, and each works on the "
        f"tokens of all {ranks} ranks"
    )
    return Layers(values, (warning,))


def _wide_norms(found: Found, config: Mapping[str, Any], said: str) -> Layers:
    """Norms of query and key over all heads."""
    return Layers({"qk_layernorm": True, "qk_layernorm_scope": "gathered_projection"})


def _outer_norms(found: Found, config: Mapping[str, Any], said: str) -> Layers:
    """Layers with norms behind attention and MLP too."""
    given = [dashed(key) for key in MORE_NORMS if on(found, key)]
    layers = Layers(read=MORE_NORMS)
    if len(given) == 1:
        return layers._replace(refused=(f"{said} with {given[0]} alone is not modelled",))
    if given and "num_experts" in found:
        return layers._replace(refused=(f"{said}: norms behind experts ({given[1]}) are not modelled",))
    return layers._replace(settings={"norm_placement": "sandwich"} if given else {})


INDEXED = (
    "experimental_attention_variant", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "dsa_indexer_topk_freq",
    "dsa_indexer_skip_topk_offset",
)  # fmt: skip
"""Settings of sparse attention that the config may have."""


def _sparse_attention(found: Found, config: Mapping[str, Any], said: str) -> Layers:
    """Latent attention to the keys that an indexer without a loss picks; its kernels keep what cuDNN's do: query, keys, which of them, the
    output and its sums."""
    if config.get("experimental_attention_variant") != "dsa":
        return Layers(refused=(f"{said}: the config of --hf-checkpoint has no indexer of sparse attention",))
    values = {name: config[name] for name in INDEXED if name in config}
    warning = (
        f"{said}: its layers are taken as Megatron-LM's sparse attention, which has the same weights; the fp32 copies of its norm of the "
        "compressed keys are not counted"
    )
    return Layers(
        {**values, "dsa_kernel_backend": "cudnn", "cp_comm_type": ("all_gather",), "apply_rope_fusion": False},
        (warning,),
    )


SPECS: dict[tuple[str, str], Plugged] = {
    ("qwen3_5", "get_qwen3_5_spec"): _linear_attention,
    ("qwen3_next", "get_qwen3_next_spec"): _linear_attention,
    ("minimax_m2", "get_minimax_m2_layer_spec"): _wide_norms,
    ("glm4", "get_glm_spec"): _outer_norms,
    ("glm5", "get_glm5_spec"): _sparse_attention,
}
"""Plug-ins by the last part of the module and the function."""
OTHER_SPECS = {
    (
        "deepseek_v4",
        "get_dsv4_spec",
    ): "splits DeepSeek-V4's attention over tensor-parallel ranks, which is not modelled",
}
"""Plug-ins that are known and not modelled."""
OF_CONFIG: tuple[Plugged, ...] = (_linear_attention, _sparse_attention)
"""Those that take sizes from the config of --hf-checkpoint."""
BY_PLUGIN: tuple[tuple[str, str, Plugged], ...] = (
    ("experimental_attention_variant", "gdn", _linear_attention),
    ("qk_layernorm_scope", "sharded_projection", _wide_norms),
)
"""What a model of the catalogue has where the framework's file of it names a plug-in."""
