"""Arguments that Megatron-LM does not have: those of forks and of older releases by their effect on memory, and all others.

Sources of `fork_arguments.csv`: the `arguments.py` and public launch scripts of Ascend/MindSpeed-LLM, microsoft/Megatron-DeepSpeed,
alibaba/Pai-Megatron-Patch and other forks of NVIDIA/Megatron-LM, and that of its older releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, cast, get_args

from ...job.assumption import Sign, Uncounted, bound
from ...job.layout import SHORT
from ...tables import rows_beside
from ...wording import dashed, shown
from ..file_keys import names_files
from ..questions import Question
from .table import arguments

EFFECTS = {
    "adapters": "trains adapters (LoRA)",
    "attention": "another attention",
    "buffers": "other communication buffers",
    "capacity": "another capacity of experts",
    "engine": "DeepSpeed's engine",
    "frozen": "freezes weights",
    "host": "keeps tensors on the host",
    "inference": "generates text",
    "lengths": "another length of rows",
    "logits": "logits in other parts",
    "model": "another architecture",
    "overlap": "tensors of an exchange live longer",
    "recompute": "another recomputation",
    "schedule": "another pipeline schedule",
    "second": "a second model",
    "split": "another split over GPUs",
    "states": "other gradients or optimizer states",
    "vision": "a vision model",
}
"""What an argument that decides memory does; such an argument is refused."""
READ = "read"
"""The effect of an argument that has a reading in Megatron-LM's terms (`readings.py`)."""
NONE = "none"
"""The effect of an argument that changes no tensor."""


class ForkArgument(NamedTuple):
    """One argument (underscored): who has it, its effect (one of EFFECTS, READ or NONE), and how a run with it differs in memory from one
    without: it `lowers` or `raises` it, may do `either`, or is another `model` or `engine`; "" for READ and NONE."""

    flag: str
    fork: str
    effect: str
    sign: str


@lru_cache(maxsize=1)
def fork_arguments() -> dict[str, ForkArgument]:
    """Arguments that Megatron-LM does not have, by name."""
    rows = (tuple(row.values()) for row in rows_beside(__file__, "fork_arguments.csv"))
    return {flag: ForkArgument(flag, *rest) for flag, *rest in rows}


TOPICS = re.compile(
    r"activation|lora|adapter|freeze|frozen|tune_|teacher|distill|deepspeed|offload|recompute|checkpointing|checkpoint_(act|in)|swap|mem_|memory|"
    r"zero|quant|dtype|precision|optimizer|gradients|states|fsdp|parallel|2d|tp_|pipe|schedule|overlap|chunk|slice|layers|layer_list|"
    r"hybrid|pattern|moe|expert|mla|attention|attn|norm|hidden|intermediate|heads|head_|_head|vocab|bias|softcap|window|mhc|dsa|index_|"
    r"compress|groups|hash|share|loss_type|mamba|1f1b|packed|packing"
)
"""Parts of names that speak of what a model is made of, how it is split, what is trained, and what is kept where, in whatever
program has them: an argument of such a name that is passed over is said in the verdict."""
MOST_NAMED = 40
"""Unknown arguments that a message names."""
REPORTS = re.compile(
    r"(log|print|tensorboard|wandb|timing_log|profile|one_logger|fim|blend|data|dataset|ckpt|dist_ckpt|no_save|exit|manual_gc|lr|"
    r"weight_decay|loss_scale|tokenizer_hf)_\w+"
)
"""Names of reports, data, checkpoints and schedules, which change no tensor, unless a topic of TOPICS stands in them."""
FILES = ("_path", "_paths", "_dir", "_file", "_name", "_coeff", "_seed", "_interval", "_iters", "_weight_decay")
"""Endings of names of files, coefficients and counts of steps."""


def tells(name: str) -> bool:
    """Whether the name of an argument that no table has says that it decides memory."""
    word = name.lower()
    return not word.endswith(FILES) and not word.startswith("log_") and TOPICS.search(word) is not None


@dataclass
class Others:
    """Arguments that Megatron-LM does not have, by what becomes of them; `read` are the words of all that are not refused."""

    ignore_unknown: bool = False
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    signed: dict[str, Uncounted] = field(default_factory=dict)
    without_effect: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)

    def take(self, flag: str, words: tuple[str, ...]) -> None:
        """One more argument, as it is written, with the words behind it."""
        name, flag = flag.lstrip("-").replace("-", "_"), shown(flag)[1:-1]
        known = fork_arguments().get(name)
        if known is None and names_files(name, list(words)):
            self.refused[name] = f"{flag} (names a file of settings, which is not read)"
        elif known is None and tells(name) and self.ignore_unknown and (near := _near(flag, SURE)):
            self.refused[name] = f"{flag}{near}"
        elif known is None and tells(name) and self.ignore_unknown:
            self.signed[name] = Uncounted(flag, "unknown")
        elif known is None and REPORTS.fullmatch(name) and not tells(name):
            self.without_effect[flag] = None
        elif known is None:
            self.unknown[flag] = None
        elif known.sign in get_args(Sign):
            self.signed[name] = Uncounted(flag, cast("Sign", known.sign), f"of {known.fork} ({EFFECTS[known.effect]})")
        elif known.effect in EFFECTS:
            self.refused[name] = f"{flag} of {known.fork} ({EFFECTS[known.effect]})"
        else:
            self.read[name] = words
            if known.effect == NONE:
                self.without_effect[flag] = None

    def merge(self, other: Others) -> None:
        """The arguments of another source too; they win."""
        self.read.update(other.read)
        self.refused.update(other.refused)
        self.signed.update(other.signed)
        self.without_effect.update(other.without_effect)
        self.unknown.update(other.unknown)

    def refusals(self, *, without: bool = False) -> Iterator[str]:
        """One sentence for all that decide memory; `without`: those whose sign is known are left out of the figures."""
        names = list(self.refused.values())
        bounded = [one for one in self.signed.values() if one.sign != "unknown"]
        if not without or not bound(bounded):
            names += [f"{one.argument} {one.whose}" for one in bounded]
        if names:
            verb = "decides memory and is" if len(names) == 1 else "decide memory and are"
            yield f"{', '.join(names)} {verb} not modelled{'' if without else self._way_on(bounded)}"

    def _way_on(self, bounded: list[Uncounted]) -> str:
        """What an answer without them would be, where nothing else is refused."""
        limit = "" if self.refused else bound(bounded)
        it, does = ("it", "it lowers") if len(bounded) == 1 else ("them", "they lower")
        ways = {
            "upper": f"an upper bound, for {does} memory",
            "lower": f"a lower bound, for {does.replace('lower', 'raise')} memory",
        }
        adapters = any(EFFECTS["adapters"] in one.whose for one in bounded)
        ours = " (with --peft lora --peft-dim N it counts adapters, as Megatron-Bridge has them)" if adapters else ""
        return f"; --without-unmodelled answers without {it}: {ways[limit]}{ours}" if limit else ""

    def uncounted(self, *, adapted: bool) -> tuple[Uncounted, ...]:
        """What the figures are without; `adapted`: the caller says which adapters there are, so that those of the run are not left out."""
        return tuple(one for one in self.signed.values() if not (adapted and EFFECTS["adapters"] in one.whose))

    def questions(self) -> Iterator[Question]:
        """One question for all that is misspelt, which only its file answers, and one for all else that no table has."""
        if self.ignore_unknown:
            return
        near = {flag: found for flag in self.unknown if (found := _near(flag, SURE))}
        if near:
            yield Question(f"{_named([f'{flag}{found}' for flag, found in near.items()])}: correct the spelling")
        if others := [f"{flag}{_near(flag)}" for flag in self.unknown if flag not in near]:
            yield Question(f"{_named(others)}, to pass over or to correct", "--ignore-unknown")

    def meant(self) -> set[str]:
        """Arguments that misspelt ones may mean, by their settings' names."""
        return {_nearest(flag, SURE) for flag in self.unknown} - {""}

    def warnings(self) -> Iterator[str]:
        """What is passed over, in one sentence each for what has no effect and what is unknown."""
        if self.without_effect:
            yield f"without effect on memory, passed over: {', '.join(self.without_effect)}"
        if self.unknown and self.ignore_unknown:
            yield f"unknown arguments passed over: {', '.join(self.unknown)}"


def _named(flags: list[str]) -> str:
    """Arguments that no table has, as many as a message names."""
    more = f" and {len(flags) - MOST_NAMED} more" if len(flags) > MOST_NAMED else ""
    return f"unknown Megatron argument{'s' if len(flags) > 1 else ''} {', '.join(flags[:MOST_NAMED])}{more}"


VERBS = ("json", "table", "html", "format", "all", "formulas", "phases", "help")
OF_RUNS = ("gpu", "num_gpus", "strict", "set", "follow", "ignore_unknown", "without_unmodelled", "model")
OWN = {*SHORT, *VERBS, *OF_RUNS}
"""Options of `megatron-memory`, which stand before --."""


NEAR, SURE = 0.8, 0.92
"""How much of a name is another's, where that may be meant, and where it surely is."""


def _near(flag: str, cutoff: float = NEAR) -> str:
    """` (did you mean --x?)` for an argument that is written nearly so, or nothing; an option of ours has its place."""
    if flag.lstrip("-").replace("-", "_") in OWN:
        return " (an option of megatron-memory: put it before --)"
    found = _nearest(flag, cutoff)
    return f" (did you mean {dashed(found)}?)" if found else ""


def _nearest(flag: str, cutoff: float) -> str:
    """The argument of Megatron-LM that is nearest to one, or none."""
    from difflib import get_close_matches

    found = get_close_matches(flag.lstrip("-").replace("-", "_"), list(arguments()[0]), n=1, cutoff=cutoff)
    return found[0] if found else ""
