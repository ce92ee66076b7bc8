"""What a peer's program prints: one line of JSON. It runs in the peer's environment, which has nothing of ours."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def hf_config(case: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a case's model by the names of a config.json."""
    return {
        "model_type": "deepseek_v3" if "experts" in case else "llama", "hidden_size": case["hidden"], "num_hidden_layers": case["layers"],
        "num_attention_heads": case["heads"], "num_key_value_heads": case["kv"], "intermediate_size": case["ffn"],
        "vocab_size": case["vocab"], "tie_word_embeddings": False, "max_position_embeddings": case["seq"],
    }  # fmt: skip


NO_HUB = "asks the Hugging Face Hub for the model, which was not reachable: no answer for want of network"


def main(ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Print what `ask` makes of the case that is the program's argument: `gib` of one GPU (or null), `of`: what that is, `why`."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    case = json.loads(sys.argv[1])
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = ask(case)
    except Exception as error:
        found = {"gib": None, "why": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps({"gib": None, "of": "", "why": "", **found}))
