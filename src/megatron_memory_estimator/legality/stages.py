"""Rules of the pipeline: layers over stages and chunks, layout strings, the interleaved schedule."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LayoutError
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import build_pipeline, parse_layout, split_layers, virtual_stages
from ..modules.kinds import kinds_in, kinds_of
from ..tape.tensor import divisors
from .sharding import PP
from .violation import Violation, broken, indivisible

VPP = "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
LAYOUT = "pipeline_model_parallel_layout"
SPELLINGS = ("num_layers_per_virtual_pipeline_stage", VPP, LAYOUT)
"""Settings that each say how many chunks a stage has."""


def pipeline(model: Model, layout: Layout, *, overlap_p2p_comm: bool) -> Iterator[Violation]:
    """Layers divide over stages and chunks."""
    contradiction = next(_spellings(model, layout), None)
    if contradiction is not None:
        yield contradiction
        return
    text, pp = layout.pipeline_model_parallel_layout, layout.pp
    if text is not None:
        yield from _layout_string(model, layout, text)
        return
    borders = "|" in (model.hybrid_layer_pattern or "")
    try:
        vp = virtual_stages(model, layout)
    except LayoutError as error:
        yield from map(Violation, error.rules, error.reasons)
        return
    if vp > 1 and pp == 2 and not overlap_p2p_comm:
        yield broken(f"the interleaved schedule without overlap_p2p_comm needs {PP} above 2")
    if vp > 1 and model.hybrid and not borders:
        yield broken(f"{{{VPP}}} of a hybrid model needs | borders in hybrid_layer_pattern", {VPP: vp})
        return
    if vp > 1 and pp == 1:
        yield broken(f"{{{VPP}}} needs {PP} above 1", {VPP: vp})
        return
    if model.hybrid and borders:
        return
    uneven = (layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage) != (None, None)
    yield from _uneven(model, layout, vp) if uneven else _even(model, layout, vp)


def _spellings(model: Model, layout: Layout) -> Iterator[Violation]:
    """Settings of the split that contradict each other."""
    text, pp = layout.pipeline_model_parallel_layout, layout.pp
    given = [name for name in SPELLINGS if getattr(layout, name) is not None]
    uneven = (layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage) != (None, None)
    account = layout.account_for_embedding_in_pipeline_split or layout.account_for_loss_in_pipeline_split
    if given == [VPP, LAYOUT]:
        vpp, stages = layout.virtual_pipeline_model_parallel_size, len(parse_layout(text or ""))
        if vpp is not None and stages != vpp * pp:
            yield broken(
                f"{VPP} contradicts {LAYOUT}, which has stages for pipeline ranks",
                said=f"{VPP}={vpp} contradicts {LAYOUT}, which has {stages} stages for {pp} pipeline ranks",
                fix="leave it out",
            )
    elif len(given) > 1:
        yield broken(f"{' and '.join(given)} say the same thing", fix="give one of them")
    if text is not None and (uneven or account):
        yield broken(f"{LAYOUT} excludes the first/last stage counts and account_for_* settings")
    if uneven and account:
        rule = "num_layers_in_first/last_pipeline_stage exclude account_for_embedding/loss_in_pipeline_split"
        yield broken(rule, fix="give one kind")
    if uneven and layout.num_layers_per_virtual_pipeline_stage is not None:
        yield broken("num_layers_per_virtual_pipeline_stage excludes uneven stages", fix=f"use {VPP}")
    if text is None and model.hybrid and (uneven or account or given) and "|" in (model.hybrid_layer_pattern or ""):
        rule = "a hybrid_layer_pattern with | says the pipeline split"
        yield broken(rule, fix="drop the other settings of the split")


def shared_indexers(model: Model, layout: Layout) -> Iterator[Violation]:
    """Sparse-attention layers that share an indexer are on one stage with it (Megatron-LM `experimental_attention_variant/dsa.py`)."""
    if not any(kind.borrows for kind in kinds_in(model.kinds)):
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.layers and any(kind.borrows for kind in kinds_of(model.kinds[chunk.layers[0]])):
                why = "begins a pipeline stage but takes its keys from an earlier layer"
                sharing = {
                    "dsa_indexer_topk_freq": model.dsa_indexer_topk_freq,
                    "dsa_indexer_skip_topk_offset": model.dsa_indexer_skip_topk_offset,
                }
                shown = ", ".join(f"{name}={number}" for name, number in sharing.items())
                yield broken(
                    f"layer {why} ({', '.join(sharing)})",
                    said=f"layer {chunk.layers[0]} {why} ({shown})",
                    fix="move the border",
                )
                return


def _even(model: Model, layout: Layout, vp: int) -> Iterator[Violation]:
    pp, total = layout.pp, split_layers(model, layout)
    counted = "" if total == model.num_layers else " (with the embedding and the loss counted as layers)"
    each = total // pp
    if total % pp:
        rule = f"{{num_layers}}{counted} does not divide by {{{PP}}}"
        yield broken(rule, {"num_layers": total, PP: pp}, fix=_remedy(total, pp, vp))
    elif each % vp:
        yield broken(
            f"the layers of a pipeline stage do not divide by {VPP}",
            said=f"the {each} layers of a pipeline stage do not divide by {VPP}={vp}",
            fix=f"use {divisors(each)}",
        )


def _remedy(total: int, pp: int, vp: int) -> str:
    """A split that works, or what else would."""
    if pp > total:
        return f"use at most {total} stages"
    split = balanced_split(total, pp, vp)
    if split is None:
        return f"use {divisors(total)} stages, another virtual_pipeline_model_parallel_size, or pipeline_model_parallel_layout"
    shown = " and ".join(f"{name}={n}" for name, n in zip((FIRST, LAST), split, strict=True) if n is not None)
    return f"use {divisors(total)} stages, or an uneven split such as {shown}"


def _uneven(model: Model, layout: Layout, vp: int) -> Iterator[Violation]:
    pp, total = layout.pp, model.num_layers
    counts = {FIRST: layout.num_layers_in_first_pipeline_stage, LAST: layout.num_layers_in_last_pipeline_stage}
    given = {name: count for name, count in counts.items() if count is not None}
    if pp == 1:
        yield broken(f"an uneven split ({', '.join(given)}) needs {PP} above 1")
        return
    for name, value in given.items():
        if value % vp:
            yield indivisible(name, value, VPP, vp, fix=f"use a multiple of {vp}")
    rest, middle = total - sum(given.values()), pp - len(given)
    names = " and ".join(given)
    shown = " and ".join(f"{name}={value}" for name, value in given.items())
    remain = f"with {shown}, {rest} of num_layers={total} remain"
    if rest < 0:
        rule = f"{names} together are more than num_layers"
        yield broken(rule, said=f"{shown} together are more than num_layers={total}", fix="use smaller counts")
    elif (middle == 0 and rest) or (middle and rest == 0):
        yield broken(
            f"with {names} num_layers remain for middle stages",
            said=f"{remain} for {middle} middle stages",
            fix="every stage must hold layers",
        )
    elif middle and rest % middle:
        yield broken(
            f"with {names} num_layers remain, which do not divide over middle stages",
            said=f"{remain}, which do not divide over {middle} middle stages",
            fix=_remedy(total, pp, vp),
        )
    elif middle and rest // middle % vp:
        yield broken(
            f"the layers of a middle stage do not divide by {VPP}",
            said=f"the {rest // middle} layers of a middle stage do not divide by {VPP}={vp}",
        )
    elif middle == 0 and vp > 1:
        no_middle = "two pipeline stages with both counts given leave no middle stage"
        yield broken(f"{no_middle}, which Megatron-Core refuses with vpp", fix="give one count")


def _layout_string(model: Model, layout: Layout, text: str) -> Iterator[Violation]:
    stages, pp = parse_layout(text), layout.pp
    flat = "".join(stages)
    if len(stages) % pp:
        yield broken(
            f"{LAYOUT} has stages, which do not divide over {PP}",
            said=f"{LAYOUT} has {len(stages)} stages, which do not divide over {PP}={pp}",
            fix=f"use a multiple of {pp} stages",
        )
        return
    if pp == 1 and len(stages) > 1:
        needs = f"stages, which need {PP} above 1"
        yield broken(f"{LAYOUT} has {needs}", said=f"{LAYOUT} has {len(stages)} {needs}")
    held = {
        "E": ("embedding", 1),
        "L": ("loss", 1),
        "t": ("num_layers", model.num_layers),
        "m": ("mtp_num_layers", model.mtp),
    }
    for symbol, (what, wanted) in held.items():
        count = flat.count(symbol)
        if count != wanted:
            said = f"{LAYOUT} has {count} {symbol} for {what}={wanted}"
            yield broken(f"{LAYOUT} has {symbol} for {what}", said=said, fix="they must agree")
    if flat and (flat[0] != "E" or flat[-1] != "L"):
        yield broken(f"{LAYOUT} must begin with E and end with L")
    if "m" in flat:
        yield from _mtp_of_string(stages, flat, len(stages) // pp, pp)


def _mtp_of_string(stages: tuple[str, ...], flat: str, vp: int, pp: int) -> Iterator[Violation]:
    if "t" in flat[flat.index("m") :]:
        yield broken(f"{LAYOUT} has a decoder layer (t) after an MTP layer (m)")
    holders = [i for i, stage in enumerate(stages) if "m" in stage]
    if len(holders) != 1:
        yield broken(f"{LAYOUT} must hold all MTP layers (m) in one stage")
    elif holders[0] // pp != vp - 1:
        yield broken(f"{LAYOUT} must hold the MTP layers in the last chunk of their rank")


def schedule(model: Model, layout: Layout, num_microbatches: int) -> Iterator[Violation]:
    """Rules of the interleaved schedule."""
    if num_microbatches < 1:
        rule = "{num_microbatches} must be at least 1"
        yield broken(rule, {"num_microbatches": num_microbatches}, fix="raise global_batch_size")
        return
    vp = virtual_stages(model, layout)
    if vp == 1:
        return
    pp, group = layout.pp, layout.microbatch_group_size_per_vp_stage or layout.pp
    if not pp <= group <= num_microbatches:
        yield broken(
            f"{{microbatch_group_size_per_vp_stage}} must lie between {{{PP}}} and {{num_microbatches}}",
            {"microbatch_group_size_per_vp_stage": group, PP: pp, "num_microbatches": num_microbatches},
            fix="raise global_batch_size or change it",
        )
    elif num_microbatches % group and num_microbatches % group < pp:
        left = num_microbatches % group
        yield broken(
            f"num_microbatches leaves after groups of fewer than {PP}",
            said=f"num_microbatches={num_microbatches} leaves {left} after groups of {group}, fewer than {PP}={pp}",
            fix=f"use a multiple of {group}",
        )


def balanced_split(num_layers: int, pp: int, vp: int) -> tuple[int | None, int | None] | None:
    """First- and last-stage layer counts of the most balanced legal uneven split, or None.

    Most balanced: the smallest largest stage, then the largest smallest one; of equals, fewer layers on the first
    stage, where most microbatches are in flight, and as few counts as possible.
    """
    splits: list[tuple[tuple[int, int, int, int, bool], tuple[int | None, int | None]]] = []

    def offer(first: int | None, last: int | None, middle: int) -> None:
        a, b = middle if first is None else first, middle if last is None else last
        sizes = [a, b, *([middle] if pp > 2 else [])]
        if min(sizes) > 0:
            given = (first is not None) + (last is not None)
            splits.append(((max(sizes), -min(sizes), a, given, first is not None), (first, last)))

    for middle in range(vp, num_layers, vp):
        rest = num_layers - middle * (pp - 1)
        if rest > 0 and rest % vp == 0:
            offer(None, rest, middle)
            offer(rest, None, middle)
        both = num_layers - middle * (pp - 2)
        if pp > 2 and both > 0 and both % vp == 0:
            a = both // 2 // vp * vp
            offer(a, both - a, middle)
    return min(splits, key=lambda item: item[0])[1] if splits else None
