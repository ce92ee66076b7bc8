"""Settings in the words of a search: which are axes, which the search decides, and which fix an axis."""

from __future__ import annotations

AXES = {
    "world_size": "num_gpus",
    "tensor_model_parallel_size": "",
    "pipeline_model_parallel_size": "",
    "context_parallel_size": "",
    "expert_model_parallel_size": "",
    "expert_tensor_parallel_size": "",
    "virtual_pipeline_model_parallel_size": "",
    "micro_batch_size": "",
    "cp_comm_type": "",
    "optimizer_offload_fraction": "",
}
"""Settings whose option takes the values of an axis, and the name of the axis where it is another one."""
OTHER_AXES = ("split", "recompute", "precision", "features")
"""Axes that are no setting."""
FIXED = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "num_layers_per_virtual_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "microbatch_group_size_per_vp_stage",
    "hierarchical_context_parallel_sizes",
)
"""Settings of the split, which the search decides."""
SWITCHES = ("sequence_parallel", "use_distributed_optimizer", "use_precision_aware_optimizer")
"""Settings that stay options of their own and fix their axis."""
RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
