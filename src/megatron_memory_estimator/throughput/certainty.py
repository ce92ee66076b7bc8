"""The range of rates beside a predicted one: how far published runs of the same kind were from their predictions.

A prediction is a number, and what the host does between launches, and what a router does, are not. So what surrounds it is measured, not
modelled: rates of published runs over predicted ones, the least and the most of each kind (docs/explanation/throughput.md; a test
compares them). Release 26.06.01 of GPT-OSS-120B on GB200, 1.6 times slower than the releases around it, is not in it.

Deterministic kernels have no times of their own: Megatron-LM says 1.04 to 1.15 of a step for dense models, and 1.1 to 1.25 with experts
(`docs/developer/determinism/op-catalog.md`, PR 5041); with Gated DeltaNet or sparse attention it is a multiple, which nobody published.

Of sparse attention (DeepSeek's, with an indexer) five runs are published, all of GLM-5.2 on H100, two of them with deterministic kernels.
They do not say which path ran: where a kernel declines a layout Megatron-Core goes on with PyTorch's operations
(`experimental_attention_variant/dsa.py`). So the least of the other three is the least of the range, and its most is that of other experts.
"""

from __future__ import annotations

from typing import NamedTuple

from ..job.training_job import TrainingJob
from ..modules.kinds import kinds_in


class Likely(NamedTuple):
    """Measured over predicted rates: the least, the most, and of which runs."""

    low: float
    high: float
    of: str


DENSE = Likely(0.89, 1.18, "dense models")
FIXED = Likely(0.85, 1.18, "experts with a fixed number of rows")
FORCED = Likely(0.75, 1.09, "experts with forced balance whose rows the CPU waits for")
ROUTED = Likely(0.55, 1.17, "experts with real routing whose rows the CPU waits for")
SPARSE = Likely(0.49, 1.17, "sparse attention, whose kernels no run names")
DETERMINISTIC, DETERMINISTIC_MOE = (1.04, 1.15), (1.1, 1.25)
"""Steps with deterministic kernels over those without, least and most."""


def likely(job: TrainingJob) -> Likely:
    """What published runs like a job's reached of their predictions; with deterministic kernels, of what those leave."""
    t = job.training
    found = DENSE
    if job.model.num_moe_experts:
        counts = ROUTED if t.routing_phase != "forced_balance" else FORCED
        found = counts if t.counts_expert_rows else FIXED
    if any(kind.sparse for kind in kinds_in(job.model.every_kind)):
        found = SPARSE
    if not t.deterministic_mode:
        return found
    least, most = DETERMINISTIC_MOE if job.model.num_moe_experts else DETERMINISTIC
    return Likely(found.low / most, found.high / least, f"{found.of}, and deterministic kernels")


def untimed(job: TrainingJob) -> str:
    """What of a job has no seconds, in words; empty where all has."""
    kinds = kinds_in(job.model.every_kind)
    if job.training.deterministic_mode and any(kind.name.startswith("gdn") or kind.sparse for kind in kinds):
        return (
            "deterministic_mode: Gated DeltaNet and sparse attention run PyTorch's operations, several times slower than their kernels; "
            "step times are those of the kernels"
        )
    return ""
