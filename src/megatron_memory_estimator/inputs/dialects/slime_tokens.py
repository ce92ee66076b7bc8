"""Tokens of slime's microbatches, and samples of its steps.

Source: THUDM/slime `slime/utils/arguments.py`, `slime/backends/megatron_utils/data.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..questions import Question
from .megatron_words import Found, number, on, positive

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
