"""Activation offloading: what leaves the GPU between a layer's forward and its backward.

Layer-level (`cpu_offloading`): everything that the first `cpu_offloading_num_layers` layers keep. One layer's tensors are on their way
while another runs, in both directions (two with double buffering).

Fine-grained: what the ops of `offload_modules` keep, tensors of at least `min_offloaded_tensor_size` elements; a tensor that an op outside
them keeps too stays. A module's tensors leave when it is done: torch counts them no longer, though the copy still runs. In the
backward they come back when the offloaded module behind it is done, the last module's of a layer when the layer behind it is. What two
ops keep was packed twice, and comes back as two tensors; so does what an output-discarding checkpoint drops, beside its recomputed
output. The last group of each module on a rank stays for one microbatch, because there is no time to bring it back; in the first step,
which finds out what there is, none stays.

Source: Megatron-LM `megatron/core/pipeline_parallel/fine_grained_activation_offload.py`; TransformerEngine
`pytorch/cpu_offload.py`.

Paged stash: what experts keep leaves its oversized tensors for one paged buffer that is as large as balanced routing needs.

With `moe_expert_rank_capacity_factor` the tensors of experts have static rows, most of them unused. After the forward of a
layer the used rows are copied into pages of one buffer; before its backward they are copied back. The buffer is
`moe_paged_stash_buffer_size_factor_cuda` times what all microbatches in flight keep with balanced routing, and stays; a
second one in host memory takes what does not fit.

Source: Megatron-LM PR 4247.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ..job.training import Training
from ..modules.context import Context
from ..tape.events import Event, Live, Saver, Trace
from ..tape.ops import Part, Recompute, Unit, flattened
from ..tape.tensor import Dim, Tensor, numel_of, tensor

MODULES: dict[str, frozenset[Part]] = {
    "attn_norm": frozenset(("attn_norm",)),
    "qkv_linear": frozenset(("qkv_linear",)),
    "core_attn": frozenset(("core_attn", "heads_out", "heads_back")),
    "attn_proj": frozenset(("attn_proj",)),
    "mlp_norm": frozenset(("mlp_norm", "router_norm")),
    "expert_fc1": frozenset(("expert_fc1",)),
    "moe_act": frozenset(("moe_act",)),
    "fused_group_mlp": frozenset(("expert_fc1", "moe_act", "experts")),
}
"""Parts whose saved tensors an offload module takes. A norm that TransformerEngine fuses into a linear belongs to the linear's part;
fused_group_mlp is all of the experts between the dispatcher's two ways.

Source: Megatron-LM `megatron/core/transformer/transformer_layer.py` (offload of attn_norm and mlp_norm), `moe/experts.py`
(_fused_forward)."""


def offloads(training: Training) -> bool:
    """Whether activations are offloaded."""
    return training.cpu_offloading_num_layers > 0 or training.fine_grained_activation_offloading


def offloaded_layers(training: Training, count: int) -> tuple[bool, ...]:
    """Which layers of a model chunk offload what they keep."""
    t = training
    if t.cpu_offloading_num_layers:
        return tuple(index < t.cpu_offloading_num_layers for index in range(count))
    return tuple(index < round(count * t.activation_offload_fraction) for index in range(count))


class Absence(NamedTuple):
    """By event of a unit's forward and backward: storages that are in host memory, and further copies of what came back."""

    gone: tuple[frozenset[str], ...]
    copies: tuple[tuple[Live, ...], ...]

    def present(self, found: tuple[Live, ...], event: int) -> tuple[Live, ...]:
        """What of the tensors of an event is on the GPU."""
        here = tuple(live for live in found if live.role != "saved" or live.tensor.storage not in self.gone[event])
        return (*here, *self.copies[event])


class Offload(NamedTuple):
    """What a layer has in host memory by module ("" for layer-level), and the trace of what it keeps on the GPU.

    `absence`: fine-grained, when its tensors are away. `dropped`: what a checkpoint discards on the GPU, but was packed before.
    """

    trace: Trace
    groups: tuple[tuple[str, tuple[Tensor, ...]], ...]
    absence: Absence | None = None
    dropped: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is offloaded."""
        return (*(t for _, group in self.groups for t in group), *self.dropped)

    @property
    def on_their_way(self) -> tuple[Tensor, ...]:
        """Layer-level: what is copied while another layer runs, all that the layer offloads."""
        return () if self.absence else self.tensors


def offloaded(training: Training, unit: Unit, found: Trace, *, first: bool = False) -> Offload:
    """What a layer has in host memory between its forward and its backward; `found` is the trace of its unit.

    `first`: in the first step, whose reloads run behind, so that a tensor comes back when an op asks for it.
    """
    if training.cpu_offloading_num_layers:
        groups = {"": [live.tensor for live in found.saved]}
        return Offload(found._replace(saved=(), saved_bytes=0), tuple((name, tuple(g)) for name, g in groups.items()))
    groups, stay, leave = {}, [], []
    for live in found.saved:
        module = _module(training, live)
        if module:
            leave.append(live)
            groups.setdefault(module, []).extend([live.tensor] * len(live.saved_by))
        else:
            stay.append(live)
    dropped = list(_dropped(training, unit))
    absence = _absence(training, found, leave, dropped, first=first)
    split = len(found.forward)
    sizes = {live.tensor.storage: live.tensor.nbytes for live in leave}
    events = [
        event._replace(nbytes=event.nbytes - sum(sizes[s] for s in gone) + sum(live.tensor.nbytes for live in copies))
        for event, gone, copies in zip((*found.forward, *found.backward), *absence, strict=True)
    ]
    trace = Trace(tuple(events[:split]), tuple(events[split:]), sum(live.tensor.nbytes for live in stay), tuple(stay))
    away = tuple((name, tuple(group)) for name, group in groups.items())
    return Offload(trace, away, absence, tuple(live.tensor for live in dropped))


def _dropped(training: Training, unit: Unit) -> Iterator[Live]:
    """What modules pack of outputs that a checkpoint discards: the copies that come back, each of one op."""
    regions = [item for item in unit.items if isinstance(item, Recompute) and item.hook]
    outputs = {t.storage for region in regions for op in flattened(region.ops) for t in op.writes}
    for op in flattened(unit.items):
        saver = Saver(op.name, op.part)
        for t in op.saves:
            if t.storage in outputs and _module(training, Live(t, "saved", (saver,))):
                yield Live(t._replace(name=f"{t.name} from the host"), "saved", (saver,))


BEHIND: dict[str, frozenset[Part]] = {
    "attn_norm": frozenset(("attn_residual",)),
    "mlp_norm": frozenset(("mlp_residual", "moe_residual")),
}
"""What runs before a norm's group ends: the residual behind it (`transformer_layer.py`, group_commit)."""


def _absence(training: Training, found: Trace, leave: list[Live], dropped: list[Live], *, first: bool) -> Absence:
    """When what leaves is away, and what comes back more than once."""
    events, split = (*found.forward, *found.backward), len(found.forward)
    modules = [name for name in MODULES if name in training.offload_modules]
    done = {name: _last(events[:split], MODULES[name] | BEHIND.get(name, frozenset()), 0) for name in modules}
    order = sorted((name for name in modules if done[name] >= 0), key=lambda name: _first(found.forward, MODULES[name]))
    back = dict.fromkeys(order, split)
    for name, behind in reversed(list(pairwise(order))):
        back[name] = max(_last(events[split:], MODULES[behind], split) + 1, back[behind])
    if first:
        back = dict.fromkeys(order, len(events))
    gone: list[set[str]] = [set() for _ in events]
    copies: list[list[Live]] = [[] for _ in events]
    for live in leave:
        savers = [(_of(training, saver), _last_of(events, saver.name, split)) for saver in live.saved_by]
        away = max(done[module] for module, _ in savers) + 1
        end = max(last for _, last in savers)
        for event in range(away, end + 1):
            here = (
                [last for module, last in savers if min(back[module], last) <= event <= last] if event >= split else []
            )
            if not here:
                gone[event].add(live.tensor.storage)
            copies[event] += [live._replace(op=events[event].op, phase=events[event].phase)] * (len(here) - 1)
    for live in dropped:
        last = _last_of(events, live.saved_by[0].name, split)
        for event in range(min(back[_of(training, live.saved_by[0])], last), last + 1):
            copies[event].append(live._replace(op=events[event].op, phase=events[event].phase))
    return Absence(tuple(map(frozenset, gone)), tuple(map(tuple, copies)))


def _first(events: tuple[Event, ...], parts: frozenset[Part]) -> int:
    return next((index for index, event in enumerate(events) if event.part in parts), -1)


def _last(events: tuple[Event, ...], parts: frozenset[Part], shift: int) -> int:
    return max((shift + index for index, event in enumerate(events) if event.part in parts), default=-1)


def _last_of(events: tuple[Event, ...], op: str, split: int) -> int:
    """The event of an op's backward; the end where it has none."""
    places = [
        index for index, event in enumerate(events) if index >= split and event.op == op and event.phase == "backward"
    ]
    return max(places, default=len(events) - 1)


def _module(training: Training, live: Live) -> str:
    """The module that takes a kept tensor, "" for none: all its savers are in modules, and it is large enough."""
    if not live.saved_by or numel_of(live.tensor.shape) < training.min_offloaded_tensor_size:
        return ""
    found = [_of(training, saver) for saver in live.saved_by]
    return found[0] if all(found) else ""


def _of(training: Training, saver: Saver) -> str:
    """The module that a saver is in, "" for none."""
    return next((name for name in training.offload_modules if saver.part in MODULES[name]), "")


PAGED: frozenset[Part] = frozenset(("expert_fc1", "moe_act", "experts", "experts_wgrads"))
"""Parts whose tensors are paged: the experts and their delayed weight gradients."""


def stashed(c: Context, found: Trace) -> tuple[Trace, tuple[Tensor, ...]]:
    """Tensors that a unit still keeps itself, and those it keeps in the buffer, in rows of balanced routing."""
    gone = [live for live in found.saved if _pages(c, live)]
    if not gone:
        return found, ()
    stay = tuple(live for live in found.saved if live not in gone)
    total = found.saved_bytes - sum(live.tensor.nbytes for live in gone)
    rows = Dim("balanced expert rows", c.sent_rows.size * (c.layout.etp if c.etp_many else 1))
    kept = tuple(tensor(live.tensor.name, (rows, *live.tensor.shape[1:]), live.tensor.dtype) for live in gone)
    return found._replace(saved=stay, saved_bytes=total), kept


def _pages(c: Context, live: Live) -> bool:
    shape = live.tensor.shape
    own = bool(live.saved_by) and all(saver.part in PAGED for saver in live.saved_by)
    return own and bool(shape) and shape[0].name == c.padded_expert_rows.name
