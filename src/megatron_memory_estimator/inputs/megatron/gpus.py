"""GPUs of a run, as its file says them, and whether its layout and its batch go with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...job.layout import fewest_gpus
from ..questions import Question
from ..setting_names import full_name
from .files import Given
from .reading import Reading

DEGREES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)  # fmt: skip


def gpus_of(source: Given, num_gpus: int | None) -> int | None:
    """GPUs of the run: the caller's, or the source's; a test runner's usual node only where the layout and the batch fit it."""
    if num_gpus is not None or source.num_gpus is None:
        return num_gpus
    if not source.gpus_said.startswith("num_gpus not given"):
        return source.num_gpus
    reading = Reading(source.words.values, {})
    if source.num_gpus % _grid(reading)[0]:
        return None
    rows = max(reading.number("micro_batch_size"), 1) * (source.num_gpus // _dense(reading))
    return source.num_gpus if reading.number("global_batch_size") % rows == 0 else None


def gpus_asked(source: Given, reading: Reading, settings: Mapping[str, Any]) -> Iterator[Question]:
    """What is asked where the layout or the batch does not go with the GPUs that a file says: scripts say one node until somebody
    fills in how many there are."""
    gpus, given = source.num_gpus, {full_name(name) for name in settings}
    if gpus is None or gpus != reading.num_gpus or given & {*DEGREES, "world_size"}:
        return
    least, said = _grid(reading)
    if gpus % least:
        yield Question(
            f"num_gpus={gpus}, which the file says, is not divisible by {said}={least}", f"--num-gpus {least}"
        )
        return
    batch, micro = reading.number("global_batch_size"), reading.number("micro_batch_size")
    if not batch or not micro or given & {"global_batch_size", "micro_batch_size"}:
        return
    ranks = gpus // _dense(reading)
    if batch % (micro * ranks):
        yield Question(
            f"global_batch_size={batch} is not divisible by micro_batch_size*data_parallel_size={micro}*{ranks}={micro * ranks}",
            f"--global-batch-size {-(-batch // (micro * ranks)) * micro * ranks}",
        )


def _dense(reading: Reading) -> int:
    tp, pp, cp = (max(reading.number(name), 1) for name in DEGREES[:3])
    return tp * pp * cp


def _grid(reading: Reading) -> tuple[int, str]:
    """The fewest GPUs of a layout, and the degrees that make them."""
    tp, pp, cp, ep = (max(reading.number(name), 1) for name in DEGREES[:4])
    etp = reading.number(DEGREES[4]) or tp
    dense = _dense(reading)
    least = fewest_gpus(tp * cp, etp * ep if reading.get("num_experts") else 1, pp)
    if least == dense:
        return least, "tensor_model_parallel_size*pipeline_model_parallel_size*context_parallel_size"
    return least, f"the least of tp {tp}, pp {pp}, cp {cp} and ep {ep}, etp {etp}"
