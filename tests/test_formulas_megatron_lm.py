"""Megatron-LM's report against its own unit tests.

Facts: Megatron-LM `tests/unit_tests/training/test_weight_and_optimizer_memory.py`.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator.formulas import megatron_lm

from .formula_configs import MLM


def mlm(**changes: Any) -> float:
    given = {**MLM, **changes}
    before = copy.deepcopy(given)
    found = megatron_lm.compute_weight_and_optimizer_memory(given)
    assert given == before
    assert megatron_lm.compute_weight_and_optimizer_memory(SimpleNamespace(**given)) == found
    return found


def test_megatron_lm_states() -> None:
    assert mlm() == 5526
    assert mlm(pipeline_model_parallel_size=2, world_size=64) == 3195
    assert mlm(moe_latent_size=4) == 5382
    plain = {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1, "use_distributed_optimizer": False}
    sizes = [mlm(tensor_model_parallel_size=tp, world_size=16 * tp, **plain) for tp in (1, 2, 4)]
    assert sizes == [40464, 30096, 24912]
    pairs = [(1, 1), (2, 1), (2, 2), (4, 2)]
    found = [mlm(expert_model_parallel_size=ep, expert_tensor_parallel_size=etp) for ep, etp in pairs]
    assert found == [10902, 7830, 6294, 5526]


def test_megatron_lm_layer_patterns() -> None:
    assert mlm(moe_layer_freq=1) > mlm(moe_layer_freq=[1, 0]) == mlm(moe_layer_freq=2) == 5526
    for freq in ("2", 1.5, True, {0: 1}):
        with pytest.raises(TypeError, match="moe_layer_freq"):
            mlm(moe_layer_freq=freq)
    for wrong in ([1], [0, 2], 0):
        with pytest.raises(ValueError, match="moe_layer_freq"):
            mlm(moe_layer_freq=wrong)


def test_megatron_lm_parts_by_hand() -> None:
    shared_gate = mlm(moe_shared_expert_gate=True) - mlm()
    assert shared_gate == 8 * 6.75
    mtp = mlm(mtp_num_layers=1) - mlm()
    assert mtp == ((256 + 128) / 2 + 16 + 32) * 6.75 + 1024 / 8 * 9
    latent = {"multi_latent_attention": True, "q_lora_rank": 4, "kv_lora_rank": 6, "qk_head_dim": 4,
              "qk_pos_emb_head_dim": 2, "v_head_dim": 4}  # fmt: skip
    attention = 4 * (8 + 2 * 6 + 1) + 6 * (8 + 2 * 8 + 1) + 8 * 2 + 2 * 4 * 8
    assert mlm(**latent) - mlm() == 2 * (attention - 256) / 2 * 6.75
    without = 8 * 2 * 6 + 6 * (8 + 2 * 8 + 1) + 8 * 2 + 2 * 4 * 8
    assert mlm(**{**latent, "q_lora_rank": None}) - mlm() == 2 * (without - 256) / 2 * 6.75
    with pytest.raises(ValueError, match="group_query_attention"):
        mlm(**latent, group_query_attention=True)


def test_megatron_lm_activations_by_hand() -> None:
    base = {**MLM, "sequence_parallel": True, "recompute_granularity": "selective"}
    sbh = 16 * 8
    selective = (sbh * (18 + 4 * 2) * 2 + 8 * 16 + sbh + 4 * sbh * (1 + 4)) / 2
    assert megatron_lm.compute_activation_memory(base, 1) == selective
    other = (sbh * (10 + 12) * 2 + 8 * 16 + sbh + 2 * (16 * 32 / 2 + sbh)) * 1.05
    assert megatron_lm.compute_activation_memory_without_sp(base, 1) == pytest.approx(other, rel=1e-15)
    deep = {**base, "pipeline_model_parallel_size": 2}
    whole = (sbh * (18 + 4 * 2) * 2 + 8 * 16 * 2 + sbh * 2) / 2
    assert megatron_lm.compute_activation_memory(deep, None) == whole
    assert megatron_lm.compute_activation_memory(deep, 1) == whole / 2
    interleaved = {**deep, "virtual_pipeline_model_parallel_size": 2}
    assert megatron_lm.compute_activation_memory(interleaved, 1) == whole * 1.25


def test_megatron_lm_report(capsys: pytest.CaptureFixture[str]) -> None:
    base = {**MLM, "sequence_parallel": True, "recompute_granularity": "selective"}
    found = megatron_lm.report_theoretical_memory(base, 1, verbose=True)
    assert found is not None
    out = capsys.readouterr().out
    assert found[2] == found[0] + found[1] and found[0] == 5526 / 1048576
    for words in (
        "in transformer block",
        "Total number of active parameters",
        "most loaded shard",
        "weight and optimizer=0.01 MB",
    ):
        assert words in out
    megatron_lm.report_theoretical_memory(MLM)
    assert "without sequence parallelism" in capsys.readouterr().out
    assert megatron_lm.report_theoretical_memory({**MLM, "hybrid_layer_pattern": "M*"}) is None
    assert "not yet supported" in capsys.readouterr().out


def test_megatron_lm_before_validation() -> None:
    """What Megatron-LM's validation derives is derived here too."""
    base = {**MLM, "num_layers": 8, "moe_layer_freq": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True}
    after = {**base, "virtual_pipeline_model_parallel_size": 2, "recompute_granularity": "selective"}
    expected = megatron_lm.report_theoretical_memory(after)
    for words in ({"num_layers_per_virtual_pipeline_stage": 2}, {"num_virtual_stages_per_pipeline_rank": 2}):
        assert megatron_lm.report_theoretical_memory({**base, **words, "recompute_activations": True}) == expected
    one = {**MLM, "tensor_model_parallel_size": 1, "recompute_granularity": "selective"}
    off, on = (megatron_lm.report_theoretical_memory({**one, "sequence_parallel": sp}) for sp in (False, True))
    assert off == on
    biased = {key: value for key, value in MLM.items() if key != "add_bias_linear"}
    assert megatron_lm.compute_weight_and_optimizer_memory({**biased, "disable-bias-linear": True}) == 5526
    assert megatron_lm.compute_weight_and_optimizer_memory({**MLM, "add_bias_linear": True}) == 5526 + 4 * 6.75
    assert mlm(add_bias_linear=True, moe_latent_size=4) == 5382 + 4 * 6.75
    foreign = {**MLM, "num_layers": np.int64(2), "moe_layer_freq": np.array([0, 1])}
    assert megatron_lm.compute_weight_and_optimizer_memory(foreign) == 5526


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensor_model_parallel_size": "2"}, {"tensor_model_parallel_size": 0}, {"pipeline_model_parallel_size": 0},
        {"tensor_model_parallel_size": 2.5}, {"mtp_num_layers": -1}, {"normalization": "FooNorm"},
        {"micro_batch_size": 0}, {"hidden_size": None}, {"data_parallel_size": None, "world_size": None},
    ],
)  # fmt: skip
def test_megatron_lm_refuses_wrong_sizes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|give world_size"):
        megatron_lm.report_theoretical_memory({**MLM, **wrong})
    with pytest.raises(ValueError, match="num_microbatches must be positive"):
        megatron_lm.compute_activation_memory({**MLM, "pipeline_model_parallel_size": 2}, -3)
