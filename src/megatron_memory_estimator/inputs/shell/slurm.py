"""What Slurm's options say of a job: nodes, tasks, GPUs, and the variables that a job gets from them.

Source: SchedMD slurm, sbatch(1) and srun(1), OPTIONS and OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ...wording import shown, whole
from .doubts import MARK

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus"}
VALUED = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gres", "gpus", "gpus-per-task", "tasks-per-node"}
)
IMAGE = "container-image"
"""The option of NVIDIA/pyxis that says which container a job runs in."""


def options(words: Sequence[str]) -> dict[str, str]:
    """The options of Slurm that count nodes, tasks or GPUs, and the container, by their long names; the last of each wins."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        match = re.fullmatch(r"--([a-z-]+)(?:=(.*))?|-([NnG])(.*)", word, re.DOTALL)
        if match is None:
            continue
        name = match.group(1) or SHORT[match.group(3)]
        if name in VALUED or name == IMAGE:
            value = match.group(2) if match.group(1) else match.group(4) or None
            found[name] = value if value is not None else words[at + 1] if at + 1 < len(words) else ""
    if "tasks-per-node" in found:
        found.setdefault("ntasks-per-node", found["tasks-per-node"])
    return found


def header(text: str) -> dict[str, str]:
    """The options of a script's #SBATCH lines, which stand in front of its first command."""
    words: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH") and line[7:8] in (" ", "\t"):
            words += _words(line[7:])
    return options(words)


GIVEN = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
}
"""The option of sbatch that sets a variable."""


def asked_for(given: Mapping[str, str]) -> dict[str, str]:
    """Options that a caller's variables stand for, which win over those of a script as sbatch's own options do."""
    return {option: given[name] for name, option in GIVEN.items() if name in given}


def _words(line: str) -> list[str]:
    line = re.sub(r"\s#.*", "", line)
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def count(text: str | None) -> int | None:
    """A number of nodes or tasks; a range is none."""
    return whole(text) if text is not None and MARK not in text else None


def gpus(text: str | None) -> int | None:
    """The GPUs of `8`, `h100:8`, `gpu:h100:8` or `gpu:8,nvme:1`."""
    if text is None or MARK in text:
        return None
    parts = [part for part in text.split(",") if part.startswith("gpu") or part[:1].isdigit() or ":" in part] or [text]
    if parts[0] == "gpu":
        return 1
    return whole(re.sub(r"\(.*", "", parts[0]).rsplit(":", 1)[-1])


def unreadable(given: Mapping[str, str]) -> str:
    """The first option whose count of nodes, tasks or GPUs is none, in words; nothing where all are read."""
    for name in sorted(VALUED & given.keys()):
        text = given[name]
        counts = gpus if "gpu" in name or name == "gres" else count
        about_gpus = name != "gres" or "gpu" in text
        if MARK not in text and about_gpus and not counts(text):
            return f"--{name}={shown(text)} is no count"
    return ""


def nodes(given: Mapping[str, str]) -> int | None:
    """How many nodes options ask for; 2-4 is not known."""
    return count(given.get("nodes"))


def gpus_per_node(given: Mapping[str, str]) -> int | None:
    """How many GPUs a node of the job has."""
    found = gpus(given.get("gpus-per-node") or given.get("gres"))
    total, many = gpus(given.get("gpus")), nodes(given)
    per_task, per_node = gpus(given.get("gpus-per-task")), count(given.get("ntasks-per-node"))
    if found is None and total and many and total % many == 0:
        return total // many
    if found is None and per_task and per_node:
        return per_task * per_node
    return found


def tasks(given: Mapping[str, str]) -> int | None:
    """How many tasks options start, one process each; without a word of them one for each GPU."""
    if "ntasks" in given:
        return count(given["ntasks"])
    many, per = nodes(given), count(given.get("ntasks-per-node"))
    if "ntasks-per-node" in given:
        return many * per if many and per else None
    total, per_task = gpus(given.get("gpus")), gpus(given.get("gpus-per-task"))
    if total:
        return total // (per_task or 1)
    each = gpus_per_node(given)
    return many * each if many and each else None


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """What Slurm sets for a job with these options, where they say it."""
    many, per = nodes(given), count(given.get("ntasks-per-node"))
    started = count(given.get("ntasks")) or (many * per if many and per else None)
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
    return {name: str(value) for name, value in found.items() if value is not None and MARK not in str(value)}
