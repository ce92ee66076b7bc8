"""Mixture of experts: router, dispatcher, routed experts, shared experts, latent projections.

Source: Megatron-LM `megatron/core/transformer/moe/` (`moe_layer.py`, `router.py`, `moe_utils.py`, `experts.py`,
`shared_experts.py`); TransformerEngine `pytorch/permutation.py`, `pytorch/module/grouped_linear.py`.

Rows of a rank's experts are one dim (`Context.expert_rows`): top-k copies of the tokens, or a capacity, times the visible
router imbalance.

Biases of the experts' second linear, added to the rows of each expert and weighed with their probabilities.

Source: Megatron-LM `megatron/core/transformer/moe/experts.py` (TEGroupedMLP._apply_bias), since Megatron-Core 0.13.

Experts that run one after the other: each keeps what it keeps, and only one has its short-lived tensors alive.

Source: Megatron-LM `megatron/core/transformer/moe/experts.py` (SequentialMLP.forward: torch.split, a loop, torch.cat). PyTorch
`tools/autograd/derivatives.yaml`: the gradients of the pieces of `split` are collected and joined, those of `cat` are views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import Violation, broken
from ..tape.ops import Op, filling
from ..tape.tensor import Dim, Param, Tensor, ceil_div, largest
from ..tape.work import Streamed
from .adapters import adapted, adapter_params
from .combine import combine
from .context import Context
from .dispatcher import Routed, attributes, dispatch, fused_experts, fuses, meanwhile
from .linear import (
    duplicated_linear,
    gemm,
    grad_of,
    keeps_original,
    kept_input,
    linear_params,
    other_orientation,
    quantized_grad,
    weight_grad,
    wgrad_operands,
)
from .mlp import activation
from .module import Module, T, changed, collected, holding, in_part, recomputed
from .norm import norm_params, separate_norm
from .router import router
from .shared_experts import Beside, beside_experts, shared_experts_params, split_norm


def hash_kept(c: Context, layers: int) -> Iterator[tuple[Tensor, str]]:
    """The same of layers whose experts the token's hash chooses: a table of them, and no balancing buffers."""
    m = c.model
    yield from kept(c, layers, hashed=True)
    vocab = Dim("actual_vocab_size", m.vocab_size or m.padded_vocab(1))
    shape = (Dim("moe_layers", layers), vocab, Dim("moe_router_topk", m.moe_router_topk))
    yield c.new("router tid2eid", *shape, dtype="int32"), "Megatron-LM dev moe/router.py: experts of every token id"


def kept(c: Context, layers: int, *, hashed: bool = False) -> Iterator[tuple[Tensor, str]]:
    """Tensors that an MoE layer keeps between microbatches: the dispatcher's last map and probabilities, balancing buffers."""
    m = c.model
    assert m.num_moe_experts is not None
    count, experts = Dim("moe_layers", layers), Dim("num_moe_experts", m.num_moe_experts)
    if c.training.moe_token_dispatcher_type == "alltoall":
        source = "moe/token_dispatcher.py: self.probs and self.routing_map of the last microbatch"
        yield c.new("dispatcher probs", count, c.tokens, experts, dtype=c.probs_dtype), source
        yield c.new("dispatcher routing_map", count, c.tokens, experts, dtype="bool"), source
    if c.training.recomputes("moe") or c.training.recomputes_layers():
        source = (
            "moe/token_dispatcher.py: what the dispatcher refers to, which autograd does not keep of a recomputed layer"
        )
        for one in attributes(c):
            yield (
                c.new(f"dispatcher {one.name.removeprefix('mlp.permute.')}", count, *one.shape, dtype=one.dtype),
                source,
            )
    if m.moe_router_enable_expert_bias and not hashed:
        two = Dim("expert_bias, local_tokens_per_expert", 2)
        yield c.new("router balancing buffers", count, two, experts, dtype="fp32"), "moe/router.py"
    if m.aux_loss and "global_aux_loss" in m.moe_router_load_balancing_type:
        yield c.new("router global_tokens_per_expert", count, experts, dtype="fp32"), "moe/router.py"


def moe(c: Context, hidden: Tensor, layer: int = 0, *, normed: Tensor | None = None) -> Module[Tensor]:
    """Output of a MoE layer on the residual stream, with its separate pre-MLP norm, unless the input is `normed` already."""
    m, t = c.model, c.training
    assert m.num_moe_experts is not None
    experts = Dim("num_moe_experts", m.num_moe_experts)
    last = "mlp.unpermute"
    if m.moe_shared_expert_intermediate_size or m.moe_latent_size:
        last = "mlp.shared_experts.add" if m.moe_shared_expert_intermediate_size else "mlp.fc2_latent_proj"
    hook = "mlp.checkpoint" if t.recomputes("moe") else last
    x = (yield from _input(c, hidden, hook)) if normed is None else normed
    yield from router_params(c, experts)
    latent: tuple[Param, Param] | None = None
    width = Dim("moe_latent_size", m.moe_latent_size) if m.moe_latent_size else c.hidden
    if m.moe_latent_size:
        down = yield from linear_params(c, "mlp.fc1_latent_proj", width, c.hidden, "replicated", m.add_bias_linear)
        up = yield from linear_params(c, "mlp.fc2_latent_proj", c.hidden, width, "replicated", m.add_bias_linear)
        latent = (down, up)
    fc1, fc2 = yield from expert_params(c, width)
    shared: tuple[Param, Param] | None = None
    if m.moe_shared_expert_intermediate_size:
        shared = yield from shared_experts_params(c)
    if m.moe_latent_norm:
        yield from norm_params(c, "mlp.routed_expert_norm.", width)

    def body() -> Module[Tensor]:
        beside, extra = (yield from beside_experts(c, x, shared)) if shared else (Beside(), None)
        probs = yield from in_part("router", router(c, x, experts))
        tokens = x
        if latent:
            down_proj = duplicated_linear(c, "mlp.fc1_latent_proj", x, latent[0])
            tokens = yield from in_part("latent_down", down_proj)
        routed = yield from in_part("dispatch", filled(c.filled, dispatch(c, tokens, probs, width, beside.first)))
        done = yield from in_part("experts", filled(c.filled, routed_experts(c, routed, fc1, fc2)))
        out, back = yield from in_part("combine", filled(c.filled, combine(c, routed, done, width, beside.second)))
        yield from meanwhile(beside.last, back)
        if m.moe_latent_norm:
            out = yield from in_part("latent_up", split_norm(c, "mlp.routed_expert_norm", out))
        if latent:
            up_proj = holding(duplicated_linear(c, "mlp.fc2_latent_proj", out, latent[1]), *back)
            out = yield from in_part("latent_up", up_proj)
        if extra is not None:
            name = "mlp.output with shared experts"
            total = out.view(name, out.shape) if beside.second else c.stream(name, c.hidden)
            # cut into nodes, the layer keeps the detached output of the shared experts until their backward
            kept = (extra,) if t.overlap_moe_expert_parallel_comm else ()
            yield Op(
                "mlp.shared_experts.add",
                (out, extra),
                (total,),
                kept,
                holds=back,
                passes=(out, extra),
                part="shared_experts_add",
            )
            out = total
        return out

    return (yield from holding(recomputed(t.recomputes("moe"), "mlp.checkpoint", body()), x))


def _input(c: Context, hidden: Tensor, hook: str) -> Module[Tensor]:
    """The normed input of a layer whose norm is its own module."""
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    return (yield from in_part("router_norm", separate_norm(c, "pre_mlp_layernorm", hidden, hook)))


def router_params(c: Context, experts: Dim) -> Module[None]:
    """The router's weight and bias."""
    frozen, dtype = c.training.freeze_moe_router, "fp32" if c.model.moe_router_weight_in_fp32 else ""
    yield Param("mlp.router.weight", (experts, c.hidden), frozen=frozen, dtype=dtype)
    if c.model.add_bias_linear:
        yield Param("mlp.router.bias", (experts,), matrix=False, frozen=frozen)


def filled(share: float, module: Module[T]) -> Module[T]:
    """The module with ops on rows of which a share holds a token, but for those of shared experts that run beside them."""
    return changed(module, lambda item: item if item.part == "shared_experts" else filling(item, share))


def expert_params(c: Context, width: Dim) -> Module[tuple[Param, Param]]:
    """fc1 and fc2 of the local experts; grouped experts are `weight0, bias0, ..., weightN, biasN` of one module, others one module each.

    Source: TransformerEngine `pytorch/module/grouped_linear.py` (GroupedLinear); Megatron-LM `moe/experts.py` (SequentialMLP).
    """
    m = c.model
    one = c.dim("moe_ffn_hidden_size", m.moe_ffn, "etp")
    gated = c.dim("gate*moe_ffn_hidden_size", m.gate * m.moe_ffn, "etp")
    count, buffers = c.local_experts.local, c.expert_buffers
    gemm = "te" if c.te else "megatron"
    grouped = c.training.moe_grouped_gemm
    made: list[Param] = []
    for fc, shape in (("linear_fc1", (gated, width)), ("linear_fc2", (width, one))):
        name = f"mlp.experts.{fc}"
        recipe = c.recipe.name if c.recipe else ""
        behind = not grouped and fc == "linear_fc1"  # fc2 of the same expert follows
        weight = Param(
            f"{name}.weight",
            shape,
            "expert",
            count,
            buffers,
            gemm,
            quantized=recipe,
            in_turn=m.add_bias_linear or behind,
        )
        made.append(weight)
        yield weight
        if m.add_bias_linear:
            yield Param(f"{name}.bias", shape[:1], "expert", count, buffers, matrix=False, in_turn=behind)
        yield from adapter_params(c, name, weight)
    return made[0], made[1]


def routed_experts(c: Context, routed: Routed, fc1: Param, fc2: Param) -> Module[Tensor]:
    """fc1, activation times probability, fc2 on the rows of this rank's experts (TEGroupedMLP, SequentialMLP)."""
    tokens, probs, rows = routed.tokens, routed.probs, routed.rows
    pads = c.padded_expert_rows.name != routed.rows.name and not c.training.moe_router_padding_for_quantization
    rows = c.padded_expert_rows
    if pads:  # every expert's rows are copied to a multiple that low-precision GEMMs take
        tokens = c.new("mlp.experts.input padded", rows, *routed.tokens.shape[1:])
        yield Op("mlp.experts.pad", (routed.tokens,), (tokens,))
        if probs is not None:
            whole = c.new("mlp.experts.probs padded", rows, dtype=probs.dtype)
            yield Op("mlp.experts.pad_probs", (probs,), (whole,))
            probs = whole
    if fuses(c):
        out = yield from fused_experts(c, tokens, probs, rows, fc1, fc2)
        if pads:
            done = c.new("mlp.experts.output unpadded", routed.rows, *out.shape[1:])
            yield Op("mlp.experts.unpad", (out,), (done,))
            out = done
        return out
    if runs_one_by_one(c):
        each = tokens.view("mlp.experts.input of each expert", tokens.shape)
        yield Op("mlp.experts.split", (tokens,), (each,))
        outputs = c.new("mlp.experts.output", rows, fc2.shape[0])
        _, act, out = yield from repeated(c, experts_run(c, each, probs, rows, fc1, fc2), each, outputs)
    else:
        wide, act, out = yield from experts_run(c, tokens, probs, rows, fc1, fc2)
    grouped, moe_act = c.training.moe_grouped_gemm, c.training.recomputes("moe_act")
    if grouped and c.model.add_bias_linear and probs is not None:
        out = yield from holding(with_biases(c, out, probs), wide, None if moe_act else act)
    elif not grouped and c.local_experts_many:
        single, out = out, out.like("mlp.experts.output joined")
        yield Op("mlp.experts.join", (single,), (out,), passes=(single,))
    if pads:
        done = c.new("mlp.experts.output unpadded", routed.rows, *out.shape[1:])
        yield Op("mlp.experts.unpad", (out,), (done,))
        out = done
    return out


OF_AN_EXPERT = 0.3
"""Launches for one expert in a grouped linear, in those of a function of PyTorch: its rows, quantizers and weight, and its GEMM, which
TransformerEngine goes through one expert after the other (`pytorch/module/grouped_linear.py`). Judgement, after looking at published
steps (Nemotron-3 Super, 64 experts on a rank)."""


def grouped_calls(c: Context) -> Any:
    """Launches of a linear of all experts of a rank; grouped tensors have one for them all."""
    t = c.training
    return 1 + OF_AN_EXPERT * c.local_experts.local if t.moe_grouped_gemm and not t.grouped_tensors else 1


def experts_run(
    c: Context, tokens: Tensor, probs: Tensor | None, rows: Dim, fc1: Param, fc2: Param
) -> Module[tuple[Tensor, Tensor, Tensor]]:
    """Outputs of fc1, of the activation and of fc2; where experts run one after the other the first two have one expert's rows."""
    gated, one = fc1.shape[0], fc2.shape[1]
    moe_act = c.training.recomputes("moe_act")
    made = rows_of_one(c, rows) if runs_one_by_one(c) else rows
    name = "mlp.experts.linear_fc1"
    wide = c.new(f"{name}.output", made, gated)
    single = c.new(tokens.name, made, *tokens.shape[1:])
    moved = "expert_fc1" in c.training.offload_modules and keeps_original(c)  # the 16-bit input is offloaded
    yield Op(
        name, (tokens,), (wide,), kept_input(c, name, tokens, original=moved), other_orientation(c, f"{name}.input", single),
        (*quantized_grad(c, name, wide), *weight_grad(c, fc1)), wgrad=wgrad_operands(c, name, tokens, grad_of(wide)),
        part="expert_fc1", work=(gemm(c, fc1, rows.local * c.filled),), calls=grouped_calls(c),
    )  # fmt: skip
    wide = yield from in_part("expert_fc1", adapted(c, name, tokens, wide, fc1))
    activated = activation(c, "mlp.experts.activation", wide, one, probs)
    activated = recomputed(moe_act, "mlp.experts.activation.checkpoint", activated, hook="mlp.experts.linear_fc2")
    act = yield from in_part("moe_act", activated)
    name = "mlp.experts.linear_fc2"
    out = c.new(f"{name}.output", rows, fc2.shape[0])
    single = c.new(out.name, made, fc2.shape[0])
    held = (wide,) if c.training.moe_grouped_gemm else ()  # a variable of TEGroupedMLP's forward
    yield Op(
        name, (act,), (out,), kept_input(c, name, act, original=moe_act), other_orientation(c, f"{name}.input", act),
        (*quantized_grad(c, name, single), *weight_grad(c, fc2)), held, wgrad=wgrad_operands(c, name, act, grad_of(out)),
        work=(gemm(c, fc2, rows.local * c.filled),), calls=grouped_calls(c),
    )  # fmt: skip
    out = yield from adapted(c, name, act, out, fc2)
    return wide, act, out


NAME = "mlp.experts.bias"


def with_biases(c: Context, out: Tensor, probs: Tensor) -> Module[Tensor]:
    """The rows with their biases: expert by expert, in fp32 where the probabilities are, then joined and cast back."""
    pieces = out.view(f"{NAME}.rows of each expert", out.shape)
    yield Op(f"{NAME}.split", (out,), (pieces,))
    sums = out.like(f"{NAME}.sums", probs.dtype)
    rows = Dim("rows of one expert", ceil_div(out.shape[0].local, c.local_experts.local))
    product = c.new(f"{NAME}.product of one expert", rows, *out.shape[1:], dtype=probs.dtype)
    grads = (product.like(f"{NAME}.gradient times probabilities"), product.like(f"{NAME}.gradient times bias"))
    same = (pieces,) if sums.dtype == out.dtype else ()
    yield Op(f"{NAME}.add", (pieces, probs), (sums,), (probs,), (product,), grads, passes=same)
    joined = sums.like(f"{NAME}.joined")
    yield Op(f"{NAME}.join", (sums,), (joined,), passes=(sums,), holds=(out,))
    if joined.dtype == out.dtype:
        return joined
    result = out.like(f"{NAME}.output")
    yield Op(f"{NAME}.cast", (joined,), (result,), holds=(out,))
    return result


ONE = "rows of one expert"


def runs_one_by_one(c: Context) -> bool:
    """Whether a rank's experts run one after the other; experts with adapters are taken to run at once."""
    return not c.training.moe_grouped_gemm and c.local_experts_many and not c.training.base_frozen


def rows_of_one(c: Context, rows: Dim) -> Dim:
    """The rows of one expert, all having as many."""
    return Dim(ONE, ceil_div(rows.local, c.local_experts.local))


def repeated(c: Context, module: Module[T], inputs: Tensor, outputs: Tensor) -> Module[T]:
    """The ops of the last expert, with what the others keep beside it. `inputs` and `outputs` are the rows of all experts.

    The others' tensors are there before the last expert's second op and leave behind that op's backward. The backward begins with the
    last expert, while all others keep theirs and the gradient of all outputs is alive, of which theirs are views; when it comes to the
    first, the gradients of the others' inputs have taken that place.
    """
    items, result = yield from collected(module)
    first, *middle, last = ops = [item for item in items if isinstance(item, Op)]
    assert len(ops) == len(items), "moe_act needs grouped experts"
    count = c.local_experts.local
    others = tuple(_rest(t, count - 1) for op in ops for t in op.saves if _of_one(t))
    kept, grads = sum(t.nbytes for t in others), inputs.nbytes * (count - 1) // count
    views = outputs.like("mlp.experts.gradient of all outputs")
    more = "what other experts keep and wait for, beyond gradients of their inputs"
    waiting = "gradients of other experts' inputs, beyond what these kept"
    done = _scratch(c, "outputs of the others", outputs.nbytes * (count - 1) // count)
    begun = (*first.backward, *_scratch(c, more, kept + views.nbytes - grads))
    yield _repeated(first._replace(forward=(*first.forward, *done), backward=begun), count)
    yield Op("mlp.experts.others", saves=others, calls=0, compiled=True)
    for op in middle:
        yield _repeated(op._replace(forward=(*op.forward, *done), backward=(*op.backward, views)), count)
    yield _repeated(last._replace(backward=(*last.backward, *_scratch(c, waiting, grads - kept))), count)
    return result


def _repeated(op: Op, count: int) -> Op:
    """An op of one expert in the time that it takes for all."""
    work = op.work
    if not work and not op.sends:
        named = {t.name: t for t in (*op.reads, *op.writes, *op.saves) if _of_one(t)}
        moved = sum(t.nbytes for t in named.values()) * (count - 1)
        work = (Streamed(forward=moved, backward=moved),)
    return op._replace(work=work, calls=op.calls * count)


def _of_one(t: Tensor) -> bool:
    return t.shape[0].name == ONE


def _rest(t: Tensor, others: int) -> Tensor:
    one, *features = t.shape
    rows = Dim("rows of the other experts", one.size * others)
    return Tensor(
        f"{t.name} of the others", (rows, *features), t.dtype, t.nbytes * others, f"{t.storage} of the others"
    )


def _scratch(c: Context, name: str, nbytes: int) -> tuple[Tensor, ...]:
    if isinstance(nbytes, int) and nbytes <= 0:
        return ()
    return (c.new(f"mlp.experts.{name}", Dim("bytes", largest(nbytes, 0)), dtype="uint8"),)


def hash_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What experts that the token's hash chooses require and exclude."""
    if training.overlap_moe_expert_parallel_comm:
        yield broken("hash-layers-or-a2a-overlap")
    if layout.pp == 1 or model.hybrid:
        return
    if layout.pipeline_model_parallel_layout is None:
        yield broken("hash-layers-need-layout")
