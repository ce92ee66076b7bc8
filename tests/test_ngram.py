"""Tables of n-grams: lengths of published checkpoints, and the rows of a rank, from the branches of Megatron-LM that have them."""

from __future__ import annotations

import contextlib
import time

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.errors import ConfigError, UnsupportedError
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import load_bundled
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.hybrid import is_prime, tables
from megatron_memory_estimator.inputs.resolve import job_from_parts
from megatron_memory_estimator.modules.counts import Count, count_parameters
from megatron_memory_estimator.modules.flash_next import rows_of_rank

QWEN = tables(20_000_000, 16)
V41 = tables(16_000_000, 24), tables(16_000_000, 24, behind=24)


def counted(name: str) -> Count:
    return count_parameters(job_from_parts(load_bundled(name), 64, {}, habits=True).model)


def test_every_table_is_as_long_as_the_next_prime() -> None:
    assert QWEN[:3] == (20_000_003, 20_000_023, 20_000_033) and sum(QWEN) == 320_001_446
    assert V41[0][:3] == (16_000_057, 16_000_079, 16_000_081) and V41[1][-2:] == (16_000_879, 16_000_889)
    assert tuple(map(sum, V41)) == (384_006_168, 384_016_682)  # engram_num_embeddings of DeepSeek-V4.1-Flash


@pytest.mark.parametrize(
    ("rows", "expert_parallel", "first", "last"),
    [
        (QWEN, 1, 320_001_446, 320_001_446), (QWEN, 3, 106_667_156, 106_667_140), (QWEN, 8, 40_000_189, 40_000_173),
        (QWEN, 64, 5_000_031, 5_000_015), (V41[0], 3, 128_002_068, 128_002_044), (V41[0], 64, 6_000_109, 6_000_085),
        (V41[1], 8, 48_002_097, 48_002_073), (V41[1], 64, 6_000_270, 6_000_246),
    ],
)  # fmt: skip
def test_expert_parallel_ranks_share_the_rows_of_each_table(
    rows: tuple[int, ...], expert_parallel: int, first: int, last: int
) -> None:
    assert rows_of_rank(rows, expert_parallel) == first
    assert rows_of_rank(rows, expert_parallel, expert_parallel - 1) == last
    assert sum(rows_of_rank(rows, expert_parallel, rank) for rank in range(expert_parallel)) == sum(rows)


def test_v41_is_counted_and_its_memory_refused() -> None:
    """Published: 552 billion parameters, and 196 in tables; 16 are active, without embedding and the fusion of n-grams."""
    count = counted("deepseek-ai/DeepSeek-V4.1-Flash")
    in_tables = sum(map(sum, V41)) * 256
    assert (in_tables, count.total) == (196_613_849_600, 748_494_654_064)
    assert count.total - in_tables - 2 * 157_327_360 == 551_566_149_744
    assert count.active - 129_280 * 5120 - 2 * 157_327_360 == 15_815_903_344
    with pytest.raises(UnsupportedError, match=r"\(DeepSeek-V4\.1\) are in no release of Megatron-Core"):
        estimate(TrainingJob.from_hf("deepseek-ai/DeepSeek-V4.1-Flash", 64))


def test_flash_next_is_counted() -> None:
    """transformers 5.23: Qwen4ExpForCausalLM has 176,943,899,520 parameters; published are 125 billion and 51 in tables, 6 of them active
    beside embedding and head."""
    count = counted("Qwen/Qwen3.8-Flash-Next")
    assert count.total == 176_943_899_520
    assert round((count.active - 2 * 248_320 * 2560) / 1e9) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engram-vocab-sizes 20000 20000 --engram-layer-ids 3", "is cut over expert-parallel ranks alone"),
    ],
)
def test_what_is_known_of_arguments_that_are_not_modelled_is_said(words: str, said: str) -> None:
    base = (
        "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 "
        "--micro-batch-size 1 --bf16 --transformer-impl transformer_engine"
    )
    with pytest.raises(UnsupportedError, match=f"not modelled. Known of it: .*{said}"):
        TrainingJob.from_megatron_args((base + " " + words).split(), 8, megatron_core_version="0.20")


def test_primes_are_told_from_their_likes() -> None:
    """All below 10,000 against a sieve, Carmichael numbers and strong pseudoprimes to few bases (OEIS A014233)."""
    sieve = [True] * 10_000
    sieve[:2] = False, False
    for number in range(2, 100):
        sieve[number * number :: number] = [False] * len(sieve[number * number :: number])
    assert [is_prime(number) for number in range(10_000)] == sieve
    assert not any(
        map(is_prime, (561, 2047, 1_373_653, 25_326_001, 3_215_031_751, 2_152_302_898_747, 341_550_071_728_321))
    )
    assert is_prime(2**61 - 1) and not is_prime((2**31 - 1) * (2**61 - 1))


@pytest.mark.parametrize(
    "change", [{"ngram_vocab_size_base": 10**17}, {"heads_per_ngram": 10**9}, {"ngram_size": 10**9}, {"ngram_size": 0}]
)
def test_tables_of_any_size_are_read_or_refused_at_once(change: dict[str, int]) -> None:
    config = {**entries()["Qwen/Qwen3.8-Flash-Next"]["config"], **change}
    start = time.process_time()
    with contextlib.suppress(ConfigError):
        convert(config, "x", "t")
    assert time.process_time() - start < 1
