"""What Megatron runs is estimated, and what it refuses is refused: rules that depend on a version, an implementation or another setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, Estimate, LayoutError, Stage, TrainingJob, estimate
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.legality.pipeline import schedule

from .helpers import moe_config, moe_job, small_config, small_job

FACTS = Path(__file__).parent / "facts"
LAYERS = 4
HIDDEN, TOKENS = 1024, 1024
ROWS = 2048
"""Rows of the experts: top-2 of 1,024 tokens."""


def kept(found: Estimate, run: int = 1) -> int:
    """Bytes that the first layer of the first stage keeps."""
    return found.stages[0].rank.plans[0].runs[run].trace.saved_bytes


def peak(job: TrainingJob) -> int:
    return max(stage.peak.nbytes for stage in estimate(job).stages)


# -- transformer_impl=local -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["unfused", "flash", "fused", "auto"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_local_modules_have_one_kernel_whatever_the_back_end(backend: str, dtype: str) -> None:
    """A back end sets variables that TransformerEngine reads (`models/common/language_module/language_module.py`); local modules are
    made with `dot_product_attention.py`, which keeps the probabilities of all scores."""
    plain = small_job(transformer_impl="local", params_dtype=dtype)
    job = small_job(transformer_impl="local", params_dtype=dtype, attention_backend=backend)
    assert job.kernel == "local"
    assert peak(job) == peak(plain)
    assert any("has its own kernel" in warning for warning in job.warnings) == (backend != "auto")


def test_transformer_engine_has_no_local_kernel() -> None:
    """Megatron-LM `arguments.py`: --attention-backend local is refused without the local spec."""
    with pytest.raises(LayoutError, match="attention_kernel=local needs transformer_impl=local"):
        estimate(small_job(attention_backend="local"))


# -- fp8 with fp32 weights --------------------------------------------------------------------------------------------

FP8: dict[str, Any] = {"fp8": "hybrid", "fp8_recipe": "delayed", "params_dtype": "fp32"}
FSDP2: dict[str, Any] = {"use_torch_fsdp2": True, "gradient_accumulation_fusion": False}


def stays(found: Estimate) -> dict[str, int]:
    """What the first layer keeps, by name."""
    layer = found.stages[0].rank.plans[0].runs[1]
    return {live.tensor.name: live.tensor.nbytes for live in layer.trace.saved}


def test_fp8_with_fp32_weights_keeps_the_same_quantized_inputs() -> None:
    """TransformerEngine `pytorch/module/linear.py` quantizes fp32 operands too; what is beside the GEMMs has 4 bytes, not 2."""
    wide, narrow = (
        stays(estimate(TrainingJob.from_config(small_config(share_embeddings_and_output_weights=False), 2, **settings)))
        for settings in ({**FP8, **FSDP2, "seq_length": TOKENS}, {**FP8, **FSDP2, "seq_length": TOKENS, "params_dtype": "bf16"})
    )  # fmt: skip
    quantized = {name for name in wide if name.endswith(" delayed")}
    assert len(quantized) == 4
    assert {name: wide[name] for name in quantized} == {name: narrow[name] for name in quantized}
    assert wide["mlp.linear_fc1.output"] == 2 * narrow["mlp.linear_fc1.output"]


def test_fp8_with_fp32_weights_shards_fp32_weights() -> None:
    """Torch FSDP2 gathers the weights in their own precision, and every linear quantizes its own anew."""
    found = estimate(
        TrainingJob.from_config(small_config(share_embeddings_and_output_weights=False), 2, **FP8, **FSDP2)
    )
    states = found.stages[0].rank.states
    (weights,) = [state for state in states if state.part == "weights"]
    assert weights.dtype == "fp32"
    assert not any("get_weight_workspace" in row.why for row in found.stages[0].rows)


def test_torch_fsdp2_turns_fp8_param_gather_off() -> None:
    """Megatron-LM `arguments.py` (validate_args), from TransformerEngine 2.0 on: it falls back to gathering 16-bit weights."""
    config = small_config(share_embeddings_and_output_weights=False)
    settings = {**FSDP2, "fp8": "hybrid", "fp8_recipe": "delayed"}
    plain = TrainingJob.from_config(config, 2, **settings)
    given = TrainingJob.from_config(config, 2, fp8_param_gather=True, **settings)
    assert peak(given) == peak(plain)
    assert any("use_torch_fsdp2 turns it off" in warning for warning in given.warnings)
    older = TrainingJob.from_config(config, 2, fp8_param_gather=True, transformer_engine_version="1.13", **settings)
    with pytest.raises(LayoutError, match="fp8_param_gather needs use_distributed_optimizer"):
        estimate(older)


# -- MTP layers that a layout string does not place -------------------------------------------------------------------


def parameters(stage: Stage) -> int:
    """Parameters of a stage."""
    return sum(param.numel * copies for plan in stage.rank.plans for param, copies in plan.params)


def mtp_job(text: str, version: str) -> TrainingJob:
    config = small_config(mtp_num_layers=1, position_embedding_type="rope")
    return TrainingJob.from_config(
        config, 2, pipeline_model_parallel_size=2, pipeline_model_parallel_layout=text, megatron_core_version=version
    )


def test_megatron_core_0_13_puts_mtp_layers_on_the_last_chunk_itself() -> None:
    """`multi_token_prediction.py` of 0.13 (get_mtp_num_layers_to_build): the last stage, whatever the layout string says."""
    ours = estimate(mtp_job("Ett|ttL", "0.13"))
    without = estimate(TrainingJob.from_config(
        small_config(mtp_num_layers=1, position_embedding_type="rope"), 2, pipeline_model_parallel_size=2,
        megatron_core_version="0.13",
    ))  # fmt: skip
    assert [stage.peak.nbytes for stage in ours.stages] == [stage.peak.nbytes for stage in without.stages]
    placed = estimate(mtp_job("Ett|ttmL", "0.14"))
    assert list(map(parameters, placed.stages)) == list(map(parameters, ours.stages))


@pytest.mark.parametrize("version", ["0.14", "0.16", "0.20"])
def test_since_0_14_a_layout_string_places_all_mtp_layers(version: str) -> None:
    """`pipeline_parallel_layer_layout.py` (validate_layer_layout): the number of m is mtp_num_layers."""
    with pytest.raises(
        LayoutError, match=r"has 0 m, not mtp_num_layers=1; use 1 m, or give megatron_core_version 0.13"
    ):
        estimate(mtp_job("Ett|ttL", version))


def test_before_0_14_a_layout_string_places_no_mtp_layers() -> None:
    """The same file of 0.13 raises NotImplementedError for m."""
    with pytest.raises(LayoutError, match=r"has 1 m, which has no meaning before Megatron-Core 0.14"):
        estimate(mtp_job("Ett|ttmL", "0.13"))


# -- expert biases ----------------------------------------------------------------------------------------------------


def biased(version: str, etp: int = 2, experts: int = 8, **settings: Any) -> TrainingJob:
    """Experts of two GPUs with a bias; one GPU has all rows of the experts that it holds."""
    given: dict[str, Any] = {
        "add_bias_linear": True, "moe_grouped_gemm": False, "moe_token_dispatcher_type": "allgather", "num_moe_experts": experts,
        "tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": etp, "seq_length": TOKENS,
        "router_imbalance": 1, "megatron_core_version": version,
    }  # fmt: skip
    return TrainingJob.from_config(moe_config(), 2, **{**given, **settings})


@pytest.mark.parametrize("version", ["0.11", "0.12"])
def test_biases_of_sharded_experts_ran_before_0_13(version: str) -> None:
    """fc1's biases are sharded as its rows are, fc2's are whole; every row keeps a bias of fc2 in 16 bits for its probability.

    Measured with SequentialMLP and MoEAllGatherTokenDispatcher of Megatron-Core 0.12.0 on a CPU: one tensor [rows, hidden] more with
    several local experts, nothing more with one.
    """
    found, plain = (estimate(biased(version, add_bias_linear=on)) for on in (True, False))
    assert kept(found) - kept(plain) == ROWS * HIDDEN * 2
    (layer,) = {id(run): run for run in found.stages[0].rank.plans[0].runs if run.first_layer == 0}.values()
    biases = {p.name: p.numel for p in layer.params if p.name.startswith("mlp.experts") and p.name.endswith("bias")}
    assert biases == {"mlp.experts.linear_fc1.bias": 8 * 2 * 512 // 2, "mlp.experts.linear_fc2.bias": 8 * HIDDEN}


def test_one_expert_broadcasts_its_bias() -> None:
    given = {"etp": 1, "experts": 2, "expert_model_parallel_size": 2}
    found, plain = (estimate(biased("0.12", **given, add_bias_linear=on)) for on in (True, False))
    assert kept(found) == kept(plain)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (biased("0.15"), "need expert_tensor_parallel_size=1 since Megatron-Core 0.15, not 2; use expert_tensor_parallel_size=1"),
        (biased("0.20"), "need expert_tensor_parallel_size=1"),
        (biased("0.13", etp=1), "do not run in Megatron-Core 0.13 and 0.14"),
        (biased("0.14"), "do not run in Megatron-Core 0.13 and 0.14"),
        (biased("0.12", moe_token_dispatcher_type="alltoall"), "need moe_token_dispatcher_type allgather and no moe_grouped_gemm"),
        (biased("0.11", moe_grouped_gemm=True), "need moe_token_dispatcher_type allgather and no moe_grouped_gemm"),
    ],
)  # fmt: skip
def test_where_megatron_refuses_biases_of_experts(job: TrainingJob, reason: str) -> None:
    """`transformer_config.py` since 0.15 (ETP==1); `mlp.py` and `moe/moe_layer.py` of 0.13 and 0.14 assert that there is no bias of fc2;
    MoEAlltoAllTokenDispatcher and grouped GEMMs before them."""
    with pytest.raises(LayoutError, match=reason):
        estimate(job)


def test_biases_of_whole_experts_run_since_0_15() -> None:
    assert peak(biased("0.15", etp=1)) > peak(biased("0.15", etp=1, add_bias_linear=False))


# -- microbatches of the schedules ------------------------------------------------------------------------------------


def test_the_schedules_run_with_the_microbatches_that_megatron_runs() -> None:
    """864 runs of the real schedules, with fewer microbatches than stages and than a group too."""
    facts = json.loads((FACTS / "schedules_that_run.json").read_text())
    for pp, vpp, group, runs in facts["runs"]:
        model = Model(num_layers=pp * (vpp or 1), hidden_size=8, num_attention_heads=1, vocab_size=8)
        layout = Layout(
            world_size=pp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp,
            microbatch_group_size_per_vp_stage=group,
        )  # fmt: skip
        ours = [m for m in range(1, facts["most"] + 1) if not tuple(schedule(model, layout, m))]
        assert ours == runs, (pp, vpp, group)
    assert len(facts["runs"]) == 72


# -- offloading -------------------------------------------------------------------------------------------------------

HYBRID_EP: dict[str, Any] = {
    "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", "expert_model_parallel_size": 2,
    "use_transformer_engine_op_fuser": True, "use_distributed_optimizer": True, "router_imbalance": 1,
}  # fmt: skip
MXFP8: dict[str, Any] = {
    "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True, "gpu": "B200",
}  # fmt: skip
FUSED: dict[str, Any] = {"fine_grained_activation_offloading": True, "offload_modules": ("fused_group_mlp",)}


def test_fused_group_mlp_takes_all_that_the_fused_experts_keep() -> None:
    """Megatron-LM `moe/experts.py` (_fused_forward): tensors that are saved inside, of at least min_offloaded_tensor_size elements:
    fc1's input by columns and its output; fc2's input has 2**20 elements, scales and probabilities fewer."""
    (found,) = [
        run for run in estimate(moe_job(2, **HYBRID_EP, **MXFP8, **FUSED)).stages[0].rank.plans[0].runs if run.first_layer == 0
    ]  # fmt: skip
    name = "mlp.experts.grouped_mlp"
    assert {t.name: t.nbytes for t in found.offloaded} == {
        f"{name}.fc1.input mxfp8": ROWS * HIDDEN,
        f"{name}.fc1 output": ROWS * 2 * 512 * 2,
        f"{name}.fc2.input mxfp8": ROWS * 512,
    }


def test_experts_of_single_ops_leave_too() -> None:
    """In bf16 the ops run one by one inside the same stretch: fc1's input and output, and fc2's input."""
    (found,) = [
        run for run in estimate(moe_job(2, **HYBRID_EP, **FUSED)).stages[0].rank.plans[0].runs if run.first_layer == 0
    ]
    assert sum(t.nbytes for t in found.offloaded) == 2 * ROWS * (HIDDEN + 2 * 512 + 512)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**FUSED, "use_transformer_engine_op_fuser": False}, "fused_group_mlp needs use_transformer_engine_op_fuser"),
        ({**FUSED, "offload_modules": ("fused_group_mlp", "moe_act")}, "fused experts have no offload_modules moe_act"),
        ({**FUSED, "offload_modules": ("expert_fc1", "moe_act")}, "fused experts have no offload_modules expert_fc1 and moe_act"),
        ({**FUSED, "recompute_granularity": "selective", "recompute_modules": ("moe",)}, "recompute_modules moe exclude"),
        ({**FUSED, "moe_paged_stash": True, "moe_expert_rank_capacity_factor": 1.5}, "moe_paged_stash exclude each other"),
        ({**FUSED, **MXFP8, "fp8_param_gather": False, "reuse_grad_buf_for_mxfp8_param_ag": False}, "copies of the weights"),
    ],
)  # fmt: skip
def test_what_offloading_of_experts_excludes(settings: dict[str, Any], reason: str) -> None:
    """Megatron-LM `transformer_config.py`; `moe/experts.py` (_is_fused_impl_supported)."""
    with pytest.raises(LayoutError, match=reason):
        estimate(moe_job(2, **{**HYBRID_EP, **settings}))


def test_layers_are_not_offloaded_while_offloading_is_off() -> None:
    """`cpu_offloading` is the switch of TransformerConfig; a pipeline excludes offloading only while it is on."""
    off = small_job(2, pipeline_model_parallel_size=2, cpu_offloading=False, cpu_offloading_num_layers=2)
    assert peak(off) == peak(small_job(2, pipeline_model_parallel_size=2))
    with pytest.raises(LayoutError, match="cpu_offloading_num_layers needs pipeline_model_parallel_size=1"):
        estimate(small_job(2, pipeline_model_parallel_size=2, cpu_offloading=True, cpu_offloading_num_layers=2))


# -- what another setting turns on or off ------------------------------------------------------------------------------


def test_megatron_fsdp_turns_the_reuse_of_gradient_buffers_off() -> None:
    """Megatron-LM `arguments.py` (validate_args: use_megatron_fsdp)."""
    given: dict[str, Any] = {**MXFP8, "use_megatron_fsdp": True}
    on, off = (small_job(2, **{**given, "reuse_grad_buf_for_mxfp8_param_ag": value}) for value in (True, False))
    assert peak(on) == peak(off)
    assert any("use_megatron_fsdp turns it off" in warning for warning in on.warnings)


def test_buffers_that_are_registered_with_nccl() -> None:
    """DDP's have the same bytes in a pool of NCCL's; Megatron-FSDP's are its double buffers (`arguments.py`: nccl_ub)."""
    assert peak(small_job(2, nccl_ub=True)) == peak(small_job(2))
    assert peak(small_job(2, use_nccl_ub=True, use_megatron_fsdp=True)) == peak(
        small_job(2, use_megatron_fsdp=True, fsdp_double_buffer=True)
    )


def test_balanced_routing_that_is_forced() -> None:
    """`moe/router.py` (apply_random_logits): random logits route evenly but for chance."""
    forced = moe_job(2, expert_model_parallel_size=2, moe_router_force_load_balancing=True)
    even = moe_job(2, expert_model_parallel_size=2, router_imbalance=1)
    typical = moe_job(2, expert_model_parallel_size=2)
    assert forced.training.routing_phase == "forced_balance"
    assert peak(even) <= peak(forced) < peak(typical)
    both = moe_job(2, expert_model_parallel_size=2, moe_router_force_load_balancing=True, router_imbalance=1)
    assert peak(both) == peak(even)


def test_weights_that_are_quantized_for_each_microbatch() -> None:
    """`extensions/transformer_engine.py` (is_first_microbatch): nothing is cached in 16 bits, nor of weights that are fp8 themselves."""
    assert peak(small_job(disable_parameter_transpose_cache=True)) == peak(small_job())
    own: dict[str, Any] = {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True, "use_distributed_optimizer": True,
    }  # fmt: skip
    assert peak(small_job(2, disable_parameter_transpose_cache=True, **own)) == peak(small_job(2, **own))


def test_the_largest_batch_of_a_schedule_decides() -> None:
    """`num_microbatches_calculator.py` (StepBatchsizeNumMicroBatchesCalculator), sorted by threshold."""
    job = small_job(2, step_batch_size_schedule="250B:16 0:8, 1.5T:4")
    assert job.training.global_batch_size == 16
    assert small_job(2, rampup_batch_size=(2, 2, 1000), global_batch_size=8).training.global_batch_size == 8


@pytest.mark.parametrize("text", ["", "8", "0:8 x", "5:8", "0:0", "0:8 1M:-2", "0:8 nan:16", 8, "0:1e999"])
def test_schedules_that_megatron_does_not_read(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"step_batch_size_schedule=.* must be THRESHOLD:BATCH_SIZE pairs"):
        small_job(2, step_batch_size_schedule=text)


def test_a_schedule_beside_a_batch() -> None:
    """Megatron-LM `arguments.py` (validate_args)."""
    with pytest.raises(ConfigError, match="exclude each other"):
        small_job(2, step_batch_size_schedule="0:8", global_batch_size=8)


@pytest.mark.parametrize(
    ("score", "version", "needed"),
    [("softmax", "2.6", "2.7"), ("sigmoid", "2.6", "2.7"), ("sqrtsoftplus", "2.12", "2.13")],
)
def test_fused_routers_need_their_kernels(score: str, version: str, needed: str) -> None:
    """Megatron-LM `megatron/core/transformer/moe/moe_utils.py` raises the same."""
    settings: dict[str, Any] = {"moe_router_fusion": True, "moe_router_score_function": score}
    with pytest.raises(LayoutError, match=f"moe_router_score_function={score} needs TransformerEngine {needed}"):
        estimate(moe_job(transformer_engine_version=version, **settings))
    assert estimate(moe_job(transformer_engine_version=needed, **settings)).stages


def test_torch_fsdp2_leaves_the_quantized_copies_of_experts_in_the_cache() -> None:
    """TransformerEngine's linears quantize a weight anew under FSDP2 (`linear.py`, is_fsdp2); `grouped_linear.py` caches its copies, on
    Hopper by rows and by columns: a byte each of 4 layers x 128 experts x (gate, up, down) of 2048 x 768."""
    settings: dict[str, Any] = {
        "use_torch_fsdp2": True, "use_distributed_optimizer": False, "gradient_accumulation_fusion": False, "num_layers": 4,
    }  # fmt: skip
    fp8 = {**settings, "fp8": "hybrid", "fp8_recipe": "tensorwise"}

    def copies(model: str) -> list[int]:
        workspaces = estimate(TrainingJob.from_hf(model, 8, **fp8)).peak_stage.rank.workspaces
        return [one.nbytes for one in workspaces if one.name.startswith("tensorwise weights")]

    experts = 4 * 128 * 3 * 2048 * 768
    assert copies("Qwen/Qwen3-30B-A3B") == [experts, experts] and copies("Qwen/Qwen3-8B") == []
