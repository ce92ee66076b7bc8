"""Generated pipeline layouts: stage borders that balance the work where layers, MTP and the loss do not divide evenly."""

from __future__ import annotations

from itertools import groupby

from ..context import Context
from ..layout import Layout
from ..model import Model
from ..modules.layers import layer_unit
from ..training import Training


def weights(model: Model) -> tuple[list[float], float, float]:
    """Work of each layer, of all MTP depths and of the loss: the parameters that one token uses."""
    c = Context(model, Layout(), Training(), "cudnn")
    each: dict[str, float] = {}
    for kind in dict.fromkeys((*model.kinds, *model.mtp_kinds)):
        routed = sum(p.numel for p in layer_unit(c, kind).params if p.split == "expert")
        rest = sum(p.numel for p in layer_unit(c, kind).params if p.split != "expert")
        each[kind] = rest + routed * model.moe_router_topk / (model.num_moe_experts or 1)
    loss = float(model.hidden_size * model.padded_vocab(1))
    depth = sum(each[kind] for kind in model.mtp_kinds) + 2 * model.hidden_size**2 + loss
    return [each[kind] for kind in model.kinds], model.mtp * depth, loss


def generated_layout(model: Model, pp: int, vp: int) -> str | None:
    """A pipeline_model_parallel_layout whose heaviest chunk is as light as can be; None where it would be the even split.

    Chunks are filled from the last one: of equal choices the first chunks, of which most microbatches are in flight, get less.
    Every chunk holds a layer, but for the one of the loss.
    """
    layers, mtp, loss = weights(model)
    chunks, total = pp * vp, len(layers)
    if chunks < 2 or total < chunks - 1:
        return None
    tail = [(loss, "L")] if not mtp else [(mtp, "m" * model.mtp), (loss, "L")]
    items = [*((weight, "t") for weight in layers), *tail]
    low, high = max(weight for weight, _ in items), sum(weight for weight, _ in items)
    best = _filled(items, chunks, high)
    for _ in range(40):
        middle = (low + high) / 2
        found = _filled(items, chunks, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    if best is None:
        return None
    counts = [chunk.count("t") for chunk in best]
    if not mtp and len(set(counts)) == 1:
        return None
    if mtp and not any("m" in chunk for chunk in best[-pp:]):
        return None
    best[0] = "E" + best[0]
    return _written(best)


def _filled(items: list[tuple[float, str]], chunks: int, most: float) -> list[str] | None:
    """Chunks from the last to the first, none heavier than `most`, with a layer left for each chunk before; None if impossible."""
    found: list[str] = []
    at = len(items)
    for chunk in range(chunks, 0, -1):
        text, weight = "", 0.0
        while at > 0:
            size, symbol = items[at - 1]
            short_of_layers = symbol == "t" and at - 1 < chunk - 1
            if short_of_layers or (weight + size > most and (text or size > most)):
                break
            text, weight, at = symbol + text, weight + size, at - 1
        if not text:
            return None
        found.insert(0, text)
    return found if at == 0 and all("t" in text for text in found[:-1] if "m" not in text) else None


def _written(chunks: list[str]) -> str:
    """The layout string; equal chunks in a row are written once: (tt|)*29."""
    parts = []
    for text, members in groupby(chunks[:-1]):
        count = len(list(members))
        parts.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join(parts) + chunks[-1]
