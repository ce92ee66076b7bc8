"""The job of a request: of a name, of a file below the one folder that may be opened, or of a text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

from ..errors import ConfigError, EstimatorError, LayoutError
from ..inputs import SCRIPTS, YAML, is_run_file
from ..inputs.everyday import in_megatrons_words
from ..inputs.hf import load, load_bundled, load_named
from ..inputs.hf.convert import convert
from ..inputs.hf.load import parse
from ..inputs.loaded_model import LoadedModel
from ..inputs.resolve import job_from_parts
from ..inputs.setting_names import canonical, full_name
from ..inputs.text_files import GivenFiles, is_within
from ..job.training_job import TrainingJob
from ..wording import LONGEST_SHOWN, plain, shown

PARAMETERS = {"cls", "model", "path", "self", "num_gpus", "text", "config", "settings", "given_files"}
"""Names that are parameters of Python functions on the way, not settings."""
NO_FILES = "this looks like a file, and none is opened here; give its content as text"
ELSEWHERE = (
    "files are opened below the folder that the server was started with (--folder), and nowhere else; "
    "pass the file's content as text"
)


class Files:
    """Which files may be opened: those below one folder, or none; and whether names may be looked up in the local cache and the Hub."""

    def __init__(self, folder: str | None, *, hub: bool = True) -> None:
        self.folder = None if folder is None else os.path.realpath(folder)
        self.by_name: Callable[[str], LoadedModel] = load_named if hub else load_bundled
        self.settled = False
        self.given: GivenFiles | None = None

    def with_given(self, texts: Mapping[str, str] | None) -> Files:
        """The same, beside files that came with a request."""
        if not texts:
            return self
        found = copy(self)
        found.given = GivenFiles(texts)
        return found

    def remembering(self, *, settled: bool = False) -> Files:
        """The same, which reads each model once. `settled`: what a run leaves open was settled when it was read before."""
        found = copy(self)
        found.by_name = cache(self.by_name)
        found.settled = settled
        return found

    def path(self, name: str) -> str | None:
        """The path of a name that stands for a file below the folder, or None. Nothing outside is looked at."""
        if self.folder is None:
            return None
        try:
            full = os.path.realpath(os.path.join(self.folder, name))
        except ValueError:  # a null byte or half a character, which no file's name has
            return None
        return full if is_within(self.folder, full) and os.path.exists(full) else None

    def named(self, name: str) -> LoadedModel:
        """The model of a name, or of a config.json that came with the request or is below the folder."""
        if self.given is not None:
            own = name if name in self.given.texts else self.given.meant(f"{name}/config.json", 2)
            if own is not None and (text := self.given.text(own)) is not None:
                return convert(parse(text.encode("utf-8", "replace"), own), name, own)
        full = self.path(name)
        if full is None:
            return self.by_name(name)
        inner = os.path.join(full, "config.json") if os.path.isdir(full) else full
        if self.path(os.path.relpath(inner, self.folder)) is None:
            raise ConfigError("a config.json outside the folder is not opened")
        return load(inner)

    def beside(self, path: str) -> Callable[[str], LoadedModel]:
        """Models by name, or by their paths seen from a file below the folder."""

        def named(name: str) -> LoadedModel:
            near = os.path.relpath(os.path.join(os.path.dirname(path), name), self.folder)
            return self.named(near if self.path(near) is not None else name)

        return named

    def text_beside(self, path: str) -> Callable[[str], str | None]:
        """Texts of files by their paths seen from a file below the folder, where they are below it too."""
        from ..inputs.dialects.launched import Place

        return Place(path, root=self.folder or path).text_of


def job_of(
    model: str | None, text: str | None, num_gpus: int | None, settings: Mapping[str, Any] | None, files: Files
) -> TrainingJob:
    """The job of a request: of a model by name, of a file below the folder, or of a file's text.

    Raises EstimatorError with the sentence that says what is wrong; nothing of a file's content is in it.
    """
    from ..inputs.runs.files import job_from_text
    from ..inputs.text_files import read_text

    given_files = files.given
    given = canonical(without_other_words(in_megatrons_words(settings or {})), full_name)
    world = given.pop("world_size", None)
    if None not in (world, num_gpus) and world != num_gpus:
        raise ConfigError(f"num_gpus={num_gpus} and world_size={shown(world)} of the settings differ; give one")
    gpus = world if num_gpus is None else num_gpus
    if given.pop("follow", None):
        raise ConfigError("follow opens files anywhere, which this server does not; pass their content as text")
    for name in PARAMETERS & given.keys():
        raise ConfigError(f'unknown setting "{name}"')
    if (model is None) == (text is None):
        raise ConfigError("give either model, a name, or text, that of a config.json, a YAML file or a launch script")
    if given_files is not None:
        return _of_given(model, text, gpus, given, files, given_files)
    if text is not None:
        return job_from_text(text, gpus, given, files.named, settled=files.settled)
    assert model is not None
    refuse_standard_input(model)
    path = files.path(model)
    try:
        if path is not None and is_run_file(path):
            return job_from_text(
                read_text(path, script=not path.lower().endswith(YAML)),
                gpus,
                given,
                files.beside(path),
                files.text_beside(path),
                settled=files.settled,
            )
        if path is None and (model.startswith(("/", ".", "~")) or model.lower().endswith((*YAML, *SCRIPTS, ".json"))):
            raise _NoFileError(NO_FILES if files.folder is None else ELSEWHERE)
        return job_from_parts(files.named(model), gpus, given, habits=True)
    except LayoutError:
        raise
    except EstimatorError as error:
        if path is None or isinstance(error, _NoFileError):
            raise
        raise ConfigError(f"{shown(model)} cannot be read as a run; pass its content as text to be told why") from None


def _of_given(
    model: str | None,
    text: str | None,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    files: Files,
    beside: GivenFiles,
) -> TrainingJob:
    """The job of a run among files that came with it: `model` is its path among them, or `text` its own. It says which of them it reads."""
    from ..inputs.runs.files import job_from_text

    path = "the text" if model is None else os.path.normpath(model)
    content = beside.texts.get(path) if text is None else text
    if content is None:
        names = plain(", ".join(beside.texts), LONGEST_SHOWN)
        raise ConfigError(
            f"model={shown(model)} is none of the files that came with it, {names}; name the one that is the run"
        )
    job = job_from_text(content, num_gpus, settings, files.named, settled=files.settled, path=path, files=beside)
    others = [one for one in beside.texts if one != path]
    read, left = ([one for one in others if (one in beside.read) == is_read] for is_read in (True, False))
    parts = [
        f"{word} {plain(', '.join(names), 200)}" for word, names in (("reads", read), ("does not read", left)) if names
    ]
    said = (f"{path} {', and '.join(parts)}",) if parts else ()
    return replace(job, assumptions=(*said, *job.assumptions))


def without_other_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without nulls of what another word gives a value: null takes away what is said in one word, or by a text."""
    given = {full_name(word) for word, value in settings.items() if value is not None}
    return {word: value for word, value in settings.items() if value is not None or full_name(word) not in given}


class _NoFileError(ConfigError):
    """A name that is a path outside the folder."""


def refuse_standard_input(model: str) -> None:
    """Raise ConfigError for "-": standard input carries the protocol."""
    if model.strip() in ("", "-"):
        raise ConfigError("the model must be a name or a path; standard input belongs to the protocol")
