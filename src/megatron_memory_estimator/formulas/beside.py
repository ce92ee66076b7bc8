"""Both published formulas for a TrainingJob, to stand beside the simulated estimate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from ..job.model import Model
from ..job.pipeline import virtual_stages
from ..job.training_job import TrainingJob
from ..modules.kind import Kind
from ..modules.kinds import kinds_in, kinds_of, shapes_of
from . import bridge, megatron_lm

NAMES = ("bridge", "megatron_lm")


class Published(NamedTuple):
    """What a formula says of the most loaded GPU, in bytes; or why it says nothing."""

    formula: str
    weight_and_optimizer_bytes: int | None
    activation_bytes: int | None
    refused: str = ""

    @property
    def total_bytes(self) -> int | None:
        """State and activations."""
        if self.weight_and_optimizer_bytes is None or self.activation_bytes is None:
            return None
        return self.weight_and_optimizer_bytes + self.activation_bytes


def published(job: TrainingJob) -> tuple[Published, ...]:
    """The values of both formulas for a job; hybrid layer patterns and weight shards, among others, are in neither."""
    others = {
        "hybrid layer patterns are": job.model.hybrid,
        "parallel_attention is": job.model.parallel_attention,
        "layers of attention and a recurrent state are": any(
            kind.groups and kind.state_heads != "none" for kind in kinds_in(job.model.every_kind)
        ),
        "layers of different widths are": len(set(map(_widths, shapes_of(job.model)))) > 1,
        "weight shards are": job.layout.shards_weights,
    }
    if what := next((what for what, there in others.items() if there), ""):
        return tuple(Published(name, None, None, f"{what} not in this formula") for name in NAMES)
    config, args = bridge_container(job), megatron_namespace(job)
    values = []
    try:
        state = bridge.compute_weight_and_optimizer_memory(config)
        values.append(
            Published("bridge", round(state), round(bridge.compute_activation_memory(config, job.num_microbatches)))
        )
    except ValueError as error:
        values.append(Published("bridge", None, None, str(error)))
    state = megatron_lm.compute_weight_and_optimizer_memory(args)
    selective = megatron_lm.takes_selective_branch(args)
    activations = (
        megatron_lm.compute_activation_memory if selective else megatron_lm.compute_activation_memory_without_sp
    )(args, job.num_microbatches)
    values.append(Published("megatron_lm", round(state), round(activations)))
    return tuple(values)


def _widths(shape: tuple[Model, frozenset[Kind]]) -> tuple[object, ...]:
    """What both formulas take to be the same in every layer."""
    m, kinds = shape
    return m.num_attention_heads, m.groups, m.head_dim, m.ffn, frozenset(kind.role == "nothing" for kind in kinds)


def _shared(job: TrainingJob) -> dict[str, Any]:
    """What both formulas read under the same name."""
    m, layout, t = job.model, job.layout, job.training
    return {
        "num_layers": m.num_layers,
        "hidden_size": m.hidden_size,
        "seq_length": t.seq_length,
        "ffn_hidden_size": m.ffn,
        "num_attention_heads": m.num_attention_heads,
        "num_query_groups": m.groups,
        "kv_channels": m.kv_channels or m.hidden_size // m.num_attention_heads,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": _chunks(job),
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "moe_layer_freq": _moe_layers(job),
        "moe_router_topk": m.moe_router_topk,
        "moe_ffn_hidden_size": m.moe_ffn,
        "moe_shared_expert_intermediate_size": m.moe_shared_expert_intermediate_size,
        "moe_latent_size": m.moe_latent_size,
        "mtp_num_layers": m.mtp or None,
        "sequence_parallel": layout.sequence_parallel,
        "recompute_granularity": t.recompute_granularity,
    }


def bridge_container(job: TrainingJob) -> SimpleNamespace:
    """The job as the part of a Megatron-Bridge ConfigContainer that the formula reads."""
    m, layout, t = job.model, job.layout, job.training
    model = SimpleNamespace(
        **_shared(job),
        vocab_size=m.padded_vocab(layout.tp),
        make_vocab_size_divisible_by=m.make_vocab_size_divisible_by,
        should_pad_vocab=False,
        share_embeddings_and_output_weights=m.share_embeddings_and_output_weights,
        num_layers_in_first_pipeline_stage=layout.num_layers_in_first_pipeline_stage,
        num_layers_in_last_pipeline_stage=layout.num_layers_in_last_pipeline_stage,
        num_moe_experts=m.num_moe_experts,
        gated_linear_unit=m.gated_linear_unit,
        activation_func=m.activation_func,
    )
    return SimpleNamespace(
        model=model,
        train=SimpleNamespace(micro_batch_size=t.micro_batch_size),
        optimizer=SimpleNamespace(use_distributed_optimizer=t.use_distributed_optimizer),
        data_parallel_size=layout.dp,
    )


def megatron_namespace(job: TrainingJob) -> SimpleNamespace:
    """The job as the validated Megatron-LM arguments that the report reads."""
    m, layout, t = job.model, job.layout, job.training
    return SimpleNamespace(
        **_shared(job),
        group_query_attention=not m.multi_latent_attention and m.groups != m.num_attention_heads,
        swiglu=m.gated_linear_unit and m.activation_func == "silu",
        normalization=m.normalization,
        add_bias_linear=m.add_bias_linear,
        untie_embeddings_and_output_weights=not m.share_embeddings_and_output_weights,
        padded_vocab_size=m.padded_vocab(layout.tp),
        multi_latent_attention=m.multi_latent_attention,
        q_lora_rank=m.q_lora_rank,
        kv_lora_rank=m.kv_lora_rank,
        qk_head_dim=m.qk_head_dim,
        qk_pos_emb_head_dim=m.qk_pos_emb_head_dim,
        v_head_dim=m.v_head_dim,
        num_experts=m.num_moe_experts,
        moe_shared_expert_gate=m.moe_shared_expert_gate,
        data_parallel_size=layout.dp,
        world_size=layout.world_size,
        use_distributed_optimizer=t.use_distributed_optimizer,
        micro_batch_size=t.micro_batch_size,
    )


def _moe_layers(job: TrainingJob) -> list[int]:
    return [int(any(kind.routed for kind in kinds_of(layer))) for layer in job.model.kinds]


def _chunks(job: TrainingJob) -> int | None:
    chunks = virtual_stages(job.model, job.layout)
    return chunks if chunks > 1 else None
