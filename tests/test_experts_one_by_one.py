"""Experts that run one after the other (SequentialMLP of Megatron-Core 0.19.2), by hand-worked bytes; whole layers of the real class are
in test_random_configurations.py.

One layer of 1,024 x 2 tokens, width 1,024, 8 experts of width FE, 2 of them for each token.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, estimate
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.states.padding import registered
from megatron_memory_estimator.tape.ops import Unit, flattened
from megatron_memory_estimator.tape.simulate import alive_at, trace
from megatron_memory_estimator.throughput import throughput

from .helpers import context, moe_job, small_job
from .test_activation_rules import HID, B, T, selective

EXPERTS = 8
ROWS = 2 * T
FE = moe_job().model.moe_ffn
WIDE, ACT, INPUT = 2 * ROWS * 2 * FE, 2 * ROWS * FE, 2 * ROWS * HID
"""Bytes of all experts' fc1 outputs, of their activations, and of their inputs, as of their outputs."""


def unit(**settings: Any) -> Unit:
    job = moe_job(micro_batch_size=B, **settings)
    return layer_unit(context(job), job.model.kinds[0]).unit


def alive(phase: str, op: str) -> dict[str, int]:
    """Bytes by tensor while an op of the experts runs, those of the experts alone."""
    found = unit(moe_grouped_gemm=False)
    events = [event for half in (trace(found).forward, trace(found).backward) for event in half]
    at = next(i for i, event in enumerate(events) if event.phase == phase and event.op == op)
    live = {x.tensor.name: x.tensor.nbytes for x in alive_at(found, at)}
    return {name: nbytes for name, nbytes in live.items() if "mlp.experts" in name}


def test_they_keep_what_grouped_experts_keep() -> None:
    assert trace(unit(moe_grouped_gemm=False)).saved_bytes == trace(unit()).saved_bytes


def test_the_last_experts_backward() -> None:
    """What the seven others keep, the whole gradient that theirs are views of, and two gradients of one expert."""
    found = alive("backward", "mlp.experts.activation")
    gradients = {name: nbytes for name, nbytes in found.items() if name.startswith("grad:")}
    assert gradients == {
        "grad:mlp.experts.activation.output": ACT // EXPERTS,
        "grad:mlp.experts.linear_fc1.output": WIDE // EXPERTS,
        "grad:mlp.experts.probs": 2 * ROWS,
    }
    assert found["mlp.experts.gradient of all outputs"] == INPUT
    kept = sum(nbytes for name, nbytes in found.items() if "linear_fc1.output" in name or "activation.output" in name)
    # its own activation is done with
    assert kept - sum(gradients.values()) + 2 * ROWS == WIDE + ACT * (EXPERTS - 1) // EXPERTS


def test_the_first_experts_backward() -> None:
    """Gradients of all experts' inputs are collected, and joined once the last is there."""
    found = alive("backward", "mlp.experts.split")
    assert [name for name, nbytes in found.items() if nbytes == INPUT] == [
        "grad:mlp.experts.input of each expert",
        "grad:mlp.experts.input",
    ]


def test_narrow_experts_hold_more_gradients_than_they_kept() -> None:
    """Where experts keep less than their inputs' gradients take, the fullest moment is the first expert's."""
    for width, more in ((FE, 0), (64, (EXPERTS - 1) * (2 * ROWS // EXPERTS) * (HID - 3 * 64))):
        found = unit(moe_grouped_gemm=False, moe_ffn_hidden_size=width)
        op = next(item for item in flattened(found.items) if item.name == "mlp.experts.linear_fc2")
        assert sum(t.nbytes for t in op.backward if "beyond what these kept" in t.name) == more


def test_their_kernels_are_launched_for_each() -> None:
    """So many small products take longer than one grouped product of the same rows."""
    both = [throughput(estimate(moe_job(moe_grouped_gemm=grouped))).step for grouped in (True, False)]
    assert both[0] < both[1]


def test_moe_act_needs_grouped_experts() -> None:
    """Megatron-Core refuses it (transformer_config.py)."""
    with pytest.raises(LayoutError, match="moe_act needs moe_grouped_gemm; turn it on, or leave moe_act out"):
        estimate(moe_job(moe_grouped_gemm=False, **selective("moe_act")))


def test_each_function_is_called_once_for_each_expert() -> None:
    """fc1, activation and fc2 of 8 experts; the rows are split before and joined behind. What the others keep is no function."""
    found = {op.name: op.calls for op in flattened(unit(moe_grouped_gemm=False).items) if "mlp.experts" in op.name}
    assert sum(found.values()) == 1 + 3 * EXPERTS + 1


def test_what_the_others_keep_has_their_rows() -> None:
    others = next(op for op in flattened(unit(moe_grouped_gemm=False).items) if op.name == "mlp.experts.others")
    assert [[dim.size for dim in t.shape] for t in others.saves] == [
        [ROWS * 7 // 8, 2 * FE], [ROWS * 7 // 8, FE],
    ]  # fmt: skip


FC1, FC2 = "linear_fc1", "linear_fc2"


@pytest.mark.parametrize(
    ("grouped", "bias", "order"),
    [
        (False, False, [f"{FC1}.weight", f"{FC2}.weight"] * 2),
        (False, True, [f"{FC1}.weight", f"{FC1}.bias", f"{FC2}.weight", f"{FC2}.bias"] * 2),
        (True, False, [f"{FC1}.weight"] * 2 + [f"{FC2}.weight"] * 2),
        (True, True, [f"{FC1}.weight", f"{FC1}.bias"] * 2 + [f"{FC2}.weight", f"{FC2}.bias"] * 2),
    ],
)
def test_parameters_of_experts_are_registered_module_by_module(grouped: bool, bias: bool, order: list[str]) -> None:
    """Of 2 experts. Megatron-LM `moe/experts.py`: SequentialMLP has a list of MLPs; TEGroupedMLP two linears of all experts, whose
    weights and biases take turns (TransformerEngine `pytorch/module/grouped_linear.py`)."""
    job = moe_job(moe_grouped_gemm=grouped, add_bias_linear=bias, num_moe_experts=2)
    params = [p for p in layer_unit(context(job), job.model.kinds[0]).params if p.split == "expert"]
    assert [p.name.removeprefix("mlp.experts.") for p in registered(params)] == order


def test_halves_that_alternate_are_copied_apart() -> None:
    """Gate and linear half of all rows (Megatron-LM `moe/experts.py`, _remove_glu_interleaving); a dense MLP has none of that."""
    settings: dict[str, Any] = {"moe_mlp_glu_interleave_size": 32, "micro_batch_size": B}
    apart = [op for op in flattened(unit(moe_mlp_glu_interleave_size=32).items) if op.name.endswith(".apart")]
    assert [t.nbytes for op in apart for t in op.writes] == [WIDE]
    job = small_job(**settings)
    dense = layer_unit(context(job), job.model.kinds[0]).unit
    assert not [op for op in flattened(dense.items) if op.name.endswith(".apart")]
