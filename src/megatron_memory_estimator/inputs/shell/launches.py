"""What a script starts: the launch of a training, the condition and the loops that it stands in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..containers import OPTION, image_in
from .gpus import IMAGE
from .values import Unknown, Value, bare


class Branch(NamedTuple):
    """One way at a condition that cannot be decided: why not, which way, and whether it is the part behind `&&`, which is meant to
    run."""

    why: str
    way: int
    follows: bool = False


class Round(NamedTuple):
    """One pass of a loop: its line, its variable, and the value in this pass. A `while` has no variable."""

    line: int
    name: str
    value: str


@dataclass
class Launch:
    """One start of a training.

    `entry` is the program: a path, the module behind `-m`, or two words such as `megatron sft`. `words` stand behind it, `launcher`
    in front of it, from the outermost program on, all as bash passes them; parts that are not known say why. `env` is its environment,
    `header` the options of Slurm's job, `files` the texts that the script wrote itself to files until then, by their paths without a
    leading ./, `lost` the files that it sources and that are not there. Without `num_gpus`, `gpus_unknown` says why, and how to give it,
    where something says a number that is not known. `compared` are variables and words of the caller that nothing sets, with the values
    that conditions of the script compare them with. `doubts` is all that was met in the script and comes from outside. `origins` says of
    each word from which word of the command, which is `source`, it was made, and how that one is written; `counted` is the environment that
    counts GPUs.
    """

    entry: str = ""
    words: list[Value] = field(default_factory=list)
    num_gpus: int | None = None
    env: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: tuple[Unknown, ...] = ()
    line: int = 0
    launcher: list[Value] = field(default_factory=list)
    gpus_unknown: str = ""
    files: dict[str, Value] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    branch: tuple[Branch, ...] = ()
    rounds: tuple[Round, ...] = ()
    header: dict[str, Value] = field(default_factory=dict)
    compared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = field(default="", repr=False)
    origins: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    counted: dict[str, Value] = field(default_factory=dict, repr=False)

    @property
    def container(self) -> str:
        """The container image that it runs in, where its name says something of its libraries."""
        return image_in([f"{OPTION}={bare(self.header.get(IMAGE, ''))}", *map(bare, self.launcher)])
