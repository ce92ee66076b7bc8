"""Megatron-Bridge's formula against its own unit tests.

Facts: Megatron-Bridge `tests/unit_tests/training/utils/test_theoretical_memory_utils.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator.formulas import bridge

from .formula_configs import UNEVEN, container


def states(**changes: Any) -> bridge.TrainingMemoryEstimate:
    return bridge.estimate_training_memory(container(**changes), include_activation=False)


def test_bridge_base_states() -> None:
    found = states()
    (dense,) = found.model_state_components
    assert dense == bridge.MemoryComponentEstimate("dense parameters and optimizer", 13088, 3400, 9.0, 30600)
    assert (found.activation, found.total_parameters, found.total_memory_bytes) == (None, 13088, 30600)
    assert bridge.compute_weight_and_optimizer_memory(container()) == 30600
    assert states(use_distributed_optimizer=False).total_memory_bytes == 3400 * 18


def test_bridge_uneven_stages() -> None:
    (dense,) = states(**UNEVEN).model_state_components
    assert (dense.parameter_count_per_gpu, dense.memory_bytes) == (9952, 89568)
    experts = {"num_moe_experts": 2, "moe_layer_freq": [0, 1, 0, 0, 1, 0, 1, 1], "moe_ffn_hidden_size": 32}
    dense, routed = states(**UNEVEN, **experts).model_state_components
    assert routed.name == "routed expert parameters and optimizer"
    assert (dense.parameter_count_per_gpu, routed.parameter_count_per_gpu) == (5856, 4096)


def test_bridge_expert_shards_include_context_parallel_ranks() -> None:
    found = states(
        pipeline_model_parallel_size=1, context_parallel_size=2, data_parallel_size=8, num_moe_experts=8,
        moe_layer_freq=2, moe_ffn_hidden_size=32, expert_model_parallel_size=4,
    )  # fmt: skip
    dense, routed = (component_values(part) for part in found.model_state_components)
    assert dense == (8992, 4496, 6.75, 30348)
    assert routed == (16384, 4096, 7.5, 30720)
    assert found.weight_and_optimizer_bytes == 61068


def component_values(part: bridge.MemoryComponentEstimate) -> tuple[float, float, float, float]:
    return part.parameter_count, part.parameter_count_per_gpu, part.bytes_per_parameter, part.memory_bytes


def test_bridge_latent_shared_and_mtp() -> None:
    found = states(
        pipeline_model_parallel_size=1, num_moe_experts=4, moe_layer_freq=[0, 1, 0, 1], moe_ffn_hidden_size=32,
        moe_shared_expert_intermediate_size=8, moe_latent_size=4, mtp_num_layers=1,
    )  # fmt: skip
    dense, routed = (component_values(part)[:2] for part in found.model_state_components)
    assert (dense, routed, found.total_parameters) == ((11232, 5616), (3072, 3072), 14304)


def test_bridge_activations() -> None:
    one_stage = container(pipeline_model_parallel_size=1, context_parallel_size=2)
    assert bridge.compute_activation_memory(one_stage, 1) == 9568
    assert bridge.compute_activation_memory(container(virtual_pipeline_model_parallel_size=2), 4) == 22240
    full = bridge.compute_activation_memory(container(), 2)
    assert bridge.compute_activation_memory(container(), 1) == full / 2
    assert bridge.compute_activation_memory(container(), None) == full


def test_bridge_formats() -> None:
    found = states()
    line = bridge.format_training_memory_estimate(found, unit="gb")
    assert line == "Theoretical memory footprints: dense parameters and optimizer=0.00 GB, total=0.00 GB"
    assert "total=0.03 MB" in bridge.format_training_memory_estimate(found)
    with pytest.raises(ValueError, match="Unsupported memory unit: bytes"):
        bridge.format_training_memory_estimate(found, unit="bytes")
    part = found.model_state_components[0]
    assert (part.memory_mb, part.memory_gb) == (30600 / 1048576, 30600 / 1073741824)


def test_bridge_report(capsys: pytest.CaptureFixture[str]) -> None:
    bridge.report_theoretical_memory(container(), num_microbatches=4)
    out = capsys.readouterr().out
    assert out == "Theoretical memory footprints: weight and optimizer=0.03 MB, activation=0.02 MB, total=0.05 MB\n"
    bridge.report_theoretical_memory(container(recompute_granularity="full"), 4)
    assert capsys.readouterr().out == "Theoretical memory footprints: weight and optimizer=0.03 MB\n"
    bridge.report_theoretical_memory(container(virtual_pipeline_model_parallel_size=2), 4, verbose=True)
    assert "penalty from interleaved schedule: 1.25" in capsys.readouterr().out

    class MegatronMIMOProvider:
        pass

    bridge.report_theoretical_memory(SimpleNamespace(model=MegatronMIMOProvider()))
    assert capsys.readouterr().out == ""


REFUSED = [
    ({"num_layers": 0}, "num_layers must be positive"),
    ({"mtp_num_layers": -1}, "mtp_num_layers must be non-negative"),
    ({"tensor_model_parallel_size": 0}, "tensor_model_parallel_size must be positive"),
    ({"num_moe_experts": 2, "moe_layer_freq": 0}, "moe_layer_freq must be positive"),
    ({"num_moe_experts": 2, "moe_layer_freq": [1]}, "Invalid moe_layer_freq length"),
    ({"num_moe_experts": 2, "moe_layer_freq": [0, 1, 2, 1]}, "Unsupported moe_layer_freq value"),
    ({"num_moe_experts": 2, "moe_layer_freq": "2"}, "Unsupported moe_layer_freq value"),
    ({"pipeline_model_parallel_size": 1, "num_layers_in_first_pipeline_stage": 1}, "Uneven pipeline stages require"),
    (
        {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 1},
        "do not cover all model layers",
    ),
    (
        {"pipeline_model_parallel_size": 3, "num_layers_in_first_pipeline_stage": 1},
        "must divide evenly over the remaining",
    ),
    (
        {"num_layers_in_first_pipeline_stage": 1, "virtual_pipeline_model_parallel_size": 2},
        "must divide over virtual pipeline stages",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_bridge_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        states(**changes)


def test_bridge_counts_gated_gelu_as_two_matrices() -> None:
    def silu() -> None:
        """Stands for torch.nn.functional.silu."""

    plain, geglu = states().total_parameters, states(gated_linear_unit=True).total_parameters
    assert geglu == plain
    assert states(gated_linear_unit=True, activation_func=silu).total_parameters == plain + 4 * 16 * 64


def test_bridge_takes_other_number_types() -> None:
    whole = {**UNEVEN, "num_layers_in_first_pipeline_stage": 1.0, "num_layers": np.int64(8)}
    (dense,) = states(**whole).model_state_components
    assert dense.parameter_count_per_gpu == 9952


EIGHT = {
    "num_layers": 8, "num_moe_experts": 2, "moe_layer_freq": [0, 1, 0, 0, 1, 0, 1, 1], "moe_ffn_hidden_size": 32, "moe_router_topk": 1,
    "tensor_model_parallel_size": 1, "share_embeddings_and_output_weights": False, "num_layers_in_first_pipeline_stage": 2,
    "num_layers_in_last_pipeline_stage": 6,
}  # fmt: skip
HALVES = {
    "moe_layer_freq": [1, 1, 1, 1, 0, 0, 0, 0], "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "dense", "routed", "activation"),
    [
        ({}, 13216, 6144, 62208),
        ({"mtp_num_layers": 2}, 15392, 10240, 75520),
        (HALVES, 13088, 8192, 62208),
        ({**HALVES, "virtual_pipeline_model_parallel_size": 2}, 8992, 4096, 77760),
    ],
)
def test_bridge_counts_each_kind_on_its_own_fullest_stage(
    changes: dict[str, Any], dense: float, routed: float, activation: float
) -> None:
    """What `theoretical_memory_utils.py` of megatron-bridge 0.6.2 answers: dense and routed parameters may be those of two stages,
    virtual stages take turns, and MTP layers have activations."""
    found = bridge.estimate_training_memory(container(**{**EIGHT, **changes}), 4)
    assert [part.parameter_count_per_gpu for part in found.model_state_components] == [dense, routed]
    assert found.activation is not None and found.activation.memory_bytes == activation
