"""How the figures of layouts are found: which feature of a training needs which way.

There are four ways to the same numbers: ints (`estimate`, one explained layout), and three of the planner, the fastest first:

tables          units are traced once on arrays of degrees and added up by forms of the schedule: what a table holds is all there is
arrays          whole ranks with arrays as degrees, a batch for each pipeline and number of microbatches
one at a time   `estimate` itself
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ...dataclass import dataclass
from ...job.model import Model
from ...job.training import Training
from ...states.optimizers import OPTIMIZERS

Route = Literal["tables", "arrays", "one at a time"]


@dataclass(frozen=True)
class Feature:
    """A feature of a training that the tables do not hold, the fastest route that does, and why."""

    name: str
    on: Callable[[Training], bool]
    route: Route
    why: str


FEATURES = (
    Feature(
        "use_megatron_fsdp",
        lambda t: t.use_megatron_fsdp,
        "arrays",
        "whole tensors stand beside the unit that runs, and state is sharded by strategies of its own",
    ),
    Feature(
        "use_torch_fsdp2",
        lambda t: t.use_torch_fsdp2,
        "arrays",
        "whole tensors stand beside the unit that runs, and state is sharded by unit",
    ),
    Feature(
        "peft",
        lambda t: t.peft != "none",
        "arrays",
        "frozen weights stand beside the DDP buffers, and parts without adapters have no backward",
    ),
    Feature(
        "cuda_graph_impl",
        lambda t: t.cuda_graph_impl != "none",
        "arrays",
        "graphs keep pools of their own, and their capture is one more moment",
    ),
    Feature(
        "overlap_moe_expert_parallel_comm",
        lambda t: t.overlap_moe_expert_parallel_comm,
        "arrays",
        "a forward and a backward run at a time, and their events meet",
    ),
    Feature(
        "create_attention_mask_in_dataloader with transformer_impl=local",
        lambda t: t.create_attention_mask_in_dataloader and not t.te_spec,
        "arrays",
        "chunks that read no inputs make masks of their own",
    ),
    Feature(
        "moe_paged_stash",
        lambda t: t.moe_paged_stash,
        "arrays",
        "the size of the stash is that of the most microbatches in flight",
    ),
    Feature(
        "defer_embedding_wgrad_compute",
        lambda t: t.defer_embedding_wgrad_compute,
        "arrays",
        "inputs of the output layer are kept for as many microbatches as are deferred",
    ),
    Feature(
        "cpu_offloading_num_layers",
        lambda t: bool(t.cpu_offloading_num_layers),
        "arrays",
        "tensors on their way to host memory stand beside the layer that runs",
    ),
    Feature(
        "fine_grained_activation_offloading",
        lambda t: t.fine_grained_activation_offloading,
        "one at a time",
        "the size of a tensor decides whether it is offloaded",
    ),
    Feature(
        "optimizer of matrices",
        lambda t: OPTIMIZERS[t.optimizer].by_matrix,
        "one at a time",
        "the sizes of parameters decide which rank owns them",
    ),
)
"""What takes a slower route than the tables. Every feature that is not named here is held by them."""


def route(training: Training, model: Model) -> Route:
    """The fastest route that holds every feature of a training, and of a model.

    With attention residuals what crosses the border of a stage depends on which layer stands there: whole ranks.
    """
    taken = {feature.route for feature in FEATURES if feature.on(training)}
    if model.stream == "bank":
        taken.add("arrays")
    return "one at a time" if "one at a time" in taken else "arrays" if "arrays" in taken else "tables"
