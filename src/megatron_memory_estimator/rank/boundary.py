"""Tensors outside the layers: at the pipeline's boundaries, waiting for deferred weight gradients, left between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter

from ..job.pipeline import Chunk
from ..modules.context import Context
from ..modules.kinds import kinds_in, kinds_of, layers_with
from ..modules.sparse_attention import shared_indices
from ..tape.tensor import Dim, Tensor, tensor
from .captures import graph_ends
from .chunks import ChunkPlan, boundary
from .rank import Rank
from .schedule import Direction
from .workspaces import layer_counts


def pipeline_tensors(rank: Rank, direction: Direction) -> tuple[Tensor, ...]:
    """Boundary tensors alive outside the layers during a forward ("F") or backward ("B").

    1F1B: the last input gradient stays referenced until the next one; during a forward the graph of the microbatch
    before also pins its input, and the output gradient received last is still there. Interleaved with overlapped
    communication: one receive-ahead buffer for each direction and the input gradient being sent.
    Source: Megatron-LM `megatron/core/pipeline_parallel/schedules.py`.
    """
    c, pp = rank.context, rank.context.layout.pp
    static = () if c.training.cuda_graph_warmup_steps else graph_ends(rank)
    static = (*static, *last_groups(rank))
    if pp == 1:
        return static
    deferred = (*deferred_wgrads(rank, rank.num_microbatches - 1), *static)
    if len(rank.plans) > 1:
        names = ["input_tensor_grad being sent", "output_tensor_grad received ahead", "input_tensor received ahead"]
        ahead = (c.layout.microbatch_group_size_per_vp_stage or pp) - pp
        if rank.pp_rank in (0, pp - 1):  # a larger group prefetches on the first and the last rank
            names += [f"prefetched tensor {i}" for i in range(ahead)]
        return (*(boundary(c, f"pipeline.{name}") for name in names), *deferred)
    found: list[Tensor] = []
    chunk = rank.plans[0].chunk
    first, behind = (chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else (0, 0)
    if rank.pp_rank > 0:
        found.append(boundary(c, "pipeline.input_tensor_grad", with_mtp=chunk.after_mtp, layer=first))
        if direction == "F":
            name = "pipeline.input_tensor of the microbatch before"
            found.append(boundary(c, name, with_mtp=chunk.after_mtp, layer=first))
    if direction == "F" and rank.pp_rank < pp - 1:
        found.append(boundary(c, "pipeline.output_tensor_grad", with_mtp=chunk.after_mtp or chunk.mtp, layer=behind))
    return (*found, *deferred)


def last_groups(rank: Rank) -> tuple[Tensor, ...]:
    """Fine-grained offloading: the last group of each module, of the microbatch whose backward comes first, stays on the GPU.

    Behind decoder layers an MTP layer has the last groups of every microbatch: it keeps all on the GPU, but in the first step.

    Source: Megatron-LM `megatron/core/pipeline_parallel/fine_grained_activation_offload.py` (post_warmup_callback).
    """
    if not rank.context.training.fine_grained_activation_offloading or rank.all_leaves or rank.plans[-1].chunk.mtp:
        return ()
    found: dict[str, tuple[Tensor, ...]] = {}
    for plan in reversed(rank.plans):
        for run in reversed(plan.runs):
            for module, tensors in run.away:
                found.setdefault(module, tensors)
    once = dict.fromkeys(t for group in found.values() for t in group)
    return tuple(t._replace(name=f"offload.{t.name} that stays") for t in once)


def deferred_wgrads(rank: Rank, microbatches: int) -> tuple[Tensor, ...]:
    """What waits for the output layer's deferred weight gradient: its input and the gradient of the logits, of as many
    of `microbatches` as the limit allows. The input brings its autograd graph along, which pins the stage's received
    input and the gradient of that; those of the last microbatch are counted with the schedule.

    Source: Megatron-LM `megatron/core/tensor_parallel/layers.py` (embedding_activation_buffer, grad_output_buffer).
    """
    c, t = rank.context, rank.context.training
    if not t.defer_embedding_wgrad_compute or not any(plan.chunk.output for plan in rank.plans):
        return ()
    count = min(microbatches, t.wgrad_deferral_limit or microbatches)
    if count < 1:
        return ()
    many, vocab = (
        Dim("deferred microbatches", count),
        c.dim("padded_vocab_size", c.model.padded_vocab(c.layout.tp), "tp"),
    )
    found = [
        c.new("pipeline.deferred output_layer input", many, *c.stream("input", c.hidden).shape),
        c.new("pipeline.deferred logits gradient", many, c.seq, c.batch, vocab),
    ]
    pinned = Dim("deferred microbatches but the last", count - int(count == microbatches))
    if pinned.size:
        for what in ("input_tensor", "input_tensor.grad"):
            layers = rank.plans[0].chunk.layers
            one = boundary(c, what, layer=layers[0] if layers else 0)
            found.append(tensor(f"pipeline.{what} of deferred graphs", (pinned, *one.shape), one.dtype))
    return tuple(found)


def leaves_of_checkpoints(rank: Rank, plan: ChunkPlan) -> Iterator[Tensor]:
    """What is left of checkpoints around routers: the dispatcher refers to the probabilities of the last microbatch, whose graph ends in
    the checkpoint's detached input, a leaf. Input and gradient stay until the layer's next forward: of layers under full recompute, of
    which the first of a stage shows what was received, and the normed input of experts under recompute_modules moe.

    Source: Megatron-LM `megatron/core/tensor_parallel/random.py` (CheckpointFunction.backward), `moe/token_dispatcher.py` (self.probs,
    self.local_probs, token_probs); both seen in the real classes.
    """
    c, name = rank.context, f"pipeline.chunk {plan.chunk.vp_stage} recomputed MoE layers'"
    whole = c.training.recomputes_whole_layers()
    receiving = whole and c.layout.pp > 1
    every, most = _checkpoints(c)

    def routers(chunk: Chunk) -> list[bool]:
        return around_routers(c.model.kinds, *(chunk.layers[:1] or (0,)), len(chunk.layers), every, most)

    chunk = plan.chunk
    grads = sum(routers(chunk))
    shown = sum(routers(chunk)[:1]) if receiving and not chunk.embedding else 0
    for what, count in (("inputs", grads - shown), ("inputs.grad", grads)):
        one = c.residual(what) if whole else c.stream(what, c.hidden)
        if count:
            yield tensor(f"{name} {what}", (Dim("layers", count), *one.shape), one.dtype)


def _checkpoints(c: Context) -> tuple[int, int | None]:
    """Layers under one checkpoint, and how many checkpoints a chunk has at most."""
    t = c.training
    if not t.recomputes_whole_layers():  # those around experts
        return 1, None
    together = t.recomputed_together()
    return (together, None) if t.recomputes_layers() else (1, together)  # block: the first layers have one each


@lru_cache(maxsize=4096)
def around_routers(kinds: tuple[str, ...], first: int, count: int, every: int, most: int | None) -> list[bool]:
    """Of every checkpoint around so many decoder layers from the first on, in order: does it have a router in it?"""
    routed = [any(kind.routed for kind in kinds_of(layer)) for layer in kinds[first : first + count]]
    return [any(routed[start : start + every]) for start in range(0, count, every)][:most]


def resting_tensors(rank: Rank) -> tuple[Tensor, ...]:
    """Boundary tensors alive between two steps: each chunk's last received input and its gradient.

    With all-to-all overlap a layer's input is a leaf of its own. The alltoall dispatcher keeps the router's probabilities
    of the last microbatch, whose graph ends in that leaf: input and gradient of every MoE layer stay until its next forward.
    Source: Megatron-LM `megatron/core/pipeline_parallel/utils.py` (ScheduleNode), `moe/token_dispatcher.py` (self.probs).
    """
    c, t = rank.context, rank.context.training
    leaving = c.model.has_moe and (t.recomputes_whole_layers() or t.recomputes("moe"))
    overlapping = t.overlap_moe_expert_parallel_comm and t.moe_token_dispatcher_type == "alltoall"
    found: list[Tensor] = []
    for plan in rank.plans:
        name = f"pipeline.chunk {plan.chunk.vp_stage}"
        if not plan.chunk.embedding and c.layout.pp > 1:
            wide, first = plan.chunk.after_mtp, plan.chunk.layers[0] if plan.chunk.layers else 0
            names = (f"{name} input_tensor", f"{name} input_tensor.grad")
            found += [boundary(c, one, with_mtp=wide, layer=first) for one in names]
        if leaving:
            found += leaves_of_checkpoints(rank, plan)
        layers = plan.layers(c.model) if overlapping else {}
        if any(kind.routed for kind in kinds_in(layers)):
            moe_layers = Dim("moe_layers", layers_with(layers, attrgetter("routed")))
            released = "attn_norm" in t.offload_modules  # its input is in host memory
            for what in ("inputs.grad",) if released else ("inputs", "inputs.grad"):
                one = c.residual(what)
                found.append(tensor(f"{name} MoE layers' {what}", (moe_layers, *one.shape), one.dtype))
    counts = layer_counts(c, rank.plans)
    if any(kind.indexer for kind in kinds_in(counts)) and not t.recomputes_whole_layers():
        # else a workspace, alive at every moment
        found += shared_indices(c, layers_with(counts, attrgetter("indexer")))
    return (*found, *graph_ends(rank))
