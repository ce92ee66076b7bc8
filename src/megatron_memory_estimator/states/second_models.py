"""Models beside the policy that stay on the device: a reference without gradients, a critic with all of its state.

Sources: volcengine/verl `verl/workers/engine/megatron/transformer_impl.py` (reference and critic are engines of their own);
modelscope/ms-swift `swift/megatron/trainers/rlhf_mixin.py` (ref_models).
"""

from __future__ import annotations

from ..job.rollout import Rollout
from ..modules.context import Context
from ..tape.tensor import DTYPE_BYTES, Param
from .state import State

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
