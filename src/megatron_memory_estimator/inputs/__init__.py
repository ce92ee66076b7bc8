"""From what users have (Hugging Face configs, Megatron settings) to a TrainingJob."""

import os

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job", ".pbs", ".lsf", ".batch", ".sl", ".qsub")
YAML = (".yaml", ".yml")
"""Endings of files that describe a whole run."""
NEITHER = f"is neither a YAML file ({', '.join(YAML)}) nor a launch script ({', '.join(SCRIPTS)})"


def is_run_file(path: str) -> bool:
    """Whether a path names a file that describes a whole run: YAML, or a launch script."""
    return path.lower().endswith(YAML) or is_script(path)


def is_script(path: str) -> bool:
    """Whether a path names a launch script: by its ending, or without one by the file's first two bytes."""
    if path.lower().endswith(SCRIPTS):
        return True
    try:
        if "." in os.path.basename(path) or not os.path.isfile(path):  # a pipe would be waited for
            return False
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False
