"""Where a config comes from: the bundled catalogue, a file, a directory, standard input, the local cache, the Hub."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...job.training_job import TrainingJob
from ...wording import LONGEST_SHOWN
from ..catalog import alias_named, aliases, entries
from ..loaded_model import LoadedModel
from ..resolve import job_from_parts
from ..text_files import LARGEST_FILE, shortened
from .convert import convert
from .families import refused


def load(model: str | Mapping[str, Any]) -> LoadedModel:
    """The model of a Hub id, a directory, a config.json, "-" for standard input, or the fields of a config.json.

    A path that exists wins over a Hub id; then the catalogue, the local Hugging Face cache, the Hub.
    """
    if isinstance(model, Mapping):
        return convert(dict(model), str(model.get("_name_or_path") or "custom config"), "custom config")
    if hasattr(model, "__fspath__"):
        model = os.fspath(model)
    if not isinstance(model, str) or not model.strip():
        raise ConfigError("the model must be a Hub id, a directory, a config.json, or - for standard input")
    if model == "-":
        return convert(standard_input(), "standard input", "standard input")
    path, name_shown = os.path.expanduser(model), shortened(model)
    if "\0" in path:
        raise ConfigError("the model's name has a null byte")
    if os.path.isdir(path):
        inside = os.path.join(path, "config.json")
        if not os.path.isfile(inside):
            raise ConfigError(f"the directory {name_shown} has no config.json")
        return convert(_read(inside), os.path.basename(os.path.abspath(path)), inside)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{name_shown} is neither a file nor a directory")
    if os.path.isfile(path):
        folder, file = os.path.split(os.path.abspath(path))
        name = os.path.basename(folder) if file == "config.json" else os.path.splitext(file)[0]
        return convert(_read(path), name, path)
    if path.endswith(".json") or model.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"no such file: {name_shown}")
    return load_named(model)


def load_named(model: str) -> LoadedModel:
    """The model of a name: of the catalogue, the local cache or the Hub; no file of that name is looked for.

    A model that has the shape of one of the catalogue is that one, where the local cache has no config of its own.
    """
    known = alias_named(model)
    return _bundled(model) or _alias(model, elsewhere=True) or _from_hub(known.id if known else model)


def load_bundled(model: str) -> LoadedModel:
    """The model of a name of the catalogue; nothing else is looked for. Raises ConfigError with the nearest names."""
    found = _bundled(model) or _alias(model, elsewhere=False)
    if found is None:
        raise ConfigError(
            f'"{shortened(model)}" is not in the catalogue, and names are not looked up elsewhere here; give the content of its '
            f"config.json as text; {nearest_entries(model)}"
        )
    return found


def _bundled(model: str) -> LoadedModel | None:
    """The model of the catalogue with a name, or with its part behind the owner where no other has it."""
    known = entries()
    if model not in known:
        alike = [name for name in known if model.lower() in (name.lower(), name.split("/")[1].lower())]
        if len(alike) != 1:
            return None
        model = alike[0]
    entry = known[model]
    return convert(entry["config"], model, f"bundled catalogue ({entry['source']})")


def _alias(model: str, *, elsewhere: bool) -> LoadedModel | None:
    """The model of the catalogue that another has the shape of, and what is not sure of it. Raises ConfigError where it is not enough."""
    found = alias_named(model)
    if found is None:
        return None
    if elsewhere:
        from . import hub

        if hub.cached(found.id) is not None:
            return None
    if found.how == "refused":
        raise refused(found.id, found.same_as)
    if found.how in UNKNOWN or found.same_as not in entries():
        if elsewhere:
            with contextlib.suppress(ConfigError):
                return _from_hub(found.id)
        raise ConfigError(
            f"{found.id} is {UNKNOWN.get(found.how, 'like {}, which is not in the catalogue').format(found.same_as)}; give its config.json"
        )
    entry = entries()[found.same_as]
    loaded = convert({**entry["config"], **found.changes}, found.id, f"bundled catalogue (as {found.same_as})")
    if found.how == "read":
        return loaded
    may = f"; its {found.may_differ.removesuffix(' may differ')} may differ" if found.may_differ else ""
    said = f"{found.id} is recalled to have the shape of {found.same_as}{may}. Its config.json was not read: give it to be sure"
    return dataclasses.replace(loaded, warnings=(*loaded.warnings, said))


UNKNOWN = {
    "tower": "{} with a vision tower whose shape is not in the catalogue",
    "class only": "of the class of {}, perhaps of other sizes",
}
"""Why an alias cannot be taken."""


def standard_input() -> dict[str, Any]:
    """The JSON object on standard input."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed")
    text = sys.stdin.buffer.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"standard input is larger than {LARGEST_FILE} bytes; a config.json is not")
    try:
        return parse(text, "standard input")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; it is read as a config.json, scripts and YAML files are given by their paths"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        left = dict.fromkeys(found, 1)
        twice = next(name for name, _ in pairs if not left.pop(name, 0))
        raise ConfigError(f'the key "{shortened(twice)}" appears twice in one JSON object')
    return found


def parse(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, no NaN, no duplicate keys."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8 text") from None

    def constant(word: str) -> None:
        raise ConfigError(f"{where} contains {word}, which is not JSON")

    try:
        value = json.loads(decoded, parse_constant=constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not valid JSON: {error.msg} at line {error.lineno}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is not a usable JSON document") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must hold a JSON object with the fields of a config.json")
    return value


def _read(path: str) -> dict[str, Any]:
    if path.endswith(".py"):
        raise ConfigError(
            f"{shortened(path)} is Python, which is not run; give the launch script, Megatron's arguments behind --, a recipe's name "
            "with its overrides, or the run_config.yaml that Megatron-Bridge saves beside its checkpoints"
        )
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{shortened(path)} is larger than {LARGEST_FILE} bytes; a config.json is not")
        return parse(text, shortened(path))
    except OSError as error:
        raise ConfigError(f"cannot read {shortened(path)}: {error.strerror}") from None


def nearest_entries(model: str) -> str:
    """The nearest names of the catalogue, for a message."""
    from difflib import get_close_matches

    model = model[:LONGEST_SHOWN]
    names = [*entries(), *(one.id for one in aliases().values())]
    lower = {name.lower(): name for name in names}
    short = {name.split("/")[-1].lower(): name for name in names}
    matches = [lower[m] for m in get_close_matches(model.lower(), lower, n=3, cutoff=0.5)]
    matches += [short[m] for m in get_close_matches(model.split("/")[-1].lower(), short, n=3, cutoff=0.5)]
    if not matches:
        return "no similar name in the catalogue; `megatron-memory models` lists all"
    return f"nearest names: {', '.join(dict.fromkeys(matches))}"


_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
HUB_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$)){_PART}(?:/{_PART})?")
"""Names that the Hub accepts (huggingface_hub `src/huggingface_hub/utils/_validators.py`, validate_repo_id)."""


def _from_hub(model: str) -> LoadedModel:
    """The local Hugging Face cache first, then the Hub."""
    from . import hub

    near = nearest_entries(model)
    if not HUB_ID.fullmatch(model):
        raise ConfigError(f'"{shortened(model)}" is neither a file nor a Hub id; {near}')
    path = hub.cached(model)
    if path is not None:
        return convert(_read(path), model, f"local Hugging Face cache ({model})")
    if hub.offline():
        raise ConfigError(f'"{model}" is not in the catalogue or the local cache, and HF_HUB_OFFLINE is set; {near}')
    try:
        text = hub.fetched(model)
    except hub.Unreachable:
        raise ConfigError(
            f'"{model}" is not in the catalogue or the local cache, and the Hugging Face Hub cannot be reached; {near}'
        ) from None
    except hub.Refused as error:
        raise ConfigError(f'the Hub has no readable config.json for "{model}" (HTTP {error}); {near}') from None
    where = f"Hugging Face Hub ({model})"
    return convert(parse(text, where), model, where)


def job_from_hf(model: str | Mapping[str, Any], num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_hf`."""
    return job_from_parts(load(model), num_gpus, settings, habits=True)
