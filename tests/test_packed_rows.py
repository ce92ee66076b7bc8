"""Rows that a scheduler packs samples into (Megatron-LM `dev`, sequence_packing_scheduler): the figures are of the fullest one.

Read from source: a rank's part of a microbatch has at most max_seqlen_per_dp_cp_rank tokens, ceil(seq_length / cp) where that is not given,
whatever micro_batch_size is. No measured run has it.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate

WORDS = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 4 --ffn-hidden-size 4096 "
    "--swiglu --max-position-embeddings 8192 --vocab-size 64000 --bf16 --normalization RMSNorm --disable-bias-linear "
    "--use-distributed-optimizer --position-embedding-type rope --untie-embeddings-and-output-weights --global-batch-size 64 "
    "--transformer-impl transformer_engine"
)


def peaks(words: str, **settings: Any) -> list[int]:
    job = TrainingJob.from_megatron_args(f"{WORDS} {words}".split(), 8, **settings)
    return [stage.peak_allocated_bytes for stage in estimate(job).stages]


@pytest.mark.parametrize(("packed", "row"), [
    ("--micro-batch-size 4", "--seq-length 8192 --micro-batch-size 1"),
    ("--micro-batch-size 1 --max-seqlen-per-dp-cp-rank 16384", "--seq-length 16384 --micro-batch-size 1 --max-position-embeddings 16384"),
    ("--micro-batch-size 2 --max-seqlen-per-dp-cp-rank 6000 --context-parallel-size 2",
     "--seq-length 12000 --micro-batch-size 1 --max-position-embeddings 12000 --context-parallel-size 2"),
    ("--micro-batch-size 2 --context-parallel-size 2", "--seq-length 8192 --micro-batch-size 1 --context-parallel-size 2"),
])  # fmt: skip
def test_a_packed_row_is_a_sequence_of_its_tokens(packed: str, row: str) -> None:
    assert peaks(f"--seq-length 8192 --sequence-packing-scheduler dp_balanced {packed}") == peaks(row)


def test_a_row_is_said_and_without_a_scheduler_its_length_has_no_effect() -> None:
    words = f"{WORDS} --seq-length 8192 --micro-batch-size 1 --max-seqlen-per-dp-cp-rank 16384".split()
    packed = TrainingJob.from_megatron_args([*words, "--sequence-packing-scheduler", "dp_balanced"], 8)
    assert any("one row of 16,384 tokens" in note for note in packed.assumptions)
    alone = TrainingJob.from_megatron_args(words, 8)
    assert "max_seqlen_per_dp_cp_rank has no effect without sequence_packing_scheduler" in alone.warnings


def test_the_length_of_a_row_lifts_no_limit_where_nothing_packs() -> None:
    """A sequence beyond the positions is refused as without it, and so is one that is packed."""
    words = f"{WORDS} --seq-length 16384 --micro-batch-size 1 --max-seqlen-per-dp-cp-rank 16384".split()
    for more in ([], ["--sequence-packing-scheduler", "dp_balanced"]):
        with pytest.raises(LayoutError, match="seq_length=16384 is more than max_position_embeddings=8192"):
            estimate(TrainingJob.from_megatron_args([*words, *more], 8))


def test_rows_of_deepseek_v4_that_are_not_its_microbatch_are_named() -> None:
    given: dict[str, Any] = {"cp": 2, "ep": 32, "seq_length": 4096, "sequence_packing_scheduler": "dp_balanced"}
    for row, said in ((2048, False), (4096, True)):
        job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V4-Flash", 64, max_seqlen_per_dp_cp_rank=row, **given)
        assert any("not of 8,192" in one for one in job.warnings) is said


def test_the_same_by_name() -> None:
    """By settings of a model by its name, as by arguments."""
    packed = TrainingJob.from_hf(
        "Qwen/Qwen3-0.6B", 8, seq_length=4096, sequence_packing_scheduler="dp_balanced", max_seqlen_per_dp_cp_rank=8192
    )
    assert (packed.training.seq_length, packed.training.micro_batch_size) == (8192, 1)
