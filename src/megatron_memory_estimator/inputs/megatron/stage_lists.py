"""Layers of pipeline stages in the words of forks, as a layout string.

Source: Ascend/MindSpeed-LLM (--num-layer-list, --noop-layers); Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py`.
"""

from __future__ import annotations

from ...job.layer_kinds import frequency_list
from ...wording import dashed, whole
from .reading import Reading

SPLITS = (
    "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "hybrid_layer_pattern",
    "hybrid_override_pattern", "mtp_num_layers",
)  # fmt: skip
"""Arguments that say otherwise how layers go to stages."""


def layers_per_stage(reading: Reading, words: tuple[str, ...]) -> None:
    """--num-layer-list 7,8,9: layers of each pipeline stage."""
    counts = [whole(word) for word in ",".join(words).replace(" ", "").split(",")]
    stages = reading.number("pipeline_model_parallel_size")
    split = (*SPLITS, "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    found = [count for count in counts if count is not None]
    if len(found) != len(counts) or len(found) != stages or sum(found) != reading.number("num_layers"):
        reading.refuse("num_layer_list", f"{','.join(words)} does not give {stages} stages their layers")
    elif other := _said_elsewhere(reading, split):
        reading.refuse("num_layer_list", f"with {dashed(other)} is not modelled")
    elif stages > 1:
        reading.changes["pipeline_model_parallel_layout"] = _layout(found)


def without_layers(reading: Reading, words: tuple[str, ...]) -> None:
    """--noop-layers 30,31: layers that hold nothing, in a split that counts them."""
    indices = {whole(word) for word in ",".join(words).replace(" ", "").split(",") if word}
    layers, chunks = reading.number("num_layers"), _chunks(reading)
    if not indices:
        return
    if None in indices or not layers or layers % chunks or max(i for i in indices if i is not None) >= layers:
        reading.refuse("noop_layers", f"{','.join(words)} does not name layers of {layers} over {chunks} stages")
    elif other := _said_elsewhere(reading, SPLITS):
        reading.refuse("noop_layers", f"with {dashed(other)} is not modelled")
    else:
        held = [at not in indices for at in range(layers)]
        per = layers // chunks
        _keep(reading, held)
        if chunks > 1:
            counts = [sum(held[at : at + per]) for at in range(0, layers, per)]
            reading.changes["pipeline_model_parallel_layout"] = _layout(counts)
            reading.changes |= {
                "num_layers_per_virtual_pipeline_stage": None,
                "num_virtual_stages_per_pipeline_rank": None,
            }


def _keep(reading: Reading, held: list[bool]) -> None:
    """The layers that are held, and which of them have experts."""
    reading.changes["num_layers"] = sum(held)
    if reading.get("num_experts"):
        with_experts = frequency_list("moe_layer_freq", reading.get("moe_layer_freq"), len(held))
        reading.changes["moe_layer_freq"] = [one for one, is_held in zip(with_experts, held, strict=True) if is_held]


def _chunks(reading: Reading) -> int:
    """Chunks of the pipeline: its stages, times the virtual ones."""
    stages = reading.number("pipeline_model_parallel_size") or 1
    per, virtual = (
        reading.number("num_layers_per_virtual_pipeline_stage"),
        reading.number("num_virtual_stages_per_pipeline_rank"),
    )
    if per:
        return max(reading.number("num_layers") // per, 1)
    return stages * (virtual or 1)


def _layout(counts: list[int]) -> str:
    parts = [f"t*{count}" if count else "" for count in counts]
    return "|".join(["E" + parts[0], *parts[1:-1], parts[-1] + "L"])


def _said_elsewhere(reading: Reading, names: tuple[str, ...]) -> str:
    return next((name for name in names if reading.get(name)), "")
