"""The table of docs/how-to/rl.md: what each loss takes of the logits."""

from __future__ import annotations

from typing import Any

from docs_markdown import markdown

LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Megatron-LM's cross entropy", {}),
    ("verl, ms-swift", {"loss_function": "verl"}),
    ("verl with the gradient of an entropy", {"loss_function": "verl", "loss_entropy": True}),
    ("slime", {"loss_function": "slime"}),
    ("slime with a temperature", {"loss_function": "slime", "loss_temperature": True}),
    ("slime with an entropy", {"loss_function": "slime", "loss_entropy": True}),
    ("NeMo-RL", {"loss_function": "nemo_rl"}),
    ("NeMo-RL in chunks of 2,048 of 16,384 tokens", {"loss_function": "nemo_rl", "loss_chunk_size": 2048}),
    ("ROLL", {"loss_function": "roll"}),
    ("SkyRL in chunks of 1,024 of 16,384 tokens", {"loss_function": "skyrl", "loss_chunk_size": 1024}),
    ("verl's fused kernel", {"loss_function": "fused"}),
    ("SkyRL with the head in the loss, in chunks of 1,024", {"loss_function": "skyrl_fused", "loss_chunk_size": 1024}),
)


def losses() -> str:
    """Bytes of a value of the logits, of Qwen3-8B over two ranks."""
    from megatron_memory_estimator import TrainingJob, estimate

    rows = []
    for name, settings in LOSSES:
        given: dict[str, Any] = {"tp": 2, "seq_length": 16384, **settings}
        found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 2, **given))
        values = given["seq_length"] * found.job.model.padded_vocab(2) // 2
        run = next(run for run in found.stages[0].rank.plans[0].runs if run.unit.name == "output")
        top = max((*run.trace.forward, *run.trace.backward), key=lambda event: event.nbytes)
        moment = f"{top.phase} of {top.op.removeprefix('output.')}"
        rows.append((name, f"{top.nbytes / values:.1f}", moment, f"{run.trace.saved_bytes / values:.1f}"))
    return markdown(("loss", "bytes at its peak", "when", "kept"), rows)


TABLES = {"losses": losses}
