"""From what users have (Hugging Face configs, Megatron settings) to a TrainingJob."""

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job")
YAML = (".yaml", ".yml")
"""Endings of files that describe a whole run."""
