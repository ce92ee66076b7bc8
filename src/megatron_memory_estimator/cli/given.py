"""The job of a command line: of a model or a run's file, and of options as words."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from ..inputs import is_run_file
from ..inputs.everyday import in_megatrons_words
from ..job.settings import field_kind
from ..job.training_job import TrainingJob
from ..wording import shown, signed, whole
from .options import SECTIONS

NUMBER_OR_EXPRESSION = {"moe_layer_freq", "linear_attention_freq"}


def job_from_options(values: dict[str, Any]) -> TrainingJob:
    """The job of a command line."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    model = given.pop("model")
    if given.pop("untie", False):
        if given.get("share_embeddings_and_output_weights"):
            raise ConfigError(
                "--untie-embeddings-and-output-weights and --share-embeddings-and-output-weights exclude each other"
            )
        given["share_embeddings_and_output_weights"] = False
    parts = {f.name: f for _, part in SECTIONS for f in dataclasses.fields(part)}
    for name in list(given):
        if name in parts and isinstance(given[name], str):
            given[name] = parsed(parts[name], given[name])
    given = in_megatrons_words(given)
    num_gpus = given.pop("world_size", None)
    if isinstance(model, Mapping):
        return TrainingJob.from_hf(model, num_gpus=num_gpus, **given)
    words = [model] if isinstance(model, str) else list(model)
    if "set_variables" in given:
        given["set_variables"] = variables(given["set_variables"])
    if words[0].startswith("--"):
        return TrainingJob.from_megatron_args(words, num_gpus, **given)
    if is_run_file(words[0]):
        from ..inputs.runs.files import job_from_file

        return job_from_file(words[0], num_gpus, given, words[1:])
    if words[0].endswith("_config") and not os.path.exists(words[0]):
        return job_of_recipe(words, num_gpus, given)
    if len(words) > 1 and words[1].startswith("-"):
        raise ConfigError(
            f"Megatron-LM arguments after -- describe a run without a model name; give the options of {shown(words[0])} without --"
        )
    if len(words) > 1:
        raise ConfigError(f"one model at a time: {shown(words[1])} follows {shown(words[0])}; compare takes several")
    for name, option in (
        ("set_variables", "--set"),
        ("follow", "--follow"),
        ("ignore_unknown", "--ignore-unknown"),
        ("without_unmodelled", "--without-unmodelled"),
        ("run_model", "--model"),
    ):
        if given.pop(name, None):
            raise ConfigError(f"{option} goes with a launch script or another run file, not with a model")
    return TrainingJob.from_hf(words[0], num_gpus=num_gpus, **given)


def job_of_recipe(words: Sequence[str], num_gpus: int | None, given: dict[str, Any]) -> TrainingJob:
    """The job of a recipe of Megatron-Bridge by its name, with words of run_recipe.py behind it."""
    from ..inputs.dialects.bridge import DIALECT, run_of_recipe
    from ..inputs.dialects.job import job_of

    for name in ("set_variables", "follow", "ignore_unknown", "without_unmodelled"):
        given.pop(name, None)
    return job_of(DIALECT, run_of_recipe(words, given.pop("run_model", "")), num_gpus, given)


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not (name.isidentifier() or whole(name)):
            raise ConfigError(f"--set {shown(pair)} must be NAME=VALUE, or 1=VALUE for the first positional parameter")
        found[name] = value
    return found


def parsed(field: dataclasses.Field[Any], text: str) -> Any:
    """A word of the command line in the setting's type; `none` stands for null."""
    kind = field_kind(field)
    if text.lower() in ("none", "null") and "None" in str(field.type):
        return None
    if kind == "variants":
        return _object(field.name, text)
    if kind in ("list", "words"):
        return tuple(word for word in text.replace(",", " ").split() if word)
    if kind == "ints":
        words = text.strip("[]() ").replace(",", " ").split()
        if not words or not all(whole(word) is not None for word in words):
            raise ConfigError(f"{field.name}={shown(text)} must be whole numbers such as 2,4")
        return tuple(int(word) for word in words)
    if field.metadata.get("words") and text not in field.metadata["words"]:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"{field.name}={shown(text)} must be a number, or one of {', '.join(field.metadata['words'])}"
            ) from None
    if field.name in NUMBER_OR_EXPRESSION and (number := signed(text.strip())) is not None:
        return number
    return text


def _object(name: str, text: str) -> Any:
    """A JSON object of the command line."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f"{name}={shown(text)} must be a JSON object") from None
