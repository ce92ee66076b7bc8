"""Rules of Megatron-Core that a layout and its settings must keep; each violation is one sentence with a fix.

Sources: Megatron-LM `megatron/training/arguments.py` (validate_args), `megatron/core/transformer/transformer_config.py`,
`megatron/core/parallel_state.py`, `megatron/core/model_parallel_config.py`, `megatron/core/optimizer/optimizer_config.py`,
`megatron/core/pipeline_parallel/schedules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import LayoutError
from ..job.hardware import Gpu
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from .bridge_layers import attention_residuals, falcon_h1, gemma4_dense, gemma4_moe
from .bridge_modules import activation_fusion, capped_logits, narrow_values, own_modules, wide_norms
from .compressed import compressed_attention, hash_layers, hyper_connections, placed
from .dims import declared_dims, refusals, undivided
from .experts import expert_modules, experts
from .graphs import graphs
from .kernels import (
    attention_variants,
    deterministic,
    kernel_dtype,
    mtp_positions,
    positions,
    transformer_impl,
    whole_layers,
    windows,
)
from .offloading import offloading
from .optimizer import fully_sharded, optimizer
from .overlap import a2a_overlap, deferred_wgrads, interleaved, sequence_parallel, two_optimizers
from .precision import gpu, low_precision
from .recompute import checkpoints, recompute, shared_experts, uniform_mtp
from .sharding import attention, world
from .splits import balanced_split, even_layout
from .stages import mtp_apart, pipeline, schedule, shared_indexers
from .towers import towers
from .violation import Violation, broken

__all__ = [
    "Violation",
    "balanced_split",
    "beside_pipeline",
    "check",
    "declared_dims",
    "even_layout",
    "pipeline_sides",
    "placed",
    "stated_violations",
    "violations",
]

Rules = Callable[[Model, Layout, Training], Iterator[Violation]]
PARTS: tuple[Rules, ...] = (attention, expert_modules, graphs, experts)
"""Rules of what a layer is made of, in the order in which they are reported."""
SWITCHES: tuple[Rules, ...] = (
    optimizer,
    low_precision,
    fully_sharded,
    offloading,
    checkpoints,
    sequence_parallel,
    positions,
    recompute,
    deferred_wgrads,
    two_optimizers,
    mtp_positions,
    kernel_dtype,
    shared_experts,
    deterministic,
    attention_variants,
    a2a_overlap,
    uniform_mtp,
    transformer_impl,
    compressed_attention,
    hash_layers,
    hyper_connections,
    whole_layers,
    falcon_h1,
    gemma4_moe,
    gemma4_dense,
    attention_residuals,
    activation_fusion,
    own_modules,
    wide_norms,
    narrow_values,
    capped_logits,
    windows,
    towers,
)
"""Rules between settings, in the order in which they are reported."""
MOST: dict[str, int] = {"pipeline_model_parallel_size": 4096, "microbatch_group_size_per_vp_stage": 65536}
"""The most that is accepted: what is made of them grows with them."""
DEGREES = (
    "world_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "num_layers_per_virtual_pipeline_stage",
    "microbatch_group_size_per_vp_stage",
    "num_distributed_optimizer_instances",
)
"""Numbers of a layout that are at least 1."""


def check(context: Context, machine: Gpu, num_microbatches: int) -> None:
    """Raise LayoutError with every violated rule, or UnsupportedError for what is legal and not modelled, or return."""
    model, layout, training = context.model, context.layout, context.training
    stated = stated_violations(model, layout, training, num_microbatches)
    declared = () if stated else tuple(refusals(context))
    dims = [one for error in declared if isinstance(error, LayoutError) for one in undivided(error)]
    found = (*(stated or dict.fromkeys(dims)), *gpu(training, machine))
    if found:
        raise LayoutError(tuple(one.text for one in found), tuple(one.rule for one in found))
    for error in declared:
        raise error


def violations(model: Model, layout: Layout, training: Training, num_microbatches: int) -> tuple[Violation, ...]:
    """One violation per violated rule; empty for a legal run."""
    stated = stated_violations(model, layout, training, num_microbatches)
    return stated or tuple(dict.fromkeys(declared_dims(model, layout, training)))


def stated_violations(model: Model, layout: Layout, training: Training, num_microbatches: int) -> tuple[Violation, ...]:
    """The same of the rules that have a sentence of their own: all but that what is declared must divide."""
    wrong = tuple(degrees(layout))
    if wrong:
        return wrong
    found = [
        *world(model, layout),
        *_of(PARTS, model, layout, training),
        *pipeline(model, layout, overlap_p2p_comm=training.overlap_p2p_comm, mcore=training.mcore),
        *_of(SWITCHES, model, layout, training),
    ]
    if not found:
        found += [*schedule(model, layout, num_microbatches), *shared_indexers(model, layout)]
        found += mtp_apart(model, layout)
        found += placed(model, layout)
    return tuple(dict.fromkeys(found))


def beside_pipeline(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The violated rules that see of the pipeline only whether it has stages and chunks (`pipeline_sides`), and not the GPUs."""
    return _of((*PARTS, *SWITCHES), model, layout, training)


def pipeline_sides(model: Model, layout: Layout) -> tuple[bool, bool]:
    """Whether there are several stages, and several chunks of one."""
    return layout.pp > 1, interleaved(model, layout)


def _of(rules: tuple[Rules, ...], model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    for one in rules:
        yield from one(model, layout, training)


def degrees(layout: Layout) -> Iterator[Violation]:
    """Every degree is at least 1, and none too large."""
    for name in DEGREES:
        value = getattr(layout, name)
        shown = "num_gpus" if name == "world_size" else name
        if value is not None and value < 1:
            yield broken(f"{{{shown}}} must be at least 1", {shown: value})
    for name, most in MOST.items():
        if (getattr(layout, name) or 1) > most:
            yield broken(f"{{{name}}} is more than {most}, the most that is accepted", {name: getattr(layout, name)})
