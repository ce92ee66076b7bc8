"""Generated pipeline layouts: stage borders that balance the work where layers, MTP and the loss do not divide evenly."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ...job.layout import Layout
from ...job.model import Model
from ...job.training import Training
from ...modules.context import Context
from ...modules.layers import layer_unit

EVEN: dict[str, Any] = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": None,
}
"""Settings of an even split of the layers."""


def weights(model: Model) -> tuple[list[float], float, float]:
    """Work of each layer, of all MTP depths and of the loss: the parameters that one token uses."""
    c = Context(model, Layout(), Training(), "cudnn")
    each: dict[str, float] = {}
    for kind in model.every_kind:
        routed = sum(p.numel for p in layer_unit(c, kind).params if p.split == "expert")
        rest = sum(p.numel for p in layer_unit(c, kind).params if p.split != "expert")
        each[kind] = rest + routed * model.moe_router_topk / (model.num_moe_experts or 1)
    loss = float(model.hidden_size * model.padded_vocab(1))
    depth = sum(each[kind] for kind in (model.mtp_kinds if model.mtp else ())) + 2 * model.hidden_size**2 + loss
    return [each[kind] for kind in model.kinds], model.mtp * depth, loss


def generated_layout(model: Model, pp: int, vp: int) -> str | None:
    """A pipeline_model_parallel_layout whose busiest rank has as little work as can be; None where it would be the even split.

    Every chunk holds a layer, but for those of the loss and of MTP.
    """
    layers, mtp, loss = weights(model)
    chunks = pp * vp
    if chunks < 2 or len(layers) < chunks:
        return None
    balanced = []
    first = max(model.moe_n_hash_layers, 1)  # hash layers are beside the embedding
    streams = model.enable_mhc_connections and mtp > 0  # and MTP beside the last layer
    for behind in (0, 1) if mtp and not streams else (0,):  # MTP in the last chunk, or in the one before
        extra = [0.0] * chunks
        extra[-1] += loss
        extra[-1 - behind] += mtp
        least = [first] + [1] * (chunks - 2) + [int(streams)]
        if mtp and not streams:
            least[-1 - behind] = 0
        held = chunks - behind  # no layer may follow MTP
        counts, load = _balanced(layers, extra, least, pp, held)
        balanced.append((load, behind, counts))
    _, behind, counts = min(balanced)
    if not mtp and len(set(counts)) == 1:
        return None
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[-1 - behind] += "m" * model.mtp
    texts[-1] += "L"
    return _written(texts)


def _balanced(
    layers: list[float], extra: list[float], least: list[int], pp: int, held: int
) -> tuple[list[int], tuple[float, float]]:
    """Layers of each chunk, and the work of the busiest rank and chunk: one layer at a time moves from the busiest rank to another."""
    chunks = len(extra)
    counts = [len(layers) // held + (at >= held - len(layers) % held) if at < held else 0 for at in range(chunks)]
    best = _load(layers, counts, extra, pp)
    while True:
        moves = []
        loads = _chunk_loads(layers, counts, extra)
        ranks = [sum(loads[rank::pp]) for rank in range(pp)]
        busiest = max(range(pp), key=ranks.__getitem__)
        for rank in range(pp):
            if rank == busiest:
                continue
            taken = max(
                (at for at in range(busiest, held, pp) if counts[at] > least[at]), key=loads.__getitem__, default=-1
            )
            given = min(range(rank, held, pp), key=loads.__getitem__, default=-1)
            if taken >= 0 and given >= 0:
                tried = [n - (at == taken) + (at == given) for at, n in enumerate(counts)]
                moves.append((_load(layers, tried, extra, pp), tried))
        if not moves or min(moves)[0] >= best:
            return counts, best
        best, counts = min(moves)


def _load(layers: list[float], counts: list[int], extra: list[float], pp: int) -> tuple[float, float]:
    loads = _chunk_loads(layers, counts, extra)
    return max(sum(loads[rank::pp]) for rank in range(pp)), sum(load * load for load in loads)


def _chunk_loads(layers: list[float], counts: list[int], extra: list[float]) -> list[float]:
    found, at = [], 0
    for count, more in zip(counts, extra, strict=True):
        found.append(sum(layers[at : at + count]) + more)
        at += count
    return found


def _written(chunks: list[str]) -> str:
    """The layout string; equal chunks in a row are written once: (tt|)*29."""
    parts = []
    for text, members in groupby(chunks[:-1]):
        count = len(list(members))
        parts.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join(parts) + chunks[-1]
