"""What modules send: the collectives of each axis, none where the axis has one rank.

Groups stand in Megatron's order of ranks: tp, gtp, cp, ep (Megatron-LM `megatron/core/parallel_state.py`).
"""

from __future__ import annotations

from ..tape.tensor import Tensor
from ..tape.work import Beside, Collective, Send
from .context import Context

Sends = tuple[Send, ...]


def over_tp(c: Context, kind: Collective, *buffer: Tensor, beside: Beside = "") -> Sends:
    """A collective of the tensor-parallel ranks over whole buffers."""
    if not c.tp_many:
        return ()
    return (Send(kind, "tp", c.layout.tp, 1, sum(t.nbytes for t in buffer), beside),)


def over_cp(c: Context, kind: Collective, *buffer: Tensor, times: int = 1) -> Sends:
    """A collective of the context-parallel ranks over the bytes of tensors, so many times."""
    if not c.cp_many:
        return ()
    return (Send(kind, "cp", c.layout.cp, c.layout.tp * c.layout.gtp, times * sum(t.nbytes for t in buffer)),)


def over_etp(c: Context, kind: Collective, buffer: Tensor) -> Sends:
    """A collective of the experts' tensor-parallel ranks over a whole buffer."""
    return (Send(kind, "tp", c.layout.etp, 1, buffer.nbytes * c.filled),) if c.etp_many else ()


def over_experts(c: Context, kind: Collective, buffer: Tensor) -> Sends:
    """A collective of all ranks that share the experts, over a whole buffer."""
    if not (c.ep_many or c.etp_many):
        return ()
    return (Send(kind, "ep", c.layout.ep * c.layout.etp, 1, buffer.nbytes, _behind(c)),)


def dispatched(c: Context, rows: Tensor, *, copies: int = 0) -> Sends:
    """Rows on their way to their experts or back; `copies` of each, of which a rank gets one."""
    if not c.ep_many:
        return ()
    stride = c.layout.etp if c.etp_many else 1
    groups = (c.model.moe_router_group_topk or 1, c.model.moe_router_num_groups or 1)
    return (Send("dispatch", "ep", c.layout.ep, stride, rows.nbytes, _behind(c), copies, groups),)


def _behind(c: Context) -> Beside:
    return "layers" if c.training.overlap_moe_expert_parallel_comm else ""
