"""Model state of a rank: weights, gradient buffers, main parameters and moments, as named tensors.

Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/core/optimizer/distrib_optimizer.py`.

Models beside the policy that stay on the device: a reference without gradients, a critic with all of its state.

Sources: volcengine/verl `verl/workers/engine/megatron/transformer_impl.py` (reference and critic are engines of their own);
modelscope/ms-swift `swift/megatron/trainers/rlhf_mixin.py` (ref_models).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple, get_args

from ..job.rollout import Rollout
from ..modules.context import Context
from ..modules.quantization import RECIPES, data_bytes, orientations, scale_bytes
from ..tape.tensor import DTYPE_BYTES, Param, ceil_div, largest, smallest
from .buffers import Buffer, by_layout, deals_whole
from .fsdp import active
from .kept import Since
from .optimizers import between_steps, in_host_memory, megatron_masters, optimizer_tensors

StatePart = Literal["weights", "gradients", "optimizer"]
STATE_PARTS: tuple[StatePart, ...] = get_args(StatePart)


class State(NamedTuple):
    """A persistent tensor of model state: which tensor it is, of which parameters of which chunk, and from when it exists.

    `saved`: a checkpoint holds it; `frozen`: it belongs to weights that are not trained.
    """

    part: StatePart
    tensor: str
    group: str
    chunk: int
    dtype: str
    numel: int
    nbytes: int
    since: Since
    why: str
    saved: bool = False
    frozen: bool = False

    @property
    def name(self) -> str:
        """Its name in reports."""
        return " ".join(filter(None, (self.tensor, self.group, f"chunk {self.chunk}")))

    @property
    def of_step(self) -> bool:
        """Whether it exists during the optimizer step alone."""
        return self.since == "optimizer"


def _state(part: StatePart, tensor: str, buffer: Buffer, dtype: str, numel: int, since: Since, why: str) -> State:
    nbytes = numel * DTYPE_BYTES[dtype]
    return State(part, tensor, buffer.group, buffer.chunk, dtype, numel, nbytes, since, why, frozen=buffer.frozen)


def frozen_weights(c: Context, chunk: int, params: list[tuple[Param, int]]) -> list[State]:
    """Weights that are not trained: no gradient, no optimizer state, never sharded over data-parallel ranks."""
    t = c.training
    frozen = [(p, count) for p, count in params if p.frozen]
    low = [(p, count) for p, count in frozen if p.quantized and t.low_precision_weights]
    found: list[State] = []
    for dtype in dict.fromkeys((t.params_dtype, "fp32")):
        own = [(p, count) for p, count in frozen if (p.dtype or t.params_dtype) == dtype]
        plain = sum(p.numel * count for p, count in own if not (p.quantized and t.low_precision_weights))
        if not isinstance(plain, int) or plain:
            size = plain * DTYPE_BYTES[dtype]
            found.append(
                State("weights", "frozen weights", "", chunk, dtype, plain, size, "setup", "not trained", frozen=True)
            )
    if low:
        recipe = RECIPES[t.low_precision]
        numel = sum(p.numel * count for p, count in low)
        scales = sum(scale_bytes(recipe, p) * count for p, count in low)
        buffer = Buffer(
            chunk, False, "fp8", t.grad_dtype, numel, numel, numel, 0, 0, "", recipe.name, scales, frozen=True
        )
        found += low_precision_weights(c, buffer)
    return found


def model_state(c: Context, buffers: list[Buffer]) -> list[State]:
    """Every state tensor of a rank."""
    states = (state for buffer in buffers for state in buffer_state(c, buffer))
    return [*states, *quantized_masters(c, buffers), *chunks_of_moments(c, buffers)]


def buffer_state(c: Context, buffer: Buffer) -> list[State]:
    """State tensors of one buffer: weights, gradients and the optimizer's, by the rules of the optimizer in use."""
    t = c.training
    own = not t.use_distributed_optimizer or (deals_whole(t) and not by_layout(t))
    where = "the modules' own parameters" if own else "param buffer of the distributed optimizer"
    if active(c):
        where = f"1/{buffer.weight_ways}, fully sharded"
    if buffer.recipe:
        found = low_precision_weights(c, buffer)
    else:
        share = ceil_div(buffer.numel, buffer.weight_ways)
        found = [_state("weights", "weights", buffer, buffer.param_dtype, share, "setup", where)]
    share, why = ceil_div(buffer.numel, buffer.grad_ways), "contiguous gradient buffer"
    found.append(_state("gradients", "main_grad", buffer, buffer.grad_dtype, share, "setup", why))
    for kept in between_steps(c, optimizer_tensors(c, buffer)):
        since = kept.since
        # made at once for sharded checkpoints; in the first measured peaks
        if t.use_megatron_fsdp and since == "first step":
            since = "setup"
        one = _state("optimizer", kept.name, buffer, kept.dtype, kept.numel, since, buffer.share)
        found.append(one._replace(saved=kept.saved))
    return found


def state_in_host_memory(c: Context, buffers: Sequence[Buffer]) -> int:
    """Bytes of the optimizer's state that is in host memory between steps (`chunked_optimizer_state_offload`)."""
    if not c.training.chunked_optimizer_state_offload:
        return 0
    return sum(one.nbytes for buffer in buffers for one in in_host_memory(c, optimizer_tensors(c, buffer)))


def chunks_of_moments(c: Context, buffers: list[Buffer]) -> list[State]:
    """Two chunks of the moments that are in host memory between steps, all of them where a chunk has no size."""
    away = [one for buffer in buffers for one in in_host_memory(c, optimizer_tensors(c, buffer)) if not one.main]
    every = sum(one.nbytes for one in away)
    if not away:
        return []
    chunk = MB * (c.training.optimizer_state_offload_chunk_size_mb or 0)
    size = smallest(every, 2 * chunk) if chunk else every
    return [
        State("optimizer", "moments back on the GPU", "", 0, "uint8", size, size, "optimizer", "two chunks at a time")
    ]


MB = 2**20
"""Bytes of a unit of optimizer_state_offload_chunk_size_mb."""


def quantized_masters(c: Context, buffers: list[Buffer]) -> list[State]:
    """Copies of the fp32 main parameters in the model's dtype, which weights in low precision are quantized from: all of an optimizer
    at once, beside the fp32 gradients. Dense and expert weights have an optimizer each, one after the other; with
    overlap_param_gather_with_optimizer_step so have the first chunk and the others (`optimizer/__init__.py`, `optimizer.py: _step`;
    read from source, no run exercises it).

    mxfp8 weights are copied into the gradient buffer instead (reuse_grad_buf_for_mxfp8_param_ag); where the precision-aware optimizer
    owns the masters (delayed scaling), it quantizes them itself; fully sharded blockwise weights are quantized a few buckets at a time.
    Source: TransformerEngine `pytorch/tensor/utils.py` (cast_master_weights_to_fp8, quantize_master_weights); Megatron-LM
    `megatron/core/optimizer/distrib_optimizer.py` (_copy_main_params_to_model_params), `megatron_fsdp/param_and_grad_buffer.py`.
    """
    t = c.training
    own = t.use_precision_aware_optimizer and not megatron_masters(c)
    in_parts = ("blockwise",) if active(c) else ("mxfp8",)
    found: dict[tuple[bool, bool], list[State]] = {}
    for buffer in buffers:
        if buffer.recipe and buffer.recipe not in in_parts and not own and not buffer.frozen:
            why = "quantized into the weights, all together"
            one = _state(
                "optimizer", "main_param to be quantized", buffer, t.params_dtype, buffer.owned, "optimizer", why
            )
            apart = t.overlap_param_gather_with_optimizer_step and buffer.chunk == 0
            found.setdefault((buffer.expert, apart), []).append(one)
    if len(found) < 2:
        return [state for states in found.values() for state in states]
    sizes = {which: sum(state.nbytes for state in states) for which, states in found.items()}
    if all(isinstance(size, int) for size in sizes.values()):
        return found[max(sizes, key=sizes.__getitem__)]
    first = next(iter(found.values()))[0]  # of arrays of layouts the most, as one
    return [first._replace(nbytes=reduce(largest, sizes.values()))]


def low_precision_weights(c: Context, buffer: Buffer) -> list[State]:
    """Weights that exist in low precision only: the param buffer, a copy by columns where the GEMM needs one, the scales.

    mxfp8 weights cannot be views of a buffer; they are gathered through the gradient buffer and have both copies of their own.
    """
    recipe = RECIPES[buffer.recipe]
    plain = ceil_div(buffer.elements, buffer.weight_ways)
    first = plain if recipe.name == "mxfp8" else ceil_div(buffer.numel, buffer.weight_ways)
    why = "the modules' own" if recipe.name == "mxfp8" else "param buffer of the distributed optimizer"

    def weights(tensor: str, numel: int, why: str) -> State:
        return _state("weights", tensor, buffer, "fp8", numel, "setup", why)._replace(nbytes=data_bytes(recipe, numel))

    found = [weights("weights", first, why)]
    rebuilt = active(c) and recipe.name != "mxfp8"  # transposed after the gather
    if orientations(recipe, blackwell=c.blackwell) > 1 and not rebuilt:
        found.append(weights("weights by columns", plain, "kept for the input's gradient"))
    if not isinstance(buffer.scale_bytes, int) or buffer.scale_bytes:
        numel = buffer.scale_bytes // DTYPE_BYTES[recipe.scale]
        scales = _state("weights", "weight scales", buffer, recipe.scale, numel, "setup", "one per block")
        found.append(scales._replace(nbytes=buffer.scale_bytes))
    return found


REFERENCE, CRITIC = "reference", "critic"
OUTPUT = "output_layer.weight"


def second_models(
    c: Context, rollout: Rollout, states: tuple[State, ...], params: list[tuple[Param, int]]
) -> tuple[State, ...]:
    """State of the models that are on the device all the time. `states` and `params` are the policy's, of one rank."""
    found: tuple[State, ...] = ()
    if rollout.reference_model == "device":
        found += (reference(c, params),)
    if rollout.critic_model == "device":
        found += critic(states, params)
    return found


def reference(c: Context, params: list[tuple[Param, int]]) -> State:
    """The reference's weights: no DDP buffers, no gradients."""
    dtype = c.training.params_dtype
    numel = sum(p.numel * count for p, count in params)
    nbytes = sum(p.numel * count * DTYPE_BYTES[p.dtype or dtype] for p, count in params)
    why = "forward only; stays beside the policy's weights"
    return State("weights", "weights", REFERENCE, 0, dtype, numel, nbytes, "setup", why, frozen=True)


def critic(states: tuple[State, ...], params: list[tuple[Param, int]]) -> tuple[State, ...]:
    """The critic's state: the policy's without the output layer, whose place a head of one value takes."""
    every = sum(p.numel * count for p, count in params)
    head = sum(p.numel * count for p, count in params if p.name == OUTPUT and not p.shared_embedding)
    why = "PPO's critic, as large as the policy without its output layer"
    return tuple(
        state._replace(
            group=" ".join(filter(None, (CRITIC, state.group))),
            numel=_without(state.numel, head, every),
            nbytes=_without(state.nbytes, head, every),
            why=why,
            frozen=False,
        )
        for state in states
    )


def _without(size: int, head: int, every: int) -> int:
    """A size without the share of the output layer, rounded up."""
    return size - size * head // every


def is_second(state: State) -> bool:
    """Whether a state is of a model beside the policy."""
    return state.group.startswith((REFERENCE, CRITIC))
