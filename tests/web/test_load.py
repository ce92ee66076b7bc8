"""Many at once: mixed estimates without an error, and what they took."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from megatron_memory_estimator import TrainingJob, estimate

from ..serving import posted

AT_ONCE = 200
MODELS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("Qwen/Qwen3-8B", 8, {"tp": 2}),
    ("deepseek-ai/DeepSeek-V3", 1024, {"tp": 2, "pp": 16, "ep": 16}),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 16, {"tp": 2, "ep": 8}),
    ("meta-llama/Llama-3.1-70B", 64, {"tp": 8, "pp": 2}),
    ("Qwen/Qwen3-30B-A3B", 16, {"ep": 8}),
)


def test_two_hundred_mixed_estimates_at_once_are_all_right(port: int) -> None:
    expected = [
        json.loads(json.dumps(estimate(TrainingJob.from_hf(model, num_gpus, **settings)).to_dict()))
        for model, num_gpus, settings in MODELS
    ]

    def asked(at: int) -> tuple[int, bool, float]:
        model, num_gpus, settings = MODELS[at % len(MODELS)]
        start = time.perf_counter()
        status, found = posted(port, "estimate", {"model": model, "num_gpus": num_gpus, "settings": settings})
        return status, found == expected[at % len(MODELS)], time.perf_counter() - start

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(asked, range(AT_ONCE)))
    assert [one[:2] for one in found] == [(200, True)] * AT_ONCE
    spent = sorted(one[2] for one in found)
    print(f"{AT_ONCE} at once: median {spent[AT_ONCE // 2]:.2f} s, slowest {spent[-1]:.2f} s")
