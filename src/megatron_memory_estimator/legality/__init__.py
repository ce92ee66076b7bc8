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
from ..job.pipeline import interleaved
from ..job.training import Training
from ..modules.context import Context
from ..modules.kinds import rules_of
from ..rules import Violation, of_error, refusal
from .declared import declared_dims, refusals
from .experts import a2a_overlap, expert_modules, experts
from .grid import attention, degrees, world
from .layers import (
    activation_fusion,
    attention_variants,
    capped_logits,
    deterministic,
    hyper_connections,
    kernel_dtype,
    mtp_positions,
    narrow_values,
    own_modules,
    placed,
    positions,
    ruled,
    towers,
    transformer_impl,
    whole_layers,
    wide_norms,
    windows,
)
from .pipeline import balanced_split, even_layout, mtp_apart, pipeline, schedule, shared_indexers
from .precision import gpu, low_precision
from .training import (
    checkpoint_format,
    checkpoints,
    chunked_state,
    deferred_wgrads,
    dynamic_context,
    fully_sharded,
    graphs,
    offloading,
    optimizer,
    recompute,
    sequence_parallel,
    shared_experts,
    two_optimizers,
    uniform_mtp,
    weight_shards,
)

__all__ = [
    "Violation",
    "balanced_split",
    "beside_pipeline",
    "check",
    "declared_dims",
    "even_layout",
    "of_kinds",
    "pipeline_sides",
    "placed",
    "stated_violations",
    "violations",
]

Rules = Callable[[Model, Layout, Training], Iterator[Violation]]
PARTS: tuple[Rules, ...] = (attention, expert_modules, graphs, experts)
"""Rules of what a layer is made of, in the order in which they are reported."""


def of_kinds(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The rules of the kinds of layers that a model has."""
    for rule in rules_of(model):
        yield from rule(model, layout, training)


SWITCHES: tuple[Rules, ...] = (
    optimizer,
    low_precision,
    fully_sharded,
    weight_shards,
    dynamic_context,
    offloading,
    chunked_state,
    checkpoints,
    checkpoint_format,
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
    of_kinds,
    hyper_connections,
    whole_layers,
    ruled,
    activation_fusion,
    own_modules,
    wide_norms,
    narrow_values,
    capped_logits,
    windows,
    towers,
)
"""Rules between settings, in the order in which they are reported."""


def check(context: Context, machine: Gpu, num_microbatches: int, *, declared: bool = True) -> None:
    """Raise LayoutError with every violated rule, or UnsupportedError for what is legal and not modelled, or return.

    Without `declared` no unit is declared to see whether it can be.
    """
    model, layout, training = context.model, context.layout, context.training
    stated = stated_violations(model, layout, training, num_microbatches)
    stops = tuple(refusals(context)) if declared and not stated else ()
    dims = [one for error in stops if isinstance(error, LayoutError) for one in of_error(error)]
    found = (*(stated or dict.fromkeys(dims)), *gpu(training, machine))
    if found:
        raise refusal(*found)
    for error in stops:
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
    return _of((*SWITCHES, *PARTS), model, layout, training)


def pipeline_sides(model: Model, layout: Layout) -> tuple[bool, bool]:
    """Whether there are several stages, and several chunks of one."""
    return layout.pp > 1, interleaved(model, layout)


def _of(rules: tuple[Rules, ...], model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    for one in rules:
        yield from one(model, layout, training)
