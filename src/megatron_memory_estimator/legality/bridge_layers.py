"""Rules of layers that NVIDIA-NeMo/Megatron-Bridge builds itself: what their forward or their stack leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..wording import all_of
from .overlap import interleaved
from .sharding import CP, PP
from .violation import Violation, broken


def falcon_h1(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Falcon-H1's layers and their stack do not have (NVIDIA-NeMo/Megatron-Bridge
    `src/megatron/bridge/models/falcon_h1/modeling_falconh1/`, `falconh1_provider.py`)."""
    t = training
    if not model.falcon_h1:
        return
    if not t.te_spec:
        rule = "falcon_h1 is made of TransformerEngine's modules, whatever transformer_impl=local says"
        yield broken(rule, fix="use transformer_engine")
    if t.bias_activation_fusion:
        yield broken("falcon_h1 needs bias_activation_fusion off: the gate is scaled before its activation")
    if not model.gated_linear_unit:
        yield broken("falcon_h1 without gated_linear_unit is not modelled")
    if t.recompute_granularity == "full":
        yield broken("the stack of falcon_h1 recomputes no layer, whatever recompute_granularity=full says",
                     fix="leave it out, or use selective recomputation of core_attn")  # fmt: skip
    if t.cpu_offloading_num_layers:
        yield broken("falcon_h1 excludes cpu_offloading_num_layers: its stack offloads no layer")
    if interleaved(model, layout):
        yield broken("falcon_h1 excludes virtual pipeline stages", fix="leave virtual_pipeline_model_parallel_size out")
    others = [name for name in SPLIT if getattr(layout, name)]
    if others:
        yield broken(f"falcon_h1 excludes {all_of(others)}: its stack divides the layers evenly over stages")


SPLIT = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
"""Settings of an uneven split of layers."""


def attention_residuals(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What layers that carry a bank of prefixes do not have (`src/megatron/bridge/models/kimi/`)."""
    t, name = training, "attn_res_block_size"
    if not model.attn_res_block_size:
        return
    if interleaved(model, layout):
        yield broken(f"{name} excludes virtual pipeline stages", fix="leave virtual_pipeline_model_parallel_size out")
    if layout.cp > 1:
        yield broken(f"{name} excludes {{{CP}}}: Kimi Delta Attention has none", {CP: layout.cp}, fix="use 1")
    if t.bias_activation_fusion:
        yield broken(
            f"{name} excludes bias_activation_fusion: its activation is a module of its own", fix="turn it off"
        )
    for other in ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap", "distribute_saved_activations"):
        if getattr(t, other):
            yield broken(f"{name} excludes {other}", fix="turn it off")
    if t.low_precision:
        yield broken(f"{name} with fp8 or fp4 is not modelled", fix="use bf16")
    if t.peft != "none":
        yield broken(f"{name} with peft is not modelled")
    if t.cpu_offloading_num_layers:
        yield broken(f"{name} with cpu_offloading_num_layers is not modelled")


def gemma4_dense(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Gemma 4 without experts does not have (`src/megatron/bridge/models/gemma/gemma4_provider.py`, Gemma4DenseProvider)."""
    if not model.gemma4_dense:
        return
    if training.te_spec:
        yield broken("gemma4_dense is made of Megatron-Core's local modules", fix="use transformer_impl=local")
    if layout.pp > 1:
        yield broken(f"gemma4_dense excludes {{{PP}}}", {PP: layout.pp}, fix="use 1")
    if training.recompute_granularity == "full":
        rule = "gemma4_dense excludes recompute_granularity=full: its pair of rotary tables is no tensor that a checkpoint keeps"
        yield broken(rule)


def gemma4_moe(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the forward of Gemma 4's experts goes around (`src/megatron/bridge/models/gemma/gemma4_provider.py`,
    _validate_gemma4_moe_orchestration; `modeling_gemma4.py`)."""
    t = training
    if not model.gemma4_moe:
        return
    if t.moe_shared_expert_overlap:
        yield broken("gemma4_moe excludes moe_shared_expert_overlap", fix="turn it off")
    if t.overlap_moe_expert_parallel_comm:
        yield broken("gemma4_moe excludes overlap_moe_expert_parallel_comm", fix="turn it off")
    if t.recomputes("layernorm"):
        yield broken("gemma4_moe excludes recompute_modules layernorm", fix="leave it out")
