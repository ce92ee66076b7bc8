"""DeepSeek-V4 beside the real classes: parameters, DDP buffers, kept bytes; and what its rules refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, count_parameters, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.dialects.bridge import DIALECT, run_of_recipe
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.modules.layers import final_norm_unit
from megatron_memory_estimator.planner.launch import megatron_lm
from megatron_memory_estimator.planner.search import search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.borders import generated_layout
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.tape.ops import flattened

from .helpers import FACTS, context
from .test_planner import same_figures

FILE = json.loads((FACTS / "deepseek_v4.json").read_text())


def of(kind: str) -> list[dict[str, Any]]:
    return [record for record in FILE["records"] if record["kind"] == kind]


def job(record: dict[str, Any], **settings: Any) -> TrainingJob:
    given = {"router_imbalance": 1, **FILE["common"], **record["settings"], **settings}
    return TrainingJob.from_config(given, record["num_gpus"])


@pytest.mark.parametrize("record", of("param_counts"), ids=lambda record: str(record["id"]))
def test_parameters_of_a_rank_are_exact(record: dict[str, Any]) -> None:
    stage = estimate(job(record)).stages[record["pp_rank"]]
    assert stage.num_parameters == (record["dense"], record["expert"])


@pytest.mark.parametrize("record", of("ddp_buffers"), ids=lambda record: str(record["id"]))
def test_fp32_parameters_have_a_buffer_of_their_own(record: dict[str, Any]) -> None:
    rank = estimate(job(record)).stages[record["pp_rank"]].rank
    found = [[b.chunk, "expert" if b.expert else "dense", b.param_dtype, b.grad_dtype, b.numel] for b in rank.buffers]
    assert found == record["buffers"]
    state = sum(s.nbytes for s in rank.states if s.since in ("setup", "first step"))
    kept = sum(
        w.nbytes for w in rank.workspaces if w.name.startswith(("rotary cos", "router balancing", "router tid2eid"))
    )
    assert 0 <= record["live_bytes"] - state - kept < 2**20 or record["live_bytes"] == pytest.approx(state, rel=0.01)


@pytest.mark.parametrize("record", of("activation_saved"), ids=lambda record: str(record["id"]))
def test_kept_bytes_within_a_thousandth(record: dict[str, Any]) -> None:
    plan = estimate(job(record)).stages[0].rank.plans[0]
    assert plan.saved_bytes == pytest.approx(record["total_saved_bytes"], rel=1e-3)
    ours = [run.trace.saved_bytes for run in plan.runs for _ in range(run.copies) if run.first_layer >= 0]
    layers = [n for part, n in record["by_part"].items() if part.startswith("decoder.layers")]
    if "recompute_granularity" not in record["settings"]:
        assert ours == pytest.approx(layers, rel=1e-3)


FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"


@pytest.mark.parametrize(
    ("name", "total", "mtp"), [(FLASH, 284_332_230_231, 6_610_048_635), (PRO, 1_572_997_179_491, 25_840_145_595)]
)
def test_the_published_parameters(name: str, total: int, mtp: int) -> None:
    """Of the Hugging Face class without MTP, and of the real class with it."""
    count = count_parameters(TrainingJob.from_hf(name).model)
    assert (count.total, count.mtp) == (total, mtp)


PUBLISHED = {
    "deepseek_v4_flash_pretrain_64gpu_gb200_bf16_config": {"fits", "tight"},
    "deepseek_v4_flash_pretrain_128gpu_gb200_fp8mx_config": {"fits", "tight"},
    "deepseek_v4_flash_pretrain_128gpu_gb300_fp8mx_config": {"fits", "tight"},
    "deepseek_v4_pro_pretrain_256gpu_gb300_fp8mx_config": {"fits", "tight"},
    "deepseek_v4_flash_pretrain_32gpu_h100_bf16_config": {"does not fit"},
}
"""Recipes of Megatron-Bridge that ran on their GPUs (its verification cards; PR #4808), and one that its README says does not."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_have_a_verdict(name: str) -> None:
    made = job_of(DIALECT, run_of_recipe([name]), None, {"phases": "training"})
    assert estimate(made).verdict().word in PUBLISHED[name]


def test_a_group_brings_its_streams_back_together() -> None:
    """What recompute_modules mhc drops of a layer: streams twice, aggregated inputs and norm outputs of both sub-layers; the first layer of
    a group keeps its input. In the backward of a group everything that it dropped is there again."""
    record = next(r for r in of("activation_saved") if r["id"] == "v4-act-mix-fused-rc-mhc")
    one, four = (estimate(job(record, mhc_recompute_layer_num=n)).stages[0].rank.plans[0] for n in (1, 4))
    streams = 4096 * 4 * 4096 * 2
    assert one.saved_bytes - four.saved_bytes == 3 * streams
    tops = [
        max(event.nbytes for event in run.trace.backward)
        for plan in (one, four)
        for run in plan.runs
        if run.first_layer >= 0
    ]
    dropped = 2 * streams + 4 * 4096 * 4096 * 2
    saved = four.saved_bytes - sum(run.trace.saved_bytes for run in four.runs if run.first_layer < 0)
    assert tops[-1] >= saved + 3 * dropped


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 2}, "needs tensor_model_parallel_size=1, not 2"),
        ({"recompute_granularity": "selective"}, "excludes recompute_modules core_attn"),
        ({"recompute_granularity": "selective", "recompute_modules": ("mhc", "mlp")}, "mhc and mlp exclude each other"),
        ({"dsa_kernel_backend": "tilelang"}, "has no dsa_kernel_backend=tilelang"),
        ({"pp": 2, "pipeline_model_parallel_layout": "Ett|t*41mL"}, "moe_n_hash_layers=3 must all be in the first chunk"),
        ({"overlap_moe_expert_parallel_comm": True, "ep": 8}, "moe_n_hash_layers excludes overlap_moe_expert_parallel_comm"),
        ({"hidden_dropout": 0.1}, "with hidden_dropout is not modelled"),
        ({"use_megatron_fsdp": True}, "fully sharded data parallelism is not modelled"),
        ({"fine_grained_activation_offloading": True, "offload_modules": ("qkv_linear",)}, "excludes offload_modules qkv_linear"),
        ({"csa_compress_ratios": [0, 0, 4]}, "has 3 entries for 44 layers"),
        ({"csa_compress_ratios": [0, 3] * 22}, "a list of 0, 4 and 128"),
        ({"o_groups": 7}, "is not divisible by o_groups=7"),
    ],
)  # fmt: skip
def test_what_the_code_refuses_is_refused_with_the_rule(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EstimatorError, match=message):
        estimate(TrainingJob.from_hf(FLASH, 64, **settings))


def test_a_pipeline_without_a_layout_gets_an_even_one() -> None:
    made = TrainingJob.from_hf(FLASH, 64, pp=4, ep=8)
    assert made.layout.pipeline_model_parallel_layout == "Et*11|t*11|t*11|t*10mL"
    assert estimate(made).stages[0].num_parameters == (2_115_903_378, 8_858_370_048)


def test_a_plan_has_the_bytes_of_estimate() -> None:
    base = TrainingJob.from_hf(FLASH, 64, seq_length=4096, global_batch_size=256, gpu="GB300")
    space = Space(
        tensor_model_parallel_size=(1,), context_parallel_size=(1,), pipeline_model_parallel_size=(1, 4, 8),
        virtual_pipeline_model_parallel_size=(1, 2), expert_model_parallel_size=(8, 32), micro_batch_size=(1,),
        recompute=("none", "mla_up_proj+moe_act+mhc", "full"),
    )  # fmt: skip
    found = search(base, space, best=12)
    assert len(found.plans) >= 3
    assert any("mhc" in plan.job.training.recomputed_modules for plan in found.plans)
    for plan in found.plans:
        same_figures(plan)


NEWER = {
    "compress_ratios": None,
    "layer_types": [
        *["sliding_attention"] * 2, *["compressed_sparse_attention", "heavily_compressed_attention"] * 20, "compressed_sparse_attention",
    ],
    "compress_rates": {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    "num_hash_layers": None,
    "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
}  # fmt: skip


def test_newer_files_name_the_layers() -> None:
    config = {**entries()[FLASH]["config"], **NEWER}
    assert TrainingJob.from_hf(config).model == TrainingJob.from_hf(FLASH).model


@pytest.mark.parametrize(
    "change",
    [
        {"compress_ratios": [0, 5] * 22},
        {"compress_ratios": "many"},
        {**NEWER, "layer_types": ["strange"] * 43},
        {**NEWER, "compress_rates": {"compressed_sparse_attention": 8}},
        {**NEWER, "mlp_layer_types": ["moe", "hash_moe", *["moe"] * 41]},
        {"o_groups": 0},
        {"q_lora_rank": None},
        {"head_dim": "wide"},
        {"hc_mult": 0},
        {"num_hash_layers": 99},
        {"index_topk": None},
        {"index_n_heads": None},
        {"index_head_dim": None},
        {"swiglu_limit": "x"},
    ],
)
def test_odd_configs_are_a_sentence_or_a_figure(change: dict[str, Any]) -> None:
    said = ""
    try:
        estimate(TrainingJob.from_hf({**entries()[FLASH]["config"], **change}, 64))
    except EstimatorError as error:
        said = str(error)
    assert "\n" not in said and len(said) < 600


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hash_layers": 99}, "moe_n_hash_layers=99 is more than num_layers=43"),
        (
            {"qk_rope_head_dim": 1024},
            "qk_pos_emb_head_dim=1024 is a part of each head: it must be less than v_head_dim=512",
        ),
    ],
)
def test_shapes_that_no_model_has_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        TrainingJob.from_hf({**entries()[FLASH]["config"], **change}, 64)


def test_context_parallelism_is_launched_with_packing() -> None:
    """And is not tried by itself: it runs packed sequences alone (Megatron-LM dev `deepseek_v4_hybrid_attention.py`)."""
    job = TrainingJob.from_hf(FLASH, 64, cp=2, ep=32)
    words = " ".join(megatron_lm(job).words())
    assert "--cp-partition-mode contiguous" in words and "--sequence-packing-scheduler dp_balanced" in words
    assert TrainingJob.from_megatron_args(words.split(), 64).layout.cp == 2
    assert completed(Space(), TrainingJob.from_hf(FLASH, 64)).context_parallel_size == (1,)


def test_both_branches_names_are_one_setting() -> None:
    """`enable_hyper_connections` and `num_residual_streams` of dev, `enable_mhc_connections` and `mhc_num_residual_streams` of main."""
    record = next(r for r in of("param_counts") if r["id"] == "v4-par-00")
    given = {**FILE["common"], **record["settings"]}
    other = {k: v for k, v in given.items() if not k.startswith(("enable_mhc", "mhc_num"))}
    named = TrainingJob.from_config({**other, "enable_hyper_connections": True, "num_residual_streams": 4}, 4)
    assert named.model == TrainingJob.from_config(given, 4).model


def test_launch_arguments_of_the_dev_branch_are_read() -> None:
    words = megatron_lm(TrainingJob.from_hf(FLASH, 64, pp=4, ep=8, gpu="GB200")).words()
    assert "--enable-hyper-connections" in words and "--csa-compress-ratios" in words
    read = TrainingJob.from_megatron_args(words, 64, gpu="GB200")
    assert read.model.kinds == TrainingJob.from_hf(FLASH).model.kinds


def test_position_tables_of_the_construction_are_there_while_a_checkpoint_loads() -> None:
    """41 layers with compressed keys have 65,536 positions of cos and sin: 656 MiB, with the weights 47.57 GiB of 16 H100
    (NVIDIA-NeMo/Megatron-Bridge, conversion examples of deepseek_v4)."""
    _, load, _ = estimate(TrainingJob.from_hf(FLASH, 16, ep=16)).stages[0].phases
    table = next(term for term in load.terms if term.name == "rotary cos and sin of YaRN")
    assert table.low == table.high == 41 * 2 * 65_536 * 64 * 2 == 656 * 2**20


def test_streams_of_mtp_stay_where_those_of_the_decoder_are_recomputed() -> None:
    """With MTP the contraction at the decoder's end keeps 4 n h T in fp32, and so does MTP's own; recompute_modules mhc drops nothing of
    MTP's layer: 4 n h T are its two stream tensors, aggregated inputs and norm outputs (8 h T of n = 4)."""
    record = next(r for r in of("activation_saved") if r["id"] == "v4-act-mtp-fused")
    plain, dropped = (
        {run.unit.name: run.trace for run in estimate(job(record, **again)).stages[0].rank.plans[0].runs}
        for again in ({}, {"recompute_granularity": "selective", "recompute_modules": ["mhc"]})
    )
    tokens, hidden, streams = 4096, 4096, 4
    fp32 = [live.tensor.nbytes for live in dropped["mtp"].saved if live.tensor.name.endswith("mhc.streams in fp32")]
    assert fp32 == [4 * streams * hidden * tokens] * 2
    assert (
        dropped["mtp"].saved_bytes == plain["mtp"].saved_bytes == pytest.approx(2_850_783_232 + 302_088_192, rel=1e-4)
    )


def test_packed_rows_of_csa_keep_no_causal_mask() -> None:
    """Rows of their own lengths have bounds in its place: s x s/4 in fp32, the size of an s x s byte mask, are not there."""
    record = next(r for r in of("activation_saved") if r["id"] == "v4-act-thd-csa-fused")
    padded, packed = (
        estimate(job(record, dsa_kernel_backend="none", sequence_packing_scheduler=who)).stages[0].rank.plans[0]
        for who in (None, "dp_balanced")
    )
    assert padded.saved_bytes - packed.saved_bytes == 4096 * 4096


def test_hash_layers_leave_chunks_without_a_layer() -> None:
    """43 layers over 43 chunks, of which the first has the three hash layers and the last MTP's: no such split, and no crash."""
    job = TrainingJob.from_hf(FLASH, 128)
    assert generated_layout(job.model, 43, 1) is None and generated_layout(job.model, 42, 1) is None
    layout = generated_layout(job.model, 4, 2)
    assert layout is not None and layout.startswith("Ettt")
    space = Space(
        pipeline_model_parallel_size=(4, 43), tensor_model_parallel_size=(1,), expert_model_parallel_size=(32,)
    )
    assert search(job, space).examined


def test_a_contraction_keeps_the_streams_in_fp32_and_five_numbers_of_each_token() -> None:
    """The root of a token's mean square and a weight of each of 4 streams (Megatron-LM dev `transformer/hyper_connection.py`)."""
    made = TrainingJob.from_hf(FLASH, 64)
    (op,) = (one for one in flattened(final_norm_unit(context(made)).unit.items) if one.name == "mhc.contract")
    tokens = made.training.seq_length
    assert sum(t.nbytes for t in op.saves) == 4 * tokens * (4 * made.model.hidden_size + 1 + 4)


@pytest.mark.parametrize("name", ["dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"])
def test_each_size_of_the_indexer_is_needed(name: str) -> None:
    record = next(r for r in of("activation_saved") if r["id"] == "v4-act-mix-fused-rc-mhc")
    with pytest.raises(
        EstimatorError, match="CSA layers need dsa_indexer_n_heads, dsa_indexer_head_dim and dsa_indexer_topk"
    ):
        estimate(job(record, **{name: None}))


def test_rope_tables_without_fusion_are_angles_beside_those_of_the_construction() -> None:
    """43 layers and one of MTP, 8,192 positions of 64: fused RoPE has cos and sin in 16 bits, in place of the tables that 41 layers are
    built with (656 MiB, as above). Without fusion the angles are in fp32, as many bytes, and the tables stay."""
    fused, unfused = (
        {
            one.name: one.nbytes
            for one in estimate(TrainingJob.from_hf(FLASH, 16, ep=16, seq_length=8192, apply_rope_fusion=fusion))
            .stages[0]
            .rank.workspaces
            if one.name.startswith("rotary")
        }
        for fusion in (True, False)
    )
    table = 44 * 8192 * 64 * 4
    assert fused == {"rotary cos and sin": table}
    assert unfused == {"rotary angles": table, "rotary cos and sin of YaRN": 656 * 2**20}


def test_fused_rope_turns_queries_in_place() -> None:
    """4,096 tokens, 64 heads of 512: without fusion the turned queries are a second tensor of as many bytes, and the keys too."""
    record = next(r for r in of("activation_saved") if r["id"] == "v4-act-window-fused")
    made = {}
    for fused in (True, False):
        unit = estimate(job(record, apply_rope_fusion=fused)).stages[0].rank.plans[0].runs[1].unit
        rotary = [op for op in flattened(unit.items) if op.name == "self_attention.rotary"]
        made[fused] = [t.nbytes for op in rotary for t in op.writes]
    assert made == {True: [], False: [4096 * 64 * 512 * 2, 4096 * 512 * 2]}


def test_a_launch_with_several_sequences_says_how_long_its_rows_are() -> None:
    """With context parallelism a scheduler packs rows of seq_length tokens, unless they are said to be longer (Megatron-LM `dev`)."""
    given: dict[str, Any] = {"cp": 4, "cp_comm_type": "allgather", "ep": 8, "seq_length": 8192, "gpu": "GB200"}
    for sequences, row in ((1, None), (2, "4096")):
        words = megatron_lm(
            TrainingJob.from_hf("deepseek-ai/DeepSeek-V4-Flash", 64, micro_batch_size=sequences, **given)
        ).words()
        said = words[words.index("--max-seqlen-per-dp-cp-rank") + 1] if "--max-seqlen-per-dp-cp-rank" in words else None
        assert said == row
