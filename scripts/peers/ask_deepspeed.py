"""deepspeed: its estimate of model states under ZeRO-3, over all GPUs; it has none for ZeRO-1, and no activations."""

from __future__ import annotations

from typing import Any

from answer import main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    node = min(8, case["gpus"])
    largest = case["hidden"] * max(case["vocab"], 3 * case["ffn"])
    _, on_gpu, _ = estimate_zero3_model_states_mem_needs(
        case["parameters"],
        largest,
        num_gpus_per_node=node,
        num_nodes=case["gpus"] // node,
        cpu_offload=False,
        cpu_offload_params=False,
    )
    return {"gib": on_gpu / 2**30, "of": "model states of one GPU under ZeRO-3; no layout, no activations"}


main(ask)
