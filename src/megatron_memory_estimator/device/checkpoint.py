"""What loading a checkpoint with optimizer state, and saving one, allocates beside the model state, as named terms.

Formats: `--ckpt-format torch_dist` with `dp_reshardable` or `fully_reshardable` optimizer state (Megatron-FSDP: `fsdp_dtensor`), and
`torch`. Weights, masters and fp32 moments are read into the tensors that exist, on the host; what follows is what Megatron-Core 0.19.2
makes beside them (0.20.0 of August 2026 makes the same). With `torch` every rank reads its weights into host memory, and the first
data-parallel rank the optimizer's state of all: the state is made once, nothing is merged, and ranks tell each other nothing.

Sources: Megatron-LM `megatron/training/checkpointing.py` (load_checkpoint holds the loaded state dict to its end),
`megatron/core/optimizer/distrib_optimizer.py` (sharded_state_dict, load_state_dict, _get_main_param_and_optimizer_states),
`megatron/core/optimizer/optimizer.py`, `cpu_offloading/hybrid_optimizer.py`, `megatron/core/dist_checkpointing/`;
TransformerEngine `pytorch/optimizers/fused_adam.py` (load_state_dict, get_unscaled_state, _initialize_state); Megatron-Bridge 0.6.0
`training/optim.py` (memory_efficient_fp32_optimizer_state_loading).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import NamedTuple

from ..job.training import BRIDGE_KEEPS, Training
from ..modules.compressed_tables import built_tables
from ..modules.kinds import has_compressed
from ..rank.rank import Rank
from ..rank.workspaces import layer_counts, yarn_tables
from ..states.buffers import Buffer
from ..states.fsdp import active
from ..states.kept import Kept
from ..states.optimizers import OPTIMIZERS, beside_torch_format, optimizer_tensors
from ..states.padding import default_bucket_size
from ..tape.tensor import DTYPE_BYTES, Param, Tensor, ceil_div, chosen, largest, smallest
from .terms import Term

ENTRY = 160
"""Most bytes of a pickled entry of a sharded state dict or of a save plan (121 to 159 of the real classes: dense, MLA, MoE)."""
ENTRIES = 5
"""Most entries per parameter tensor: it or its two halves, extra state or padding, main parameter and two moments."""
AS_THEY_ARE = ("fp32", "int16")
"""Dtypes of states that a checkpoint holds as they are."""
STREAMED = (0, 19)
"""Megatron-Core version from which low-precision weights are read one by one (--stream-ckpt-dequant); 0.16.1 made 16-bit copies of all."""
MERGED = re.compile(r"(in_proj\.weight|conv1d\.(weight|bias))$")
MERGED_IF_GATED = re.compile(r"linear_fc1\.(weight|bias)$")


class _Shard(NamedTuple):
    """FusedAdam's state of one optimizer (dense or expert buffers), in bytes.

    `kept`: in the dtype that a checkpoint holds; `low`: in others, `unscaled` as fp32; `cast`: all of it in the dtype of its
    parameter, where that is not fp32; `scaled`: a state of the last parameter, cast to be copied into one of bf16
    (`fused_adam.py`, _apply_scale), when all others are made; `scratch`: the fp32 and the bf16 copy of a state of the last parameter,
    beyond its states that are not made yet; `core`: Megatron keeps the masters.
    """

    kept: int
    low: int
    unscaled: int
    cast: int
    scaled: int
    scratch: int
    core: bool

    @property
    def held(self) -> int:
        """What the loaded state dict holds of the old state."""
        return self.kept + (self.low if self.core else 0)

    @property
    def read_into(self) -> int:
        """fp32 copies that the file is read into, instead of states in other dtypes."""
        return 0 if self.core else self.unscaled


def _fused(t: Training, kept: Kept) -> bool:
    own = t.use_precision_aware_optimizer and kept.name.startswith("main_param")
    return (
        kept.saved
        and kept.since == "first step"
        and OPTIMIZERS[t.optimizer].fused
        and (kept.name.startswith("exp_avg") or own)
    )


def _shard(rank: Rank, buffers: list[Buffer]) -> _Shard:
    t = rank.context.training
    states = [k for buffer in buffers for k in optimizer_tensors(rank.context, buffer) if _fused(t, k)]
    core = not any(k.name.startswith("main_param") for k in states)
    plain = [k for k in states if k.dtype in AS_THEY_ARE]
    other = [k for k in states if k.dtype not in AS_THEY_ARE]
    last = _last_owned(rank, buffers) if other else 0
    return _Shard(
        kept=sum(k.numel * DTYPE_BYTES[k.dtype] for k in plain),
        low=sum(k.numel * DTYPE_BYTES[k.dtype] for k in other),
        unscaled=sum(k.numel * DTYPE_BYTES["fp32"] for k in other),
        cast=0 if core else sum(k.numel * DTYPE_BYTES[t.params_dtype] for k in states),
        scaled=DTYPE_BYTES["bf16"] * last if any(k.dtype == "bf16" for k in states) else 0,
        scratch=last * _copies([k.dtype for k in sorted(states, key=lambda k: k.name)]),
        core=core,
    )


def _copies(dtypes: list[str]) -> int:
    """Bytes of an element while a state is cast to fp32, and to bf16, beyond those of the states after it: of states in the order in which
    they are made, moments before masters."""
    sizes = [DTYPE_BYTES[dtype] for dtype in dtypes]
    casts = {"bf16": DTYPE_BYTES["fp32"] + DTYPE_BYTES["bf16"], "int16": 0, "fp32": 0}
    return max([0, *(casts.get(dtype, DTYPE_BYTES["fp32"]) - sum(sizes[at + 1 :]) for at, dtype in enumerate(dtypes))])


def shards(rank: Rank) -> list[_Shard]:
    """FusedAdam's state by optimizer, in the order in which they load: dense parameters, then experts."""
    groups = [[b for b in rank.buffers if b.expert == expert and not b.frozen] for expert in (False, True)]
    return [_shard(rank, group) for group in groups if group]


def _second_copy(found: list[_Shard], *, reshardable: bool) -> tuple[int, int]:
    """What FusedAdam.load_state_dict has beside the state at its largest moment, and how much of it is read into.

    The state dict of an optimizer holds its old state (`fully_reshardable`: no tensor of it) and fp32 copies of what is not fp32; torch's
    load_state_dict casts all to the parameters' dtype, then FusedAdam makes every tensor anew. Optimizers load one after the other.
    """
    read = sum(one.read_into for one in found)
    top = before = 0
    for one in found:
        top = largest(top, before + one.unscaled + largest(one.cast, one.held + one.scaled))
        before += 0 if reshardable else one.held
    return top, read


def _made_twice(found: list[_Shard], *, read: bool) -> int:
    """What is beside the state while an optimizer's state is first made: empty tensors for it, and FusedAdam's own. With `read`, copies
    that the file is read into are there of those before it.

    Those of the optimizers after it do not exist yet.
    """
    top = 0
    for at, one in enumerate(found):
        later = sum(other.kept + other.low for other in found[at + 1 :])
        before = sum(other.read_into for other in found[:at]) if read else 0
        top = largest(top, before + one.kept + one.low + one.scratch - later)
    return top


def merged(rank: Rank, *, frozen: bool = False) -> int:
    """Elements of weights that a checkpoint holds in parts: gated fc1, and the packed projections of Mamba and Gated DeltaNet."""
    gated = rank.context.model.gate > 1
    return sum(p.numel * n for p, n in _parameters(rank) if p.frozen == frozen and _in_parts(p, gated=gated))


def _in_parts(p: Param, *, gated: bool) -> bool:
    return bool(MERGED.search(p.name) or (gated and MERGED_IF_GATED.search(p.name)))


def _parameters(rank: Rank) -> Iterator[tuple[Param, int]]:
    for plan in rank.plans:
        yield from plan.params


def metadata(rank: Rank) -> Term:
    """Descriptions of all ranks' tensors, gathered on every GPU (all_gather_object over NCCL) before the data moves."""
    tensors = sum(p.copies * n for p, n in _parameters(rank))
    size = ENTRY * ENTRIES * tensors * rank.context.layout.world_size
    return Term("metadata of all ranks", 0, size, "dist_checkpointing/validation.py: determine_global_metadata")


def adopts(t: Training) -> bool:
    """Whether the loader keeps the loaded tensors of FusedAdam's state: Megatron-Bridge from 0.6.0, for plain fp32 moments.

    Source: Megatron-Bridge `training/optim.py` (memory_efficient_fp32_optimizer_state_loading): not precision-aware, offloaded or fully
    sharded. Run on the classes of Megatron-Core 0.19.2, it makes neither moments nor a copy of them twice.
    """
    plain = not (t.use_precision_aware_optimizer or t.optimizer_cpu_offload or t.use_megatron_fsdp)
    loader = t.checkpoint_loader == "megatron_bridge" and t.mcore >= BRIDGE_KEEPS
    return loader and t.use_distributed_optimizer and plain


def by_rank(t: Training) -> bool:
    """Whether a load and a save are those of `--ckpt-format torch`, a file for each rank: of what of it is not modelled
    (`inputs/effects.py` says it), they are taken for those of torch_dist."""
    return t.ckpt_format == "torch" and not beside_torch_format(t)


def load_terms(rank: Rank, *, short: bool = False) -> list[list[Term]]:
    """What is beside the model state in each moment of a load that can be its largest; `short`: where the GPU is short of memory."""
    t = rank.context.training
    built = [Term(t.name, t.nbytes, t.nbytes, source) for t, source in tables_of(rank)]
    if by_rank(t):
        return [_real((*(_first_made(t, rank) if t.load_optim else ()), *built))]
    offloaded = t.optimizer_cpu_offload and OPTIMIZERS[t.optimizer].offloaded
    made = _offloaded if offloaded else _made
    end, first = made(t, rank) if t.load_optim else ([], [])
    to_host = short and not any(_something(term.low) for term in end)  # what follows is made on the GPU
    end += [*_merged_terms(t, rank, short=to_host), *_dequantized(t, rank)]
    read = [term for term in end if term.name.startswith("fp32 copies to read")]
    return [_real((*moment, *built)) for moment in (end, first, [*read, metadata(rank)])]


def tables_of(rank: Rank) -> list[tuple[Tensor, str]]:
    """What layers are built with beside their parameters: cos and sin of YaRN."""
    c, counts = rank.context, layer_counts(rank.context, rank.plans)
    found = list(yarn_tables(c, counts, built=True))
    return [*found, *built_tables(c, counts)] if has_compressed(c.model) else found


def _something(nbytes: int) -> bool:
    """Whether it is not nothing; of arrays of layouts, in any of them."""
    return bool(nbytes) if isinstance(nbytes, int) else bool((nbytes != 0).any())


def _real(terms: Iterable[Term]) -> list[Term]:
    """The terms that are not nothing; of arrays of layouts all."""
    return [term for term in terms if not (isinstance(term.high, int) and term.high == 0)]


def _made(t: Training, rank: Rank) -> tuple[list[Term], list[Term]]:
    return _optimizer_terms(t, rank), _first_made(t, rank)


def _optimizer_terms(t: Training, rank: Rank) -> list[Term]:
    """FusedAdam's second copy of its state."""
    if adopts(t):
        return []
    second, read = _second_copy(shards(rank), reshardable=t.dist_ckpt_optim_fully_reshardable)
    if t.use_megatron_fsdp or t.dist_ckpt_optim_fully_reshardable:  # the latter reads into host memory
        read = 0
    return [
        Term("fp32 copies to read states in other dtypes into", read, read, "distrib_optimizer.py: get_unscaled_state"),
        Term("second copy of FusedAdam's state", second, second, "fused_adam.py: load_state_dict"),
    ]


def _first_made(t: Training, rank: Rank) -> list[Term]:
    """How the moments come to be: twice with the distributed optimizer; with Megatron-FSDP in a step with zero gradients of all main
    parameters; else as zeros."""
    if not t.use_megatron_fsdp:
        twice = t.use_distributed_optimizer and not adopts(t)
        size = _made_twice(shards(rank), read=not by_rank(t)) if twice else 0
        where = "distrib_optimizer.py: load_state_dict, when the state is first made"
        return [Term("empty tensors beside FusedAdam's new state", size, size, where)]
    dtype = "fp32" if any(s.tensor == "main_param" and s.dtype == "fp32" for s in rank.states) else t.params_dtype
    size = DTYPE_BYTES[dtype] * sum(buffer.owned for buffer in rank.buffers)
    where = "distrib_optimizer.py: _init_optimizer_states_with_dummy_values"
    return [Term("zero gradients of a dummy step", size, size, where)]


class _Hybrid(NamedTuple):
    """One HybridDeviceOptimizer (dense or expert parameters): elements that this rank owns, those whose state is in host memory, and the
    most that it owns of one parameter."""

    owned: int
    offloaded: int
    largest: int

    @property
    def rest(self) -> int:
        """Elements whose state stays on the GPU."""
        return self.owned - self.offloaded


def _largest_parameter(rank: Rank, *, expert: bool) -> int:
    """Elements of the largest trained parameter of a stage; of arrays of layouts some have none of a parameter."""
    params = (p.numel_each * (n > 0) for p, n in _parameters(rank) if p.expert_buffer == expert and not p.frozen)
    return reduce(largest, params, 0)


def _last_owned(rank: Rank, buffers: list[Buffer]) -> int:
    """The most elements of the last matrix that a rank has the state of: all of it, or its share of a bucket with nothing else in it."""
    c, expert, each = rank.context, buffers[0].expert, 0
    for p, n in _parameters(rank):
        if p.expert_buffer == expert and not p.frozen and len(p.shape) > 1:
            each = chosen(n > 0, p.numel_each, each)
    if not c.training.use_distributed_optimizer or c.training.use_megatron_fsdp:
        return smallest(each, sum(b.owned for b in buffers))
    sizes = [default_bucket_size(c, b.numel_unpadded, first_chunk=b.chunk == 0) for b in buffers]
    bucket = reduce(
        largest, (b.numel_unpadded if size is None else size for b, size in zip(buffers, sizes, strict=True)), 0
    )
    return smallest(each, ceil_div(largest(bucket, each), c.layout.shards(expert=expert)))


def _hybrids(rank: Rank) -> list[_Hybrid]:
    found = []
    for expert in (False, True):
        mine = [b for b in rank.buffers if b.expert == expert and not b.frozen]
        if mine:
            owned = sum(b.owned for b in mine)
            each = _largest_parameter(rank, expert=expert)
            found.append(_Hybrid(owned, sum(b.offloaded for b in mine), smallest(each, owned)))
    return found


def _offloaded(t: Training, rank: Rank) -> tuple[list[Term], list[Term]]:
    """HybridDeviceOptimizer: a dummy step with random gradients; what it has on the GPU is made anew whenever its state is loaded, which
    happens twice. Optimizers load one after the other. Not precision-aware, 0.19.2 stops: that figure is of 0.20.
    """
    found, where, fp32 = _hybrids(rank), "hybrid_optimizer.py", DTYPE_BYTES["fp32"]
    if not t.use_precision_aware_optimizer:  # on Megatron's fp32 masters, which all stay on the GPU
        size = reduce(largest, (fp32 * one.owned for one in found), 0)
        dummy = Term("random gradients of a dummy step", size, size, f"{where}: dummy_step")
        on_way = [3 * fp32 * one.offloaded + fp32 * smallest(one.largest, one.offloaded) for one in found]
        size = reduce(largest, on_way, 0)
        name = "three fp32 tensors of each offloaded element, and a clone of one parameter"
        return [
            Term(name, size, size, f"distrib_optimizer.py: load_state_dict, {where}: _get_sub_optimizer_param_groups")
        ], [dummy]
    half, rest = DTYPE_BYTES[t.params_dtype], sum(one.rest for one in found)
    size = reduce(largest, (half * one.owned for one in found), 0)
    dummy = Term("random gradients of a dummy step", size, size, f"{where}: dummy_step")
    grads = Term("fp32 gradients of a dummy step", fp32 * rest, fp32 * rest, f"{where}: _set_sub_optimizer_grads")
    again = Term("main parameters made anew", fp32 * rest, fp32 * rest, f"{where}: _init_sub_optimizers")
    low = high = before = 0
    for one in found:  # old copies of an optimizer, and the gradients that hang on them, go when its new ones are there
        more = fp32 * one.rest - before
        low, high = largest(low, more), largest(high, more + half * one.largest)
        before = before + fp32 * one.rest
    once_more = Term(
        "main parameters of one optimizer made once more", low, high, f"{where}: _get_sub_optimizer_param_groups"
    )
    return [grads, again, once_more], [dummy, grads]


def _merged_terms(t: Training, rank: Rank, *, short: bool) -> list[Term]:
    """Weights that a checkpoint holds in parts are read in place and merged into new tensors, where the GPU has no room for them in host
    memory (cat_with_oom_fallback); so are their states, where whole."""
    numel, where = merged(rank), "dist_checkpointing: apply_factory_merges, cat_with_oom_fallback"
    if t.use_megatron_fsdp:  # the parts are views
        return []
    low = 0 if short or active(rank.context) else DTYPE_BYTES[t.params_dtype] * numel
    frozen = DTYPE_BYTES[t.params_dtype] * merged(rank, frozen=True)
    high = DTYPE_BYTES[t.params_dtype] * numel * (2 if t.low_precision_weights else 1) + frozen
    found = [Term("merged fc1 and in_proj weights", low, high, where)]
    row = OPTIMIZERS[t.optimizer]
    if t.load_optim and (row.by_matrix or not t.use_distributed_optimizer) and not active(rank.context):
        found.append(_merged_states(rank, numel, where, short=short))
    return found


def _merged_states(rank: Rank, numel: int, where: str, *, short: bool) -> Term:
    """Optimizer state of those weights: all of it, or where whole parameters are dealt to ranks, of those dealt to this one."""
    buffers = [b for b in rank.buffers if not b.frozen]
    names = {
        (k.name, k.dtype)
        for b in buffers
        for k in optimizer_tensors(rank.context, b)
        if k.saved and not (OPTIMIZERS[rank.context.training.optimizer].by_matrix and k.name.startswith("exp_avg"))
    }
    each = sum(DTYPE_BYTES[dtype] for _, dtype in names)
    owned, whole = sum(b.owned for b in buffers), sum(b.elements for b in buffers)
    size = each * smallest(numel, owned)
    return Term(
        "merged optimizer state of fc1 and in_proj", 0 if short else chosen(owned < whole, 0, size), size, where
    )


def _dequantized(t: Training, rank: Rank) -> list[Term]:
    """16-bit copies of low-precision weights: of all before the load, without --stream-ckpt-dequant (tensorwise never streams)."""
    size = DTYPE_BYTES[t.params_dtype] * _quantized(rank)
    early, streams = t.mcore < (0, 17), t.mcore >= STREAMED and t.low_precision != "tensorwise"
    if streams:
        return []
    where = "dist_checkpointing/serialization.py: load"
    return [Term("16-bit copies of low-precision weights", size if early else 0, size, where)]


def _quantized(rank: Rank) -> int:
    return sum(b.elements for b in rank.buffers if b.recipe)


def save_terms(rank: Rank) -> list[list[Term]]:
    """What is beside the steady state in each moment of a save that can be its largest."""
    t, found = rank.context.training, shards(rank)
    if by_rank(t):
        passing = reduce(largest, (one.unscaled for one in found), 0)
        return [_real([Term("fp32 copies of states in other dtypes", passing, passing, "fused_adam.py: state_dict")])]
    distributed = t.use_distributed_optimizer and not t.use_megatron_fsdp
    kept = sum(one.read_into for one in found) if distributed else 0
    passing = reduce(largest, (one.unscaled for one in found if one.core), 0)
    copies = Term("fp32 copies of states in other dtypes", kept, kept, "distrib_optimizer.py: get_unscaled_state")
    weights = Term("16-bit copies of low-precision weights", *_written(rank), "filesystem_async.py: prepare_write_data")
    cast = Term("fp32 copies of states in other dtypes", passing, passing, "fused_adam.py: state_dict")
    moments = ([copies, weights], [cast], [copies, metadata(rank)])
    return [_real(moment) for moment in moments]


def _written(rank: Rank) -> tuple[int, int]:
    """16-bit bytes of the low-precision weights that this rank writes: its share of a fully parallel save, or all."""
    each = DTYPE_BYTES[rank.context.training.params_dtype]
    low = [b for b in rank.buffers if b.recipe]
    share = sum(b.elements // rank.context.layout.shards(expert=b.expert) for b in low)
    return each * share, each * sum(b.elements for b in low)
