"""Settings that were given but change nothing in this model; they are warned about, never ignored in silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..job.choices import NEWEST
from ..job.layout import Layout
from ..job.model import Model
from ..job.rollout import Rollout
from ..job.settings import Owner
from ..job.training import OFFLOADED_LOADS, Training
from ..modules.kinds import has_compressed, kinds_in, owners_of, recomputable
from ..states.optimizers import OPTIMIZERS, beside_torch_format
from ..wording import all_of

_SETTINGS = tuple(field for part in (Model, Layout, Training) for field in dataclasses.fields(part))
PARTS: dict[str, str] = {
    "moe": "experts", "mla": "multi-latent attention", "mamba": "Mamba-2 layers", "gdn": "Gated DeltaNet layers", "dsa": "sparse attention",
    "csa": "DeepSeek-V4 attention", "mhc": "hyper-connections", "gated": "gated residual streams",
    "kimi": "attention residuals", "parallel": "parallel attention",
    "tower": "vision tower", "audio": "audio tower", "yarn": "YaRN positions",
}  # fmt: skip
"""What an owner of settings is, in words."""
BESIDE: dict[str, tuple[str, Callable[[Training], object]]] = {
    "optimizer_state_offload_": ("chunked_optimizer_state_offload", lambda t: t.chunked_optimizer_state_offload),
    "muon_": ("optimizer=muon", lambda t: t.optimizer == "muon"),
    "peft_experts": ("peft", lambda t: t.peft != "none"),
    "max_seqlen_per_dp_cp_rank": ("sequence_packing_scheduler", lambda t: t.sequence_packing_scheduler),
}
"""Beginnings of settings that mean something only beside another, what that is, and whether it is on."""
ALSO_DEFAULT = (("muon_tp_mode", "blockwise"),)
"""Megatron's defaults that are none of ours, where a setting has none."""
OWNERS: dict[str, Owner] = {field.name: field.metadata["of"] for field in _SETTINGS if field.metadata.get("of")}
"""Settings that mean something only in some models, and what those must have."""


def without_effect(model: Model, training: Training, given: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per setting that was given and has no effect, in the same order whatever order they were given in."""
    t = training
    present = owners_of(model)
    defaults = {f.name: f.default for part in (Model, Training) for f in dataclasses.fields(part)}
    for name, value in sorted(given.items(), key=lambda item: item[0]):
        if name in defaults and value == defaults[name]:
            continue
        owner = OWNERS.get(name)
        for part, (other, is_on) in BESIDE.items():
            meant = name in defaults and (name, value) not in ALSO_DEFAULT and (not owner or owner in present)
            if meant and name.startswith(part) and not is_on(t):
                yield f"{name} has no effect without {other}"
        if name.startswith("freeze_") and any(tower.unexamined for tower in model.towers):
            continue  # without it the model is refused
        if owner and owner not in present and (value is True or value not in (None, 1, 0)):
            yield f"{name} has no effect: {_absent(model, owner)}"
    if t.freeze_vision_projection and any(tower.whole for tower in model.towers):
        yield "freeze_vision_projection has no effect: freeze_vision_model freezes a tower of this model with all that leads out of it"
    for tower in model.towers:
        if tower.hears and tower.blocks and not tower.sees and t.audio_tokens:
            yield f"audio_tokens has no effect: what the {tower.name} computes is not counted"
    if t.low_precision and any(tower.vit and tower.vit.radio for tower in model.towers):
        yield "the vision tower is counted in 16 bits: Megatron-Bridge gives RADIO the language model's fp8 or fp4, which is not modelled"
    if given.get("linear_attention_freq") not in (None, 1) and not model.alternates:
        yield "linear_attention_freq has no effect: no layers of the model alternate by it"
    if model.hc_lowrank and given.get("attention_kernel") not in (None, "unfused"):
        yield f"attention_kernel={t.attention_kernel} has no effect: a mask of all pairs, which no fused kernel takes, says who attends"
    if not t.te_spec and t.attention_kernel not in (None, "local"):
        yield (
            f"attention_kernel={t.attention_kernel} has no effect: transformer_impl=local has its own kernel, which makes the "
            "matrix of all scores"
        )
    yield from _of_losses(t)
    if t.use_megatron_fsdp and t.reuse_grad_buf_for_mxfp8_param_ag:
        yield "reuse_grad_buf_for_mxfp8_param_ag has no effect: use_megatron_fsdp turns it off"
    if t.fp8_param_gather_is_off:
        yield "fp8_param_gather has no effect: use_torch_fsdp2 turns it off, and weights are gathered in their own precision"
    if t.router_imbalance not in (None, 1) and t.moe_pad_expert_input_to_capacity and model.has_moe:
        yield "router_imbalance has no effect: expert inputs are padded to their capacity"
    for name, newest in NEWEST.items():
        if tuple(map(int, getattr(t, name).split(".")[:2])) > tuple(map(int, newest.split("."))):
            yield f"{name}={getattr(t, name)} is newer than {newest}, the version that the rules were read from"
    yield from _of_recomputation(model, t)
    if not model.moe_shared_expert_intermediate_size:
        for name, on in (
            ("moe_shared_expert_gate", model.moe_shared_expert_gate),
            ("moe_shared_expert_overlap", t.moe_shared_expert_overlap),
        ):
            if on:
                yield f"{name} has no effect without shared experts"
    optimizer = OPTIMIZERS[t.optimizer]
    if optimizer.unmodelled:
        yield optimizer.unmodelled
    yield from _loading(t)


def _of_recomputation(model: Model, t: Training) -> Iterator[str]:
    """Settings of recomputation that are for another granularity, or for what the model does not have."""
    if t.recompute_granularity == "selective":
        found = recomputable(model)
        for module in t.recompute_modules or ():
            if module not in found:
                yield f"recompute_modules {module} has nothing to recompute in this model"
        if t.recompute_num_layers is not None:
            yield "recompute_num_layers has no effect with recompute_granularity=selective"
    elif t.recompute_modules:
        yield "recompute_modules has no effect without recompute_granularity=selective"
    if t.recompute_granularity is None:
        for name in ("recompute_method", "recompute_num_layers"):
            if getattr(t, name) is not None:
                yield f"{name} has no effect without recompute_granularity=full"


def not_backed_up(r: Rollout) -> Iterator[str]:
    """Buffers without a host copy that have none anyway."""
    for part, name in (
        ("gradients", "disable_grad_buffers_cpu_backup"),
        ("weights", "disable_param_buffers_cpu_backup"),
    ):
        if getattr(r, name) and not (r.torch_memory_saver and part in r.moved):
            yield f"{name} has no effect without torch_memory_saver and {part} in rollout_offload or log_prob_offload"


def _of_losses(t: Training) -> Iterator[str]:
    """Which loss is fused where none is."""
    if t.cross_entropy_fusion_impl != "native" and not t.cross_entropy_loss_fusion:
        yield f"cross_entropy_fusion_impl={t.cross_entropy_fusion_impl} has no effect without cross_entropy_loss_fusion"


def _loading(t: Training) -> Iterator[str]:
    """What of a load is not modelled, or stops it."""
    if t.ckpt_fully_parallel_load:
        yield (
            "ckpt_fully_parallel_load: what ranks send each other while they load is not counted and has no bound: they also receive "
            "shards that they do not need into new buffers, and do not wait (exchange_utils.py: exchange_loaded_tensors_broadcast)"
        )
    yield from _of_format(t)
    if t.load_optim and t.optimizer_cpu_offload and not t.use_precision_aware_optimizer and t.mcore < OFFLOADED_LOADS:
        yield (
            f"Megatron-Core {t.megatron_core_version} stops with a KeyError when it loads a checkpoint with optimizer_cpu_offload "
            "and without use_precision_aware_optimizer (hybrid_optimizer.py: _update_fp32_params_by_new_state); the load is that of 0.20"
        )


def _absent(model: Model, owner: Owner) -> str:
    """What a setting asks for that is not there; a tower may be, without a shape that is known."""
    if owner in ("tower", "audio") and any(not tower.blocks for tower in model.towers):
        return f"the shape of the model's {PARTS[owner]} is not known here; give its config.json"
    return f"the model has no {PARTS.get(owner, f'{owner} layers')}"


def _of_format(t: Training) -> Iterator[str]:
    """What a format of checkpoints is not modelled with, and what it cannot load."""
    beside = beside_torch_format(t)
    if t.ckpt_format == "torch_dcp" or (t.ckpt_format == "torch" and beside):
        what = f" with {all_of(beside)}" if t.ckpt_format == "torch" else ""
        yield (
            f"ckpt_format={t.ckpt_format}{what}: what a load and a save take is not modelled; the figures are those of torch_dist"
        )
    if t.ckpt_format == "torch" and t.dist_ckpt_optim_fully_reshardable:
        yield "dist_ckpt_optim_fully_reshardable has no effect with ckpt_format=torch"
    remainders = t.use_precision_aware_optimizer and t.store_param_remainders and t.params_dtype == "bf16"
    if t.ckpt_format == "torch" and t.load_optim and remainders:
        yield (
            "ckpt_format=torch with store_param_remainders: Megatron-Core 0.19.2 stops with an AssertionError when it loads the "
            "optimizer: the file has fp32 main parameters, and FusedAdam takes int16 remainders (fused_adam.py: set_scaled_state); "
            "use --ckpt-format torch_dist or --no-load-optim"
        )


def not_run(model: Model, training: Training) -> Iterator[str]:
    """What TransformerEngine refuses when the run is there, and Megatron-Core's settings do not.

    Source: TransformerEngine `pytorch/module/base.py` (set_activation_dtype): outside of autocast, input and weights have one dtype.
    """
    separate = all(kind == "mla+moe" for kind in model.every_kind)
    if model.fp32_residual_connection and training.te_spec and training.params_dtype != "fp32" and not separate:
        yield (
            "fp32_residual_connection: TransformerEngine's linears with a norm of their own (linear_qkv, a dense MLP's linear_fc1) "
            "refuse an fp32 stream beside 16-bit weights, and the run stops at its first layer; only layers of multi-latent attention "
            "and routed experts have norms of their own, which cast it"
        )


def not_timed(model: Model, training: Training) -> Iterator[str]:
    """What takes longer than the seconds of plan and advise say."""
    if training.deterministic_mode and any(kind.name == "gdn" for kind in kinds_in(model.every_kind)):
        yield (
            "deterministic_mode runs Gated DeltaNet as PyTorch's operations, a loop over the tokens of a chunk among them: its bytes are "
            "counted, and its seconds are not known, several times those that plan and advise show"
        )


def not_established(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """What of DeepSeek-V4's layers is modelled by rule and was read off no run."""
    if not has_compressed(model):
        return
    if training.low_precision:
        yield (
            f"{training.low_precision} of DeepSeek-V4's attention is taken as of other TransformerEngine linears: no record of "
            "what its compressors and its indexer keep is public"
        )
    row, length = (training.max_seqlen_per_dp_cp_rank or 0) * layout.cp, training.seq_length * training.micro_batch_size
    if row and training.sequence_packing_scheduler and row != length:
        yield (
            f"max_seqlen_per_dp_cp_rank={training.max_seqlen_per_dp_cp_rank} is not modelled of DeepSeek-V4: the figures are of "
            f"{length:,} tokens in a microbatch, not of {row:,}"
        )
    if layout.cp > 1:
        yield (
            "context parallelism of DeepSeek-V4 runs packed sequences in contiguous shards alone (cp_partition_mode contiguous, a "
            "sequence_packing_scheduler)"
        )
