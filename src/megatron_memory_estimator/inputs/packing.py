"""Rows that a scheduler packs samples into: the job that is estimated has the fullest of them as its sequence.

Source: Megatron-LM `dev`, arguments sequence_packing_scheduler, max_seqlen_per_dp_cp_rank, dynamic_context_parallel and
min_dynamic_context_parallel_size; `megatron/core/datasets/data_schedule.py` (DefaultDynamicCPScheduler). Megatron-Core 0.19
`megatron/core/pipeline_parallel/hybrid_cp_schedule.py` (BalancedCPScheduler.gpus_needed).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..job.assumption import Assumption
from ..job.layout import Layout
from ..job.model import Model
from ..job.packing import DYNAMIC, PACKS
from ..job.settings import checked
from ..job.training import Training
from ..modules.kinds import has_compressed
from ..tape.tensor import ceil_div, round_up


class Rows(NamedTuple):
    """A job whose sequence is the fullest row, and what is said of it."""

    model: Model
    training: Training
    degrees: dict[str, Any]
    """Degrees of the layout that follow."""
    said: list[str]


def packed(model: Model, t: Training, degrees: dict[str, Any], world: Any) -> Rows:
    """The job whose microbatch is the fullest row; `degrees` are those given of the layout, `world` the number of GPUs, if it is known.

    Positions begin anew in every sample, so that a longer row needs no more of them. DeepSeek-V4's rows are those of the run. Raises
    ConfigError where the GPUs are too few for the longest sample, and for a row without tokens.
    """
    if t.max_seqlen_per_dp_cp_rank is not None and t.max_seqlen_per_dp_cp_rank < 1:
        raise ConfigError(f"max_seqlen_per_dp_cp_rank={t.max_seqlen_per_dp_cp_rank} must be at least 1")
    if t.seq_length < 1:
        return Rows(model, t, {}, [])  # legality says why
    if t.dynamic_context_parallel and t.sequence_packing_scheduler not in (None, DYNAMIC):
        raise ConfigError(
            f"sequence_packing_scheduler={t.sequence_packing_scheduler} contradicts dynamic_context_parallel; give one of them"
        )
    if t.dynamic_context_parallel or t.sequence_packing_scheduler == DYNAMIC:
        return _dynamic(model, t, degrees, world if isinstance(world, int) and world > 0 else None)
    if not t.sequence_packing_scheduler or has_compressed(model):
        return Rows(model, t, {}, [])
    ranks = _degree(degrees, "context_parallel_size")
    tokens = t.max_seqlen_per_dp_cp_rank or ceil_div(t.seq_length, ranks)
    row = max(tokens * ranks, t.seq_length)  # a sample that is longer is a row alone
    if (row, 1) == (t.seq_length, t.micro_batch_size):
        return Rows(model, t, {}, [])
    what = f"max_seqlen_per_dp_cp_rank {tokens:,} x context_parallel_size {ranks}"
    if row > tokens * ranks:
        what = f"the longest sample, which is longer than {what}"
    said = (
        f"sequence_packing_scheduler={t.sequence_packing_scheduler} packs samples of up to {t.seq_length:,} tokens: the figures are of the "
        f"fullest microbatch, one row of {row:,} tokens ({what})"
    )
    longer = dataclasses.replace(t, seq_length=row, micro_batch_size=1)
    return Rows(_with_positions(model, t, row), longer, {}, [Assumption(said, f"packed rows of {row:,} tokens")])


def _dynamic(model: Model, t: Training, degrees: dict[str, Any], world: int | None) -> Rows:
    """The job whose context-parallel ranks are those of the longest sample, each of them full.

    Rows are padded to multiples of twice the ranks that share one. Before 0.20 a microbatch is one sample. A step has at most the
    microbatches of samples that are all as long.
    """
    tp, cp, pp = (_degree(degrees, f"{kind}_parallel_size") for kind in ("tensor_model", "context", "pipeline_model"))
    group = max(world // (tp * pp), 1) if world else cp
    limit = t.max_seqlen_per_dp_cp_rank or ceil_div(t.seq_length, group)
    needed = 1 << (ceil_div(t.seq_length, limit) - 1).bit_length()
    ranks = max(needed, t.min_dynamic_context_parallel_size)
    if world and group % ranks:
        why, fix = (
            f"seq_length={t.seq_length} needs {ranks} ranks of {limit} tokens",
            "give max_seqlen_per_dp_cp_rank more tokens",
        )
        if ranks > needed:
            why, fix = f"min_dynamic_context_parallel_size={ranks}", "make that smaller"
        raise ConfigError(
            f"dynamic_context_parallel: {why}, and {ranks} does not divide the {group} ranks of data and context parallelism; {fix}, or "
            "use other GPUs"
        )
    filled = limit if t.mcore >= PACKS else min(limit, t.seq_length)
    row = round_up(filled * ranks, tp * ranks * (2 if ranks > 1 else 1))
    batch = t.global_batch_size
    steps = ""
    if batch is not None:
        microbatches = ceil_div(batch * t.seq_length, group * filled)
        batch, steps = microbatches * (group // ranks), f"; a step has at most {microbatches:,} microbatches"
    said = (
        f"dynamic_context_parallel gives a sample as many ranks as its length needs: the figures are of the fullest microbatch, {ranks} "
        f"ranks with {row // ranks:,} tokens each (seq_length {t.seq_length:,}, max_seqlen_per_dp_cp_rank {limit:,}), whatever "
        f"context_parallel_size and micro_batch_size are; shorter samples take fewer ranks{steps}"
    )
    training = dataclasses.replace(
        t,
        seq_length=row,
        micro_batch_size=1,
        global_batch_size=batch,
        dynamic_context_parallel=True,
        sequence_packing_scheduler=DYNAMIC,
    )
    short = f"{ranks} ranks for the longest samples"
    return Rows(_with_positions(model, t, row), training, {"context_parallel_size": ranks}, [Assumption(said, short)])


def _with_positions(model: Model, t: Training, row: int) -> Model:
    """The model with positions for a row of samples, each of which has enough."""
    limit = model.max_position_embeddings or 0
    if model.position_embedding_type == "learned_absolute" or not t.seq_length <= limit < row:
        return model
    return dataclasses.replace(model, max_position_embeddings=row)


def _degree(degrees: dict[str, Any], name: str) -> int:
    """A degree of the layout as it is given, 1 where it is not."""
    found: int = checked(Layout.__dataclass_fields__[name], degrees.get(name, 1))
    return max(found, 1)
