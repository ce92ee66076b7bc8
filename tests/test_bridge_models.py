"""Models of Megatron-Bridge: the parameters of a rank, and what a microbatch keeps, of the real classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.convert import convert

from .helpers import FACTS

FILE = json.loads((FACTS / "bridge_models.json").read_text())
PER_LAYER = ("moe_layer_freq", "linear_attention_freq", "layer_variants")
"""Settings with a value for each layer."""
TORN = "zai-org/GLM-5.2"
"""Its record has six stages, whose borders separate layers from the indexers that they share: Megatron-Core builds that, and refuses to
run it."""
UNREAD: dict[str, tuple[str, ...]] = {
    "tiiuae/Falcon-H1-0.5B-Instruct": (
        "transformer_impl", "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    ),
    "tiiuae/Falcon-H1-7B-Instruct": ("transformer_impl",),
    "google/gemma-4-E4B": ("transformer_impl", "attention_backend"),
}  # fmt: skip
"""Settings of a record that its classes do not read: full recomputation of Falcon-H1 recomputes nothing, and its modules are
TransformerEngine's; those of Gemma 4 without experts are Megatron-Core's own. Here they are refused."""


def modelled(kind: str) -> list[dict[str, Any]]:
    return [r for r in FILE["records"] if r["kind"] == kind and r["model"] != TORN]


def name(record: dict[str, Any]) -> str:
    own = {k: v for k, v in record["settings"].items() if k.endswith("_size") and "vocab" not in k and "batch" not in k}
    return f"{record['model']}-{own}"


def job(record: dict[str, Any]) -> TrainingJob:
    """The job of a record; with `layers` (from 1) that of a model made of those layers alone."""
    config = entries()[record["model"]]["config"]
    settings = dict(convert(config, record["model"], "the catalogue").config)
    if "layers" in record:
        settings.update(of_layers(settings, [layer - 1 for layer in record["layers"]]))
    settings.pop("attention_kernel", None)  # the records say attention_backend
    given = {"router_imbalance": 1, "megatron_core_version": "0.20", **FILE["common"], **record["settings"]}
    given = {key: value for key, value in given.items() if key not in UNREAD.get(record["model"], ())}
    return TrainingJob.from_config({**settings, **given}, record["num_gpus"])


def of_layers(settings: dict[str, Any], layers: list[int]) -> dict[str, Any]:
    """What of a model's settings changes where only some of its layers are built."""
    found: dict[str, Any] = {"num_layers": len(layers)}
    for key in PER_LAYER:
        if isinstance(settings.get(key), tuple | list):
            found[key] = tuple(settings[key][layer] for layer in layers)
    if isinstance(every := settings.get("linear_attention_freq"), int):
        found["linear_attention_freq"] = tuple(int((layer + 1) % every != 0) for layer in layers)
    if pattern := settings.get("hybrid_layer_pattern"):
        found["hybrid_layer_pattern"] = "".join(pattern[layer] for layer in layers)
    return found


@pytest.mark.parametrize("record", modelled("param_counts"), ids=name)
def test_parameters_of_a_rank_are_exact(record: dict[str, Any]) -> None:
    stage = estimate(job(record)).stages[record["pp_rank"]]
    assert stage.num_parameters == (record["dense"], record["expert"])
    wide = sum(
        param.numel * count for plan in stage.rank.plans for param, count in plan.params if param.dtype == "fp32"
    )
    assert wide == record["by_dtype"].get("float32", 0)


@pytest.mark.parametrize("record", modelled("activation_saved"), ids=name)
def test_kept_bytes_within_a_thousandth(record: dict[str, Any]) -> None:
    found = estimate(job(record))
    plan = found.stages[0].rank.plans[0]
    assert plan.saved_bytes == pytest.approx(record["total_saved_bytes"], rel=1e-3)
    model, training = found.job.model, found.job.training
    # the rest of an embedding: here its own, there the first layer's; so are the layers' own inputs
    own = bool(model.per_layer_embed_dim) or not training.scatter_embedding_sequence_parallel
    runs = [run for run in plan.runs if run.first_layer >= 0 or (own and run.unit.name == "embedding")]
    ours = [run.trace.saved_bytes for run in runs for _ in range(run.copies)]
    parts = ("decoder", "embedding", "per_layer") if own else ("decoder",)
    layers = [n for part, n in record["by_part"].items() if part.startswith(parts)]
    assert sum(ours) == pytest.approx(sum(layers), rel=1e-3)


def test_borders_that_separate_layers_from_their_indexer_are_refused() -> None:
    (record,) = (r for r in FILE["records"] if r["model"] == TORN)
    with pytest.raises(LayoutError, match="takes its keys from an earlier layer"):
        estimate(job(record))
