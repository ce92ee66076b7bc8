"""Rules of recomputation (Megatron-LM `transformer_config.py`, `arguments.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from .sharding import TP
from .violation import Violation, broken

MOST_CHECKPOINTED = 1000


def checkpoints(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """The layers of one checkpoint are traced together: there is a most of them."""
    layers = training.recompute_num_layers or 1
    if training.recomputes_layers() and min(layers, model.num_layers) > MOST_CHECKPOINTED:
        most = f"more than {MOST_CHECKPOINTED} layers under one checkpoint, the most that is accepted"
        yield broken(f"{{recompute_num_layers}} puts {most}", {"recompute_num_layers": layers})


def recompute(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Settings of recomputation that exclude or need each other."""
    t = training
    if t.recompute_granularity == "selective" and t.recompute_method:
        yield broken("recompute_method belongs to recompute_granularity=full", fix="drop it for selective")
    if t.recomputes("moe_act") and not t.moe_grouped_gemm:
        yield broken(
            "recompute_modules moe_act needs moe_grouped_gemm",
            fix="turn it on, or leave moe_act out" if model.has_moe else "leave moe_act out",
        )
    if t.recompute_granularity == "full" and t.recompute_method == "uniform" and t.recompute_num_layers == 0:
        rule = "recompute_method=uniform needs recompute_num_layers of at least 1"
        yield broken(rule, said=f"{rule}, not {t.recompute_num_layers}")
    saved_whole = layout.tp == 1 or layout.sequence_parallel
    if t.distribute_saved_activations and (t.recompute_granularity != "full" or saved_whole):
        needs = f"recompute_granularity=full, {TP} above 1 and no sequence_parallel"
        yield broken(f"distribute_saved_activations needs {needs}")


def shared_experts(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Shared experts that run beside the dispatch are not recomputed."""
    if training.recomputes("shared_experts") and training.moe_shared_expert_overlap:
        yield broken("recompute_modules shared_experts excludes moe_shared_expert_overlap")


def uniform_mtp(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Every MTP depth is a checkpoint of its own."""
    t = training
    uniform = t.recompute_granularity == "full" and t.recompute_method != "block"
    if model.mtp and uniform and (t.recompute_num_layers or 1) != 1:
        rule = "full uniform recomputation of MTP layers needs recompute_num_layers=1"
        yield broken(rule, said=f"{rule}, not {t.recompute_num_layers}")
