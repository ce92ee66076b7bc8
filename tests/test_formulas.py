"""The published formulas for whole jobs: known sizes, real recipes, parsed arguments."""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.formulas import bridge, megatron_lm
from megatron_memory_estimator.formulas.beside import Published, bridge_container, megatron_namespace, published
from megatron_memory_estimator.inputs.megatron.table import arguments
from megatron_memory_estimator.job.hardware import GIB

from .formula_configs import container
from .helpers import records


def formulas(model: str, num_gpus: int, **settings: Any) -> dict[str, Published]:
    return {found.formula: found for found in published(TrainingJob.from_hf(model, num_gpus, **settings))}


def test_known_sizes_of_the_formulas() -> None:
    """Values that the published functions gave for real models: see docs/how-to/formulas.md."""
    gpt_oss = TrainingJob.from_hf("openai/gpt-oss-120b", 8, expert_model_parallel_size=8)
    assert bridge.estimate_training_memory(bridge_container(gpt_oss)).total_parameters == pytest.approx(
        78.56e9, rel=1e-4
    )
    assert f"{(published(gpt_oss)[0].weight_and_optimizer_bytes or 0) / GIB:.2f}" == "174.95"
    gemma = TrainingJob.from_hf("google/gemma-3-27b-pt", 8, tensor_model_parallel_size=8)
    assert bridge.estimate_training_memory(bridge_container(gemma)).total_parameters == pytest.approx(19.85e9, rel=2e-4)
    assert f"{(published(gemma)[0].total_bytes or 0) / GIB:.1f}" == "47.5"
    layout = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8,
              "num_layers_in_last_pipeline_stage": 16, "mtp_num_layers": 0}  # fmt: skip
    deepseek = formulas("deepseek-ai/DeepSeek-V3", 128, **layout)["megatron_lm"]
    assert f"{(deepseek.weight_and_optimizer_bytes or 0) / GIB:.2f}" == "179.71"


def test_formulas_of_plain_models_agree_with_the_ledger() -> None:
    """On a Llama-like model both formulas count the parameters that the engine counts."""
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8)
    (stage,) = estimate(job).stages
    assert megatron_lm.compute_weight_and_optimizer_memory(megatron_namespace(job)) == 7.5 * stage.num_parameters[0]
    dense = bridge.estimate_training_memory(bridge_container(job)).total_parameters
    assert dense - stage.num_parameters[0] == (2 * 32 + 1) * 4096


def test_hybrids_are_in_neither_formula() -> None:
    found = formulas("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8)
    assert all(value.total_bytes is None and "hybrid" in value.refused for value in found.values())


@pytest.mark.parametrize("recipe", records("bridge_recipes.json"), ids=lambda recipe: str(recipe["id"]))
def test_bridge_containers_of_real_recipes(recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The container gives what the same settings give as a job."""
    facts = recipe["model"]
    config = container(
        **{**facts, "data_parallel_size": recipe["data_parallel_size"], "micro_batch_size": recipe["micro_batch_size"]}
    )
    found = bridge.estimate_training_memory(config, recipe["num_microbatches"])
    assert found.activation is not None and found.total_memory_bytes > found.weight_and_optimizer_bytes > 0
    bridge.report_theoretical_memory(config, recipe["num_microbatches"], verbose=True)
    shown = found.weight_and_optimizer_bytes / 2**20
    assert f"weight and optimizer={shown:.2f} MB" in capsys.readouterr().out
    settings = {k: v for k, v in facts.items() if v is not None and k != "should_pad_vocab"}
    world = recipe["data_parallel_size"]
    for name in ("tensor", "pipeline", "context"):
        world *= facts.get(f"{name}{'' if name == 'context' else '_model'}_parallel_size", 1)
    job = TrainingJob.from_config(
        settings, world, micro_batch_size=recipe["micro_batch_size"], use_distributed_optimizer=True,
        global_batch_size=recipe["num_microbatches"] * recipe["micro_batch_size"] * recipe["data_parallel_size"],
    )  # fmt: skip
    assert published(job)[0].total_bytes == round(found.total_memory_bytes)
    assert estimate(job).peak_stage.peak_allocated_bytes > 0


COMMAND_LINE = """
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
--num-query-groups 8 --num-experts 8 --moe-router-topk 2 --swiglu --normalization RMSNorm --disable-bias-linear
--untie-embeddings-and-output-weights --vocab-size 32000 --seq-length 4096 --max-position-embeddings 32768
--micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
--expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --sequence-parallel --use-distributed-optimizer --bf16
--recompute-granularity selective --moe-grouped-gemm --moe-token-dispatcher-type alltoall --position-embedding-type rope
--attention-dropout 0 --hidden-dropout 0
"""


def parsed_arguments() -> argparse.Namespace:
    """Every argument of Megatron-LM in a parser, and a Mixtral-8x7B command line parsed by it."""

    def word(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for argument in arguments()[0].values():
        flag = "--" + argument.flag.replace("_", "-")
        if argument.kind == "Store":
            parser.add_argument(flag, dest=argument.dest, type=word, default=argument.default)
        else:
            action = "store_true" if argument.kind == "StoreTrue" else "store_false"
            parser.add_argument(flag, dest=argument.dest, action=action)
    return parser.parse_args(COMMAND_LINE.split())


def test_parsed_megatron_arguments_give_all_results() -> None:
    args = parsed_arguments()
    job = TrainingJob.from_megatron_args(vars(args), 64)
    assert not [warning for warning in job.warnings if "has no effect" in warning]
    assert estimate(job).peak_stage.peak_allocated_bytes > 0
    args.world_size = 64
    before = copy.deepcopy(vars(args))
    found = megatron_lm.report_theoretical_memory(args, job.num_microbatches)
    assert found is not None and vars(args) == before
    ours = published(job)[1]
    assert ours.weight_and_optimizer_bytes == round(found[0] * 2**20)
    assert ours.total_bytes == round(found[2] * 2**20)
    assert published(job)[0].total_bytes is not None
