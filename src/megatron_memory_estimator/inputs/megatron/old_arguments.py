"""What arguments of Megatron-LM's older releases mean today, where today's program stops at them.

Sources: NVIDIA/Megatron-LM `megatron/training/arguments.py` of 2021 to 2026, `megatron/core/num_microbatches_calculator.py`.
"""

from __future__ import annotations

from ...wording import dashed, shown, whole
from ..questions import Question
from .reading import Reading, one_number


def old_recomputation(reading: Reading) -> None:
    """--checkpoint-activations and --activations-checkpoint-*: what recomputation was called until 2022."""
    method = reading.others.get("activations_checkpoint_method")
    kind = reading.others.get("activations_checkpoint_granularity")
    count = reading.others.get("activations_checkpoint_num_layers") or reading.others.get("checkpoint_num_layers")
    on = bool(reading.given.get("checkpoint_activations"))
    if not (on or method or kind) or reading.given.get("recompute_granularity") is not None:
        return
    words = [dashed(name) for name in reading.others if name.startswith(("activations_checkpoint", "checkpoint_num"))]
    flags = ", ".join([*(["--checkpoint-activations"] if on else []), *words])
    if kind == ("selective",):
        reading.changes["recompute_granularity"] = "selective"
        reading.notes.append(f"{flags}: read as --recompute-granularity selective")
        return
    layers = one_number(reading, "activations_checkpoint_num_layers", count) if count else 1
    how = method[0] if method else "uniform"
    if how not in ("uniform", "block"):
        reading.questions.append(Question(f"--activations-checkpoint-method is uniform or block, not {shown(how)}"))
    reading.changes |= {"recompute_granularity": "full", "recompute_method": how, "recompute_num_layers": layers}
    stops = "; Megatron-LM of today stops at --checkpoint-activations" if on else ""
    reading.notes.append(
        f"{flags}: read as --recompute-granularity full --recompute-method {how} --recompute-num-layers {layers}{stops}"
    )


def old_values(reading: Reading) -> None:
    """Sizes and values under names that today's program stops at."""
    for old, new in (
        ("batch_size", "micro_batch_size"),
        ("model_parallel_size", "tensor_model_parallel_size"),
    ):
        value = reading.given.get(old)
        if value is not None and new not in reading.given:
            reading.changes[new] = value
            reading.is_read_as(old, f"{dashed(new)} {value}; Megatron-LM of today stops at it")
    if reading.given.get("position_embedding_type") == "learned":
        reading.changes["position_embedding_type"] = "learned_absolute"
    if reading.given.get("moe_token_dispatcher_type") == "alltoall_seq":
        reading.changes["moe_token_dispatcher_type"] = "alltoall"
        reading.notes.append("--moe-token-dispatcher-type alltoall_seq, gone since 2025, is read as alltoall")
    _batch_schedule(reading)


SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _batch_schedule(reading: Reading) -> None:
    """The largest batch of a schedule `0:384 200B:768`: it keeps the most microbatches in flight."""
    schedule = reading.given.get("step_batch_size_schedule")
    if schedule is None:
        return
    sizes = [whole(step.rpartition(":")[2]) for step in str(schedule).strip("[]").replace(",", " ").split()]
    if not sizes or not all(sizes):
        reading.questions.append(
            Question(f"--step-batch-size-schedule={shown(schedule)} must hold steps such as 0:384 200B:768")
        )
    elif reading.given.get("global_batch_size") is None:
        largest = max(size for size in sizes if size)
        reading.changes["global_batch_size"] = largest
        reading.notes.append(f"global_batch_size {largest}, the largest of --step-batch-size-schedule, is taken")
    else:
        reading.questions.append(
            Question("--step-batch-size-schedule and --global-batch-size exclude each other; take one out")
        )
