"""The performance launchers of Megatron-Bridge: the recipe that their words choose, and what their options make of it.

An option wins over `section.key=value` behind it, which is the reverse of run_recipe.py.

Sources: NVIDIA-NeMo/Megatron-Bridge of 22 August 2026 `scripts/performance/{setup_experiment,run_script,argument_parser}.py`,
`scripts/performance/utils/overrides.py`, `src/megatron/bridge/training/flex_dispatcher_backend.py`,
`src/megatron/bridge/recipes/{deepseek/h100/deepseek_v3,kimi/h100/kimi_k2}.py` (layouts of stages); AI-Hypercomputer/gpu-recipes
`custom_setup_experiment.py`; NVIDIA/dgxc-benchmarking `*/launch.sh`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...wording import counted, shown, whole
from ..catalog import entries
from ..model_names import catalogued
from ..questions import Question
from .bridge_sections import SECTIONS
from .bridge_table import Recipe, named_by_parts, of_performance
from .hydra import overridden
from .keys import DECIDES
from .launched import UNKNOWN
from .run import Run

PROGRAM = re.compile(r"\w*setup_experiment|run_script")
"""The launcher, changed copies of it, and the script that it starts with the same words."""
WORDS = {
    "gb": "train.global_batch_size", "global-batch-size": "train.global_batch_size",
    "mb": "train.micro_batch_size", "micro-batch-size": "train.micro_batch_size",
    "sl": "dataset.seq_length", "seq-length": "dataset.seq_length",
    "tp": "model.tensor_model_parallel_size", "tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "tensor-parallel-size": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size", "pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "pipeline-parallel-size": "model.pipeline_model_parallel_size",
    "cp": "model.context_parallel_size", "context-parallel-size": "model.context_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size",
    "virtual-pipeline-model-parallel-size": "model.virtual_pipeline_model_parallel_size",
    "virtual-pipeline-parallel-size": "model.virtual_pipeline_model_parallel_size",
    "ep": "model.expert_model_parallel_size", "expert-model-parallel-size": "model.expert_model_parallel_size",
    "expert-parallel-size": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size", "et": "model.expert_tensor_parallel_size",
    "expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
}  # fmt: skip
"""Options of every launcher, as keys."""
SHORT = {
    "m": "model-family-name", "mr": "model-recipe-name", "c": "compute-dtype", "g": "gpu", "ng": "num-gpus", "gn": "gpus-per-node",
    "s": "model-size", "cv": "config-variant", "rl": "recompute-num-layers", "ol": "activation-offload-layers",
}  # fmt: skip
"""Short options of the performance launchers, where they are not those of every launcher."""
OPTIONS = {
    "num-layers": "model.num_layers", "hidden-size": "model.hidden_size", "num-moe-experts": "model.num_moe_experts",
    "pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "activation-offload-layers": "model.cpu_offloading_num_layers",
    "recompute-num-layers": "model.recompute_num_layers", "recompute-modules": "model.recompute_modules",
    "use-megatron-fsdp": "ddp.use_megatron_fsdp", "moe-a2a-overlap": "comm_overlap.overlap_moe_expert_parallel_comm",
    "nccl-ub": "ddp.nccl_ub",
    "cuda-graph-impl": "model.cuda_graph_impl", "cuda-graph-scope": "model.cuda_graph_modules",
    "tokenizer-type": "tokenizer.tokenizer_type", "tokenizer-model": "tokenizer.tokenizer_model", "vocab-size": "tokenizer.vocab_size",
}  # fmt: skip
"""Options of the performance launchers alone, as keys, in the order in which they are applied."""
LISTS = ("recompute-modules", "cuda-graph-scope")
BESIDE = {
    "activation-offload-layers": {"model.cpu_offloading": "true", "model.cpu_offloading_weights": "false"},
    "recompute-num-layers": {"model.recompute_granularity": "full", "model.recompute_method": "block"},
    "recompute-modules": {"model.recompute_granularity": "selective"},
    "use-megatron-fsdp": {"ddp.data_parallel_sharding_strategy": "optim_grads_params", "ddp.keep_fp8_transpose_cache": "false"},
    "moe-a2a-overlap": {"comm_overlap.delay_wgrad_compute": "true", "model.moe_shared_expert_overlap": "false"},
}  # fmt: skip
"""What an option that is on sets beside its own key."""
CHOOSING = {
    "model-recipe-name": "stem", "gpu": "gpu", "compute-dtype": "precision", "num-gpus": "gpus", "config-variant": "variant",
}  # fmt: skip
"""Options that choose a recipe, and the part of its name that each gives."""
SWITCHES = ("use-megatron-fsdp", "nccl-ub", "moe-a2a-overlap")
SAID = {**dict.fromkeys(("1", "t", "y", "yes"), "true"), **dict.fromkeys(("0", "f", "n", "no"), "false")}
"""What the words behind a switch mean."""
OFF = ("null", "false")
PRECISIONS = {"fp8_cs": "fp8cs", "fp8_mx": "fp8mx", "fp8_ds": "fp8ds", "fp8_sc": "fp8sc", "fp8": "fp8cs"}
"""Words of --compute_dtype that names of recipes spell otherwise."""
MOST_CHOICES = 12
LAYERS = 61
"""Layers of DeepSeek-V3 and Kimi K2."""
LAID_OUT = {
    "deepseek_v3": ((1, 1), (4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4)),
    "kimi_k2": ((1, 1), (4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4), (2, 8)),
}
"""Models whose stages the launcher lays out again, for these pipeline-parallel sizes and chunks."""
LATE = ("fp8mx", "nvfp4")
"""Precisions with which no parameter is gathered during the step of the optimizer."""


def is_performance(script: str) -> bool:
    """Whether a script is one of the performance launchers."""
    return PROGRAM.fullmatch(script) is not None


def in_todays_words(options: Mapping[str, str]) -> dict[str, str]:
    """The options with the recipe's name, where they say a model's name and its size, as launchers before Megatron-Bridge 0.3 did."""
    name, size = (options.get("model-name") or options.get("model-family-name"), options.get("model-size"))
    if options.get("model-recipe-name") or not (name and size):
        return dict(options)
    return {**options, "model-recipe-name": f"{name}_{size}".lower()}


def waiting(options: Mapping[str, str], run: Run) -> list[Question]:
    """Questions for the words that choose the recipe and come from variables without a value, with what may stand for them.

    The number of GPUs is none where the caller gives it.
    """
    texts = {option: options[option] for option in CHOOSING if options.get(option)}
    if run.wanted_gpus is not None:
        texts.pop("num-gpus", None)
    asked = []
    for option, text in texts.items():
        if name := UNKNOWN.search(text):
            choices = _choices(texts, option)
            known = f": {choices}" if choices else ""
            what = f"--{option.replace('-', '_')} takes its value from ${name[1]}, which has none{known}"
            asked.append(Question(what, f"--set {name[1]}=VALUE"))
    return asked


def _choices(texts: Mapping[str, str], option: str) -> str:
    """What may stand for the variable of an option, by the names of the recipes that fit the other options."""
    patterns = {CHOOSING[one]: _pattern(one, text) for one, text in texts.items() if one != "num-gpus"}
    found: dict[str, None] = {}
    for name in named_by_parts():
        parts = {part: (name[part] or "").lstrip("_") for part in CHOOSING.values()}
        fits = {part: pattern.fullmatch(parts[part]) for part, pattern in patterns.items()}
        own = fits.get(CHOOSING[option])
        if all(fits.values()):
            found[(own[1] if own and own.groups() else parts[CHOOSING[option]])] = None
    words = sorted(found, key=lambda word: (len(word), word) if word.isdigit() else (0, word))
    if option == "compute-dtype":
        spelled = {name: word for word, name in PRECISIONS.items() if word != "fp8"}
        words = [spelled.get(word, word) for word in words]
    more = f" and {counted(len(words) - MOST_CHOICES, 'other')}" if len(words) > MOST_CHOICES else ""
    listed = ", ".join(words[:MOST_CHOICES]) + more
    return f"recipes are for {listed} GPUs" if listed and option == "num-gpus" else listed


def _pattern(option: str, text: str) -> re.Pattern[str]:
    """What a word of an option fits in names of recipes; a variable without a value is any text."""
    word = text if option == "model-recipe-name" else text.lower()
    if option == "compute-dtype":
        word = PRECISIONS.get(word, word)
    parts = UNKNOWN.split(word)[::2]
    return re.compile("(.*)".join(map(re.escape, parts)))


def recipe_of(options: Mapping[str, str], task: str, script: str) -> str:
    """The recipe of the words. Raises ConfigError where there is none, or where words are missing."""
    missing = [f"--{key.replace('-', '_')}" for key in ("gpu", "compute-dtype") if not options.get(key)]
    if missing:
        raise ConfigError(f"{script}.py needs {' and '.join(missing)} to choose a recipe of Megatron-Bridge")
    word = options["compute-dtype"].lower()
    return of_performance(
        options["model-recipe-name"], task, options["gpu"].lower(), PRECISIONS.get(word, word), whole(options.get("num-gpus") or ""),
        _given(options.get("config-variant")),
    )  # fmt: skip


def _given(text: str | None) -> str:
    """The word of an option, "" where it says None, of Python; `none` is a word of --cuda_graph_impl."""
    return "" if text in (None, "None", "null") else text or ""


def changes_of(
    options: Mapping[str, str], words: Sequence[tuple[str, str]], base: Recipe | None
) -> list[tuple[str, str]]:
    """What words of sections change, and then what options do, as keys and texts; the last one is the strongest."""
    found = [(key, text) for key, text in words if key.lstrip("+~").split(".")[0] in SECTIONS]
    given = {key: _given(text) or ("null" if text else "true") for key, text in options.items()}
    found += [(key, given[option]) for option, key in WORDS.items() if option in given]
    tp = next((text for option, text in given.items() if WORDS.get(option) == "model.tensor_model_parallel_size"), None)
    if tp is not None:
        found.append(("model.sequence_parallel", "true" if (whole(tp) or 1) > 1 else "false"))
    found += [("model.seq_length", text) for option, text in given.items() if WORDS.get(option) == "dataset.seq_length"]
    for option, key in OPTIONS.items():
        if option in given:
            text = SAID.get(given[option].lower(), given[option]) if option in SWITCHES else given[option]
            found.append((key, f"[{text.strip('[]')}]" if option in LISTS and text != "null" else text))
            found += BESIDE[option].items() if option in BESIDE and text not in OFF else ()
    if given.get("cuda-graph-impl") == "none":
        found.append(("model.cuda_graph_modules", "[]"))
    return [*found, *_dispatcher(given), *_dense(given, base)]


def unread(options: Mapping[str, str]) -> list[str]:
    """What is said of options that decide memory by their names and are not known here."""
    known = {*WORDS, *OPTIONS}
    return [
        f"--{option.replace('-', '_')} decides memory and is not modelled"
        for option, text in options.items()
        if option not in known
        and DECIDES.search(option.replace("-", "_"))
        and text.lower() not in ("none", "false", "0")
    ]


def _dispatcher(given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The dispatcher of --moe_flex_dispatcher_backend, of which None is alltoall."""
    backend = given.get("moe-flex-dispatcher-backend")
    if backend is None:
        return []
    flex = backend != "null"
    shared = [("model.moe_shared_expert_overlap", "false")] if flex else []
    return [
        ("model.moe_token_dispatcher_type", "flex" if flex else "alltoall"),
        ("model.moe_flex_dispatcher_backend", backend),
        *shared,
    ]


def _dense(given: Mapping[str, str], base: Recipe | None) -> list[tuple[str, str]]:
    """The layers without experts of --first_k_dense_replace. Raises ConfigError where the number of layers is not known."""
    first = given.get("first-k-dense-replace")
    if first is None or first == "null":
        return []
    entry = catalogued(base.hub) if base and base.hub else None
    own = (base.sections["model"].get("num_layers") if base else None) or (
        entries()[entry]["config"].get("num_hidden_layers") if entry else None
    )
    layers, dense = whole(given.get("num-layers") or "") or own, whole(first)
    if dense is None or not isinstance(layers, int):
        raise ConfigError(f"--first_k_dense_replace {shown(first)} needs --num_layers and a whole number")
    return [("model.moe_layer_freq", str([0] * dense + [1] * (layers - dense)))]


def finished(sections: Mapping[str, Any], options: Mapping[str, str], base: Recipe, gpus: int | None) -> dict[str, Any]:
    """The sections as the launcher leaves them: the precision-aware optimizer with bf16 and Adam, the layout of stages of models that
    have one, and parameters that are gathered during the step, where the recipe is for another number of GPUs."""
    model, optimizer = sections.get("model") or {}, sections.get("optimizer") or {}
    pp, vp, tp, cp = (
        _count(model, f"{axis}_parallel_size", 1)
        for axis in ("pipeline_model", "virtual_pipeline_model", "tensor_model", "context")
    )
    changes = []
    if base.precision == "bf16" and optimizer.get("optimizer") == "adam":
        changes.append(("optimizer.use_precision_aware_optimizer", "true"))
    if gpus != base.gpus and base.precision not in LATE and min(pp, vp, (gpus or 1) // (pp * tp * cp)) > 1:
        changes.append(("optimizer.overlap_param_gather_with_optimizer_step", "true"))
    moved = any(WORDS.get(one, "").endswith("pipeline_model_parallel_size") for one in options)
    laid_out = LAID_OUT.get(options.get("model-recipe-name", ""), ())
    if moved and "pipeline-model-parallel-layout" not in options and (pp, vp) in laid_out:
        layout = _layout(pp * vp, _count(model, "mtp_num_layers", 0))
        changes.append(("model.pipeline_model_parallel_layout", layout))
    return overridden(sections, changes)


def _count(section: Mapping[str, Any], key: str, default: int) -> int:
    """The count that a section says, where it is one."""
    value = section.get(key)
    return value if type(value) is int and value > 0 else default


def _layout(chunks: int, mtp: int) -> str:
    """Layers of the chunks of all stages in Megatron-Core's notation: as many in each, and what is left in the last one."""
    if chunks == 1:
        return "null"
    each = -(-LAYERS // chunks)
    last = f"t*{LAYERS - each * (chunks - 1)}{'m' * min(mtp, LAYERS)}L"
    return f"Et*{each}|(t*{each}|)*{chunks - 2}{last}"


def pinned(run: Run) -> list[str]:
    """The warning about a changed copy of the launcher, which goes with an older Megatron-Bridge."""
    if not is_performance(run.script) or run.script in ("setup_experiment", "run_script"):
        return []
    said = f"{run.script}.py goes with the Megatron-Bridge that its repository pins: what its words leave is that of August 2026 here"
    return [said]
