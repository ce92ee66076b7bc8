"""One row per optimizer: what it keeps for the elements that a rank owns, and what it works with.

A new optimizer is a row in `OPTIMIZERS`, and its name in the choices of `Training.optimizer`.

Source: Megatron-LM `megatron/core/optimizer/__init__.py` (_get_megatron_optimizer_based_on_param_groups), `distrib_optimizer.py`
(optimizer_state_keys), `emerging_optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..job.training import Training
from ..modules.context import Context
from .fused_adam import offloaded, precision_aware
from .kept import Kept, Owned


class Optimizer(NamedTuple):
    """An optimizer.

    moments          what it keeps beside fp32 main parameters
    by_matrix        whether it updates whole matrices, which are dealt to ranks instead of sharded
    precision_aware  what it keeps where it owns its state in any dtypes (use_precision_aware_optimizer), if it can
    offloaded        what stays on the GPU where the rest is in host memory (optimizer_cpu_offload), if it can be
    distributed      whether it works with use_distributed_optimizer
    fully_sharded    whether it works with use_megatron_fsdp
    unmodelled       what of its step is not modelled, as a warning
    """

    moments: Callable[[Training, Owned], Iterator[Kept]]
    by_matrix: bool = False
    precision_aware: Callable[[Context, Owned], list[Kept]] | None = None
    offloaded: Callable[[Context, Owned], list[Kept]] | None = None
    distributed: bool = True
    fully_sharded: bool = False
    unmodelled: str = ""


def _adam(t: Training, buffer: Owned) -> Iterator[Kept]:
    yield Kept("exp_avg", "fp32", buffer.owned, "first step")
    yield Kept("exp_avg_sq", "fp32", buffer.owned, "first step")


def _sgd(t: Training, buffer: Owned) -> Iterator[Kept]:
    if t.sgd_momentum:
        yield Kept("momentum_buffer", "fp32", buffer.owned, "first step")


def _lion(t: Training, buffer: Owned) -> Iterator[Kept]:
    yield Kept("exp_avg", "fp32", buffer.owned, "first step")


def _muon(t: Training, buffer: Owned) -> Iterator[Kept]:
    """Momentum for matrices, Adam's moments for the rest."""
    rest = buffer.owned - buffer.owned_matrices
    if buffer.owned_matrices:
        yield Kept("muon momentum_buffer", "fp32", buffer.owned_matrices, "first step")
    if rest:
        yield Kept("exp_avg", "fp32", rest, "first step")
        yield Kept("exp_avg_sq", "fp32", rest, "first step")


OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(_adam, precision_aware=precision_aware, offloaded=offloaded, fully_sharded=True),
    "sgd": Optimizer(_sgd, distributed=False, fully_sharded=True),
    "muon": Optimizer(
        _muon,
        by_matrix=True,
        unmodelled="scratch of Muon's Newton-Schulz iterations in the optimizer step is not modelled",
    ),
    "lion": Optimizer(_lion, unmodelled="scratch of Lion's update in the optimizer step is not modelled"),
}


def optimizer_tensors(c: Context, buffer: Owned) -> list[Kept]:
    """What the optimizer keeps for the elements that this rank owns."""
    t = c.training
    row = OPTIMIZERS[t.optimizer]
    if t.optimizer_cpu_offload and row.offloaded:
        return row.offloaded(c, buffer)
    if t.use_precision_aware_optimizer and row.precision_aware:
        return row.precision_aware(c, buffer)
    found: list[Kept] = []
    if buffer.grad_dtype != "fp32":
        found.append(Kept("fp32 copy of gradients", "fp32", buffer.owned, "step", saved=False))
    if buffer.param_dtype != "fp32" and not (t.use_megatron_fsdp and t.megatron_fsdp_main_params_dtype == "auto"):
        found.append(Kept("main_param", "fp32", buffer.owned, "setup"))
    return [*found, *row.moments(t, buffer)]
