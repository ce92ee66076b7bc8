"""What Megatron-LM 0.19.2's own functions say of 1,500 random argument lists, and what the rules say of them.

Facts: `tests/facts/legality.json`: 13 legal argument lists, each list of a row as changes of one (first, last, words in their place), and
the rule by which the real program refuses it, where it does.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError
from megatron_memory_estimator.accept import accepted
from megatron_memory_estimator.rules import OURS, table

from .helpers import FACTS

OPEN = {
    "no-such-option": "--fp8-hybrid and --no-query-key-layer-scaling are read as an older release's, with a warning",
    "torch-norm-with-sequence-parallel": "asked without Apex, which a run of ours is thought to have",
}
"""What is accepted here although it is refused there, and why."""


LATER = (
    "TransformerEngine",
    "Megatron-LM megatron/core/transformer/moe/experts.py (TEGroupedMLP.forward)",
    "Megatron-LM megatron/core/transformer/multi_latent_attention.py",
    "Megatron-LM megatron/core/pipeline_parallel/hybrid_cp_schedule.py",
)
"""Sources of rules that stop a run's first step: Megatron-LM's functions that look at arguments do not ask them."""


def judged(words: list[str], num_gpus: int, gpu: str) -> str:
    """What the rules say of an argument list of that version."""
    try:
        accepted(TrainingJob.from_megatron_args(words, num_gpus, gpu=gpu, megatron_core_version="0.19"))
    except LayoutError as error:
        sources = [table()[code].source for code in error.codes]
        if all(source == OURS for source in sources):
            return "not modelled"
        return "stops later" if all(source.startswith((*LATER, OURS)) for source in sources) else "refused"
    except UnsupportedError:
        return "not modelled"
    except ConfigError as error:
        return "not modelled" if "not modelled" in str(error) else "refused"
    return "accepted"


def test_what_megatron_refuses_is_refused() -> None:
    facts = json.loads((FACTS / "legality.json").read_text())
    counts: Counter[tuple[str, str]] = Counter()
    wrong: list[Any] = []
    for name, base, num_gpus, gpu, changes, *reason in facts["rows"]:
        words = facts["bases"][base].split()
        for first, last, *new in reversed(changes):
            words[first:last] = new
        said = judged(words, num_gpus, gpu)
        counts["refused" if reason else "accepted", said] += 1
        if (said == "accepted" and reason and reason[0] not in OPEN) or (said == "refused" and not reason):
            wrong.append((name, said, reason))
    assert wrong == []
    assert counts["refused", "accepted"] <= 0.01 * sum(n for (there, _), n in counts.items() if there == "refused")
    assert counts["accepted", "accepted"] >= 480
    assert sum(counts.values()) == 1500
