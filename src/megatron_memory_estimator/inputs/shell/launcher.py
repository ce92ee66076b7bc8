"""How many GPUs a launcher starts. Sources: torchrun (torch/distributed/run.py), Slurm srun and sbatch, mpirun."""

from __future__ import annotations

import re

from ..argument_words import UNSET


def options(words: list[str]) -> dict[str, str]:
    """Options of a launcher by name, dashes and underscores alike."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        match = re.fullmatch(r"(--?[A-Za-z][\w-]*)(?:=(.*))?", word)
        if (short := re.fullmatch(r"-([Nn])(\d+)", word)) is not None:
            found[short.group(1)] = short.group(2)
        elif match is not None:
            following = words[index + 1] if index + 1 < len(words) else ""
            value = match.group(2) if match.group(2) is not None else following
            found[match.group(1).lstrip("-").replace("_", "-")] = value
    return found


def count(text: str | None) -> int | None:
    """A number of GPUs or nodes; 2:4 is from 2 to 4, gpu:8 or gpu:h100:8 is 8."""
    if text is None or UNSET in text:
        return None
    digits = re.fullmatch(r"(?:.*:)?(\d+)", text)
    return int(digits.group(1)) if digits else None


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


def sbatch_gpus(text: str) -> int | None:
    """GPUs of the #SBATCH lines of a script."""
    words = [
        word for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE) for word in line.split("#")[0].split()
    ]
    return slurm(options(words)) if words else None
