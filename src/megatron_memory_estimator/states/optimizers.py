"""One row per optimizer: what it keeps for the elements that a rank owns, and what it works with.

A new optimizer is a row in `OPTIMIZERS`, and its name in the choices of `Training.optimizer`.

Source: Megatron-LM `megatron/core/optimizer/__init__.py` (_get_megatron_optimizer_based_on_param_groups), `distrib_optimizer.py`
(optimizer_state_keys), `emerging_optimizers.py`.

Adam with its state in host memory, or in the dtypes of the precision-aware optimizer.

Source: TransformerEngine `pytorch/optimizers/fused_adam.py`; Megatron-LM `megatron/core/optimizer/optimizer_config.py`,
`cpu_offloading/hybrid_optimizer.py`, `distrib_optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..job.training import Training
from ..modules.context import Context
from ..tape.tensor import whole_below
from .fsdp import active
from .kept import Kept, Owned


def offloaded(c: Context, buffer: Owned) -> list[Kept]:
    """What stays on the GPU with an offloaded optimizer: fp32 masters and moments of the rest, whatever dtypes are asked for.

    Without the precision-aware optimizer (Megatron-LM's arguments demand it, Megatron-Bridge does not) the optimizer is built on
    Megatron's fp32 masters: all of them stay, and offloading moves the moments only. Whole parameters are taken in order until
    the fraction is reached; the split is modelled at the fraction itself.
    Source: Megatron-LM `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py`, `distrib_optimizer.py`.
    """
    rest = buffer.owned - buffer.offloaded
    masters = rest if c.training.use_precision_aware_optimizer else buffer.owned
    found = [
        Kept("main_param", "fp32", masters, "setup"),
        Kept("exp_avg", "fp32", rest, "first step"),
        Kept("exp_avg_sq", "fp32", rest, "first step"),
    ]
    if buffer.grad_dtype != "fp32":
        found.append(Kept("fp32 copy of gradients", "fp32", masters, "step", saved=False))
    return [kept for kept in found if not isinstance(kept.numel, int) or kept.numel]


def megatron_masters(c: Context) -> bool:
    """Whether Megatron keeps the precision-aware optimizer's fp32 masters instead of TransformerEngine's FusedAdam.

    An fp8 recipe other than delayed does it, set or not used.
    Source: Megatron-LM `megatron/core/optimizer/optimizer_config.py` (use_precision_aware_optimizer_no_fp8_or_ds_fp8).
    """
    return c.training.fp8_recipe != "delayed" and c.training.main_params_dtype == "fp32"


def precision_aware(c: Context, buffer: Owned) -> list[Kept]:
    """TransformerEngine FusedAdam owns masters and moments; bf16 weights may keep only the low 16 bits of the master.

    With an fp8 recipe other than delayed (set, whether fp8 is on or not) and fp32 masters, Megatron keeps the masters and
    hands over fp32 gradients. Masters or moments in other dtypes are unscaled to fp32 copies during the step; two bf16
    moments are fused since TransformerEngine 2.13.
    Source: Megatron-LM `megatron/core/optimizer/optimizer_config.py` (use_precision_aware_optimizer_no_fp8_or_ds_fp8);
    TransformerEngine `pytorch/optimizers/fused_adam.py`.
    """
    t, owned = c.training, buffer.owned
    found: list[Kept] = []
    core = active(c) or megatron_masters(c)
    remainder = (
        not core
        and t.store_param_remainders
        and t.te >= (2, 1)
        and buffer.param_dtype == "bf16"
        and not active(c)
        and t.main_params_dtype == "fp32"
    )
    if core and buffer.grad_dtype != "fp32" and not active(c):
        found.append(Kept("fp32 copy of gradients", "fp32", owned, "step", saved=False))
    if t.params_dtype != "fp32" and not (core and buffer.param_dtype == "fp32"):
        name, dtype = ("main_param remainder", "int16") if remainder else ("main_param", t.main_params_dtype)
        found.append(Kept(name, dtype, owned, "setup" if core else "first step"))
    moments = (("exp_avg", t.exp_avg_dtype), ("exp_avg_sq", t.exp_avg_sq_dtype))
    found.extend(Kept(name, dtype, owned, "first step") for name, dtype in moments)
    fused = t.exp_avg_dtype == t.exp_avg_sq_dtype == "bf16" and t.te >= (2, 13)
    unscaled = [name for name, dtype in moments if dtype != "fp32" and not fused]
    if not remainder and t.main_params_dtype == "fp16":
        unscaled.append("main_param")
    found.extend(Kept(f"{name} unscaled", "fp32", owned, "optimizer", saved=False) for name in unscaled)
    return found


class Optimizer(NamedTuple):
    """An optimizer.

    moments          what it keeps beside fp32 main parameters
    by_matrix        whether it updates whole matrices, which are dealt to ranks instead of sharded
    precision_aware  what it keeps where it owns its state in any dtypes (use_precision_aware_optimizer), if it can
    offloaded        what stays on the GPU where the rest is in host memory (optimizer_cpu_offload), if it can be
    distributed      whether it works with use_distributed_optimizer
    fully_sharded    whether it works with use_megatron_fsdp
    fused            whether exp_avg and exp_avg_sq are TransformerEngine's FusedAdam's, which copies what is loaded; others keep it
    unmodelled       what of its step is not modelled, as a warning
    """

    moments: Callable[[Training, Owned], Iterator[Kept]]
    by_matrix: bool = False
    precision_aware: Callable[[Context, Owned], list[Kept]] | None = None
    offloaded: Callable[[Context, Owned], list[Kept]] | None = None
    distributed: bool = True
    fully_sharded: bool = False
    fused: bool = False
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
    "adam": Optimizer(_adam, precision_aware=precision_aware, offloaded=offloaded, fully_sharded=True, fused=True),
    "sgd": Optimizer(_sgd, distributed=False, fully_sharded=True),
    "muon": Optimizer(
        _muon,
        by_matrix=True,
        fused=True,
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


def in_host_memory(c: Context, tensors: list[Kept]) -> list[Kept]:
    """What `chunked_optimizer_state_offload` has in host memory between steps, of what the optimizer keeps.

    Source: Megatron-LM `dev`, `megatron/training/arguments.py` (chunked_optimizer_state_offload): moments and fp32 main parameters.
    """
    t = c.training
    if not t.chunked_optimizer_state_offload:
        return []
    share = t.optimizer_state_offload_fraction
    return [one._replace(numel=whole_below(one.numel * share)) for one in tensors if one.saved]


def between_steps(c: Context, tensors: list[Kept]) -> list[Kept]:
    """What is on the GPU of what the optimizer keeps: without what is in host memory between steps, whose main parameters come back whole
    for the step (the moments: `state.chunks_of_moments`)."""
    away = {one.name: one.numel for one in in_host_memory(c, tensors)}
    if not away:
        return tensors
    rest = (one._replace(numel=one.numel - away.get(one.name, 0)) for one in tensors)
    back = (one._replace(since="optimizer", saved=False) for one in in_host_memory(c, tensors) if one.main)
    return [one for one in (*rest, *back) if not isinstance(one.numel, int) or one.numel]


def beside_torch_format(t: Training) -> list[str]:
    """What of a training a load and a save of `--ckpt-format torch` are not modelled with, in words."""
    others = {
        "optimizer_cpu_offload": t.optimizer_cpu_offload,
        f"optimizer={t.optimizer}": OPTIMIZERS[t.optimizer].by_matrix,
        "weights in low precision": t.low_precision_weights,
        "chunked_optimizer_state_offload": t.chunked_optimizer_state_offload,
    }
    return [name for name, on in others.items() if on]
