"""Megatron-Bridge configs: duck-typed containers and saved YAML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.inputs.runs.files import job_from_file
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.job.training_job import alike

from .helpers import records, small_config


def silu() -> None:
    """Stands for torch.nn.functional.silu."""


def config(**changes: Any) -> SimpleNamespace:
    """A container with a small model; sections can be replaced."""
    model = {**small_config(), "seq_length": 1024, "activation_func": silu, "tensor_model_parallel_size": 2, "gated": 1}
    model["num_experts_typo_of_another_library"] = lambda: None
    sections: dict[str, Any] = {
        "model": SimpleNamespace(**model),
        "train": SimpleNamespace(micro_batch_size=1, global_batch_size=8),
        "optimizer": SimpleNamespace(optimizer="adam", use_distributed_optimizer=False),
        "ddp": SimpleNamespace(use_distributed_optimizer=True, overlap_grad_reduce=True, grad_reduce_in_fp32=False),
        "mixed_precision": "bf16-mixed",
        "peft": None,
        "data_parallel_size": 4,
    }
    return SimpleNamespace(**{**sections, **changes})


def test_sections_become_settings() -> None:
    job = TrainingJob.from_bridge(config())
    assert (job.layout.world_size, job.layout.tp, job.layout.dp) == (8, 2, 4)
    assert job.training.use_distributed_optimizer and job.training.overlap_grad_reduce
    assert job.training.grad_dtype == "fp32" and job.training.params_dtype == "bf16"
    assert job.model.activation_func == "silu" and job.model.padded_vocab(2) == 32000
    assert job.training.cross_entropy_loss_fusion and not job.training.create_attention_mask_in_dataloader
    expected = TrainingJob.from_config(
        small_config(), 8, tensor_model_parallel_size=2, seq_length=1024, micro_batch_size=1, global_batch_size=8,
        use_distributed_optimizer=True, overlap_grad_reduce=True, accumulate_allreduce_grads_in_fp32=True,
        padded_vocab_size=32000, cross_entropy_loss_fusion=True, gradient_accumulation_fusion=True,
        create_attention_mask_in_dataloader=False, share_embeddings_and_output_weights=True, params_dtype="bf16",
    )  # fmt: skip
    assert estimate(job).peak_stage.peak_allocated_bytes == estimate(expected).peak_stage.peak_allocated_bytes


def test_precision_objects_and_names() -> None:
    half = SimpleNamespace(bf16=True, fp16=False, grad_reduce_in_fp32=False, fp8=None)
    assert TrainingJob.from_bridge(config(mixed_precision=half)).training.grad_dtype == "bf16"
    assert TrainingJob.from_bridge(config(mixed_precision="fp16_mixed")).training.params_dtype == "fp16"


def test_switches_that_are_no_settings_of_their_own() -> None:
    """Layers are offloaded where `cpu_offloading` says so; forced balance is the routing's phase; `comm_overlap` defers gradients."""

    def training(**model: Any) -> Training:
        values = {**vars(config().model), "pipeline_model_parallel_size": 2, **model}
        overlap = SimpleNamespace(defer_embedding_wgrad_compute=True, wgrad_deferral_limit=3)
        return TrainingJob.from_bridge(config(model=SimpleNamespace(**values), comm_overlap=overlap)).training

    assert training(cpu_offloading=True, cpu_offloading_num_layers=1).cpu_offloading_num_layers == 1
    assert training(cpu_offloading=False, cpu_offloading_num_layers=1).cpu_offloading_num_layers == 0
    assert training(cpu_offloading_num_layers=1).cpu_offloading_num_layers == 0
    assert training(moe_router_force_load_balancing=True).routing_phase == "forced_balance"
    assert training(moe_router_force_load_balancing=False).routing_phase == "pretraining"
    assert (training().defer_embedding_wgrad_compute, training().wgrad_deferral_limit) == (True, 3)


def test_layout_objects() -> None:
    layout = [["embedding", "decoder"], ["decoder"], ["decoder"], ["decoder", "loss"]]
    found = config()
    found.model.pipeline_model_parallel_layout = layout
    found.model.pipeline_model_parallel_size = 2
    found.model.virtual_pipeline_model_parallel_size = 2
    job = TrainingJob.from_bridge(found)
    assert job.layout.pipeline_model_parallel_layout == "Et|t|t|tL"
    assert len(estimate(job).stages) == 2


def test_saved_yaml(tmp_path: Path) -> None:
    file = tmp_path / "run_config.yaml"
    file.write_text(
        """
model:
  _target_: megatron.bridge.models.llama.LlamaModelProvider
  num_layers: 4
  hidden_size: 1024
  num_attention_heads: 16
  vocab_size: 32000
  gated_linear_unit: true
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  init_method: {_target_: megatron.core.utils.init_method_normal, _call_: false}
train: {micro_batch_size: 1, global_batch_size: 8}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""
    )
    job = TrainingJob.from_bridge(file, 8)
    assert (job.model.activation_func, job.training.seq_length, job.layout.dp) == ("silu", 1024, 8)
    assert alike(TrainingJob.from_file(file, 8), job)  # it says itself whose it is
    with pytest.raises(ConfigError, match="arguments after -- go with Megatron-LM arguments only"):
        job_from_file(str(file), 8, {}, ["--seq-length", "2048"])


@pytest.mark.parametrize("recipe", records("bridge_recipes.json"), ids=lambda recipe: str(recipe["id"]))
def test_real_recipes(recipe: dict[str, Any]) -> None:
    batch = recipe["num_microbatches"] * recipe["micro_batch_size"] * recipe["data_parallel_size"]
    found = SimpleNamespace(
        model=SimpleNamespace(**recipe["model"]),
        train=SimpleNamespace(micro_batch_size=recipe["micro_batch_size"], global_batch_size=batch),
        optimizer=SimpleNamespace(use_distributed_optimizer=True),
        ddp=SimpleNamespace(grad_reduce_in_fp32=True),
        mixed_precision="bf16_mixed",
        data_parallel_size=recipe["data_parallel_size"],
    )
    result = estimate(TrainingJob.from_bridge(found))
    assert result.job.layout.dp == recipe["data_parallel_size"]
    assert result.job.num_microbatches == recipe["num_microbatches"]


REFUSED = [
    ({"peft": SimpleNamespace(dim=8, type="IA3")}, "peft IA3 is not modelled"),
    ({"peft": SimpleNamespace(dim=8, type="LoRA", dropout=0.1)}, "peft.dropout=0.1 is not modelled"),
    ({"mixed_precision": "bf16_with_fp9_mixed"}, "is not one of"),
    ({"mixed_precision": "int8"}, "is not one of bf16_mixed"),
    ({"model": None}, "needs the section model"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_refusals(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EstimatorError) as error:
        TrainingJob.from_bridge(config(**changes))
    assert sentence in str(error.value)


def test_vision_providers_and_odd_layouts() -> None:
    found = config()
    found.model.vision_config = {"depth": 2}
    with pytest.raises(UnsupportedError, match="vision or audio tower"):
        TrainingJob.from_bridge(found)
    odd = config()
    odd.model.pipeline_model_parallel_layout = [["decoder", "attention"]]
    with pytest.raises(ConfigError, match="'attention'"):
        TrainingJob.from_bridge(odd)
