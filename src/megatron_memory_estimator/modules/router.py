"""The router of experts: what it keeps of its choice, with PyTorch's functions and with TransformerEngine's kernels.

Source: Megatron-LM `megatron/core/transformer/moe/router.py`, `moe_utils.py` (RouterGatingLinearFunction); TransformerEngine
`pytorch/router.py`.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor
from ..tape.work import Gemm, Streamed
from .context import Context
from .module import Module

ROUTING_MAP = "mlp.router.routing_map"
FUSED_IN_FP32 = (2, 13)
"""TransformerEngine version whose fused router keeps its scores in fp32."""
GATING, BALANCING = {False: 12, True: 3}, {False: 10, True: 5}
"""Functions of PyTorch that a router calls, and more with a balancing loss, without moe_router_fusion and with it (counted in
`moe/router.py`, `moe/moe_utils.py` of Megatron-Core 0.16: topk_routing_with_score_function, compute_routing_scores_for_aux_loss,
switch_load_balancing_loss_func). Fused: the product, fused_topk_with_score_function, the bias's counts; and
fused_compute_score_for_moe_aux_loss, a sum, its reduction, fused_moe_aux_loss, MoEAuxLossAutoScaler."""


def _choice(c: Context, experts: Dim) -> list[Tensor]:
    """Tensors that PyTorch's functions keep for the choice of experts and a balancing loss."""
    m, tokens = c.model, c.tokens
    topk = Dim("moe_router_topk", m.moe_router_topk)
    kept = [c.new("mlp.router.topk_indices", tokens, topk, dtype="int64")]
    softmax, divides = m.moe_router_score_function == "softmax", m.moe_router_topk > 1
    if softmax and m.moe_router_pre_softmax:
        kept.append(c.new("mlp.router.scores", tokens, experts, dtype="fp32"))
    elif softmax or divides:
        kept.append(c.new("mlp.router.topk_probs", tokens, topk, dtype="fp32"))
    if not softmax:
        kept.append(c.new("mlp.router.scores", tokens, experts, dtype="fp32"))
        if divides:  # one expert's score is not divided by its sum
            kept.append(c.new("mlp.router.topk_sum", tokens, dtype="fp32"))
    logits_kept = m.moe_z_loss_coeff is not None and c.probs_dtype == "fp32"  # by the z-loss
    # the softplus keeps its input, the root its output
    if m.moe_router_score_function == "sqrtsoftplus" and not logits_kept:
        kept.append(c.new("mlp.router.softplus_input", tokens, experts, dtype="fp32"))
    if m.aux_loss:
        kept.append(c.new("mlp.router.aux_loss_scores", tokens, experts, dtype="fp32"))
        kept.append(c.new("mlp.router.tokens_per_expert", experts, dtype="int64"))
        if m.moe_router_score_function != "softmax":
            kept.append(c.new("mlp.router.aux_loss_sum", tokens, dtype="fp32"))
        # logits that are widened once more
        if m.moe_router_score_function == "sqrtsoftplus" and c.probs_dtype != "fp32":
            kept.append(c.new("mlp.router.aux_loss_softplus_input", tokens, experts, dtype="fp32"))
    # with a bias only the indices of the choice are used
    if m.moe_router_group_topk and not m.moe_router_enable_expert_bias:
        kept.append(c.new("mlp.router.group_mask", tokens, experts, dtype="bool"))
    return kept


def _fused_choice(c: Context, experts: Dim) -> list[Tensor]:
    """What TransformerEngine's router kernels keep: the map and the scores, and those of a balancing loss once more.

    The map of HybridEP is the one that its dispatch keeps. Source: TransformerEngine `pytorch/router.py` (FusedTopkScoreFunction,
    FusedComputeScoresForMoEAuxLoss, FusedAuxLoss), `csrc/extensions/router.cpp`: scores in fp32 since 2.13, before in the logits' dtype.
    """
    t = c.training
    wide = "fp32" if t.moe_router_dtype or t.te >= FUSED_IN_FP32 else c.dtype
    kept = [c.new("mlp.router.intermediate scores", c.tokens, experts, dtype=wide)]
    if not t.hybridep:
        kept.append(c.new(ROUTING_MAP, c.tokens, experts, dtype="bool"))
    if c.model.aux_loss:
        kept.append(c.new("mlp.router.aux_loss_scores", c.tokens, experts, dtype=wide))
        kept.append(c.new("mlp.router.tokens_per_expert", experts, dtype="int64"))
    return kept


def router(c: Context, x: Tensor, experts: Dim) -> Module[Tensor]:
    """Routing probabilities [tokens, experts]; what stays is the top-k choice and the scores that a loss needs."""
    m, t = c.model, c.training
    tokens = c.tokens
    wide_dtype = "fp32" if m.moe_router_weight_in_fp32 else c.probs_dtype
    probs = c.new("mlp.router.probs", tokens, experts, dtype=wide_dtype)
    routing_map = c.new(ROUTING_MAP, tokens, experts, dtype="bool")
    logits = c.new("mlp.router.logits", tokens, experts, dtype=wide_dtype)
    wide = x.like(f"mlp.router.input {wide_dtype}", wide_dtype)
    kept = [
        wide if m.moe_router_weight_in_fp32 else x,
        *(_fused_choice if t.moe_router_fusion else _choice)(c, experts),
    ]
    if m.moe_z_loss_coeff is not None:  # `moe_utils.py`, z_loss_func: logsumexp keeps what it read and its result
        gate = c.probs_dtype
        kept.append(c.new("mlp.router.z_loss_logits", tokens, experts, dtype=gate))
        kept.append(c.new("mlp.router.z_loss_sum", tokens, dtype=gate))
    # `moe_utils.py`, apply_router_token_dropping: probabilities times a mask
    if t.moe_expert_capacity_factor is not None:
        kept.append(c.new("mlp.router.capacity_mask", tokens, experts, dtype="bool"))
    scratch = (logits,) if any(one.name == ROUTING_MAP for one in kept) else (logits, routing_map)
    backward: tuple[Tensor, ...] = (logits.like("mlp.router.logits grad"),)
    moved = 0
    if m.moe_router_weight_in_fp32:
        backward = (*backward, x.like("mlp.router.input grad fp32", "fp32"))
    elif t.moe_router_dtype == "fp64":
        # torch.mm of a widened input; its gradient is cast back before the input is widened again
        scratch = (*scratch, wide)
        backward = (*backward, wide.like("mlp.router.input grad fp64"))
        moved = wide.nbytes
    elif t.moe_router_dtype and x.dtype != "fp32":
        # TransformerEngine's GEMM reads 16 bits; the weight's gradient a widened input
        backward = (*backward, wide.like("mlp.router.input grad fp32"))
        backward = (*backward, x.like("mlp.router.input fp32, beyond the gradient in 16 bits"))
        moved = wide.nbytes
    products = (Gemm(tokens.local, experts.local, c.hidden.local, counted=False), Streamed(backward=moved))
    yield Op(
        "mlp.router",
        (x,),
        (probs,),
        tuple(kept),
        scratch,
        backward,
        work=products,
        calls=GATING[t.moe_router_fusion] + (BALANCING[t.moe_router_fusion] if m.aux_loss else 0),
    )
    return probs
