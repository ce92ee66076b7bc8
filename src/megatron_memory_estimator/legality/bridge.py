"""Rules of layers that NVIDIA-NeMo/Megatron-Bridge builds itself: what their forward or their stack leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import CP, PP, Violation, broken, broken_if
from ..wording import all_of
from .pipeline import interleaved


def falcon_h1(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Falcon-H1's layers and their stack do not have (NVIDIA-NeMo/Megatron-Bridge
    `src/megatron/bridge/models/falcon_h1/modeling_falconh1/`, `falconh1_provider.py`)."""
    t = training
    if not model.falcon_h1:
        return
    yield from broken_if(
        (
            (not t.te_spec, "falcon-h1-needs-te"),
            (t.bias_activation_fusion, "falcon-h1-with-activation-fusion"),
            (not model.gated_linear_unit, "falcon-h1-without-gate"),
            (t.recompute_granularity == "full", "falcon-h1-fully-recomputed"),
            (t.cpu_offloading_num_layers, "falcon-h1-layers-offloaded"),
            (interleaved(model, layout), "falcon-h1-with-virtual-stages"),
        )
    )
    others = [name for name in SPLIT if getattr(layout, name)]
    if others:
        yield broken("falcon-h1-uneven", names=all_of(others))


SPLIT = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
"""Settings of an uneven split of layers."""


def attention_residuals(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What layers that carry a bank of prefixes do not have (`src/megatron/bridge/models/kimi/`)."""
    t = training
    if not model.attn_res_block_size:
        return
    if interleaved(model, layout):
        yield broken("attention-residuals-with-virtual-stages")
    if layout.cp > 1:
        yield broken("attention-residuals-with-cp", {CP: layout.cp})
    yield from broken_if(
        (
            (t.bias_activation_fusion, "attention-residuals-with-activation-fusion"),
            (t.overlap_moe_expert_parallel_comm, "attention-residuals-with-a2a-overlap"),
            (t.moe_shared_expert_overlap, "attention-residuals-with-shared-expert-overlap"),
            (t.distribute_saved_activations, "attention-residuals-with-distributed-activations"),
            (t.low_precision, "attention-residuals-in-low-precision"),
            (t.peft != "none", "attention-residuals-with-peft"),
            (t.cpu_offloading_num_layers, "attention-residuals-with-offloading"),
        )
    )


def gemma4_dense(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Gemma 4 without experts does not have (`src/megatron/bridge/models/gemma/gemma4_provider.py`, Gemma4DenseProvider)."""
    if not model.gemma4_dense:
        return
    if training.te_spec:
        yield broken("gemma4-dense-is-local")
    if layout.pp > 1:
        yield broken("gemma4-dense-with-pp", {PP: layout.pp})
    if training.recompute_granularity == "full":
        yield broken("gemma4-dense-fully-recomputed")


def gemma4_moe(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the forward of Gemma 4's experts goes around (`src/megatron/bridge/models/gemma/gemma4_provider.py`,
    _validate_gemma4_moe_orchestration; `modeling_gemma4.py`)."""
    t = training
    if not model.gemma4_moe:
        return
    yield from broken_if(
        (
            (t.moe_shared_expert_overlap, "gemma4-moe-with-shared-expert-overlap"),
            (t.overlap_moe_expert_parallel_comm, "gemma4-moe-with-a2a-overlap"),
            (t.recomputes("layernorm"), "gemma4-moe-layernorm-recomputed"),
        )
    )
