"""How many GPUs the words in front of a training start, or why that is not known.

Sources: pytorch/pytorch `torch/distributed/run.py`, `torch/distributed/launch.py`; microsoft/DeepSpeed `deepspeed/launcher/runner.py`;
huggingface/accelerate `src/accelerate/commands/launch.py`; Open MPI mpirun(1); horovod/horovod `horovod/runner/launch.py`;
modelscope/ms-swift `swift/cli/_megatron/main.py`; SchedMD slurm, srun(1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...wording import whole
from . import slurm
from .doubts import MARK, Doubt, bare, doubts_in, readable, unset_in

TORCHRUN = frozenset({"torchrun", "ft_launcher"})
LAUNCHING = re.compile(r"torch\.distributed\.(?:run|launch|elastic)|nvidia_resiliency_ext\..*")
MPI = frozenset({"mpirun", "mpiexec", "horovodrun", "mpiexec.hydra", "orterun"})


class Gpus(NamedTuple):
    """A number of GPUs; without one perhaps the reason why what says it is not known."""

    number: int | None = None
    unknown: str = ""


class _Part(NamedTuple):
    """A factor of the number of GPUs."""

    number: int | None
    unknown: str = ""


def gpus_of(
    words: Sequence[str], entry: str, env: Mapping[str, str], header: Mapping[str, str], doubts: Mapping[str, Doubt]
) -> Gpus:
    """The GPUs of a launch: `words` in front of its program, all launchers from the outermost on; `header` are options of sbatch."""
    name, own = _innermost(words)
    given = _options(own)
    if name == "torchrun":
        each = _part(given.get("nproc-per-node", "1"), doubts, "--nproc_per_node")
        many = _part("1" if "standalone" in given else given.get("nnodes", "1"), doubts, "--nnodes")
        return _product(_or(each, slurm.gpus_per_node(header)), _or(many, slurm.nodes(header)))
    if name == "deepspeed":
        return _deepspeed(given, doubts)
    if name == "accelerate":
        text = given.get("num-processes")
        if text is None:
            return Gpus(unknown="accelerate launch says no --num_processes; give --num-gpus")
        return Gpus(*_part(text, doubts, "--num_processes"))
    if entry.startswith("megatron "):
        each = _part(env.get("NPROC_PER_NODE") or "1", doubts, "NPROC_PER_NODE")
        return _product(each, _part(env.get("NNODES") or "1", doubts, "NNODES"))
    if name == "mpi":
        text = given.get("np") or given.get("n") or given.get("c")
        if text is not None:
            return Gpus(*_part(text, doubts, "-np"))
    return _tasks(words, own if name == "srun" else (), env, header, doubts)


def _innermost(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The launcher that starts the processes, and the words behind it: the last one, but Slurm's and MPI's that start another."""
    found, own = "", words
    for at, word in enumerate(words):
        base = word.split("/")[-1]
        kind = "mpi" if base in MPI else base if base in ("srun", "deepspeed") else ""
        if base in TORCHRUN or (at and words[at - 1] == "-m" and LAUNCHING.fullmatch(word)):
            kind = "torchrun"
        elif (base == "accelerate" and words[at + 1 : at + 2] == ["launch"]) or base == "accelerate.commands.launch":
            kind = "accelerate"
        if kind and not (kind in ("srun", "mpi") and found in ("torchrun", "deepspeed", "accelerate")):
            found, own = kind, words[at + 1 :]
    return found, own


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of a launcher by name, dashes and underscores alike; the last of each wins."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        match = re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(.*))?", word, re.DOTALL)
        if match is not None:
            following = words[at + 1] if at + 1 < len(words) else ""
            found[match.group(1).replace("_", "-")] = match.group(2) if match.group(2) is not None else following
    return found


def _part(text: str, doubts: Mapping[str, Doubt], option: str) -> _Part:
    """The number that an option says."""
    if MARK in text:
        keys = doubts_in(text)
        name = doubts[keys[0]].name if keys else unset_in(text)[0]
        why = doubts[keys[0]].why if keys else "which nothing sets"
        where = (f"${name}: {why}" if keys else f"${name}, {why}") if name else why
        return _Part(
            None, f"{option} takes its value from {where}; give {f'--set {name}=N or ' if name else ''}--num-gpus N"
        )
    number = whole(text)
    if number is None and (ends := re.fullmatch(r"(\d+):(\d+)", text)) is not None and ends.group(1) == ends.group(2):
        number = whole(ends.group(1))
    if number:
        return _Part(number)
    return _Part(None, f"{option} {readable(bare(text))[:40]} depends on the machines; give --num-gpus N")


def _or(part: _Part, number: int | None) -> _Part:
    """What is not known on the command line, as the header of the job says it."""
    return part if part.number or not number else _Part(number)


def _product(each: _Part, many: _Part) -> Gpus:
    if each.number and many.number:
        return Gpus(each.number * many.number)
    return Gpus(None, "; ".join(part.unknown for part in (each, many) if part.unknown))


def _deepspeed(given: Mapping[str, str], doubts: Mapping[str, Doubt]) -> Gpus:
    if "num-gpus" in given and ("num-nodes" in given or not {"hostfile", "H", "include", "i"} & given.keys()):
        each = _part(given["num-gpus"], doubts, "--num_gpus")
        return _product(each, _part(given.get("num-nodes", "1"), doubts, "--num_nodes"))
    reason = next((f"--{name}" for name in ("hostfile", "include") if name in given), "no --num_gpus")
    return Gpus(unknown=f"deepspeed with {reason} takes the GPUs that are there; give --num-gpus N")


def _tasks(
    words: Sequence[str],
    own: Sequence[str],
    env: Mapping[str, str],
    header: Mapping[str, str],
    doubts: Mapping[str, Doubt],
) -> Gpus:
    """Tasks of srun and sbatch, else the WORLD_SIZE that the script gives."""
    of_line = slurm.options([*own, *(words[1:] if words[:1] == ["sbatch"] else ())])
    unknown = next((name for name, value in of_line.items() if MARK in value and name != slurm.IMAGE), None)
    if unknown is not None:
        return Gpus(*_part(of_line[unknown], doubts, f"--{unknown}"))
    counted = slurm.tasks(of_line) or slurm.tasks({**header, **of_line})
    if counted is not None:
        return Gpus(counted)
    merged = {**header, **of_line}
    if "nodes" in merged and re.fullmatch(r"\d+-\d+", merged["nodes"]):
        return Gpus(unknown=f"--nodes {merged['nodes']} is a range; give --num-gpus N")
    unreadable = slurm.unreadable(merged)
    if unreadable:
        return Gpus(unknown=f"{unreadable}; give --num-gpus N")
    world = env.get("WORLD_SIZE")
    if world is not None and not (MARK in world and not doubts_in(world)):
        return Gpus(*_part(world, doubts, "WORLD_SIZE"))
    return Gpus()
