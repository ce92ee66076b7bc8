"""A run in a file, or in its text: of Megatron-LM, of another framework, or a run description of ours.

A run described in YAML: sections `model`, `parallelism`, `training` and `precision`; every mistake is one sentence.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, EstimatorError
from ...job.layout import SHORT, Layout
from ...job.model import Model
from ...job.settings import nearest
from ...job.training_job import TrainingJob, alike
from ...wording import plain, shown
from .. import NEITHER, is_run_file, is_script
from ..bridge_config import job_from_bridge
from ..everyday import in_megatrons_words
from ..hf.convert import convert
from ..hf.load import load, parse
from ..loaded_model import LoadedModel
from ..megatron.files import Caller, from_launch, from_mapping_file, launch_of, twice
from ..megatron.job import job_from_args
from ..resolve import job_from_parts
from ..setting_names import canonical, full_name, known_settings
from ..text_files import GivenFiles, read_run_yaml, read_text, read_yaml, shortened
from ..transformer_config import IRRELEVANT, UNCOUNTED, UNSUPPORTED
from .callers_words import with_words
from .wrappers import Wrapped, is_wrapped, wrapped

if TYPE_CHECKING:
    from ..dialects.run import Around, Run
    from ..shell.launches import Launch


# -- a run described in YAML -------------------------------------------------------------------------------------------

SECTIONS = ("model", "parallelism", "training", "precision")
EXTRA = {
    "model": {"name"},
    "training": {"num_gpus", "gpu", "env", "strict", "attention_backend"},
    "parallelism": {*SHORT, "num_gpus"},
    "precision": {"bf16", "fp16"},
}
PRECISION = {
    "params_dtype", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32", "grad_reduce_in_bf16",
    "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
    "store_param_remainders", "moe_router_dtype", "attention_softmax_in_fp32",
}  # fmt: skip


MOST_MISTAKES = 20
"""Mistakes of a file that are looked for; a message has no room for more."""


def job_from_yaml(path: str, num_gpus: int | None = None, **settings: Any) -> TrainingJob:
    """The job of a YAML file; settings given here win over the file's.

    With `model.name` the model is read as by `TrainingJob.from_hf`, otherwise `model` holds TransformerConfig names as for
    `TrainingJob.from_config`. Raises ConfigError with one sentence per mistake.
    """

    def named(model: str) -> LoadedModel:
        beside = os.path.join(os.path.dirname(path), model)
        return load(beside if os.path.exists(beside) else model)

    return job_from_document(read_yaml(path), path, num_gpus, settings, named)


def job_from_document(
    document: Mapping[Any, Any],
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    named: Callable[[str], LoadedModel],
) -> TrainingJob:
    """The job of a run description that is read already; `named` gives the model of `model.name`."""
    mistakes = list(islice(wrong(document), MOST_MISTAKES))
    if mistakes:
        raise ConfigError(f"{shortened(path)}: {'; '.join(mistakes)}")
    values: dict[str, Any] = {}
    for section in SECTIONS:
        for name, value in (document.get(section) or {}).items():
            word = full_name(name)
            if value is None and word in values:
                continue
            if values.get(word) is not None and values[word] != value:
                raise ConfigError(f"{shortened(path)}: {word} is given twice with different values; give one")
            values[word] = value
    values.update({full_name(name): value for name, value in settings.items()})
    gpus = values.pop("world_size", None)
    model = values.pop("name", None)
    num_gpus = gpus if num_gpus is None else num_gpus
    if model is not None:
        if not isinstance(model, str) or model == "-":
            raise ConfigError(f"{shortened(path)}: model.name={shortened(repr(model))} must be a Hub id or a path")
        return job_from_parts(named(model), num_gpus, values, habits=True)
    name = os.path.splitext(os.path.basename(path))[0]
    return TrainingJob.from_config({"name": name, **values}, num_gpus)


def wrong(document: Mapping[Any, Any]) -> Iterator[str]:
    """One sentence for every section or setting that does not belong where it stands."""
    for section, values in document.items():
        if section not in SECTIONS:
            yield f'unknown section "{section}"; the sections are {", ".join(SECTIONS)}'.rstrip(".")
        elif values is not None and not isinstance(values, dict):
            yield f"the section {section} must hold settings, not {shortened(repr(values))}"
        else:
            for name in values or {}:
                yield from _misplaced(section, name)
    if not document.get("model"):
        yield "the section model is missing; give model.name or TransformerConfig names"


def _misplaced(section: str, name: Any) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"{section}.{name!r} must be a word"
        return
    word = full_name(name)
    homes = sections_of(word)
    if not homes and name.replace("-", "_") not in {x for extra in EXTRA.values() for x in extra}:
        known = [*known_settings(), *(x for extra in EXTRA.values() for x in extra)]
        yield f'unknown setting "{name}" in {section}.{nearest(name, known)}'.rstrip(".")
    elif section not in homes:
        yield f"{name} belongs in the section {' or '.join(homes)}, not in {section}"


def sections_of(word: str) -> tuple[str, ...]:
    """The sections in which a setting may stand."""
    homes = [section for section, names in EXTRA.items() if word in names]
    if word in SHORT.values():
        return ("parallelism",)
    if word in ("world_size", "num_gpus"):
        return ("training", "parallelism")
    if word in PRECISION:
        return ("precision", "training")
    owner = known_settings().get(word)
    if owner is not None:
        homes.append({Model: "model", Layout: "parallelism"}.get(owner, "training"))
    elif word in IRRELEVANT or word in UNCOUNTED or word in UNSUPPORTED:
        return SECTIONS
    return tuple(dict.fromkeys(homes))


SCRIPT = re.compile(
    r"(?m)\A#!|^\s*(?:export|torchrun|srun|python3?|deepspeed|mpirun|exec|set|megatron|ray|flagscale|accelerate|sbatch|bash)\s|^\s*[A-Za-z_][A-Za-z0-9_]*="
)
"""What a launch script begins with, or has at the beginning of a line."""
OF_FILES = ("set_variables", "words", "follow", "ignore_unknown", "without_unmodelled", "run_model", "given_files")
"""Settings that say how a file is read, and are none of the job."""


def job_from_file(
    path: str, num_gpus: int | None, settings: Mapping[str, Any], more: Sequence[str] = ()
) -> TrainingJob:
    """The job of a file; `more` are Megatron-LM arguments after --, which win over the file's. Variables that change nothing are said.

    Raises ConfigError for a file that is none of ours, by the name of the program that it belongs to where that is known.
    """
    if not is_run_file(path):
        raise ConfigError(f"{path!r} {NEITHER}")
    settings = in_megatrons_words(settings)
    job = _with_idle(settings, lambda given: _of_file(path, num_gpus, given, more))
    return _whole_run(job, settings)


def _of_file(path: str, num_gpus: int | None, settings: Mapping[str, Any], more: Sequence[str]) -> TrainingJob:
    from ..strict_yaml import LARGEST_YAML

    if is_script(path):
        return _of_script(read_text(path, script=True), path, num_gpus, settings, more)
    text = read_text(path, LARGEST_YAML)
    if (wrapper := _wrapper(text, path, settings)) is not None:
        return _of_wrapper(wrapper, path, num_gpus, settings, more)
    document, repeated = read_run_yaml(path)
    return _of_document(
        document, repeated, path, num_gpus, settings, more, lambda: job_from_yaml(path, num_gpus, **_own(settings))
    )


def job_from_text(
    text: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    named: Callable[[str], LoadedModel],
    text_of: Callable[[str], str | None] | None = None,
    *,
    settled: bool = False,
    path: str = "the text",
    files: GivenFiles | None = None,
) -> TrainingJob:
    """The job of the text of a config.json, a YAML file, or a launch script; `named` gives a model by its name, `text_of` the text of
    a file that it names, of which there are none without it. `settled`: the run was read before with other settings, and what it leaves
    open decided nothing; it is read once and not with everything that may stand there. `files` came with it, at `path` among them.

    Raises ConfigError for a text that is none of them.
    """
    from ..dialects.run import Around, nothing_beside

    if files is not None:
        folder = os.path.dirname(path)
        text_of = lambda name: files.text(os.path.join(folder, name))  # noqa: E731
        settings = {**settings, "given_files": files}
    job = _of_text(text, path, num_gpus, settings, Around(text_of or nothing_beside, named), named, settled=settled)
    return job if _is_config(text) else _whole_run(job, settings)


def _is_config(text: str) -> bool:
    """Whether a text is a config.json, which is a model and no run."""
    return text.lstrip().startswith("{")


def _whole_run(job: TrainingJob, settings: Mapping[str, Any]) -> TrainingJob:
    """The job of a run's file, beside which the caller gave settings."""
    return dataclasses.replace(job, by_name=False, given=canonical(_own(settings), full_name))


def _of_text(
    text: str,
    where: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    around: Around,
    named: Callable[[str], LoadedModel],
    *,
    settled: bool,
) -> TrainingJob:
    from ..strict_yaml import LARGEST_YAML, parse_yaml

    if len(text) > LARGEST_YAML:
        raise ConfigError(f"{where} is longer than {LARGEST_YAML} characters")
    if _is_config(text):
        loaded = convert(parse(text.encode("utf-8", "replace"), where), "config.json", where)
        return job_from_parts(loaded, num_gpus, _own(settings), habits=True)
    if (wrapper := _wrapper(text, where, settings)) is not None:
        return _of_wrapper(wrapper, where, num_gpus, settings, (), around, settled=settled)
    if SCRIPT.search(text):
        return _of_script(text, where, num_gpus, settings, (), around, settled=settled)
    repeated: list[str] = []
    document = parse_yaml(text, where, repeated)
    if not isinstance(document, dict):
        raise ConfigError(f"{where} is neither a config.json nor a YAML mapping nor a launch script")
    return _of_document(
        document, repeated, where, num_gpus, settings, (),
        lambda: job_from_document(parse_yaml(text, where), where, num_gpus, _own(settings), named), around,
    )  # fmt: skip


def _wrapper(text: str, path: str, settings: Mapping[str, Any]) -> Wrapped | None:
    """The run that a job of Kubernetes or a task of SkyPilot starts; None for other files."""
    return wrapped(text, path, _variables(settings)) if is_wrapped(text) else None


def _of_wrapper(
    wrapper: Wrapped,
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    more: Sequence[str],
    around: Around | None = None,
    *,
    settled: bool = False,
) -> TrainingJob:
    """The job of the script of a wrapper, on the GPUs that the wrapper asks for where what it starts says no number."""
    own = wrapper.num_gpus or None
    job = _of_script(wrapper.script, path, num_gpus, settings, more, around, settled=settled, num_gpus_around=own)
    said = f"{path} is a {wrapper.kind}: the command of its container is read as a script"
    warnings = job.warnings
    if num_gpus is None and own is not None and job.layout.world_size != own:
        warnings = (
            *warnings,
            plain(f"the {wrapper.kind} asks for {own} GPUs, and what it starts trains on {job.layout.world_size}"),
        )
    return dataclasses.replace(job, assumptions=(plain(said), *job.assumptions), warnings=warnings)


def _of_script(
    text: str,
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    more: Sequence[str],
    around: Around | None = None,
    *,
    settled: bool = False,
    num_gpus_around: int | None = None,
) -> TrainingJob:
    """The job of the text of a script; `num_gpus_around` are GPUs of what starts it, where its own launcher says none.

    Raises QuestionsError for words of its caller that decide it and are not given.
    """

    def launched(values: Mapping[str, str]) -> Launch:
        caller = _caller({**settings, "set_variables": {**_variables(settings), **values}})
        launch = launch_of(text, path, caller)
        if launch.num_gpus is None and num_gpus_around is not None:
            return dataclasses.replace(launch, num_gpus=num_gpus_around, gpus_unknown="")
        return launch

    def read(launch: Launch) -> TrainingJob:
        return _of_launch(launch, path, num_gpus, settings, more, around, settled=settled)

    return read(launched({})) if settled else with_words(launched, read, alike)


def _of_launch(
    launch: Launch,
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    more: Sequence[str],
    around: Around | None = None,
    *,
    settled: bool = False,
) -> TrainingJob:
    """The job of the launch of a script: of a dialect where it is one's, else of Megatron-LM."""
    from ..dialects.launched import of_launch
    from ..dialects.table import dialect_of
    from ..dialects.unknowns import job_of_launch

    def run_of(one: Launch) -> Run:
        return of_launch(one, path, settings, around)

    if dialect_of(run_of(launch)) is not None:
        job: TrainingJob = job_of_launch(
            launch, run_of, lambda run: _of_dialect(run, num_gpus, settings, more), alike, settled=settled
        )
        return job
    name = os.path.splitext(os.path.basename(path))[0]
    given = from_launch(launch, path, name, ignore_unknown=bool(settings.get("ignore_unknown")))
    return job_from_args(
        given, num_gpus, {**_without(settings, ("run_model", "given_files")), "more_arguments": list(more)}
    )


def _of_document(
    document: Mapping[Any, Any],
    repeated: Sequence[str],
    path: str,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    more: Sequence[str],
    described: Callable[[], TrainingJob],
    around: Around | None = None,
) -> TrainingJob:
    """The job of a YAML mapping; `described` makes it of a run description of ours."""
    from ..dialects.launched import of_document
    from ..dialects.table import dialect_of

    if is_saved_by_bridge(document):
        if more:
            raise ConfigError(
                f"{path} is a Megatron-Bridge config; arguments after -- go with Megatron-LM arguments only"
            )
        job = job_from_bridge(document, num_gpus, _own(settings))
        return dataclasses.replace(job, warnings=(*twice(repeated), *job.warnings))
    run = of_document(document, path, settings, around)
    if dialect_of(run) is not None:
        job = _of_dialect(run, num_gpus, settings, more)
        return dataclasses.replace(job, warnings=(*twice(repeated), *job.warnings))
    if has_sections(document):
        if more:
            raise ConfigError(f"{path} is a run description; arguments after -- go with Megatron-LM arguments only")
        return described()
    name = os.path.splitext(os.path.basename(path))[0]
    ignoring = bool(settings.get("ignore_unknown"))
    given = from_mapping_file(document, path, name, _variables(settings), repeated, ignore_unknown=ignoring)
    return job_from_args(
        given, num_gpus, {**_without(settings, ("run_model", "given_files")), "more_arguments": list(more)}
    )


def is_saved_by_bridge(document: Mapping[Any, Any]) -> bool:
    """Whether a YAML document is the configuration that Megatron-Bridge saves beside its checkpoints (run_config.yaml): the model, or
    the whole, names the class of Bridge that it is (`src/megatron/bridge/training/utils/config_utils.py`)."""
    model = document.get("model")
    if not isinstance(model, Mapping):
        return False
    return any(str(part.get("_target_")).startswith("megatron.bridge.") for part in (document, model))


OVERRIDE = re.compile(r"~?\+{0,2}[A-Za-z_][\w.-]*(=.*)?", re.DOTALL)
"""A word that changes a key of a document, as hydra takes it."""


def _of_dialect(run: Run, num_gpus: int | None, settings: Mapping[str, Any], more: Sequence[str]) -> TrainingJob:
    """The job of a run of another framework, of a document with overrides KEY=VALUE. Raises ConfigError for Megatron-LM arguments."""
    from ..dialects.hydra import overridden
    from ..dialects.job import job_of
    from ..dialects.table import dialect_of
    from ..dialects.unknowns import job_of_environment

    dialect = dialect_of(run)
    if dialect is None:
        raise ConfigError(
            f"which framework {run.path} starts depends on a variable that is not set; give it with --set NAME=VALUE"
        )
    if more and run.document is not None and all(OVERRIDE.fullmatch(word) for word in more):
        pairs = [(key, text) for key, _, text in (word.partition("=") for word in more)]
        run = dataclasses.replace(run, document=overridden(run.document, pairs))
    elif more:
        raise ConfigError(
            f"{run.path} is a run of {dialect.name}, which takes KEY=VALUE of its own and none of Megatron-LM's arguments: {shown(more[0])}"
        )
    job: TrainingJob = job_of_environment(run, lambda one: job_of(dialect, one, num_gpus, _own(settings)), alike)
    return job


def _with_idle(settings: Mapping[str, Any], read: Callable[[Mapping[str, Any]], TrainingJob]) -> TrainingJob:
    """The job, with a warning for each variable of the caller without which it would be the same."""
    job, variables = read(settings), _variables(settings)
    idle = []
    for name in variables:
        others = {other: value for other, value in variables.items() if other != name}
        try:
            if alike(read({**settings, "set_variables": others}), job):
                idle.append(name)
        except EstimatorError:
            continue
    if not idle:
        return job
    said = f"--set {', '.join(idle)} changes nothing: the run is the same without it"
    return dataclasses.replace(job, warnings=(*job.warnings, plain(said)))


def _caller(settings: Mapping[str, Any]) -> Caller:
    """What the caller of a script says beside its name."""
    return Caller(
        _variables(settings), settings.get("words") or (), bool(settings.get("follow")), settings.get("given_files")
    )


def _variables(settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables that the caller gives."""
    variables = settings.get("set_variables") or {}
    if not isinstance(variables, Mapping) or not all(isinstance(v, str) for pair in variables.items() for v in pair):
        raise ConfigError("set_variables must hold words by name")
    return variables


def _own(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the job."""
    return _without(settings, OF_FILES)


def _without(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def has_sections(document: Mapping[Any, Any]) -> bool:
    """Whether a YAML document is a run description, and not Megatron-LM arguments."""
    if "MODEL_ARGS" in document or any(str(key).startswith("--") for key in document):
        return False
    return any(key in SECTIONS for key in document) or all(isinstance(v, dict) or v is None for v in document.values())
