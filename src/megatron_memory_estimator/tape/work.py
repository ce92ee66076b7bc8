"""What an op computes and sends, as numbers of one rank: what `throughput/` turns into seconds and `flops.py` into model FLOPs.

Declared by the modules beside the bytes (`tape.Op`). Everything is a number or an array of one per layout.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .tensor import Param


class Gemm(NamedTuple):
    """rows x k by k x n, with the products of its backward: the input's gradient, and the weight's if it is trained.

    experts  linears that it does at once, on `rows` rows together; None for an ordinary linear
    recipe   of its low precision, "" for 16 bits
    casts    whether its input, and whether its output's gradient, is quantized in a pass of its own
    counted  whether it is part of the model's FLOPs (Megatron counts no router)
    """

    rows: float
    n: int
    k: int
    experts: int | None = None
    recipe: str = ""
    trained: bool = True
    casts: tuple[bool, bool] = (True, True)
    counted: bool = True


class Attention(NamedTuple):
    """A fused kernel of causal attention: queries of a rank, its heads, the keys' length, widths of a query and value head."""

    tokens: int
    heads: int
    sequence: int
    qk: int
    v: int
    fp8: bool = False

    @property
    def flops(self) -> int:
        """Forward FLOPs: queries times keys and probabilities times values, of half the square."""
        return self.tokens * self.heads * self.sequence * (self.qk + self.v)


class Streamed(NamedTuple):
    """A kernel that moves all tensors of its op through memory and multiplies matrices on the way, such as a scan.

    `forward` and `backward` are bytes that it moves beyond them: tensors that it passes over again or changes in place. `wide` are
    FLOPs of products in fp32, which are none of the model's.
    """

    flops: int = 0
    forward: int = 0
    backward: int = 0
    counted: bool = True
    wide: int = 0


Work = Gemm | Attention | Streamed
Axis = Literal["tp", "cp", "ep"]
Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "alltoall", "ring", "dispatch"]
Beside = Literal["", "userbuffers", "wgrad", "layers"]
"""What hides a transfer: nothing, the GEMM whose operand it is, the product for the input's gradient, another microbatch's layers."""


class Send(NamedTuple):
    """A transfer between `ranks` ranks that stand `stride` apart; `nbytes` of the whole buffer.

    That is the output of an all-gather, the input of a reduce-scatter, what all-to-all sends, what a ring passes round in all.
    A dispatch sends `nbytes` of which every row occurs `copies` times, to each rank once (0: each as often as it occurs). The experts
    of a row are in so many of the groups that experts are divided in: `groups` is (how many of, all groups).
    """

    kind: Collective
    axis: Axis
    ranks: int
    stride: int
    nbytes: float
    beside: Beside = ""
    copies: int = 0
    groups: tuple[int, int] = (1, 1)


def linear(weight: Param, rows: int, recipe: str = "", *, trained: bool = True) -> Gemm:
    """The GEMM of a weight [out, in] on so many rows."""
    n, k = weight.shape[0].local, weight.shape[1].local
    return Gemm(
        rows, n, k, weight.copies if weight.split == "expert" else None, recipe, trained, counted=bool(weight.gemm)
    )
