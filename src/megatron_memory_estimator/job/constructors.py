"""The ways to make a TrainingJob: from a model, a configuration, Megatron-LM's arguments, a run file, Megatron-Bridge.

The readers of `inputs/` make jobs; the constructors find them through `doors.py`, so that users find all ways to a job at the job. Editors
and type checkers read constructors.pyi, which names every keyword.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..doors import door

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .settings_types import ArgumentSettings, Settings


def _made(name: str, *given: Any, **how: Any) -> Any:
    return door(name)(*given, **how)


class Constructors:
    """What makes a job; `TrainingJob` has them."""

    @classmethod
    def from_hf(cls, model: str | Mapping[str, Any], num_gpus: int | None = None, **settings: Unpack[Settings]) -> Self:
        """A job from a Hugging Face model: a Hub id, a directory, a config.json, "-" for standard input, or
        a mapping with the fields of a config.json.

        `settings` are Megatron's names, such as tensor_model_parallel_size=2 (or tp=2), recompute_granularity="full", gpu="H200":
        those of `megatron_memory_estimator.Settings`, by topic in docs/reference/settings.md and `megatron-memory estimate --help-all`.
        Raises ConfigError for an unknown model or setting, LayoutError for a layout that Megatron-Core refuses.
        """
        return _made("job from hf", model, num_gpus, settings)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], num_gpus: int | None = None, **settings: Unpack[Settings]) -> Self:
        """A job from TransformerConfig names (`config`) and settings as `from_hf` takes them for everything else."""
        return _made("job from config", config, num_gpus, settings)

    @classmethod
    def from_megatron_args(
        cls,
        args: Mapping[str, Any] | Sequence[str] | str | os.PathLike[str],
        num_gpus: int | None = None,
        **settings: Unpack[ArgumentSettings],
    ) -> Self:
        """A job from Megatron-LM arguments; Megatron's own defaults and derivations apply.

        `args` is a mapping of argument names (dashed or underscored; `vars(namespace)` too), a list of words as on a command
        line, the path of a YAML file (flat, or under MODEL_ARGS), or the path of a launch script, which is read, never run.
        `set_variables` gives values to variables of a script, `words` are those of its caller, `follow=True` lets it source files
        from elsewhere than its own folder; `ignore_unknown=True` passes over unknown arguments, `without_unmodelled=True`
        leaves out those of forks that only lower or only raise memory; other `settings`, those of `from_hf`, override the arguments.
        Raises ConfigError for unknown arguments and files that cannot be read, UnsupportedError for what is not modelled.
        """
        return _made("job from megatron args", args, num_gpus, settings, whole=True)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], num_gpus: int | None = None, **settings: Unpack[ArgumentSettings]
    ) -> Self:
        """A job from a run file of any framework that is known (docs/how-to/run_files.md).

        It is a launch script, which is read and never run, or a YAML file.

        `set_variables` gives values to variables, `words` what stands behind a script, `run_model` the model of a file that names none;
        other `settings`, those of `from_hf`, win over the file. Raises QuestionsError for all that a file leaves open, together, and
        ConfigError or UnsupportedError as `from_megatron_args`.
        """
        return _made("job from file", os.fspath(path), num_gpus, settings)

    @classmethod
    def from_bridge(cls, config: Any, num_gpus: int | None = None, **settings: Unpack[Settings]) -> Self:
        """A job from a Megatron-Bridge ConfigContainer, its saved YAML (a path), or a mapping of its sections.

        Any object with the sections model, train, optimizer, ddp and mixed_precision will do. GPUs follow from
        `data_parallel_size` where `num_gpus` is not given; `settings` override it. Raises ConfigError and UnsupportedError.
        """
        return _made("job from bridge", config, num_gpus, settings)
