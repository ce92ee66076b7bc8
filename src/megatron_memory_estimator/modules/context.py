"""What a module declaration sees: the model, the layout and the training settings, as ready-made dims and switches.

Switches say which structures exist (`tp_many`: more than one tensor-parallel rank). Declarations branch on them alone,
never on a degree, so that one declaration serves one layout and an array of layouts.

On which side of a border layouts are. An array of layouts shares one structure, so that all of it must agree.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from ..dataclass import dataclass
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..job.variants import variant_of
from ..tape.tensor import Dim, MeshAxis, Tensor, ceil_div, chosen, nearest_whole, round_up, smallest, tensor
from .quantization import RECIPES, Recipe
from .routing import Factors, factors

FACTOR_SCALE = 10**6
GROUPED_ROWS = 256
"""Rows of an expert in a grouped tensor are padded to a multiple of this (TransformerEngine `pytorch/tensor/grouped_tensor.py`)."""


@dataclass(frozen=True)
class Context:
    """The inputs of a module declaration."""

    of_tower: ClassVar[bool] = False
    """Whether the module is one of a tower."""

    model: Model
    layout: Layout
    training: Training
    kernel: str
    num_sms: int = 132
    blackwell: bool = False
    """A GPU whose low-precision GEMMs read a weight in both orientations (compute capability 10 to 11)."""
    high_precision: bool = False
    """A layer that stays in 16 bits although the model is trained in fp8 or fp4."""

    def of(self, kind: str) -> Context:
        """The context of a layer of a kind: of another shape, where the kind is that of a variant."""
        name = variant_of(kind)
        return replace(self, model=self.model.variant(name)) if name else self

    # -- structure -----------------------------------------------------------------------------------------------
    @cached_property
    def tp_many(self) -> bool:
        """More than one tensor-parallel rank."""
        return many(self.layout.tp)

    @cached_property
    def sp_many(self) -> bool:
        """The residual stream is sharded over tensor-parallel ranks."""
        return self.layout.sequence_parallel and self.tp_many

    @cached_property
    def cp_many(self) -> bool:
        """More than one context-parallel rank."""
        return many(self.layout.cp)

    @cached_property
    def ep_many(self) -> bool:
        """More than one expert-parallel rank."""
        return many(self.layout.ep)

    @cached_property
    def etp_many(self) -> bool:
        """More than one expert tensor-parallel rank."""
        return many(self.layout.etp)

    @cached_property
    def group_is_shared(self) -> bool:
        """More tensor-parallel ranks than query groups: several ranks work on one group."""
        return above(self.layout.tp, self.model.groups)

    @cached_property
    def one_head(self) -> bool:
        """One attention head on a rank."""
        return not above(self.model.num_attention_heads, self.layout.tp)

    @cached_property
    def several_groups(self) -> bool:
        """More than one query group on a rank."""
        return above(self.model.groups, self.layout.tp)

    @cached_property
    def expert_buffers(self) -> bool:
        """Routed experts are reduced over the expert data-parallel group (Megatron-LM extensions/transformer_engine.py)."""
        return self.ep_many or above(self.layout.tp, self.layout.etp) or above(self.layout.etp, self.layout.tp)

    @cached_property
    def several_sequences(self) -> bool:
        """More than one sequence in a microbatch."""
        return many(self.training.micro_batch_size)

    @cached_property
    def heads_in_fours(self) -> bool:
        """Attention heads of a rank, of all sequences of a microbatch, in fours."""
        return agreed(self.model.num_attention_heads // self.layout.tp * self.training.micro_batch_size % 4 == 0)

    @property
    def te(self) -> bool:
        """TransformerEngine modules."""
        return self.training.te_spec

    @cached_property
    def recipe(self) -> Recipe | None:
        """The low-precision recipe of this layer's TransformerEngine linears."""
        name = self.training.low_precision
        return RECIPES[name] if name and self.te and not self.high_precision else None

    @cached_property
    def core_kernel(self) -> str:
        """The kernel of core attention; FlexAttention's module makes a matrix of all scores where it is not fused, or has dropout.

        TransformerEngine's flash kernels know no sinks, and cuDNN's no window with dropout (`dot_product_attention/utils.py`).
        """
        m = self.model
        if m.core_attention == "transformer_engine":
            alone = self.te and m.softmax_type != "vanilla" and m.sliding_window and m.attention_dropout > 0
            return "unfused" if alone else self.kernel
        whole = self.kernel in ("unfused", "local") or self.model.attention_dropout > 0
        return "local" if whole else self.model.core_attention

    # -- dtypes --------------------------------------------------------------------------------------------------
    @property
    def dtype(self) -> str:
        """Dtype of weights and activations."""
        return self.training.params_dtype

    @property
    def residual_dtype(self) -> str:
        """Dtype of the residual stream."""
        return "fp32" if self.model.fp32_residual_connection or self.model.stream == "fp32" else self.dtype

    @property
    def probs_dtype(self) -> str:
        """Dtype of the router's logits and of the probabilities that reach the experts (`moe/router.py`, gating)."""
        return self.training.moe_router_dtype or self.dtype

    # -- dims ----------------------------------------------------------------------------------------------------
    def dim(self, name: str, size: int, *axes: MeshAxis) -> Dim:
        """A dim sharded over mesh axes of this layout."""
        ways = 1
        for axis in axes:
            ways = ways * getattr(self.layout, axis)
        return Dim(name, size, axes, ways)

    @cached_property
    def batch(self) -> Dim:
        """Sequences of a microbatch."""
        return Dim("micro_batch_size", self.training.micro_batch_size)

    @cached_property
    def seq(self) -> Dim:
        """Sequence inside a tensor-parallel region: sharded over cp only."""
        return self.dim("seq", self.training.seq_length, "cp")

    @cached_property
    def full_seq(self) -> Dim:
        """The whole sequence."""
        return Dim("seq", self.training.seq_length)

    @cached_property
    def seq_sp(self) -> Dim:
        """Sequence of the residual stream: sharded over cp, and over tp with sequence parallelism."""
        return self.dim("seq", self.training.seq_length, "cp", "tp") if self.sp_many else self.seq

    @cached_property
    def hidden(self) -> Dim:
        """Width of the residual stream."""
        return Dim("hidden_size", self.model.hidden_size)

    @cached_property
    def streams(self) -> Dim:
        """Residual streams of hyper-connections."""
        return Dim("mhc_num_residual_streams", self.model.mhc_num_residual_streams)

    @cached_property
    def tokens(self) -> Dim:
        """Tokens of one rank's residual stream (rows that enter a MoE layer)."""
        return Dim("tokens/cp" + ("/tp" if self.sp_many else ""), self.seq_sp.local * self.batch.size)

    # -- tensors -------------------------------------------------------------------------------------------------
    def new(self, name: str, *shape: Dim, dtype: str = "") -> Tensor:
        """An activation in the compute dtype unless another is given."""
        return tensor(name, shape, dtype or self.dtype)

    def residual(self, name: str) -> Tensor:
        """A tensor of the residual stream, or of all streams with hyper-connections."""
        many = (self.streams,) if self.model.several_streams else ()
        return tensor(name, (self.seq_sp, self.batch, *many, self.hidden), self.residual_dtype)

    def stream(self, name: str, *features: Dim) -> Tensor:
        """A tensor on the residual stream's tokens, in the compute dtype."""
        return tensor(name, (self.seq_sp, self.batch, *features), self.dtype)

    def region(self, name: str, *features: Dim) -> Tensor:
        """A tensor inside a tensor-parallel region: all tokens of the context-parallel shard."""
        return tensor(name, (self.seq, self.batch, *features), self.dtype)

    # -- MoE rows ------------------------------------------------------------------------------------------------
    @cached_property
    def local_experts(self) -> Dim:
        """Experts of one rank."""
        assert self.model.num_moe_experts is not None
        return self.dim("num_moe_experts", self.model.num_moe_experts, "ep")

    @cached_property
    def local_experts_many(self) -> bool:
        """More than one expert on a rank."""
        return many(self.local_experts.local)

    @cached_property
    def sorts_rows(self) -> bool:
        """Rows of several local experts are copied into their order. Padded to a capacity and of one rank alone they are in it, and the
        copy is a view (Megatron-LM `token_dispatcher.py`, MoEAlltoAllTokenDispatcher.dispatch_postprocess)."""
        t = self.training
        padded = t.moe_pad_expert_input_to_capacity and t.moe_expert_capacity_factor is not None
        return self.local_experts_many and (not padded or self.ep_many or self.etp_many)

    @cached_property
    def capacity(self) -> int:
        """Rows per expert and source rank with a capacity factor (Megatron-LM `moe_utils.py`, get_capacity)."""
        factor = self.training.moe_expert_capacity_factor
        assert factor is not None and self.model.num_moe_experts is not None
        rows = self.tokens.size * self.model.moe_router_topk
        return _scaled(rows, factor, self.model.num_moe_experts)

    @cached_property
    def sent_rows(self) -> Dim:
        """Rows that leave this rank's tokens: top-k copies, or the capacity of every expert."""
        rows = self.tokens.size * self.model.moe_router_topk
        if self.training.moe_expert_capacity_factor is None:
            return Dim("tokens*topk", rows)
        assert self.model.num_moe_experts is not None
        cap = self.capacity * self.model.num_moe_experts
        if self.training.moe_pad_expert_input_to_capacity:
            return Dim("capacity*num_moe_experts", cap)
        return Dim("min(tokens*topk, capacity*num_moe_experts)", smallest(rows, cap))

    @property
    def received_rows(self) -> Dim:
        """Rows that arrive from the expert-parallel ranks, before the experts' tensor-parallel all-gather."""
        capacity = self.training.moe_expert_rank_capacity_factor
        if capacity is not None:
            return Dim("tokens*topk*rank_capacity", _scaled(self.sent_rows.size, capacity, 1))
        factor = self.router_imbalance
        padded = self.training.moe_expert_capacity_factor is not None and self.training.moe_pad_expert_input_to_capacity
        if padded or not self.ep_many or (isinstance(factor, int | float) and factor == 1):
            return self.sent_rows
        assert self.model.num_moe_experts is not None
        local = self.local_experts.local
        worst = self.tokens.size * self.layout.ep * smallest(self.model.moe_router_topk, local)
        if self.training.moe_expert_capacity_factor is not None:
            worst = smallest(worst, self.capacity * self.model.num_moe_experts)
        return Dim("routed_rows", smallest(_scaled(self.sent_rows.size, factor, 1), worst))

    # Not cached: typical routing asks the training about recomputation, and the planner's trainings note what each unit asks.
    @property
    def routing(self) -> Factors | None:
        """The range of uneven routing; None where the router does not decide how many rows a rank gets, or a factor is given."""
        t = self.training
        free = t.router_imbalance is None and t.moe_expert_capacity_factor is None and not t.fixed_expert_rows
        if not (free and self.ep_many and self.model.num_moe_experts):
            return None
        ep, groups = self.layout.ep, self.model.num_moe_experts / self.model.moe_router_topk
        return factors(t, self.local_experts.local, chosen(ep < groups, ep, groups))

    @property
    def router_imbalance(self) -> Any:
        """Rows of the busiest rank relative to balanced routing: as given, or what is typical."""
        if self.training.router_imbalance is not None:
            return self.training.router_imbalance
        return self.routing.typical if self.routing else 1

    @property
    def expert_rows(self) -> Dim:
        """Rows that enter one rank's experts: gathered over the experts' tensor-parallel ranks."""
        rows = self.received_rows
        return Dim(f"{rows.name}*etp", rows.size * self.layout.etp) if self.etp_many else rows

    @property
    def padded_expert_rows(self) -> Dim:
        """The same with every local expert's rows rounded up, as low-precision GEMMs and grouped tensors need them."""
        multiple = GROUPED_ROWS if self.training.grouped_tensors else self.recipe.rows if self.recipe else 1
        if multiple == 1:
            return self.expert_rows
        local = self.local_experts.local
        each = round_up(ceil_div(self.expert_rows.size, local), multiple)
        return Dim(f"{self.expert_rows.name} padded", each * local)

    @property
    def filled(self) -> float:
        """The share of those rows that hold a token: not all where their number is a rank's capacity."""
        if self.training.moe_expert_rank_capacity_factor is None:
            return 1.0
        rows: float = self.sent_rows.size * self.layout.etp * self.router_imbalance
        return rows / self.padded_expert_rows.size


def _scaled(rows: int, factor: Any, over: int) -> int:
    """Rows times a factor (taken to six decimals), divided and rounded up."""
    return ceil_div(rows * nearest_whole(factor * FACTOR_SCALE), FACTOR_SCALE * over)


def above(degree: int, limit: int) -> bool:
    """Whether a degree is above a limit; an array of layouts must agree, because it shares one structure."""
    return agreed(degree > limit)


def agreed(found: Any) -> bool:
    """An answer that all layouts of an array share, because they share one structure."""
    if isinstance(found, bool):
        return found
    assert found.all() or not found.any(), "layouts of different structure in one array"
    return bool(found.all())


def many(degree: int) -> bool:
    """Whether a degree is above one."""
    return above(degree, 1)
