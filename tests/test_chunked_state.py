"""Optimizer state that is in host memory between steps and comes back in chunks (Megatron-LM `dev`, chunked_optimizer_state_offload).

Worked by hand from the reference's rules; no run and no class is public. Qwen3-8B, tp 2, dp 4: 4,095,367,680 parameters of a rank with the
padding of buckets, a fourth of them owned, of which fp32 masters and two moments have 12 bytes each.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, UnsupportedError, advise, estimate, plan
from megatron_memory_estimator.report.quantities import bounds_text
from megatron_memory_estimator.report.text import result
from megatron_memory_estimator.throughput import throughput

GIVEN: dict[str, Any] = {
    "tp": 2, "seq_length": 8192, "recompute": "full", "megatron_core_version": "0.20", "gpu": "H100", "global_batch_size": 64,
}  # fmt: skip
CHUNK = 512 * 2**20


def stage(**settings: Any) -> Any:
    return estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **GIVEN, **settings)).stages[0]


def chunked(megabytes: int = 512, fraction: float = 1.0) -> Any:
    return stage(
        chunked_optimizer_state_offload=True,
        optimizer_state_offload_chunk_size_mb=megabytes,
        optimizer_state_offload_fraction=fraction,
    )


PLAIN = stage()
OWNED = sum(buffer.owned for buffer in PLAIN.rank.buffers)
PASSES = PLAIN.peak_allocated_bytes - PLAIN.steady_allocated_bytes
"""What the passes have beside what stays."""


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_between_steps_12_bytes_of_each_parameter_of_the_share_are_in_host_memory(fraction: float) -> None:
    found, away = chunked(fraction=fraction), int(12 * OWNED * fraction)
    assert found.steady_allocated_bytes == PLAIN.steady_allocated_bytes - away
    host = next(term for term in found.host if term.name == "optimizer state (offload)")
    assert (host.low, host.high) == (away, away)


@pytest.mark.parametrize(
    ("megabytes", "moments"), [(512, 2 * CHUNK), (1024, 4 * CHUNK), (0, 8 * OWNED), (2**20, 8 * OWNED)]
)
def test_the_step_has_the_masters_and_two_chunks_of_moments(megabytes: int, moments: int) -> None:
    found = chunked(megabytes)
    passes, step = found.steady_allocated_bytes + PASSES, found.steady_allocated_bytes + 4 * OWNED + moments
    assert found.peak_allocated_bytes == max(passes, step)
    names = [state.name for state in found.rank.states if state.since == "optimizer"]
    assert names == ["main_param dense chunk 0", "moments back on the GPU chunk 0"]


def test_the_first_step_and_a_load_are_between_both() -> None:
    """Where the first step makes the state is not public: at most it needs what it needs without offloading."""
    found = chunked()
    phases = {phase.name: phase for phase in found.phases}
    plain = {phase.name: phase for phase in PLAIN.phases}
    assert (phases["first_step"].low, phases["first_step"].high) == (
        found.peak_allocated_bytes,
        max(found.peak_allocated_bytes, PLAIN.first_step_peak_allocated_bytes),
    )
    assert phases["load"].high == plain["load"].high
    assert phases["load"].low == plain["load"].terms[0].low - 12 * OWNED
    assert "first_step" not in plain
    for phase in phases.values():
        if phase.terms:
            assert (sum(t.low for t in phase.terms), sum(t.high for t in phase.terms)) == (phase.low, phase.high)


def test_the_verdict_names_the_first_step_where_it_may_not_fit() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**GIVEN, "gpu": "A100-40GB", "chunked_optimizer_state_offload": True,
                                                     "optimizer_state_offload_chunk_size_mb": 512, "load_optim": False})  # fmt: skip
    found = estimate(job)
    assert found.verdict().event("first_step").word == "fits only without fragmentation"
    assert found.verdict().event("training").word == "fits"
    assert "first step" in str(found)


def test_seconds_count_the_copies_in_full_and_a_search_refuses() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **GIVEN, chunked_optimizer_state_offload=True)
    more = (
        throughput(estimate(job)).parts["optimizer"]
        - throughput(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **GIVEN))).parts["optimizer"]
    )
    assert more == pytest.approx(2 * 12 * OWNED / (0.84 * 64e9), rel=1e-6)
    assert advise(job).outcomes
    with pytest.raises(UnsupportedError, match="plan does not search layouts of chunked_optimizer_state_offload"):
        plan(job)


def test_the_older_name_is_the_same() -> None:
    words = (
        "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 "
        "--micro-batch-size 1 --bf16 --transformer-impl transformer_engine --use-distributed-optimizer"
    )
    found = [
        TrainingJob.from_megatron_args(f"{words} {more}".split(), 8, megatron_core_version="0.20").training
        for more in ("--offload-optimizer-states", "--chunked-optimizer-state-offload")
    ]
    assert found[0] == found[1] and found[0].chunked_optimizer_state_offload


def test_what_is_paused_without_a_backup_takes_no_host_memory() -> None:
    """torch_memory_saver (slime, miles): 2 bytes of a weight, 4 of its gradient; Megatron-LM PR 5103 leaves them out."""
    away = ["weights", "gradients", "optimizer"]
    given: dict[str, Any] = {**GIVEN, "rollout_engine": "sglang", "rollout_memory_share": 0.6, "rollout_offload": away}

    def copies(**settings: Any) -> dict[str, int]:
        job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **given, **settings)
        return {t.name.split(" (")[0]: t.low for t in estimate(job).stages[0].host if "between phases" in t.name}

    paused = copies(torch_memory_saver=True)
    assert (paused["weights"], paused["gradients"]) == (8 * OWNED, 16 * OWNED)
    assert copies().keys() == {"weights", "optimizer"}
    assert copies(torch_memory_saver=True, disable_grad_buffers_cpu_backup=True) == copies()
    both = {"disable_grad_buffers_cpu_backup": True, "disable_param_buffers_cpu_backup": True}
    assert copies(torch_memory_saver=True, **both).keys() == {"optimizer"}
    alone = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **GIVEN, disable_grad_buffers_cpu_backup=True)
    none = "has no effect without torch_memory_saver and gradients in rollout_offload or log_prob_offload"
    assert f"disable_grad_buffers_cpu_backup {none}" in alone.warnings
    moved = {**given, "rollout_offload": [], "log_prob_offload": ["gradients"], "torch_memory_saver": True, **both}
    said = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **moved).warnings
    assert [one for one in said if "no effect" in one] == [
        "disable_param_buffers_cpu_backup has no effect without torch_memory_saver and weights in rollout_offload or log_prob_offload"
    ]


def test_weights_without_a_copy_come_back_from_main_parameters() -> None:
    """Megatron-LM PR 5103."""
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-8B", 8, **{**GIVEN, "use_distributed_optimizer": False}, rollout_engine="sglang",
        rollout_memory_share=0.6, rollout_offload=["weights"], torch_memory_saver=True, disable_param_buffers_cpu_backup=True,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="disable_param_buffers_cpu_backup needs use_distributed_optimizer"):
        estimate(job)


def test_settings_beside_a_switch_that_is_off_have_no_effect() -> None:
    given: dict[str, Any] = {
        **GIVEN, "optimizer_state_offload_chunk_size_mb": 512, "muon_nesterov": True, "peft_experts": "linear_out_each",
    }  # fmt: skip
    said = [one for one in TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, **given).warnings if "no effect" in one]
    assert said == [
        "muon_nesterov has no effect without optimizer=muon",
        "optimizer_state_offload_chunk_size_mb has no effect without chunked_optimizer_state_offload",
        "peft_experts has no effect without peft",
    ]
    on: dict[str, Any] = {"chunked_optimizer_state_offload": True, "peft": "lora"}
    said = [one for one in TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, **given, **on).warnings if "no effect" in one]
    assert said == ["muon_nesterov has no effect without optimizer=muon"]


def test_the_first_step_is_a_range_where_its_figure_is_shown() -> None:
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **GIVEN, chunked_optimizer_state_offload=True))
    known = bounds_text(found.stages[0].allocated.phases["first_step"])
    assert f"(first step {known})" in result(found, None)[0]
