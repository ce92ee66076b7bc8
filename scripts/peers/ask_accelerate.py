"""accelerate: `accelerate estimate-memory`, which looks the model up on the Hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import answer


def ask(case: dict[str, Any]) -> dict[str, Any]:
    model = "deepseek-ai/DeepSeek-V3" if "experts" in case else "meta-llama/Meta-Llama-3-70B"
    tool = Path(sys.executable).with_name("accelerate")
    done = subprocess.run(
        [str(tool), "estimate-memory", model, "--library_name", "transformers", "--dtypes", "float16"],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    if done.returncode:
        return {"why": answer.NO_HUB}
    return {"of": "the whole model on one GPU; no layout, no activations", "why": done.stdout[-200:]}


answer.main(ask)
