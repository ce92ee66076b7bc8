"""Rules of DeepSeek-V4: compressed attention, experts by hash, hyper-connections.

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
from ..modules.kinds import has_compressed, kinds_in
from .sharding import PP, TP
from .violation import Violation, broken

VARIANT = "experimental_attention_variant=dsv4_hybrid"
GRAPHED = ("attn",)
"""What of a layer may be a CUDA graph beside recomputed hyper-connections."""


def compressed_attention(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What DeepSeek-V4's attention requires and excludes."""
    if not has_compressed(model):
        return
    t = training
    if layout.tp != 1:
        yield broken(f"{VARIANT} needs {TP}=1", said=f"{VARIANT} needs {TP}=1, not {layout.tp}")
    if not model.multi_latent_attention and not model.hybrid:
        yield broken(f"{VARIANT} needs multi_latent_attention")
    if not t.te_spec:
        yield broken(f"{VARIANT} needs transformer_impl=transformer_engine")
    if model.add_bias_linear:
        yield broken(f"{VARIANT} needs add_bias_linear off")
    if t.recomputes("core_attn"):
        rule = (
            f"{VARIANT} excludes recompute_modules core_attn, which selective recomputation means where none is named"
        )
        yield broken(rule, fix="name others, such as mla_up_proj,mhc")
    if t.dsa_kernel_backend == "tilelang":
        yield broken(f"{VARIANT} has no dsa_kernel_backend=tilelang", fix="use cudnn or none")
    if "qkv_linear" in t.offload_modules:
        yield broken(f"{VARIANT} excludes offload_modules qkv_linear")
    if t.peft != "none":
        yield broken(f"{VARIANT} with peft is not modelled")
    if t.params_dtype == "fp32":
        yield broken(f"{VARIANT} needs params_dtype bf16 or fp16")


def hash_layers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What experts that the token's hash chooses require and exclude."""
    if not any(kind.hashed for kind in kinds_in(model.kinds)):
        return
    if training.overlap_moe_expert_parallel_comm:
        yield broken("moe_n_hash_layers excludes overlap_moe_expert_parallel_comm")
    if layout.pp == 1 or model.hybrid:
        return
    if layout.pipeline_model_parallel_layout is None:
        yield broken(f"moe_n_hash_layers with {PP} above 1 needs pipeline_model_parallel_layout")


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
        yield broken(
            "{moe_n_hash_layers} must all be in the first chunk, with the embedding",
            {"moe_n_hash_layers": len(hashed)},
            fix=f"give the first stage of pipeline_model_parallel_layout at least {max(hashed) + 1} layers",
        )


def hyper_connections(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What hyper-connections exclude, and what of them is modelled."""
    name, t = "enable_mhc_connections", training
    if not model.enable_mhc_connections:
        if t.use_fused_mhc:
            yield broken(f"use_fused_mhc needs {name}")
        return
    kinds = kinds_in(model.every_kind)
    usual = all(kind.role in ("mixer", "mlp") for kind in kinds) and not model.layer_variants
    plain = usual and not (model.mtp or model.has_moe or model.hybrid or model.experimental_attention_variant)
    if not plain and not (usual and all(kind.compressed or kind.routed or kind.dense for kind in kinds)):
        other = "layers other than DeepSeek-V4's and those of plain transformers without experts and MTP"
        yield broken(f"{name} with {other} is not modelled")
    if model.fp32_residual_connection:
        yield broken(f"{name} excludes fp32_residual_connection")
    if model.hidden_dropout:
        yield broken(f"{name} with hidden_dropout is not modelled", fix="use hidden_dropout=0")
    if t.use_megatron_fsdp or t.use_torch_fsdp2:
        yield broken(f"{name} with fully sharded data parallelism is not modelled: it has parameters in fp32")
    if t.recomputes("mhc"):
        yield from _recomputed(model, training, plain=plain)


def _recomputed(model: Model, training: Training, *, plain: bool) -> Iterator[Violation]:
    t = training
    if t.recomputes("mlp"):
        yield broken("recompute_modules mhc and mlp exclude each other", fix="drop one")
    if plain:
        yield broken("recompute_modules mhc with layers other than DeepSeek-V4's is not modelled")
    for module in ("attn_norm", "mlp_norm"):
        if module in t.offload_modules:
            yield broken(f"recompute_modules mhc excludes offload_modules {module}")
    if t.overlap_moe_expert_parallel_comm:
        yield broken("recompute_modules mhc with overlap_moe_expert_parallel_comm is not modelled")
    if t.cuda_graph_impl == "none":
        return
    if model.hybrid or t.cuda_graph_impl == "local":
        yield broken(f"recompute_modules mhc excludes cuda_graph_impl={t.cuda_graph_impl}")
    elif t.cuda_graph_impl == "transformer_engine" and (
        t.recomputed_modules != ("mhc",) or t.cuda_graph_modules != GRAPHED
    ):
        needs = "cuda_graph_modules attn and no other recompute_modules"
        yield broken(f"recompute_modules mhc with cuda_graph_impl=transformer_engine needs {needs}")


def _streams_stages(model: Model, layout: Layout) -> Iterator[Violation]:
    """MTP reads the streams in front of the final norm: it is in the chunk of the last decoder layer."""
    if not (model.enable_mhc_connections and model.mtp):
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.mtp and not (chunk.final_norm and chunk.layers):
                rule = "enable_mhc_connections with MTP apart from the last decoder layer is not modelled"
                yield broken(rule, fix="put m behind the last t of pipeline_model_parallel_layout")
                return
