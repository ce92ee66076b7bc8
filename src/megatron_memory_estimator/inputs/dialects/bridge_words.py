"""Words of Megatron-Bridge's launchers: which recipe they choose, on how many GPUs, and what they change of it.

Sources: NVIDIA-NeMo/Megatron-Bridge `scripts/training/run_recipe.py`, `scripts/training/train.sh`,
`scripts/performance/setup_experiment.py`, `scripts/performance/argument_parser.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...job.layout import SHORT as SHORT_NAMES
from ...wording import shown, whole
from ..bridge_config import DDP, LOW_PRECISION, OPTIMIZER
from ..field_names import fields_of, meant, misspelled
from ..setting_names import full_name, known_settings
from ..transformer_config import IRRELEVANT, UNCOUNTED, UNSUPPORTED
from .bridge_sections import SECTIONS
from .bridge_table import Recipe, is_recipe, of_model, of_performance, recipe
from .keys import DECIDES
from .run import Run

LAUNCHERS = ("run_recipe", "setup_experiment", "run_script", "train.sh")
TASKS = {"pretrain": "pretrain", "sft": "sft", "finetune": "sft", "lora": "peft", "dora": "peft", "peft": "peft"}
PRECISIONS = {"fp8_cs": "fp8cs", "fp8_mx": "fp8mx", "fp8_ds": "fp8ds", "fp8_sc": "fp8sc", "fp8": "fp8cs"}
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
    "use-megatron-fsdp": "ddp.use_megatron_fsdp", "cuda-graph-impl": "model.cuda_graph_impl",
    "recompute-num-layers": "model.recompute_num_layers", "activation-offload-layers": "model.cpu_offloading_num_layers",
    "moe-a2a-overlap": "comm_overlap.overlap_moe_expert_parallel_comm",
    "num-layers": "model.num_layers", "hidden-size": "model.hidden_size",
}  # fmt: skip
"""Options of the launchers, as keys."""
SHORT = {
    "m": "model-family-name", "mr": "model-recipe-name", "c": "compute-dtype", "g": "gpu", "ng": "num-gpus", "gn": "gpus-per-node",
}  # fmt: skip
"""Short options of setup_experiment.py; the launchers have no others by these names."""
LISTS = {"recompute-modules": "model.recompute_modules", "cuda-graph-scope": "model.cuda_graph_modules"}
TUNED_SCRIPT = re.compile(r"finetune|sft|lora|peft")


class Chosen(NamedTuple):
    """What a run builds on: a recipe, or a model by name with the common base of a task."""

    base: Recipe | None
    model: str
    task: str


def changes_of(options: Mapping[str, str], words: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the options and words change, as keys and texts, the last one the strongest."""
    found = [(WORDS[key], text or "true") for key, text in options.items() if key in WORDS]
    found += [(LISTS[key], f"[{text.strip('[]')}]") for key, text in options.items() if key in LISTS]
    return found + [(key, text) for key, text in words if key.lstrip("+~").split(".")[0] in SECTIONS]


def choose(run: Run, options: Mapping[str, str]) -> Chosen | None:
    """What the run builds on, or None where neither it nor the caller says. Raises ConfigError for names that are none."""
    task = TASKS.get(options.get("mode") or options.get("task") or "", "")
    if is_recipe(run.model):
        found = recipe(run.model)
        return Chosen(found, found.hub or found.name, found.task)
    name = ""
    if options.get("recipe"):
        name = options["recipe"].rsplit(".", 1)[-1]
    elif options.get("model-recipe-name"):
        name = _performance(options, task or "pretrain")
    elif options.get("model") and run.script in LAUNCHERS:
        if not task:
            raise ConfigError(f"--model {shown(options['model'])} needs --mode pretrain, sft or lora")
        name = of_model(options["model"], task)
    if name:
        found = recipe(name)
        return Chosen(found, found.hub or found.name, found.task)
    kind = task or ("sft" if TUNED_SCRIPT.search(run.script) else "pretrain")
    return Chosen(None, run.model, kind) if run.model else None


def _performance(options: Mapping[str, str], task: str) -> str:
    """The recipe of the performance launcher's words."""
    missing = [f"--{key.replace('-', '_')}" for key in ("gpu", "compute-dtype") if not options.get(key)]
    if missing:
        raise ConfigError(f"setup_experiment.py needs {' and '.join(missing)} to choose a recipe of Megatron-Bridge")
    word = options["compute-dtype"].lower()
    precision = PRECISIONS.get(word, word)
    return of_performance(
        options["model-recipe-name"],
        task,
        options["gpu"].lower(),
        precision,
        whole(options.get("num-gpus") or options.get("ng") or ""),
    )


def gpus_of(run: Run, options: Mapping[str, str], found: Recipe | None) -> int | None:
    """GPUs of the launcher's own words, of what starts it, or those that the recipe is for."""
    if number := whole(options.get("num-gpus") or options.get("ng") or ""):
        return number
    nodes = whole(options.get("nodes") or options.get("num-nodes") or "")
    each = whole(options.get("gpus-per-node") or options.get("gn") or "")
    if run.script == "train.sh" and (nodes or each):
        return (nodes or 1) * (each or 8)
    if run.num_gpus is not None or found is None or run.gpus_unknown:
        return run.num_gpus
    return found.gpus


READ = frozenset(
    ("seq_length", "sequence_length", "packed_sequence_size", "attention_backend", "should_pad_vocab", "cpu_offloading", "bf16", "fp16",
     "use_distributed_optimizer", *OPTIMIZER, *DDP, *LOW_PRECISION)
)  # fmt: skip


def strange_keys(
    file: Mapping[str, Any], changes: Sequence[tuple[str, str]], words: Sequence[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    """Keys that are unknown or near a field of their section, and those that would change memory and are not modelled."""
    found = [
        (section, str(key), value)
        for section, values in file.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
    ]
    for key, text in changes:
        section, _, rest = key.lstrip("+~").partition(".")
        found.append((section, rest.split(".")[0], None if text.lower() in ("null", "none", "false") else text))
    fields = fields_of("megatron_bridge")
    tops = dict.fromkeys([*map(str, file), *(key.lstrip("+~").split(".")[0] for key, _ in words)])
    unknown, refused = misspelled("", [key for key in tops if key.isidentifier() and key.islower()], fields[""]), []
    for section, key, value in found:
        if not key or key.startswith("_"):
            continue
        guess = _guess(section, key, fields)
        name, nothing = full_name(key), value in (None, False, "", [], {})
        read = key in READ or name in {*known_settings(), *UNSUPPORTED, *UNCOUNTED, *IRRELEVANT}
        if DECIDES.search(key) and section in ("model", "ddp", "optimizer") and not read and not nothing:
            refused.append(f"{section}.{key}={shown(str(value))} decides memory and is not modelled{guess}")
        elif (
            guess
            or (section in WHOLE and key not in fields[section])
            or (section == "model" and not read and not nothing)
        ):
            unknown.append(f"{section}.{key}{guess}")
    return unknown, refused


def _guess(section: str, key: str, fields: Mapping[str, frozenset[str]]) -> str:
    """What a key that is no field of its section may be: a misspelling, a short name, or a field of another section."""
    names = fields.get(section)
    if names is None or key in names or (section == "model" and key in READ):
        return ""
    if key in SHORT_NAMES:
        return f" (is it model.{SHORT_NAMES[key]}?)"
    near = meant(key, {*names, *known_settings()}, SURE) if section == "model" else meant(key, names)
    if near:
        return f" (is it {near}?)"
    other = next((name for name in ("model", *fields) if name and key in fields[name]), "")
    return f" (a field of {other})" if other else ""


WHOLE = ("train", "ddp", "optimizer", "mixed_precision", "comm_overlap")
"""Sections that have the same fields whatever the model and the data are."""


SURE = 0.86
"""How alike a key of the model is to a setting that is meant, whose fields differ from model to model."""


def scaled(
    found: Recipe | None,
    gpus: int | None,
    changed: dict[str, Any],
    said: Mapping[str, Any],
    words: Sequence[tuple[str, str]],
) -> list[str]:
    """Sets the global batch of a performance recipe on another number of GPUs than its own, where the run leaves it, and says so.

    `said` is the file that is laid over the recipe, `words` what the words change.
    """
    if found is None or not found.performance or not gpus or not found.gpus or gpus == found.gpus:
        return []
    in_file = isinstance(said.get("train"), Mapping) and said["train"].get("global_batch_size") is not None
    own = (changed.get("train") or {}).get("global_batch_size")
    if in_file or not isinstance(own, int) or any(key.lstrip("+~") == "train.global_batch_size" for key, _ in words):
        return []
    batch = max(own * gpus // found.gpus, 1)
    changed["train"] = {**changed["train"], "global_batch_size": batch}
    return [f"global_batch_size {own} of {found.gpus} GPUs scaled to {batch} of {gpus}, as performance recipes do"]
