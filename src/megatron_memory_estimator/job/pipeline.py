"""Which layers, and which of embedding, MTP, final norm and output layer, stand on each (pipeline rank, model chunk).

Sources: Megatron-LM `megatron/core/transformer/transformer_block.py` (get_num_layers_to_build), `transformer_layer.py`
(get_transformer_layer_offset), `pipeline_parallel_layer_layout.py`, `multi_token_prediction.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ..dataclass import dataclass
from ..errors import ConfigError, LayoutError
from ..rules import PP, Worded, broken, refusal, some
from ..tape.tensor import divisors
from ..wording import any_count, counted, shown, whole
from .layer_kinds import MOST_LAYERS
from .layout import Layout
from .model import Model

SYMBOLS = "Etm|L"
LONGEST_LAYOUT = 10 * MOST_LAYERS
"""Characters of a layout string with repetitions written out: `t*1|` for each of the most layers, and room to spare."""
_TIMES = re.compile(r"\*([0-9]+)")


@dataclass(frozen=True)
class Chunk:
    """One model chunk: its global layers (0-based) and the extra parts that it holds."""

    pp_rank: int
    vp_stage: int
    layers: tuple[int, ...]
    embedding: bool
    final_norm: bool
    mtp: bool
    output: bool
    after_mtp: bool = False
    """Whether the hidden states that it receives carry the MTP depths behind the main ones."""
    last: bool = True
    """Whether it is the last chunk of its rank."""

    @property
    def reads_inputs(self) -> bool:
        """Whether a forward of it is given a batch (Megatron-LM `pretrain_gpt.py`, get_batch: the first and the last stage, and MTP)."""
        return self.embedding or self.output or self.mtp

    def mtp_kinds(self, model: Model) -> tuple[str, ...]:
        """Kinds of the layers of each MTP depth that it has."""
        if not self.mtp:
            return ()
        return model.mtp_kinds if self.embedding else model.mtp_kinds_behind


@dataclass(frozen=True)
class Pipeline:
    """All chunks, `chunks[pp_rank][vp_stage]`."""

    chunks: tuple[tuple[Chunk, ...], ...]

    @property
    def vp(self) -> int:
        """Model chunks per rank."""
        return len(self.chunks[0])


def virtual_stages(model: Model, layout: Layout, *, overlap_p2p_comm: bool = True) -> int:
    """Model chunks per pipeline rank, from whichever spelling is given."""
    pp = layout.pp
    if layout.pipeline_model_parallel_layout is not None:
        stages = parse_layout(layout.pipeline_model_parallel_layout)
        if len(stages) % pp:
            raise refusal(broken("layout-stages-over-pp", {PP: pp}, stages=some(len(stages), "stage"), multiple=pp))
        return len(stages) // pp
    segments = _hybrid_segments(model, pp)
    if segments is not None:
        return len(segments) // pp
    if layout.num_layers_per_virtual_pipeline_stage is not None:
        per = layout.num_layers_per_virtual_pipeline_stage
        total = split_layers(model, layout)
        if per < 1 or total % pp or (total // pp) % per:
            each = f"{total}/{pp} layers" if total % pp else counted(total // pp, "layer")
            fix = _other_chunks(model, total, pp, per, overlap_p2p_comm=overlap_p2p_comm)
            layers = Worded("layers", each)
            raise refusal(broken("layers-per-chunk", num_layers_per_virtual_pipeline_stage=per, layers=layers, fix=fix))
        return total // pp // per
    return layout.virtual_pipeline_model_parallel_size or 1


def interleaved(model: Model, layout: Layout) -> bool:
    """Whether a stage has several chunks; True where it cannot be said."""
    try:
        return virtual_stages(model, layout) > 1
    except LayoutError:  # reported with the pipeline
        return True


def _other_chunks(model: Model, total: int, pp: int, per: int, *, overlap_p2p_comm: bool) -> str:
    """Layers of a chunk that divide those of a stage, or numbers of stages over which the layers divide."""
    if total % pp == 0 and pp == 2 and not overlap_p2p_comm and not model.hybrid:
        return f"use {total // pp}"  # the interleaved schedule needs more stages
    if total % pp == 0:
        return "leave it out" if model.hybrid or pp == 1 else f"use {divisors(total // pp)}"
    plain = model.hybrid or per < 1 or bool(total % per)
    fitting = range(1, total + 1) if plain else range(min(2 if overlap_p2p_comm else 3, total // per), total // per + 1)
    stages = any_count((n for n in fitting if (total if plain else total // per) % n == 0), "stage")
    return f"use {stages} without it" if plain else f"use {stages}"


def split_layers(model: Model, layout: Layout) -> int:
    """Layers that an even split divides: the decoder layers, and the embedding and the loss where they count as one."""
    return (
        model.num_layers
        + int(layout.account_for_embedding_in_pipeline_split)
        + int(layout.account_for_loss_in_pipeline_split)
    )


@lru_cache(maxsize=64)
def parse_layout(text: str) -> tuple[str, ...]:
    """Stages of a layout string: commas dropped, `(...)*n` and then `X*n` written out, split at `|`.

    As in Megatron-Core both are replacements in the text: nothing else has a meaning, and groups are not nested.
    """
    flat = _joined(text, _repeats(_joined(text, _groups(text.replace(",", "")))))
    wrong = sorted(set(flat) - set(SYMBOLS))
    if wrong or not flat:
        raise ConfigError(
            f"pipeline_model_parallel_layout {shown(text)} has {' '.join(map(shown, wrong[:8])) or 'nothing'}; "
            "its symbols are E (embedding), t (layer), m (MTP), L (loss), | (stage border), (...)*n and X*n"
        )
    stages = tuple(flat.split("|"))
    if flat.count("t") > MOST_LAYERS or len(stages) > MOST_LAYERS:
        raise _too_long(text)
    return stages


def _groups(text: str) -> Iterator[tuple[str, int]]:
    """The parts of a layout string and how often each stands: what `(...)*n` encloses up to the first `)`, n times."""
    at = 0
    while (start := text.find("(", at)) >= 0 and (end := text.find(")", start)) >= 0:
        times = _TIMES.match(text, end + 1) if end > start + 1 else None
        yield text[at:start], 1
        yield (text[start + 1 : end], _count(text, times)) if times else (text[start : end + 1], 1)
        at = times.end() if times else end + 1
    yield text[at:], 1


def _repeats(text: str) -> Iterator[tuple[str, int]]:
    """The parts of a layout string without groups: the symbol of `X*n` n times."""
    at = 0
    while (star := text.find("*", at + 1)) >= 0:
        times = _TIMES.match(text, star)
        yield text[at : star - 1 if times else star], 1
        if times:
            yield text[star - 1], _count(text, times)
        at = times.end() if times else star
    yield text[at:], 1


def _count(text: str, times: re.Match[str]) -> int:
    count = whole(times.group(1))
    if count is None:
        raise _too_long(text)
    return count


def _joined(text: str, parts: Iterable[tuple[str, int]]) -> str:
    """The parts written out; refused before they grow beyond what the largest legal layout takes."""
    found, size = [], 0
    for part, count in parts:
        size += len(part) * count
        if size > LONGEST_LAYOUT:
            raise _too_long(text)
        found.append(part * count)
    return "".join(found)


def _too_long(text: str) -> ConfigError:
    return ConfigError(
        f"pipeline_model_parallel_layout {shown(text)} stands for more than {MOST_LAYERS} layers or stages, the most that is "
        "accepted; check its repetitions"
    )


def layers_per_chunk(model: Model, layout: Layout, vp: int) -> list[list[int]]:
    """Decoder layers of each chunk, `[pp_rank][vp_stage]`, for layouts without a layout string."""
    pp, total = layout.pp, model.num_layers
    first, last = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    if first is None and last is None:
        each = split_layers(model, layout) // pp // vp
        counts = [[each] * vp for _ in range(pp)]
        counts[0][0] -= int(layout.account_for_embedding_in_pipeline_split)
        counts[-1][-1] -= int(layout.account_for_loss_in_pipeline_split)
        return counts
    given = [n for n in (first, last) if n is not None]
    middle = pp - len(given)
    between = (total - sum(given)) // middle if middle else 0
    per_rank = [between] * pp
    if first is not None:
        per_rank[0] = first
    if last is not None:
        per_rank[-1] = last
    return [[n // vp] * vp for n in per_rank]


def build_pipeline(model: Model, layout: Layout) -> Pipeline:
    """The chunks of a legal layout (`legality.check` has passed)."""
    pp, vp = layout.pp, virtual_stages(model, layout)
    stages = parse_layout(layout.pipeline_model_parallel_layout) if layout.pipeline_model_parallel_layout else None
    hybrid = _hybrid_segments(model, pp)
    if stages is not None:
        counts = [[stages[v * pp + r].count("t") for v in range(vp)] for r in range(pp)]
    elif hybrid is not None:
        counts = [[hybrid[v * pp + r] for v in range(vp)] for r in range(pp)]
    else:
        counts = layers_per_chunk(model, layout, vp)
    mtp_at = (pp - 1, vp - 1)
    placed = next((i for i, stage in enumerate(stages or ()) if "m" in stage), None)
    if placed is not None:  # else they are on the last chunk, as without a layout string
        mtp_at = (placed % pp, placed // pp)
    spans: dict[tuple[int, int], tuple[int, ...]] = {}
    done = 0
    for v in range(vp):
        for r in range(pp):
            spans[r, v] = tuple(range(done, done + counts[r][v]))
            done += counts[r][v]
    ends_at = (vp - 1, pp - 1)
    if model.mtp and (stages is None or placed is not None):  # with MTP layers the norm follows the last decoder layer
        ends_at = max(((v, r) for (r, v), span in spans.items() if span), default=ends_at)
    rows = []
    for r in range(pp):
        row = []
        for v in range(vp):
            row.append(
                Chunk(
                    pp_rank=r,
                    vp_stage=v,
                    layers=spans[r, v],
                    embedding=(r, v) == (0, 0),
                    final_norm=(v, r) == ends_at,
                    mtp=bool(model.mtp) and (r, v) == mtp_at,
                    output=(r, v) == (pp - 1, vp - 1),
                    after_mtp=bool(model.mtp) and (v, r) > (mtp_at[1], mtp_at[0]),
                    last=v == vp - 1,
                )
            )
        rows.append(tuple(row))
    return Pipeline(tuple(rows))


def _hybrid_segments(model: Model, pp: int) -> list[int] | None:
    """Sub-layers of each pipeline segment of a hybrid pattern with `|` borders."""
    if model.hybrid_layer_pattern is None or not model.has_borders:
        return None
    segments = [len(segment) for segment in model.hybrid_layer_pattern.split("/")[0].split("|")]
    if len(segments) % pp:
        raise refusal(
            broken("pattern-segments-over-pp", {PP: pp}, segments=some(len(segments), "segment"), multiple=pp)
        )
    return segments
