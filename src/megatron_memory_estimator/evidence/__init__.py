"""What a run leaves behind about its memory: torch's memory snapshots, read safely, and what logs and tools print, in our words."""

from typing import Literal, get_args

Kind = Literal["allocated", "reserved", "nvidia-smi"]
"""Quantities of a GPU that an estimate has."""
KINDS: tuple[Kind, ...] = get_args(Kind)
