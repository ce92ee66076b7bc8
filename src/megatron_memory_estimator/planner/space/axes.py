"""The axes of a search: one per setting that it may change."""

from __future__ import annotations

import dataclasses

from ...dataclass import dataclass
from ...errors import ConfigError
from ...job.layout import SHORT
from ...job.settings import nearest


@dataclass(frozen=True)
class Space:
    """What is searched. An empty axis takes its values from the job and the model (`completed`)."""

    num_gpus: tuple[int, ...] = ()
    tensor_model_parallel_size: tuple[int, ...] = ()
    pipeline_model_parallel_size: tuple[int, ...] = ()
    virtual_pipeline_model_parallel_size: tuple[int, ...] = ()
    context_parallel_size: tuple[int, ...] = ()
    expert_model_parallel_size: tuple[int, ...] = ()
    expert_tensor_parallel_size: tuple[int, ...] = ()
    micro_batch_size: tuple[int, ...] = ()
    sequence_parallel: tuple[bool, ...] = ()
    cp_comm_type: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    use_distributed_optimizer: tuple[bool, ...] = ()
    use_precision_aware_optimizer: tuple[bool, ...] = ()
    optimizer_offload_fraction: tuple[float, ...] = ()
    features: tuple[str, ...] = ()


AXES = tuple(f.name for f in dataclasses.fields(Space))
PIPELINE = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
DEGREES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
"""The degrees of a point beside the pipeline, in the order of `Point`."""
WHOLE = ("num_gpus", *DEGREES[:1], *PIPELINE, *DEGREES[1:], "micro_batch_size")
"""Axes of whole numbers."""
SPLITS = ("even", "uneven", "layout")
"""How layers are split over stages: evenly; first and last stage apart where layers do not divide; by a generated
pipeline_model_parallel_layout."""
COMM_TYPES = ("p2p", "a2a", "all_gather")


def axis_name(word: str) -> str:
    """The axis of a name or short name. Raises ConfigError with the nearest match."""
    name = SHORT.get(word, word).replace("-", "_")
    if name == "world_size":
        name = "num_gpus"
    if name not in AXES:
        raise ConfigError(f'unknown axis "{word}".{nearest(word, [*SHORT, *AXES])} The axes are {", ".join(AXES)}.')
    return name
