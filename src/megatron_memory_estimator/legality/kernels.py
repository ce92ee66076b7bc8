"""Rules of kernels, positions and ways of attention (Megatron-LM `transformer_config.py`, `arguments.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..job.variants import variant_of
from ..modules.kinds import kinds_in, shapes_of
from .sharding import CP
from .violation import Violation, broken


def positions(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """A sequence has as many positions as the model at most."""
    sequence, most = training.seq_length, model.max_position_embeddings
    if sequence > (most or sequence):
        yield broken(
            "{seq_length} is more than {max_position_embeddings}",
            {"seq_length": sequence, "max_position_embeddings": most},
            fix="raise that, or shorten the sequence",
        )


def mtp_positions(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """MTP layers have no table of positions."""
    if model.mtp and model.position_embedding_type not in ("rope", "none"):
        what = model.position_embedding_type
        yield broken(f"mtp_num_layers needs position_embedding_type rope or none, not {what}")


def kernel_dtype(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Fused attention kernels take 16 bits."""
    kernel = training.attention_kernel
    if training.te_spec and training.params_dtype == "fp32" and kernel in ("flash", "cudnn"):
        yield broken(f"attention_kernel={kernel} needs params_dtype bf16 or fp16", fix="use unfused with fp32")


def deterministic(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What deterministic kernels replace."""
    if training.deterministic_mode and not all(kind.reproducible for kind in kinds_in(model.every_kind)):
        rule = "deterministic_mode replaces linear attention by operations of PyTorch that are not modelled"
        yield broken(rule, fix="turn it off")


def attention_variants(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What multi-latent and sparse attention require and exclude."""
    kinds = kinds_in(model.every_kind)
    latent = model.multi_latent_attention or any(kind.latent for kind in kinds)
    if latent and model.attention_output_gate:
        yield broken("attention_output_gate does not exist for multi-latent attention", fix="turn it off")
    if latent and model.qk_l2_norm:
        yield broken("qk_l2_norm does not exist for multi-latent attention", fix="turn it off")
    if any(kind.sparse for kind in kinds):
        if not model.multi_latent_attention and not model.hybrid:
            yield broken("experimental_attention_variant=dsa needs multi_latent_attention")
        if model.add_bias_linear:
            yield broken("sparse attention needs add_bias_linear off")
        if layout.cp > 1 and set(layout.cp_comm_type) != {"all_gather"}:
            yield broken("sparse attention with context parallelism needs cp_comm_type all_gather")


def windows(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Ways of context parallelism that have sliding windows, and those that have a softmax with a sink
    (TransformerEngine `attention/dot_product_attention/context_parallel.py`, attn_forward_func_with_cp)."""
    ways = layout.cp_comm_type
    if layout.cp > 1 and set(ways) != {"a2a"} and model.softmax_type != "vanilla":
        yield broken(
            f"softmax_type={model.softmax_type} with context parallelism needs cp_comm_type a2a",
            fix="set cp_comm_type a2a",
        )
        return
    of_layers = enumerate(model.kinds) if any(one.sliding_window for one, _ in shapes_of(model)) else ()
    used = {ways[layer % len(ways)] for layer, kind in of_layers if model.variant(variant_of(kind)).sliding_window}
    for way in sorted(used & {"p2p", "a2a+p2p"}) if layout.cp > 1 else ():
        yield broken(f"cp_comm_type {way} does not exist for sliding windows", fix="use a2a or all_gather")


def whole_layers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What a layer with a forward of its own does not have (NVIDIA/NeMo `falcon_decoder_layer.py`)."""
    t = training
    name = next((kind.setting for kind in kinds_in(model.every_kind) if kind.role == "layer"), "")
    if not name:
        return
    if not t.te_spec and not (model.falcon_h1 or model.gemma4_dense):
        yield broken(f"{name} needs transformer_impl=transformer_engine")
    if t.fine_grained_activation_offloading:
        yield broken(f"{name} excludes fine_grained_activation_offloading")
    if t.cuda_graph_impl in ("transformer_engine", "local"):
        yield broken(f"{name} excludes cuda_graph_impl={t.cuda_graph_impl}", fix="use full_iteration or none")


def transformer_impl(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What local modules and TransformerEngine's have. A back end says nothing to local modules: it only sets variables that
    TransformerEngine reads (`models/common/language_module/language_module.py`, _set_attention_backend)."""
    t = training
    if t.te_spec and t.attention_kernel == "local":
        yield broken("attention_kernel=local needs transformer_impl=local")
    if not t.te_spec and t.moe_grouped_gemm and model.num_moe_experts:
        yield broken("moe_grouped_gemm needs transformer_impl=transformer_engine")
    if t.use_te_activation_func:
        if t.te_spec and t.bias_activation_fusion:
            yield broken("use_te_activation_func excludes bias_activation_fusion", fix="turn one of them off")
        known = (("silu", True), ("gelu", True), ("gelu", False))  # `extensions/transformer_engine.py`, TEActivationOp
        if t.te_spec and (model.activation_func, model.gated_linear_unit) not in known:
            rule = f"use_te_activation_func does not know activation_func={model.activation_func}"
            yield broken(rule, fix="use SwiGLU, GEGLU or GELU, or turn it off")
    if not t.te_spec and layout.cp > 1:
        yield broken(f"{{{CP}}} needs transformer_impl=transformer_engine", {CP: layout.cp})
