"""Adapters of LoRA, canonical LoRA and DoRA beside frozen linears.

    x [t, in] -> linear_in [t, dim] -> linear_out [t, out] -> added to the output of the frozen linear

Beside a column-parallel linear, linear_in reads the input gathered over the sequence and is sharded over dim (its output is
gathered), linear_out is sharded over out. Beside a row-parallel one, linear_in is sharded over in (its output is reduced),
linear_out over out (its output is gathered, then scattered over the sequence). Both are Megatron's own linears and keep
their inputs. A grouped linear of experts has one adapter for all local experts, or (radixark/miles pull request 1825, Kimi-K3) one
linear_in for all experts of the layer and a linear_out for each.

Source: Megatron-Bridge `src/megatron/bridge/peft/` (utils.py ParallelLinearAdapter, lora_layers.py, dora_layers.py).
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, MeshAxis, Param, Tensor, numel_of
from ..tape.work import Gemm
from .context import Context, agreed
from .module import Module
from .sends import over_tp

CANONICAL = {
    "linear_qkv": ("linear_q", "linear_k", "linear_v"),
    "linear_fc1": ("linear_fc1_up", "linear_fc1_gate"),
}
"""Parts of a fused linear that canonical LoRA adapts one by one."""
DEFAULT_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
WHOLE = ("q_a_proj", "kv_a_proj_with_mqa")
"""Linears whose adapter is whole on every rank, as they are."""
MARK = ".adapter."
"""What tells an adapter's parameters from frozen ones."""


def adapters_of(c: Context, name: str) -> tuple[str, ...]:
    """Names of the adapters beside a linear, none for one that is not a target."""
    t = c.training
    if t.peft == "none":
        return ()
    last = name.rsplit(".", 1)[-1]
    targets = t.peft_target_modules or DEFAULT_TARGETS
    # one adapter in a tower (`canonical_lora.py`, _should_treat_linear_fc1_as_unfused)
    if c.of_tower and last == "linear_fc1":
        return (last,) if {last, *CANONICAL[last]} & set(targets) else ()
    if t.peft == "canonical_lora" and last in CANONICAL:
        return tuple(part for part in CANONICAL[last] if part in targets or not t.peft_target_modules)
    return (last,) if last in targets else ()


def adapter_params(c: Context, name: str, weight: Param) -> Module[None]:
    """Parameters of the adapters beside a linear of weight [out, in]."""
    if name.endswith(WHOLE):
        yield from whole_adapter_params(c, name, weight)
        return
    out, inp = weight.shape
    dim = Dim("dim", c.training.peft_dim)
    expert = weight.split == "expert"
    axis: MeshAxis = "etp" if expert else "tp"
    parts = adapters_of(c, name)
    for part in parts:
        split = {"split": weight.split if expert else "tp", "expert_buffer": weight.expert_buffer, "gemm": "megatron"}
        first = (dim, inp) if axis in inp.axes else (c.dim("dim", dim.size, axis), inp)
        wide = out if axis in out.axes else c.dim(out.name, out.size, axis)
        one, copies = split, 1
        if expert and c.training.peft_experts == "linear_out_each":
            one, copies = {**split, "split": "replicated", "expert_buffer": False}, weight.copies
        yield Param(f"{name}{MARK}{part}.linear_in.weight", first, **one)  # type: ignore[arg-type]
        yield Param(f"{name}{MARK}{part}.linear_out.weight", (_part(c, wide, part), dim), copies=copies, **split)  # type: ignore[arg-type]
        if c.training.peft == "dora":
            split["gemm"] = ""
            yield Param(f"{name}{MARK}{part}.weight_magnitude", (out,), matrix=False, **split)  # type: ignore[arg-type]


def whole_adapter_params(c: Context, name: str, weight: Param) -> Module[None]:
    """Parameters of the adapter beside a linear of torch, whole on every rank (`lora_layers.py`, LinearAdapter)."""
    dim, (out, inp) = Dim("dim", c.training.peft_dim), weight.shape
    for part in adapters_of(c, name)[:1]:
        yield Param(f"{name}{MARK}{part}.linear_in.weight", (dim, inp), "replicated")
        yield Param(f"{name}{MARK}{part}.linear_out.weight", (out, dim), "replicated")


def _part(c: Context, out: Dim, part: str) -> Dim:
    """Output features of one of several adapters beside a fused linear."""
    m = c.model
    if part in CANONICAL["linear_fc1"]:
        return out._replace(name=f"{out.name}/2", size=out.size // 2)
    if part in CANONICAL["linear_qkv"]:
        heads = m.num_attention_heads if part == "linear_q" else m.groups
        return out._replace(name=part, size=heads * (m.value_dim if part == "linear_v" else m.head_dim))
    return out


def adapted(c: Context, name: str, x: Tensor, out: Tensor, weight: Param, *, gathers: bool = False) -> Module[Tensor]:
    """The linear's output with those of its adapters. `gathers`: the input is sharded over the sequence, the output is not."""
    parts = adapters_of(c, name)
    if not parts:
        return out
    source = x
    if gathers:
        source = c.region(f"{name}{MARK}input gathered", x.shape[-1])
        yield Op(
            f"{name}{MARK}gather", (x,), (source,), sends=over_tp(c, "all_gather", source),
            returns=over_tp(c, "reduce_scatter", source),
        )  # fmt: skip
    dim = Dim("dim", c.training.peft_dim)
    lead = source.shape[: 2 if len(source.shape) > 3 else -1]  # linear_proj reads heads and their dims as one
    total = out
    for part in parts:
        prefix = f"{name}{MARK}{part}"
        low = c.new(f"{prefix}.low", *lead, dim)
        delta = c.new(f"{prefix}.output", *lead, _part(c, weight.shape[0], part))
        rows, wide = numel_of(lead), delta.shape[-1].local
        each = numel_of(source.shape) // rows
        yield Op(f"{prefix}.linear_in", (source,), (low,), (source,), work=(Gemm(rows, dim.size, each),))
        yield Op(
            f"{prefix}.linear_out", (low,), (delta,), (low,), forward=(delta.like(f"{prefix}.scaled output"),),
            work=(Gemm(rows, wide, dim.size),),
        )  # fmt: skip
        total = out.like(f"{prefix}.added")
        passes = (out, delta) if agreed(delta.nbytes == out.nbytes) else (out,)
        yield Op(f"{prefix}.add", (out, delta), (total,), passes=passes)
        out = total
    if c.training.peft == "dora":  # the magnitude's gradient needs what it scales; its norm needs the whole weight
        scaled = out.like(f"{name}{MARK}scaled")
        merged = c.new(f"{name}{MARK}merged weight", *weight.shape)
        yield Op(
            f"{name}{MARK}magnitude", (out,), (scaled,), (out,), forward=(merged, merged.like(f"{name}{MARK}product"))
        )
        total = scaled
    return total
