"""Megatron-Bridge: recipes by name with words over them, and YAML files that are laid over a recipe.

Sources: NVIDIA-NeMo/Megatron-Bridge `scripts/training/README.md`, `src/megatron/bridge/training/utils/omegaconf_utils.py`,
`src/megatron/bridge/recipes/common.py`.

Words of Megatron-Bridge's launchers: which recipe they choose, on how many GPUs, and what they change of it. Those of the performance
launchers, which win over sections, are in `bridge_launcher.py`.

Sources: NVIDIA-NeMo/Megatron-Bridge `scripts/training/run_recipe.py`, `scripts/training/train.sh`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...job.layout import SHORT as SHORT_NAMES
from ...job.model import Model
from ...wording import says_nothing, shown, whole
from ..bridge_config import DDP, LOW_PRECISION, OPTIMIZER
from ..door_defaults import without_loss
from ..field_names import fields_of, meant, misspelled
from ..model_names import EXPERTS, family_of
from ..questions import GPUS_OPTION, Question, settle
from ..setting_names import full_name, known_settings
from ..strict_yaml import parse_yaml
from ..transformer_config import IRRELEVANT, UNCOUNTED, UNSUPPORTED
from . import bridge_launcher as launcher
from .bridge_sections import LORA, SECTIONS, common, settings_of, spelled_out, vocabulary
from .bridge_table import GPUS, UNKNOWN_GPU, Recipe, is_recipe, of_model, recipe
from .documents import needed
from .hydra import merged, overridden, parted
from .keys import DECIDES, passed_over
from .run import Dialect, Reading, Run

OVERRIDES = SECTIONS | frozenset(
    ("scheduler", "logger", "rng", "profiling", "validation", "rerun_state_machine", "ft", "straggler", "inprocess_restart")
)  # fmt: skip
"""Sections of a ConfigContainer."""
WORD = re.compile(
    r"[+~]{0,2}(train\.(train_iters|global_batch_size|micro_batch_size)|model\.(\w+_parallel_size|seq_length|sequence_parallel|recompute_\w+)"
    r"|ddp\.\w+|checkpoint\.pretrained_checkpoint)=.*",
    re.DOTALL,
)
"""Words that no other framework's scripts take."""
ARCHITECTURE = ("num_layers", "hidden_size", "num_attention_heads")
"""Keys of a ConfigContainer that is whole, and no override."""


def knows(run: Run) -> bool:
    """A launcher of recipes, a script that takes sections as words or in a file, a YAML of sections, or a file of NeMo."""
    if run.document is not None:
        return is_nemo(run.document) or is_override(run.document)
    if run.script in LAUNCHERS or launcher.is_performance(run.script) or run.script == "nemo":
        return True
    if not run.program.endswith(".py"):
        return False
    if any(WORD.fullmatch(word) for word in run.words):
        return True
    text = run.text_of(config_file(run)) if config_file(run) else None
    document = parse_yaml(text, config_file(run)) if text else None
    return isinstance(document, Mapping) and is_override(document)


def is_override(document: Mapping[str, Any]) -> bool:
    """Sections of a ConfigContainer without a model's architecture; a section of the model has at least one setting of Megatron."""
    model = document.get("model")
    sections = [key for key, value in document.items() if key in OVERRIDES and isinstance(value, Mapping) and value]
    if len(sections) < 2 or any(isinstance(value, Mapping) for key, value in document.items() if key not in OVERRIDES):
        return False
    if not isinstance(model, Mapping) or not model:
        return "train" in sections and "model" not in document
    whole = "_target_" in model or all(key in model for key in ARCHITECTURE)
    return not whole and any(isinstance(key, str) and full_name(key) in known_settings() for key in model)


def is_nemo(document: Mapping[str, Any]) -> bool:
    """A file of NeMo 1: a trainer of Lightning beside a model."""
    return isinstance(document.get("trainer"), Mapping) and (
        isinstance(document.get("model"), Mapping) or "exp_manager" in document
    )


def config_file(run: Run) -> str:
    """The file that is laid over the recipe."""
    options, _ = parted(run.words, {})
    return options.get("config-file", "") or options.get("config", "")


def read(run: Run) -> Reading:
    """The settings of a run. Raises ConfigError for a recipe that there is not, QuestionsError for words that choose one and have no
    value, UnsupportedError for NeMo's own formats."""
    if run.script == "nemo" or (run.document is not None and is_nemo(run.document)):
        raise UnsupportedError(
            f"{run.path} is a run of NeMo, whose models and defaults are another implementation; only recipes and overrides of "
            "Megatron-Bridge are read"
        )
    tuned = launcher.is_performance(run.script)
    options, words = parted(run.words, launcher.SHORT if tuned else {})
    options = launcher.in_todays_words(options) if tuned else options
    if tuned and not is_recipe(run.model):
        settle(launcher.waiting(options, run))
    chosen = choose(run, options)
    if chosen is None:
        asked = [Question(_unnamed(run), "--model NAME")]
        if run.document is not None:
            asked.append(Question("an override file does not say the number of GPUs", GPUS_OPTION))
        return Reading(questions=tuple(asked), num_gpus=run.num_gpus)
    gpus = gpus_of(run, options, chosen.base)
    changes = launcher.changes_of(options, words, chosen.base) if tuned else changes_of(options, words)
    base: dict[str, Any] = spelled_out(chosen.base.sections if chosen.base else common(chosen.task))
    if options.get("mode") == "dora" or options.get("peft-scheme") == "dora":
        base["peft"] = {**LORA, **(base.get("peft") or {}), "type": "dora"}
    file = override_of(run, options)
    unknown, refused = strange_keys(file, changes, words)
    changed = overridden(spelled_out(merged(base, spelled_out(known_only(file)))), changes)
    changed = spelled_out({key: value for key, value in changed.items() if key in SECTIONS})
    read, apart = lengths_apart(chosen, changed, file, changes)
    refused += apart + (launcher.unread(options) if tuned else [])
    notes = read + scaled(chosen.base, gpus, changed, file, changes, always=tuned)
    if tuned and chosen.base is not None:
        changed = launcher.finished(changed, options, chosen.base, gpus)
    return reading_of(run, chosen, gpus, (base, changed), (notes, unknown, refused))


def lengths_apart(
    chosen: Chosen, sections: dict[str, Any], file: Mapping[str, Any], changes: Sequence[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    """What is said, and refused, of lengths that the run gives beside the data set's: under its earlier name, which becomes the data
    set's where that is not given too; of the model, of which Megatron-Bridge asserts that it is the same.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/training/config.py` (GPTDatasetConfig of 0.1 to 0.6, ConfigContainer.validate).
    """
    dataset = sections.get("dataset") or {}
    keys = {key.lstrip("+") for key, _ in changes}

    def given(section: str, key: str) -> bool:
        return f"{section}.{key}" in keys or key in (file.get(section) or {})

    notes: list[str] = []
    if given("dataset", "sequence_length") and not given("dataset", "seq_length"):
        sections["dataset"] = dataset = {**dataset, "seq_length": dataset["sequence_length"]}
        notes.append("dataset.sequence_length is read as dataset.seq_length, its name today")
    own, rows = (sections.get("model") or {}).get("seq_length"), dataset.get("seq_length")
    if rows is None or chosen.base is None or own == rows or not given("model", "seq_length"):
        return notes, []
    apart = f"model.seq_length={shown(own)} and dataset.seq_length={shown(rows)} differ: Megatron-Bridge refuses that; set both"
    return notes, [apart]


def run_of_recipe(words: Sequence[str], model: str = "") -> Run:
    """The run of a recipe's name with words behind it, as run_recipe.py takes them."""
    return Run(path=words[0], program="run_recipe.py", words=("--recipe", *words), model=model)


def reading_of(
    run: Run,
    chosen: Chosen,
    gpus: int | None,
    sections: tuple[dict[str, Any], dict[str, Any]],
    said: tuple[list[str], list[str], list[str]],
) -> Reading:
    """What the sections say: those of the base as defaults, and what the run changes as settings."""
    base, changed = sections
    notes, unknown, refused = said
    own, full = settings_of(base, gpus), settings_of(changed, gpus)
    rows, more, questions = vocabulary(_of_another_model(changed, base) if _replaced(run, chosen) else changed)
    config = without_loss("bridge", family_of(chosen.model))
    if chosen.base is not None:  # its rows have every other value of the provider
        config = {key: config[key] for key in EXPERTS}
    defaults = {**config, **{key: value for key, value in own.items() if key in full}, **rows}
    warnings, gpu = _about(chosen.base) if chosen.base else ([], "")
    warnings += launcher.pinned(run)
    if gpu:
        full["gpu"] = gpu
    architecture = chosen.base is not None and chosen.base.own_model and not _replaced(run, chosen)
    parts = known_settings()
    return Reading(
        model=chosen.model,
        bridged=True,
        config={key: value for key, value in defaults.items() if parts.get(key) is Model} if architecture else {},
        settings={key: value for key, value in full.items() if key not in own or own[key] != value},
        defaults=defaults,
        num_gpus=gpus,
        env={**(chosen.base.env if chosen.base else {}), **run.env},
        assumptions=(*_named(chosen), *notes, *more, *_packed(changed)),
        warnings=(*warnings, *passed_over(unknown, "Megatron-Bridge")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def _named(chosen: Chosen) -> list[str]:
    if chosen.base is None:
        return []
    return [
        f"the recipe {chosen.base.name} of Megatron-Bridge"
        + (f" for {chosen.base.gpus} GPUs" if chosen.base.gpus else "")
    ]


def _about(found: Recipe) -> tuple[list[str], str]:
    """Warnings about a recipe, and the GPU that it is for."""
    warnings = []
    if found.partial:
        warnings.append(f"{found.name} differs between versions of Megatron-Bridge: that of August 2026 is taken")
    if found.gpu and found.gpu not in GPUS:
        warnings.append(f"{found.gpu} is no GPU that is known here; {UNKNOWN_GPU} is taken, which --gpu changes")
    return warnings, GPUS.get(found.gpu, UNKNOWN_GPU) if found.gpu else ""


def _replaced(run: Run, chosen: Chosen) -> bool:
    """Whether the caller gives another model for a recipe's."""
    return bool(run.model) and chosen.base is not None and not is_recipe(run.model)


def _of_another_model(sections: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The sections where the caller's model takes the place of the recipe's: its config decides the vocabulary."""
    model, tokenizer = sections["model"], sections.get("tokenizer") or {}
    if tokenizer.get("use_tokenizer_vocab_size") or model.get("vocab_size") != base["model"].get("vocab_size"):
        return dict(sections)
    return {
        **sections,
        "model": {key: value for key, value in model.items() if key != "vocab_size"},
        "tokenizer": {},
    }


def _packed(sections: Mapping[str, Any]) -> list[str]:
    dataset = sections.get("dataset") or {}
    if dataset.get("enable_in_batch_packing"):
        return ["samples of a microbatch are laid end to end: the tokens are at most those of full samples"]
    return ["samples are packed to full rows"] if dataset.get("enable_offline_packing") else []


def _unnamed(run: Run) -> str:
    who = run.path if run.document is not None else run.program
    return (
        f"{shown(who)} lays an override file of Megatron-Bridge over a recipe that stands in Python: its model is not known; give the name "
        "of the recipe (such as llama3_8b_sft_config) or of the model"
    )


def override_of(run: Run, options: Mapping[str, str]) -> dict[str, Any]:
    """The sections that are laid over the recipe. Raises ConfigError for a file that is missing or holds none."""
    if run.document is not None:
        return {str(key): value for key, value in run.document.items()}
    path = options.get("config-file") or options.get("config") or ""
    if not path:
        return {}
    missing = f"{shown(path)}, which is laid over the recipe, is not beside {run.path}; put it there"
    return needed(run, path, "sections of Megatron-Bridge", missing)


def known_only(file: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a file that memory depends on; an empty one says nothing."""
    return {key: value for key, value in file.items() if key in SECTIONS and value is not None}


DIALECT = Dialect(
    "Megatron-Bridge",
    "dialects/megatron_bridge.md",
    knows,
    read,
    None,
    words="dora null NullTokenizer nemotron fp8 adam bf16",
)


LAUNCHERS = ("run_recipe", "train.sh")
TASKS = {"pretrain": "pretrain", "sft": "sft", "finetune": "sft", "lora": "peft", "dora": "peft", "peft": "peft"}
TUNED_SCRIPT = re.compile(r"finetune|sft|lora|peft")


class Chosen(NamedTuple):
    """What a run builds on: a recipe, or a model by name with the common base of a task."""

    base: Recipe | None
    model: str
    task: str


def changes_of(options: Mapping[str, str], words: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the options and words change, as keys and texts, the last one the strongest."""
    found = [(launcher.WORDS[key], text or "true") for key, text in options.items() if key in launcher.WORDS]
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
        name = launcher.recipe_of(options, task or "pretrain", run.script)
    elif options.get("model") and run.script in LAUNCHERS:
        if not task:
            raise ConfigError(f"--model {shown(options['model'])} needs --mode pretrain, sft or lora")
        name = of_model(options["model"], task)
    if name:
        found = recipe(name)
        return Chosen(found, found.hub or found.name, found.task)
    kind = task or ("sft" if TUNED_SCRIPT.search(run.script) else "pretrain")
    return Chosen(None, run.model, kind) if run.model else None


def gpus_of(run: Run, options: Mapping[str, str], found: Recipe | None) -> int | None:
    """GPUs of the launcher's own words, of what starts it, or those that the recipe is for."""
    if number := whole(options.get("num-gpus") or ""):
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
        name, nothing = full_name(key), says_nothing(value)
        read = key in READ or name in {*known_settings(), *UNSUPPORTED, *UNCOUNTED, *IRRELEVANT}
        decides = DECIDES.search(key + guess) and section in ("model", "ddp", "optimizer", "train")
        if decides and not read and not nothing:
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
    *,
    always: bool,
) -> list[str]:
    """Sets the global batch of a performance recipe, or with `always` of any, on another number of GPUs than its own, where the run leaves
    it, and says so.

    `said` is the file that is laid over the recipe, `words` what the words change.
    """
    if found is None or not (found.performance or always) or not gpus or not found.gpus or gpus == found.gpus:
        return []
    in_file = isinstance(said.get("train"), Mapping) and said["train"].get("global_batch_size") is not None
    own = (changed.get("train") or {}).get("global_batch_size")
    if in_file or not isinstance(own, int) or any(key.lstrip("+~") == "train.global_batch_size" for key, _ in words):
        return []
    batch = max(own * gpus // found.gpus, 1)
    changed["train"] = {**changed["train"], "global_batch_size": batch}
    return [f"global_batch_size {own} of {found.gpus} GPUs scaled to {batch} of {gpus}, as performance recipes do"]
