"""Tables of docs/how-to/deepseek_v4.md: what one CSA layer keeps, and published recipes with their verdicts."""

from __future__ import annotations

from docs_markdown import markdown

NAME = "deepseek-ai/DeepSeek-V4-Flash"
RECIPES = (
    ("deepseek_v4_flash_pretrain_64gpu_gb200_bf16_config", "ran: 10.4 s a step (Megatron-Bridge's verification card, 2026-08-04)"),
    ("deepseek_v4_flash_pretrain_128gpu_gb200_fp8mx_config", "ran: 8.1 s a step (verification card)"),
    ("deepseek_v4_flash_pretrain_128gpu_gb300_fp8mx_config", "ran: 7.8 s a step (verification card)"),
    ("deepseek_v4_pro_pretrain_256gpu_gb300_fp8mx_config", "ran: 40 steps of 21.5 s (Megatron-Bridge PR #4808)"),
    ("deepseek_v4_flash_pretrain_32gpu_h100_bf16_config", "out of memory on 32 H100 (Megatron-Bridge's README)"),
)  # fmt: skip


def csa_layer() -> str:
    """Every tensor that the first CSA layer of Flash keeps of 4,096 tokens, in the order of the forward."""
    from megatron_memory_estimator import TrainingJob
    from megatron_memory_estimator.modules.layers import layer_unit
    from megatron_memory_estimator.rank.build import context_of
    from megatron_memory_estimator.tape.simulate import trace

    job = TrainingJob.from_hf(
        NAME,
        64,
        ep=8,
        seq_length=4096,
        gpu="GB200",
        router_imbalance=1,
        moe_router_load_balancing_type=["none"],
        moe_permute_fusion=False,
    )
    found = trace(layer_unit(context_of(job), "csa+moe").unit).saved
    rows = [
        (f"`{one.tensor.name}`", f"`{one.tensor.formula}`", one.tensor.dtype, f"{one.tensor.nbytes:,}",
         ", ".join(f"`{by.name}`" for by in one.saved_by[:2]) + (" ..." if len(one.saved_by) > 2 else ""))
        for one in found if one.tensor.nbytes >= 2**18
    ]  # fmt: skip
    small = sum(one.tensor.nbytes for one in found if one.tensor.nbytes < 2**18)
    rows.append(("tensors of less than 256 KiB", "", "", f"{small:,}", ""))
    total = sum(one.tensor.nbytes for one in found)
    rows.append(("**all**", "", "", f"**{total:,}**", ""))
    return markdown(("tensor", "shape", "dtype", "bytes", "kept by"), rows)


def recipes() -> str:
    """Recipes that ran, or did not fit, with what is estimated."""
    from megatron_memory_estimator import estimate
    from megatron_memory_estimator.inputs.dialects.bridge import DIALECT, run_of_recipe
    from megatron_memory_estimator.inputs.dialects.job import job_of
    from megatron_memory_estimator.throughput import throughput

    rows = []
    for name, evidence in RECIPES:
        found = estimate(job_of(DIALECT, run_of_recipe([name]), None, {"phases": "training"}))
        verdict = found.verdict()
        peak = found.peak_stage.peak_allocated_bytes / 2**30
        seconds = f"{throughput(found).step:.1f}"
        rows.append((f"`{name}`", evidence, f"{peak:.1f}", verdict.word, seconds))
    return markdown(("recipe", "published", "peak GiB", "verdict", "estimated s"), rows)


TABLES = {"csa layer": csa_layer, "deepseek-v4 recipes": recipes}
