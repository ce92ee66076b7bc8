"""Output layer and cross entropy as one kernel: the bytes that pull requests 2256 and 3226 of Megatron-LM's dev branch keep and need."""

from __future__ import annotations

from math import ceil
from typing import Any

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.tape.ops import Op, flattened

T, H, V = 8192, 4096, 151_936
LINEAR: dict[str, Any] = {
    "gpu": "B200",
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "linear",
    "seq_length": T,
    "megatron_core_version": "0.20",
}


def loss_op(**settings: Any) -> Op:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **LINEAR, **settings)
    run = next(one for one in estimate(job).stages[-1].rank.plans[-1].runs if one.unit.name == "output")
    return next(one for one in flattened(run.unit.items) if one.name == "output.linear_cross_entropy")


def test_what_it_keeps_and_needs() -> None:
    """67.2 MB are kept, where the native loss has 2.49 GB of logits in 16 bits and 4.98 GB in 32."""
    op = loss_op()
    assert sum(one.nbytes for one in op.saves) == 2 * T * H + 8 * T + 8 * T == 67_239_936
    assert sum(one.nbytes for one in op.forward) == 2 * 4 * T * ceil(V / 3072)
    assert [one.nbytes for one in op.backward] == [4 * T * H, 4 * T * H, 2 * T * 3072, 2 * V * H]
    assert [round(one.nbytes / 1e6, 1) for one in op.backward] == [134.2, 134.2, 50.3, 1244.7]


def test_tensor_parallel_ranks_gather_the_hidden_states_and_share_the_vocabulary() -> None:
    op = loss_op(tensor_model_parallel_size=4, sequence_parallel=True)
    gathered = op.saves[0]
    assert gathered.name == "output.hidden gathered" and gathered.nbytes == 2 * T * H
    assert op.backward[-1].nbytes == 2 * 152_064 * H // 4, "padded to a multiple of 128 x 4"
    assert op.forward[0].nbytes == 4 * T * ceil(152_064 / 4 / 3072)


def test_logits_are_never_whole() -> None:
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **LINEAR))
    tensors = [row for row in found.stages[0].rows if V in row.local_shape and T in row.local_shape]
    assert not tensors
    native = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**LINEAR, "cross_entropy_fusion_impl": "native"}))
    assert native.stages[0].peak_allocated_bytes - found.stages[0].peak_allocated_bytes > 2 * T * V


def test_wide_logits_of_the_output_layer_are_not_cast_again() -> None:
    """`--output-logit-dtype fp32`: 4 bytes a logit once, in which the unfused softmax is written; the gradient is cast for the product."""
    common: dict[str, Any] = {"seq_length": T, "megatron_core_version": "0.20", "cross_entropy_loss_fusion": False}

    def output(**settings: Any) -> Any:
        found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **common, **settings))
        return next(one for one in found.stages[-1].rank.plans[-1].runs if one.unit.name == "output")

    narrow, wide = output(), output(logit_dtype="fp32")
    tops = [max(event.nbytes for event in one.trace.forward) for one in (narrow, wide)]
    assert tops[0] - tops[1] == 2 * T * V, "no logits in 16 bits beside the softmax"
    (op,) = (one for one in flattened(wide.unit.items) if one.name == "output.output_layer")
    assert [one.nbytes for one in op.backward if one.name.endswith("logits grad in bf16")] == [2 * T * V]
    assert output(logit_dtype="bf16").unit == narrow.unit
