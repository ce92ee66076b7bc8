"""Settings of a training in a few words, as reports and tables name them."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.training import Training


def features_text(t: Training) -> Iterator[str]:
    """Low precision, sharding, offloading, graphs and adapters, those that are on."""
    if t.low_precision:
        kept = ", weights in low precision" if t.low_precision_weights else ""
        yield f"{'fp4' if t.fp4 else f'fp8 {t.fp8}'} {t.low_precision}{kept}"
    if t.use_megatron_fsdp:
        yield f"Megatron-FSDP {t.data_parallel_sharding_strategy}"
    if t.use_torch_fsdp2:
        yield "torch FSDP2"
    if t.peft != "none":
        yield f"{t.peft} dim {t.peft_dim}"
    if t.optimizer_cpu_offload:
        yield f"optimizer offloaded {t.optimizer_offload_fraction:.0%}"
    if t.cpu_offloading_num_layers:
        yield f"{t.cpu_offloading_num_layers} layers offloaded"
    if t.fine_grained_activation_offloading:
        yield f"offloaded {', '.join(t.offload_modules)}"
    if t.cuda_graph_impl != "none":
        scope = f" ({', '.join(t.cuda_graph_modules)})" if t.cuda_graph_modules else ""
        yield f"CUDA graphs {t.cuda_graph_impl}{scope}"
    if t.moe_paged_stash:
        yield "paged stash"
    if t.overlap_moe_expert_parallel_comm:
        yield "all-to-all overlap"


def recompute_text(t: Training) -> str:
    """Recomputation in a few words."""
    if t.recompute_granularity == "full":
        return f"full ({t.recompute_method}, {t.recompute_num_layers})"
    if t.recompute_granularity == "selective":
        return f"selective ({', '.join(t.recomputed_modules) or 'nothing'})"
    return "none"
