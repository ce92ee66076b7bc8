"""Rules of Megatron-LM's command line: what its own checks refuse of arguments that the engine never sees.

Source: Megatron-LM 0.19.2 `megatron/training/arguments.py` (validate_args), `argument_utils.py`, `transformer_config.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

from ...errors import ConfigError
from ...job.choices import version
from ...job.layer_kinds import frequency_list
from ...job.layout import Layout
from ...job.model import Model
from ...job.training import Training
from ...legality.asserted_environment import refuses_loss
from ...rules import Violation, broken, broken_if
from ...wording import dashed, whole
from .table import Argument, arguments

GONE = {
    "batch_size": "micro_batch_size",
    "warmup": "lr_warmup_fraction",
    "model_parallel_size": "tensor_model_parallel_size",
    "checkpoint_activations": "recompute_granularity",
}
"""Options at which validate_args stops, and what they are called today."""
TWICE = (
    ("hybrid_override_pattern", "hybrid_layer_pattern"),
    ("enable_cuda_graph", "cuda_graph_impl"),
    ("external_cuda_graph", "cuda_graph_impl"),
    ("cuda_graph_scope_deprecated", "cuda_graph_modules"),
    ("encoder_num_layers", "num_layers"),
    ("encoder_seq_length", "seq_length"),
    ("squared_relu", "swiglu"),
    ("quick_geglu", "swiglu"),
    ("account_for_embedding_in_pipeline_split", "hybrid_layer_pattern"),
    ("account_for_loss_in_pipeline_split", "hybrid_layer_pattern"),
    ("group_query_attention", "multi_latent_attention"),
)
"""Pairs of options that exclude each other."""
BEFORE_CORE = (0, 1)
"""The version that stands for releases before Megatron-Core, which read the old words."""
NEEDED = {
    "micro_batch_size": ("batch_size",),
    "seq_length": ("encoder_seq_length",),
    "max_position_embeddings": (),
}
"""Arguments that validate_args needs, and the old words for them."""
TURNED_OFF = ("add_bias_linear", "bias_gelu_fusion")
"""Destinations of options that turn something off."""
SHORT_NAMES = (0, 20)
"""Megatron-Core version from which the variants of linear attention have short names."""
VARIANTS = ("gated_delta_net", "dsa")
"""Values of experimental_attention_variant of which GPTModelBuilder makes no MTP layers."""


def refused_arguments(
    given: Mapping[str, Any], model: Model, layout: Layout, training: Training, *, others: bool = False
) -> Iterator[Violation]:
    """What Megatron-LM's own checks refuse of arguments. `others`: whether a fork's are among them, which may read old words itself."""
    set_ = {name: value for name, value in given.items() if value not in (None, False) or name in TURNED_OFF}
    for old, new in GONE.items():
        if old in set_ and not others and training.mcore > BEFORE_CORE:
            yield broken("argument-gone", option=dashed(old), instead=dashed(new))
    for one, other in TWICE:
        if one in set_ and set_.get(other, "none") not in ("none", []):
            yield broken("arguments-exclude-each-other", one=_flag(one), other=_flag(other))
    newest = newest_option(set_)
    if newest is not None and training.mcore < since(newest):
        yield broken("argument-of-newer-version", option=dashed(newest.flag), since=newest.since)
    yield from _lists(set_, model, layout, training)
    yield from _alone(set_, model, layout, training)


def missing_arguments(given: Mapping[str, Any], settings: Collection[str], *, others: bool) -> Iterator[Violation]:
    """What Megatron-LM's own checks need of a command line: `settings` are given beside it. `others`: whether a fork's arguments are among
    them, which may say how many positions there are."""
    if {"use_checkpoint_args", "yaml_cfg"} & {name for name, value in given.items() if value}:
        return
    for name, before in NEEDED.items():
        if others and name == "max_position_embeddings":
            continue
        if not {name, *before} & {*given, *settings}:
            yield broken("argument-missing", option=dashed(name))


def _flag(dest: str) -> str:
    return dashed(arguments()[1][dest].flag)


def since(argument: Argument) -> tuple[int, int]:
    """The version of Megatron-Core that brought an argument."""
    return version("megatron_core_version", argument.since)


def newest_option(given: Mapping[str, Any]) -> Argument | None:
    """The option that the youngest version of Megatron-Core brought, if one of them came after the newest release."""
    by_dest = arguments()[1]
    new = [by_dest[dest] for dest in given if dest in by_dest]
    return max((one for one in new if one.since), key=since, default=None)


def _lists(given: Mapping[str, Any], model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Lists as long as what they are about."""
    layers, freq = model.num_layers, given.get("no_rope_freq")
    if freq is not None and not _fits(freq, layers):
        yield broken("argument-no-rope-freq", given=freq, num_layers=layers)
    sizes = layout.hierarchical_context_parallel_sizes
    if sizes and prod(sizes) != layout.cp:
        yield broken("argument-hierarchical-sizes", product=prod(sizes), context_parallel_size=layout.cp)
    types, coefficients = given.get("moe_router_load_balancing_type"), given.get("moe_aux_loss_coeff", 0.0)
    several = len(types) if isinstance(types, list) else 1
    count = len(coefficients) if isinstance(coefficients, list) else 1
    if several > 1 and count != several:
        yield broken("argument-aux-coefficients", types=several, coefficients=count)
    batch = given.get("eval_global_batch_size") or training.global_batch_size
    micro = given.get("eval_micro_batch_size") or training.micro_batch_size
    if batch and batch % max(micro * layout.readers, 1):
        yield broken("argument-eval-batch", batch=batch, samples=micro * layout.readers)


def _fits(freq: object, layers: int) -> bool:
    """Whether a frequency divides the layers, or its list has one entry for each."""
    number = whole(str(freq))
    if number:
        return layers % number == 0
    try:
        return bool(frequency_list("no_rope_freq", freq, layers))
    except ConfigError:
        return False


def _alone(given: Mapping[str, Any], model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Options that need others."""
    has = given.get
    fsdp, latent, experts = has("use_megatron_fsdp"), has("multi_latent_attention"), has("num_experts")
    full = has("recompute_granularity") == "full" and training.mcore > BEFORE_CORE
    flex = has("moe_token_dispatcher_type") == "flex"
    hybrid = has("hybrid_layer_pattern") or has("hybrid_override_pattern")
    variant = has("experimental_attention_variant")
    unfused = has("bias_gelu_fusion") is False or has("add_bias_linear") is False
    graphed = "moe_preprocess" in (has("cuda_graph_modules") or has("cuda_graph_scope_deprecated") or ())
    copies = graphed and has("moe_token_dispatcher_type") == "alltoall" and has("moe_router_padding_for_fp8")
    overlapped = training.overlap_p2p_comm
    biased = has("moe_router_enable_expert_bias")
    fuser = has("use_transformer_engine_op_fuser")
    yield from broken_if(
        (
            (variant in VARIANTS and has("mtp_num_layers") and not hybrid, "argument-mtp-of-variant"),
            (variant == "gdn" and training.mcore < SHORT_NAMES, "argument-gdn"),
            (has("cross_entropy_fusion_impl") == "te" and refuses_loss(training), "argument-te-loss"),
            (biased and has("moe_router_score_function", "softmax") == "softmax", "argument-expert-bias"),
            (fsdp and has("ckpt_format") != "fsdp_dtensor", "argument-fsdp-needs-checkpoint-format"),
            (
                training.megatron_fsdp_version == 2 and has("calculate_per_token_loss"),
                "argument-fsdp-2-per-token-loss",
            ),
            (layout.shards_weights and has("ddp_average_in_collective"), "argument-weight-shards-average"),
            (has("fsdp_manual_registration") and not (fsdp and has("nccl_ub")), "argument-manual-registration"),
            (has("rope_type") == "yarn" and not latent, "argument-yarn-without-latent-attention"),
            (latent and has("position_embedding_type") == "yarn", "argument-yarn-positions-of-latent-attention"),
            (latent and has("rotary_interleaved"), "argument-interleaved-rotary"),
            (full and not has("recompute_method"), "argument-recompute-method"),
            (full and not has("recompute_num_layers"), "argument-recompute-num-layers"),
            (has("overlap_param_gather") and not has("overlap_grad_reduce"), "argument-param-gather-overlap"),
            (has("train_iters") and has("train_samples") and not has("skip_train"), "argument-iterations-or-samples"),
            (has("moe_enable_deepep") and not flex, "argument-deepep-needs-flex"),
            (has("moe_enable_deepep") and has("moe_flex_dispatcher_backend") == "hybridep", "argument-one-backend"),
            (has("moe_single_grouped_bias") and not model.add_bias_linear, "argument-grouped-bias"),
            (has("moe_single_grouped_weight") and not fuser, "argument-grouped-weight"),
            (has("overlap_p2p_comm_warmup_flush") and (layout.pp == 1 or not overlapped), "argument-warmup-flush"),
            (has("dynamic_context_parallel") and not has("calculate_per_token_loss"), "argument-dynamic-loss"),
            (
                has("dynamic_context_parallel") and has("dataloader_type", "single") != "single",
                "argument-dynamic-loader",
            ),
            (has("moe_ffn_hidden_size") and not experts and not hybrid, "argument-moe-ffn-without-experts"),
            (has("moe_latent_size") and not experts, "argument-latent-size-without-experts"),
            (has("glu_linear_offset") and has("swiglu"), "argument-glu-offset"),
            (has("squared_relu") and not unfused, "argument-fused-squared-relu"),
            (copies and not has("moe_pad_expert_input_to_capacity"), "argument-preprocess-graph"),
        )
    )
