"""LoongForge: `loongforge/train.py` with Megatron-LM's arguments, and a model by its name or in a file that wins over them.

Sources: baidu-baige/LoongForge of 20 August 2026 (c6275661) `loongforge/train/{parser,validators,arguments}.py`,
`loongforge/utils/config_map.py`, `loongforge/tokenizer/tokenizer.py`, `configs/models/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...job.model import Model
from ...wording import dashed, shown, whole
from ..hf.load import load
from ..megatron.table import Argument, arguments
from ..megatron.vocabulary import known_size
from ..model_names import named
from ..questions import Question
from ..setting_names import full_name, known_settings
from .documents import named_by, needed
from .job import MODEL_OPTION
from .keys import passed_over, translated
from .launched import UNKNOWN
from .megatron_words import Found, for_megatron, number, on, positive, text, waiting, without
from .run import Dialect, Reading, Run
from .words import flags, scalar

PROGRAM = re.compile(r"(?:.*/)?loongforge/train\.py|loongforge\.train")
OWN = """
    additional_special_tokens chat_template config_file context_parallel_ulysses_degree custom_pipeline_layers
    custom_pipeline_recompute_layers dataloader_* enable_discard_sample hf_tokenizer_path model_name packing_buffer_size
    packing_sft_data padding_side sft_* tokenizer_type tokenizer_model train_on_prompt training_phase vocab_size_in_config_file
"""
"""Arguments that are read here or change no tensor, and beginnings of such; the rest is Megatron-LM's."""
OVER = re.compile(r"\+{0,2}model\.([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""A word that is laid over the model's file."""
RESOLVER = re.compile(r"\$\{moe_freq:\s*(['\"]?)([\[\]0-9+*(), ]+)\1\s*\}")
"""OmegaConf's resolver of the layers with experts: the list that stands in it."""
FILE_ONLY = "_target_ _convert_ _recursive_ model_type model_name"
"""Keys of a model's file that change no tensor."""
PHASES = ("pretrain", "sft")
OTHER_MODELS = re.compile(
    r".*[-_.]vl(?:[-_.].*)?|.*vl-.*|.*vl\d.*|.*omni.*|llava.*|minicpm-v.*|wan.*|qwen-image.*|pi0.*|groot.*|.*ocr.*|qwen3\.[56]-.*|"
    r"kimi-k2\.[56].*"
)
"""Names of the registry that have towers, or are no language models."""
RENAMED = (
    (r"llama2-(.+)", "Llama-2-{}-hf"), (r"llama3-(.+)", "Meta-Llama-3-{}"), (r"llama3\.1-(.+)", "Llama-3.1-{}"),
    (r"deepseek-v3\.2-sparse", "DeepSeek-V3.2"), (r"qwen3-480b-a35b", "Qwen3-Coder-480B-A35B-Instruct"),
    (r"minimax2\.[157](?:-230b)?", "MiniMax-M2.5"), (r"glm(5(?:\.2)?)", "GLM-{}"),
)  # fmt: skip
"""Names of the registry that the catalogue spells otherwise."""
UNTIED = ("qwen2.5-3b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
"""Models whose output layer has its own table here, unlike on Hugging Face."""
PREDICTING = re.compile(r"deepseek-v3|deepseek-v3\.2-sparse|deepseek-v4-.*|mimo|glm5(\.2)?")
"""Models that carry a layer of multi-token prediction."""
OF_TOKENIZER = re.compile(r"llama.*|internlm.*")
"""Models whose file names no vocabulary: the tokenizer's length counts."""
OF_WORDS = ("moe_router_topk", "mtp_num_layers", "make_vocab_size_divisible_by")
"""What stands in no file of the registry: the words say it, or Megatron-LM's default holds."""


def knows(run: Run) -> bool:
    """LoongForge's program, or a train.py with its way to name a model and a phase."""
    if PROGRAM.fullmatch(run.program):
        return True
    found, _ = flags(run.words)
    return run.script == "train" and "training_phase" in found and not {"model_name", "config_file"}.isdisjoint(found)


class Described(NamedTuple):
    """A model of the registry or of a file: settings that win over the words, keys that are unknown, what is refused, what is said, and
    its name."""

    settings: dict[str, Any]
    unknown: list[str]
    refused: list[str]
    notes: list[str]
    warnings: list[str]
    name: str = ""


NOTHING = Described({}, [], [], [], [])


def read(run: Run) -> Reading:
    """The words of Megatron-LM under what the model's file says. Raises UnsupportedError for models that are no language models."""
    found, _ = flags([word for word in run.words if not OVER.fullmatch(word)])
    found = {key: list(words) for key, words in found.items()}
    questions: list[Question] = []
    over = {match[1]: scalar(match[2]) for match in map(OVER.fullmatch, run.words) if match}
    model = _model(run, found, over, questions)
    settings = {**model.settings, **_rows(found, model, questions)}
    notes, warnings, refused = [*model.notes], [*model.warnings], [*model.refused]
    _phase(found, settings, notes, warnings, refused)
    refused += _pipeline(found, settings) + _recompute(found, settings)
    settings |= _context(found, questions)
    args, unknown = for_megatron(without(found, OWN))
    args += _tokenizer(found)
    questions += waiting(found, args)
    return Reading(
        model=model.name,
        args=args,
        settings=settings,
        num_gpus=run.num_gpus,
        env=run.env,
        assumptions=tuple(notes),
        warnings=(*warnings, *passed_over([*model.unknown, *unknown], "LoongForge")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def _model(run: Run, found: dict[str, list[str]], over: Mapping[str, Any], questions: list[Question]) -> Described:
    """The model of the run, whose keys are laid over `found`; `over` are words that change its file."""
    path, name = text(found, "config_file"), run.model or text(found, "model_name")
    if path and not run.model:
        if asked := _without_value("--config-file", path):
            questions.append(asked)
            return NOTHING
        file = needed(run, path, "keys of a model", named_by(run, path))
        return _of_file(found, {**file, **over}, path.rsplit("/", 1)[-1])
    if not name and "num_layers" in found:
        return _of_file(found, over, "model.KEY=VALUE") if over else NOTHING
    if not name:
        questions.append(Question("neither --model-name nor --config-file says which model is trained", MODEL_OPTION))
        return NOTHING
    if asked := _without_value("--model-name", name):
        questions.append(asked)
        return NOTHING
    return _of_registry(run, found, name, over, questions)


def _without_value(option: str, text: str) -> Question | None:
    """The question for the variable in the word of an option, where it has one without a value."""
    missing = UNKNOWN.search(text)
    if missing is None:
        return None
    return Question(f"{option} takes its value from ${missing[1]}, which has none", f"--set {missing[1]}=VALUE")


def _of_file(found: dict[str, list[str]], file: Mapping[str, Any], name: str) -> Described:
    """The keys of a model's file as words, in place of those of the command; what no argument says as settings."""
    if nested := next((key for key, value in file.items() if isinstance(value, Mapping)), None):
        raise UnsupportedError(
            f"{name} joins several models ({shown(nested)[1:-1]}: ...), which is not modelled; only files of one language model are"
        )
    warnings, rest = [], {}
    for key, given in file.items():
        value = _resolved(given)
        argument = arguments()[0].get(key) or arguments()[1].get(key)
        if key == "vocab_size_in_config_file":
            found[key] = [str(value)]
        elif argument is None:
            rest[key] = value
        elif (words := _words(argument.dest, value)) is None:
            rest[argument.dest] = value
        else:
            warnings += _replaced(found, argument.dest, words, name)
    settings, unknown, refused = translated(rest, FILE_ONLY, f"{name}: ")
    return Described(settings, unknown, refused, [f"the keys of {name} win over the words of the command"], warnings)


def _resolved(value: Any) -> Any:
    """The value of a key: the list inside the resolver of layers with experts."""
    match = RESOLVER.fullmatch(value.strip()) if isinstance(value, str) else None
    return f"({match[2]})" if match else value


def _words(dest: str, value: Any) -> dict[str, list[str]] | None:
    """The arguments that set a destination to a value; None where there are none."""
    own: list[Argument] = [one for one in arguments()[0].values() if one.dest == dest]
    if value is None:
        return {}
    if not isinstance(value, bool):
        store = next((one for one in own if one.kind == "Store"), None)
        listed = isinstance(value, list) and store is not None and bool(store.nargs)
        return None if store is None else {store.flag: [str(one) for one in value] if listed else [str(value)]}
    setting = next((one for one in own if one.kind == ("StoreTrue" if value else "StoreFalse")), None)
    if setting is None:
        return {} if own[0].default is value or own[0].default is None else None
    return {setting.flag: []}


def _replaced(found: dict[str, list[str]], dest: str, words: Mapping[str, list[str]], name: str) -> list[str]:
    """Puts the words of a destination in the place of those that are there, and says which have no effect."""
    said = []
    for flag in [one for one in found if (known := arguments()[0].get(one)) and known.dest == dest]:
        before = found.pop(flag)
        if not _alike(before, words.get(flag)):
            now = " ".join(words.get(flag, ["otherwise"]))
            said.append(f"{' '.join((dashed(flag), *before))} has no effect: {name} says {now or 'otherwise'}")
    found.update({flag: list(values) for flag, values in words.items()})
    return said


def _alike(words: list[str], others: list[str] | None) -> bool:
    """Whether words say the same; 1000000 and 1000000.0 do."""
    return others is not None and [_number(word) for word in words] == [_number(word) for word in others]


def _number(word: str) -> Any:
    value = scalar(word)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _of_registry(
    run: Run, found: dict[str, list[str]], name: str, over: Mapping[str, Any], questions: list[Question]
) -> Described:
    """The catalogue's model of a name of the registry, as the registry's file has it."""
    lower = name.lower()
    if OTHER_MODELS.fullmatch(lower) and not run.model:
        raise UnsupportedError(f"--model-name {name} of LoongForge is no language model alone, which is not modelled")
    entry = run.model if run.model else _entry(lower)
    if entry is None:
        questions.append(Question(f"the model {shown(name)} of LoongForge's registry is not known here", MODEL_OPTION))
        return NOTHING
    loaded = (run.named or load)(entry)
    settings = {
        key: value
        for key, value in loaded.config.items()
        if key not in OF_WORDS
        and (known_settings().get(key) is Model or key not in found)
        and key != "max_position_embeddings"
    }
    settings |= {"share_embeddings_and_output_weights": False} if lower in UNTIED else {}
    settings |= {"mtp_num_layers": 1} if PREDICTING.fullmatch(lower) else {}
    if OF_TOKENIZER.fullmatch(lower):
        settings.pop("vocab_size", None)
    changed, unknown, refused = translated({key: _resolved(value) for key, value in over.items()}, FILE_ONLY, "model.")
    settings |= {full_name(key): value for key, value in changed.items()}
    notes = [
        f"the model {name} of LoongForge's registry is the catalogue's {entry}, and wins over the words of the command"
    ]
    notes += [f"{name} has an output layer of its own here"] if lower in UNTIED else []
    warnings = [
        f"{dashed(key)} {' '.join(words)} has no effect: the registry's {name} says {settings[full_name(key)]}"
        for key, words in found.items()
        if key in arguments()[0] and words and not _alike(words, [str(settings.get(full_name(key), words[0]))])
    ]
    return Described(settings, unknown, refused, notes, [*loaded.warnings, *warnings], entry)


def _entry(name: str) -> str | None:
    """The catalogue's model of a name of the registry."""
    for pattern, other in RENAMED:
        if match := re.fullmatch(pattern, name):
            name = other.format(*match.groups())
    found = named(name)
    return found.entry if found else None


def _rows(found: Found, model: Described, questions: list[Question]) -> dict[str, Any]:
    """The vocabulary: the config file's, before the tokenizer's; both are padded."""
    rows = positive(found, "vocab_size_in_config_file", questions)
    if rows:
        return {"vocab_size": rows}
    if model.name and "vocab_size" not in model.settings:
        size = known_size(text(found, "hf_tokenizer_path")) or known_size(model.name)
        return {"vocab_size": size} if size else {}
    return {}


def _tokenizer(found: Found) -> tuple[str, ...]:
    """The tokenizer in Megatron-LM's words."""
    path = text(found, "hf_tokenizer_path") or text(found, "tokenizer_model")
    kind = text(found, "tokenizer_type")
    if kind in ("", "HFTokenizer"):
        kind = "HuggingFaceTokenizer"
    return ("--tokenizer-type", kind, *(("--tokenizer-model", path) if path else ()))


def _phase(
    found: dict[str, list[str]], settings: dict[str, Any], notes: list[str], warnings: list[str], refused: list[str]
) -> None:
    """The rows of a phase: supervised samples have their own lengths, packed ones fill rows of a micro batch of 1."""
    phase = text(found, "training_phase") or "pretrain"
    if phase not in PHASES:
        refused.append(f"--training-phase {shown(phase)} of LoongForge is not modelled; {' and '.join(PHASES)} are")
    if phase != "sft":
        return
    length = text(found, "seq_length")
    if on(found, "packing_sft_data"):
        notes.append(f"samples are packed to rows of at most {length} tokens (--packing-sft-data)")
        if text(found, "micro_batch_size") not in ("", "1"):
            warnings.append(
                f"--micro-batch-size {text(found, 'micro_batch_size')} is 1 with --packing-sft-data, which has one row a microbatch"
            )
        settings["micro_batch_size"] = 1
    else:
        notes.append(f"rows have the lengths of their samples, at most {length} tokens (--training-phase sft)")


def _counts(found: Found, key: str) -> list[int]:
    """The counts behind an argument, with commas between them. Raises ConfigError for what is none."""
    counts = [whole(part) for part in re.split(r"[,\s]+", text(found, key)) if part]
    if not counts or None in counts:
        raise ConfigError(f"{dashed(key)} must be counts with commas between them, not {shown(text(found, key))}")
    return [count for count in counts if count is not None]


def _pipeline(found: Found, settings: dict[str, Any]) -> list[str]:
    """Layers of the stages that --custom-pipeline-layers gives, in Megatron-Core's notation; and what is refused."""
    if "custom_pipeline_layers" not in found:
        return []
    if any(key in found for key in ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")):
        return ["--custom-pipeline-layers with virtual stages is not modelled"]
    parts = [f"t*{count}" if count else "" for count in _counts(found, "custom_pipeline_layers")]
    mtp = settings.get("mtp_num_layers") or whole(text(found, "mtp_num_layers")) or 0
    parts[0], parts[-1] = "E" + parts[0], f"{parts[-1]}{'m' * min(int(mtp), 8)}L"
    if len(parts) > 1:
        settings["pipeline_model_parallel_layout"] = "|".join(parts)
    return []


def _recompute(found: Found, settings: dict[str, Any]) -> list[str]:
    """Recomputed layers of the stages, where all have as many; and what is refused."""
    if "custom_pipeline_recompute_layers" not in found:
        return []
    counts = _counts(found, "custom_pipeline_recompute_layers")
    if len(set(counts)) > 1:
        given = text(found, "custom_pipeline_recompute_layers")
        return [
            f"--custom-pipeline-recompute-layers {given} gives each stage another recomputation, which is not modelled"
        ]
    settings |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": counts[0]}
    return []


def _context(found: Found, questions: list[Question]) -> dict[str, Any]:
    """How context parallelism exchanges: heads over a part of the ranks (Ulysses), rings over the rest."""
    cp, part = (number(found, f"context_parallel_{one}", questions, 1) or 1 for one in ("size", "ulysses_degree"))
    if cp == 1 or part <= 1:
        return {}
    if part == cp:
        return {"cp_comm_type": ("a2a",)}
    return {"cp_comm_type": ("a2a+p2p",), "hierarchical_context_parallel_sizes": (part, cp // part)}


DIALECT = Dialect(
    "LoongForge",
    "dialects/loongforge.md",
    knows,
    read,
    lambda run: "",
    takes_flags=True,
    words="pretrain sft 1 HFTokenizer",
)
