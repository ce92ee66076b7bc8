"""From what a dialect says of a run to a job.

Degrees of parallelism that the caller gives over a run's file: dialects derive other settings from them, so they stand in the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import lcm
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job.assumption import Assumption, OpenSetting
from ...job.tower import UNNAMED, Tower
from ...job.training_job import TrainingJob
from ...rules import TP
from ...wording import dashed, plain, shown, whole
from ..door_defaults import MEGATRON_CORE, decided, unfused
from ..effects import OWNERS
from ..environment import VARIABLES
from ..file_keys import follow_all
from ..hf.load import load
from ..loaded_model import LoadedModel
from ..model_names import Named, named
from ..questions import GPUS_OPTION, Question, of_gpus, settle
from ..resolve import job_from_parts
from ..setting_names import canonical, full_name
from .hydra import UNSET
from .launched import UNKNOWN, UNREAD
from .run import Dialect, Reading, Run

MOST_NODES = 256
"""Nodes that are tried where nothing says how many there are."""
MODEL_OPTION = "--model NAME"
OF_TOWERS = ("tower", "audio")
"""Owners of the settings of towers."""
COMPANIONS = ("recompute_method", "recompute_num_layers", "recompute_modules")
"""Settings that mean something to one kind of recomputation."""


def job_of(dialect: Dialect, run: Run, num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """The job of a run of a dialect; `settings` are the caller's and win.

    Raises QuestionsError for all that is missing together, and what `Dialect.read` raises.
    """
    said = num_gpus if run.num_gpus is None else run.num_gpus
    run = dataclasses.replace(run, num_gpus=said, wanted_gpus=num_gpus)
    given = canonical(settings, full_name)
    if run.document is not None:
        follow_all(run.document, run.path, dialect.follows)
    reading = dialect.read(with_degrees(dialect, run, given))
    gpus = num_gpus if num_gpus is not None else reading.num_gpus
    loaded, of_model, questions = model_of(reading, run)
    if loaded is not None:
        loaded = dataclasses.replace(loaded, towers=_towers(loaded, reading, dialect.name))
        reading = reading if loaded.towers else _without_towers(reading)
    questions += unknown(reading, given)
    if gpus is None and run.gpus_unknown:
        questions.append(of_gpus(run.gpus_unknown))
    reading = dataclasses.replace(reading, settings=_own_settings(reading, given))
    multiple = _multiple(canonical({**reading.settings, **given}, full_name))
    asked = [_of_multiple(one, multiple) for one in (*reading.questions, *questions)]
    settle([one for one in asked if not _answered(one, gpus, given)], reading.refused)
    found = f"read as a run of {dialect.name} (docs/reference/{dialect.page}): its defaults hold where the file says nothing"
    notes = [Assumption(found, f"defaults of {dialect.name}"), *of_model, *reading.assumptions]
    if num_gpus is None and reading.num_gpus is not None:
        notes.append(f"num_gpus as in {run.path}: {reading.num_gpus}")

    def built(gpus: int | None) -> TrainingJob:
        if reading.args:
            return _of_words(reading, run, gpus, given)
        assert loaded is not None
        values = {**reading.settings, **given}
        values |= _environment(reading, run, given)
        of_run = dataclasses.replace(loaded, warnings=(*loaded.warnings, *run.notes, *reading.warnings))
        framework = _filled(reading, {**dict.fromkeys(unfused(dialect.name, of_run.config)), **values})
        return job_from_parts(of_run, gpus, values, habits=False, defaults=decided(MEGATRON_CORE), framework=framework)

    job = built(gpus) if gpus or not reading.node_gpus else _on_fewest_nodes(built, reading.node_gpus)
    assumed = tuple(one if isinstance(one, Assumption) else plain(one) for one in (*notes, *job.assumptions))
    opened = (*job.open_settings, *_open(dialect, run, job))
    warned = tuple(map(plain, job.warnings))
    return dataclasses.replace(job, assumptions=assumed, warnings=warned, unread=run.lost, open_settings=opened)


ENTROPY = {
    "verl": "entropy_coeff",
    "slime": "entropy_coef",
    "miles": "entropy_coef",
    "ROLL": "entropy_loss_coef",
    "SkyRL": "use_entropy_loss",
}
"""The key that adds the entropy to a framework's loss, by the framework."""


def _open(dialect: Dialect, run: Run, job: TrainingJob) -> Iterator[OpenSetting]:
    """What of the loss a run of reinforcement learning does not say: its entropy, which the framework leaves out by default."""
    key = ENTROPY.get(dialect.name)
    if key is None or not job.rollout.has_phases or job.training.loss_entropy:
        return
    said = f"{run.words} {run.document}"
    if key not in said and key.replace("_", "-") not in said:
        taken = f"off, the default of {dialect.name}"
        yield OpenSetting(
            (("loss_entropy", True),), "no entropy in the loss", taken, f"on, with {key}", key, "--loss-entropy"
        )


def _multiple(values: Mapping[str, Any]) -> int:
    """What the number of GPUs is a multiple of, by the degrees of parallelism."""
    tp, pp, cp, ep, etp = (
        size if isinstance(size := values.get(f"{axis}_parallel_size"), int) else 1
        for axis in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
    )
    return lcm(tp * pp * cp, ep * etp * pp)


def _of_multiple(one: Question, multiple: int) -> Question:
    """A question for the number of GPUs, with what it is a multiple of."""
    if one.option != GPUS_OPTION or multiple == 1:
        return one
    return dataclasses.replace(one, what=f"{one.what}, a multiple of {multiple} by its degrees")


def _on_fewest_nodes(built: Callable[[int | None], TrainingJob], each: int) -> TrainingJob:
    """The job on the fewest nodes that the layout and the batch allow; on the fewest GPUs of the layout where no number of nodes goes."""
    job = built(None)
    for nodes in range(1, MOST_NODES + 1):
        if nodes * each % job.layout.world_size == 0:
            with suppress(ConfigError, UnsupportedError):
                job = built(nodes * each)
                said = (
                    f"num_gpus not given: {nodes * each}, the fewest nodes of {each} GPUs that the layout and the batch allow; "
                    "--num-gpus sets it"
                )
                note = Assumption(said, f"num_gpus {nodes * each}", above=True)
                return dataclasses.replace(job, assumptions=(note, *job.assumptions))
    return job


def _answered(question: Question, gpus: int | None, given: Mapping[str, Any]) -> bool:
    """Whether the caller gives what a question asks for."""
    name = full_name(question.option.partition(" ")[0].lstrip("-"))
    return given.get(name) is not None or (name == "world_size" and gpus is not None)


def _towers(loaded: LoadedModel, reading: Reading, framework: str) -> tuple[Tower, ...]:
    """The towers that a run builds: Megatron-Bridge's, the framework's own, which nobody examined, or none."""
    if loaded.family.startswith(reading.text_only):
        return ()
    return loaded.towers if reading.bridged else tuple(Tower(one.name, unexamined=framework) for one in loaded.towers)


def _without_towers(reading: Reading) -> Reading:
    """A reading without what it says of towers, which its model does not have."""
    settings, defaults = (
        {name: value for name, value in part.items() if OWNERS.get(name) not in OF_TOWERS}
        for part in (reading.settings, reading.defaults)
    )
    return dataclasses.replace(reading, settings=settings, defaults=defaults)


def model_of(reading: Reading, run: Run) -> tuple[LoadedModel | None, list[str], list[Question]]:
    """The model, what is said about how it was found, and the question for it where it was not."""
    if reading.args:
        return None, [], []
    if reading.config:
        return LoadedModel(reading.config, reading.model, run.path, ""), [], []
    name = reading.model if run.model.endswith("_config") else run.model or reading.model
    if not name:
        asked = any(one.option == MODEL_OPTION for one in reading.questions)
        return None, [], [] if asked else [Question("the file names no model", MODEL_OPTION)]
    if (found := named(name)) is not None:
        return _of_catalogue(name, found), _renamed(name, found), []
    if missing := UNSET.search(name) or UNKNOWN.search(name):
        variable = next(filter(None, missing.groups()))
        what = f"the model takes its value from ${variable}, which has none"
        return None, [], [Question(what, f"--set {variable}=NAME", "the model")]
    try:
        if name == "-":
            raise ConfigError("standard input is no model of a run's file")
        return (run.named or load)(name), [], []
    except ConfigError as error:
        return None, [], [Question(f"the model {name} is not known ({error})", MODEL_OPTION)]


def _of_catalogue(name: str, found: Named) -> LoadedModel:
    """The catalogue's model of a name; of one with towers the language model, which is said."""
    model = load(found.entry)
    if not found.has_towers:
        return model
    said = (
        f"{shown(name)}: only the language model is counted, as large as {found.entry}; vision or audio towers are not"
    )
    return dataclasses.replace(model, warnings=(*model.warnings, said), towers=(Tower(UNNAMED),))


def _renamed(name: str, found: Named) -> list[str]:
    """What is said where the name is not the catalogue's."""
    if found.entry == name:
        return []
    is_folder = name.count("/") > 1 or not name[:1].isalnum()
    last = name.rstrip("/").rsplit("/", 1)[-1] if is_folder else name
    which = "has the sizes of" if found.has_towers else "is"
    return [f"the {'folder' if is_folder else 'model'} {last} {which} the catalogue model {found.entry}"]


def _of_words(reading: Reading, run: Run, gpus: int | None, given: Mapping[str, Any]) -> TrainingJob:
    """The job of words of Megatron-LM; settings of the dialect stand between its defaults and what the caller gives."""
    from ..megatron.job import job_from_args

    values = {**reading.settings, **given, **_environment(reading, run, given)}
    given_too = {**values, "ignore_unknown": run.ignore_unknown, "without_unmodelled": run.without_unmodelled}
    job = job_from_args(list(reading.args), gpus, given_too, rules=False)  # frameworks have a Megatron-LM of their own
    name = reading.model or run.path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return dataclasses.replace(job, name=name, source=run.path, warnings=(*run.notes, *reading.warnings, *job.warnings))


def _own_settings(reading: Reading, given: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings, without what belongs to its kind of recomputation where the caller gives another kind, and without what a
    degree of 1 turns off."""
    own = dict(reading.settings)
    held = own.get("recompute_granularity", reading.defaults.get("recompute_granularity"))
    if "recompute_granularity" in given and given["recompute_granularity"] != held:
        own |= dict.fromkeys(COMPANIONS)
    if own.get("sequence_parallel") and whole(str({**reading.defaults, **own, **given}.get(TP) or 1)) == 1:
        own["sequence_parallel"] = False  # every framework turns it off
    return own


def _filled(reading: Reading, values: Mapping[str, Any]) -> dict[str, Any]:
    """The framework's defaults, without those that the run or the caller turns off."""
    off = {name for name, value in values.items() if value is None}
    return {name: value for name, value in reading.defaults.items() if name not in off}


def _environment(reading: Reading, run: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the run that memory depends on, under what the caller gives."""
    known = {name: value for name, value in {**reading.env, **run.variables}.items() if name in VARIABLES}
    known |= {"container": run.container} if run.container else {}
    return {"env": {**known, **(given.get("env") or {})}} if known else {}


def unknown(reading: Reading, given: Mapping[str, Any]) -> list[Question]:
    """Questions about settings whose values come from variables that have none."""
    asked = []
    for name, value in canonical(reading.settings, full_name).items():
        missing = UNKNOWN.search(value) if isinstance(value, str) and name not in given else None
        if isinstance(value, str) and UNREAD in value and name not in given:
            asked.append(
                Question(f"{name} is what a command gives, and commands are not executed", f"{dashed(name)} VALUE")
            )
        if missing:
            asked.append(
                Question(
                    f"{name} takes its value from ${missing[1]}, which has none", f"--set {missing[1]}=VALUE", name
                )
            )
    return asked


DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


def with_degrees(dialect: Dialect, run: Run, given: Mapping[str, Any]) -> Run:
    """The run as if its file had the degrees that the caller gives; `given` are settings by Megatron's names.

    Sequence parallelism, tokens of a microbatch and the global batch follow from degrees in some frameworks.
    """
    degrees = {name: given[name] for name in DEGREES if type(given.get(name)) is int}
    if not degrees or dialect.degrees is None:
        return run
    place = dialect.degrees(run)
    if run.document is not None:
        return dataclasses.replace(run, document=_changed(run.document, place.split(".") if place else [], degrees))
    if dialect.takes_flags:
        words = [word for name, value in degrees.items() for word in (f"--{name}", str(value))]
    else:
        words = [f"++{place}.{name}={value}" for name, value in degrees.items()]
    return dataclasses.replace(run, words=(*run.words, *words))


def _changed(document: Mapping[Any, Any], path: list[str], values: Mapping[str, Any]) -> dict[Any, Any]:
    """The document with values in the mapping at a path."""
    if not path:
        return {**document, **values}
    below = document.get(path[0])
    return {**document, path[0]: _changed(below if isinstance(below, Mapping) else {}, path[1:], values)}
