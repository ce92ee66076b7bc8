"""Rules of fp8 and fp4, and of kernels that need a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.hardware import Gpu
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import Violation, always, broken, broken_if
from ..wording import any_of

LEAST_CAPABILITY = {"delayed": (8, 9), "tensorwise": (8, 9), "blockwise": (9, 0), "mxfp8": (10, 0), "nvfp4": (10, 0)}
"""Compute capability from which on a GPU's tensor cores have a recipe."""
WITHOUT_MXFP8 = (12, 0)
"""Compute capability from which on TransformerEngine has no mxfp8 yet (2.20.2 `pytorch/quantization.py`, _compute_mxfp8_support)."""
FP8_RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
BF16_ENDS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
LINEAR_LOSS = 10
"""The major compute capability of the kernel that is output layer and cross entropy."""
SPARSE_KERNELS = (9, 0)
"""The least compute capability of cuDNN's and FlashMLA's sparse attention."""


def low_precision(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What fp8 and fp4 need and exclude."""
    t = training
    gathered = t.fp8_param_gather or t.use_megatron_fsdp
    yield from broken_if(
        (
            (t.fp8 and t.fp4, "fp8-or-fp4"),
            (t.fp8_param_gather and not t.fp8, "fp8-param-gather-needs-fp8"),
            (t.reuse_grad_buf_for_mxfp8_param_ag and not gathered, "reused-gradients-need-param-gather"),
            (t.fp4_param_gather and not t.fp4, "fp4-param-gather-needs-fp4"),
        )
    )
    if t.low_precision:
        yield from _recipe(training, "fp4" if t.fp4 else "fp8")
    if t.fp8 and t.first_last_layers_bf16:
        most = model.num_layers // layout.pp
        for setting in BF16_ENDS:
            if getattr(t, setting) > most:
                yield broken("bf16-ends-above-a-stage", setting=(setting, getattr(t, setting)), most=most)


def _recipe(training: Training, name: str) -> Iterator[Violation]:
    t = training
    if not t.te_spec:
        yield broken("low-precision-needs-te", precision=name)
    if t.params_dtype == "fp32":
        yield from _of_wide_weights(training, name)
    if t.low_precision_weights and not t.use_distributed_optimizer:
        yield broken("param-gather-needs-distributed-optimizer", precision=name)
    if t.disable_parameter_transpose_cache and not (t.low_precision_weights or t.use_torch_fsdp2):
        yield broken("no-transpose-cache-without-param-gather", precision=name)
    reused = t.reuse_grad_buf_for_mxfp8_param_ag or t.use_megatron_fsdp
    delayed = t.low_precision == "delayed"
    yield from broken_if(
        (
            (t.low_precision_weights and t.low_precision == "mxfp8" and not reused, "mxfp8-param-gather-needs-reuse"),
            (delayed and t.first_last_layers_bf16, "bf16-ends-with-delayed"),
        )
    )
    for module in ("moe_act", "layernorm") if delayed else ():
        if t.recomputes(module):
            yield broken("recomputed-with-delayed", module=module)
    if t.fp8_dot_product_attention and t.attention_kernel not in (None, "cudnn"):
        yield broken("fp8-attention-needs-cudnn", attention_kernel=t.attention_kernel)
    for setting in BF16_ENDS:
        if getattr(t, setting) < 0:
            yield broken("negative", setting=(setting, getattr(t, setting)))


def _of_wide_weights(training: Training, name: str) -> Iterator[Violation]:
    """fp8 GEMMs read fp32 operands and write fp32 results (TransformerEngine `pytorch/module/linear.py`: such biases are cast to bf16);
    Hadamard transforms of nvfp4 (`pytorch/tensor/nvfp4_tensor.py`), fused experts and fp8 attention are for 16 bits."""
    t = training
    yield from broken_if(
        (
            (name == "fp4", "fp4-in-fp32"),
            (t.low_precision_weights and name == "fp8", "fp8-param-gather-in-fp32"),
            (t.fp8_dot_product_attention, "fp8-attention-in-fp32"),
            (t.use_transformer_engine_op_fuser, "op-fuser-with-fp8-in-fp32"),
        )
    )


def has_recipe(training: Training, machine: Gpu) -> bool:
    """Whether the tensor cores of a GPU have the run's fp8 or fp4 recipe, if there is one."""
    recipe = training.low_precision
    return not recipe or has(recipe, machine)


def has(recipe: str, machine: Gpu) -> bool:
    """Whether the tensor cores of a GPU have a recipe."""
    return LEAST_CAPABILITY[recipe] <= machine.capability and (recipe != "mxfp8" or machine.capability < WITHOUT_MXFP8)


def gpu(training: Training, machine: Gpu) -> Iterator[Violation]:
    """A recipe needs a GPU whose tensor cores have it, and a kernel one that it was written for."""
    recipe = training.low_precision
    its = {"gpu": always(machine.name), "has": always("{}.{}".format(*machine.capability))}
    if training.dsa_kernel_backend == "cudnn" and machine.capability < SPARSE_KERNELS:
        yield broken("cudnn-sparse-attention-needs-gpu", {"needs": always("{}.{}".format(*SPARSE_KERNELS)), **its})
    if training.linear_loss and machine.capability[0] != LINEAR_LOSS:
        yield broken("linear-loss-needs-gpu", its)
    if recipe and not has_recipe(training, machine):
        needs = "{}.{} or above".format(*LEAST_CAPABILITY[recipe])
        others = [other for other in FP8_RECIPES if has(other, machine)]
        if machine.capability >= LEAST_CAPABILITY[recipe]:
            needs += " and below {}.{}".format(*WITHOUT_MXFP8)
        setting = ("fp4", training.fp4) if training.fp4 else ("fp8_recipe", recipe)
        fix = (
            f"use {any_of(others)}" if others and not training.fp4 else f"leave {'fp4' if training.fp4 else 'fp8'} out"
        )
        yield broken("recipe-needs-gpu", {"setting": setting, "needs": always(needs), **its, "fix": fix})
