"""What is declared divides over the ranks that share it, and what does not is refused, never floored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.legality import beside_pipeline
from megatron_memory_estimator.legality.declared import Declared, declared_dims, declared_units
from megatron_memory_estimator.legality.grid import world
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.modules.layers import layer_unit, mtp_unit
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.tensor import Dim, Param, tensor

from .helpers import SWEEP
from .test_hf_models import COUNTS

MODELS = [name for name in COUNTS if not load(name).refusal]
DEGREES = [
    (tp, cp, ep, etp)
    for tp, cp, ep, etp in product((1, 2, 3, 4, 5, 6, 8, 16), (1, 2, 3), (1, 4, 8), (1, 2))
    if etp <= tp
]


def test_a_dim_that_does_not_divide_is_refused() -> None:
    assert Dim("rows", 12, ("tp",), 4).local == 3
    with pytest.raises(LayoutError, match=r"^rows=10 is not divisible by tp=3; use 1, 2, 5 or 10 \[declared-dim\]$"):
        _ = Dim("rows", 10, ("tp",), 3).local
    with pytest.raises(LayoutError):
        tensor("x", (Dim("rows", 10, ("tp",), 3),))
    with pytest.raises(LayoutError):
        _ = Param("w", (Dim("rows", 10, ("tp", "cp"), 4),)).numel


def layouts(base: TrainingJob) -> Iterator[Layout]:
    for tp, cp, ep, etp in DEGREES:
        world_size = tp * cp * ep * etp
        layout = dataclasses.replace(
            base.layout, world_size=world_size, tensor_model_parallel_size=tp, context_parallel_size=cp,
            expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, sequence_parallel=tp > 1,
        )  # fmt: skip
        if not any(world(base.model, layout)):
            yield layout


def test_every_dim_that_a_legal_layout_declares_divides() -> None:
    """Bundled models under the rules that have sentences of their own: the rule of declared dims finds nothing that they miss."""
    legal = refused = 0
    models = MODELS if SWEEP else MODELS[::5]
    for name in models:
        base = TrainingJob.from_hf(name, 1, tensor_model_parallel_size=1, seq_length=5040 * 2)
        for layout in layouts(base):
            missed = tuple(declared_dims(base.model, layout, base.training))
            if any(beside_pipeline(base.model, layout, base.training)):
                refused += bool(missed)
                continue
            legal += 1
            assert not missed, (name, layout)
    assert len(MODELS) >= 54
    assert legal >= (2707 if SWEEP else 500)
    assert refused > (100 if SWEEP else 10)


def test_a_parameter_is_named_where_it_does_not_divide() -> None:
    """A layout that no other rule has seen: 14,336 columns over 3 ranks."""
    job = TrainingJob.from_hf("meta-llama/Meta-Llama-3-8B", 1, seq_length=3072)
    layout = dataclasses.replace(job.layout, world_size=3, tensor_model_parallel_size=3, sequence_parallel=True)
    found = [one.text for one in declared_dims(job.model, layout, job.training)]
    assert "in self_attention.linear_proj.weight" in found[0]
    assert "heads*kv_channels=4096 is not divisible by tp=3" in found[0]


@pytest.mark.parametrize("name", MODELS[:4])
def test_ops_and_parameters_of_a_layer_have_whole_shares(name: str) -> None:
    job = TrainingJob.from_hf(name, 8, tensor_model_parallel_size=2, sequence_parallel=True)
    c = Context(job.model, job.layout, job.training, job.kernel)
    units = [layer_unit(c, kind) for kind in dict.fromkeys(job.model.kinds)]
    units += [mtp_unit(c, owns_embedding=True)] if job.model.mtp else []
    dims = [dim for unit in units for p in unit.params for dim in p.shape]
    dims += [
        dim for unit in units for op in flattened(unit.unit.items) for t in (*op.reads, *op.writes) for dim in t.shape
    ]
    assert dims
    assert all(dim.local * dim.ways == dim.size for dim in dims)


@pytest.mark.parametrize("name", MODELS)
def test_only_routed_experts_are_sharded_over_expert_parallelism(name: str) -> None:
    """The planner asks everything else once for every tp and cp."""
    job = TrainingJob.from_hf(name, 16)
    narrow = dataclasses.replace(job.layout, tensor_model_parallel_size=1)
    wide = dataclasses.replace(narrow, expert_model_parallel_size=4, expert_tensor_parallel_size=2)

    def shapes(unit: Declared, layout: Layout) -> list[object]:
        found = unit.declare(Context(job.model, layout, job.training, job.kernel))
        ops = [(op.name, t.name, t.shape) for op in flattened(found.unit.items) for t in (*op.reads, *op.writes)]
        return [*((p.name, p.shape, p.copies) for p in found.params), *ops]

    for unit in declared_units(job.model):
        assert (shapes(unit, narrow) == shapes(unit, wide)) is not unit.routed, unit.name
