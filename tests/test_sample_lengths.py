"""What sample lengths do to a run: microbatches by hand for each framework, where the run breaks, at every door.

By hand, with a bound of 16,384: 16 samples of 9,216 tokens are nine microbatches for verl up to 0.9.0, seven of which hold two (18,432);
slime, which keeps the bound, has one in each. A sample above the bound is alone for slime and SkyRL and stops verl, NeMo-RL and AReaL.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate, largest, sample_lengths
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.job.choices import PACKING
from megatron_memory_estimator.lengths.microbatches import RULES
from megatron_memory_estimator.report.lengths import sentences
from megatron_memory_estimator.service.answers import answered

from .dialect_runs import job, started, written

BOUND = 16384


def run(packing: str, **settings: Any) -> TrainingJob:
    given = {"tp": 4, "seq_length": BOUND, "global_batch_size": 32, "phases": "training", "packing": packing}
    return TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**given, **settings})


def test_the_setting_names_the_rules() -> None:
    assert tuple(RULES) == PACKING


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        ("verl", 2 * 9216),  # 16 samples a rank, ceil(16 * 9216 / 16384) = 9 microbatches: seven hold two
        ("verl_0_9_1", 9216),  # more microbatches until none is above the bound
        ("slime", 4 * 128 * 18),  # 9,216 is a multiple of tp * 128
        ("miles", 9216),
        ("nemo_rl", 9216),
        ("nemo_rl_dynamic", 9216),
        ("roll", 9216),
        ("areal", 9216),
        ("skyrl", 9216),
        ("ms_swift", 9216),
        ("megatron_core", 9216),
        ("megatron_lm_sft", BOUND),  # rows as wide as the bound
    ],
)
def test_the_largest_microbatch_of_truncated_answers_by_hand(packing: str, expected: int) -> None:
    assert sample_lengths(run(packing), "9216").microbatch == expected


def test_virtual_stages_of_older_slime_put_all_in_one_microbatch() -> None:
    """5 samples of 6,500: first fit finds 3 microbatches, rounded down to a group of 4 is 0, at least 1: 32,500, padded to tp * 128."""
    virtual = run("slime_legacy", tp=1, pp=4, virtual_pipeline_model_parallel_size=3, global_batch_size=8)
    assert sample_lengths(virtual, "6500").microbatch == -(-4 * 6500 // 128) * 128


def test_where_it_breaks_is_what_largest_finds_and_the_figures_are_estimates() -> None:
    one = run("slime")
    found, limit = sample_lengths(one, "3000,9000,131072"), largest(one, "seq_length")
    assert (found.fitting.sure, found.breaks_at) == (limit.sure, limit.possible)
    assert found.microbatch == found.samples.longest == 131072
    assert found.at is not None and found.needs is not None
    whole = estimate(run("slime", seq_length=131072))
    assert found.needs.device == whole.verdict().event("training").device
    assert found.share_longer == 0.01 and 0 < found.share_of_steps <= 1
    said = " ".join(sentences(found))
    assert (
        f"Breaks above {limit.possible:,} tokens in a microbatch" in said and "your longest sample has 131,072" in said
    )
    assert "1.00% of the samples are longer than 16,384: a longer sample is a microbatch alone" in said


def test_half_of_all_runs_have_met_a_share_of_steps_by_the_step_of_the_formula() -> None:
    """1 - (1 - q)^n reaches a half at n = log(1/2) / log(1 - q): q = 2.5 % at step 28."""
    found = sample_lengths(run("skyrl"), json.dumps([100] * 1000 + [131072]))
    share = found.share_of_steps
    assert 0 < share < 0.2 and found.half_by_step is not None
    assert 1 - (1 - share) ** found.half_by_step >= 0.5 > 1 - (1 - share) ** (found.half_by_step - 1)


def test_the_worst_that_other_lengths_reach_is_said() -> None:
    found = sample_lengths(run("verl"), "4000,8000,16384")
    assert BOUND < found.worst < 2 * BOUND
    assert any("does not keep it" in one for one in sentences(found))
    assert not any("keep" in one for one in sentences(sample_lengths(run("verl_0_9_1"), "9216")))


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="packs no samples by tokens: each of its rows has seq_length=4096"):
        sample_lengths(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=4), "900")
    with pytest.raises(ConfigError, match="stops at a sample above its bound of 16384 tokens, and all are longer"):
        sample_lengths(run("verl"), "20000")
    with pytest.raises(SystemExit):
        main(["estimate", "Qwen/Qwen3-8B", "--packing", "verl", "--sample-lengths", "900", "--largest", "seq_length"])


def test_every_door_gives_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = sample_lengths(run("slime"), "3000,9000,30000")
    flags = "--num-gpus 8 --tp 4 --seq-length 16384 --global-batch-size 32 --phases training --packing slime"
    words = ["estimate", "Qwen/Qwen3-8B", *flags.split()]
    main([*words, "--sample-lengths", "3000,9000,30000"])
    assert " ".join(sentences(found)) in " ".join(capsys.readouterr().out.split())
    file = tmp_path / "lengths.txt"
    file.write_text("".join(f"{length} {count}\n" for length, count in found.samples.counts))
    main([*words, "--sample-lengths", str(file), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["sentence"] == " ".join(sentences(found)) and document["microbatch"] == found.microbatch
    settings = {"tp": 4, "seq_length": BOUND, "global_batch_size": 32, "phases": "training", "packing": "slime"}
    asked = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": settings, "lengths": "3000,9000,30000"}
    answer = answered({"tool": "lengths", "arguments": asked, "folder": None, "seconds": 60})["answer"]
    assert answer == document
    secret = answered({"tool": "lengths", "arguments": {**asked, "lengths": str(file)}, "folder": None, "seconds": 60})
    assert "is neither a length" in json.dumps(secret), "a server reads no file"


SLIME = (
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 64 --bf16 "
    "--hf-checkpoint Qwen/Qwen3-8B --num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 512 "
    "--vocab-size 1000 --rollout-max-prompt-len 256 --rollout-max-response-len 256 --use-dynamic-batch-size --max-tokens-per-gpu 4608 "
    "--context-parallel-size 2"
)
VERL = """
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B}
  actor:
    strategy: megatron
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 16384
    ppo_mini_batch_size: 8
    megatron: {tensor_model_parallel_size: 2, context_parallel_size: 2}
  rollout: {n: 1}
data: {train_batch_size: 8, max_prompt_length: 512, max_response_length: 512}
trainer: {n_gpus_per_node: 8}
"""
NEMO_RL = """
policy:
  model_name: Qwen/Qwen3-8B
  max_total_sequence_length: 1024
  train_micro_batch_size: 1
  train_global_batch_size: 8
  sequence_packing: {enabled: true, train_mb_tokens: 4096}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 2}
  generation: {backend: vllm}
grpo: {}
"""


def test_runs_say_their_rule_and_their_bound() -> None:
    found = {
        "slime": job(started("train.py", SLIME), 8),
        "verl": job(written(VERL), 8),
        "nemo_rl": job(written(NEMO_RL), 8),
    }
    bounds = {"slime": 2 * 4608, "verl": 2 * 16384, "nemo_rl": 4096}
    for packing, one in found.items():
        assert (one.training.packing, one.training.packing_tokens) == (packing, bounds[packing])
