"""Primus: a YAML file with `modules.pre_trainer`, alone or given to `primus/train.py --config` or `EXP=FILE run_pretrain.sh`.

Sources: AMD-AIG-AIMA/Primus `primus/core/launcher/parser.py`, `primus/core/utils/yaml_utils.py`,
`primus/configs/modules/megatron/{pre_trainer,trainer_base}.yaml`, `primus/configs/models/megatron/*.yaml`, `examples/run_pretrain.sh`.

Arguments in Primus' files: Megatron-LM's by destination, as its words or as settings over a model, and Primus' own.

Source: AMD-AIG-AIMA/Primus `primus/configs/modules/megatron/`, `primus/configs/models/megatron/primus_megatron_model.yaml`.

Primus' YAML files: `${NAME:default}` from the environment, `extends`, and where the framework looks for them.

Source: AMD-AGI/Primus `primus/core/config/yaml_loader.py` (parse_yaml, _resolve_env, _apply_extends), `merge_utils.py`,
`primus/core/launcher/parser.py`; before November 2025 `bases` and `includes` (`primus/core/utils/yaml_utils.py`).

The models that Primus has files for, by the catalogue's names.

Source: AMD-AIG-AIMA/Primus `primus/configs/models/megatron/`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job.model import Model
from ...wording import any_of, dashed, says_nothing, shown, whole
from ..door_defaults import own
from ..file_keys import names_files, not_followed
from ..hf.load import load
from ..megatron.classes import is_harmless, refuse_unmodelled
from ..megatron.derive import derive
from ..megatron.table import arguments
from ..megatron.vocabulary import known_size
from ..megatron.words import OLD_NAMES, destination
from ..questions import Question
from ..setting_names import known_settings
from ..strict_yaml import parse_yaml
from .documents import document_of, named_by, needed
from .hydra import merged
from .keys import DECIDES, passed_over, patterns
from .run import Dialect, Reading, Run
from .words import scalar

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
FOLDER_OF_MODELS = "primus/configs/models/megatron/"
"""Where Primus looks for the file of a model, from the root of its repository."""
MODULES = "primus/configs/modules/megatron/"
"""Where it looks for the file of a module."""
FOLLOWS = ("extends", "bases", "includes")
"""Keys of a file that name the files it builds on."""
OWN_FILES = frozenset(
    ["language_model.yaml", "primus_megatron_model.yaml", "pre_trainer.yaml", "trainer_base.yaml", "module_base.yaml"]
)
"""Files of the framework on which the others build; what they say stands in `primus._defaults`."""
MOST_FILES = 20
DEEPEST = 30


def variables(run: Run) -> dict[str, str]:
    """What `${NAME}` in a file means: the environment, and what the caller gives."""
    return {**run.env, **run.variables}


def substituted(value: Any, env: Mapping[str, str], depth: int = 0) -> Any:
    """A value with variables replaced; one that is set nowhere and has no default stays as it is written."""
    if depth > DEEPEST:
        raise ConfigError(f"mappings stand more than {DEEPEST} deep inside each other")
    if isinstance(value, Mapping):
        return {str(key): substituted(each, env, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [substituted(each, env, depth + 1) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return scalar(VARIABLE.sub(lambda match: _of(match, env), value))


def _of(match: re.Match[str], env: Mapping[str, str]) -> str:
    name, default = match.group(1), match.group(2)
    if env.get(name) or default is None:
        return env.get(name) or match.group(0)
    return default[1:-1] if len(default) > 1 and default[0] == default[-1] and default[0] in "'\"" else default


def open_variables(value: Any) -> list[str]:
    """The variables that a value still waits for."""
    return [match.group(1) for match in VARIABLE.finditer(value)] if isinstance(value, str) else []


def model_file(run: Run, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    """The arguments of a model's file with those of the files it extends; None where it is not there. `old` as in `extended`.

    Raises ConfigError with the path of a file that is missing.
    """
    return _from_folder(run, FOLDER_OF_MODELS, name, old)


def module_file(run: Run, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    """The same of a module's file (`config: pre_trainer.yaml`)."""
    return _from_folder(run, MODULES, name, old)


def _from_folder(run: Run, folder: str, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    path = folder + (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    held = document_of(run, path, "a mapping", empty=True, follows=FOLLOWS)
    return None if held is None else extended(run, held, path, old)


def extended(run: Run, document: Mapping[str, Any], path: str, old: dict[str, None]) -> dict[str, Any]:
    """A document over the files that it extends, the first of a list lowest; variables are replaced in each file by itself.

    A path is relative to the folder of the file that says it. Mappings are merged key by key, lists and values replaced whole.
    `bases` and `includes` are read as their authors meant them; those that stand anywhere are put into `old`. Raises ConfigError with
    the path of a file that is missing; what the framework's own files say stands in `primus._defaults`.
    """
    left = [MOST_FILES]

    def one(document: Mapping[str, Any], path: str) -> dict[str, Any]:
        tree = substituted(document, variables(run))
        found: dict[str, Any] = {}
        old.update(dict.fromkeys(key for key in FOLLOWS[1:] if tree.get(key)))
        for key in FOLLOWS:
            for name in _listed(tree.pop(key, None), key, path):
                left[0] -= 1
                if left[0] < 0:
                    raise ConfigError(f"{shown(path)[1:-1]} builds on more than {MOST_FILES} files, or on itself")
                where = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                inner = document_of(run, where, "a mapping", empty=True, follows=FOLLOWS)
                if inner is None and posixpath.basename(where) not in OWN_FILES:
                    raise ConfigError(
                        f"{shown(where)[1:-1]}, which {shown(path)[1:-1]} {key}, is not there; put it at that path"
                    )
                found = merged(found, one(inner or {}, where))
        return merged(found, tree)

    return one(document, path)


def passed_over_today(old: Iterable[str]) -> tuple[str, ...]:
    """The warning about keys that the framework read before November 2025 and passes over now."""
    keys = " and ".join(old)
    return (f"Primus since 28 November 2025 passes {keys} over; read as extends",) if keys else ()


def _listed(value: Any, key: str, path: str) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{shown(path)[1:-1]}: {key} must be a list of files")
    return names


MODELS = {
    "llama2_7B": "meta-llama/Llama-2-7b-hf",
    "llama2_13B": "meta-llama/Llama-2-13b-hf",
    "llama2_70B": "meta-llama/Llama-2-70b-hf",
    "llama3_8B": "meta-llama/Meta-Llama-3-8B",
    "llama3_70B": "meta-llama/Meta-Llama-3-70B",
    "llama3.1_8B": "meta-llama/Llama-3.1-8B",
    "llama3.1_70B": "meta-llama/Llama-3.1-70B",
    "llama3.1_405B": "meta-llama/Llama-3.1-405B",
    "llama3.2_1B": "meta-llama/Llama-3.2-1B",
    "llama3.2_3B": "meta-llama/Llama-3.2-3B",
    "llama3.3_70B": "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek_v2_lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "mixtral_8x7B_v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral_8x22B_v0.1": "mistralai/Mixtral-8x22B-v0.1",
    "qwen2.5_7B": "Qwen/Qwen2.5-7B",
    "qwen2.5_72B": "Qwen/Qwen2.5-72B",
    "qwen3_8B": "Qwen/Qwen3-8B",
    "qwen3_32B": "Qwen/Qwen3-32B",
    "qwen3_30B_A3B": "Qwen/Qwen3-30B-A3B",
    "qwen3_235B_A22B": "Qwen/Qwen3-235B-A22B",
    "gpt_oss_20B": "openai/gpt-oss-20b",
    "gpt_oss_120B": "openai/gpt-oss-120b",
}
OF_MODELS: dict[str, Any] = {
    "bf16": True, "swiglu": True, "add_bias_linear": False, "untie_embeddings_and_output_weights": True,
}  # fmt: skip
"""What language_model.yaml says of every model, by Megatron-LM's destinations."""


def _defaults() -> dict[str, Any]:
    """What the framework's own files say."""
    return {**OF_MODELS, **own("primus", by_name=True)}


TRAINERS: dict[str, dict[str, Any]] = {
    "pre_trainer": {"micro_batch_size": 2, "global_batch_size": 16, "seq_length": 1024},
    "sft_trainer": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048},
}
"""What the files of modules say themselves. Of their arguments that files of models have too they win (`preset_loader.py`)."""
WINNING = {"make_vocab_size_divisible_by": 128}
"""What the file of any module says and wins with, besides its length."""
MODULE_NAMES = {"pre_trainer": "pre_trainer", "post_trainer": "sft_trainer"}
"""Modules that train, and the file of each that is known here."""
LORA = {
    "enabled": False,
    "dim": 32,
    "alpha": 32,
    "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
"""Section `lora` of sft_trainer.yaml."""
USUAL_GPUS = 8
"""GPUS_PER_NODE of the launcher where it is not set."""


CLI = "primus-cli train"
"""Primus' own command."""


def knows(run: Run) -> bool:
    """A document with modules of Primus, or one of its programs."""
    if run.document is not None:
        modules = run.document.get("modules")
        if not isinstance(modules, Mapping):
            return False
        inherits = any(run.document.get(key) for key in FOLLOWS) and not {"pre_trainer", "post_trainer"}.isdisjoint(
            modules
        )
        return inherits or any(isinstance(one, Mapping) and "framework" in one for one in modules.values())
    parts = run.program.split("/")
    ours = "primus" in parts[:-1] or run.program.startswith(("primus ", "primus.", "primus-cli"))
    if run.program == CLI:
        return True
    return (ours and run.script.rpartition(".")[2] in ("train", "main", "pretrain")) or (
        parts[-1].startswith("run_") and parts[-1].endswith("pretrain.sh") and "EXP" in run.env
    )


def read(run: Run) -> Reading:
    """The arguments of the pre-trainer, over those of its model and of Primus. Raises UnsupportedError for another framework,
    ConfigError for a file that is missing."""
    document, path, words = _document(run)
    old: dict[str, None] = {}
    trainer, module = _module(extended(run, document, path, old), run.path)
    overrides = {**_mapping(module, "overrides"), **_given_words(words)}
    questions: list[Question] = []
    overrides = _settled(overrides, questions)
    name = str(module.get("model") or "")
    held = model_file(run, name, old) if name and not run.model else None
    own_file = str(module.get("config") or "")
    of_module = _of_module(run, own_file, trainer, old)
    adapters = _adapters(of_module, overrides) if trainer == "sft_trainer" else {}
    if held is not None:
        reading = _by_file(held, trainer, of_module, overrides)
    else:
        reading = _by_name(run, name, {**TRAINERS[trainer], **of_module, **overrides})
    reading["warnings"] = (*passed_over_today(old), *reading["warnings"])
    reading["settings"] = {**reading["settings"], **adapters}
    gpus = _gpus(run)
    return Reading(num_gpus=gpus, node_gpus=USUAL_GPUS, env=dict(run.env), questions=tuple(questions), **reading)


def _adapters(of_module: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The adapters of the section `lora`, which is taken out. Raises ConfigError for one that holds no keys."""
    section = merged(
        merged(LORA, _mapping({"lora": of_module.pop("lora", None)}, "lora")),
        _mapping({"lora": overrides.pop("lora", None)}, "lora"),
    )
    if not section["enabled"]:
        return {}
    return {"peft": "lora", "peft_dim": section["dim"], "peft_target_modules": tuple(section["target_modules"])}


def _of_module(run: Run, name: str, trainer: str, old: dict[str, None]) -> dict[str, Any]:
    """What a module's own file says beyond that of its trainer. Raises ConfigError where it is not there."""
    found = module_file(run, name, old) if name else {}
    if found is None and name.removesuffix(".yaml") != trainer:
        raise ConfigError(
            f"{shown(name)[1:-1]}, the config of the module, is not there; put it at {MODULES}, or its keys under overrides"
        )
    return found or {}


def _by_file(
    held: Mapping[str, Any], trainer: str, of_module: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """A model whose files are there: words of Megatron-LM."""
    wins = {**TRAINERS[trainer], **WINNING, **of_module}
    lost = [key for key in held if key in wins and key not in overrides and held[key] != wins[key]]
    given, own = known_and_own({**_defaults(), **held, **wins, **overrides})
    given |= tokenizer_of(given)
    if whole(str(given.get("tensor_model_parallel_size", 1))) == 1:
        given["sequence_parallel"] = False
    said = _said(own)
    if lost:
        named = ", ".join(f"{key}={shown(str(held[key]))[1:-1]} (the module has {wins[key]})" for key in lost)
        said["warnings"] = (f"lost, for the module's file wins over the model's: {named}", *said["warnings"])
    return {"args": megatron_words(given), **said}


def _by_name(run: Run, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A model of the framework by its file's name: the catalogue's, with what Primus and the run say."""
    stem = name.rpartition("/")[2].removesuffix(".yaml")
    entry = run.model or MODELS.get(stem, "")
    given, own = known_and_own(dict(overrides))
    defaults, settings, notes, warnings = over_a_model(entry, _defaults(), given)
    if entry and not run.model:
        notes = [f"{stem}.yaml of Primus is taken as {entry} of the catalogue", *notes]
    said = _said(own)
    return {
        "model": entry or stem,
        "settings": {**settings, **said["settings"]},
        "defaults": defaults,
        "assumptions": tuple(notes),
        "warnings": (*said["warnings"], *warnings),
        "refused": said["refused"],
    }


def _said(own: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of arguments that only Primus has."""
    unknown, refused = own_arguments(own)
    kernels = [key for key, value in own.items() if value and any(key.startswith(one) for one in KERNELS)]
    warnings = list(passed_over(unknown, "Primus"))
    if kernels:
        warnings.insert(
            0,
            f"{', '.join(kernels)}: kernels of Primus, which may keep other tensors; the figures are TransformerEngine's",
        )
    settings: dict[str, Any] = {"routing_phase": "forced_balance"} if own.get("moe_router_force_load_balancing") else {}
    if own.get(SPLIT):
        settings["pipeline_model_parallel_layout"] = _layout(own[SPLIT])
    return {"settings": settings, "warnings": tuple(warnings), "refused": tuple(refused)}


def _layout(chunks: Any) -> str:
    """Layers of each virtual stage in order as a layout of Megatron's. Raises ConfigError for anything else than numbers."""
    counts = [whole(str(one)) for one in chunks] if isinstance(chunks, list) else []
    if not counts or not all(counts):
        raise ConfigError(f"{SPLIT} of Primus must be a list of layers of each virtual stage, not {shown(str(chunks))}")
    return f"E{'|'.join(f't*{count}' for count in counts)}L"


def _document(run: Run) -> tuple[Mapping[str, Any], str, tuple[str, ...]]:
    """The file that a run names, its path from the folder of the run, and the words behind it."""
    if run.document is not None:
        return run.document, posixpath.basename(run.path), ()
    words = list(run.words)
    path = run.env.get("EXP", "")
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--config", "--exp", "-c") and (equals or at + 1 < len(words)):
            path = value if equals else words[at + 1]
            del words[at : at + (1 if equals else 2)]
            break
    if not path:
        raise ConfigError(f"{run.path}: Primus needs --config FILE, or EXP=FILE in the environment")
    return needed(run, path, "modules of Primus", named_by(run, path), follows=FOLLOWS), path, tuple(words)


def _module(document: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, Any]]:
    """The module that trains, and which file of a trainer it has. Raises UnsupportedError where it does not train under Megatron."""
    modules = _mapping(document, "modules")
    name = next((name for name in MODULE_NAMES if isinstance(modules.get(name), Mapping)), "")
    if not name:
        raise UnsupportedError(
            f"{path} has the modules {shown(', '.join(modules))} of Primus; only {any_of(MODULE_NAMES)} are modelled"
        )
    module = modules[name]
    framework = str(module.get("framework") or "megatron")
    if framework != "megatron":
        raise UnsupportedError(
            f"{path} trains under {shown(framework)}; of Primus' frameworks only megatron is modelled"
        )
    stage = _mapping(module, "overrides").get("stage")
    if name == "post_trainer" and stage not in (None, "sft"):
        raise UnsupportedError(f"stage={shown(stage)} of a post_trainer of Primus is not modelled; only sft is")
    return MODULE_NAMES[name], module


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = tree.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{key} of Primus must hold keys, not {shown(value)}")
    return {str(one).replace("-", "_"): each for one, each in (value or {}).items()}


def _given_words(words: tuple[str, ...]) -> dict[str, Any]:
    """Overrides among the words: `key=value`, `--key=value` and `--key value`."""
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", name):
            found[_key(name)], key = _valued(value), ""
        elif word.startswith("--"):
            key = _key(word)
            found[key] = True
        elif key:
            found[key], key = _valued(word), ""
    return found


def _key(name: str) -> str:
    return (
        name.lstrip("-")
        .replace("-", "_")
        .removeprefix("modules.pre_trainer.overrides.")
        .removeprefix("modules.post_trainer.overrides.")
    )


def _valued(word: str) -> Any:
    return parse_yaml(word, "a word") if word[:1] in ("[", "{") else scalar(word)


def _settled(overrides: dict[str, Any], questions: list[Question]) -> dict[str, Any]:
    """The overrides whose values are known; those that wait for a variable are asked for where they have an effect."""
    by_dest = arguments()[1]
    found = {}
    for key, value in overrides.items():
        names = open_variables(value)
        if not names:
            found[key] = value
        elif key in by_dest and not is_harmless(key):
            questions.append(
                Question(f"{key} takes its value from ${names[0]}, which has none", f"--set {names[0]}=VALUE")
            )
    return found


def _gpus(run: Run) -> int | None:
    """GPUs of the launcher: torchrun's, or NNODES and GPUS_PER_NODE of the environment."""
    if run.num_gpus is not None:
        return run.num_gpus
    env = variables(run)
    if run.document is not None and "GPUS_PER_NODE" not in env and "NNODES" not in env:
        return None
    each, nodes = whole(env.get("GPUS_PER_NODE", str(USUAL_GPUS))), whole(env.get("NNODES", "1"))
    return each * nodes if each and nodes else None


DIALECT = Dialect(
    "Primus",
    "dialects/primus.md",
    knows,
    read,
    lambda run: "modules.pre_trainer.overrides",
    takes_flags=True,
    follows=FOLLOWS,
    words="megatron",
)


KERNELS = ("enable_primus_turbo", "use_turbo_", "fused_padded_mla_attention", "moe_use_legacy_grouped_gemm")
"""Kernels for AMD's GPUs that change what is saved, and beginnings of such."""
NOTHING = """
    stage enable_packed_sequences patch_primus_pipeline
    turbo_* profile* disable_* dump_* log_* use_rocm_* stderr_* file_sink_* sink_* fp8_amax_* pp_warmup
    moe_router_force_load_balancing tensorboard_* wandb_* mlflow_* primus_*
    auto_continue_train trainable checkpoint_* use_deprecated_* debug_* torch_profiler_* deprecated_* check_for_*
    finetune tokenizer_* te_*
"""
"""Primus' own arguments without effect, and beginnings of such."""
DECIDE = {
    "enable_zero_bubble": "is another pipeline schedule",
    "patch_zero_bubble": "is another pipeline schedule",
    "enable_1f1b_v": "is another pipeline schedule",
    "zero_bubble_v_schedule": "is another pipeline schedule",
    "pp_algorithm": "is another pipeline schedule",
    "recompute_layer_ids": "recomputes a list of layers",
    "enable_fused_linear_ce": "computes the loss in parts of tokens",
    "no_fp8_weight_transpose_cache": "keeps no transposed fp8 weights",
    "final_logit_softcapping": "is another architecture",
    "router_logit_softcapping": "is another architecture",
}
"""Primus' own arguments that decide memory, and what they do."""
SPLIT = "decoder_pipeline_manual_split_list"
MEGATRONS_SCHEDULES = ("1f1b", "1f1b-interleaved")
"""Values of pp_algorithm that are Megatron's own schedule."""
SIZED = (
    "NullTokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer",
)
"""Tokenizers that Megatron-LM has by these names; the others of Primus are Hugging Face's."""


def known_and_own(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that Megatron-LM has, by destination, and those that only Primus has. Nulls are left out."""
    by_flag, by_dest = arguments()
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in values.items():
        name = OLD_NAMES.get(key, key)
        if key == "moe_router_force_load_balancing" or (name not in by_dest and name not in by_flag):
            if name:
                own[name] = value
        elif value is None:
            given.pop(name, None)
        elif name in by_dest:
            given[name] = value
        else:
            dest, meant = destination(key, name, value)
            given[dest] = meant
    return given, own


def own_arguments(own: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of Primus' own arguments that are unknown, and what is refused."""
    exact, starts = patterns(NOTHING + " ".join(f"{one}*" for one in KERNELS))
    unknown, refused = [], []
    for key, value in own.items():
        if (key in exact or key.startswith(starts)) and key != "turbo_sync_free_moe_stage":
            continue
        if says_nothing(value) or value == "none":
            continue
        if key == SPLIT:
            continue
        if key == "pp_algorithm" and (value in MEGATRONS_SCHEDULES or not own.get("patch_primus_pipeline")):
            continue
        if key == "turbo_sync_free_moe_stage" and whole(str(value)) not in (0, 1) and own.get("enable_primus_turbo"):
            refused.append(
                f"{key}={shown(value)} of Primus receives rows into buffers of the worst case, which are not modelled"
            )
        elif key in DECIDE:
            refused.append(f"{key}={shown(value)} of Primus {DECIDE[key]}, which is not modelled")
        elif names_files(key, value):
            refused.append(not_followed(key, value))
        elif DECIDES.search(key):
            refused.append(f"{key}={shown(value)} of Primus decides memory and is not modelled")
        else:
            unknown.append(key)
    return unknown, refused


def tokenizer_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer in Megatron-LM's names: Primus' own types are Hugging Face's."""
    kind = given.get("tokenizer_type")
    return {} if kind in (None, *SIZED) else {"tokenizer_type": "HuggingFaceTokenizer"}


def megatron_words(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of Megatron-LM that set destinations to these values; defaults need none."""
    by_flag, by_dest = arguments()
    words: list[str] = []
    for dest, value in given.items():
        argument = by_dest[dest]
        if value is None or (value == argument.default and type(value) is type(argument.default)):
            continue
        if argument.kind == "Store":
            several = argument.nargs and isinstance(value, list | tuple)
            words += [dashed(argument.flag), *(map(str, value) if several else [str(value)])]
            continue
        wanted = "StoreTrue" if str(value).lower() == "true" else "StoreFalse"
        words += [dashed(one.flag) for one in by_flag.values() if one.dest == dest and one.kind == wanted][:1]
    return tuple(words)


def over_a_model(
    entry: str, defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str], tuple[str, ...]]:
    """What holds over a model of the catalogue: Primus' defaults, what the run gives, what is assumed, and what is warned of."""
    experts = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True} if _has_experts(entry) else {}
    before = derive({**defaults, **experts, "position_embedding_type": "rope"})
    after = derive({**defaults, **experts, "position_embedding_type": "rope", **given})
    owners = known_settings()
    ours = {name: value for name, value in before.items() if owners.get(name) is not Model}
    ours |= {"attention_dropout": 0.0, "hidden_dropout": 0.0, "make_vocab_size_divisible_by": 128}
    if experts:
        ours["expert_tensor_parallel_size"] = 1
    settings = {name: value for name, value in after.items() if name in given or before.get(name) != value}
    size = known_size(str(given.get("tokenizer_model") or entry))
    notes = []
    if "padded_vocab_size" not in given:
        if size is not None:
            settings["vocab_size"] = size
            notes.append(f"vocab_size {size}: the length of the tokenizer of {given.get('tokenizer_model') or entry}")
        else:
            notes.append("vocab_size as in the model's config: the length of its tokenizer is not known")
    return ours, settings, notes, refuse_unmodelled(given)


def _has_experts(entry: str) -> bool:
    try:
        return bool(load(entry).config.get("num_moe_experts"))
    except ConfigError:  # asked for with the model's name
        return False
