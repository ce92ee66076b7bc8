"""ChatLearn: `python chatlearn/entrypoint.py grpo --config-file FILE.yaml key=value ...`, or that YAML alone.

Sources: alibaba/ChatLearn, October 2025 (b7af31a9) `template/grpo_megatron.yaml`, `chatlearn/configs/megatron_config.py`,
`chatlearn/utils/megatron_utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedError
from ...wording import counted, shown
from ..door_defaults import decided
from ..model_names import family_of
from ..questions import GPUS_OPTION, Question
from .documents import named_by, needed
from .hydra import Tree, overridden, parted
from .keys import Section, by_habit, decisive, of_sections, passed_over
from .rollout import TOLD_APART, engine, moved, split_otherwise
from .run import Dialect, Reading, Run

PROGRAM = re.compile(r"(?:.*/)?chatlearn/entrypoint\.py")
RUNTIME, TRAINER, REFERENCE, POLICY = "runtime_args", "models.policy_trainer", "models.ref_policy", "models.policy"
BACKEND = f"{RUNTIME}.train_backend"
PACKED = f"{TRAINER}.max_token_in_packing"
LENGTHS = ("max_prompt_tokens_length", "max_response_tokens_length")
TRAINER_KEYS = f"""
    free_gpu_memory optimizer bf16 fp16 tokenizer_* trainable gpu_per_process num_gpu train_* load save* packing
    max_token_in_packing model_provider_module seed seq_length sequence_parallel generation_batch_size {" ".join(LENGTHS)}
"""
"""Keys of the trainer that are read one by one, or have no effect."""
OPTIMIZER = "lr* min_lr weight_decay* adam_* clip_grad"
FAMILY = "qwen3_next"
"""The family that ChatLearn builds as a hybrid model, of twice as many parts as layers."""


def knows(run: Run) -> bool:
    """The framework's program, or a file with its trainer."""
    if run.document is not None:
        models = run.document.get("models")
        return RUNTIME in run.document and isinstance(models, Mapping) and "policy_trainer" in models
    return PROGRAM.fullmatch(run.program) is not None


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for another engine than Megatron, ConfigError for a file that is missing."""
    tree = tree_of(run)
    _check_backend(tree, missing_is_known=False)
    notes: list[str] = []
    warnings = [
        "how ChatLearn makes log-probabilities of the logits is not known: counted as Megatron-LM's cross entropy"
    ]
    questions: list[Question] = []
    sections = [Section(f"{TRAINER}.optimizer", OPTIMIZER), Section(TRAINER, TRAINER_KEYS)]
    settings, unknown, refused = of_sections(tree, sections)
    settings |= _precision(tree) | {"sequence_parallel": tree.on(f"{TRAINER}.sequence_parallel", True)}
    settings |= _batch(tree, notes, warnings, questions)
    around, said = phases(tree)
    model = str(tree.at(f"{POLICY}.load") or "")
    if family_of(run.model or model) == FAMILY:
        warnings.append(
            "ChatLearn builds Qwen3-Next as a hybrid of twice as many parts: it is counted as decoder layers"
        )
    gpus = tree.count(f"{TRAINER}.num_gpu")
    if gpus is None:
        questions.append(Question(f"{TRAINER}.num_gpu is not given", GPUS_OPTION))
    chosen, experts = by_habit({**settings, **around})
    return Reading(
        model=model,
        settings=chosen,
        defaults={**decided("chatlearn"), **experts},
        num_gpus=gpus,
        env=decisive(run.env),
        assumptions=("the vocabulary of the model's config, whose padding by ChatLearn is not known", *notes),
        warnings=(*warnings, *said, *passed_over([*tree.misspelled(), *unknown], "ChatLearn")),
        questions=tuple(questions),
        refused=(*refused, *_others_that_train(tree)),
    )


def tree_of(run: Run) -> Tree:
    """The settings of a run: the document, or the file that the program's words name, with words over it.

    Raises ConfigError where the file is missing, UnsupportedError where words alone say another engine than Megatron.
    """
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree(run.document, env)
    options, words = parted(run.words)
    _check_backend(Tree(overridden({}, words), env), missing_is_known=True)
    path = options.get("config-file", "")
    base = needed(run, path, "keys of ChatLearn", named_by(run, path)) if path else {}
    return Tree(overridden(base, words), env)


def _check_backend(tree: Tree, *, missing_is_known: bool) -> None:
    """Nothing for Megatron. Raises UnsupportedError that names another engine."""
    backend = tree.at(BACKEND)
    if backend == "megatron" or (backend is None and missing_is_known):
        return
    said = "is not given" if backend is None else f"is {shown(str(backend))}"
    raise UnsupportedError(
        f"{BACKEND} {said}: only megatron is modelled for ChatLearn", "a run of ChatLearn does not train with Megatron"
    )


def _precision(tree: Tree) -> dict[str, Any]:
    half = "fp16" if tree.on(f"{TRAINER}.fp16") else "bf16" if tree.on(f"{TRAINER}.bf16", True) else "fp32"
    return {"params_dtype": half}


def _batch(tree: Tree, notes: list[str], warnings: list[str], questions: list[Question]) -> dict[str, Any]:
    """Tokens of a row, rows of a microbatch and samples of a step."""
    samples = tree.count(f"{RUNTIME}.train_global_batch_size")
    found: dict[str, Any] = {} if samples is None else {"global_batch_size": samples}
    parts = [tree.count(f"{POLICY}.{name}", tree.count(f"{TRAINER}.{name}")) for name in LENGTHS]
    longest = None if None in parts else sum(part or 0 for part in parts)
    if tree.on(f"{TRAINER}.packing"):
        return found | _packed(tree, longest, notes, warnings, questions)
    micro = tree.count(f"{TRAINER}.train_micro_batch_size", tree.count(f"{RUNTIME}.train_micro_batch_size"))
    if longest is None:
        questions.append(Question(f"{POLICY}.{LENGTHS[0]} and {LENGTHS[1]} are not both given", "--seq-length N"))
    if micro is None:
        questions.append(Question(f"{RUNTIME}.train_micro_batch_size is not given", "--micro-batch-size N"))
    if longest is None or micro is None:
        return found
    notes.append(f"samples are padded to {longest} tokens, {counted(micro, 'sample')} in a microbatch")
    return found | {"seq_length": longest, "micro_batch_size": micro}


def _packed(
    tree: Tree, longest: int | None, notes: list[str], warnings: list[str], questions: list[Question]
) -> dict[str, Any]:
    """One row of as many tokens as fit, or the longest sample where that is longer."""
    limit = tree.count(PACKED, tree.count(f"{TRAINER}.seq_length"))
    if limit is None:
        questions.append(Question(f"{PACKED} is not given", "--seq-length N"))
        return {"micro_batch_size": 1}
    if longest is not None and limit < longest:
        warnings.append(f"a sample may have {longest} tokens, above {PACKED}={limit}: it is counted alone")
    tokens = max(limit, longest or 0)
    notes.append(f"at most {tokens} tokens in a microbatch: samples packed to {PACKED}")
    return {"seq_length": tokens, "micro_batch_size": 1}


def _others_that_train(tree: Tree) -> list[str]:
    """Models that train beside the policy."""
    names = [name for name in tree.section("models") if f"models.{name}" != TRAINER]
    switches = [f"models.{name}.trainable" for name in names]
    return [f"{path}=true: a second model that trains is not modelled" for path in switches if tree.on(path)]


def phases(tree: Tree) -> tuple[dict[str, Any], list[str]]:
    """Settings of the phases of reinforcement learning, and warnings."""
    listed = tree.at(f"{RUNTIME}.colocation")
    together = listed if isinstance(listed, list) else []
    beside = {name for name in ("policy", "ref_policy") if name in together and "policy_trainer" in together}
    found, warnings = engine(
        str(tree.at(f"{RUNTIME}.rollout_backend") or "vllm"),
        f"{RUNTIME}.rollout_backend",
        colocated="policy" in beside,
        sleeps=True,
        rollout_tensor_parallel_size=tree.count(f"{POLICY}.tensor_model_parallel_size", 1),
        rollout_memory_share=tree.number(f"{POLICY}.gpu_memory_utilization") or None,
    )
    free = f"{TRAINER}.free_gpu_memory"
    found["rollout_offload"] = moved(
        tree.on(f"{free}.offload_weights"),
        tree.on(f"{free}.free_grad_buffers"),
        tree.on(f"{free}.offload_optimizer_states"),
    )
    if tree.section(REFERENCE) and "ref_policy" in beside:
        away = tree.on(f"{REFERENCE}.free_gpu_memory.offload_weights")
        found["reference_model"] = "offloaded" if away else "device"
        warnings += split_otherwise(tree, REFERENCE, TRAINER)
    return found, warnings


DIALECT = Dialect("ChatLearn", "dialects/chatlearn.md", knows, read, lambda run: TRAINER, words=TOLD_APART)
