"""Rules of the pipeline: layers over stages and chunks, layout strings, the interleaved schedule."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LayoutError
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import build_pipeline, parse_layout, split_layers, virtual_stages
from ..modules.kinds import kinds_in, kinds_of
from ..tape.tensor import divisors
from ..wording import all_of, any_count, counted, undivided
from .sharding import PP
from .splits import Counts, balanced_split, nearest_counts, nearest_group, stages_of
from .violation import Violation, broken, indivisible

VPP = "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
LAYOUT = "pipeline_model_parallel_layout"
GROUP = "microbatch_group_size_per_vp_stage"
SPELLINGS = ("num_layers_per_virtual_pipeline_stage", VPP, LAYOUT)
"""Settings that each say how many chunks a stage has."""
PLACED_MTP = (0, 14)
"""The Megatron-Core version since which a layout string places MTP layers."""
COUNTED = {
    "account_for_embedding_in_pipeline_split": "the embedding",
    "account_for_loss_in_pipeline_split": "the loss",
}
"""What may count as a layer in an even split."""


def pipeline(
    model: Model, layout: Layout, *, overlap_p2p_comm: bool, mcore: tuple[int, int] = PLACED_MTP
) -> Iterator[Violation]:
    """Layers divide over stages and chunks, in a version of Megatron-Core."""
    contradiction = next(_spellings(model, layout), None)
    if contradiction is not None:
        yield contradiction
        return
    text, pp = layout.pipeline_model_parallel_layout, layout.pp
    if text is not None:
        yield from _layout_string(model, layout, text, mcore)
        return
    borders = "|" in (model.hybrid_layer_pattern or "")
    try:
        vp = virtual_stages(model, layout, overlap_p2p_comm=overlap_p2p_comm)
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
    least = 1 if vp == 1 else 2 if overlap_p2p_comm else 3
    yield from _uneven(model, layout, vp) if uneven else _even(model, layout, vp, least)


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
                f"{LAYOUT} does not have {VPP} stages per pipeline rank",
                said=f"{LAYOUT} has {counted(stages, 'stage')} for {PP}={pp}, not {VPP}={vpp} per rank",
                fix=f"leave {VPP} out",
            )
    elif len(given) > 1:
        yield broken(f"{all_of(given)} say the same thing", fix="give one of them")
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


def mtp_apart(model: Model, layout: Layout) -> Iterator[Violation]:
    """MTP layers that are another variant on later stages are one variant there: a stage before has as many layers as there are depths."""
    if not model.mtp or model.mtp_layer_variant_behind is None:
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            before = chunk.layers[0] if chunk.layers else model.num_layers
            if chunk.mtp and not chunk.embedding and before < model.mtp:
                yield broken(
                    "mtp_layer_variant_behind with fewer decoder layers than MTP depths on the stages before MTP's is not modelled",
                    fix=f"put at least {model.mtp} layers on the stages before",
                )
                return


def _even(model: Model, layout: Layout, vp: int, least: int) -> Iterator[Violation]:
    """The layers, and what else counts as one, divide over stages and chunks. `least`: of how many stages there may be chunks."""
    pp, total = layout.pp, split_layers(model, layout)
    each = total // pp
    if total % pp:
        flags = [flag for flag in COUNTED if getattr(layout, flag)]
        fix = _other_split(model.num_layers, total, pp, vp, least, flags)
        if flags:
            others = " and ".join(COUNTED[flag] for flag in flags)
            said = f"num_layers={model.num_layers} with {others} counted, {total}, is not divisible by {PP}={pp}"
            yield broken(f"num_layers with {others} counted is not divisible by {PP}", said=said, fix=fix)
        else:
            yield indivisible("num_layers", total, PP, pp, fix=fix)
    elif each % vp:
        rule, said = _undivided_stage("pipeline", each, vp)
        yield broken(rule, said=said, fix=f"use {divisors(each)}")


def _other_split(num_layers: int, total: int, pp: int, vp: int, least: int, flags: list[str]) -> str:
    """Splits that are legal: of `total` layers with what counts as one."""
    stages = stages_of(total, vp, least)
    ways = [f"use {any_count(stages, 'stage')}"] if stages else []
    if flags and num_layers % (pp * vp) == 0:
        ways.append(f"leave {all_of(flags)} out")
    split = None if flags else balanced_split(num_layers, pp, vp)
    if split:
        ways.append(f"{'' if ways else 'use '}an uneven split such as {named(split)}")
    return ", or ".join(ways) or f"use {any_count(stages_of(total, 1, 1), 'stage')} without {VPP}"


def _uneven(model: Model, layout: Layout, vp: int) -> Iterator[Violation]:
    pp, total = layout.pp, model.num_layers
    counts = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    given = {name: count for name, count in zip((FIRST, LAST), counts, strict=True) if count is not None}
    if pp == 1:
        out = "it" if len(given) == 1 else "them"
        yield broken(f"an uneven split ({all_of(given)}) needs {PP} above 1", fix=f"leave {out} out")
        return
    if len(given) == pp and vp > 1:
        no_middle = "two pipeline stages with both counts given leave no middle stage"
        yield broken(f"{no_middle}, which Megatron-Core refuses with vpp", fix="give one count")
        return
    for name, value in given.items():
        if value % vp:
            yield indivisible(name, value, VPP, vp, fix=_other_counts(counts, total, pp, vp))
    for rule, said in _remaining(given, total, pp, vp):
        yield broken(rule, said=said, fix=_other_counts(counts, total, pp, vp))


def _remaining(given: dict[str, int], total: int, pp: int, vp: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the layers that are left for the stages without a count: the rule, and the same with its numbers."""
    rest, middle = total - sum(given.values()), pp - len(given)
    names, shown = " and ".join(given), " and ".join(f"{name}={value}" for name, value in given.items())
    if rest < 0:
        more = "together are more than num_layers" if len(given) > 1 else "is more than num_layers"
        yield f"{names} {more}", f"{shown} {more}={total}"
    elif middle == 0 and rest:
        yield (
            f"with {names} no stages remain for the middle layers",
            f"with {shown} no stages remain for {rest} of num_layers={total}",
        )
    elif middle and rest == 0:
        none = "remain for the middle stages"
        yield f"with {names} no layers {none}", f"with {shown} none of num_layers={total} {none}"
    elif middle and rest % middle:
        which = "which do not divide over"
        yield (
            f"with {names} the layers that remain do not divide over the middle stages",
            f"with {shown}, {rest} of num_layers={total} remain, {which} {middle} middle stages",
        )
    elif middle and rest // middle % vp:
        yield _undivided_stage("middle", rest // middle, vp)


def _undivided_stage(which: str, layers: int, vp: int) -> tuple[str, str]:
    """The rule that the layers of a stage divide over its chunks, and the same with its numbers."""
    of, be = f"of a {which} stage", "is" if layers == 1 else "are"
    return (
        f"the layers {of} are not divisible by {VPP}",
        f"the {counted(layers, 'layer')} {of} {be} not divisible by {VPP}={vp}",
    )


def _other_counts(counts: Counts, total: int, pp: int, vp: int) -> str:
    """Counts that are legal, with fewer chunks or stages where there are too many for the layers."""
    if pp == 2 and None not in counts:
        return f"the two counts must add up to num_layers={total}"
    for chunks in (n for n in range(min(vp, total), 0, -1) if total % n == 0):
        near = nearest_counts(total, pp, chunks, counts)
        if near:
            return f"use {named(near, **{VPP: chunks} if chunks != vp else {})}"
    near = nearest_counts(total, total, 1, counts) if total > 1 else None
    if near:
        return f"use {named(near, **{PP: total}, **{VPP: 1} if vp > 1 else {})}"
    given = [name for name, count in zip((FIRST, LAST), counts, strict=True) if count is not None]
    return f"use {PP}=1 without {all_of(given)}"


def named(counts: Counts, **others: int) -> str:
    """The counts that are given, behind other settings, with their names."""
    given = {**others, **{name: n for name, n in zip((FIRST, LAST), counts, strict=True) if n is not None}}
    return all_of(f"{name}={n}" for name, n in given.items())


def _layout_string(model: Model, layout: Layout, text: str, mcore: tuple[int, int]) -> Iterator[Violation]:
    stages, pp = parse_layout(text), layout.pp
    flat = "".join(stages)
    if len(stages) % pp:
        yield broken(
            f"the stages of {LAYOUT} do not divide over {PP}",
            said=f"{LAYOUT} has {undivided(len(stages), 'stage')} over {PP}={pp}",
            fix=f"use a multiple of {pp} stages",
        )
        return
    if pp == 1 and len(stages) > 1:
        needs = f"stages, which need {PP} above 1"
        yield broken(f"{LAYOUT} has several {needs}", said=f"{LAYOUT} has {len(stages)} {needs}")
    for symbol, what in (("E", "the embedding"), ("L", "the loss")):
        if (count := flat.count(symbol)) != 1:
            said = f"{LAYOUT} has {count} {symbol} for {what}"
            yield broken(f"{LAYOUT} must have one {symbol} ({what})", said=said, fix="use one")
    if (count := flat.count("t")) != model.num_layers:
        said = f"{LAYOUT} has {count} t for num_layers={model.num_layers}"
        yield broken(f"the t of {LAYOUT} are not num_layers", said=said, fix=f"use {model.num_layers} t")
    yield from _count_of_mtp(model, flat.count("m"), mcore)
    if flat and (flat[0] != "E" or flat[-1] != "L"):
        yield broken(f"{LAYOUT} must begin with E and end with L")
    if "m" in flat:
        yield from _mtp_of_string(stages, flat, len(stages) // pp, pp)


def _count_of_mtp(model: Model, count: int, mcore: tuple[int, int]) -> Iterator[Violation]:
    """A layout string places all MTP layers; before Megatron-Core 0.14 it must not, and they are on the last chunk.

    Source: Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py` (validate_layer_layout);
    `multi_token_prediction.py` of 0.13 (get_mtp_num_layers_to_build).
    """
    if mcore < PLACED_MTP:
        if count:
            why = "before Megatron-Core 0.14, which puts MTP layers on the last chunk itself"
            said = f"{LAYOUT} has {count} m, which has no meaning {why}"
            yield broken(f"the m of {LAYOUT} have no meaning {why}", said=said, fix="use no m")
    elif count != model.mtp:
        said, fix = f"{LAYOUT} has {count} m for mtp_num_layers={model.mtp}", f"use {model.mtp or 'no'} m"
        if not count:
            fix = f"{fix}, or give megatron_core_version 0.13 if the run's is older than 0.14 and puts them on the last chunk"
        yield broken(f"the m of {LAYOUT} are not mtp_num_layers", said=said, fix=fix)


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
    if num_microbatches < pp:
        rule = f"{{num_microbatches}} is less than {{{PP}}}, which the interleaved schedule needs"
        numbers = {"num_microbatches": num_microbatches, PP: pp}
        yield broken(rule, numbers, fix=f"raise global_batch_size to at least {pp} microbatches")
    elif not pp <= group <= num_microbatches:
        yield broken(
            f"{{{GROUP}}} must lie between {{{PP}}} and {{num_microbatches}}",
            {GROUP: group, PP: pp, "num_microbatches": num_microbatches},
            fix=f"use {nearest_group(num_microbatches, pp, group)}",
        )
    elif 0 < (left := num_microbatches % group) < pp:
        yield broken(
            f"the last group of microbatches is smaller than {PP}",
            said=f"the last group of num_microbatches={num_microbatches}, {left} behind groups of {group}, is smaller than {PP}={pp}",
            fix=f"use {GROUP}={nearest_group(num_microbatches, pp, group)}, or a multiple of {group} microbatches",
        )
