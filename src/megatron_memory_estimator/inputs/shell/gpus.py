"""How many GPUs the words in front of a training start, or why that is not known; and what Slurm's options say of a job.

Sources: pytorch/pytorch `torch/distributed/run.py`, `torch/distributed/launch.py`; microsoft/DeepSpeed `deepspeed/launcher/runner.py`;
huggingface/accelerate `src/accelerate/commands/launch.py`; Open MPI mpirun(1); horovod/horovod `horovod/runner/launch.py`;
modelscope/ms-swift `swift/cli/_megatron/main.py`; hiyouga/LLaMA-Factory `src/llamafactory/launcher.py`; SchedMD slurm, sbatch(1) and
srun(1), OPTIONS and OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...job.hardware import DEFAULT_GPU
from ...wording import shown, whole
from .values import Value, bare, base, behind, head, outside_in, partition, readable, unset_in

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "a": "array"}
VALUED = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gres", "gpus", "gpus-per-task", "tasks-per-node"}
)
ARRAY, MOST_TASKS = "array", 24
"""The option that starts a job several times, each with another index."""
IMAGE = "container-image"
"""The option of NVIDIA/pyxis that says which container a job runs in."""


def options(words: Sequence[Value]) -> dict[str, Value]:
    """The options of Slurm that count nodes, tasks or GPUs, and the container, by their long names; the last of each wins."""
    found: dict[str, Value] = {}
    for at, word in enumerate(words):
        long, equals, value = partition(word, "=")
        match = re.match(r"--([a-z-]+)$|-([NnGa])", head(long))
        if match is None or (match.group(1) and not isinstance(long, str)):
            continue
        name = match.group(1) or SHORT[match.group(2)]
        if match.group(2):
            value, equals = behind(word, 2), "=" if len(word) > 2 or not isinstance(word, str) else ""
        if name in VALUED or name in (IMAGE, ARRAY):
            found[name] = value if equals else words[at + 1] if at + 1 < len(words) else ""
    if "tasks-per-node" in found:
        found.setdefault("ntasks-per-node", found["tasks-per-node"])
    return found


def header_options(text: str) -> dict[str, Value]:
    """The options of a script's #SBATCH lines, which stand in front of its first command."""
    words: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH") and line[7:8] in (" ", "\t"):
            said = re.sub(r"\s#.*", "", line[7:])
            try:
                words += shlex.split(said)
            except ValueError:
                words += said.split()
    return options(words)


GIVEN = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
}
"""The option of sbatch that sets a variable."""


def array_tasks(given: Mapping[str, Value]) -> tuple[str, ...]:
    """The indices of an array of jobs: `0-2`, `1,3,5`, `0-15:4`, `0-9%2`; none where it is no array, or one too large to name."""
    found: list[int] = []
    said = given.get(ARRAY, "")
    for part in said.partition("%")[0].split(",") if isinstance(said, str) and said else ():
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([1-9][0-9]{0,5}))?)?", part.strip())
        if match is None:
            return ()
        found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))[: MOST_TASKS + 1]
    return tuple(map(str, found)) if len(found) <= MOST_TASKS else ()


def asked_for(given: Mapping[str, str]) -> dict[str, Value]:
    """Options that a caller's variables stand for, which win over those of a script as sbatch's own options do."""
    return {option: given[name] for name, option in GIVEN.items() if name in given}


def gpus(text: Value | None) -> int | None:
    """The GPUs of `8`, `h100:8`, `gpu:h100:8` or `gpu:8,nvme:1`."""
    if not isinstance(text, str):
        return None
    part = next((one for one in text.split(",") if one.startswith("gpu") or one[:1].isdigit() or ":" in one), text)
    return 1 if part == "gpu" else whole(re.sub(r"\(.*", "", part).rsplit(":", 1)[-1])


def kind(given: Mapping[str, Value]) -> str:
    """The kind of GPUs that options of Slurm ask for: `h200` of `gpu:h200:8` or `h200:8`."""
    for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
        text = given.get(name)
        for part in text.split(",") if isinstance(text, str) else ():
            words = part.removeprefix("gpu:").partition("(")[0].split(":")
            if (part.startswith("gpu:") or name != "gres") and not words[0].isdigit() and words[0] not in ("", "gpu"):
                return words[0]
    return ""


def kind_note(kind: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """What is said of a kind of GPUs that Slurm is asked for, where the caller says none: its name may stand for several."""
    if not kind or given.get("gpu"):
        return ()
    return (
        f"the script asks Slurm for GPUs of the kind {shown(kind)}; {DEFAULT_GPU} is judged unless --gpu names them",
    )


def unreadable(given: Mapping[str, Value]) -> str:
    """The first option whose count of nodes, tasks or GPUs is none, in words; nothing where all are read."""
    for name in sorted(VALUED & given.keys()):
        text = given[name]
        counts = gpus if "gpu" in name or name == "gres" else whole
        if isinstance(text, str) and (name != "gres" or "gpu" in text) and not counts(text):
            return f"--{name}={shown(text)} is no count"
    return ""


def gpus_per_node(given: Mapping[str, Value]) -> int | None:
    """How many GPUs a node of the job has."""
    found = gpus(given.get("gpus-per-node") or given.get("gres"))
    total, many = gpus(given.get("gpus")), whole(given.get("nodes"))
    per_task, per_node = gpus(given.get("gpus-per-task")), whole(given.get("ntasks-per-node"))
    if found is None and total and many and total % many == 0:
        return total // many
    if found is None and per_task and per_node:
        return per_task * per_node
    return found


def tasks(given: Mapping[str, Value]) -> int | None:
    """How many tasks options start, one process each; without a word of them one for each GPU."""
    if "ntasks" in given:
        return whole(given["ntasks"])
    many, per = whole(given.get("nodes")), whole(given.get("ntasks-per-node"))
    if "ntasks-per-node" in given:
        return many * per if many and per else None
    total, per_task = gpus(given.get("gpus")), gpus(given.get("gpus-per-task"))
    if total:
        return total // (per_task or 1)
    each = gpus_per_node(given)
    return many * each if many and each else None


def job_variables(given: Mapping[str, Value]) -> dict[str, str]:
    """What Slurm sets for a job with these options, where they say it."""
    many, per = whole(given.get("nodes")), whole(given.get("ntasks-per-node"))
    started = whole(given.get("ntasks")) or (many * per if many and per else None)
    each = started // many if started and many and started % many == 0 else None
    found = {
        "SLURM_NNODES": many,
        "SLURM_JOB_NUM_NODES": many,
        "SLURM_NTASKS_PER_NODE": per,
        "SLURM_NTASKS": started,
        "SLURM_NPROCS": started,
        "SLURM_GPUS_ON_NODE": gpus_per_node(given),
        "SLURM_GPUS_PER_NODE": given.get("gpus-per-node"),
        "SLURM_TASKS_PER_NODE": None if each is None else f"{each}(x{many})" if many != 1 else each,
    }
    return {name: str(value) for name, value in found.items() if isinstance(value, str | int)}


# -- launchers --------------------------------------------------------------------------------------------------------------
TORCHRUN = frozenset({"torchrun", "ft_launcher"})
LAUNCHING = re.compile(r"torch\.distributed\.(?:run|launch|elastic)|nvidia_resiliency_ext\..*")
COMMANDS = {"megatron ": "1", "llamafactory-cli ": "", "lmf ": ""}
"""Beginnings of commands that start torchrun themselves, with the processes of a node where NPROC_PER_NODE says none: "" for all of its
GPUs."""
MPI = frozenset({"mpirun", "mpiexec", "horovodrun", "mpiexec.hydra", "orterun"})


class Gpus(NamedTuple):
    """A number of GPUs; without one perhaps the reason why what says it is not known."""

    number: int | None = None
    unknown: str = ""


def gpus_of(words: Sequence[Value], entry: str, env: Mapping[str, Value], header: Mapping[str, Value]) -> Gpus:
    """The GPUs of a launch: `words` in front of its program, all launchers from the outermost on; `header` are options of sbatch."""
    name, own = _innermost(words)
    given = _options(own)
    if name == "torchrun":
        each = _part(given.get("nproc-per-node") or env.get("PET_NPROC_PER_NODE") or "1", "--nproc_per_node")
        nodes = given.get("nnodes") or env.get("PET_NNODES") or "1"  # torchrun's own variables for its options
        many = _part("1" if "standalone" in given else nodes, "--nnodes")
        # what is not known on the command line, the header of the job may say
        per_node, of_job = gpus_per_node(header), whole(header.get("nodes"))
        each = each if each.number or not per_node else Gpus(per_node)
        return _product(each, many if many.number or not of_job else Gpus(of_job))
    if name == "deepspeed":
        return _deepspeed(given)
    if name == "accelerate":
        text = given.get("num-processes")
        if text is None:
            return Gpus(unknown="accelerate launch says no --num_processes; give --num-gpus")
        return _part(text, "--num_processes")
    if entry.startswith(tuple(COMMANDS)):
        return _of_command(entry, env, header)
    if name == "mpi":
        text = given.get("np") or given.get("n") or given.get("c")
        if text is not None:
            return _part(text, "-np")
    of_slurm = [*(own if name == "srun" else ()), *(words[1:] if words[:1] == ["sbatch"] else ())]
    return _tasks(of_slurm, env, header)


def _of_command(entry: str, env: Mapping[str, Value], header: Mapping[str, Value]) -> Gpus:
    """GPUs of a command that starts torchrun itself: NPROC_PER_NODE for each of NNODES."""
    command = entry.split(" ")[0] + " "
    text = env.get("NPROC_PER_NODE") or COMMANDS[command] or str(gpus_per_node(header) or "")
    if not text:
        return Gpus(unknown=f"{command}without NPROC_PER_NODE takes the GPUs that are there; give --num-gpus N")
    return _product(_part(text, "NPROC_PER_NODE"), _part(env.get("NNODES") or "1", "NNODES"))


def _innermost(words: Sequence[Value]) -> tuple[str, Sequence[Value]]:
    """The launcher that starts the processes, and the words behind it: the last one, but Slurm's and MPI's that start another."""
    found, own = "", words
    for at, word in enumerate(words):
        name = base(word)
        kind = "mpi" if name in MPI else name if name in ("srun", "deepspeed") else ""
        if name in TORCHRUN or (at and words[at - 1] == "-m" and LAUNCHING.fullmatch(readable(word))):
            kind = "torchrun"
        elif (name == "accelerate" and words[at + 1 : at + 2] == ["launch"]) or name == "accelerate.commands.launch":
            kind = "accelerate"
        if kind and not (kind in ("srun", "mpi") and found in ("torchrun", "deepspeed", "accelerate")):
            found, own = kind, words[at + 1 :]
    return found, own


def _options(words: Sequence[Value]) -> dict[str, Value]:
    """Options of a launcher by name, dashes and underscores alike; the last of each wins."""
    found: dict[str, Value] = {}
    for at, word in enumerate(words):
        name, equals, value = partition(word, "=")
        match = re.fullmatch(r"--?([A-Za-z][\w-]*)", name) if isinstance(name, str) else None
        if match is not None:
            following = words[at + 1] if at + 1 < len(words) else ""
            found[match.group(1).replace("_", "-")] = value if equals else following
    return found


def _part(text: Value, option: str) -> Gpus:
    """The number that an option says."""
    if not isinstance(text, str):
        outside = outside_in(text)
        name = outside[0].name if outside else unset_in(text)[0]
        why = outside[0].why if outside else "which nothing sets"
        where = (f"${name}: {why}" if outside else f"${name}, {why}") if name else why
        given = outside[0].option if outside else name
        return Gpus(
            None, f"{option} takes its value from {where}; give {f'--set {given}=N or ' if given else ''}--num-gpus N"
        )
    number = whole(text)
    if number is None and (ends := re.fullmatch(r"(\d+):(\d+)", text)) is not None and ends.group(1) == ends.group(2):
        number = whole(ends.group(1))
    if number:
        return Gpus(number)
    return Gpus(None, f"{option} {text[:40]} depends on the machines; give --num-gpus N")


def _product(each: Gpus, many: Gpus) -> Gpus:
    if each.number and many.number:
        return Gpus(each.number * many.number)
    return Gpus(None, "; ".join(part.unknown for part in (each, many) if part.unknown))


def _deepspeed(given: Mapping[str, Value]) -> Gpus:
    if "num-gpus" in given and ("num-nodes" in given or not {"hostfile", "H", "include", "i"} & given.keys()):
        each = _part(given["num-gpus"], "--num_gpus")
        return _product(each, _part(given.get("num-nodes", "1"), "--num_nodes"))
    reason = next((f"--{name}" for name in ("hostfile", "include") if name in given), "no --num_gpus")
    return Gpus(unknown=f"deepspeed with {reason} takes the GPUs that are there; give --num-gpus N")


def _tasks(own: Sequence[Value], env: Mapping[str, Value], header: Mapping[str, Value]) -> Gpus:
    """Tasks of srun and sbatch, whose options are `own`, else the WORLD_SIZE that the script gives."""
    of_line = options(own)
    unknown = next((name for name, value in of_line.items() if not isinstance(value, str) and name != IMAGE), None)
    if unknown is not None:
        return _part(of_line[unknown], f"--{unknown}")
    merged = {**header, **of_line}
    counted = tasks(of_line) or tasks(merged)
    if counted is not None:
        return Gpus(counted)
    if re.fullmatch(r"\d+-\d+", bare(merged.get("nodes", ""))):
        return Gpus(unknown=f"--nodes {bare(merged['nodes'])} is a range; give --num-gpus N")
    wrong = unreadable(merged)
    if wrong:
        return Gpus(unknown=f"{wrong}; give --num-gpus N")
    world = env.get("WORLD_SIZE")
    if world is not None and (isinstance(world, str) or outside_in(world)):
        return _part(world, "WORLD_SIZE")
    return Gpus()
