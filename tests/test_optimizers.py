"""Every optimizer of the table: what it keeps per parameter, what a checkpoint holds, and what it works with."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.rank.rank import state_bytes
from megatron_memory_estimator.states.optimizers import OPTIMIZERS

from .helpers import small_job

BYTES = {"adam": 18, "sgd": 14, "lion": 14}
"""Bytes per parameter in bf16 with fp32 gradients, masters and moments: 2 + 4 + 4, and 4 for each moment (sgd with momentum)."""


def stage_of(**settings: Any) -> Any:
    return estimate(small_job(8, **settings)).stages[0]


def test_the_table_has_every_choice() -> None:
    field = next(f for f in dataclasses.fields(Training) if f.name == "optimizer")
    assert tuple(OPTIMIZERS) == field.metadata["choices"] == tuple(WORKS_WITH)
    assert {*OPTIMIZERS} - {*BYTES} == {"muon"}, (
        "bytes per parameter are asked of every optimizer but Muon, which has them by matrix"
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_of_fused_adam_are_copied_when_they_are_loaded(name: str) -> None:
    """TransformerEngine `optimizers/fused_adam.py` (load_state_dict) copies exp_avg and exp_avg_sq; torch's own keeps what is loaded."""
    row = OPTIMIZERS[name]
    kept = {
        one.tensor
        for one in stage_of(optimizer=name, use_distributed_optimizer=row.distributed, sgd_momentum=0.9).rank.states
    }
    assert row.fused == ("exp_avg_sq" in kept)


@pytest.mark.parametrize("name", BYTES)
def test_state_per_parameter(name: str) -> None:
    stage = stage_of(optimizer=name, use_distributed_optimizer=False, sgd_momentum=0.9)
    numel = sum(buffer.numel for buffer in stage.rank.buffers)
    assert state_bytes(stage.rank, "setup", "first step") == BYTES[name] * numel


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_holds_masters_and_moments_and_loading_needs_no_less_than_training_keeps(name: str) -> None:
    row = OPTIMIZERS[name]
    stage = stage_of(optimizer=name, use_distributed_optimizer=row.distributed, sgd_momentum=0.9)
    kept = [s for s in stage.rank.states if s.part == "optimizer" and s.since in ("setup", "first step")]
    assert kept
    assert all(s.saved for s in kept)
    load = next(phase for phase in stage.phases if phase.name == "load")
    assert load.low >= state_bytes(stage.rank, "setup", "first step")
    assert load.high >= load.low


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if not row.distributed])
def test_what_does_not_shard_is_refused(name: str) -> None:
    with pytest.raises(LayoutError, match=f"optimizer={name} does not work with use_distributed_optimizer"):
        estimate(small_job(8, optimizer=name, use_distributed_optimizer=True))


@pytest.mark.parametrize(
    ("setting", "works"),
    [
        ("use_precision_aware_optimizer", "precision_aware"),
        ("optimizer_cpu_offload", "offloaded"),
        ("use_megatron_fsdp", "fully_sharded"),
    ],
)
@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.distributed])
def test_what_an_optimizer_does_not_work_with_is_refused_by_name(name: str, setting: str, works: str) -> None:
    job = small_job(8, optimizer=name, use_distributed_optimizer=True, **{setting: True})
    if getattr(OPTIMIZERS[name], works):
        assert estimate(job).stages
    else:
        with pytest.raises(LayoutError, match=rf"{setting} .*{name}"):
            estimate(job)


# Megatron-LM `megatron/training/arguments.py`, `megatron/core/optimizer/__init__.py` and `emerging_optimizers.py`
WORKS_WITH: dict[str, set[str]] = {
    "adam": {
        "use_distributed_optimizer",
        "use_precision_aware_optimizer",
        "optimizer_cpu_offload",
        "use_megatron_fsdp",
    },
    "sgd": set(),  # full sharding turns the distributed optimizer on
    "muon": {"use_distributed_optimizer"},
    "lion": {"use_distributed_optimizer"},
}


@pytest.mark.parametrize("name", WORKS_WITH)
@pytest.mark.parametrize("setting", sorted(WORKS_WITH["adam"]))
def test_what_each_works_with(name: str, setting: str) -> None:
    needs = (
        {"use_distributed_optimizer": True}
        if setting in ("use_precision_aware_optimizer", "optimizer_cpu_offload")
        else {}
    )
    made = small_job(8, optimizer=name, **{**needs, setting: True})
    if setting in WORKS_WITH[name]:
        assert estimate(made).stages
    else:
        with pytest.raises(LayoutError, match=name):
            estimate(made)


def test_lion_is_read_from_megatron_arguments() -> None:
    words = "--optimizer lion --use-distributed-optimizer --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256"
    words += " --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 1024"
    words += " --tokenizer-type NullTokenizer"
    job = TrainingJob.from_megatron_args(words.split(), 8, gpu="H100")
    names = [s.tensor for s in estimate(job).stages[0].rank.states]
    assert names == ["weights", "main_grad", "main_param", "exp_avg"]
    assert "scratch of Lion's update in the optimizer step is not modelled" in job.warnings
