"""A request of mbridge's web interface, answered with this engine's figures under its names."""

from __future__ import annotations

import json
from typing import Any

from ...errors import ConfigError
from ...estimator import estimate
from ..jobs import job_of
from ..request import Request

RENAMED = {"mbs": "micro_batch_size", "seq_len": "seq_length"}
PASSED = (
    "tp", "pp", "ep", "cp", "vpp", "etp", "use_distributed_optimizer", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)  # fmt: skip
"""Settings that have one name here and there."""


def answer(request: Request) -> Any:
    """`raw_report`, an object for each pipeline stage; `processed_report`, the same without `details`."""
    from ...report.classic import stage_report

    config = request.get("custom_hf_config")
    if config is None and request.get("hf_model_path") is None:
        raise ConfigError("give hf_model_path, a model's name, or custom_hf_config, the content of a config.json")
    model = request.get("hf_model_path") if config is None else None
    text = None if config is None else json.dumps(config)
    found = estimate(job_of(model, text, request.get("num_gpus"), settings(request), request.files))
    raw = [stage_report(stage) for stage in found.stages]
    processed = [{name: value for name, value in report.items() if name != "details"} for report in raw]
    return {"processed_report": processed, "raw_report": raw}


def settings(request: Request) -> dict[str, Any]:
    """The settings of a request; what recomputation of the other granularity would need is left out, as Megatron ignores it."""
    given = {name: request.get(name) for name in PASSED}
    given |= {name: request.get(word) for word, name in RENAMED.items()}
    granularity = request.get("recompute_granularity")
    given["recompute_granularity"] = granularity
    if granularity == "full":
        given |= {name: request.get(name) for name in ("recompute_method", "recompute_num_layers")}
    elif granularity == "selective":
        given["recompute_modules"] = request.get("recompute_modules")
    return {name: value for name, value in given.items() if value is not None}
