"""Persistent scratch of a rank: allocated by the first step and never freed. Each with its rule and source."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter, eq
from typing import NamedTuple

from ..job.hardware import MIB, Environment, Gpu
from ..modules.compressed_tables import tables
from ..modules.context import Context
from ..modules.embedding import TABLE
from ..modules.head import output_parameter
from ..modules.kind import Kind
from ..modules.kinds import kinds_in, layers_with, rotary_width, shapes_of
from ..modules.linear import cached_wgrad
from ..modules.quantization import RECIPES, data_bytes, orientations, scale_bytes
from ..modules.sparse_attention import shared_indices
from ..states.fsdp import STRATEGIES, gathered_dtype, grad_dtype, strategy, turned
from ..tape.tensor import DTYPE_BYTES, Dim, Param, Tensor, largest, smallest, whole_above
from .chunks import ChunkPlan
from .schedule import Occupancy
from .weight_shards import shard_buffers, sharded

TE_WORKSPACE_HOPPER = 32 * MIB + 1024
TE_WORKSPACE_OLDER = 4 * MIB
GROUPED_GEMM_STREAMS = 4
USERBUFFER_STREAMS = 3
TORCH_WORKSPACES = "torch cuBLAS workspaces"
"""The beginning of their name."""
TORCH_CUBLAS_LARGE = 32 * MIB
TORCH_CUBLAS_SMALL = 8 * MIB + 128 * 1024
AUTOGRAD_THREADS = 2
TILELANG_CACHE = 512 * MIB
CACHED_TABLES = 32
"""Rotary tables that all layers of a process keep at most (the lru_cache of `rotary_pos_embedding.py`)."""


class Workspace(NamedTuple):
    """A persistent buffer: its name, shape (empty where a library sizes it), bytes, where it comes from, and the part of a peak that it is:
    low-precision copies of weights are weights."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    nbytes: int
    source: str
    part: str = "workspace"


def workspaces(
    c: Context, plans: tuple[ChunkPlan, ...], gpu: Gpu, env: Environment, wgrads: list[Workspace] | None = None
) -> list[Workspace]:
    """All persistent scratch of the rank that holds these chunks; `wgrads` are its dummy weight gradients if known."""
    params = [param for plan in plans for param, _ in plan.params]
    head = any(plan.chunk.output for plan in plans)
    layers = layer_counts(c, plans)
    kinds = kinds_in(layers)
    experts = any(kind.routed for kind in kinds)
    found = [
        *_cublas(
            c,
            gpu,
            env,
            torch_gemms=head or experts or not c.te or c.training.peft != "none",
            experts=experts,
        ),
        *(dummy_wgrads(c, params, head=head) if wgrads is None else wgrads),
        *_quantized_weights(c, plans),
        *_global_memory_buffer(c, head=head, attention=bool(layers), moe=experts),
        *_rotary(c, plans, layers),
        *(_sized(t, source) for t, source in tables(c, layers)),
        *(
            _sized(t, source)
            for t, source in shard_buffers(c, [(run.params, run.copies) for plan in plans for run in plan.runs])
        ),
    ]
    if c.training.use_megatron_fsdp and c.training.keep_fp8_transpose_cache and turned(c):
        numel = sum(p.numel * copies for plan in plans for p, copies in plan.params if p.quantized and not p.frozen)
        # read from source; no run exercises it
        source = "megatron_fsdp.py: release_module_parameters keeps the transposes (keep_fp8_transpose_cache)"
        shape = (Dim("elements of quantized weights", numel),)
        found.append(Workspace("fp8 weights by columns, whole", shape, "fp8", numel, source, "weights"))
    if c.training.double_buffered:
        found.extend(_double_buffers(c, plans))
    if head and c.training.defer_embedding_wgrad_compute and c.sp_many:
        source = "megatron/core/utils.py drain_embedding_wgrad_compute: double buffer of the gathered input"
        found.append(
            _sized(c.new("mpu_0 and mpu_1 buffers", Dim("two", 2), *c.region("input", c.hidden).shape), source)
        )
    for kind in sorted(kinds, key=attrgetter("role", "name"), reverse=True):
        count = layers_with(layers, partial(eq, kind))
        found.extend(_sized(t, source) for t, source in kind.kept(c, count))
    if any(kind.indexer for kind in kinds) and c.training.recomputes_whole_layers():
        source = "dsa.py: the newest keys of every indexer, for the layers that share them"
        indexers = layers_with(layers, attrgetter("indexer"))
        found.extend(_sized(t, source) for t in shared_indices(c, indexers))
    if any(kind.sparse for kind in kinds) and c.training.dsa_kernel_backend == "tilelang":
        found.append(Workspace("TileLang scratch cache", (), "uint8", TILELANG_CACHE, "ops/tilelang_dsa.py"))
    return found


def _sized(t: Tensor, source: str) -> Workspace:
    return Workspace(t.name, t.shape, t.dtype, t.nbytes, source)


def _cublas(c: Context, gpu: Gpu, env: Environment, *, torch_gemms: bool, experts: bool) -> list[Workspace]:
    """cuBLAS workspaces of TransformerEngine (one per device, four more for grouped GEMMs) and of torch (one per thread).

    Routers call TransformerEngine's GEMM whatever the spec, unless they work in fp64 (`moe/moe_utils.py`, RouterGatingLinearFunction;
    since Megatron-Core 0.13).
    """
    found = []
    te = TE_WORKSPACE_HOPPER if gpu.hopper_or_later else TE_WORKSPACE_OLDER
    if c.te or (experts and c.training.moe_router_dtype != "fp64"):
        found.append(
            Workspace("TE cuBLAS workspace", (), "uint8", te, "TransformerEngine pytorch/cpp_extensions/gemm.py")
        )
    if c.te and c.training.tp_comm_overlap:
        found.append(
            Workspace("TE userbuffer GEMM workspaces", (), "uint8", USERBUFFER_STREAMS * te,
                      "TransformerEngine pytorch/cpp_extensions/gemm.py: 3 streams with tp_comm_overlap")
        )  # fmt: skip
    if c.te and experts and c.training.moe_grouped_gemm:
        found.append(
            Workspace("TE grouped-GEMM workspaces", (), "uint8", GROUPED_GEMM_STREAMS * te,
                      "TransformerEngine common/util/multi_stream.cpp: 4 streams")
        )  # fmt: skip
    if torch_gemms:
        each = TORCH_CUBLAS_LARGE if _large_torch_workspace(c, gpu, env) else TORCH_CUBLAS_SMALL
        found.append(
            Workspace(f"{TORCH_WORKSPACES} (forward and autograd thread)", (), "uint8", AUTOGRAD_THREADS * each,
                      "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp")
        )  # fmt: skip
    return found


def _large_torch_workspace(c: Context, gpu: Gpu, env: Environment) -> bool:
    """32 MiB on Hopper or with CUBLAS_WORKSPACE_CONFIG=:4096:8; on Blackwell from the 26.04 containers (TE 2.14) on."""
    if env.cublas_workspace_config:
        return env.cublas_workspace_config == ":4096:8"
    return gpu.capability[0] == 9 or (gpu.capability[0] >= 10 and c.training.te >= (2, 14))


def dummy_wgrads(c: Context, params: list[Param], *, head: bool) -> list[Workspace]:
    """One cached weight-gradient tensor per distinct weight shape, with gradient accumulation fusion.

    All layers, and all local experts, share one entry per shape; the output layer counts where it runs, tied or not.
    """
    weights = [param for param in params if param.gemm and not param.name.startswith("output_layer.")]
    if head and not c.training.base_frozen:
        weights.append(sharded(c, output_parameter(c)))
    weights += [param for param in params if param.name == TABLE and param.whole]  # every shared weight has one (GTP)
    weights = [weight for weight in {id(weight): weight for weight in weights}.values() if cached_wgrad(c, weight)]
    source = "TransformerEngine pytorch/module/base.py get_dummy_wgrad: one per distinct weight shape"
    found: list[Workspace] = []
    seen: list[tuple[int, ...]] = []
    plain: set[tuple[int, ...]] = set()
    for weight in weights:
        shape = tuple(dim.local for dim in weight.shape)
        if all(isinstance(size, int) for size in shape):  # seen already, or new but for shapes of several layouts
            if shape in plain:
                continue
            plain.add(shape)
        made = _sized(c.new(f"dummy wgrad {weight.name}", *weight.shape), source)
        new = reduce(operator.and_, (_differs(shape, other) for other in seen), True)
        seen.append(shape)
        if new is True:
            found.append(made)
        elif new is not False:  # in some of an array of layouts
            found.append(made._replace(nbytes=made.nbytes * new))
    return found


def _differs(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes differ, element by element where degrees are arrays."""
    if len(a) != len(b):
        return True
    return reduce(operator.or_, (x != y for x, y in zip(a, b, strict=True)), False)


def _quantized_weights(c: Context, plans: tuple[ChunkPlan, ...]) -> list[Workspace]:
    """Quantized copies of 16-bit weights: made in the first microbatch of a step and cached by every linear.

    Source: TransformerEngine `pytorch/module/linear.py`, `grouped_linear.py` (is_first_microbatch); Megatron-LM
    `extensions/transformer_engine.py`.
    """
    t = c.training
    if not t.low_precision or t.low_precision_weights:
        return []
    recipe = RECIPES[t.low_precision]
    quantized = ((p, copies) for plan in plans for p, copies in plan.params if p.quantized)
    # with torch FSDP2 a linear quantizes its weight anew (linear.py: is_fsdp2), and grouped_linear.py knows nothing of it
    weights = [(p, copies) for p, copies in quantized if not t.use_torch_fsdp2 or p.split == "expert"]
    if not weights:
        return []
    source = "TransformerEngine pytorch/module/base.py get_weight_workspace: cached over microbatches"
    numel = sum(p.numel * copies for p, copies in weights)
    shape = (Dim("elements of quantized weights", numel),)
    each = data_bytes(recipe, numel)
    found = [Workspace(f"{recipe.name} weights", shape, "fp8", each, source, "weights")]
    if orientations(recipe, blackwell=c.blackwell) > 1:
        found.append(Workspace(f"{recipe.name} weights by columns", shape, "fp8", each, source, "weights"))
    scales = sum(scale_bytes(recipe, p) * copies for p, copies in weights)
    if recipe.block:
        blocks = (Dim("scales", scales // DTYPE_BYTES[recipe.scale]),)
        found.append(Workspace(f"{recipe.name} weight scales", blocks, recipe.scale, scales, source, "weights"))
    return found


def _double_buffers(c: Context, plans: tuple[ChunkPlan, ...]) -> list[Workspace]:
    """Two fixed buffers for gathered weights and two for gradients, each as large as the largest unit."""
    level = STRATEGIES.index(strategy(c))
    units = [sum(p.numel for p in run.params) for plan in plans for run in plan.runs if run.first_layer >= 0]
    if not units:
        return []
    unit = units[0]
    for other in units[1:]:
        unit = largest(unit, other)
    shape = (Dim("two", 2), Dim("largest unit", unit))
    source = "megatron_fsdp/param_and_grad_buffer.py: fsdp_double_buffer"
    kinds = (("weights", 3, gathered_dtype(c)), ("gradients", 2, grad_dtype(c)))
    return [
        _sized(c.new(f"FSDP double buffer of {kind}", *shape, dtype=dtype), source)
        for kind, least, dtype in kinds
        if level >= least
    ]


def _global_memory_buffer(c: Context, *, head: bool, attention: bool, moe: bool) -> list[Workspace]:
    """Megatron's GlobalMemoryBuffer "mpu": one buffer that grows to the largest request.

    The gathered input of Megatron's sequence-parallel linears (output layer; all linears of the local spec), the score
    matrix of the local spec's attention, and the gathered tokens of the allgather dispatcher.
    """
    requests: list[Tensor] = []
    if c.sp_many and (head or not c.te):
        requests.append(c.region("sequence-parallel gather", c.hidden))
    shapes = (one for one, _ in shapes_of(c.model) if replace(c, model=one).core_kernel == "local")
    scoring = [one.num_attention_heads for one in shapes]
    if scoring and attention:
        heads = c.dim("num_attention_heads", max(scoring), "tp")
        requests.append(c.new("attention scores", c.batch, heads, c.seq, c.full_seq))
    if moe and c.training.moe_token_dispatcher_type == "allgather" and (c.ep_many or c.etp_many):
        tokens = Dim("tokens*ep*etp", c.tokens.size * c.layout.ep * c.layout.etp)
        requests.append(c.new("gathered tokens", tokens, c.hidden))
    if not requests:
        return []
    top = requests[0]
    nbytes = top.nbytes
    for other in requests[1:]:
        if isinstance(nbytes, int) and other.nbytes > nbytes:
            top = other
        nbytes = largest(nbytes, other.nbytes)
    source = "megatron/core/utils.py GlobalMemoryBuffer: grows to the largest request"
    return [Workspace(f"mpu buffer ({top.name})", top.shape, top.dtype, nbytes, source)]


def _rotary(c: Context, plans: tuple[ChunkPlan, ...], layers: dict[str, int]) -> list[Workspace]:
    """Rotary tables: one fp32 table per model chunk; MLA layers own one each, and YaRN bf16 cos and sin from the start."""
    m = c.model
    found = []
    kinds = kinds_in(layers)
    in_chunks = any(kind.rotary == "chunk" for kind in kinds_in(m.every_kind))
    if in_chunks and m.position_embedding_type not in ("none", "learned_absolute"):
        rot, chunks = Dim("rotary", rotary_width(m)), Dim("chunks", len(plans))  # of every chunk (`gpt_model.py`)
        tables = (Dim("local, global, and both stacked", 4),) if m.local_rotary_table else ()
        found.append(_sized(c.new("rotary table", chunks, *tables, c.seq, rot, dtype="fp32"),
                            "models/common/embeddings/rotary_pos_embedding.py: lru_cache per chunk"))  # fmt: skip
    if any(map(_own_table, kinds)):
        rot, count = Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim), own_tables(layers)
        found += [_sized(t, source) for t, source in yarn_tables(c, layers)]
        cached = Dim("layers", smallest(count, CACHED_TABLES))
        found.append(_sized(c.new("rotary table per MLA layer", cached, c.seq, rot, dtype="fp32"),
                            "models/common/embeddings/rotary_pos_embedding.py: lru_cache per layer"))  # fmt: skip
    return found


def yarn_tables(c: Context, layers: dict[str, int], *, built: bool = False) -> Iterator[tuple[Tensor, str]]:
    """YaRN's cos and sin of layers with a table of their own; `built`: as they are before the first forward."""
    m, t = c.model, c.training
    if m.rope_type != "yarn" or not any(map(_own_table, kinds_in(layers))):
        return
    rows, rot = m.original_max_position_embeddings, Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim)
    if t.apply_rope_fusion and not built:  # made again for the sequence, in the dtype of the hidden states
        rows = t.seq_length if c.dtype != "fp32" else max(rows, t.seq_length)
    shape = (Dim("layers", own_tables(layers)), Dim("two", 2), c.dim("positions", rows, "cp"), rot)
    yield c.new("rotary cos and sin per MLA layer", *shape), "models/common/embeddings/yarn_rotary_pos_embedding.py"


def layer_counts(c: Context, plans: tuple[ChunkPlan, ...]) -> dict[str, int]:
    """How many layers of each kind a rank holds, those of MTP too."""
    found: dict[str, int] = {}
    for plan in plans:
        for kind, count in plan.layers(c.model).items():
            found[kind] = found.get(kind, 0) + count
    return found


def own_tables(layers: dict[str, int]) -> int:
    """Rotary tables of layers, and of their indexers (`dsa.py`, DSAIndexer)."""
    return layers_with(layers, _own_table) + layers_with(layers, _own_indexer_table)


def _own_table(kind: Kind) -> bool:
    return kind.rotary == "layer"


def _own_indexer_table(kind: Kind) -> bool:
    return _own_table(kind) and kind.sparse and kind.indexer


def most_stashed(plans: tuple[ChunkPlan, ...], schedule: Occupancy) -> int:
    """Bytes that all microbatches in flight keep at the fullest step, in rows of balanced routing.

    A forward beside a backward (all-to-all overlap) fills as the other empties: together they keep as much as the larger one.
    """
    sizes = [sum(t.nbytes * run.copies for run in plan.runs for t in run.stashed) for plan in plans]
    if not any(run.stashed for plan in plans for run in plan.runs):
        return 0
    most = 0
    for step, kept in schedule.held(sizes):
        if step.beside >= 0:
            kept = kept - smallest(sizes[step.chunk], sizes[step.beside])
        most = largest(most, kept)
    return most


def stash_workspaces(c: Context, plans: tuple[ChunkPlan, ...], schedule: Occupancy) -> list[Workspace]:
    """The buffer on the GPU."""
    size = whole_above(most_stashed(plans, schedule) * c.training.moe_paged_stash_buffer_size_factor_cuda)
    source = "Megatron-LM PR 4247: factor times what balanced routing keeps"
    none = isinstance(size, int) and not size
    return [] if none else [Workspace("paged stash of experts", (), "uint8", size, source)]
