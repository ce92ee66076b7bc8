"""Rules of the pipeline: layers over stages and chunks, layout strings, the interleaved schedule; and splits that are legal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ..errors import LayoutError
from ..job.layout import Layout
from ..job.model import Model
from ..job.pipeline import build_pipeline, parse_layout, split_layers, virtual_stages
from ..modules.kinds import kinds_in, kinds_of
from ..rules import PP, Violation, Worded, broken, of_error, some
from ..tape.tensor import divisors
from ..wording import all_of, any_count

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
    try:
        vp = virtual_stages(model, layout, overlap_p2p_comm=overlap_p2p_comm)
    except LayoutError as error:
        yield from of_error(error)
        return
    if vp > 1 and pp == 2 and not overlap_p2p_comm:
        yield broken("chunks-of-two-stages-need-p2p-overlap")
    if vp > 1 and model.hybrid and not model.has_borders:
        yield broken("chunks-of-hybrid-need-borders", {VPP: vp})
        return
    if vp > 1 and pp == 1:
        yield broken("chunks-need-pp", {VPP: vp})
        return
    if model.has_borders:
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
            yield broken("layout-and-vpp", {PP: pp, VPP: vpp}, stages=some(stages, "stage"))
    elif len(given) > 1:
        yield broken("one-spelling-of-chunks", names=all_of(given))
    if text is not None and (uneven or account):
        yield broken("layout-or-counts")
    if uneven and account:
        yield broken("uneven-or-accounted")
    if uneven and layout.num_layers_per_virtual_pipeline_stage is not None:
        yield broken("uneven-or-layers-per-chunk")
    if text is None and (uneven or account or given) and model.has_borders:
        yield broken("pattern-with-borders-or-split")


def shared_indexers(model: Model, layout: Layout) -> Iterator[Violation]:
    """Sparse-attention layers that share an indexer are on one stage with it (Megatron-LM `experimental_attention_variant/dsa.py`)."""
    if not any(kind.borrows for kind in kinds_in(model.kinds)):
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            if chunk.layers and any(kind.borrows for kind in kinds_of(model.kinds[chunk.layers[0]])):
                sharing = {
                    "dsa_indexer_topk_freq": model.dsa_indexer_topk_freq,
                    "dsa_indexer_skip_topk_offset": model.dsa_indexer_skip_topk_offset,
                }
                yield broken("shared-indexer-across-stages", sharing, layer=chunk.layers[0])
                return


def mtp_apart(model: Model, layout: Layout) -> Iterator[Violation]:
    """MTP layers that are another variant on later stages are one variant there: a stage before has as many layers as there are depths."""
    if not model.mtp or model.mtp_layer_variant_behind is None:
        return
    for chunks in build_pipeline(model, layout).chunks:
        for chunk in chunks:
            before = chunk.layers[0] if chunk.layers else model.num_layers
            if chunk.mtp and not chunk.embedding and before < model.mtp:
                yield broken("mtp-variant-with-few-layers-before", depths=model.mtp)
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
            counts = {"num_layers": model.num_layers, PP: pp}
            yield broken("accounted-layers-over-pp", counts, others=others, total=total, fix=fix)
        else:
            yield broken("layers-over-pp", {"num_layers": total, PP: pp}, fix=fix)
    elif each % vp:
        yield broken(
            "layers-of-stage-over-vpp", {VPP: vp}, layers=some(each, "layer"), fix=f"use {VPP} {divisors(each)}"
        )


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
        yield broken("uneven-split-needs-pp", names=all_of(given))
        return
    if len(given) == pp and vp > 1:
        yield broken("uneven-chunks-of-two-stages")
        return
    fix = _other_counts(counts, total, pp, vp)
    for name, value in given.items():
        if value % vp:
            yield broken("count-over-vpp", {VPP: vp}, stage=(name, value), fix=fix)
    rest, middle = total - sum(given.values()), pp - len(given)
    shown = Worded(" and ".join(given), " and ".join(f"{name}={value}" for name, value in given.items()))
    numbers = {"given": shown, "num_layers": total, "rest": rest, "middle": middle, "fix": fix}
    if rest < 0:
        are = "together are" if len(given) > 1 else "is"
        yield broken("counts-above-layers", numbers, are=are)
    elif middle == 0 and rest:
        yield broken("no-stage-for-middle-layers", numbers)
    elif middle and rest == 0:
        yield broken("no-layer-for-middle-stages", numbers)
    elif middle and rest % middle:
        yield broken("middle-layers-over-stages", numbers)
    elif middle and rest // middle % vp:
        yield broken("layers-of-middle-stage-over-vpp", {VPP: vp}, layers=some(rest // middle, "layer"), fix=fix)


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
        yield broken("layout-stages-over-pp", {PP: pp}, stages=some(len(stages), "stage"), multiple=pp)
        return
    if pp == 1 and len(stages) > 1:
        yield broken("layout-stages-need-pp", stages=len(stages))
    for symbol, code in (("E", "layout-embedding"), ("L", "layout-loss")):
        if flat.count(symbol) != 1:
            yield broken(code, count=flat.count(symbol))
    if flat.count("t") != model.num_layers:
        yield broken("layout-layers", count=flat.count("t"), num_layers=model.num_layers, use=model.num_layers)
    yield from _count_of_mtp(model, flat.count("m"), mcore)
    if flat and (flat[0] != "E" or flat[-1] != "L"):
        yield broken("layout-ends")
    if "m" in flat:
        yield from _mtp_of_string(stages, flat, len(stages) // pp, pp)


def _count_of_mtp(model: Model, count: int, mcore: tuple[int, int]) -> Iterator[Violation]:
    """A layout string places all MTP layers; before Megatron-Core 0.14 it must not, and they are on the last chunk.

    Source: Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py` (validate_layer_layout);
    `multi_token_prediction.py` of 0.13 (get_mtp_num_layers_to_build).
    """
    if mcore < PLACED_MTP:
        if count:
            yield broken("layout-mtp-before-0.14", count=count)
    elif count != model.mtp:
        older = ", or give megatron_core_version 0.13 if the run's is older than 0.14 and puts them on the last chunk"
        use = f"{model.mtp or 'no'} m{'' if count else older}"
        yield broken("layout-mtp", count=count, mtp_num_layers=model.mtp, use=use)


def _mtp_of_string(stages: tuple[str, ...], flat: str, vp: int, pp: int) -> Iterator[Violation]:
    if "t" in flat[flat.index("m") :]:
        yield broken("layout-layer-after-mtp")
    holders = [i for i, stage in enumerate(stages) if "m" in stage]
    if len(holders) != 1:
        yield broken("layout-mtp-in-one-stage")
    elif holders[0] // pp != vp - 1:
        yield broken("layout-mtp-in-last-chunk")


def schedule(model: Model, layout: Layout, num_microbatches: int) -> Iterator[Violation]:
    """Rules of the interleaved schedule."""
    if num_microbatches < 1:
        yield broken("no-microbatch", num_microbatches=num_microbatches)
        return
    vp = virtual_stages(model, layout)
    if vp == 1:
        return
    pp, group = layout.pp, layout.microbatch_group_size_per_vp_stage or layout.pp
    if num_microbatches < pp:
        numbers: dict[str, object] = {"num_microbatches": num_microbatches, PP: pp}
        yield broken("fewer-microbatches-than-stages", numbers, least=pp)
    elif not pp <= group <= num_microbatches:
        numbers = {GROUP: group, PP: pp, "num_microbatches": num_microbatches}
        yield broken("group-of-microbatches", numbers, use=nearest_group(num_microbatches, pp, group))
    elif 0 < num_microbatches % group < pp:
        behind = Worded("", f" in groups of {group}")
        numbers = {PP: pp, "num_microbatches": num_microbatches, "group": group, "behind": behind}
        yield broken("last-group-of-microbatches", numbers, use=nearest_group(num_microbatches, pp, group))


Counts = tuple[int | None, int | None]
"""Layers of the first and of the last stage, None where they are not said."""
MOST_NAMED = 64
"""The most stages of a suggestion."""


def balanced_split(num_layers: int, pp: int, vp: int) -> Counts | None:
    """First- and last-stage layer counts of the most balanced legal uneven split, or None.

    Most balanced: the smallest largest stage, then the largest smallest one; of equals, fewer layers on the first
    stage, where most microbatches are in flight, and as few counts as possible.
    """
    splits: list[tuple[tuple[int, int, int, int, bool], Counts]] = []

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


def even_layout(num_layers: int, chunks: int, mtp: int) -> str | None:
    """A pipeline_model_parallel_layout of as many layers in each chunk, one more in the first ones, MTP and the loss in the last; None
    for more chunks than layers.

    Source: NVIDIA-NeMo/Megatron-Bridge `models/deepseek/deepseek_v4_bridge.py` (set_deepseek_v4_pipeline_model_parallel_layout).
    """
    each, more = divmod(num_layers, chunks)
    if not each:
        return None
    counts = [f"t*{each + (at < more)}" for at in range(chunks)]
    return f"E{'|'.join(counts)}{'m' * mtp}L"


def stages_of(layers: int, vp: int, least: int) -> list[int]:
    """Numbers of stages from `least` on over which layers divide, and over the chunks of each."""
    return [pp for pp in range(least, min(layers, MOST_NAMED) + 1) if layers % (pp * vp) == 0]


def nearest_counts(num_layers: int, pp: int, vp: int, counts: Counts) -> Counts | None:
    """Legal layer counts of the stages that have one, as near to theirs as there are. None where no count is legal."""
    first, last = counts
    middle = pp - (first is not None) - (last is not None)
    if num_layers % vp:
        return None
    if middle == 0 and first is not None:
        a = max(1, min(first, num_layers - 1))
        return a, num_layers - a

    def offers() -> Iterator[tuple[int, Counts]]:
        for each in range(vp, num_layers, vp):
            rest = num_layers - each * middle
            if first is not None and last is not None:
                a = max(vp, min(first // vp * vp, rest - vp))
                if rest > a:
                    yield abs(a - first) + abs(rest - a - last), (a, rest - a)
            elif rest > 0:
                yield (
                    (abs(rest - first), (rest, None)) if first is not None else (abs(rest - (last or 0)), (None, rest))
                )

    return min(offers(), key=lambda offer: offer[0], default=(0, None))[1]


def nearest_group(num_microbatches: int, pp: int, group: int) -> int:
    """The legal microbatch_group_size_per_vp_stage that is nearest to a refused one, where there are as many microbatches as stages."""
    start = min(max(group, pp), num_microbatches)
    near = (n for far in count() for n in (start - far, start + far) if pp <= n <= num_microbatches)
    return next(n for n in near if not 0 < num_microbatches % n < pp)
