"""llm-analysis (cli99/llm-analysis): `train` with a model file as its README describes.

It knows MLPs of two matrices: 1.5 times the width has the parameters of a gated one. It has neither latent attention, nor dense
first layers, nor shared experts, which are left out.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from answer import main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    from llm_analysis import config
    from llm_analysis.analysis import train

    ffn = case.get("moe_ffn", case["ffn"]) * 3 // 2
    model = {
        "name": "case", "num_layers": case["layers"], "n_head": case["heads"], "hidden_dim": case["hidden"], "vocab_size": case["vocab"],
        "max_seq_len": case["seq"], "num_key_value_heads": case["kv"], "ffn_embed_dim": ffn, "expansion_ratio": ffn / case["hidden"],
    }  # fmt: skip
    if "experts" in case:
        model.update(moe_num_experts=case["experts"], moe_top_k=case["topk"])
    config.gpu_configs["large"] = config.GPUConfig("large", 100000, 3000, 450, 8e-6, 989)  # so that no batch is refused
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.json")
        file.write_text(json.dumps(model))
        found = train(
            model_name=str(file), gpu_name="large", dtype_name="w16a16e16", log_level="ERROR", batch_size_per_gpu=case["micro"],
            global_batch_size=case["global"], gradient_accumulation_steps=case["microbatches"], seq_len=case["seq"], ds_zero=1,
            dp_size=case["dp"], tp_size=case["tp"], pp_size=case["pp"], sp_size=case["tp"], ep_size=case["ep"], flash_attn=True,
        )  # fmt: skip
    return {"gib": found["(weight+op_state+grad+act)_memory_per_gpu"] / 2**30, "of": "one GPU, every stage alike"}


main(ask)
