"""What each door decides: providers of Megatron-Bridge as they were made, doors by name beside files of the framework, bytes by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.door_defaults import BUILT, decided, family_name, open_settings, rows
from megatron_memory_estimator.inputs.hf.load import load_bundled
from megatron_memory_estimator.job.choices import DOORS
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.versions import setting_notes

from .dialect_runs import job, written
from .helpers import ROOT

PROVIDERS = json.loads((ROOT / "tests/facts/bridge_providers.json").read_text())
OUR_WORDS = {"attention_backend": "attention_kernel"}
OF_MODELS = ("mtp_num_layers", "make_vocab_size_divisible_by")
"""What the model's config says itself; a vocabulary divisor does nothing while should_pad_vocab is off."""
KERNELS = {"fused": "cudnn"}
MIB = 2**20


@pytest.mark.parametrize("family", sorted(PROVIDERS["families"]))
def test_a_family_is_as_its_provider_was_made(family: str) -> None:
    found = decided("bridge", family)
    for name, value in PROVIDERS["families"][family].items():
        if name not in OF_MODELS:
            assert found.get(OUR_WORDS.get(name, name)) == KERNELS.get(value, value), name
    told = {OUR_WORDS.get(name, name) for name in PROVIDERS["families"][family]}
    usual = decided("bridge", "")
    assert {name for name, value in found.items() if value != usual.get(name)} <= told, "nothing else differs"


def test_every_family_that_was_made_is_known_as_built() -> None:
    assert {family_name(family) for family in PROVIDERS["families"]} <= BUILT


@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_rows_with_a_source(door: str) -> None:
    mine = [row for row in rows() if row.door == door]
    assert mine and all(
        row.source and row.sure in ("run", "read") and row.when in ("", "name", "fuses") for row in mine
    )


def peak(door: str | None, **settings: Any) -> int:
    given: dict[str, Any] = {"tp": 2, **settings} | ({"door": door} if door else {})
    return estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **given)).peak_stage.peak_allocated_bytes


def test_a_door_is_its_settings_in_bytes() -> None:
    unfused = {"bias_activation_fusion": False, "apply_rope_fusion": False, "bias_dropout_fusion": False}
    native = {
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "native",
        "make_vocab_size_divisible_by": 1,
    }
    assert peak("megatron-lm") == peak(None)
    assert peak("bridge") == peak(None, **unfused, **native)
    # two tensors [tokens, ffn/tp] of bf16 a layer, 36 layers; the tables of RoPE are 36 MiB at most
    more = peak(None, bias_activation_fusion=False) - peak(None)
    assert more == 36 * 2 * 2 * 4096 * (12288 // 2) == 36 * 96 * MIB


def test_what_the_nearest_other_door_would_give_is_said_from_both_sides() -> None:
    for one, other in (("megatron-lm", "Megatron-Bridge"), ("bridge", "pretrain_gpt.py"), ("verl", "pretrain_gpt.py")):
        given: dict[str, Any] = {"tp": 2, "door": one}
        found = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **given).open_settings
        assert [each.door for each in found[:2]] == [other, other]
        assert [each.name for each in found[:2]] == ["bias_activation_fusion", "cross_entropy_loss_fusion"]
    back = dict(open_settings("bridge", "qwen3", {}, {}).__next__().values)
    assert back == {"bias_activation_fusion": True}


VERL = """
actor_rollout_ref:
  model: {path: MODEL}
  actor: {strategy: megatron, ppo_micro_batch_size_per_gpu: 1, ppo_mini_batch_size: 8, megatron: {tensor_model_parallel_size: 2BRIDGE}}
  rollout: {n: 1}
data: {train_batch_size: 8, max_prompt_length: 512, max_response_length: 512}
trainer: {n_gpus_per_node: 8}
"""
SWIFT = """
model: MODEL
tuner_type: full
max_length: 1024
tensor_model_parallel_size: 2
micro_batch_size: 1
global_batch_size: 8
"""
ROLL = """
pretrain: MODEL
prompt_length: 512
response_length: 512
actor_train:
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 2}}
  device_mapping: list(range(0,8))
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 2}
actor_infer:
  strategy_args: {strategy_name: vllm, strategy_config: {}}
  device_mapping: list(range(0,8))
"""
FILES = {"verl": VERL, "verl-0.8": VERL.replace("BRIDGE", ", vanilla_mbridge: true"), "ms-swift": SWIFT, "roll": ROLL}
DECIDE = (
    "bias_activation_fusion", "apply_rope_fusion", "masked_softmax_fusion", "cross_entropy_loss_fusion", "loss_function", "loss_chunk_size",
    "gradient_accumulation_fusion", "attention_kernel", "use_distributed_optimizer", "accumulate_allreduce_grads_in_fp32",
    "recompute_granularity", "bias_dropout_fusion",
)  # fmt: skip


@pytest.mark.parametrize("door", FILES)
@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3-8B", "google/gemma-2-2b"])
def test_a_door_by_name_decides_what_a_file_of_the_framework_decides(door: str, model: str) -> None:
    of_file = job(written(FILES[door].replace("MODEL", model).replace("BRIDGE", "")), 8).training
    given: dict[str, Any] = {"tp": 2, "seq_length": 1024, "door": door}
    by_name = TrainingJob.from_hf(model, 8, **given).training
    assert said(by_name) == said(of_file)


def said(training: Training) -> dict[str, Any]:
    """What doors decide of a training; the fused cross entropy only where it is the loss."""
    own = training.loss_function != "cross_entropy"
    return {name: getattr(training, name) for name in DECIDE if not (own and name == "cross_entropy_loss_fusion")}


def test_a_run_that_says_its_door_takes_none_and_an_unknown_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="door is for a model by its name"):
        job(written(SWIFT.replace("MODEL", "Qwen/Qwen3-8B")), 8, door="bridge")
    with pytest.raises(ConfigError, match="Megatron-Bridge has no bridge for phi3"):
        TrainingJob.from_hf("microsoft/phi-4", 8, door="nemo-rl")
    with pytest.raises(ConfigError, match='Did you mean "verl"'):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 8, door="vrl")  # type: ignore[arg-type]


def test_every_model_of_the_catalogue_goes_through_the_doors_that_build_it() -> None:
    fields = {field.name for field in dataclasses.fields(Training)}
    for name in entries():
        loaded = load_bundled(name)
        if not loaded.refusal and family_name(loaded.family) in BUILT:
            settings = decided("bridge", loaded.family)
            assert settings["cross_entropy_fusion_impl"] in ("native", "te")
            assert any(each in fields for each in settings)


def test_expandable_segments_are_those_of_the_door() -> None:
    """verl turns them on behind each exchange of weights with an engine that shares the GPUs; ROLL always; the environment wins."""
    text = FILES["verl"].replace("MODEL", "Qwen/Qwen3-8B").replace("BRIDGE", "").replace("{n: 1}", "{n: 1, name: vllm}")
    run = written(text)
    assert job(run, 8).env.expandable_segments
    off = dataclasses.replace(run, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    assert not job(off, 8).env.expandable_segments
    assert job(written(FILES["roll"].replace("MODEL", "Qwen/Qwen3-8B")), 8).env.expandable_segments
    assert not job(written(FILES["ms-swift"].replace("MODEL", "Qwen/Qwen3-8B")), 8).env.expandable_segments


def test_the_entropy_that_a_run_does_not_say_is_said_with_its_bytes() -> None:
    """A loss of a framework with entropy keeps its gradient of the logits: asked back where no key says it, in the line of assumptions."""
    text = (
        FILES["verl"]
        .replace("MODEL", "Qwen/Qwen3-8B")
        .replace("BRIDGE", "")
        .replace("{n: 1}", "{n: 1, name: vllm}")
        .replace("512", "8192")
    )
    opened = job(written(text), 8)
    (one,) = opened.open_settings
    assert (one.values, one.flag) == ((("loss_entropy", True),), "--loss-entropy")
    more = estimate(job(written(text), 8, loss_entropy=True)).peak_stage.peak_allocated_bytes
    said = [note for note in setting_notes(estimate(opened)) if "entropy" in note]
    difference = (more - estimate(opened).peak_stage.peak_allocated_bytes) / 2**30
    assert (
        len(said) == 1
        and f"on, with entropy_coeff, would be {difference:+.1f} GiB at the peak (--loss-entropy)" in said[0]
    )
    stated = text.replace("ppo_mini_batch_size: 8", "ppo_mini_batch_size: 8, entropy_coeff: 0")
    assert not job(written(stated), 8).open_settings and not job(written(text), 8, loss_entropy=True).open_settings
