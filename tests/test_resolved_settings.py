"""What Megatron-LM's own parser and validation make of the arguments of every measured run, setting by setting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.job.layer_kinds import frequency_list
from megatron_memory_estimator.job.pipeline import virtual_stages
from megatron_memory_estimator.validation.replay import job_of
from megatron_memory_estimator.validation.runs import Run, read_runs

from .helpers import FACTS

FILE = json.loads((FACTS / "resolved_settings.json").read_text())
RECORDS = {record["id"]: record for record in FILE["records"]}
OFF: tuple[Any, ...] = (None, False, 0, [])
UNUSED = {"recompute_method", "recompute_num_layers", "recompute_modules"}


def resolved(run: Run) -> dict[str, Any]:
    """Megatron-LM's settings of a run: the common ones, its own, without those of features that are off."""
    record = RECORDS[run.id]
    absent = FILE["absent"][record["absent"]]
    return {name: value for name, value in {**FILE["common"], **record["settings"]}.items() if name not in absent}


def ours(job: TrainingJob) -> dict[str, Any]:
    """The job's settings under the names of Megatron-LM's arguments, derived ones included."""
    m, layout, t = job.model, job.layout, job.training
    found: dict[str, Any] = {}
    for part in (m, layout, t):
        found.update({name: getattr(part, name) for name in part.__dataclass_fields__})
    chunks = virtual_stages(m, layout)
    found.update(
        ffn_hidden_size=m.ffn,
        num_query_groups=m.groups,
        untie_embeddings_and_output_weights=not m.share_embeddings_and_output_weights,
        num_microbatches=job.num_microbatches,
        tensor_model_parallel_size=layout.tp,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        expert_tensor_parallel_size=layout.etp,
        data_parallel_size=layout.dp,
        accumulate_allreduce_grads_in_fp32=t.grad_dtype == "fp32" and t.params_dtype != "fp32",
        num_experts=m.num_moe_experts,
        padded_vocab_size=m.padded_vocab(layout.tp),
    )
    found["bias_swiglu_fusion" if m.gated_linear_unit else "bias_gelu_fusion"] = t.bias_activation_fusion
    found.pop("kv_channels")
    if not m.multi_latent_attention:
        found["kv_channels"] = m.head_dim
    if m.num_moe_experts:
        found["moe_layer_freq"] = list(frequency_list("moe_layer_freq", m.moe_layer_freq, m.num_layers))
        found["moe_ffn_hidden_size"] = m.moe_ffn
        found["expert_data_parallel_size"] = layout.expert_dp
    return found


def plain(name: str, value: Any, layers: int) -> Any:
    """A value in one spelling."""
    if name == "moe_layer_freq" and isinstance(value, int):
        return list(frequency_list(name, value, layers))
    if name == "moe_router_load_balancing_type":
        return [value] if isinstance(value, str) else list(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, str):
        return (
            value.removeprefix("torch.")
            .replace("bfloat16", "bf16")
            .replace("float16", "fp16")
            .replace("float32", "fp32")
        )
    return value


OPEN = "megatron-lm-pr7553"
"""Runs of a pull request, whose arguments no parser of a release has."""


@pytest.mark.parametrize(
    "run", [run for run in read_runs() if run.args and run.family != OPEN], ids=lambda run: str(run.id)
)
def test_every_setting_is_megatrons(run: Run) -> None:
    try:
        job = job_of(run)
    except EstimatorError:
        return  # refused by name: tests/test_validation.py
    found, layers = ours(job), job.model.num_layers
    for name, value in resolved(run).items():
        if name in run.settings:
            continue  # the run's source says otherwise
        if name in UNUSED and not job.training.recompute_granularity:
            continue
        if name not in found or (name.startswith(("moe_", "expert_")) and not job.model.num_moe_experts):
            continue
        mine, theirs = plain(name, found[name], layers), plain(name, value, layers)
        assert mine == theirs or (mine in OFF and theirs in OFF), (name, mine, theirs)
