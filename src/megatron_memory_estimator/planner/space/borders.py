"""Generated pipeline layouts: stage borders that balance the work where layers, MTP and the loss do not divide evenly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from ...job.layout import Layout
from ...job.model import Model
from ...job.training import Training
from ...modules.context import Context
from ...modules.layers import layer_unit
from .balance import Chunks, balanced

EVEN: dict[str, Any] = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": None,
}
"""Settings of an even split of the layers."""


class Work(NamedTuple):
    """Work of each layer, of all MTP depths, of the loss with theirs on the last chunk, and of the embedding on the first."""

    layers: Sequence[float]
    mtp: float
    loss: float
    embedding: float


def weights(model: Model) -> Work:
    """Work by the parameters that one token uses."""
    c = Context(model, Layout(), Training(), "cudnn")
    each: dict[str, float] = {}
    for kind in model.every_kind:
        routed = sum(p.numel for p in layer_unit(c, kind).params if p.split == "expert")
        rest = sum(p.numel for p in layer_unit(c, kind).params if p.split != "expert")
        each[kind] = rest + routed * model.moe_router_topk / (model.num_moe_experts or 1)
    head = float(model.hidden_size * model.padded_vocab(1))
    depth = sum(each[kind] for kind in (model.mtp_kinds if model.mtp else ())) + 2 * model.hidden_size**2
    return Work(
        [each[kind] for kind in model.kinds], model.mtp * depth, (1 + model.mtp) * head, float(model.hidden_size)
    )


def generated_layout(model: Model, pp: int, vp: int, work: Work | None = None) -> str | None:
    """A pipeline_model_parallel_layout whose schedule is as short as can be; None where it would be the even split.

    Every chunk holds a layer, but for those of the loss and of MTP. `work` is that of `weights` where it is not given.
    """
    layers, mtp, loss, embedding = work or weights(model)
    chunks = pp * vp
    if chunks < 2 or len(layers) < chunks:
        return None
    found = []
    before = tuple(accumulate(layers, initial=0.0))
    first = max(model.moe_n_hash_layers, 1)  # hash layers are beside the embedding
    streams = model.enable_mhc_connections and mtp > 0  # and MTP beside the last layer
    for behind in (0, 1) if mtp and not streams else (0,):  # MTP in the last chunk, or in the one before
        extra = [0.0] * chunks
        extra[-1] += loss
        extra[0] += embedding
        extra[-1 - behind] += mtp
        least = [first] + [1] * (chunks - 2) + [int(streams)]
        if mtp and not streams:
            least[-1 - behind] = 0
        if sum(least) > len(layers):  # hash layers, or MTP's, leave too few for the other chunks
            continue
        held = chunks - behind  # no layer may follow MTP
        seconds, counts = balanced(Chunks(before, tuple(extra), tuple(least), pp, held))
        found.append((seconds, behind, counts))
    if not found:
        return None
    _, behind, counts = min(found)
    if not mtp and len(set(counts)) == 1:
        return None
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[-1 - behind] += "m" * model.mtp
    texts[-1] += "L"
    return _written(texts)


def _written(chunks: list[str]) -> str:
    """The layout string; equal chunks in a row are written once: (tt|)*29."""
    parts = []
    for text, members in groupby(chunks[:-1]):
        count = len(list(members))
        parts.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join(parts) + chunks[-1]
