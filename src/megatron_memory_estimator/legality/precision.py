"""Rules of fp8 and fp4 (Megatron-LM `arguments.py`, `transformer_config.py`; TransformerEngine `pytorch/quantization.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.hardware import Gpu
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..wording import any_of
from .violation import Violation, broken

LEAST_CAPABILITY = {"delayed": (8, 9), "tensorwise": (8, 9), "blockwise": (9, 0), "mxfp8": (10, 0), "nvfp4": (10, 0)}
"""Compute capability from which on a GPU's tensor cores have a recipe."""
FP8_RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")


def low_precision(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What fp8 and fp4 need and exclude."""
    t = training
    if t.fp8 and t.fp4:
        yield broken("fp8 and fp4 exclude each other", fix="give one")
    if t.fp8_param_gather and not t.fp8:
        yield broken("fp8_param_gather needs fp8")
    if t.reuse_grad_buf_for_mxfp8_param_ag and not (t.fp8_param_gather or t.use_megatron_fsdp):
        yield broken("reuse_grad_buf_for_mxfp8_param_ag needs fp8_param_gather")
    if t.fp4_param_gather and not t.fp4:
        yield broken("fp4_param_gather needs fp4")
    if t.low_precision:
        yield from _recipe(training, "fp4" if t.fp4 else "fp8")


def _recipe(training: Training, name: str) -> Iterator[Violation]:
    t = training
    if not t.te_spec:
        yield broken(f"{name} needs transformer_impl=transformer_engine")
    if t.params_dtype == "fp32":
        yield from _of_wide_weights(training, name)
    if t.low_precision_weights and not t.use_distributed_optimizer:
        yield broken(f"{name}_param_gather needs use_distributed_optimizer")
    if t.disable_parameter_transpose_cache and not (t.low_precision_weights or t.use_torch_fsdp2):
        rule = f"disable_parameter_transpose_cache with {name} and without {name}_param_gather is not modelled"
        yield broken(f"{rule}: every microbatch in flight keeps quantized weights of its own")
    reused = t.reuse_grad_buf_for_mxfp8_param_ag or t.use_megatron_fsdp
    if t.low_precision_weights and t.low_precision == "mxfp8" and not reused:
        yield broken("fp8_param_gather with fp8_recipe=mxfp8 needs reuse_grad_buf_for_mxfp8_param_ag")
    if t.low_precision == "delayed":
        if t.first_last_layers_bf16:
            yield broken("first_last_layers_bf16 does not work with fp8_recipe=delayed")
        for module in ("moe_act", "layernorm"):
            if t.recomputes(module):
                yield broken(f"recompute_modules {module} does not work with fp8_recipe=delayed")
    if t.fp8_dot_product_attention and t.attention_kernel not in (None, "cudnn"):
        yield broken(f"fp8_dot_product_attention needs attention_kernel=cudnn, not {t.attention_kernel}")
    for setting in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        if getattr(t, setting) < 0:
            yield broken(f"{{{setting}}} must not be negative", {setting: getattr(t, setting)})


def _of_wide_weights(training: Training, name: str) -> Iterator[Violation]:
    """fp8 GEMMs read fp32 operands and write fp32 results (TransformerEngine `pytorch/module/linear.py`: such biases are cast to bf16);
    Hadamard transforms of nvfp4 (`pytorch/tensor/nvfp4_tensor.py`), fused experts and fp8 attention are for 16 bits."""
    t = training
    if name == "fp4":
        yield broken("fp4 needs params_dtype bf16 or fp16")
    if t.low_precision_weights and name == "fp8":
        yield broken("fp8_param_gather with params_dtype=fp32 is not modelled", fix="use bf16")
    if t.fp8_dot_product_attention:
        yield broken("fp8_dot_product_attention needs params_dtype bf16 or fp16")
    if t.use_transformer_engine_op_fuser:
        yield broken("use_transformer_engine_op_fuser with fp8 needs params_dtype bf16 or fp16")


SPARSE_KERNELS = (9, 0)
"""The least compute capability of cuDNN's and FlashMLA's sparse attention."""


def has_recipe(training: Training, machine: Gpu) -> bool:
    """Whether the tensor cores of a GPU have the run's fp8 or fp4 recipe, if there is one."""
    recipe = training.low_precision
    return not recipe or machine.capability >= LEAST_CAPABILITY[recipe]


def gpu(training: Training, machine: Gpu) -> Iterator[Violation]:
    """A recipe needs a GPU whose tensor cores have it, and a kernel one that it was written for."""
    recipe = training.low_precision
    if training.dsa_kernel_backend == "cudnn" and machine.capability < SPARSE_KERNELS:
        major, minor = SPARSE_KERNELS
        rule = f"dsa_kernel_backend=cudnn needs a GPU of compute capability {major}.{minor} or above"
        yield broken(
            rule, said=f"{rule}, and {machine.name} has {machine.capability[0]}.{machine.capability[1]}", fix="use none"
        )
    if recipe and not has_recipe(training, machine):
        major, minor = LEAST_CAPABILITY[recipe]
        setting, name = ("fp4", f"fp4={training.fp4}") if training.fp4 else ("fp8", f"fp8_recipe={recipe}")
        others = [other for other in FP8_RECIPES if machine.capability >= LEAST_CAPABILITY[other]]
        yield broken(
            f"{name} needs a GPU of compute capability {major}.{minor} or above",
            said=f"{name} needs a GPU of compute capability {major}.{minor} or above, and {machine.name} has "
            f"{machine.capability[0]}.{machine.capability[1]}",
            fix=f"use {any_of(others)}" if others and setting == "fp8" else f"leave {setting} out",
        )
