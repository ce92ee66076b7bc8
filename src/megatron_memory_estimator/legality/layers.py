"""Rules of layers: positions, kernels, kinds of attention, modules of Megatron-Bridge's own, towers.

Rules of hyper-connections, and of what must be in one chunk together.

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
from ..job.variants import variant_of
from ..modules.dispatcher import LATE_PROBS
from ..modules.hf_tower import attention_biased
from ..modules.kind import Ruled
from ..modules.kinds import KINDS, kinds_in, shapes_of
from ..rules import CP, TP, Violation, broken, broken_if
from ..tape.tensor import divisors

# -- hyper-connections -------------------------------------------------------------------------------------------------

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
    if not (model.several_streams and model.mtp):
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.mtp and not (chunk.final_norm and chunk.layers):
                yield broken("mhc-with-mtp-apart")
                return


USUAL = {
    "norm_placement": "pre",
    "core_attention": "transformer_engine",
    "qk_layernorm_scope": "head",
    "value_channels": None,
}
"""Settings whose other values are modules of Megatron-Bridge, made of TransformerEngine's."""
LINEAR_LOSS = (0, 20)
"""The Megatron-Core that has the kernel of output layer and cross entropy."""
ACTIVATIONS = (("silu", True), ("gelu", True), ("gelu", False))
"""Activations of TransformerEngine's operator, and whether each is gated (`extensions/transformer_engine.py`, TEActivationOp)."""


def positions(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """A sequence has as many positions as the model at most."""
    sequence, most = training.seq_length, model.max_position_embeddings
    if sequence > (most or sequence):
        yield broken("sequence-above-positions", seq_length=sequence, max_position_embeddings=most)


def mtp_positions(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """MTP layers have no table of positions."""
    if model.mtp and model.position_embedding_type not in ("rope", "none"):
        yield broken("mtp-positions", position_embedding_type=model.position_embedding_type)


def kernel_dtype(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Fused attention kernels take 16 bits."""
    kernel = training.attention_kernel
    if training.te_spec and training.params_dtype == "fp32" and kernel in ("flash", "cudnn"):
        yield broken("fused-attention-in-fp32", attention_kernel=kernel)


def deterministic(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What deterministic kernels replace."""
    if training.deterministic_mode and not all(
        "deterministic kernels" in kind.ruled for kind in kinds_in(model.every_kind)
    ):
        yield broken("deterministic-linear-attention")


def attention_variants(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What multi-latent and sparse attention require and exclude."""
    kinds = kinds_in(model.every_kind)
    latent = model.multi_latent_attention or any(kind.latent for kind in kinds)
    yield from broken_if(
        (
            (latent and model.attention_output_gate, "latent-attention-with-output-gate"),
            (latent and model.qk_l2_norm, "latent-attention-with-l2-norm"),
        )
    )
    if latent and model.qk_pos_emb_head_dim % 2 and model.position_embedding_type in ("rope", "yarn"):
        yield broken("odd-rotary-dim", qk_pos_emb_head_dim=model.qk_pos_emb_head_dim)
    delta = any(kind.state_heads == "delta" for kind in kinds) and model.experimental_attention_variant == "gdn"
    if delta and model.activation_func != "silu":
        yield broken("delta-net-needs-silu", activation_func=model.activation_func)
    behind = kinds_in(model.mtp_kinds) if model.mtp and not model.hybrid else ()
    if delta and any(kind.state_heads == "delta" for kind in behind):
        yield broken("mtp-behind-delta-net")
    if any(kind.sparse for kind in kinds):
        gathered = layout.cp == 1 or set(layout.cp_comm_type) == {"all_gather"}
        yield from broken_if(
            (
                (not model.multi_latent_attention and not model.hybrid, "sparse-attention-needs-latent"),
                (model.add_bias_linear, "sparse-attention-with-biases"),
                (not gathered, "sparse-attention-with-cp"),
            )
        )


def windows(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Ways of context parallelism that have sliding windows, and those that have a softmax with a sink."""
    ways = layout.cp_comm_type
    if layout.cp == 1:
        return
    if set(ways) != {"a2a"} and model.softmax_type != "vanilla":
        yield broken("softmax-sink-with-cp", softmax_type=model.softmax_type)
        return
    of_layers = enumerate(model.kinds) if any(one.sliding_window for one, _ in shapes_of(model)) else ()
    used = {ways[layer % len(ways)] for layer, kind in of_layers if model.variant(variant_of(kind)).sliding_window}
    for way in sorted(used & {"p2p", "a2a+p2p"}):
        yield broken("sliding-window-with-cp", cp_comm_type=way)


def whole_layers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What a layer with a forward of its own does not have."""
    t = training
    name = next((kind.setting for kind in kinds_in(model.every_kind) if kind.role == "layer"), "")
    if not name:
        return
    if t.fine_grained_activation_offloading:
        yield broken("whole-layer-with-offloading", layer=name)
    if t.cuda_graph_impl in ("transformer_engine", "local"):
        use = "none" if model.hc_lowrank else "full_iteration or none"
        yield broken("whole-layer-with-graphs", layer=name, cuda_graph_impl=t.cuda_graph_impl, use=use)


def ruled(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What a kind of layer has only where its row says so: nothing is taken for granted of a kind."""
    kinds = kinds_in(model.every_kind)

    def lacking(feature: Ruled) -> str:
        names = [kind.setting or kind.name for kind in KINDS.values() if kind in kinds and feature not in kind.ruled]
        return names[0] if names else ""

    if layout.cp > 1 and (layer := lacking("context parallelism")):
        yield broken("layer-with-cp", {CP: layout.cp}, layer=layer)
    if not training.te_spec and (layer := lacking("local modules")):
        yield broken("layer-needs-te", layer=layer)
    if training.low_precision and (layer := lacking("low precision")):
        yield broken("layer-in-low-precision", layer=layer)
    if layout.shards_weights and (layer := lacking("weight shards")):
        yield broken("layer-with-weight-shards", layer=layer)


def transformer_impl(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What local modules and TransformerEngine's have. A back end says nothing to local modules: it only sets variables that
    TransformerEngine reads (`models/common/language_module/language_module.py`, _set_attention_backend)."""
    t = training
    yield from broken_if(
        (
            (t.te_spec and t.attention_kernel == "local", "local-attention-needs-local-modules"),
            (not t.te_spec and t.moe_grouped_gemm and model.num_moe_experts, "grouped-gemm-needs-te"),
        )
    )
    if t.use_te_activation_func and t.te_spec:
        if t.bias_activation_fusion:
            yield broken("te-activation-or-fusion")
        if (model.activation_func, model.gated_linear_unit) not in ACTIVATIONS:
            yield broken("te-activation-unknown", activation_func=model.activation_func)
    if not t.te_spec and layout.cp > 1:
        yield broken("cp-needs-te", {CP: layout.cp})


def own_modules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Modules of Megatron-Bridge are made of TransformerEngine's, and some have no context parallelism."""
    for name, usual in USUAL.items():
        values = [getattr(one, name) for one, _ in shapes_of(model)]
        other = next((value for value in values if value != usual), usual)
        if other == usual:
            continue
        if not training.te_spec:
            yield broken("bridge-module-needs-te", setting=(name, other))
        if name in ("core_attention", "value_channels") and layout.cp > 1:
            yield broken("bridge-module-with-cp", {CP: layout.cp}, setting=(name, other))


def wide_norms(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """A norm as wide as all query heads meets a rank's part of them."""
    scopes = {one.qk_layernorm_scope for one, _ in shapes_of(model) if one.qk_layernorm}
    if "projection" in scopes and layout.tp > 1:
        yield broken("projection-norm-with-tp", tp=layout.tp)
    groups = min(
        (one.groups for one, _ in shapes_of(model) if one.qk_layernorm_scope == "gathered_projection"),
        default=layout.tp,
    )
    if layout.tp > groups:
        numbers = {TP: layout.tp, "num_query_groups": groups, "use": divisors(groups)}
        yield broken("gathered-norm-of-shared-groups", numbers)


def narrow_values(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Values of another width than keys are split by whole groups alone."""
    groups = min((one.groups for one, _ in shapes_of(model) if one.value_channels), default=layout.tp)
    if layout.tp > groups:
        yield broken("value-channels-with-tp", {TP: layout.tp, "num_query_groups": groups, "use": divisors(groups)})


def capped_logits(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Logits are capped where there are any."""
    if model.final_logit_softcapping and training.without_logits:
        yield broken("capped-logits-with-fused-loss")
    if training.logit_dtype and (training.loss_function != "cross_entropy" or training.linear_loss):
        yield broken("logit-dtype-of-another-loss")
    if training.linear_loss:
        lora = training.base_frozen
        older = training.mcore < LINEAR_LOSS
        yield from broken_if(
            (
                (model.hybrid, "linear-loss-of-hybrid"),
                (lora, "linear-loss-with-peft"),
                (older, "linear-loss-of-newer-version"),
            )
        )


def activation_fusion(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Activations that have no fused form beside a bias."""
    if not training.bias_activation_fusion:
        return
    dense = any(kind.dense for kind in kinds_in(model.every_kind)) or bool(model.moe_shared_expert_intermediate_size)
    t = training
    apart = t.moe_mlp_glu_interleave_size is not None or t.use_te_activation_func or t.use_transformer_engine_op_fuser
    weighted = model.has_moe and t.mcore >= LATE_PROBS and not apart
    yield from broken_if(
        (
            (model.activation_func == "fast_gelu", "fused-fast-gelu"),
            (model.activation_func == "quick_gelu" and dense, "fused-quick-gelu-in-dense-layers"),
            (model.activation_func == "gelu" and weighted, "fused-gelu-in-experts"),
        )
    )


def towers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Heads of a tower of Megatron's own layers divide over tensor-parallel ranks; images are a part of a sequence."""
    for tower in model.towers:
        heads, name = tower.vit.heads if tower.vit else 0, f"num_heads of the {tower.name}"
        if heads % layout.tp:
            use = divisors(heads, model.num_attention_heads or heads)
            yield broken("tower-heads-over-tp", {TP: layout.tp}, heads=(name, heads), use=use)
    if training.vit_gradient_checkpointing and model.towers and not any(tower.rerun for tower in model.towers):
        yield broken("tower-checkpointing-of-another-class", vit_gradient_checkpointing=True)
    if not 0 <= training.image_tokens <= training.seq_length:
        yield broken("image-tokens", image_tokens=training.image_tokens, seq_length=training.seq_length)
    elif not 0 <= training.audio_tokens <= training.seq_length - training.image_tokens:
        yield broken(
            "audio-tokens",
            audio_tokens=training.audio_tokens,
            image_tokens=training.image_tokens,
            seq_length=training.seq_length,
        )
    if not attention_biased(model, training):
        return
    if layout.cp > 1:
        yield broken("gemma3-images-with-cp", {CP: layout.cp}, image_tokens=training.image_tokens)
    if training.attention_kernel not in (None, "cudnn"):
        yield broken(
            "gemma3-images-without-fused-attention",
            image_tokens=training.image_tokens,
            attention_kernel=training.attention_kernel,
        )
