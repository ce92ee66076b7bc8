"""Primus: a YAML file with `modules.pre_trainer`, alone or given to `primus/train.py --config` or `EXP=FILE run_pretrain.sh`.

Sources: AMD-AIG-AIMA/Primus `primus/core/launcher/parser.py`, `primus/core/utils/yaml_utils.py`,
`primus/configs/modules/megatron/{pre_trainer,trainer_base}.yaml`, `primus/configs/models/megatron/*.yaml`, `examples/run_pretrain.sh`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown, whole
from ..megatron.classes import is_harmless
from ..megatron.table import arguments
from ..questions import Question
from ..strict_yaml import parse_yaml
from .documents import named_by, needed
from .keys import passed_over
from .primus_arguments import KERNELS, known_and_own, megatron_words, over_a_model, own_arguments, tokenizer_of
from .primus_files import (
    FOLLOWS,
    MODELS,
    MODULES,
    extended,
    model_file,
    module_file,
    open_variables,
    passed_over_today,
    variables,
)
from .run import Dialect, Reading, Run
from .words import scalar

DEFAULTS: dict[str, Any] = {
    "seq_length": 1024,
    "global_batch_size": 16,
    "micro_batch_size": 2,
    "bf16": True,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "gradient_accumulation_fusion": True,
    "cross_entropy_loss_fusion": False,
    "moe_token_dispatcher_type": "allgather",
    "create_attention_mask_in_dataloader": True,
}
"""What pre_trainer.yaml and language_model.yaml say, by Megatron-LM's destinations."""
OF_MODULE = {"seq_length": 1024, "make_vocab_size_divisible_by": 128}
"""What pre_trainer.yaml says of arguments that files of models have too: the module's file wins (`preset_loader.py`)."""
PRE_TRAINER = ("", "pre_trainer.yaml", "pre_trainer")
"""Names of the module's file whose keys are known here."""
USUAL_GPUS = 8
"""GPUS_PER_NODE of the launcher where it is not set."""


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
    return (ours and run.script.rpartition(".")[2] in ("train", "main", "pretrain")) or (
        parts[-1].startswith("run_") and parts[-1].endswith("pretrain.sh") and "EXP" in run.env
    )


def read(run: Run) -> Reading:
    """The arguments of the pre-trainer, over those of its model and of Primus. Raises UnsupportedError for another framework,
    ConfigError for a file that is missing."""
    document, path, words = _document(run)
    old: dict[str, None] = {}
    module = _module(extended(run, document, path, old), run.path)
    overrides = {**_mapping(module, "overrides"), **_given_words(words)}
    questions: list[Question] = []
    overrides = _settled(overrides, questions)
    name = str(module.get("model") or "")
    held = model_file(run, name, old) if name and not run.model else None
    of_module = _of_module(run, str(module.get("config") or ""), old)
    gpus = _gpus(run)
    if gpus is None:
        questions.append(
            Question("Primus' file does not say the number of GPUs (NNODES and GPUS_PER_NODE do)", "--num-gpus N")
        )
    if held is not None:
        reading = _by_file(held, of_module, overrides)
    else:
        reading = _by_name(run, name, {**of_module, **overrides})
    reading["warnings"] = (*passed_over_today(old), *reading["warnings"])
    return Reading(num_gpus=gpus, env=dict(run.env), questions=tuple(questions), **reading)


def _of_module(run: Run, name: str, old: dict[str, None]) -> dict[str, Any]:
    """What a module's own file says beyond pre_trainer.yaml. Raises ConfigError where it is not there."""
    found = module_file(run, name, old) if name else {}
    if found is None and name not in PRE_TRAINER:
        raise ConfigError(
            f"{shown(name)[1:-1]}, the config of the module, is not there; put it at {MODULES}, or its keys under overrides"
        )
    return found or {}


def _by_file(held: Mapping[str, Any], of_module: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A model whose files are there: words of Megatron-LM."""
    wins = {**OF_MODULE, **of_module}
    lost = [key for key in held if key in wins and key not in overrides and held[key] != wins[key]]
    given, own = known_and_own({**DEFAULTS, **held, **wins, **overrides})
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
    defaults, settings, notes, warnings = over_a_model(entry, DEFAULTS, given)
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
    balanced = {"routing_phase": "forced_balance"} if own.get("moe_router_force_load_balancing") else {}
    return {"settings": balanced, "warnings": tuple(warnings), "refused": tuple(refused)}


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


def _module(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The module that trains. Raises UnsupportedError where it does not train under Megatron."""
    modules = _mapping(document, "modules")
    module = modules.get("pre_trainer")
    if not isinstance(module, Mapping):
        raise UnsupportedError(
            f"{path} has the modules {shown(', '.join(modules))} of Primus; only pre_trainer is modelled"
        )
    framework = str(module.get("framework") or "megatron")
    if framework != "megatron":
        raise UnsupportedError(
            f"{path} trains under {shown(framework)}; of Primus' frameworks only megatron is modelled"
        )
    return module


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
    return name.lstrip("-").replace("-", "_").removeprefix("modules.pre_trainer.overrides.")


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
)
