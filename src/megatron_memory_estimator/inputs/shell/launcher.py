"""How many GPUs a launcher starts. Sources: torchrun (torch/distributed/run.py), Slurm srun and sbatch, mpirun."""

from __future__ import annotations

import re

from ...wording import whole
from .doubts import MARK


def options(words: list[str]) -> dict[str, str]:
    """Options of a launcher by name, dashes and underscores alike."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        match = re.fullmatch(r"(--?[A-Za-z][\w-]*)(?:=(.*))?", word)
        if (short := re.fullmatch(r"-([Nn])([0-9]+)", word)) is not None:
            found[short.group(1)] = short.group(2)
        elif match is not None:
            following = words[index + 1] if index + 1 < len(words) else ""
            value = match.group(2) if match.group(2) is not None else following
            found[match.group(1).lstrip("-").replace("_", "-")] = value
    return found


def count(text: str | None) -> int | None:
    """A number of GPUs or nodes; 2:4 is from 2 to 4, gpu:8 or gpu:h100:8 is 8."""
    if text is None or MARK in text:
        return None
    return whole(text.rsplit(":", 1)[-1])


def gpus_of(words: list[str], inner: int | None = None) -> int | None:
    """GPUs of a command line in front of the training script; None if it does not say."""
    given = options(words)
    names = {word.split("/")[-1] for word in words}
    if names & {"torchrun", "ft_launcher"} or any("torch.distributed" in word for word in words):
        per, nodes = given.get("nproc-per-node", "1"), given.get("nnodes", "1")
        each, many = count(per), count(nodes)
        return each * many if each and many else None
    if "srun" in names or "sbatch" in names:
        return slurm(given, inner)
    if names & {"mpirun", "mpiexec"}:
        return count(given.get("np") or given.get("n"))
    return None


def slurm(given: dict[str, str], inner: int | None = None) -> int | None:
    """GPUs of Slurm options; a torchrun inside each task counts its own GPUs."""
    nodes = count(given.get("nodes") or given.get("N"))
    tasks = count(given.get("ntasks") or given.get("n"))
    per = count(given.get("ntasks-per-node"))
    gpus = count(given.get("gpus-per-node") or given.get("gres"))
    if inner is not None:
        return None
    if tasks is not None:
        return tasks
    if nodes is not None and (per or gpus):
        return nodes * (per if per and per > 1 else gpus or per or 1)
    return None


def sbatch_options(text: str) -> dict[str, str]:
    """The options of the #SBATCH lines of a script."""
    lines = re.findall(r"^#SBATCH[ \t]+(.*)$", text, re.MULTILINE)
    return options([word for line in lines for word in line.split("#")[0].split()])


def sbatch_gpus(text: str) -> int | None:
    """GPUs of the #SBATCH lines of a script."""
    return slurm(sbatch_options(text))


def slurm_variables(text: str) -> dict[str, str]:
    """What Slurm sets for a job with these #SBATCH lines, where they say it. Source: SchedMD slurm, sbatch(1), OUTPUT
    ENVIRONMENT VARIABLES."""
    header, _, _ = text.partition("<<")  # lines in a here-document belong to another job
    given = sbatch_options(header)
    nodes = count(given.get("nodes") or given.get("N"))
    per = count(given.get("ntasks-per-node"))
    tasks = count(given.get("ntasks") or given.get("n")) or (nodes * per if nodes and per else None)
    gpus = count(given.get("gpus-per-node") or given.get("gres"))
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": per,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_GPUS_ON_NODE": gpus,
    }
    return {name: str(value) for name, value in found.items() if value is not None}
