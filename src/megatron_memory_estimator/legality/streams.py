"""Rules of hyper-connections, and of what must be in one chunk together.

Sources: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/transformer_config.py`,
`experimental_attention_variant/deepseek_v4_hybrid_attention.py`, `transformer/transformer_block.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layer_kinds import HASHED
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import build_pipeline
from ..job.training import Training
from ..modules.kinds import kinds_in
from ..rules import Violation, broken, broken_if

GRAPHED = ("attn",)
"""What of a layer may be a CUDA graph beside recomputed hyper-connections."""


def placed(model: Model, layout: Layout) -> Iterator[Violation]:
    """What must be in one chunk together: asked of a pipeline that can be built."""
    yield from _hash_stage(model, layout)
    yield from _streams_stages(model, layout)


def _hash_stage(model: Model, layout: Layout) -> Iterator[Violation]:
    """All hash layers are in the chunk of the embedding, because they read token ids."""
    if layout.pp == 1 or model.hybrid or not any(kind.hashed for kind in kinds_in(model.kinds)):
        return
    first = build_pipeline(model, layout).chunks[0][0]
    hashed = [layer for layer, kind in enumerate(model.kinds) if HASHED in kind.split("+")]
    if not set(hashed) <= set(first.layers):
        yield broken("hash-layers-in-first-chunk", moe_n_hash_layers=len(hashed), layers=max(hashed) + 1)


def hyper_connections(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What hyper-connections exclude, and what of them is modelled."""
    t = training
    if model.stream != "several":
        if t.use_fused_mhc:
            yield broken("fused-mhc-needs-mhc")
        return
    kinds = kinds_in(model.every_kind)
    usual = all(kind.role in ("mixer", "mlp") for kind in kinds) and not model.layer_variants
    plain = usual and not (model.mtp or model.has_moe or model.hybrid or model.experimental_attention_variant)
    known = plain or (usual and all(kind.compressed or kind.routed or kind.dense for kind in kinds))
    yield from broken_if(
        (
            (not known, "mhc-of-other-layers"),
            (model.fp32_residual_connection, "mhc-with-fp32-residual"),
            (model.hidden_dropout, "mhc-with-dropout"),
            (t.use_megatron_fsdp or t.use_torch_fsdp2, "mhc-with-fsdp"),
        )
    )
    if t.recomputes("mhc"):
        yield from _recomputed(model, training, plain=plain)


def _recomputed(model: Model, training: Training, *, plain: bool) -> Iterator[Violation]:
    t = training
    if t.recomputes("mlp"):
        yield broken("mhc-or-mlp-recomputed")
    if plain:
        yield broken("mhc-recomputed-in-plain-layers")
    for module in ("attn_norm", "mlp_norm"):
        if module in t.offload_modules:
            yield broken("mhc-recomputed-or-norms-offloaded", module=module)
    if t.overlap_moe_expert_parallel_comm:
        yield broken("mhc-recomputed-with-a2a-overlap")
    if t.cuda_graph_impl == "none":
        return
    if model.hybrid or t.cuda_graph_impl == "local":
        yield broken("mhc-recomputed-with-graphs", cuda_graph_impl=t.cuda_graph_impl)
    elif t.cuda_graph_impl == "transformer_engine" and (
        t.recomputed_modules != ("mhc",) or t.cuda_graph_modules != GRAPHED
    ):
        yield broken("mhc-recomputed-with-other-graphs")


def _streams_stages(model: Model, layout: Layout) -> Iterator[Violation]:
    """MTP reads the streams in front of the final norm: it is in the chunk of the last decoder layer."""
    if not (model.stream == "several" and model.mtp):
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.mtp and not (chunk.final_norm and chunk.layers):
                yield broken("mhc-with-mtp-apart")
                return
