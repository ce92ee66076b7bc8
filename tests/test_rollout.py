"""Phases of reinforcement learning, worked by hand: what of the trainer is on the GPU, what the engine takes, what the loss keeps."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, Estimate, TrainingJob, UnsupportedError, advise, estimate, plan
from megatron_memory_estimator.inputs.dialects.rollout import engine
from megatron_memory_estimator.report.document import estimate_document as document
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.simulate import leftovers

from .helpers import ROOT

PARAMETERS = 4_095_521_792
"""Of Qwen3-8B on one of two tensor-parallel ranks: half of 8,190,735,360, with the norms whole on both."""
TOKENS, COLUMNS = 8192, 151_936 // 2
GIB = 2**30
RL: dict[str, Any] = {
    "tp": 2, "seq_length": TOKENS, "recompute_granularity": "full", "loss_function": "verl", "rollout_engine": "vllm",
    "rollout_memory_share": 0.6, "rollout_tensor_parallel_size": 2, "make_vocab_size_divisible_by": 1,
}  # fmt: skip


def found(**settings: Any) -> Estimate:
    return estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**RL, **settings}))


def terms(result: Estimate, phase: str) -> dict[str, int]:
    one = next(one for one in result.stages[0].rollout if one.name == phase)
    return {term.name: term.low for term in one.terms}


def test_nothing_leaves_the_gpu_while_samples_are_generated() -> None:
    result = found(reference_model="device")
    assert terms(result, "generation") == {
        "weights": 2 * PARAMETERS,
        "gradients": 4 * PARAMETERS,
        "optimizer": 12 * PARAMETERS // 4,
        "reference": 2 * PARAMETERS,
        "workspaces": sum(w.nbytes for w in result.stages[0].rank.workspaces),
        "engine": int(0.6 * result.job.gpu.memory_bytes),
    }
    verdict = result.verdict()
    assert (verdict.word, verdict.phase) == ("does not fit", "generation")


def test_what_is_offloaded_is_not_there() -> None:
    away = found(rollout_offload=["weights", "gradients", "optimizer"])
    assert set(terms(away, "generation")) == {"engine"}
    assert away.verdict().fits
    only = found(rollout_offload="optimizer")
    assert set(terms(only, "generation")) == {"weights", "gradients", "workspaces", "engine"}
    host = {term.name: term.low for term in away.stages[0].host}
    assert host["weights (offload between phases)"] == 2 * PARAMETERS
    assert host["optimizer (offload between phases)"] == 3 * PARAMETERS


def test_log_probabilities_peak_at_three_tensors_of_the_logits() -> None:
    """verl `transformer_impl.py`: the logits over the temperature, their copy, and the softmax of the entropy, all fp32."""
    forward = terms(found(), "log_probs")["forward without gradients"]
    per_token = 12 * TOKENS * COLUMNS
    assert per_token <= forward <= per_token + 64 * TOKENS
    longer = terms(found(log_prob_micro_batch_tokens=2 * TOKENS), "log_probs")["forward without gradients"]
    assert 2 * per_token <= longer <= 2 * per_token + 128 * TOKENS


def test_a_forward_without_gradients_keeps_one_layer() -> None:
    """Without logits (a stage in the middle) it is far below what the layers of training keep."""
    result = found(pp=2, loss_function="fused")
    first = result.stages[0]
    forward = next(t.low for p in first.rollout if p.name == "log_probs" for t in p.trainer if "forward" in t.name)
    assert forward < first.breakdown_bytes["activations"] + first.breakdown_bytes["transient"]


def test_a_reference_that_comes_and_goes_has_a_phase_of_its_own() -> None:
    result = found(reference_model="offloaded", rollout_offload=["weights", "gradients", "optimizer"])
    assert terms(result, "reference")["reference weights"] == 2 * PARAMETERS
    assert "weights" not in terms(result, "reference")
    assert result.stages[0].peak_allocated_bytes == found().stages[0].peak_allocated_bytes
    kept = found(reference_model="device").stages[0].peak_allocated_bytes
    assert kept - found(reference_model="host").stages[0].peak_allocated_bytes == 2 * PARAMETERS


def test_a_critic_beside_the_policy_has_its_state_without_the_output_layer() -> None:
    result = found(critic_model="device")
    head = 151_936 * 4096 // 2
    more = result.stages[0].peak_allocated_bytes - found().stages[0].peak_allocated_bytes
    assert more == pytest.approx((2 + 4 + 3) * (PARAMETERS - head), rel=1e-6)
    assert found(critic_model="in_turn").stages[0].peak_allocated_bytes == found().stages[0].peak_allocated_bytes


def test_the_engine_gets_weights_through_two_buckets() -> None:
    sync = terms(found(weight_sync_bytes=2**31), "weight_sync")
    assert sync["buckets of the weight sync"] == 2 * 2**31
    assert sync["engine's weights"] == 2 * 8_190_735_360 // 2 + int(0.4 * GIB)
    largest = terms(found(weight_sync_bytes=2**20), "weight_sync")["buckets of the weight sync"]
    assert largest == 2 * 2 * 151_936 * 4096  # the embedding, whole, goes alone


def test_an_engine_elsewhere_takes_nothing_here() -> None:
    apart = found(rollout_colocated=False)
    assert [phase.name for phase in apart.stages[0].rollout] == ["log_probs"]
    assert terms(apart, "log_probs").keys() & {"engine", "engine asleep"} == set()


def test_an_engine_that_does_not_sleep_stays_in_every_phase() -> None:
    awake = found(rollout_sleeps=False, rollout_memory_share=0.2)
    share = int(0.2 * awake.job.gpu.memory_bytes)
    assert terms(awake, "log_probs")["engine"] == share
    asleep = found(rollout_memory_share=0.2)
    more = awake.stages[0].phase_ranges["training"].low - asleep.stages[0].phase_ranges["training"].low
    assert more == share - int(0.4 * GIB)


def test_the_engine_s_share_is_of_the_gpu_that_is_judged() -> None:
    result = found()
    words = {one.gpu: one for one in result.verdicts()}
    other = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**RL, "gpu": "H200"}))
    assert words["H200-141GB"].device.low == other.verdict().device.low
    assert words["H100-80GB"] == result.verdict()


def test_training_alone_is_judged_where_that_is_asked() -> None:
    result = found(reference_model="device", phases=["training"])
    assert set(result.stages[0].phase_ranges) == {"training"}


@pytest.mark.parametrize(
    ("settings", "forward", "kept"),
    [
        ({"loss_function": "verl"}, 6, 4),
        ({"loss_function": "verl", "loss_entropy": True}, 12, 12),
        ({"loss_function": "slime"}, 10, 4),
        ({"loss_function": "slime", "loss_temperature": True}, 14, 4),
        ({"loss_function": "nemo_rl"}, 12, 4),
        ({"loss_function": "roll"}, 6, 4),
        ({"loss_function": "skyrl"}, 12, 4),
        ({"loss_function": "skyrl", "loss_chunk_size": 1}, 6, 4),
        ({"loss_function": "skyrl", "loss_chunk_size": 1, "loss_entropy": True}, 8, 8),
        ({"loss_function": "fused"}, 0, 0),
        ({"loss_function": "skyrl_fused", "loss_chunk_size": 1}, 0, 0),
        ({"loss_function": "nemo_rl_fused", "loss_chunk_size": 1}, 0, 0),
        ({"loss_function": "nemo_rl_fused"}, 14, 0),
    ],
)
def test_bytes_of_the_logits_of_each_loss(settings: dict[str, Any], forward: int, kept: int) -> None:
    """THUDM/slime: 16-bit and fp32 logits and a softmax; NeMo-RL: fp32 logits, log-softmax and its exponential; verl: in place."""
    unit = next(run for run in found(**settings).stages[0].rank.plans[0].runs if run.unit.name == "output")
    values = TOKENS * COLUMNS
    assert round(max(event.nbytes for event in unit.trace.forward) / values) == forward
    assert round(unit.trace.saved_bytes / values) == kept
    assert list(leftovers(unit.unit)) == ["grad of hidden_states"] or len(leftovers(unit.unit)) == 1


@pytest.mark.parametrize(
    ("loss", "most"),
    [
        # logits, their copy and the entropy's softmax are kept, and both gradients are written over two of them
        ("verl", 12),
        ("slime", 16),  # logits and two softmaxes are kept, and the gradient of the logits is a fourth
        ("skyrl", 16),
    ],
)
def test_bytes_of_the_logits_in_the_backward_of_an_entropy(loss: str, most: int) -> None:
    """volcengine/verl `verl/utils/megatron/tensor_parallel.py` (_VocabParallelEntropy.backward) writes over its softmax."""
    unit = next(
        run
        for run in found(loss_function=loss, loss_entropy=True).stages[0].rank.plans[0].runs
        if run.unit.name == "output"
    )
    assert round(max(event.nbytes for event in unit.trace.backward) / (TOKENS * COLUMNS)) == most


@pytest.mark.parametrize(("tp", "gathered"), [(1, 0), (2, 2 * TOKENS * 4096)])
def test_a_fused_loss_gathers_the_hidden_states_of_the_sequence_parallel_ranks(tp: int, gathered: int) -> None:
    """volcengine/verl: the kernel reads all tokens of the rank's group; Qwen3-8B, 4,096 wide. Alone it reads what the norm made."""
    settings: dict[str, Any] = {"tp": tp, "sequence_parallel": tp > 1, "loss_function": "fused"}
    unit = next(run for run in found(**settings).stages[0].rank.plans[0].runs if run.unit.name == "output")
    kept = {live.tensor.name: live.tensor.nbytes for live in unit.trace.saved}
    assert kept.get("output.hidden gathered", 0) == gathered
    assert kept.get("hidden_states", 0) == 2 * TOKENS * 4096 - gathered


def test_chunks_of_nemo_rl_keep_sixteen_bits() -> None:
    unit = next(
        run
        for run in found(loss_function="nemo_rl", loss_chunk_size=1024).stages[0].rank.plans[0].runs
        if run.unit.name == "output"
    )
    values = TOKENS * COLUMNS
    top = max(event.nbytes for event in unit.trace.forward)
    assert 2 * values + 8 * 1024 * COLUMNS <= top <= 2 * values + 8 * 1024 * COLUMNS + 64 * 4096 * TOKENS // 8
    assert round(unit.trace.saved_bytes / values) == 2


def test_the_floor_of_log_probabilities_from_hidden_states_that_no_chunk_makes_smaller() -> None:
    """NVIDIA-NeMo/RL: 30 bytes a logit of a chunk, 10 of each weight of the output layer, 12 of each hidden value of the gathered tokens.
    Qwen3-8B, tp 4, 32,768 tokens, chunks of 256: 0.27, 1.45 and 1.5 GiB."""
    columns, width, tokens, chunk = 152064 // 4, 4096, 32768, 256
    training: dict[str, Any] = {
        "loss_function": "nemo_rl_fused",
        "seq_length": tokens,
        "micro_batch_size": 1,
        "tensor_model_parallel_size": 4,
    }
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 4, sequence_parallel=True, loss_chunk_size=chunk, **training)
    unit = next(run for run in estimate(job).stages[0].rank.plans[0].runs if run.unit.name == "output")
    op = next(one for one in flattened(unit.unit.items) if one.name == "output.linear_cross_entropy")
    scratch: int = sum(one.nbytes for one in op.backward)
    kept = 2 * tokens * width + 2 * tokens * width  # the gathered hidden states, and their gradient
    assert scratch + kept == 30 * chunk * columns + 10 * width * columns + 12 * tokens * width


def test_frozen_routers_have_no_gradients() -> None:
    both = [
        estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, ep=8, freeze_moe_router=frozen)).stages[0]
        for frozen in (False, True)
    ]
    routers = 48 * 128 * 2048
    gradients = [stage.breakdown_bytes["gradients"] for stage in both]
    assert gradients[0] - gradients[1] == pytest.approx(4 * routers, rel=0.01)
    assert both[0].num_parameters == both[1].num_parameters


def test_advice_moves_the_trainer_or_shrinks_the_engine() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **{**RL, "reference_model": "device"})
    names = [change.name for one in advise(job).outcomes for change in one.changes]
    assert "weights, gradients and optimizer in host memory while samples are generated" in names
    assert any("of the GPU for the engine instead of 0.6" in name for name in names)
    with pytest.raises(UnsupportedError, match="plan does not search layouts of reinforcement learning"):
        plan(job)


def test_the_document_and_the_report_have_the_phases() -> None:
    result = TrainingJob.from_file(ROOT / "examples" / "verl_grpo.sh")
    found_ = estimate(result)
    phases = document(found_)["stages"][0]["rollout"]
    assert [phase["name"] for phase in phases] == ["generation", "log_probs", "weight_sync"]
    lines = str(found_).splitlines()
    names = [
        line.split()[0]
        for line in lines
        if line.split() and line.split()[0] in ("generation", "log_probs", "training", "weight_sync")
    ]
    assert names == ["generation", "log_probs", "training", "weight_sync"]


def test_a_phase_is_shown_with_its_range_on_the_stage_where_it_takes_most() -> None:
    result = found(pp=2, reference_model="device")
    rows = {line.split()[0]: line.split() for line in str(result).splitlines() if "to" in line.split()[2:4]}
    assert rows.keys() == {"generation", "log_probs", "training", "weight_sync"}
    for name, words in rows.items():
        most = max((stage.phase_ranges[name] for stage in result.stages), key=lambda one: one.high)
        assert result.stages[int(words[1])].phase_ranges[name] == most
        assert words[2:5] == [f"{most.low / GIB:.1f}", "to", f"{most.high / GIB:.1f}"]
    assert rows["training"][1] == "1" and len(result.stages) == 2


def test_phases_of_an_estimate_are_those_of_its_fullest_stages() -> None:
    result = found(pp=2, reference_model="device")
    assert set(result.phases) == {"training", "load", "save", "build", "generation", "log_probs", "weight_sync"}
    for name, held in result.phases.items():
        assert held.high == max(stage.phase_ranges[name].high for stage in result.stages)
        assert held in [stage.phase_ranges[name] for stage in result.stages]
    assert max(held.high for held in result.phases.values()) <= result.needed.high
    assert (
        "generation" in result._repr_html_()
        and "generation" not in estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8))._repr_html_()
    )


def test_shares_are_shares() -> None:
    with pytest.raises(ConfigError, match=r"rollout_memory_share=1\.5 must be above 0 and at most 1"):
        found(rollout_memory_share=1.5)


def test_an_engine_whose_share_nobody_gives_has_its_weights_and_that_is_said() -> None:
    open_ = found(rollout_memory_share=None)
    generation = next(one for one in open_.stages[0].rollout if one.name == "generation")
    assert generation.engine is not None
    assert generation.engine.low >= 2 * 8_190_735_360 // 2
    assert any("rollout_memory_share is not given" in one for one in open_.job.warnings)
    with pytest.raises(ConfigError, match="is awake while the trainer runs"):
        found(rollout_memory_share=None, rollout_sleeps=False)


def test_a_draft_model_is_named_where_its_engine_shares_the_gpus() -> None:
    """Keys of the engine itself, as verl, NeMo-RL, SkyRL, ROLL and AReaL hand them on."""
    for keys in (["speculative_config"], ["speculative_algorithm", "speculative_num_steps"]):
        _, said = engine("vllm", "", colocated=True, sleeps=True, keys=keys)
        assert any(one.startswith(f"{keys[0]}: the weights and caches of the engine's draft model") for one in said)
        assert not engine("vllm", "", colocated=False, sleeps=True, keys=keys)[1]
    assert len(engine("sglang", "", colocated=True, sleeps=True, keys=["tp_size"])[1]) == 1
