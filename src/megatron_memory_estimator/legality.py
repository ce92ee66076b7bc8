"""Rules of Megatron-Core that a layout and its settings must keep; each violation is one sentence with a fix.

Sources: Megatron-LM `megatron/training/arguments.py` (validate_args), `megatron/core/transformer/transformer_config.py`,
`megatron/core/parallel_state.py`, `megatron/core/model_parallel_config.py`, `megatron/core/optimizer/optimizer_config.py`,
`megatron/core/pipeline_parallel/schedules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import LayoutError
from .layout import Layout
from .model import Model
from .pipeline import layers_per_chunk, parse_layout, split_layers, virtual_stages
from .training import Training

if TYPE_CHECKING:
    from .job import TrainingJob

DEGREES = {
    "world_size": "num_gpus",
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage": "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage": "num_layers_in_last_pipeline_stage",
    "num_layers_per_virtual_pipeline_stage": "num_layers_per_virtual_pipeline_stage",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_vp_stage",
    "num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
}


def check(job: TrainingJob) -> None:
    """Raise LayoutError with every violated rule, or return."""
    reasons = violations(job.model, job.layout, job.training, job.num_microbatches)
    if reasons:
        raise LayoutError(reasons)


def violations(model: Model, layout: Layout, training: Training, num_microbatches: int) -> tuple[str, ...]:
    """One sentence per violated rule; empty for a legal run."""
    wrong = tuple(degrees(layout))
    if wrong:
        return wrong
    found = [*world(model, layout), *attention(model, layout, training), *experts(model, layout, training)]
    found += [*pipeline(model, layout), *optimizer(layout, training), *other(model, layout, training)]
    if not found:
        found += schedule(model, layout, num_microbatches)
    return tuple(dict.fromkeys(found))


def degrees(layout: Layout) -> Iterator[str]:
    """Every degree is at least 1."""
    for name, shown in DEGREES.items():
        value = getattr(layout, name)
        if value is not None and value < 1:
            yield f"{shown}={value} must be at least 1"


def divisors(*numbers: int, most: int = 64) -> str:
    """The common divisors of some numbers, for a message: `1, 2, 4 or 8`."""
    found = [str(d) for d in range(1, min(*numbers, most) + 1) if all(n % d == 0 for n in numbers)]
    return " or ".join((", ".join(found[:-1]), found[-1])) if len(found) > 1 else found[0]


def world(model: Model, layout: Layout) -> Iterator[str]:
    """The GPUs divide over both grids, and the optimizer instances over both data-parallel groups."""
    w, tp, pp, cp, ep, etp = layout.world_size, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp
    dense = tp * pp * cp
    if w % dense:
        yield (
            f"num_gpus={w} does not divide by tensor_model_parallel_size*pipeline_model_parallel_size*"
            f"context_parallel_size={tp}*{pp}*{cp}={dense}; use a multiple of {dense}"
        )
        return
    if model.num_moe_experts and w % (etp * ep * pp):
        grid = etp * ep * pp
        yield (
            f"num_gpus={w} does not divide by expert_tensor_parallel_size*expert_model_parallel_size*"
            f"pipeline_model_parallel_size={etp}*{ep}*{pp}={grid}; use a multiple of {grid}, or a smaller "
            "expert_model_parallel_size"
        )
        return
    n = layout.num_distributed_optimizer_instances
    if layout.dp * cp % n:
        yield f"num_distributed_optimizer_instances={n} does not divide data parallel size times cp={layout.dp * cp}; use a divisor"
    if model.num_moe_experts and layout.expert_dp % n:
        yield f"num_distributed_optimizer_instances={n} does not divide the expert data parallel size {layout.expert_dp}; use a divisor"


def attention(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Heads, groups, state-space heads and widths divide over tp (and cp where heads are redistributed)."""
    m, tp, cp = model, layout.tp, layout.cp
    mixers = {kind.split("+")[0] for kind in m.kinds}
    if mixers & {"gqa", "mla", "dsa"} and m.num_attention_heads % tp:
        yield (
            f"num_attention_heads={m.num_attention_heads} does not divide by tensor_model_parallel_size={tp} in "
            f"linear_qkv.weight; use {divisors(m.num_attention_heads)}"
        )
    if "gqa" in mixers:
        if m.num_attention_heads % m.groups:
            yield (
                f"num_attention_heads={m.num_attention_heads} does not divide by num_query_groups={m.groups}; "
                f"use {divisors(m.num_attention_heads)}"
            )
        if m.groups % tp and tp % m.groups:
            yield (
                f"num_query_groups={m.groups} and tensor_model_parallel_size={tp} must divide one another; "
                f"use {divisors(m.groups)} or a multiple of {m.groups}"
            )
    if "mamba" in mixers:
        nh, groups = m.mamba_heads, m.mamba_num_groups
        if nh % (tp * cp):
            yield f"mamba_num_heads={nh} does not divide by tensor_model_parallel_size*context_parallel_size={tp * cp}; use {divisors(nh)}"
        if groups % tp:
            yield f"mamba_num_groups={groups} does not divide by tensor_model_parallel_size={tp}; use {divisors(groups)}"
        if nh % groups:
            yield f"mamba_num_heads={nh} does not divide by mamba_num_groups={groups}; use {divisors(nh)}"
        if groups % (tp * cp) and (tp * cp) % groups:
            yield f"mamba_num_groups={groups} and tensor_model_parallel_size*context_parallel_size={tp * cp} must divide one another"
    if mixers & {"gdn", "gdn2"}:
        nk, nv = m.linear_num_key_heads, m.linear_num_value_heads
        for name, heads in (("linear_num_key_heads", nk), ("linear_num_value_heads", nv)):
            if heads % (tp * cp):
                yield f"{name}={heads} does not divide by tensor_model_parallel_size*context_parallel_size={tp * cp}; use {divisors(heads)}"
        if nv % nk:
            yield f"linear_num_value_heads={nv} does not divide by linear_num_key_heads={nk}; use a multiple"
    yield from _context_parallel(model, layout, training)
    yield from _widths(model, layout, training)


def _context_parallel(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    cp, tp = layout.cp, layout.tp
    if cp > 1 and training.seq_length % (2 * cp):
        yield (
            f"seq_length={training.seq_length} does not divide by 2*context_parallel_size={2 * cp}; "
            f"use a multiple of {2 * cp}"
        )
    if len(layout.cp_comm_type) not in (1, model.num_layers):
        yield f"cp_comm_type has {len(layout.cp_comm_type)} entries; give one, or one per layer ({model.num_layers})"
    sizes = layout.hierarchical_context_parallel_sizes
    for kind in dict.fromkeys(layout.cp_comm_type) if cp > 1 else ():
        if kind == "a2a+p2p" and (sizes is None or len(sizes) != 2 or sizes[0] * sizes[1] != cp):
            yield f"cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes with two sizes whose product is context_parallel_size={cp}"
            continue
        across = sizes[0] if kind == "a2a+p2p" and sizes else cp
        if kind.startswith("a2a") and "gqa" in {k.split("+")[0] for k in model.kinds}:
            for name, heads in (("num_attention_heads", model.num_attention_heads), ("num_query_groups", model.groups)):
                if heads % (tp * across):
                    yield (
                        f"cp_comm_type {kind} needs {name}={heads} to divide by tensor_model_parallel_size*cp={tp * across}; "
                        "use p2p or all_gather"
                    )


def _widths(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Every other sharded dim, and the sequence under sequence parallelism."""
    m, tp, etp = model, layout.tp, layout.etp
    vocab = m.padded_vocab(tp)
    if vocab % tp:
        yield f"padded_vocab_size={vocab} does not divide by tensor_model_parallel_size={tp}; use a multiple of {tp}"
    kinds = set(m.kinds)
    if any(kind.endswith("dense") for kind in kinds) and m.ffn % tp:
        yield f"ffn_hidden_size={m.ffn} does not divide by tensor_model_parallel_size={tp} in linear_fc1.weight; use {divisors(m.ffn)}"
    shared = m.moe_shared_expert_intermediate_size
    if m.has_moe and shared and shared % tp:
        yield f"moe_shared_expert_intermediate_size={shared} does not divide by tensor_model_parallel_size={tp}; use {divisors(shared)}"
    if m.has_moe and m.moe_ffn % etp:
        yield f"moe_ffn_hidden_size={m.moe_ffn} does not divide by expert_tensor_parallel_size={etp}; use {divisors(m.moe_ffn)}"
    if m.mtp and m.hidden_size % tp:
        yield f"hidden_size={m.hidden_size} does not divide by tensor_model_parallel_size={tp} in mtp eh_proj.weight; use {divisors(m.hidden_size)}"
    if "gqa" in {kind.split("+")[0] for kind in kinds}:
        gate = 2 if m.attention_output_gate else 1
        qkv = (gate * m.num_attention_heads + 2 * m.groups) * m.head_dim
        if qkv % tp:
            yield f"the {qkv} rows of linear_qkv.weight do not divide by tensor_model_parallel_size={tp}"
    if layout.sequence_parallel and training.seq_length % (tp * layout.cp):
        yield (
            f"seq_length={training.seq_length} does not divide by tensor_model_parallel_size*context_parallel_size="
            f"{tp * layout.cp}, which sequence_parallel needs; use a multiple"
        )


def experts(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Expert parallelism, routing, and what MoE layers require of the rest."""
    m, ep = model, layout.ep
    if not m.num_moe_experts:
        if ep > 1:
            yield f"expert_model_parallel_size={ep} needs a MoE model; num_moe_experts is not set; use 1"
        return
    if m.num_moe_experts % ep:
        yield f"num_moe_experts={m.num_moe_experts} does not divide by expert_model_parallel_size={ep}; use {divisors(m.num_moe_experts)}"
    if m.has_moe and layout.tp > 1 and not layout.sequence_parallel:
        yield (
            f"MoE training with tensor_model_parallel_size={layout.tp} needs sequence_parallel; turn it on or use "
            "tensor_model_parallel_size=1"
        )
    if m.add_bias_linear and layout.etp > 1:
        yield f"expert biases (add_bias_linear) need expert_tensor_parallel_size=1, not {layout.etp}"
    if m.add_bias_linear and m.moe_shared_expert_intermediate_size:
        yield "shared experts have no biases; turn add_bias_linear off"
    groups, topk = m.moe_router_num_groups, m.moe_router_group_topk
    if groups and m.num_moe_experts % groups:
        yield f"num_moe_experts={m.num_moe_experts} does not divide by moe_router_num_groups={groups}; use {divisors(m.num_moe_experts)}"
    if groups and topk and topk > groups:
        yield f"moe_router_group_topk={topk} is more than moe_router_num_groups={groups}"
    if training.moe_pad_expert_input_to_capacity and training.moe_expert_capacity_factor is None:
        yield "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor"
    if training.moe_shared_expert_overlap and training.moe_token_dispatcher_type == "allgather":
        yield "moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall or flex"
    if training.moe_token_dispatcher_type == "flex" and layout.tp * ep == 1:
        yield "moe_token_dispatcher_type flex needs tensor_model_parallel_size*expert_model_parallel_size above 1"
    if training.moe_token_dispatcher_type == "allgather" and training.moe_expert_capacity_factor is not None:
        yield "moe_expert_capacity_factor needs moe_token_dispatcher_type alltoall or flex"


def pipeline(model: Model, layout: Layout) -> Iterator[str]:
    """Layers divide over stages and chunks."""
    pp = layout.pp
    first, last = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    uneven = first is not None or last is not None
    account = layout.account_for_embedding_in_pipeline_split or layout.account_for_loss_in_pipeline_split
    text = layout.pipeline_model_parallel_layout
    spellings = [
        name
        for name in (
            "num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size",
            "pipeline_model_parallel_layout",
        )
        if getattr(layout, name) is not None
    ]  # fmt: skip
    if len(spellings) > 1:
        yield f"{' and '.join(spellings)} say the same thing; give one of them"
        return
    if text is not None and (uneven or account):
        yield "pipeline_model_parallel_layout excludes the first/last stage counts and account_for_* settings"
        return
    if uneven and account:
        yield "num_layers_in_first/last_pipeline_stage exclude account_for_embedding/loss_in_pipeline_split; give one kind"
        return
    if uneven and layout.num_layers_per_virtual_pipeline_stage is not None:
        yield "num_layers_per_virtual_pipeline_stage excludes uneven stages; use virtual_pipeline_model_parallel_size"
        return
    if text is not None:
        yield from _layout_string(model, layout, text)
        return
    if model.hybrid_layer_pattern is not None and "|" in model.hybrid_layer_pattern:
        return
    try:
        vp = virtual_stages(model, layout)
    except LayoutError as error:
        yield from error.reasons
        return
    if vp > 1 and pp == 1:
        yield f"virtual_pipeline_model_parallel_size={vp} needs pipeline_model_parallel_size above 1"
        return
    yield from _uneven(model, layout, vp) if uneven else _even(model, layout, vp)


def _even(model: Model, layout: Layout, vp: int) -> Iterator[str]:
    pp, total = layout.pp, split_layers(model, layout)
    counted = "" if total == model.num_layers else " (with the embedding and the loss counted as layers)"
    if total % pp:
        tail = -(-total // pp)
        yield (
            f"num_layers={total}{counted} does not divide by pipeline_model_parallel_size={pp}; use {divisors(total)}, "
            f"or an uneven split such as num_layers_in_last_pipeline_stage={_last_stage(total, pp) or tail}"
        )
    elif total // pp % vp:
        yield (
            f"the {total // pp} layers of a pipeline stage do not divide by virtual_pipeline_model_parallel_size={vp}; "
            f"use {divisors(total // pp)}"
        )


def _last_stage(total: int, pp: int) -> int | None:
    return next((b for b in range(total // pp, total) if b > 0 and (total - b) % (pp - 1) == 0), None) if pp > 1 else None


def _uneven(model: Model, layout: Layout, vp: int) -> Iterator[str]:
    pp, total = layout.pp, model.num_layers
    given = {
        name: value
        for name, value in (
            ("num_layers_in_first_pipeline_stage", layout.num_layers_in_first_pipeline_stage),
            ("num_layers_in_last_pipeline_stage", layout.num_layers_in_last_pipeline_stage),
        )
        if value is not None
    }
    if pp == 1:
        yield f"{' and '.join(given)} need pipeline_model_parallel_size above 1"
        return
    for name, value in given.items():
        if value % vp:
            yield f"{name}={value} does not divide by virtual_pipeline_model_parallel_size={vp}; use a multiple of {vp}"
    rest, middle = total - sum(given.values()), pp - len(given)
    shown = " and ".join(f"{name}={value}" for name, value in given.items())
    if rest < 0 or (middle == 0 and rest) or (middle and rest == 0):
        yield f"{shown} leave {rest} of num_layers={total} for {middle} middle stages; they must hold every layer"
    elif middle and rest % middle:
        yield f"{shown} leave {rest} of num_layers={total} layers, which do not divide over {middle} middle stages; change them so that they do"
    elif middle and rest // middle % vp:
        yield f"the {rest // middle} layers of a middle stage do not divide by virtual_pipeline_model_parallel_size={vp}"
    elif middle == 0 and vp > 1:
        yield "two pipeline stages with both counts given leave no middle stage, which Megatron-Core refuses with vpp; give one count"


def _layout_string(model: Model, layout: Layout, text: str) -> Iterator[str]:
    stages = parse_layout(text)
    flat = "".join(stages)
    pp = layout.pp
    if len(stages) % pp:
        yield (
            f"pipeline_model_parallel_layout has {len(stages)} stages, which do not divide over "
            f"pipeline_model_parallel_size={pp}; use a multiple of {pp} stages"
        )
        return
    for symbol, wanted, what in (
        ("E", 1, "embedding"), ("L", 1, "loss"), ("t", model.num_layers, "num_layers"), ("m", model.mtp, "mtp_num_layers"),
    ):  # fmt: skip
        if flat.count(symbol) != wanted:
            yield f"pipeline_model_parallel_layout has {flat.count(symbol)} {symbol} for {what}={wanted}; they must agree"
    if flat and (flat[0] != "E" or flat[-1] != "L"):
        yield "pipeline_model_parallel_layout must begin with E and end with L"
    if "m" in flat:
        if "t" in flat[flat.index("m") :]:
            yield "pipeline_model_parallel_layout has a decoder layer (t) after an MTP layer (m)"
        holders = [i for i, stage in enumerate(stages) if "m" in stage]
        vp = len(stages) // pp
        if len(holders) != 1:
            yield "pipeline_model_parallel_layout must hold all MTP layers (m) in one stage"
        elif holders[0] // pp != vp - 1:
            yield "pipeline_model_parallel_layout must hold the MTP layers in the last chunk of their rank"


def optimizer(layout: Layout, training: Training) -> Iterator[str]:
    """Settings of the optimizer and of data-parallel communication that exclude or need each other."""
    t = training
    if layout.num_distributed_optimizer_instances > 1 and not t.use_distributed_optimizer:
        yield "num_distributed_optimizer_instances above 1 needs use_distributed_optimizer"
    if t.overlap_param_gather and not (t.use_distributed_optimizer and t.overlap_grad_reduce):
        yield "overlap_param_gather needs use_distributed_optimizer and overlap_grad_reduce"
    lower = [
        name
        for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        if getattr(t, name) != "fp32"
    ]
    if lower and not t.use_precision_aware_optimizer:
        yield f"{' and '.join(lower)} other than fp32 need use_precision_aware_optimizer"
    if t.use_precision_aware_optimizer:
        if t.optimizer != "adam":
            yield f"use_precision_aware_optimizer needs optimizer=adam, not {t.optimizer}"
        if not t.use_distributed_optimizer:
            yield "use_precision_aware_optimizer needs use_distributed_optimizer"
    if t.main_grads_dtype == "bf16" and t.accumulate_allreduce_grads_in_fp32:
        yield "main_grads_dtype=bf16 conflicts with accumulate_allreduce_grads_in_fp32; drop one"
    if t.optimizer == "sgd" and t.use_distributed_optimizer:
        yield "optimizer=sgd does not work with use_distributed_optimizer; turn it off or use adam"


def other(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """Recompute, sequence parallelism, positions, hyper-connections."""
    t = training
    if layout.sequence_parallel and layout.tp == 1:
        yield "sequence_parallel needs tensor_model_parallel_size above 1; turn it off"
    if t.seq_length > (model.max_position_embeddings or t.seq_length) and model.position_embedding_type == "learned_absolute":
        yield f"seq_length={t.seq_length} is more than max_position_embeddings={model.max_position_embeddings}"
    if t.recompute_granularity == "selective" and t.recompute_method:
        yield "recompute_method belongs to recompute_granularity=full; drop it for selective"
    if t.recompute_granularity is None and (t.recompute_method or t.recompute_modules):
        yield "recompute_method and recompute_modules need recompute_granularity"
    if t.recompute_granularity == "full" and t.recompute_method == "uniform" and t.recompute_num_layers == 0:
        yield "recompute_num_layers=0 with recompute_method=uniform; use at least 1"
    if t.distribute_saved_activations and (t.recompute_granularity != "full" or layout.tp == 1 or layout.sequence_parallel):
        yield "distribute_saved_activations needs recompute_granularity=full, tensor_model_parallel_size above 1 and no sequence_parallel"
    if model.mtp and model.position_embedding_type == "learned_absolute":
        yield "mtp_num_layers needs position_embedding_type rope or none"
    if model.mtp and t.recompute_granularity == "full" and t.recompute_method != "block" and (t.recompute_num_layers or 1) != 1:
        yield "full uniform recomputation of MTP layers needs recompute_num_layers=1"
    if not t.te_spec and t.attention_kernel not in (None, "local"):
        yield f"transformer_impl=local has its own attention kernel, not {t.attention_kernel}; use attention_kernel=local"
    if t.te_spec and t.attention_kernel == "local":
        yield "attention_kernel=local needs transformer_impl=local"
    if not t.te_spec and t.moe_grouped_gemm and model.num_moe_experts:
        yield "moe_grouped_gemm needs transformer_impl=transformer_engine"
    if not t.te_spec and layout.cp > 1:
        yield f"context_parallel_size={layout.cp} needs transformer_impl=transformer_engine"


def schedule(model: Model, layout: Layout, num_microbatches: int) -> Iterator[str]:
    """Rules of the interleaved schedule."""
    if num_microbatches < 1:
        yield f"num_microbatches={num_microbatches} must be at least 1; raise global_batch_size"
        return
    text = layout.pipeline_model_parallel_layout
    vp = len(parse_layout(text)) // layout.pp if text else virtual_stages(model, layout)
    if vp == 1:
        return
    pp, group = layout.pp, layout.microbatch_group_size_per_vp_stage or layout.pp
    if not pp <= group <= num_microbatches:
        yield (
            f"microbatch_group_size_per_vp_stage={group} must lie between pipeline_model_parallel_size={pp} and "
            f"num_microbatches={num_microbatches}; raise global_batch_size or change it"
        )
    elif num_microbatches % group and num_microbatches % group < pp:
        yield (
            f"num_microbatches={num_microbatches} leaves {num_microbatches % group} after groups of {group}, fewer than "
            f"pipeline_model_parallel_size={pp}; use a multiple of {group}"
        )


def balanced_split(num_layers: int, pp: int, vp: int) -> tuple[int | None, int | None] | None:
    """First- and last-stage layer counts of the most balanced legal uneven split, or None.

    Most balanced: the smallest largest stage, then the largest smallest one; of equals, fewer layers on the first
    stage, where most microbatches are in flight, and as few counts as possible.
    """
    found: list[tuple[tuple[int, int, int, int], tuple[int | None, int | None]]] = []

    def offer(first: int | None, last: int | None, middle: int) -> None:
        a, b = middle if first is None else first, middle if last is None else last
        sizes = [a, b, *([middle] if pp > 2 else [])]
        if min(sizes) > 0:
            given = (first is not None) + (last is not None)
            found.append(((max(sizes), -min(sizes), a, given), (first, last)))

    for middle in range(vp, num_layers, vp):
        rest = num_layers - middle * (pp - 1)
        if rest > 0 and rest % vp == 0:
            offer(None, rest, middle)
            offer(rest, None, middle)
        both = num_layers - middle * (pp - 2)
        if pp > 2 and both > 0 and both % vp == 0:
            a = both // 2 // vp * vp
            offer(a, both - a, middle)
    return min(found)[1] if found else None


def layers_of_stages(model: Model, layout: Layout) -> list[int]:
    """Layers of each pipeline rank, for messages."""
    return [sum(row) for row in layers_per_chunk(model, layout, virtual_stages(model, layout))]
