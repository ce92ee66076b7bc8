"""Rows that a scheduler packs samples into (Megatron-LM `dev`, sequence_packing_scheduler): the figures are of the fullest one.

Read from source: a rank's part of a microbatch has at most max_seqlen_per_dp_cp_rank tokens, ceil(seq_length / cp) where that is not given,
whatever micro_batch_size is. No measured run has it.

Dynamic context parallelism: Megatron-Core 0.19.2's own BalancedCPScheduler was run over 200 random batches (2 to 16 ranks, 1,024 to 4,096
tokens for each): every sample of n tokens got the ranks of `RANKS`, and no rank had more than its tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import (
    ConfigError,
    LayoutError,
    TrainingJob,
    UnsupportedError,
    advise,
    estimate,
    largest,
    plan,
)
from megatron_memory_estimator.device.outside import nccl_terms

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
    ("--micro-batch-size 2 --max-seqlen-per-dp-cp-rank 2048 --context-parallel-size 2",
     "--seq-length 8192 --micro-batch-size 1 --context-parallel-size 2"),
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


@pytest.mark.parametrize(
    "settings", [{"dynamic_context_parallel": True}, {"sequence_packing_scheduler": "dp_balanced"}, {}]
)
def test_a_row_has_a_token_at_least(settings: dict[str, Any]) -> None:
    for tokens in (0, -5):
        with pytest.raises(ConfigError, match=f"max_seqlen_per_dp_cp_rank={tokens} must be at least 1"):
            TrainingJob.from_hf("Qwen/Qwen3-8B", 8, max_seqlen_per_dp_cp_rank=tokens, **settings)
    with pytest.raises(ConfigError, match="seq_length"):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, seq_length=0, **settings))


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


DYNAMIC = "--dynamic-context-parallel --calculate-per-token-loss --dataloader-type single --micro-batch-size 1"
RANKS = [
    (2048, 8192, 4),
    (2048, 6724, 4),
    (1024, 4199, 8),
    (3000, 19901, 8),
    (1024, 3831, 4),
    (2048, 2060, 2),
    (4096, 4096, 1),
]
"""Tokens that a rank takes, of the longest sample, and its ranks: from runs of BalancedCPScheduler.gpus_needed."""


@pytest.mark.parametrize(("limit", "longest", "ranks"), RANKS)
def test_the_longest_sample_has_the_ranks_that_megatrons_scheduler_gives_it(
    limit: int, longest: int, ranks: int
) -> None:
    words = f"{WORDS} {DYNAMIC} --max-seqlen-per-dp-cp-rank {limit} --seq-length {longest} --max-position-embeddings {longest}"
    found = TrainingJob.from_megatron_args(words.split(), 8, megatron_core_version="0.20")
    assert (found.layout.cp, found.layout.dp, found.training.micro_batch_size) == (ranks, 8 // ranks, 1)
    assert limit <= found.training.seq_length // ranks < limit + 2
    assert any(f"{ranks} ranks with" in note for note in found.assumptions)


def test_ranks_that_follow_the_length_are_those_of_a_layout_with_as_many() -> None:
    """Where the longest sample fills its ranks, the fullest microbatch is that of the same static layout; before 0.20 no sample of a
    microbatch has another beside it, so that a rank with more room is not full."""
    static = peaks("--seq-length 8192 --micro-batch-size 1 --context-parallel-size 4")
    assert peaks(f"{DYNAMIC} --seq-length 8192 --max-seqlen-per-dp-cp-rank 2048") == static
    older = DYNAMIC.replace("dynamic", "hybrid")
    assert peaks(f"{older} --seq-length 8192 --max-seqlen-per-dp-cp-rank 2048 --context-parallel-size 2") == static
    assert peaks(f"{DYNAMIC} --seq-length 8192", megatron_core_version="0.20") == peaks(
        "--seq-length 8192 --micro-batch-size 1 --context-parallel-size 8"
    )
    alone = peaks("--seq-length 8192 --micro-batch-size 1")
    assert peaks(f"{DYNAMIC} --seq-length 8192 --max-seqlen-per-dp-cp-rank 16384") == alone
    assert peaks(f"{DYNAMIC} --seq-length 8192 --max-seqlen-per-dp-cp-rank 16384", megatron_core_version="0.20") > alone


def test_more_communicators_stand_beside_them() -> None:
    """One for every power of 2 below the ranks of data and context parallelism (Megatron-Core 0.19.2, create_hybrid_dp_cp_groups)."""
    given: dict[str, Any] = {"seq_length": 32768, "tp": 2}
    plain = TrainingJob.from_hf("Qwen/Qwen3-8B", 32, cp=4, **given)
    shared = TrainingJob.from_hf(
        "Qwen/Qwen3-8B", 32, dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=8192, **given
    )
    names = [term.name for job in (plain, shared) for term in nccl_terms(job)]
    assert names == [
        "NCCL (5 communicators)",
        "NCCL (7 communicators)",
    ]  # of 2 and 8 ranks; those of 4 share the longest


def test_what_does_not_follow_it_is_refused() -> None:
    given: dict[str, Any] = {
        "seq_length": 32768,
        "tp": 2,
        "dynamic_context_parallel": True,
        "max_seqlen_per_dp_cp_rank": 8192,
    }
    with pytest.raises(ConfigError, match="needs 64 ranks of 512 tokens, and 64 does not divide the 8 ranks of data"):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 16, **{**given, "max_seqlen_per_dp_cp_rank": 512})
    with pytest.raises(ConfigError, match="min_dynamic_context_parallel_size=16, and 16 does not divide the 8 ranks"):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 16, min_dynamic_context_parallel_size=16, **given)
    with pytest.raises(ConfigError, match="sequence_packing_scheduler=dp_balanced contradicts dynamic_context_paral"):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 16, sequence_packing_scheduler="dp_balanced", **given)
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, **given)
    with pytest.raises(UnsupportedError, match="plan does not search layouts of dynamic_context_parallel"):
        plan(job)
    with pytest.raises(ConfigError, match="largest asks for max_tokens_per_gpu there, not seq_length"):
        largest(job, "seq_length")
    found = largest(job, "max_tokens_per_gpu")
    assert found.given == 8192 < found.sure
    changed = {name for one in advise(job).outcomes for change in one.changes for name, _ in change.settings}
    assert changed
    assert not changed & {"tensor_model_parallel_size", "context_parallel_size", "world_size", "micro_batch_size"}
