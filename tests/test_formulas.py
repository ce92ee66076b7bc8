"""The published formulas against their own unit tests.

Facts: Megatron-Bridge `tests/unit_tests/training/utils/test_theoretical_memory_utils.py`, Megatron-LM
`tests/unit_tests/training/test_weight_and_optimizer_memory.py`.
"""

from __future__ import annotations

import argparse
import copy
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.formulas import bridge, megatron_lm
from megatron_memory_estimator.formulas.beside import Published, bridge_container, megatron_namespace, published
from megatron_memory_estimator.hardware import GIB
from megatron_memory_estimator.inputs.megatron.table import arguments

from .helpers import records


def container(**changes: Any) -> SimpleNamespace:
    """Bridge's base configuration with changes to the model; DP and NM-independent parts by their own names."""
    dp = changes.pop("data_parallel_size", 4)
    train = {"micro_batch_size": changes.pop("micro_batch_size", 2)}
    optimizer = {"use_distributed_optimizer": changes.pop("use_distributed_optimizer", True)}
    model = {
        "num_layers": 4, "hidden_size": 16, "seq_length": 8, "ffn_hidden_size": 64, "num_attention_heads": 4,
        "num_query_groups": None, "kv_channels": 4, "vocab_size": 32, "make_vocab_size_divisible_by": 1,
        "should_pad_vocab": False, "share_embeddings_and_output_weights": True, "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2, "context_parallel_size": 1, "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None, "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None, "virtual_pipeline_model_parallel_size": None, "num_moe_experts": None,
        "moe_layer_freq": 1, "moe_router_topk": 2, "moe_ffn_hidden_size": None,
        "moe_shared_expert_intermediate_size": None, "moe_latent_size": None, "mtp_num_layers": None,
        "gated_linear_unit": False, "activation_func": "gelu", "sequence_parallel": True,
        "recompute_granularity": "selective",
    }  # fmt: skip
    return SimpleNamespace(
        model=SimpleNamespace(**{**model, **changes}),
        train=SimpleNamespace(**train),
        optimizer=SimpleNamespace(**optimizer),
        data_parallel_size=dp,
    )


UNEVEN = {
    "num_layers": 8, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4,
    "num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3,
    "share_embeddings_and_output_weights": False,
}  # fmt: skip


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


MLM = {
    "num_layers": 2, "hidden_size": 8, "ffn_hidden_size": 16, "num_attention_heads": 2, "kv_channels": 4,
    "group_query_attention": False, "num_query_groups": 1, "swiglu": False, "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": False, "padded_vocab_size": 32, "num_experts": 4, "moe_layer_freq": [0, 1],
    "moe_ffn_hidden_size": 16, "moe_shared_expert_intermediate_size": 8, "moe_router_topk": 1,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 2,
    "expert_tensor_parallel_size": 4, "data_parallel_size": 16, "world_size": 32, "use_distributed_optimizer": True,
    "add_bias_linear": False, "seq_length": 16, "micro_batch_size": 1,
}  # fmt: skip


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


def formulas(model: str, num_gpus: int, **settings: Any) -> dict[str, Published]:
    return {found.formula: found for found in published(TrainingJob.from_hf(model, num_gpus, **settings))}


def test_known_sizes_of_the_formulas() -> None:
    """Values that the published functions gave for real models: see docs/formulas.md."""
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


def test_bridge_takes_other_number_types() -> None:
    whole = {**UNEVEN, "num_layers_in_first_pipeline_stage": 1.0, "num_layers": np.int64(8)}
    (dense,) = states(**whole).model_state_components
    assert dense.parameter_count_per_gpu == 9952
