"""Rules of the pipeline: layers over stages and chunks, layout strings, the interleaved schedule."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LayoutError
from ..layout import Layout
from ..model import Model
from ..pipeline import build_pipeline, parse_layout, split_layers, virtual_stages
from .divisors import divisors


def pipeline(model: Model, layout: Layout, *, overlap_p2p_comm: bool) -> Iterator[str]:
    """Layers divide over stages and chunks."""
    pp = layout.pp
    first, last = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    uneven = first is not None or last is not None
    account = layout.account_for_embedding_in_pipeline_split or layout.account_for_loss_in_pipeline_split
    text = layout.pipeline_model_parallel_layout
    spellings = [
        name
        for name in (
            "num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size",
            "pipeline_model_parallel_layout",
        )
        if getattr(layout, name) is not None
    ]  # fmt: skip
    if spellings == ["virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"]:
        vpp, stages = layout.virtual_pipeline_model_parallel_size, len(parse_layout(text or ""))
        if vpp is not None and stages != vpp * pp:
            yield (
                f"virtual_pipeline_model_parallel_size={vpp} contradicts pipeline_model_parallel_layout, which has {stages} "
                f"stages for {pp} pipeline ranks; leave it out"
            )
            return
    elif len(spellings) > 1:
        yield f"{' and '.join(spellings)} say the same thing; give one of them"
        return
    if text is not None and (uneven or account):
        yield "pipeline_model_parallel_layout excludes the first/last stage counts and account_for_* settings"
        return
    if uneven and account:
        yield "num_layers_in_first/last_pipeline_stage exclude account_for_embedding/loss_in_pipeline_split; give one kind"
        return
    if uneven and layout.num_layers_per_virtual_pipeline_stage is not None:
        yield "num_layers_per_virtual_pipeline_stage excludes uneven stages; use virtual_pipeline_model_parallel_size"
        return
    if text is not None:
        yield from _layout_string(model, layout, text)
        return
    if model.hybrid and (uneven or account or spellings) and "|" in (model.hybrid_layer_pattern or ""):
        yield "a hybrid_layer_pattern with | says the pipeline split; drop the other settings of the split"
        return
    try:
        vp = virtual_stages(model, layout)
    except LayoutError as error:
        yield from error.reasons
        return
    if vp > 1 and pp == 2 and not overlap_p2p_comm:
        yield "the interleaved schedule without overlap_p2p_comm needs pipeline_model_parallel_size above 2"
    if vp > 1 and model.hybrid and "|" not in (model.hybrid_layer_pattern or ""):
        yield f"virtual_pipeline_model_parallel_size={vp} of a hybrid model needs | borders in hybrid_layer_pattern"
        return
    if vp > 1 and pp == 1:
        yield f"virtual_pipeline_model_parallel_size={vp} needs pipeline_model_parallel_size above 1"
        return
    if model.hybrid and "|" in (model.hybrid_layer_pattern or ""):
        return
    yield from _uneven(model, layout, vp) if uneven else _even(model, layout, vp)


def shared_indexers(model: Model, layout: Layout) -> Iterator[str]:
    """Sparse-attention layers that share an indexer are on one stage with it (Megatron-LM `experimental_attention_variant/dsa.py`)."""
    if model.experimental_attention_variant != "dsa" or model.dsa_indexer_topk_freq == 1:
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.layers and model.kinds[chunk.layers[0]].startswith("dsa_shared"):
                yield (
                    f"layer {chunk.layers[0]} begins a pipeline stage but takes its keys from an earlier layer "
                    f"(dsa_indexer_topk_freq={model.dsa_indexer_topk_freq}, dsa_indexer_skip_topk_offset="
                    f"{model.dsa_indexer_skip_topk_offset}); move the border"
                )
                return


def _even(model: Model, layout: Layout, vp: int) -> Iterator[str]:
    pp, total = layout.pp, split_layers(model, layout)
    counted = "" if total == model.num_layers else " (with the embedding and the loss counted as layers)"
    if total % pp:
        yield f"num_layers={total}{counted} does not divide by pipeline_model_parallel_size={pp}; {_remedy(total, pp, vp)}"
    elif total // pp % vp:
        yield (
            f"the {total // pp} layers of a pipeline stage do not divide by virtual_pipeline_model_parallel_size={vp}; "
            f"use {divisors(total // pp)}"
        )


def _remedy(total: int, pp: int, vp: int) -> str:
    """A split that works, or what else would."""
    if pp > total:
        return f"use at most {total} stages"
    split = balanced_split(total, pp, vp)
    if split is None:
        return f"use {divisors(total)} stages, another virtual_pipeline_model_parallel_size, or pipeline_model_parallel_layout"
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    shown = " and ".join(f"{name}={n}" for name, n in zip(names, split, strict=True) if n is not None)
    return f"use {divisors(total)} stages, or an uneven split such as {shown}"


def _uneven(model: Model, layout: Layout, vp: int) -> Iterator[str]:
    pp, total = layout.pp, model.num_layers
    given = {
        name: value
        for name, value in (
            ("num_layers_in_first_pipeline_stage", layout.num_layers_in_first_pipeline_stage),
            ("num_layers_in_last_pipeline_stage", layout.num_layers_in_last_pipeline_stage),
        )
        if value is not None
    }
    if pp == 1:
        yield f"an uneven split ({', '.join(given)}) needs pipeline_model_parallel_size above 1"
        return
    for name, value in given.items():
        if value % vp:
            yield f"{name}={value} does not divide by virtual_pipeline_model_parallel_size={vp}; use a multiple of {vp}"
    rest, middle = total - sum(given.values()), pp - len(given)
    shown = " and ".join(f"{name}={value}" for name, value in given.items())
    if rest < 0:
        yield f"{shown} together are more than num_layers={total}; use smaller counts"
    elif (middle == 0 and rest) or (middle and rest == 0):
        yield f"with {shown}, {rest} of num_layers={total} remain for {middle} middle stages; every stage must hold layers"
    elif middle and rest % middle:
        yield (
            f"with {shown}, {rest} of num_layers={total} remain, which do not divide over {middle} middle stages; "
            f"{_remedy(total, pp, vp)}"
        )
    elif middle and rest // middle % vp:
        yield f"the {rest // middle} layers of a middle stage do not divide by virtual_pipeline_model_parallel_size={vp}"
    elif middle == 0 and vp > 1:
        yield "two pipeline stages with both counts given leave no middle stage, which Megatron-Core refuses with vpp; give one count"


def _layout_string(model: Model, layout: Layout, text: str) -> Iterator[str]:
    stages = parse_layout(text)
    flat = "".join(stages)
    pp = layout.pp
    if len(stages) % pp:
        yield (
            f"pipeline_model_parallel_layout has {len(stages)} stages, which do not divide over "
            f"pipeline_model_parallel_size={pp}; use a multiple of {pp} stages"
        )
        return
    if pp == 1 and len(stages) > 1:
        yield f"pipeline_model_parallel_layout has {len(stages)} stages, which need pipeline_model_parallel_size above 1"
    for symbol, wanted, what in (
        ("E", 1, "embedding"), ("L", 1, "loss"), ("t", model.num_layers, "num_layers"), ("m", model.mtp, "mtp_num_layers"),
    ):  # fmt: skip
        if flat.count(symbol) != wanted:
            yield f"pipeline_model_parallel_layout has {flat.count(symbol)} {symbol} for {what}={wanted}; they must agree"
    if flat and (flat[0] != "E" or flat[-1] != "L"):
        yield "pipeline_model_parallel_layout must begin with E and end with L"
    if "m" in flat:
        if "t" in flat[flat.index("m") :]:
            yield "pipeline_model_parallel_layout has a decoder layer (t) after an MTP layer (m)"
        holders = [i for i, stage in enumerate(stages) if "m" in stage]
        vp = len(stages) // pp
        if len(holders) != 1:
            yield "pipeline_model_parallel_layout must hold all MTP layers (m) in one stage"
        elif holders[0] // pp != vp - 1:
            yield "pipeline_model_parallel_layout must hold the MTP layers in the last chunk of their rank"


def schedule(model: Model, layout: Layout, num_microbatches: int) -> Iterator[str]:
    """Rules of the interleaved schedule."""
    if num_microbatches < 1:
        yield f"num_microbatches={num_microbatches} must be at least 1; raise global_batch_size"
        return
    vp = virtual_stages(model, layout)
    if vp == 1:
        return
    pp, group = layout.pp, layout.microbatch_group_size_per_vp_stage or layout.pp
    if not pp <= group <= num_microbatches:
        yield (
            f"microbatch_group_size_per_vp_stage={group} must lie between pipeline_model_parallel_size={pp} and "
            f"num_microbatches={num_microbatches}; raise global_batch_size or change it"
        )
    elif num_microbatches % group and num_microbatches % group < pp:
        yield (
            f"num_microbatches={num_microbatches} leaves {num_microbatches % group} after groups of {group}, fewer than "
            f"pipeline_model_parallel_size={pp}; use a multiple of {group}"
        )


def balanced_split(num_layers: int, pp: int, vp: int) -> tuple[int | None, int | None] | None:
    """First- and last-stage layer counts of the most balanced legal uneven split, or None.

    Most balanced: the smallest largest stage, then the largest smallest one; of equals, fewer layers on the first
    stage, where most microbatches are in flight, and as few counts as possible.
    """
    found: list[tuple[tuple[int, int, int, int, bool], tuple[int | None, int | None]]] = []

    def offer(first: int | None, last: int | None, middle: int) -> None:
        a, b = middle if first is None else first, middle if last is None else last
        sizes = [a, b, *([middle] if pp > 2 else [])]
        if min(sizes) > 0:
            given = (first is not None) + (last is not None)
            found.append(((max(sizes), -min(sizes), a, given, first is not None), (first, last)))

    for middle in range(vp, num_layers, vp):
        rest = num_layers - middle * (pp - 1)
        if rest > 0 and rest % vp == 0:
            offer(None, rest, middle)
            offer(rest, None, middle)
        both = num_layers - middle * (pp - 2)
        if pp > 2 and both > 0 and both % vp == 0:
            a = both // 2 // vp * vp
            offer(a, both - a, middle)
    return min(found, key=lambda item: item[0])[1] if found else None
