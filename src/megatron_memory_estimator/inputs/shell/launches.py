"""What a script starts: which programs train, by the words of a command (the one table of them), and the launch of one.

Sources of the names: zhongbozhu/Megatron-LM `pretrain_*.py`, `examples/`, `tools/`; modelscope/ms-swift `swift/cli/_megatron/main.py`;
volcengine/verl `verl/trainer/`, `verl/experimental/`, `recipe/`; THUDM/slime `train.py`, `train_async.py`; NVIDIA-NeMo/RL
`examples/`; alibaba/ROLL `examples/start_*_pipeline.py`; FlagOpen/FlagScale `run.py`, `flagscale/cli.py`; AMD-AIG-AIMA/Primus
`examples/run_*pretrain.sh`, `primus/train.py`; NVIDIA-NeMo/Megatron-Bridge `scripts/training/`,
`scripts/performance/setup_experiment.py`; AI-Hypercomputer/gpu-recipes `custom_setup_experiment.py`; hiyouga/LLaMA-Factory
`src/llamafactory/cli.py`, `launcher.py`; inclusionAI/AReaL `examples/`, `areal/launcher/`, `areal/infra/launcher/`; baidu-baige/LoongForge
`loongforge/train.py`; NovaSky-AI/SkyRL `skyrl/train/`, `examples/`; alibaba/ChatLearn `chatlearn/entrypoint.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..containers import OPTION, image_in
from .gpus import IMAGE, kind
from .values import Unknown, Value, bare, readable

SCRIPT = re.compile(
    r"(?:.*/)?(?:(?:pretrain|train|finetune|run)\w*|\w*(?:pretrain|train)\w*|\w*setup_experiment|start_\w+_pipeline)\.py"
    r"|(?:.*/)?swift/cli/_megatron/(?:sft|pt|rlhf)\.py|(?:.*/)?(?:llamafactory/launcher|chatlearn/entrypoint)\.py"
)
"""Files of Python that train."""
_KINDS = r"_(?:rl|grpo|ppo|dapo|gspo|rloo|sapo|sft|dpo|rw)(?:_\w+)?\.py"
CONFIGURED = re.compile(rf"(?:.*/)?\w+{_KINDS}")
"""... and those that train where they are given a file with --config."""
MODULE = re.compile(
    r"verl\.trainer\.(?:main_ppo\w*|\w*sft_trainer\w*)|(?:(?:\w+\.)*recipe|verl\.experimental)\.(?:\w+\.)*(?:main_\w+|\w+_main)"
    r"|skyrl(?:_train|\.train)\.(?:\w+\.)*main\w*|(?:examples|integrations)\.(?:\w+\.)*main_\w+"
    r"|areal\.(?:infra\.)?launcher\.(?:local|ray|slurm)|(?:\w+\.)*\w*(?:pretrain|train|finetune)"
)
"""Modules behind `-m` that train."""
PRIMUS = "primus-cli"
"""Primus' command, which has options of its own, or of Slurm, in front of `train pretrain`."""
COMMANDS = {
    "megatron": ("sft", "pt", "rlhf"),
    "flagscale": ("train",),
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
}
"""Programs of frameworks, with the first words that train."""
SCRIPTS = re.compile(r"(?:.*/)?scripts/training/\w+\.sh|(?:.*/)?examples/run_(?:\w+_)?pretrain\.sh")
"""Shell scripts of frameworks that start a training whose words they are given; they are not read themselves."""
NOT_TRAINING = re.compile(
    r"server|generat|inference|(?:^|_)infer(?:_|\.|$)|(?:^|_|\.)eval|convert|hf2m|m?core2hf|preprocess|prepare_data|export|theoretical|"
    r"quantize|benchmark_dataset|download|tokenize"
)
"""In names of programs that serve, evaluate, convert or prepare, and do not train."""
LAUNCHING_MODULE = re.compile(
    r"torch\.distributed\.(?:run|launch)|deepspeed.*|nvidia_resiliency_ext\..*|accelerate\..*|torchrun"
)
MEGATRON_FLAG = re.compile(r"--(?:num-layers|hidden-size|micro-batch-size|tensor-model-parallel-size)(?:=.*)?")
"""What a program is given that trains under any name."""
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_STARTERS = frozenset({"torchrun", "deepspeed", "accelerate", "ft_launcher", "horovodrun"})
_MENTIONED = re.compile(
    r"(?:pretrain|train|finetune|run)\w*\.py|\bmegatron\s+(?:sft|pt|rlhf)\b|\bverl\.trainer\.|\bflagscale\s+train\b|start_\w+_pipeline\.py|"
    rf"(?:setup_experiment|chatlearn/entrypoint)\.py|\bskyrl(?:_train|\.train)\.|\b(?:llamafactory-cli|lmf)\s+train\b|\bareal\.(?:infra\.)?launcher\.|{_KINDS}\s+--config\b"
)


class Entry(NamedTuple):
    """The program of a command: its name, how many words stand in front of it, and where its own words begin."""

    name: str
    at: int
    rest: int

    @property
    def base(self) -> str:
        """The name without a folder."""
        return self.name.split("/")[-1]

    @property
    def trains(self) -> bool:
        """Whether it is a training, and no server, evaluation or conversion."""
        return NOT_TRAINING.search(self.base.split(" ")[-1] if " " in self.name else self.base) is None


def mentions(text: str) -> bool:
    """Whether a text may start a training."""
    return _MENTIONED.search(text) is not None


def entry_of(values: Sequence[Value], env: Sequence[str] = ()) -> Entry | None:
    """The program among the words of a command that trains, or that serves, evaluates or converts; None where there is none.
    `env` are names in its environment."""
    words = [readable(value) for value in values]
    starts_python = _PYTHON.fullmatch(words[0]) is not None
    for at, word in enumerate(words):
        found, before = bare(values[at]), words[at - 1] if at else ""
        if before == "-m" and at > 1 and not LAUNCHING_MODULE.fullmatch(found):
            is_known = MODULE.fullmatch(found) or NOT_TRAINING.search(found.split(".")[-1]) or _is_named(words, at)
            return Entry(found, at - 1, at + 1) if is_known else None
        if starts_python and word == "-c":
            return None
        if word.startswith("-"):
            continue
        if (named := _of_framework(words, found, at)) is not None:
            return named
        if SCRIPT.fullmatch(found) or _is_named(words, at) or _is_of_framework(found, env) or _is_configured(words, at):
            return Entry(found, at, at + 1)
        if at and found.endswith(".py") and (not before.startswith("-") or before == "-u"):
            is_other = NOT_TRAINING.search(found.split("/")[-1])  # what follows are its words
            return Entry(found, at, at + 1) if is_other else None
    return None


def _of_framework(words: Sequence[str], found: str, at: int) -> Entry | None:
    """The program of a framework with its first word (`megatron sft`)."""
    if found.split("/")[-1] == PRIMUS and "train" in words[at:]:
        behind = words.index("train", at)
        return Entry(f"{PRIMUS} train", behind, behind + 2)
    subcommands = COMMANDS.get(found.split("/")[-1], ())
    if not subcommands or not re.fullmatch(r"[a-z]+", "".join(words[at + 1 : at + 2])):
        return None
    name = f"{found.split('/')[-1]} {words[at + 1]}"
    is_known = words[at + 1] in subcommands or NOT_TRAINING.search(words[at + 1])
    return Entry(name, at, at + 2) if is_known else None


def _is_named(words: Sequence[str], at: int) -> bool:
    """Whether the word is a program of any name that gets Megatron-LM's sizes."""
    is_program = words[at].endswith(".py") or (words[at - 1] == "-m" and not LAUNCHING_MODULE.fullmatch(words[at]))
    if not is_program or not any(map(MEGATRON_FLAG.fullmatch, words[at + 1 :])):
        return False
    return any(_PYTHON.fullmatch(word) or word.split("/")[-1] in _STARTERS for word in words[:at])


def _is_configured(words: Sequence[str], at: int) -> bool:
    """Whether the word is a program that trains what the file behind --config says."""
    configured = any(word.partition("=")[0] == "--config" for word in words[at + 1 :])
    return configured and CONFIGURED.fullmatch(words[at]) is not None


def _is_of_framework(path: str, env: Sequence[str]) -> bool:
    """Whether it is a shell script of a framework, started as one: Primus's needs EXP."""
    return SCRIPTS.fullmatch(path) is not None and ("EXP" in env or "scripts/training/" in path)


# -- launches -------------------------------------------------------------------------------------------------------------
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
    where something says a number that is not known. `takers` are variables by the word of the caller
    that they take. `compared` are variables and words of the caller that nothing sets, with the values
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
    takers: dict[str, str] = field(default_factory=dict)
    source: str = field(default="", repr=False)
    origins: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    counted: dict[str, Value] = field(default_factory=dict, repr=False)

    @property
    def loops(self) -> tuple[tuple[int, str], ...]:
        """The loops that it stands in: line and variable."""
        return tuple((one.line, one.name) for one in self.rounds)

    @property
    def container(self) -> str:
        """The container image that it runs in, where its name says something of its libraries."""
        return image_in([f"{OPTION}={bare(self.header.get(IMAGE, ''))}", *map(bare, self.launcher)])

    @property
    def gpu_kind(self) -> str:
        """The kind of GPUs that it asks Slurm for; empty where it names none."""
        return kind(self.header)
