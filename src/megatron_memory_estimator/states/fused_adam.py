"""Adam with its state in host memory, or in the dtypes of the precision-aware optimizer.

Source: TransformerEngine `pytorch/optimizers/fused_adam.py`; Megatron-LM `megatron/core/optimizer/optimizer_config.py`,
`cpu_offloading/hybrid_optimizer.py`, `distrib_optimizer.py`.
"""

from __future__ import annotations

from ..modules.context import Context
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
