"""What a run file is for a dialect: a program with its words, or a document that a program would read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from ...dataclass import dataclass
from ..loaded_model import LoadedModel
from ..questions import Question


def nothing_beside(path: str) -> str | None:
    """No file is beside the run."""
    return None


class Around(NamedTuple):
    """What is around a run's text: files that it names, and models by the names that it has; None for those of any name or folder."""

    text_of: Callable[[str], str | None] = nothing_beside
    named: Callable[[str], LoadedModel] | None = None


@dataclass(frozen=True)
class Run:
    """A training run as its file starts it.

    program    the script, the module behind -m, or "megatron sft"; "" for a document
    words      the words behind it
    document   the mapping of a YAML file that is the run itself
    env        variables that the program would see
    num_gpus   GPUs that the launcher starts; None where it does not say
    variables  what the caller gives with --set
    model      what the caller gives with --model
    text_of    the text of a file by its path: beside the run's file, or written by the script; None where there is none
    gpus_unknown  why the launcher's number of GPUs is not known, where something says one
    notes      what the reader of a script says of it
    wanted_gpus  GPUs that the caller asks for, which win over the file's
    named      a model by its name or folder, where not every one may be opened
    lost       files that the script sources and that are not opened
    container  the image that the script runs in, where its name says something of its libraries

    A variable that has no value stands in `words` as $NAME.
    """

    path: str = "the text"
    program: str = ""
    words: tuple[str, ...] = ()
    document: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    ignore_unknown: bool = False
    without_unmodelled: bool = False
    text_of: Callable[[str], str | None] = nothing_beside
    gpus_unknown: str = ""
    notes: tuple[str, ...] = ()
    named: Callable[[str], LoadedModel] | None = None
    wanted_gpus: int | None = None
    lost: tuple[str, ...] = ()
    container: str = ""

    @property
    def script(self) -> str:
        """The last part of the program's path, without its ending."""
        return self.program.rsplit("/", 1)[-1].removesuffix(".py")


@dataclass(frozen=True)
class Reading:
    """What a dialect takes out of a run.

    model        a model by name, of which `settings` are the run's; with `args` it only names the run
    config       the architecture by Megatron's names, where the run states it itself and `model` only names it
    settings     settings that the run says, by Megatron's names
    defaults     settings that hold where it does not, over the model's config and not with `args`
    args         words of Megatron-LM, whose own defaults hold; settings win over them
    num_gpus     GPUs that train
    node_gpus    GPUs of a node, where the launcher takes the cluster's: without `num_gpus` the fewest nodes are taken that go
    env          environment variables of the training process
    assumptions  what was taken from the framework's defaults or read into the file, a sentence each
    warnings     what is not modelled, and what has no effect, a sentence each
    questions    what is missing
    refused      what decides memory and is not modelled, a sentence each
    bridged      whether Megatron-Bridge's modules make the towers of a model, not some of the framework's own
    text_only    beginnings of the types (`model_type` of the whole model) of which the run builds the language model alone
    """

    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    num_gpus: int | None = None
    node_gpus: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()
    refused: tuple[str, ...] = ()
    bridged: bool = False
    text_only: tuple[str, ...] = ()


class Dialect(NamedTuple):
    """A framework: its name, the documentation's page about it, whether a run is its own, and what such a run says.

    `degrees` is the dotted path of the section in which degrees of parallelism stand, "" for the top, None where no other setting follows
    from them; `takes_flags` says that words give them as `--name value`; `follows` are the keys of a file that name other files and that
    are read (any other such key is refused, `file_keys.py`); `words` are the values that its reader tells apart, with blanks between them.

    `knows` looks at the program and at keys only; `read` raises ConfigError for a file that is broken, UnsupportedError for another
    backend than Megatron.
    """

    name: str
    page: str
    knows: Callable[[Run], bool]
    read: Callable[[Run], Reading]
    degrees: Callable[[Run], str] | None
    takes_flags: bool = False
    follows: tuple[str, ...] = ()
    words: str = ""
