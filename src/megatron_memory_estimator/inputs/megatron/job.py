"""From Megatron-LM arguments to a job, with Megatron's own defaults and derivations.

Sources: Megatron-LM `megatron/training/arguments.py` (parser and validate_args), `megatron/training/argument_utils.py`;
`arguments.csv` beside this file lists every argument of August 2026 with its default and class.

GPUs of a run, as its file says them, and whether its layout and its batch go with them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...job.layout import fewest_gpus
from ...job.training_job import TrainingJob
from ...legality.asserted_environment import contradictions
from ...rules import refusal
from ...wording import dashed, plain
from ..effects import OWNERS
from ..environment import VARIABLES
from ..everyday import in_megatrons_words
from ..loaded_model import LoadedModel
from ..questions import Question, of_gpus, settle
from ..resolve import job_from_parts
from ..setting_names import full_name
from ..shell.gpus import kind_note
from .classes import refuse_unmodelled
from .derive import derive
from .files import Caller, Given, given_arguments
from .reading import Reading
from .readings import in_megatron_terms
from .refused import missing_arguments, refused_arguments
from .table import arguments
from .vocabulary import vocabulary
from .words import ARGUMENTS, Parsed, parse_words


def job_from_args(
    args: Any, num_gpus: int | None, settings: Mapping[str, Any], *, rules: bool = True, whole: bool = False
) -> TrainingJob:
    """See `TrainingJob.from_megatron_args`. `rules`: whether those of Megatron-LM's command line are asked of words; values by name
    come from files and from parsers that asked them. `whole`: whether words are all of a command line."""
    settings = in_megatrons_words(settings)
    ignoring, without = (bool(settings.pop(name, False)) for name in ("ignore_unknown", "without_unmodelled"))
    caller = Caller(
        settings.pop("set_variables", None) or {}, settings.pop("words", ()), bool(settings.pop("follow", False))
    )
    more = parse_words(settings.pop("more_arguments", ()), ignore_unknown=ignoring)
    source = given_arguments(args, caller, ignore_unknown=ignoring)
    others = source.words.others
    others.merge(more.others)
    given = {**source.words.values, **more.values}
    gpus = gpus_of(source, num_gpus)
    reading = in_megatron_terms(given, others.read, gpus)
    given = {**given, **reading.changes}
    vocab = vocabulary(given, settings, others.read)
    _settle(source, more, reading, vocab.question, gpus, settings, without=without)
    warnings = (
        *source.warnings, *kind_note(source.gpu_kind, settings), *source.words.notes, *more.notes, *others.warnings(), *reading.notes,
        *refuse_unmodelled(given), *vocab.notes
    )  # fmt: skip
    values = derive(given)
    for name, size in (("vocab_size", vocab.size), ("padded_vocab_size", vocab.padded)):
        if size is not None:
            values[name] = size
    defaults = {name: values.pop(name) for name in _left_at_default(values, given)}
    values.update(_architecture(reading))
    values.update(settings)
    env = {name: value for name, value in source.env.items() if name in VARIABLES}
    if env := {**env, **({"container": source.container} if source.container else {})}:
        values["env"] = {**env, **(settings.get("env") or {})}
    loaded = LoadedModel(defaults, source.name, source.source, "", warnings=warnings)
    assumed = (source.gpus_said,) if num_gpus is None and source.gpus_said and gpus is not None else ()
    job = job_from_parts(loaded, gpus, values, habits=False, single_microbatch=True)
    stated = {**source.words.values, **more.values}
    if rules and (isinstance(args, list | tuple) or source.sets is not None):
        refused = [*refused_arguments(stated, job.model, job.layout, job.training, others=bool(others.read))]
        every = whole if source.sets is None else not (others.read or source.lost)
        refused += missing_arguments(stated, values, others=bool(others.read)) if every else ()
        if refused:
            raise refusal(*refused)
    stops = () if source.sets is None else contradictions(job.layout, job.training, job.gpu, source.env, source.sets)
    said = (*job.warnings, *map(plain, stops))
    return dataclasses.replace(
        job,
        assumptions=(*assumed, *job.assumptions),
        warnings=said,
        unread=source.lost,
        uncounted=others.uncounted(adapted=job.training.peft != "none"),
        of_arguments=True,
    )


WORDS_MISSING = (
    "the script reads positional arguments ($1, $2, ...), which are not given: put them after its name, or give each as "
    "--set 1=VALUE"
)


def _settle(
    source: Given,
    more: Parsed,
    reading: Reading,
    vocabulary_asked: Question | None,
    gpus: int | None,
    settings: Mapping[str, Any],
    *,
    without: bool,
) -> None:
    """Nothing, where nothing is open. Raises QuestionsError with everything that is, or with all that is refused."""
    elsewhere = {*more.values, *(full_name(name) for name in settings)}
    questions = [*source.questions, *source.words.questions(elsewhere), *more.questions(elsewhere), *reading.questions]
    questions += [vocabulary_asked] if vocabulary_asked else []
    if gpus is None and source.gpus_unknown:
        questions.append(of_gpus(source.gpus_unknown))
    if source.num_gpus == gpus and not any(name in source.words.problems for name in DEGREES):
        questions += gpus_asked(source, reading, settings)
    if words_missing := [one for one in questions if re.match(r"--set [0-9]+=", one.option)]:
        questions.insert(questions.index(words_missing[0]), Question(WORDS_MISSING))
    asked = {*source.words.problems, *more.problems, *reading.others, *source.words.others.meant()}
    sizes = _sizes({**reading.given, **reading.changes}, settings, asked)
    if any(one.subject == ARGUMENTS for one in questions):
        sizes = []  # they may stand there
    refused = [*source.words.others.refusals(without=without), *reading.refused]
    explained = any(path in one.what for path in source.lost for one in questions)
    if sizes and source.lost and not explained and not refused:
        refused = [f"{', '.join(source.lost)} is not there, and may hold what is missing: {sizes[0].what}"]
    settle([*questions, *sizes], refused)


def _sizes(given: Mapping[str, Any], settings: Mapping[str, Any], asked: Collection[str]) -> list[Question]:
    """Questions about sizes without which there is no model; `asked` are arguments that are asked for already, or read elsewhere."""
    elsewhere = ("hybrid_layer_pattern", "hybrid_override_pattern", "encoder_num_layers")
    if any(name in given for name in elsewhere) or "bridge_hf_model" in asked:
        return []
    stored = bool(given.get("use_checkpoint_args"))
    needed = [
        *SIZES,
        *(STORED if stored else ()),
        *(DEGREES[:2] if given.get("use_mp_args_from_checkpoint_args") else ()),
    ]
    missing = [name for name in needed if given.get(name) is None and settings.get(name) is None and name not in asked]
    if not stored:
        return [Question(f"{dashed(name)} is not given", f"{dashed(name)} VALUE") for name in missing]
    what = (
        "--use-checkpoint-args takes the model from a checkpoint, which is not read; give its sizes, and what else of it is not "
        "Megatron-LM's default (--swiglu, --normalization, --untie-embeddings-and-output-weights, experts)"
    )
    return [Question(what, " ".join(f"{dashed(name)} VALUE" for name in missing))] if missing else []


SIZES = ("num_layers", "hidden_size", "num_attention_heads")
STORED = ("ffn_hidden_size", "num_query_groups", "padded_vocab_size")
"""Sizes that have a default where no checkpoint has them (`checkpointing.py`, load_args_from_checkpoint)."""


def _architecture(reading: Reading) -> dict[str, Any]:
    """The architecture of the model that --bridge-hf-model names."""
    model = reading.others.get("bridge_hf_model")
    if not model:
        return {}
    from ..hf.load import load_named

    return dict(load_named(" ".join(model)).config)


def _left_at_default(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Settings of one kind of layer that have the parser's default, about which there is nothing to warn."""
    by_dest = arguments()[1]
    owned = [name for name in values if name in OWNERS and name in by_dest]
    return [name for name in owned if given.get(name, by_dest[name].default) == by_dest[name].default]


DEGREES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)  # fmt: skip


def gpus_of(source: Given, num_gpus: int | None) -> int | None:
    """GPUs of the run: the caller's, or the source's; a test runner's usual node only where the layout and the batch fit it."""
    if num_gpus is not None or source.num_gpus is None:
        return num_gpus
    if not source.gpus_said.startswith("num_gpus not given"):
        return source.num_gpus
    reading = Reading(source.words.values, {})
    if source.num_gpus % _grid(reading)[0]:
        return None
    rows = max(reading.number("micro_batch_size"), 1) * (source.num_gpus // _dense(reading))
    return source.num_gpus if reading.number("global_batch_size") % rows == 0 else None


def gpus_asked(source: Given, reading: Reading, settings: Mapping[str, Any]) -> Iterator[Question]:
    """What is asked where the layout or the batch does not go with the GPUs that a file says: scripts say one node until somebody
    fills in how many there are."""
    gpus, given = source.num_gpus, {full_name(name) for name in settings}
    if gpus is None or gpus != reading.num_gpus or given & {*DEGREES, "world_size"}:
        return
    least, said = _grid(reading)
    if gpus % least:
        yield Question(f"num_gpus={gpus} of the file is not divisible by {said}, {least}", f"--num-gpus {least}")
        return
    batch, micro = reading.number("global_batch_size"), reading.number("micro_batch_size")
    if not batch or not micro or given & {"global_batch_size", "micro_batch_size"}:
        return
    ranks = gpus // _dense(reading)
    if batch % (micro * ranks):
        yield Question(
            f"global_batch_size={batch} is not divisible by micro_batch_size*data_parallel_size={micro}*{ranks}={micro * ranks}",
            f"--global-batch-size {-(-batch // (micro * ranks)) * micro * ranks}",
        )


def _dense(reading: Reading) -> int:
    tp, pp, cp = (max(reading.number(name), 1) for name in DEGREES[:3])
    return tp * pp * cp


def _grid(reading: Reading) -> tuple[int, str]:
    """The fewest GPUs of a layout, and the degrees that make them."""
    tp, pp, cp, ep = (max(reading.number(name), 1) for name in DEGREES[:4])
    etp = reading.number(DEGREES[4]) or tp
    dense = _dense(reading)
    least = fewest_gpus(tp * cp, etp * ep if reading.get("num_experts") else 1, pp)
    if least == dense:
        return least, "tensor_model_parallel_size*pipeline_model_parallel_size*context_parallel_size"
    return least, f"the fewest GPUs that tp {tp}, pp {pp}, cp {cp}, ep {ep} and etp {etp} allow"
