"""Options that most people use, and those that the help of a command leaves out."""

from __future__ import annotations

OFTEN = {
    "world_size": "GPUs of the run",
    "gpu": "GPU that is judged (default H100-80GB)",
    "tensor_model_parallel_size": "tensor parallel size",
    "pipeline_model_parallel_size": "pipeline parallel size",
    "virtual_pipeline_model_parallel_size": "model chunks of a pipeline rank",
    "context_parallel_size": "context parallel size",
    "expert_model_parallel_size": "expert parallel size",
    "expert_tensor_parallel_size": "expert tensor parallel size",
    "seq_length": "tokens of a sequence, such as 8192 or 8k",
    "micro_batch_size": "sequences of a microbatch",
    "global_batch_size": "sequences of a step",
    "recompute_granularity": "full, or selective with --recompute-modules",
    "recompute_modules": "such as core_attn,mlp",
    "fp8": "hybrid or e4m3; --fp8-recipe says which recipe",
    "optimizer_cpu_offload": "optimizer state in host memory",
    "phases": "training: judge its steps alone, not loading a checkpoint",
    "set_variables": "the value of a variable of a launch script",
}
"""Options of a model and a layout that most people use, and what `--help` says of them."""

RARE = {
    "plan": (
        "recompute_granularity", "recompute_modules", "fp8", "optimizer_cpu_offload", "calibrate", "tight", "complete", "split",
    ),
    "advise": ("calibrate",),
    "estimate": ("formulas",),
}  # fmt: skip
"""Options that `--help` of a command leaves to `--help-all`."""
