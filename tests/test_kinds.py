"""Every kind of mixer and MLP answers every question that the engine asks about one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from megatron_memory_estimator import EstimatorError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.features.cuda_graphs import MODULES as GRAPHED
from megatron_memory_estimator.features.offload import MODULES as OFFLOADED
from megatron_memory_estimator.features.offload import PAGED
from megatron_memory_estimator.job.choices import RECOMPUTE_MODULES
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.job.layer_kinds import HYBRID_SYMBOLS
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.job.settings import Owner
from megatron_memory_estimator.job.variants import bare
from megatron_memory_estimator.modules import kinds
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.modules.kind import Kind
from megatron_memory_estimator.modules.kinds import KINDS, kinds_of, owners_of
from megatron_memory_estimator.modules.layers import (
    LATE,
    Declaration,
    embedding_unit,
    final_norm_unit,
    layer_unit,
    mtp_unit,
    output_unit,
)
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.rank.peak import AFTER_DISPATCH
from megatron_memory_estimator.tape.ops import Item, Op, Part, Recompute, flattened
from megatron_memory_estimator.tape.work import Gemm
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.machine import machine
from megatron_memory_estimator.throughput.units import forward, passed

SMALL: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 4, "ffn_hidden_size": 512, "vocab_size": 1024,
    "add_bias_linear": False, "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": "silu",
    "seq_length": 256, "micro_batch_size": 1, "gpu": "H100",
}  # fmt: skip
LATENT = {"multi_latent_attention": True, "qk_layernorm": True, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_head_dim": 16,
          "qk_pos_emb_head_dim": 8, "v_head_dim": 16}  # fmt: skip
SPARSE = {
    **LATENT,
    "experimental_attention_variant": "dsa",
    "dsa_indexer_n_heads": 4,
    "dsa_indexer_head_dim": 16,
    "dsa_indexer_topk": 32,
}
COMPRESSED = {
    **LATENT, "tensor_model_parallel_size": 1, "sequence_parallel": False, "experimental_attention_variant": "dsv4_hybrid",
    "csa_window_size": 32, "o_groups": 2, "o_lora_rank": 16, "dsa_indexer_n_heads": 4, "dsa_indexer_head_dim": 16,
    "dsa_indexer_topk": 32, "dsa_kernel_backend": "cudnn",
}  # fmt: skip
DELTA = {"linear_attention_freq": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 8,
         "linear_num_value_heads": 8}  # fmt: skip
KIMI = {
    **LATENT, "experimental_attention_variant": "kda", "attn_res_block_size": 2, "linear_attention_freq": [1, 0, 1, 0],
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 8, "linear_num_value_heads": 8,
    "num_moe_experts": 4, "moe_ffn_hidden_size": 128, "moe_shared_expert_intermediate_size": 128, "moe_latent_size": 64,
    "moe_latent_norm": True, "moe_layer_freq": [0, 0, 1, 1], "activation_func": "situ", "position_embedding_type": "none",
    "bias_activation_fusion": False, "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
GATED = {
    **DELTA, "experimental_attention_variant": "gdn", "hc_lowrank": 16, "num_moe_experts": 4, "moe_ffn_hidden_size": 128,
    "moe_shared_expert_intermediate_size": 128, "attention_output_gate": True, "qk_layernorm": True, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "indexer_n_heads": 2, "indexer_head_dim": 16,
}  # fmt: skip
EXAMPLES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mla": LATENT,
    "dsa": SPARSE,
    "dsa_shared": {**SPARSE, "dsa_indexer_topk_freq": 2},
    "gdn": {**DELTA, "experimental_attention_variant": "gdn"},
    "gdn2": {**DELTA, "experimental_attention_variant": "gdn2"},
    "gdn_whole": {**DELTA, "experimental_attention_variant": "gdn_whole"},
    "gdn_whole_cp": {**DELTA, "experimental_attention_variant": "gdn_whole_cp"},
    "mamba": {"hybrid_layer_pattern": "M*M-", "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_num_groups": 4},
    "window": {**COMPRESSED, "csa_compress_ratios": [0, 0, 0, 0, 0]},
    "csa": {**COMPRESSED, "csa_compress_ratios": [4, 4, 4, 4, 4]},
    "hca": {**COMPRESSED, "csa_compress_ratios": [128, 128, 128, 128, 128]},
    "parallel": {"parallel_attention": True, "num_ln_in_parallel_attn": 2},
    "gemma4_moe": {
        "num_moe_experts": 4, "moe_ffn_hidden_size": 128, "moe_shared_expert_intermediate_size": 128, "gemma4_moe": True,
        "value_norm": True,
    },
    "gemma4_dense": {
        "gemma4_dense": True, "transformer_impl": "local", "qk_layernorm": True, "value_norm": True, "bias_activation_fusion": False,
        "per_layer_embed_dim": 16, "per_layer_embed_vocab_size": 1024,
        "variants": {"stored": {"kv_stored": True}, "shared": {"kv_shared": True}},
        "layer_variants": ["base", "stored", "shared", "shared"],
    },
    "falcon_h1": {
        "falcon_h1": True, "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_num_groups": 4, "mamba_rmsnorm": False,
        "bias_activation_fusion": False,
    },
    "no_attention": {"variants": {"few": {"attention_block": "no_op"}}, "layer_variants": ["base", "few", "base", "few"]},
    "linear_attention": {"variants": {"few": {"attention_block": "linear"}}, "layer_variants": ["base", "few", "base", "few"]},
    "no_mlp": {"variants": {"few": {"mlp_block": "no_op"}}, "layer_variants": ["base", "few", "base", "few"]},
    "linear_mlp": {"variants": {"few": {"mlp_block": "linear"}}, "layer_variants": ["base", "few", "base", "few"]},
    **dict.fromkeys(("k3_kda", "k3_mla", "k3_dense", "k3_moe"), KIMI),
    **dict.fromkeys(("gated_gdn", "gated_qsa", "gated_moe"), GATED),
    "dense": {},
    "moe": {
        "num_moe_experts": 4, "moe_ffn_hidden_size": 128, "moe_shared_expert_intermediate_size": 128, "moe_latent_size": 64,
    },
    "hash_moe": {
        "num_moe_experts": 4, "moe_ffn_hidden_size": 128, "moe_shared_expert_intermediate_size": 128, "moe_n_hash_layers": 2,
    },
}  # fmt: skip
"""Settings of a small model that has a kind."""


def job(kind: str, **settings: Any) -> TrainingJob:
    degrees = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    return TrainingJob.from_config({**SMALL, **degrees, **EXAMPLES[kind], **settings}, 8)


def units(c: Context) -> Iterator[Declaration]:
    yield from (layer_unit(c, kind) for kind in dict.fromkeys((*c.model.kinds, *c.model.mtp_kinds)))
    yield embedding_unit(c, alone=True)
    yield final_norm_unit(c)
    yield output_unit(c, owns_weight=True, shared=False)
    if c.model.mtp:
        yield mtp_unit(c, owns_embedding=True)


def every_item(items: tuple[Item, ...]) -> Iterator[Item]:
    for item in items:
        yield item
        if isinstance(item, Recompute):
            yield from every_item(item.ops)


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"context_parallel_size": 2},
    {"context_parallel_size": 2, "cp_comm_type": ("a2a",)},
    {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "layernorm", "mlp")},
    {"recompute_granularity": "selective", "recompute_modules": ("moe", "shared_experts", "mla_up_proj")},
    {"peft": "lora"},
    {"delay_wgrad_compute": True, "overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2},
    {"moe_token_dispatcher_type": "alltoall", "expert_model_parallel_size": 2},
    {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 2},
    {"moe_token_dispatcher_type": "flex", "expert_model_parallel_size": 2, "moe_router_dtype": "fp32"},
    {"transformer_impl": "local", "attention_kernel": "local"},
    {"attention_kernel": "flash", "micro_batch_size": 2},
    {"enable_mhc_connections": True, "hidden_dropout": 0.0},
    {"dsa_kernel_backend": "none", "apply_rope_fusion": False},
    {"mtp_num_layers": 1},
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_op_of_a_kind_is_a_part_of_something(kind: str) -> None:
    found = [items_of(kind, variant) for variant in VARIANTS]
    assert sum(map(bool, found)) >= 3
    assert not [item.name for items in found for item in items if not item.part]


def parts_of(kind: str) -> set[Part]:
    return {item.part for variant in VARIANTS for item in items_of(kind, variant)}


def items_of(kind: str, variant: dict[str, Any]) -> list[Item]:
    """Ops and checkpoints of every unit of a model, none for a variant that the kind does not have."""
    try:
        return [item for unit in units(context_of(job(kind, **variant))) for item in every_item(unit.unit.items)]
    except EstimatorError:
        return []


def test_every_part_is_a_part_of_some_kind() -> None:
    """A name in a set of parts that no op has would be a part that a feature misses in silence."""
    found: set[str] = {"", *(part for kind in KINDS for part in parts_of(kind))}
    assert found | {"layers", "towers"} == set(get_args(Part))
    sets = [*GRAPHED.values(), *OFFLOADED.values(), *LATE.values(), AFTER_DISPATCH, PAGED]
    assert frozenset().union(*sets) <= found


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_recomputes_is_what_its_checkpoints_wrap(kind: str) -> None:
    def regions(module: str) -> int:
        selective: dict[str, Any] = {"recompute_granularity": "selective", "recompute_modules": (module,)}
        training = dataclasses.replace(base.training, moe_grouped_gemm=True, **selective)
        try:
            unit = layer_unit(dataclasses.replace(base, training=training), layer)
        except EstimatorError:
            return 0
        return sum(isinstance(item, Recompute) for item in every_item(unit.unit.items))

    base = context_of(job(kind))
    layer = next(layer for layer in base.model.kinds if kind in bare(layer).split("+"))
    others = {module for other in bare(layer).split("+") if other != kind for module in KINDS[other].recomputes}
    found = {module for module in RECOMPUTE_MODULES if regions(module)}
    assert found - others == set(KINDS[kind].recomputes) - others
    assert found >= KINDS[kind].recomputes


@pytest.mark.parametrize("kind", KINDS)
def test_every_consumer_has_an_answer_for_a_kind(kind: str) -> None:
    made = job(kind)
    found = estimate(made)
    row = KINDS[kind]
    assert any(row in kinds_of(layer) for layer in made.model.kinds)
    assert row.owners <= owners_of(made.model)
    assert made.model.has_moe == any(part.routed for layer in made.model.kinds for part in kinds_of(layer))
    tables = {w.name for w in found.stages[0].rank.workspaces if w.name.startswith("rotary")}
    assert any("per MLA layer" in name for name in tables) == any(
        part.rotary == "layer" for layer in made.model.kinds for part in kinds_of(layer)
    )
    assert throughput(found).step > 0
    if row.role == "layer":  # it has no graphs of its own
        with pytest.raises(LayoutError, match="excludes cuda_graph_impl"):
            estimate(job(kind, cuda_graph_impl="transformer_engine"))
        return
    graphs = estimate(job(kind, cuda_graph_impl="transformer_engine"))
    assert any(run.graphed for plan in graphs.stages[0].rank.plans for run in plan.runs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_multiplied_with_every_matrix_of_a_kind_once_and_its_core_is_counted(kind: str) -> None:
    """With those of `topk` experts; causal attention is s * heads * (key width + value width) products and as many sums."""
    made, row = job(kind), KINDS[kind]
    m = made.model
    c = Context(m, Layout(), made.training, made.kernel)
    unit = layer_unit(c, kind)
    matrices = [p for p in unit.params if len(p.shape) == 2 and not p.name.endswith(("conv1d.weight", ".ape"))]
    share = {"expert": m.moe_router_topk / (m.num_moe_experts or 1)}
    linears = core = 0.0
    for one in (one for op in flattened(unit.unit.items) for one in op.work):
        if isinstance(one, Gemm):
            linears += one.n * one.k * (c.tokens.size * m.moe_router_topk if one.experts is not None else one.rows)
        else:
            core += one.flops
    assert linears / c.tokens.size == sum(p.numel * share.get(p.split, 1) for p in matrices)
    assert (core > 0) == (row.heads or row.compressed or row.state_heads != "none")
    if row.compressed:  # of a window, of picked keys or all compressed ones: products with each as key and as value; scores of the indexer
        keys = m.csa_window_size + {"window": 0, "csa": 32, "hca": 256 // 128}[kind]
        scores = 256 // 4 * 4 * 16 if kind == "csa" else 0
        assert core / c.tokens.size == 2 * keys * m.num_attention_heads * 2 * m.v_head_dim + scores
    if row.heads and not row.sparse and row.state_heads == "none":
        widths = (m.qk_head_dim + m.qk_pos_emb_head_dim, m.v_head_dim) if row.latent else (m.head_dim, m.head_dim)
        masked = made.kernel in ("unfused", "local")  # every pair
        scores = 2 * 2 * 16 * 256 // 4 if kind == "gated_qsa" else 0  # of its indexer
        assert (
            core / c.tokens.size
            == (1 + masked) * made.training.seq_length * m.num_attention_heads * sum(widths) + scores
        )


def test_every_kind_has_an_example_and_symbols_name_kinds() -> None:
    assert set(EXAMPLES) == set(KINDS)
    assert set(HYBRID_SYMBOLS.values()) <= set(KINDS)


def test_owners_are_those_of_some_kind_or_of_the_model() -> None:
    of = {owner for row in KINDS.values() for owner in row.owners}
    assert of | {"", "mhc", "yarn", "tower", "audio"} == set(get_args(Owner))
    assert {f.metadata.get("of", "") for f in dataclasses.fields(Model)} >= of


@pytest.mark.parametrize("kind", KINDS)
def test_ops_of_a_kind_are_in_the_graph_of_its_module(kind: str) -> None:
    """The parts that a row names are those that some CUDA-graph module captures."""
    row = KINDS[kind]
    graphed: frozenset[Part] = frozenset().union(*GRAPHED.values())
    assert row.part in graphed
    c = context_of(job(kind))
    layer = next(layer for layer in c.model.kinds if kind in bare(layer).split("+"))
    residuals = {KINDS[other].residual for other in bare(layer).split("+")}
    ops: list[Op] = list(flattened(layer_unit(c, layer).unit.items))
    assert {op.part for op in ops} - graphed <= residuals


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_timed_through_its_ops(kind: str) -> None:
    """Its GEMMs are its declared linears, every op that stands for something takes time, and the backward runs them all."""
    c = context_of(job(kind, tensor_model_parallel_size=1, sequence_parallel=False))
    layer = next(layer for layer in c.model.kinds if kind in bare(layer).split("+"))
    declared = layer_unit(c, layer)
    m = machine(find_gpu("H100"))
    ops = list(flattened(declared.unit.items))
    products = sum(
        one.n * one.k * (one.experts or 1) for op in ops for one in op.work if isinstance(one, Gemm) and one.counted
    )
    # a parameter of no module, linears of PyTorch
    alone = (
        "self_attention.linear_o_group_proj",
        "self_attention.linear_attn.",
    )
    assert products == sum(
        p.numel for p in declared.params if (p.gemm or p.name.startswith(alone)) and len(p.shape) == 2
    )
    for op in ops:
        views = all(t.storage != t.name for t in op.writes)
        assert forward(m, c, op).total > 0 or views
    found = passed(m, c, declared.unit)
    assert found.backward.total > found.forward.total > 0
    assert found.host_backward > found.host > 0


@pytest.mark.parametrize(
    ("feature", "setting", "code"),
    [
        ("context parallelism", {"context_parallel_size": 2}, "layer-with-cp"),
        ("local modules", {"transformer_impl": "local", "normalization": "LayerNorm"}, "layer-needs-te"),
        ("low precision", {"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "layer-in-low-precision"),
    ],
)
def test_a_kind_has_nothing_that_its_row_does_not_name(
    feature: Any, setting: dict[str, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new row is refused context parallelism, local modules and low precision until somebody has read them up for it."""
    given = {**SMALL, "tensor_model_parallel_size": 1, "sequence_parallel": False, **setting}
    estimate(TrainingJob.from_config(given, 4))
    known = KINDS["gqa"]
    assert Kind(known.name, known.role, known.declare, known.part, known.residual).ruled == frozenset()
    monkeypatch.setitem(KINDS, "gqa", known._replace(ruled=known.ruled - {feature}))
    forget()
    try:
        with pytest.raises(LayoutError) as refused:
            estimate(TrainingJob.from_config(given, 4))
    finally:
        forget()
    assert refused.value.codes == (code,)


def forget() -> None:
    """What is known of the rows of kinds."""
    for known in vars(kinds).values():
        if hasattr(known, "cache_clear"):
            known.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_dense_kinds_are_those_with_an_mlp_of_the_models_width(kind: str) -> None:
    names = {param.name for param in layer_unit(context_of(job(kind)), kind).params}
    assert KINDS[kind].dense == ("mlp.linear_fc1.weight" in names)


# compressed attention is whole on every rank
@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if "csa_window_size" not in EXAMPLES[kind]])
def test_what_tensor_parallel_ranks_share_is_marked_and_cut(kind: str) -> None:
    """A weight that says "tp" has a dimension cut over its ranks, and no other has one; the parts that an op splits its input into are all
    of it."""
    c = context_of(job(kind))
    seen = 0
    for declared in units(c):
        for param in declared.params:
            cut = any("tp" in dim.axes for dim in param.shape)
            assert cut == (param.split == "tp"), param
            seen += cut
        for op in flattened(declared.unit.items):
            views = [t for t in op.writes if t.storage != t.name]
            if ".split" in op.name and op.writes and len(views) == len(op.writes) and len(op.reads) == 1:
                assert sum(t.nbytes for t in views) == op.reads[0].nbytes, op.name
    assert seen
