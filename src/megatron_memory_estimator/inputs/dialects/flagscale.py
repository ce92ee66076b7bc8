"""FlagScale: an experiment file with the training in a second one, `python run.py --config-path D --config-name F`,
`flagscale train MODEL`, or the program that these start with Megatron-LM's words.

Sources: FlagOpen/FlagScale `flagscale/runner/utils.py`, `flagscale/runner/runner_train.py`, `flagscale/train/`, `examples/*/conf/`.

FlagScale's files: an experiment, the training in a second file, and `${a.b}` of OmegaConf.

Source: FlagOpen/FlagScale `flagscale/runner/utils.py`, `run.py`, `examples/*/conf/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown, whole
from ..questions import Question
from .documents import named_by, needed
from .hydra import Interpolations, merged
from .hydra import overridden as override
from .keys import passed_over
from .megatron_words import Found, for_megatron, number, positive, real, text, without, words_of
from .run import Dialect, Reading, Run
from .words import flags

FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
MOST_FILES = 20
"""Files that one experiment may be made of."""
DEEPEST = 30
"""Mappings inside mappings, and references to references."""
PACKAGE = re.compile(r"^#\s*@package\s+(_global_|_group_)\s*$", re.MULTILINE)
Tree = dict[str, Any]


def read_file(run: Run, path: str) -> Tree:
    """The mapping in a file. Raises ConfigError with the path where it is not there."""
    return needed(run, path, "a mapping", named_by(run, path), empty=True, follows=FOLLOWS)


def composed(run: Run, document: Mapping[str, Any], folder: str) -> Tree:
    """The experiment with the files of its `defaults`, all of which must be there but hydra's own."""
    left = [MOST_FILES]

    def one(path: str, document: Mapping[str, Any], group: str) -> Tree:
        left[0] -= 1
        if left[0] < 0:
            raise ConfigError(f"{run.path}: more than {MOST_FILES} files are named under defaults")
        own = {str(key): value for key, value in document.items() if key != "defaults"}
        found: Tree = {}
        rest = own
        for entry in _entries(document, path):
            if entry == "_self_":
                found, rest = merged(found, rest), {}
                continue
            for child, name in _named(entry, group):
                inner = f"{folder}{child}/{name}.yaml" if child else f"{folder}{name}.yaml"
                if child.partition("/")[0] == "hydra" and run.text_of(inner) is None:
                    continue
                tree = one(inner, read_file(run, inner), child)
                package = PACKAGE.search(run.text_of(inner) or "")
                everywhere = not child or child == group or (package is not None and package.group(1) == "_global_")
                found = merged(found, tree if everywhere else {child: tree})
        return merged(found, rest)

    return one(run.path, document, "")


def _entries(document: Mapping[str, Any], path: str) -> list[Any]:
    entries = document.get("defaults") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{shown(path)}: defaults must be a list of files")
    return entries


def _named(entry: Any, group: str) -> list[tuple[str, str]]:
    """(group, file) of an entry of `defaults`; none where it is null."""
    if isinstance(entry, str):
        return [(group, entry.removesuffix(".yaml"))]
    if not isinstance(entry, Mapping):
        raise ConfigError(f"defaults: {shown(entry)} names no file")
    found = []
    for key, value in entry.items():
        names = value if isinstance(value, list) else [value]
        child = str(key).removeprefix("override ").lstrip("/")
        found += [(child, str(name).removesuffix(".yaml")) for name in names if name is not None]
    return found


def overridden(tree: Tree, words: tuple[str, ...]) -> Tree:
    """The tree with hydra's words: `a.b=value`, `+a.b=value`, `~a.b`; others are passed over."""
    pairs = []
    for word in words:
        path, equals, value = word.partition("=")
        keys = path.lstrip("+~").split(".")
        if not word.startswith("-") and all(keys) and len(keys) <= DEEPEST and (equals or word.startswith("~")):
            pairs.append((path, value))
    return override(tree, pairs)


def resolved(tree: Tree, env: Mapping[str, str]) -> Tree:
    """The tree with `${a.b}` and `${oc.env:NAME,default}` replaced; a resolver that is not known stays as it is written."""
    return Interpolations(tree, env).everything()


SECTIONS = ("system", "model", "data")
TRAINED = re.compile(r"gpt|mamba|aquila|llama|qwen|deepseek|mixtral|sft|pretrain")
OTHERS = re.compile(r"vl(m|_|$)|llava|vision|emu|robot|pi0|rdt|bert|t5|rwkv|diffusion|omni|audio|_rl(_|$)|hetero")
"""Entry points that train decoders, and those that train something else."""
OWN = """
    apply_sft_dataset_separated_loss_mask_if_existed details_dir enable_hetero extra_valid_* finetune_dataset_type hetero
    hidden_dim_multiplier hostfile log_dir multiple_of no_shared_fs pids_dir save_when_num_microbatches_unmatched scripts_dir
    skip_* tokenizer_path special_tokens_file wandb_* norm_init_weight rotary_position_embeddings_in_fp32 optimizer
    lr_scheduler
"""
"""Keys that are read here or change no tensor, and beginnings of such."""
PER_STAGE = tuple(f"recompute_{one}_per_stage_micro_batch" for one in ("method", "num_layers", "granularity"))
DECIDE = {
    **dict.fromkeys(PER_STAGE, "gives each stage another recomputation"),
    "peft_type": "trains adapters of FlagScale's own",
    "ulysses_sp_parallel_size": "splits sequences in another way",
    "use_dualpipev": "is another pipeline schedule",
    "moe_fb_overlap": "is another pipeline schedule",
}
"""Keys of FlagScale that decide memory, and what they do."""


def knows(run: Run) -> bool:
    """An experiment with a task, or a program of FlagScale."""
    if run.document is not None:
        experiment = run.document.get("experiment")
        train = run.document.get("train")
        tells = isinstance(experiment, Mapping) and ("task" in experiment or "runner" in experiment)
        return tells or any(_is_training(one) for one in (train, run.document))
    if run.program in ("flagscale", "flagscale train") or "flagscale/train/" in run.program:
        return True
    return run.script == "run" and any(word.startswith(("--config-name", "--config-path")) for word in run.words)


def _is_training(tree: Any) -> bool:
    """Whether a tree is a training of its own, as the second file holds it."""
    return isinstance(tree, Mapping) and all(isinstance(tree.get(key), Mapping) for key in ("system", "model"))


NO_EXPERIMENT = "the experiment that starts this file is not beside it: its entry point is not known, and taken to be pretrain_gpt.py"


def read(run: Run) -> Reading:
    """The words of Megatron-LM that FlagScale passes. Raises ConfigError for a second file that is missing, UnsupportedError for what
    does not train under Megatron."""
    if run.document is None and "flagscale/train/" in run.program:
        _refuse_entry(run.program)
        return _reading(run, flags(run.words)[0], (run.num_gpus, NODE), {}, [], [])
    tree = resolved(_tree(run), {**run.env, **run.variables})
    experiment = _mapping(tree, "experiment")
    _refuse_task(tree, experiment)
    train = tree if _is_training(tree) else _mapping(tree, "train")
    hetero = sorted({key for key, _ in _flat(train) if key.startswith("hetero_")})
    switch = _mapping(_mapping(train, "system"), "hetero").get("enable_hetero", bool(hetero))
    if switch or (hetero and switch is not False):
        raise UnsupportedError(
            f"hetero of FlagScale ({', '.join(hetero)}) lays out groups of GPUs in different ways, which is not modelled"
        )
    found: dict[str, list[str]] = {}
    for name in SECTIONS:
        for key, value in _flat(_mapping(train, name)):
            if not key.startswith("hetero_"):
                found.pop(key, None)
                found |= words_of({key: value})
    questions: list[Question] = []
    warnings = [] if experiment else [NO_EXPERIMENT]
    gpus = _gpus(run, experiment, warnings)
    envs = {str(key): str(value) for key, value in _mapping(experiment, "envs").items() if value is not None}
    return _reading(run, found, gpus, envs, questions, warnings)


def _reading(
    run: Run,
    found: Found,
    gpus: tuple[int | None, int],
    envs: Mapping[str, str],
    questions: list[Question],
    warnings: list[str],
) -> Reading:
    refused = [
        f"{key}={shown(text(found, key) or 'true')} {what}, which is not modelled"
        for key, what in DECIDE.items()
        if key in found and text(found, key) not in ("1", "none", "None")
    ]
    args, unknown = for_megatron(without(found, OWN + " ".join(DECIDE)))
    args += _width(found, questions)
    settings: dict[str, Any] = {}
    kind = text(found, "tokenizer_type")
    if kind.endswith("FS") and "padded_vocab_size" not in found:
        rows = positive(found, "vocab_size", questions)
        if rows is None:
            questions.append(Question(f"the size of {kind}, a tokenizer of FlagScale, is not known", "--vocab-size N"))
        else:
            settings["vocab_size"] = rows
            warnings = [
                *warnings,
                f"{kind} is a tokenizer of FlagScale: vocab_size {rows} of the file is taken for its length",
            ]
    return Reading(
        args=args,
        settings=settings,
        num_gpus=gpus[0],
        node_gpus=gpus[1],
        env={**envs, **run.env},
        warnings=(*warnings, *passed_over(unknown, "FlagScale")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def _tree(run: Run) -> Tree:
    """The experiment with its second file and hydra's words."""
    if run.document is not None:
        return composed(run, run.document, "")
    found, before = flags(tuple(word for word in run.words if not re.match(r"~|\+?[\w.]+=", word)))
    model = [word for word in before if word != "train"]
    path = text(found, "config") or (model[1] if len(model) > 1 else "")
    if run.script == "run":
        path = "/".join(part for part in (text(found, "config_path"), text(found, "config_name") or "config") if part)
        path = path.removesuffix(".yaml") + ".yaml"
    elif not path and model:
        path = f"examples/{model[0]}/conf/train.yaml"
    if not path:
        raise ConfigError("flagscale train needs the name of a model or a file")
    path = path.removeprefix("./")
    document = read_file(run, path)
    folder = path.rpartition("/")[0]
    return overridden(composed(run, document, f"{folder}/" if folder else ""), run.words)


def _mapping(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a key, empty where it is not there. Raises ConfigError for anything else."""
    value = tree.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{key} must hold keys of FlagScale, not {shown(value)}")
    return value or {}


def _refuse_task(tree: Mapping[str, Any], experiment: Mapping[str, Any]) -> None:
    task = _mapping(experiment, "task")
    kind, backend = str(task.get("type") or "train"), str(task.get("backend") or "megatron")
    if kind != "train":
        raise UnsupportedError(f"the task of this experiment is {shown(kind)}; only training is modelled")
    if backend != "megatron":
        raise UnsupportedError(f"the backend of this experiment is {shown(backend)}; only megatron is modelled")
    action = str(tree.get("action") or "")
    searches = any(str(key).startswith("auto_tune") for key in (*tree, *experiment))
    if action == "auto_tune" or (searches and action != "run"):
        raise UnsupportedError("auto_tune of FlagScale searches layouts; give the file of one run, or action=run")
    _refuse_entry(str(task.get("entrypoint") or "train_gpt.py"))


def _refuse_entry(path: str) -> None:
    """Raises UnsupportedError for entry points that train no decoder."""
    name = path.rsplit("/", 1)[-1].removesuffix(".py").lower()
    if OTHERS.search(name) or not TRAINED.search(name):
        raise UnsupportedError(
            f"{shown(path)} of FlagScale trains another kind of model than a decoder, which is not modelled"
        )


def _flat(tree: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Keys and values at any depth, as FlagScale makes arguments of them."""
    if depth > DEEPEST:
        raise ConfigError(f"mappings stand more than {DEEPEST} deep inside each other")
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, depth + 1)
        else:
            yield str(key).replace("-", "_"), value


def _width(found: Found, questions: list[Question]) -> tuple[str, ...]:
    """--ffn-hidden-size where only `multiple_of` says it: two thirds of four times the width, times a factor, rounded up."""
    multiple, hidden = positive(found, "multiple_of", questions), number(found, "hidden_size", questions)
    if not multiple or not hidden or "ffn_hidden_size" in found or "swiglu" not in found:
        return ()
    wanted = int(int(4 * hidden * 2 / 3) * real(found, "hidden_dim_multiplier", 1.0))
    return ("--ffn-hidden-size", str(multiple * -(-wanted // multiple)))


NODE = 8
"""GPUs of a node where nothing says how many the cluster's have."""


def _gpus(run: Run, experiment: Mapping[str, Any], warnings: list[str]) -> tuple[int | None, int]:
    """Processes of the runner: those of a node times the nodes, None where the cluster's own are taken; and those of a node."""
    runner, envs = _mapping(experiment, "runner"), _mapping(experiment, "envs")
    visible = [one for one in str(envs.get("CUDA_VISIBLE_DEVICES") or "").split(",") if one.strip()]
    each = _count(runner, "nproc_per_node") or len(visible)
    nodes, listed = _count(runner, "nnodes"), _listed(run, runner.get("hostfile"))
    if nodes and listed:
        nodes = min(nodes, listed)
    nodes = nodes or listed or (None if runner.get("hostfile") else 1)
    if not each or not nodes:
        return None, each or NODE
    if nodes > 1 and not runner.get("hostfile"):
        warnings.append(
            f"without a hostfile FlagScale starts one node of {each} GPUs; nnodes={nodes} of the file is taken"
        )
    return each * nodes, each


def _count(runner: Mapping[str, Any], key: str) -> int | None:
    return whole(str(runner.get(key))) or None


def _listed(run: Run, path: Any) -> int | None:
    """Nodes that a hostfile lists, where it is beside the run."""
    content = run.text_of(str(path)) if path else None
    lines = [line.strip() for line in (content or "").splitlines()]
    return len([line for line in lines if line and not line.startswith("#")]) or None


DIALECT = Dialect(
    "FlagScale", "dialects/flagscale.md", knows, read, None, follows=FOLLOWS, words="train megatron run auto_tune"
)
