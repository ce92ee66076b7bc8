"""vramcalc: `estimate` of a training of the whole model on one GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from answer import hf_config, main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    from vramcalc import estimate

    config = hf_config(case)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        found = estimate(
            folder,
            mode="train",
            dtype="bf16",
            batch=case["micro"],
            seq_len=case["seq"],
            precision="pure",
            attn_impl="flash",
        )
    total = getattr(found, "total", None) or found.total_bytes
    return {"gib": total / 2**30, "of": "the whole model on one GPU; no layout"}


main(ask)
